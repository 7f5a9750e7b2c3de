"""Hears what other processes committed: LISTEN on a connection of its own, on a thread of its own."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
from psycopg import sql

from segue.errors import SegueError

from ._postgres_pool import Connection, Target

PROOF_SECONDS = 2.0
"""How long a first notification may take to come back before the connection counts as deaf."""

BACKOFF_MAX_SECONDS = 2.0
"""Longest pause between attempts to connect again."""


def hears(target: Target, channel: str) -> bool:
    """Whether notifications come through to a connection like this one: sends itself one."""
    with target.connect() as conn, suppress(psycopg.Error):
        _listen(conn, channel)
        conn.execute("SELECT pg_notify(%s, 'proof')", (channel,))
        return next(iter(conn.notifies(timeout=PROOF_SECONDS, stop_after=1)), None) is not None
    return False


def _listen(conn: Connection, channel: str) -> None:
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


class Watch:
    """
    Calls ``tell`` with the id of each session that another process changed.

    Whenever the connection was made anew, something may have been missed: then ``tell`` is called with None.

    Args:
        channel: Where the schema's functions send to.
        sender: What this process's own notifications are signed with; they are not told.
    """

    def __init__(self, target: Target, *, channel: str, sender: str, tell: Callable[[str | None], None]) -> None:
        self._target = target
        self._channel = channel
        self._sender = sender
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
                with self._target.connect() as conn:
                    _listen(conn, self._channel)
                    failures = 0
                    self._tell(None)
                    self._hear(conn)
            except (psycopg.Error, SegueError, OSError):
                # Waiters poll besides, if rarely; so a server that is away is no error here.
                failures += 1
                self._pause(min(0.05 * 2**failures, BACKOFF_MAX_SECONDS))

    def _hear(self, conn: Connection) -> None:
        while not self._is_closed:
            self._pause(None, conn.fileno())
            for payload in _received(conn):
                self._pass_on(payload)

    def _pass_on(self, payload: str) -> None:
        sender, *sessions = payload.split("\n")
        if sender != self._sender:
            for session in sessions:
                self._tell(session or None)

    def _pause(self, seconds: float | None, *numbers: int) -> None:
        """Until the time is over, there is something to read, or the watch is closed."""
        poll = select.poll()
        for number in (self._wake, *numbers):
            poll.register(number, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)


def _received(conn: Connection) -> Iterator[str]:
    """What has come in meanwhile, without waiting."""
    for notification in conn.notifies(timeout=0):
        yield notification.payload
