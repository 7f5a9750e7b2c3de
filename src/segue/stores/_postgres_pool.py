"""Connections to PostgreSQL: where to, how, and a pool of them for many threads."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from segue.errors import Closed, Invalid, Unavailable

from ._postgres_errors import translate
from ._postgres_wire import ADAPTERS

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

AGE_MAX_SECONDS = 1800.0
"""A connection is replaced after this time: load balancers and memory of the server like it so."""


@dataclass(frozen=True)
class Limits:
    """Times after which the server gives up, in milliseconds."""

    lock_ms: int
    statement_ms: int

    def options(self) -> str:
        """As an option of the connection."""
        # A client that vanished in the middle of a transaction must not hold its locks for ever.
        return (
            f"-c lock_timeout={self.lock_ms} -c statement_timeout={self.statement_ms} "
            f"-c idle_in_transaction_session_timeout={2 * self.statement_ms}"
        )


class Target:
    """
    Where to connect. Knows the password and never shows it.

    Attributes:
        where: Host, port and database, for messages.
        is_direct: Whether the server itself answers, and no pooler between; known after ``probe``.
    """

    def __init__(self, url: str, limits: Limits, *, connect_seconds: int, pooled: bool | None) -> None:
        self._parameters = _parse(url)
        self._parameters.setdefault("connect_timeout", str(connect_seconds))
        self._parameters.setdefault("application_name", "segue")
        self._parameters.setdefault("keepalives_idle", "30")
        self._parameters["client_encoding"] = "utf8"
        if "," in str(self._parameters.get("host", "")):
            self._parameters.setdefault("target_session_attrs", "read-write")
        self._pooled = pooled
        self.limits = limits
        self.is_direct = False
        host = self._parameters.get("host") or os.environ.get("PGHOST") or "localhost"
        port = self._parameters.get("port") or os.environ.get("PGPORT") or "5432"
        self.user = str(self._parameters.get("user") or os.environ.get("PGUSER") or "")
        self.where = f"{host}:{port}/{self._parameters.get('dbname') or os.environ.get('PGDATABASE') or self.user}"

    def __repr__(self) -> str:
        return f"Target({self.where!r})"

    def probe(self) -> Connection:
        """
        Connect for the first time and find out whether a pooler is between.

        The server tells a client the number of its process; a pooler makes one up, since the client
        will meet many processes. So the number is compared with the one that a query gives.
        """
        conn = self.connect()
        try:
            found = conn.execute("SELECT pg_backend_pid()").fetchone()
        except psycopg.Error as error:
            conn.close()
            raise translate(error, self.where) from error
        is_same = found is not None and found[0] == conn.info.backend_pid
        self.is_direct = is_same if self._pooled is None else not self._pooled
        if not self.is_direct:
            return conn
        conn.close()
        return self.connect()  # with the limits that only the server itself takes

    def connect(self) -> Connection:
        """A new connection, or the typed error that says what is wrong."""
        parameters = dict(self._parameters)
        if self.is_direct:
            parameters["options"] = f"{parameters.get('options', '')} {self.limits.options()}".strip()
        try:
            return psycopg.connect(
                **parameters,
                autocommit=True,
                # A pooler gives each transaction another server process, which knows no prepared statements.
                prepare_threshold=5 if self.is_direct else None,
                context=ADAPTERS,
            )
        except psycopg.Error as error:
            raise translate(error, self.where) from error


_SCHEMES = ("postgresql://", "postgres://")


def _parse(url: str) -> dict[str, Any]:
    # Nothing of a URL that cannot be read is repeated: a password may be in any part of it.
    try:
        parameters = dict(conninfo_to_dict(url)) if url.startswith(_SCHEMES) else {"host": "@"}
    except psycopg.Error:
        parameters = {"host": "@"}
    if "@" in str(parameters.get("host", "")) or "@" in str(parameters.get("port", "")):
        raise Invalid(
            "this is no URL of a PostgreSQL database; it should be postgresql://user:password@host:5432/database, "
            "with special characters in the password percent-encoded (@ is %40)",
            where="url",
        ) from None
    return parameters


class Pool:
    """
    At most ``size`` connections, made when needed, lent to one thread at a time.

    A connection is made by the thread that needs it, so that this thread learns at once why that
    fails, and works again at once when the server is back. There is no thread to lose in a fork.
    """

    def __init__(self, target: Target, size: int, *, wait_seconds: float) -> None:
        self.target = target
        self.size = size
        self._wait_seconds = wait_seconds
        self._idle: deque[tuple[float, Connection]] = deque()
        self._room = threading.BoundedSemaphore(size)
        self._inherited: list[Connection] = []
        self._is_closed = False
        _pools.add(self)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection; it comes back, or is dropped when it is not fit for another."""
        if not self._room.acquire(timeout=self._wait_seconds):
            raise Unavailable(
                f"PostgreSQL at {self.target.where}: all {self.size} connections of the pool were busy for "
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
                self._idle.pop()[1].close()
            except IndexError:
                return

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._is_closed = True
        self.drop_idle()

    def _take(self) -> tuple[float, Connection]:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")
        while True:
            try:
                born, conn = self._idle.pop()
            except IndexError:
                return time.monotonic(), self.target.connect()
            if time.monotonic() - born < AGE_MAX_SECONDS and not _has_news(conn):
                return born, conn
            conn.close()

    def _give_back(self, born: float, conn: Connection) -> None:
        if conn.pgconn.transaction_status == TransactionStatus.INERROR:
            with suppress(psycopg.Error):
                conn.rollback()
        if self._is_closed or conn.pgconn.transaction_status != TransactionStatus.IDLE:
            conn.close()
        else:
            self._idle.append((born, conn))

    def begin_in_child(self) -> None:
        """Start anew after a fork. The parent's connections are kept unused: closing one would end the parent's."""
        self._inherited += [conn for _, conn in self._idle]
        self._idle = deque()
        self._room = threading.BoundedSemaphore(self.size)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _begin_in_child() -> None:
    for pool in _pools:
        pool.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def _has_news(conn: Connection) -> bool:
    """True when an idle connection has something to read: its end, or the server's last words."""
    if conn.closed:
        return True
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return bool(poll.poll(0))
