"""
Sessions in MongoDB: the store for those who run a replica set already.

Works with MongoDB 5.0 and newer. See docs/decisions/0023-mongodb.md, also for what of this has not
been tried on a server.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from segue.errors import Closed, Invalid, MissingExtra, NotDone
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import LIST_MAX, READ_MAX, Filter, Op, Page, Report, Result

try:
    import pymongo as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise MissingExtra("mongodb", "pymongo") from missing

from . import _mongodb_check
from ._mongodb_commit import Committer
from ._mongodb_door import check_filter, count, scope_of, text, texts
from ._mongodb_errors import DRIVER_ERRORS, judge, translate
from ._mongodb_link import Link
from ._mongodb_page import conditions, order_of, read_cursor, write_cursor
from ._mongodb_rows import Document, Part, Row, entry_of, first_missing, lost
from ._mongodb_schema import check_prefix, prepare
from ._mongodb_work import SEQ_MAX, Clock, Work

T = TypeVar("T")

READ_TURNS_MAX = 3
"""How often a reading is begun again whose snapshot is gone."""


class MongoStore:
    """
    A store in collections of a MongoDB replica set (``mongodb://host/database?replicaSet=rs0``).

    Args:
        url: The server. Whatever it asks for, writes are ``w: majority, j: true`` and readings majority, from the
            primary.
        database: The database; None: the URL's, else ``segue``.
        prefix: What the names of the three collections begin with (``segue.sessions``).
        pool_size: Most connections of this handle to one member.
        migrate: Make collections and indexes at open; False: ``Unavailable`` when they are not there.
        lock_timeout: Longest wait for what another transaction holds, then ``Locked``; and for the answer to a
            commit, then ``OutcomeUnknown``.
        timeout: Longest time for one call of the server.
        connect_timeout: Longest time to find a primary and to connect.

    Raises:
        Invalid: The URL or the prefix is none.
        Unavailable: No server, a standalone, too old a server, or a right is missing; the message says which.
        ReadOnly: The URL leads to a secondary alone.
        TooNew: A newer Segue made the collections.
    """

    name = "mongodb"
    capabilities = frozenset({"durable", "processes", "shared-clock"})

    def __init__(
        self,
        url: str,
        *,
        database: str | None = None,
        prefix: str = "segue",
        pool_size: int = 16,
        migrate: bool = True,
        lock_timeout: timedelta = timedelta(seconds=5),
        timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        if pool_size < 1:
            raise Invalid(f"pool_size must be at least 1, not {pool_size}", where="pool_size")
        self.on_change: Callable[[str | None], None] | None = None
        self.lanes = min(4, pool_size)
        self._clock = Clock()
        self._is_closed = False
        self._link = Link(
            url,
            database=database,
            prefix=check_prefix(prefix),
            pool_size=pool_size,
            connect_timeout=connect_timeout,
            timeout=timeout,
        )
        try:
            self._link.hello()
            prepare(self._link, migrate=migrate)
        except BaseException:
            self._link.close()
            raise
        self._committer = Committer(self._link, self._clock, lock_timeout.total_seconds())
        _links.add(self._link)

    def __repr__(self) -> str:
        return f"<MongoStore {self._link.where}>"

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, each all-or-nothing, durably. See ``segue.store.Store.commit``."""
        self._check_open()
        return self._committer.commit(ops)

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""
        owner, name = scope_of(scope), text(session, "session")
        return self._reading(lambda work: work.row(owner, name).shown(work.now))

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""
        owner, name = scope_of(scope), text(key, "key")
        found = self._reading(lambda work: [(row, work.now) for row in [work.with_key(owner, name)] if row])
        return next((row.shown(now) for row, now in found), None)

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""
        owner, limit = scope_of(scope), min(count(limit, "limit"), LIST_MAX)
        check_filter(filter)
        order = order_of(filter)
        after = None if cursor is None else read_cursor(text(cursor, "cursor"), owner, filter)

        def ask(work: Work) -> tuple[list[Row], int]:
            asked = conditions(owner, filter, work.now)
            if after is not None:
                asked["$and"].append(order.after(*after))
            return work.find(asked, order.sort(), {"$limit": limit + 1}), work.now

        rows, now = self._reading(ask)
        shown = tuple(row.shown(now) for row in rows[:limit])
        if len(rows) <= limit:
            return Page(shown, None)
        last = rows[limit - 1]
        return Page(shown, write_cursor(owner, filter, last.stored[order.field], last.info.id))

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
        owner, name = scope_of(scope), text(session, "session")
        low, limit = max(count(after, "after"), 0), min(count(limit, "limit"), READ_MAX)
        end = SEQ_MAX if upto is None else count(upto, "upto")
        filter: Document = {} if kinds is None else {"kind": {"$in": list(texts(kinds, "kinds"))}}

        def ask(work: Work) -> list[Document]:
            history = work.row(owner, name).history
            last = min(end, history[-1].upto)
            found: list[Document] = []
            for part in reversed(history) if reverse else history:
                span = max(low, part.low), min(last, part.upto)
                found += work.entries(part.segment, span, filter, reverse=reverse, limit=limit - len(found))
            if kinds is None:
                wanted = range(last, low, -1) if reverse else range(low + 1, last + 1)
                missing = first_missing([each["seq"] for each in found], wanted[: max(limit, 0)])
                if missing is not None:
                    raise lost(name, missing)
            return found

        return [entry_of(each, name) for each in self._reading(ask)]

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
        owner, limit = scope_of(scope), min(count(limit, "limit"), READ_MAX)
        name = None if session is None else text(session, "session")
        end = SEQ_MAX if upto is None else count(upto, "upto")
        since = 0 if since_us is None else count(since_us, "since_us")
        filter: Document = {"refs": text(ref, "ref"), "created_us": {"$gte": since}}
        low = count(after, "after")

        def ask(work: Work) -> list[Document]:
            if name is not None:
                return _by_seq(work, work.row(owner, name), filter, (low, end), reverse=reverse, limit=limit)
            mine = {"tenant": owner.tenant, "user": owner.user, **filter, "seq": {"$gt": low, "$lte": end}}
            return work.with_ref(mine, ("created_us", "session", "seq"), reverse=reverse, limit=limit)

        return [Hit(each["session"], entry_of(each, each["session"])) for each in self._reading(ask)]

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order, for maintenance."""
        start = None if after is None else scope_of(after)
        most = count(limit, "limit")
        return self._reading(lambda work: work.scopes(start, most))

    # The handle.

    def now_us(self) -> int:
        """The server's clock, microseconds since 1970; see ``Clock``."""
        return self._reading(lambda work: work.now)

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._clock.shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """What the server's settings promise; with ``deep`` also every session and entry."""
        self._check_open()
        try:
            reports = _mongodb_check.settings(self._link)
            return reports + (list(_mongodb_check.damage(self._link)) if deep else [])
        except DRIVER_ERRORS as error:
            raise translate(error, self._link.where) from error

    def close(self) -> None:
        """Release all connections. Idempotent. Later calls raise ``Closed``."""
        self._is_closed = True
        self._link.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")

    def _reading(self, ask: Callable[[Work], T]) -> T:
        """Ask a snapshot; anew when the server has dropped that. What a cut loses, the driver asks again."""
        self._check_open()
        for turn in range(1, READ_TURNS_MAX + 1):
            try:
                with self._link.snapshot() as session:
                    return ask(Work(self._link, session, self._clock))
            except DRIVER_ERRORS as error:
                if judge(error) != "again" or turn == READ_TURNS_MAX:
                    raise translate(error, self._link.where) from error
        raise AssertionError


def _by_seq(
    work: Work, row: Row, filter: Document, span: tuple[int, int], *, reverse: bool, limit: int
) -> list[Document]:
    """Entries of one session's history that a ref leads to."""
    found: list[Document] = []
    history: Sequence[Part] = row.history[::-1] if reverse else row.history
    for part in history:
        seqs = {"$gt": max(part.low, span[0]), "$lte": min(part.upto, span[1])}
        if len(found) < limit:
            mine = {"segment": part.segment, **filter, "seq": seqs}
            found += work.with_ref(mine, ("seq",), reverse=reverse, limit=limit - len(found))
    return found


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _begin_in_child() -> None:
    for link in _links:
        link.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
