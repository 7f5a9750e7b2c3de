"""
Sessions in PostgreSQL: the store for many processes and machines.

Works with PostgreSQL 13 and newer, directly or behind a pooler in transaction mode: nothing rests on
the state of a connection. See docs/decisions/0003-postgres.md.
"""

from __future__ import annotations

import math
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from segue.errors import Closed, Invalid, MissingExtra, NotDone, NotFound
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import LIST_MAX, READ_MAX, Filter, Op, Page, Report, Result

try:
    import psycopg
    from psycopg.pq import Format as WireFormat
except ModuleNotFoundError as missing:
    raise MissingExtra("postgres", "psycopg") from missing

from . import _postgres_check
from ._postgres_calls import Calls
from ._postgres_commit import Committer, enter
from ._postgres_errors import judge, translate
from ._postgres_page import order_of, page_query
from ._postgres_pool import Connection, Limits, Pool, Target
from ._postgres_queries import QUERIES, hit, query
from ._postgres_schema import Schema, check_server
from ._postgres_watch import Watch, hears
from ._postgres_wire import Row, unpack_log, unpack_session
from ._spans import Span, lost, write_cursor
from ._steps import Step

T = TypeVar("T")

_ENDLESS = (1 << 63) - 1
_STREAM_MIN = 500
"""From this many entries on they are read straight from the table, which needs no copy on the server."""


class PostgresStore:
    """
    A store in a schema of a PostgreSQL database (``postgresql://user@host/database``).

    Args:
        url: The database. A password is better in ``PGPASSWORD`` or ``~/.pgpass`` than here.
        pool_size: Most connections of this handle (besides one that listens).
        schema: The schema that holds the tables; made when missing.
        row_security: Let the database itself show each transaction only one scope's rows. The user of
            the connection must then be no superuser and have no BYPASSRLS.
        migrate: Bring the schema up to date at open; False: ``Unavailable`` when it is not.
        pooled: Whether a pooler is between; None finds out.
        notify: Send and hear notifications, where there is no pooler between.
        listen_url: A URL past the pooler, for hearing.
        lock_timeout: Longest wait for a row; then ``Locked``.
        statement_timeout: Longest time for a statement; then ``Unavailable``.
        connect_timeout: Longest time to connect, and to wait for a free connection.

    Raises:
        Invalid: The URL or the schema's name is none.
        Unavailable: No connection, too old a server, or a right is missing; the message says which.
        TooNew: A newer Segue made the schema.
    """

    name = "postgres"

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        schema: str = "segue",
        row_security: bool = False,
        migrate: bool = True,
        pooled: bool | None = None,
        notify: bool = True,
        listen_url: str | None = None,
        lock_timeout: timedelta = timedelta(seconds=2),
        statement_timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        if pool_size < 1:
            raise Invalid(f"pool_size must be at least 1, not {pool_size}", where="pool_size")
        self.lanes = min(4, pool_size)
        self._shift_us = 0
        self._is_closed = False
        self._on_change: Callable[[str | None], None] | None = None
        self._watch: Watch | None = None
        limits = Limits(_ms(lock_timeout), _ms(statement_timeout))
        seconds = max(2, math.ceil(connect_timeout.total_seconds()))  # the driver takes whole ones, from 2 on
        self._target = Target(url, limits, connect_seconds=seconds, pooled=pooled)
        self._schema = Schema(self._target, schema)
        self._sender = secrets.token_hex(8)
        with self._target.probe() as conn:
            self._has_row_security = self._prepare(conn, migrate=migrate, row_security=row_security)
        self._ear = self._find_ear(listen_url, limits, seconds) if notify else None
        self._pool = Pool(self._target, pool_size, wait_seconds=connect_timeout.total_seconds())
        calls = Calls(
            schema,
            lock_ms=None if self._target.is_direct else limits.lock_ms,
            sender=self._sender if notify else None,
        )
        self._notifies = notify
        self._committer = Committer(self._pool, calls, self._has_row_security)
        declared = {"durable", "processes", "shared-clock"} | ({"notify"} if self._ear else set())
        self.capabilities = frozenset(declared)
        self._queries = {name: query(schema, name) for name in QUERIES}
        _stores.add(self)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._schema.where}>"

    def _prepare(self, conn: Connection, *, migrate: bool, row_security: bool) -> bool:
        check_server(conn, self._target.where)
        if migrate:
            self._schema.apply(conn)
        else:
            self._schema.check_current(conn)
        if row_security and migrate:
            self._schema.force_row_security(conn)
        has_row_security = self._schema.has_row_security(conn)
        if row_security and not has_row_security:
            raise Invalid(
                f"row_security=True has no effect at {self._schema.where}: it is not switched on there, or the user "
                f"{conn.info.user!r} is above it; run segue migrate --apply, and connect as a user without SUPERUSER "
                "and BYPASSRLS",
                where="row_security",
            )
        return has_row_security

    def _find_ear(self, listen_url: str | None, limits: Limits, seconds: int) -> Target | None:
        """Where notifications can be heard, if anywhere."""
        target = self._target
        if listen_url is not None:
            target = Target(listen_url, limits, connect_seconds=seconds, pooled=False)
            target.is_direct = True
        return target if target.is_direct and hears(target, self._schema.name) else None

    @property
    def on_change(self) -> Callable[[str | None], None] | None:
        """Called, from a thread of the store, with the id of a session that another process changed (None: any)."""
        return self._on_change

    @on_change.setter
    def on_change(self, tell: Callable[[str | None], None] | None) -> None:
        self._on_change = tell
        if tell is not None and self._watch is None and self._ear is not None and not self._is_closed:
            self._watch = Watch(self._ear, channel=self._schema.name, sender=self._sender, tell=self._changed)

    def _changed(self, session: str | None) -> None:
        if self._on_change is not None:
            self._on_change(session)

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, each all-or-nothing, durably. See ``segue.store.Store.commit``."""
        self._check_open()
        return self._committer.commit(ops, self._shift_us)

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""
        found = self._info(scope, session, None)
        if found is None:
            raise NotFound(session)
        return found

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""
        return self._info(scope, None, key)

    def _info(self, scope: ScopeKey, session: str | None, key: str | None) -> SessionInfo | None:
        rows = self._ask(scope, "info", (self._shift_us, *scope, session, key))
        return next((unpack_session(scope, row[2:], now_us=row[0], waiting=row[1]) for row in rows), None)

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""
        limit = min(limit, LIST_MAX)
        query, values = page_query(
            self._schema.name, scope, filter, cursor=cursor, limit=limit + 1, shift_us=self._shift_us
        )
        rows = self._reading(scope, lambda conn: conn.cursor(binary=True).execute(query, values).fetchall())
        shown = tuple(unpack_session(scope, row[3:], now_us=row[0], waiting=row[1]) for row in rows[:limit])
        more = (
            write_cursor(scope, order_of(filter).name, rows[limit - 1][2], shown[-1].id) if len(rows) > limit else None
        )
        return Page(shown, more)

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
        limit = min(limit, READ_MAX)
        span = Span(session, max(after, 0), _ENDLESS if upto is None else upto, reverse, limit)
        if limit >= _STREAM_MIN and kinds is None:
            entries = self._stream(scope, span)
            if entries is not None:
                return entries
        names = None if kinds is None else list(kinds)
        args = (*scope, session, span.after, span.upto, names, reverse, limit)
        rows = self._ask(scope, "read", args)
        if not rows:
            raise NotFound(session)
        entries = unpack_log(rows[1:], session)
        if kinds is None and (missing := span.first_missing(entries, rows[0][0])):
            raise lost(session, missing)
        return entries

    def _stream(self, scope: ScopeKey, span: Span) -> list[Entry] | None:
        """Many entries, straight from the table; None when not all were there (or an erasure came between)."""
        parts = self._ask(scope, "parts", (*scope, span.session))
        if not parts:
            raise NotFound(span.session)
        if span.reverse:
            parts.reverse()
        entries: list[Entry] = []
        for segment, low, upto in parts:
            name = "part_reverse" if span.reverse else "part"
            still = span.limit - len(entries)
            rows = self._ask(scope, name, (segment, max(low, span.after), min(upto, span.upto), still))
            entries += unpack_log(rows, span.session)
            if len(entries) >= span.limit:
                break
        head = max(upto for _, _, upto in parts)
        return None if span.first_missing(entries, head) else entries

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
        bounds = (after, _ENDLESS if upto is None else upto, since_us, reverse, min(limit, READ_MAX))
        if session is None:
            rows = self._ask(scope, "by_ref_in", (*scope, ref, *bounds))
        else:
            rows = self._ask(scope, "by_ref_of", (*scope, session, ref, *bounds))
            if not rows:
                raise NotFound(session)
            del rows[0]
        return [hit(row) for row in rows]

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order, for maintenance."""
        rows = self._ask(None, "scopes", (*(after or ("", "")), limit))
        return [ScopeKey(*row) for row in rows]

    # The handle.

    def now_us(self) -> int:
        """The server's clock, microseconds since 1970."""
        return int(self._ask(None, "now_us", (self._shift_us,))[0][0])

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """What the server's settings promise; with ``deep`` also every session and entry."""
        reports = self._reading(None, lambda conn: _postgres_check.settings(conn, self._schema, self._pool))
        if deep:
            reports += self._reading(None, lambda conn: _postgres_check.damage(conn, self._schema))
        return reports

    def close(self) -> None:
        """Release all connections. Idempotent. Later calls raise ``Closed``."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._pool.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")

    def _begin_in_child(self) -> None:
        """After a fork: nothing of the parent's is used, and what the parent commits is news."""
        self._sender = secrets.token_hex(8)
        self._committer.calls.sign(self._sender if self._notifies else None)
        self._watch = None
        self.on_change = self._on_change

    def _ask(self, scope: ScopeKey | None, name: str, args: tuple[Any, ...]) -> list[Row]:
        statement = self._queries[name]

        def ask(conn: Connection) -> list[Row]:
            cursor = psycopg.RawCursor(conn)
            cursor.format = WireFormat.BINARY
            return cursor.execute(statement, args).fetchall()

        return self._reading(scope, ask)

    def _reading(self, scope: ScopeKey | None, ask: Callable[[Connection], T]) -> T:
        """Ask on a connection that sees the scope (None: maintenance, all); once more when it was cut."""
        self._check_open()
        for is_last in (False, True):
            try:
                with self._pool.connection() as conn:
                    if not self._has_row_security:
                        return ask(conn)
                    with conn.transaction():
                        enter(conn, scope)
                        return ask(conn)
            except psycopg.Error as error:
                if judge(error) == "cut":
                    self._pool.drop_idle()
                if is_last or judge(error) != "cut":
                    raise translate(error, self._target.where) from error
        raise AssertionError


def plan(url: str, *, schema: str = "segue") -> tuple[Step, ...]:
    """
    The migrations that a database still lacks, in order; changes nothing.

    Raises:
        TooNew: A newer Segue made the schema.
    """
    with _visit(url, schema) as (found, conn):
        return found.pending(conn)


def apply(
    url: str, *, schema: str = "segue", row_security: bool = False, app_user: str | None = None
) -> tuple[Step, ...]:
    """
    Bring a schema up to date, as the user who is to own it.

    Each step is one transaction with its record, waits for no table longer than 2 s at a time, and is
    done by one of any number of callers.

    Args:
        url: The database, with the owner's user.
        schema: The schema's name.
        row_security: Switch row-level security on, for good.
        app_user: A user who is given the right to work with the tables, not to change them.

    Returns:
        The steps that this call applied.
    """
    with _visit(url, schema) as (found, conn):
        applied = found.apply(conn)
        if row_security:
            found.force_row_security(conn)
        if app_user is not None:
            found.grant(conn, app_user)
        return applied


@contextmanager
def _visit(url: str, schema: str) -> Iterator[tuple[Schema, Connection]]:
    target = Target(url, Limits(2_000, 30_000), connect_seconds=10, pooled=None)
    found = Schema(target, schema)
    with target.probe() as conn:
        check_server(conn, target.where)
        yield found, conn


def _ms(limit: timedelta) -> int:
    return max(1, limit // timedelta(milliseconds=1))


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _begin_in_child() -> None:
    for store in _stores:
        store._begin_in_child()  # noqa: SLF001 - the class's own module


os.register_at_fork(after_in_child=_begin_in_child)
