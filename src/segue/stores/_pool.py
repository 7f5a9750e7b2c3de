"""A pool of connections to a server, for many threads; what a connection is, its target knows."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from segue.errors import Closed, Unavailable

AGE_MAX_SECONDS = 1800.0
"""A connection is replaced after this time: load balancers and memory of the server like it so."""

C = TypeVar("C")
L = TypeVar("L", bound="Link[Any]")


class Link(Protocol[C]):
    """
    Where connections lead.

    Attributes:
        engine: The server's name in messages (``PostgreSQL``).
        where: Host, port and database, for messages.
    """

    engine: str
    where: str

    def connect(self) -> C:
        """A new connection, or the typed error that says what is wrong."""

    def is_usable(self, conn: C) -> bool:
        """Whether a connection that comes back, rolled back if need be, is fit for another."""

    def is_alive(self, conn: C) -> bool:
        """Whether an idle connection has not heard its end, or the server's last words."""


class Pool(Generic[L, C]):
    """
    At most ``size`` connections, made when needed, lent to one thread at a time.

    A connection is made by the thread that needs it, so that this thread learns at once why that
    fails, and works again at once when the server is back. There is no thread to lose in a fork.
    """

    def __init__(self, target: L, size: int, *, wait_seconds: float) -> None:
        self.target = target
        self.size = size
        self._wait_seconds = wait_seconds
        self._idle: deque[tuple[float, C]] = deque()
        self._room = threading.BoundedSemaphore(size)
        self._inherited: list[C] = []
        self._is_closed = False
        _pools.add(self)

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Lend a connection; it comes back, or is dropped when it is not fit for another."""
        if not self._room.acquire(timeout=self._wait_seconds):
            raise Unavailable(
                f"{self.target.engine} at {self.target.where}: all {self.size} connections of the pool were busy for "
                f"{self._wait_seconds:g} s; raise pool_size, or do less at a time"
            )
        try:
            born, conn = self._take()
            try:
                yield conn
            finally:
                self._give_back(born, conn)
        finally:
            self._room.release()

    def drop_idle(self) -> None:
        """Close what nobody uses: after one connection broke, the others are likely broken too."""
        while True:
            try:
                self._end(self._idle.pop()[1])
            except IndexError:
                return

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._is_closed = True
        self.drop_idle()

    def _take(self) -> tuple[float, C]:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")
        while True:
            try:
                born, conn = self._idle.pop()
            except IndexError:
                return time.monotonic(), self.target.connect()
            if time.monotonic() - born < AGE_MAX_SECONDS and self.target.is_alive(conn):
                return born, conn
            self._end(conn)

    def _give_back(self, born: float, conn: C) -> None:
        if self.target.is_usable(conn) and not self._is_closed:
            self._idle.append((born, conn))
        else:
            self._end(conn)

    def _end(self, conn: Any) -> None:
        conn.close()

    def begin_in_child(self) -> None:
        """Start anew after a fork. The parent's connections are kept unused: closing one would end the parent's."""
        self._inherited += [conn for _, conn in self._idle]
        self._idle = deque()
        self._room = threading.BoundedSemaphore(self.size)


_pools: weakref.WeakSet[Pool[Any, Any]] = weakref.WeakSet()


def _begin_in_child() -> None:
    for pool in _pools:
        pool.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def has_news(number: int) -> bool:
    """True when there is something to read at a file number: of an idle connection, its end."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))
