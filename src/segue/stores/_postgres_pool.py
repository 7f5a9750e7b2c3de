"""Connections to PostgreSQL: where to, and how."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from segue.errors import Invalid

from . import _pool
from ._postgres_errors import translate
from ._postgres_wire import ADAPTERS

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


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

    engine = "PostgreSQL"

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

    def is_usable(self, conn: Connection) -> bool:
        """Whether a connection that comes back, rolled back if need be, is fit for another."""
        if conn.pgconn.transaction_status == TransactionStatus.INERROR:
            with suppress(psycopg.Error):
                conn.rollback()
        return conn.pgconn.transaction_status == TransactionStatus.IDLE

    def is_alive(self, conn: Connection) -> bool:
        """Whether an idle connection has not heard its end, or the server's last words."""
        return not conn.closed and not _pool.has_news(conn.fileno())


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


Pool: TypeAlias = _pool.Pool[Target, Connection]
