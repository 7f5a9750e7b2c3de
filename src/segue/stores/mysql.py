"""
Sessions in MySQL or MariaDB: a store for many processes and machines.

Works with MySQL 8 and MariaDB 10.6 and newer. See docs/decisions/0021-mysql.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from segue.errors import Closed, Corrupt, Invalid, MissingExtra, NotDone, NotFound
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import LIST_MAX, READ_MAX, Filter, Op, Page, Report, Result

try:
    import pymysql
    from pymysql.connections import Connection
except ModuleNotFoundError as missing:
    raise MissingExtra("mysql", "pymysql") from missing

from . import _mysql_check, _mysql_read
from ._mysql_commit import Committer
from ._mysql_errors import judge, translate
from ._mysql_page import order_of, page_query
from ._mysql_pool import Limits, Pool, Target, run
from ._mysql_rows import COLUMNS, Row, info_of
from ._mysql_schema import Schema
from ._mysql_work import NOW_US, WAITING
from ._pool import Pool as _Pool
from ._spans import Span, write_cursor
from ._steps import Step

T = TypeVar("T")

_ENDLESS = (1 << 63) - 1
_INFO = f"SELECT {NOW_US} + %s, {WAITING}, {', '.join(f's.{name}' for name in COLUMNS)} FROM sessions s WHERE "  # noqa: S608
_BY_ID = _INFO + "s.tenant = %s AND s.user_id = %s AND s.id = %s AND s.erased_us IS NULL"
_BY_KEY = _INFO + "s.tenant = %s AND s.user_id = %s AND s.own_key = %s AND s.erased_us IS NULL"
_SCOPES = """
    SELECT DISTINCT s.tenant, s.user_id FROM sessions s FORCE INDEX (sessions_active)
    WHERE s.tenant >= %s AND (s.tenant > %s OR s.user_id > %s) AND s.is_gone = 0
    ORDER BY s.tenant, s.user_id LIMIT %s
"""


class MySQLStore:
    """
    A store in a database of a MySQL or MariaDB server (``mysql://user@host/database``).

    It declares ``durable`` only where the server's settings let nothing acknowledged be lost in a power
    loss (``innodb_flush_log_at_trx_commit = 1``, with a binary log also ``sync_binlog = 1``); ``check``
    says which are not so. Others' commits are polled, not told.

    Args:
        url: The database, which must be there. A password is better in ``MYSQL_PWD`` or a file
            (``?read_default_file=/etc/segue.cnf``) than here. Also ``ssl_ca``, ``ssl_cert``, ``ssl_key``,
            ``ssl_verify_cert``, ``ssl_verify_identity``, ``unix_socket``.
        pool_size: Most connections of this handle.
        migrate: Bring the tables up to date at open; False: ``Unavailable`` when they are not.
        lock_timeout: Longest wait for a row, in whole seconds; then ``Locked``.
        statement_timeout: Longest time for a statement; then ``Unavailable``.
        connect_timeout: Longest time to connect, and to wait for a free connection.

    Raises:
        Invalid: The URL is none.
        Unavailable: No connection, too old a server, a setting that this store cannot work with, or a right
            is missing; the message says which.
        TooNew: A newer Segue made the tables.
    """

    name = "mysql"

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        migrate: bool = True,
        lock_timeout: timedelta = timedelta(seconds=2),
        statement_timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        if pool_size < 1:
            raise Invalid(f"pool_size must be at least 1, not {pool_size}", where="pool_size")
        self.lanes = min(4, pool_size)
        self.on_change: Callable[[str | None], None] | None = None
        self._shift_us = 0
        self._is_closed = False
        wait_seconds = connect_timeout.total_seconds()
        limits = Limits(lock_timeout.total_seconds(), statement_timeout.total_seconds(), wait_seconds)
        target = Target(url, limits)
        self._schema = Schema(target)
        self._pool: Pool = _Pool(target, pool_size, wait_seconds=wait_seconds)
        self._committer = Committer(self._pool)
        is_durable = self._reading(lambda conn: self._prepare(conn, migrate=migrate))
        self.capabilities = frozenset({"processes", "shared-clock"} | ({"durable"} if is_durable else set()))

    def __repr__(self) -> str:
        return f"<MySQLStore {self._schema.where}>"

    def _prepare(self, conn: Connection[Any], *, migrate: bool) -> bool:
        """Whether the server keeps what it acknowledges; the tables are there afterwards."""
        settings = _mysql_check.read_settings(conn, self._schema.where)
        if migrate:
            self._schema.apply(conn)
        else:
            self._schema.check_current(conn)
        return settings.is_durable

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, each all-or-nothing, durably. See ``segue.store.Store.commit``."""
        self._check_open()
        return self._committer.commit(ops, self._shift_us)

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""
        found = self._info(_BY_ID, scope, session)
        if found is None:
            raise NotFound(session)
        return found

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""
        return self._info(_BY_KEY, scope, key)

    def _info(self, query: str, scope: ScopeKey, name: str) -> SessionInfo | None:
        rows = self._rows(query, self._shift_us, self._shift_us, *_packed(scope), name.encode())
        return next((info_of(Row(*row[2:]), scope, now_us=row[0], waiting=row[1]) for row in rows), None)

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""
        limit = min(limit, LIST_MAX)
        query, values = page_query(scope, filter, cursor=cursor, limit=limit + 1, shift_us=self._shift_us)
        rows = self._rows(query, *values)
        shown = tuple(info_of(Row(*row[3:]), scope, now_us=row[0], waiting=row[1]) for row in rows[:limit])
        if len(rows) <= limit:
            return Page(shown, None)
        return Page(shown, write_cursor(scope, order_of(filter).name, rows[limit - 1][2], shown[-1].id))

    def read(
        self,
        scope: ScopeKey,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: tuple[str, ...] | None = None,
        reverse: bool = False,
        limit: int = READ_MAX,
    ) -> list[Entry]:
        """Entries with after < seq <= upto. See ``segue.store.Store.read``."""
        span = Span(session, max(after, 0), _ENDLESS if upto is None else upto, reverse, min(limit, READ_MAX))
        try:
            return self._reading(lambda conn: _mysql_read.read(conn, scope, span, kinds))
        except Corrupt:
            # Of an erasure that came between two statements, all is gone now; of damage, it is there still.
            return self._reading(lambda conn: _mysql_read.read(conn, scope, span, kinds))

    def by_ref(
        self,
        scope: ScopeKey,
        ref: str,
        *,
        session: str | None = None,
        after: int = 0,
        upto: int | None = None,
        since_us: int | None = None,
        reverse: bool = False,
        limit: int = READ_MAX,
    ) -> list[Hit]:
        """Entries that carry the ref, by index. See ``segue.store.Store.by_ref``."""
        span = Span(session or "", after, _ENDLESS if upto is None else upto, reverse, min(limit, READ_MAX))
        ask = _mysql_read.by_ref_in if session is None else _mysql_read.by_ref_of
        return self._reading(lambda conn: ask(conn, scope, ref, span, since_us))

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order, for maintenance."""
        tenant, user = _packed(after or ScopeKey("", ""))
        rows = self._rows(_SCOPES, tenant, tenant, user, limit)
        return [ScopeKey(tenant.decode(), user.decode()) for tenant, user in rows]

    # The handle.

    def now_us(self) -> int:
        """The server's clock, microseconds since 1970."""
        return int(self._rows(f"SELECT {NOW_US} + %s", self._shift_us)[0][0])

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """What the server's settings promise; with ``deep`` also every session and entry."""
        reports = self._reading(lambda conn: _mysql_check.settings(conn, self._schema, self._pool))
        if deep:
            reports += self._reading(_mysql_check.damage)
        return reports

    def close(self) -> None:
        """Release all connections. Idempotent. Later calls raise ``Closed``."""
        self._is_closed = True
        self._pool.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")

    def _rows(self, query: str, *values: Any) -> tuple[tuple[Any, ...], ...]:
        return self._reading(lambda conn: run(conn, [query], values)[0])

    def _reading(self, ask: Callable[[Connection[Any]], T]) -> T:
        """Ask; once more when the connection was cut."""
        self._check_open()
        for is_last in (False, True):
            try:
                with self._pool.connection() as conn:
                    return ask(conn)
            except pymysql.MySQLError as error:
                if judge(error) == "cut":
                    self._pool.drop_idle()
                if is_last or judge(error) != "cut":
                    raise translate(error, self._schema.where) from error
        raise AssertionError


def plan(url: str) -> tuple[Step, ...]:
    """
    The migrations that a database still lacks, in order; changes nothing.

    Raises:
        TooNew: A newer Segue made the tables.
    """
    with _visit(url) as (schema, conn):
        return schema.pending(conn)


def apply(url: str) -> tuple[Step, ...]:
    """
    Bring the tables of a database up to date, as the user who is to own them.

    Returns:
        The steps that this call applied.
    """
    with _visit(url) as (schema, conn):
        return schema.apply(conn)


@contextmanager
def _visit(url: str) -> Iterator[tuple[Schema, Connection[Any]]]:
    target = Target(url, Limits(2, 30, 10))
    schema = Schema(target)
    conn = target.connect()
    try:
        _mysql_check.read_settings(conn, schema.where)
        yield schema, conn
    except pymysql.MySQLError as error:
        raise translate(error, schema.where) from error
    finally:
        if conn.open:
            conn.close()


def _packed(scope: ScopeKey) -> tuple[bytes, bytes]:
    return scope.tenant.encode(), scope.user.encode()
