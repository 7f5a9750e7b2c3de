"""Hears what other processes committed: SUBSCRIBE on a connection of its own, on a thread of its own."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import redis

from segue.errors import SegueError

from ._redis_link import Link
from ._redis_wires import Command, Wire, socket_of

PROOF_SECONDS = 2.0
"""How long a first message may take to come back before the connection counts as deaf."""

BACKOFF_MAX_SECONDS = 2.0
"""Longest pause between attempts to connect again."""

PING_SECONDS = 20.0
"""After this time of silence the connection is tried, and after as much again given up."""


def may_publish(link: Link, channel: str) -> bool:
    """Whether this user may publish there."""
    return not isinstance(link.run([Command(None, (b"PUBLISH", channel, b""))])[0], Exception)


def hears(link: Link, channel: str) -> bool:
    """Whether messages come through to a connection like the watch's: sends itself one."""
    with suppress(redis.RedisError, SegueError, OSError):
        wire = link.listen()
        try:
            wire.send_command("SUBSCRIBE", channel)
            wire.read_response()
            link.run([Command(None, (b"PUBLISH", channel, b"proof"))])
            return bool(wire.can_read(timeout=PROOF_SECONDS))
        finally:
            wire.disconnect()
    return False


class Watch:
    """
    Calls ``tell`` with the id of each session that another process changed.

    Whenever the connection was made anew, something may have been missed: then ``tell`` is called with None.

    Args:
        channel: Where the scripts publish.
        sender: What this process's own messages are signed with; they are not told.
    """

    def __init__(self, link: Link, *, channel: str, sender: str, tell: Callable[[str | None], None]) -> None:
        self._link = link
        self._channel = channel
        self._sender = sender.encode()
        self._tell = tell
        self._is_closed = False
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._work, name="segue-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        if self._is_closed:
            return
        self._is_closed = True
        os.write(self._woken, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._wake)
        os.close(self._woken)

    def _work(self) -> None:
        failures = 0
        while not self._is_closed:
            try:
                wire = self._link.listen()
                try:
                    wire.send_command("SUBSCRIBE", self._channel)
                    wire.read_response()
                    failures = 0
                    self._tell(None)
                    self._hear(wire)
                finally:
                    wire.disconnect()
            except (redis.RedisError, SegueError, OSError):
                # Waiters poll besides, if rarely; so a server that is away is no error here.
                failures += 1
                self._pause(min(0.05 * 2**failures, BACKOFF_MAX_SECONDS))

    def _hear(self, wire: Wire) -> None:
        heard = time.monotonic()
        while not self._is_closed:
            self._pause(PING_SECONDS, wire)
            while not self._is_closed and wire.can_read(timeout=0):
                heard = time.monotonic()
                self._pass_on(wire.read_response())
            silence = time.monotonic() - heard
            if silence > 2 * PING_SECONDS:
                return
            if silence > PING_SECONDS:
                wire.send_command("PING")

    def _pass_on(self, message: object) -> None:
        if not isinstance(message, list) or message[0] != b"message":
            return
        sender, *sessions = message[2].split(b"\0")
        if sender != self._sender:
            for session in sessions:
                self._tell(session.decode() or None)

    def _pause(self, seconds: float, wire: Wire | None = None) -> None:
        """Until the time is over, there is something to read, or the watch is closed."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if wire is not None:
            poll.register(socket_of(wire), select.POLLIN)
        poll.poll(seconds * 1000)
