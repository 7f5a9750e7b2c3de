"""Connections to MySQL or MariaDB: where to, how, and what is set on each."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, SERVER_STATUS

from segue.errors import Invalid, Unavailable

from . import _pool
from ._mysql_errors import translate

Rows: TypeAlias = "tuple[tuple[Any, ...], ...]"

MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"
"""The sql_mode of this store's connections: what does not fit is refused, never cut."""

MARIADB_MIN = (10, 6)
MYSQL_MIN = (8, 0)

_SCHEMES = ("mysql", "mariadb")
_TLS = frozenset({"ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity"})
_OTHERS = frozenset({"unix_socket", "read_default_file", "read_default_group"})
_NO_TLS = 2026


@dataclass(frozen=True)
class Limits:
    """Times after which the server, or else this side, gives up; in seconds."""

    lock: float
    statement: float
    connect: float


class Target:
    """
    Where to connect. Knows the password and never shows it.

    Attributes:
        where: Host, port and database, for messages.
        database: The database that holds the tables.
        packet_max_bytes: Most bytes of one message to the server (max_allowed_packet), as of the last connection.
        is_mariadb: Which of the two it is; known after the first connection.
    """

    engine = "MySQL"

    def __init__(self, url: str, limits: Limits) -> None:
        self._parameters, tls = _parse(url)
        self._needs_tls = bool(tls)
        # One for all connections: the driver would read the certificates of the whole system for each.
        self._tls = None if "unix_socket" in self._parameters and not tls else _tls_context(**tls)
        self.database = str(self._parameters["database"])
        self.limits = limits
        self.packet_max_bytes = 0
        self.is_mariadb = False
        place = self._parameters.get("unix_socket") or f"{self._parameters['host']}:{self._parameters['port']}"
        self.where = f"{place}/{self.database}"

    def __repr__(self) -> str:
        return f"Target({self.where!r})"

    def connect(self) -> Connection[Any]:
        """A new connection with all settings, or the typed error that says what is wrong."""
        try:
            conn = self._log_in()
        except pymysql.MySQLError as error:
            raise translate(error, self.where) from error
        except (OSError, ValueError, RuntimeError) as error:  # a certificate, or a way to log in without its package
            raise Unavailable(f"MySQL at {self.where}: cannot connect ({error})") from error
        if self._needs_tls and not isinstance(conn._sock, ssl.SSLSocket):  # noqa: SLF001 - older drivers fall back in silence
            conn.close()
            raise Unavailable(
                f"MySQL at {self.where}: the URL asks for TLS, and the server has none; switch it on there"
            )
        try:
            self._settle(conn)
        except pymysql.MySQLError as error:
            conn.close()
            raise translate(error, self.where) from error
        except BaseException:
            conn.close()
            raise
        return conn

    def _log_in(self) -> Connection[Any]:
        """With TLS where the server has it; where the URL asks for it, never without."""
        try:
            return self._open()
        except pymysql.OperationalError as error:
            if self._needs_tls or self._tls is None or error.args[0] != _NO_TLS:
                raise
        self._tls = None
        return self._open()

    def _open(self) -> Connection[Any]:
        tls = {"ssl_disabled": True} if self._tls is None else {"ssl": self._tls}
        return pymysql.connect(
            **self._parameters,
            **tls,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, math.ceil(self.limits.connect)),
            # Behind the server's own limit, which it keeps more politely.
            read_timeout=math.ceil(2 * self.limits.statement + self.limits.lock),
            write_timeout=math.ceil(2 * self.limits.statement + self.limits.lock),
            # One round trip for what belongs together. Values never become SQL: they are sent as X'...'.
            client_flag=CLIENT.MULTI_STATEMENTS,
            program_name="segue",
        )

    def _settle(self, conn: Connection[Any]) -> None:
        """Set what this store rests on, whatever the server's defaults are."""
        self.is_mariadb = check_version(conn.get_server_info(), self.where)
        seconds = self.limits.statement
        names = {
            "sql_mode": MODE,
            "innodb_lock_wait_timeout": max(1, math.ceil(self.limits.lock)),
            "lock_wait_timeout": max(1, math.ceil(seconds)),
            # A client that vanished in the middle of a transaction must not hold its locks for ever.
            **(
                {"max_statement_time": seconds, "idle_transaction_timeout": math.ceil(2 * seconds)}
                if self.is_mariadb
                else {"max_execution_time": math.ceil(seconds * 1000), "wait_timeout": math.ceil(2 * seconds)}
            ),
        }
        settings = ", ".join(f"SESSION {name} = %s" for name in names)
        run(conn, [f"SET {settings}", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"], names.values())
        (row,) = run(conn, ["SELECT @@max_allowed_packet"])[0]
        self.packet_max_bytes = int(row[0])

    def is_usable(self, conn: Connection[Any]) -> bool:
        """Whether a connection that comes back, rolled back if need be, is fit for another."""
        if conn.open and conn.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            with suppress(pymysql.MySQLError):
                conn.rollback()
        return bool(conn.open and not conn.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def is_alive(self, conn: Connection[Any]) -> bool:
        """Whether an idle connection has not heard its end, or the server's last words."""
        return bool(conn.open and not _pool.has_news(conn._sock.fileno()))  # noqa: SLF001 - the driver has no other way


Pool: TypeAlias = "_pool.Pool[Target, Connection[Any]]"


def run(conn: Connection[Any], statements: Sequence[str], values: Any = ()) -> list[Rows]:
    """
    Send statements in one message; the rows of each. An error ends it: what follows was not executed.

    Args:
        statements: Fixed text with %s for values.
        values: Of all statements, in their order; bytes, numbers, None, or fixed names.
    """
    return Answers(conn).send(statements, values)


class Answers:
    """
    The answers to one message, as far as they came.

    Attributes:
        rows: Of each statement that was answered.
        counts: How many rows each of them found or changed.
    """

    def __init__(self, conn: Connection[Any]) -> None:
        self._conn = conn
        self.rows: list[Rows] = []
        self.counts: list[int] = []

    def send(self, statements: Sequence[str], values: Any) -> list[Rows]:
        """See ``run``."""
        with self._conn.cursor() as cursor:
            self.counts.append(cursor.execute(";".join(statements), tuple(values)))
            self.rows.append(cursor.fetchall() or ())
            while cursor.nextset():
                self.counts.append(cursor.rowcount)
                self.rows.append(cursor.fetchall() or ())
        return self.rows


def check_version(version: str, where: str) -> bool:
    """
    Whether a server's version is one of MariaDB.

    Raises:
        Unavailable: It is too old.
    """
    is_mariadb = "mariadb" in version.lower()
    least = MARIADB_MIN if is_mariadb else MYSQL_MIN
    # Old MariaDB puts the version of the MySQL that it stands for before its own.
    digits = version.removeprefix("5.5.5-").split("-")[0].split(".")
    found = tuple(int(part) for part in digits[:2] if part.isdigit())
    if found < least:
        name = "MariaDB" if is_mariadb else "MySQL"
        raise Unavailable(
            f"{name} at {where} has version {version}; Segue needs {least[0]}.{least[1]} or newer: upgrade the server"
        )
    return is_mariadb


def _parse(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    # Nothing of a URL that cannot be read is repeated: a password may be in any part of it.
    try:
        return _parameters(url)
    except ValueError:
        names = ", ".join(sorted(_TLS | _OTHERS))
        raise Invalid(
            "this is no URL of a MySQL database; it should be mysql://user:password@host:3306/database, with special "
            f"characters in the password percent-encoded (@ is %40), and after ? only {names}",
            where="url",
        ) from None


def _parameters(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    parts = urlsplit(url)
    database = unquote(parts.path.removeprefix("/"))
    is_url = parts.scheme in _SCHEMES and url.partition(":")[2].startswith("//") and not parts.fragment
    if not is_url or not database or "/" in database or parts.netloc.count("@") > 1:
        raise ValueError(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if not given.keys() <= _TLS | _OTHERS:
        raise ValueError(url)
    parameters: dict[str, Any] = {
        "host": unquote(parts.hostname or "localhost"),
        "port": parts.port or 3306,
        "user": unquote(parts.username or "") or None,
        "password": unquote(parts.password or "") or os.environ.get("MYSQL_PWD", ""),
        "database": database,
    }
    parameters |= {name: value for name, value in given.items() if name in _OTHERS}
    return parameters, {name: value for name, value in given.items() if name in _TLS}


def _tls_context(
    *,
    ssl_ca: str | None = None,
    ssl_cert: str | None = None,
    ssl_key: str | None = None,
    ssl_verify_cert: str = "",
    ssl_verify_identity: str = "",
) -> ssl.SSLContext:
    """With no CA and no word that the server is to be verified, encrypted only."""
    if ssl_ca or "true" in (ssl_verify_cert, ssl_verify_identity):
        try:
            context = ssl.create_default_context(cafile=ssl_ca)
        except OSError as error:
            raise Invalid(
                f"ssl_ca={ssl_ca} cannot be read ({error}); name a file with certificates", where="url"
            ) from None
        context.check_hostname = ssl_verify_identity == "true"
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ssl_cert:
        try:
            context.load_cert_chain(ssl_cert, ssl_key)
        except OSError as error:
            raise Invalid(f"ssl_cert={ssl_cert} cannot be read ({error}); name a file", where="url") from None
    return context
