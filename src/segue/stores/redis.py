"""
Sessions in Redis or Valkey: one server, or a cluster.

Works with Redis 6.2 and newer and with Valkey, without modules. Each operation is one call of a script, done whole or
not at all; all keys of a scope lie in one slot. See docs/decisions/0022-redis.md.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Literal

from msgspec.structs import replace

from segue.errors import Closed, Invalid, MissingExtra, NotDone, NotFound, TooNew
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import READ_MAX, Filter, Op, Page, Report, Result

try:
    import redis as _driver  # noqa: F401 - asked for here, so that its absence has a name
except ModuleNotFoundError as missing:
    raise MissingExtra("redis", "redis") from missing

from . import _redis_check, _redis_server
from ._redis_commit import Committer
from ._redis_keys import Keys, Lineage
from ._redis_link import Link, Target
from ._redis_read import ENDLESS, Reader, Span
from ._redis_shards import Shards, outer, shown
from ._redis_watch import Watch, hears, may_publish
from ._redis_wires import Command, answered

FORMAT = 1
"""The format of the keys that this version of Segue writes and reads."""


class RedisStore:
    """
    A store under a prefix of a Redis database (``redis://user:password@host:6379/0``).

    Args:
        url: The server (``rediss://`` for TLS), or a cluster (``redis+cluster://host1:port,host2:port``, or any URL
            of a node).
        prefix: What all keys begin with.
        durability: ``require`` refuses a server that loses what it acknowledged (no append-only file, or a policy
            that evicts); ``server`` takes it as it is, and ``check`` says what it may lose.
        shards: How many slots the sessions of a scope are spread over, by (tenant, user): for service accounts with
            more sessions than a node should hold. Declared before the scope has sessions, for good; handles opened
            later know it. Its keys then cannot move a session, nor be given to a fork, across shards: ``Unsupported``.
        pool_size: Most connections of this handle to a server (besides one that listens).
        notify: Send and hear notifications.
        timeout: Longest wait for an answer; then the outcome counts as unknown.
        connect_timeout: Longest time to connect, and to wait for a free connection.

    Raises:
        Invalid: The URL or the prefix is none.
        Unavailable: No connection, too old a server, one that would lose data, or a right is missing; the message
            says which.
        TooNew: A newer Segue wrote there.
    """

    name = "redis"

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "segue",
        durability: Literal["require", "server"] = "require",
        shards: Mapping[tuple[str, str], int] | None = None,
        pool_size: int = 8,
        notify: bool = True,
        timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        if pool_size < 1:
            raise Invalid(f"pool_size must be at least 1, not {pool_size}", where="pool_size")
        if durability not in ("require", "server"):
            raise Invalid(f"durability must be 'require' or 'server', not {durability!r}", where="durability")
        self.lanes = min(4, pool_size)
        self._shift_us = 0
        self._is_closed = False
        self._on_change: Callable[[str | None], None] | None = None
        self._watch: Watch | None = None
        self._keys, self._lineage = Keys(prefix), Lineage()
        self._target = Target(url, pool_size, timeout.total_seconds(), connect_timeout.total_seconds())
        self._link = self._target.open()
        try:
            self._prepare(durability, notify=notify)
            self._shards = Shards(self._link, self._keys, self._reader, shards or {})
        except BaseException:
            self._link.close()
            raise
        _stores.add(self)

    def __repr__(self) -> str:
        return f"<RedisStore {self._target.where} ({self._keys.prefix})>"

    def _prepare(self, durability: str, *, notify: bool) -> None:
        servers = _redis_server.ask(self._link)
        if durability == "require":
            _redis_server.require(servers)
        _check_format(self._link, self._keys)
        # Messages reach all databases of a server.
        self._channel = f"{self._keys.prefix}:{self._link.database}:news"
        publishes = notify and may_publish(self._link, self._channel)
        self._is_told = publishes and hears(self._link, self._channel)
        self._committer = Committer(
            self._link,
            self._keys,
            self._lineage,
            channel=self._channel if publishes else "",
            sender=secrets.token_hex(8),
        )
        self._reader = Reader(self._link, self._keys, self._lineage)
        declared = {"processes", "shared-clock"} | ({"notify"} if self._is_told else set())
        if all(server.is_durable for server in servers):
            declared.add("durable")
        self.capabilities = frozenset(declared)

    @property
    def on_change(self) -> Callable[[str | None], None] | None:
        """Called, from a thread of the store, with the id of a session that another process changed (None: any)."""
        return self._on_change

    @on_change.setter
    def on_change(self, tell: Callable[[str | None], None] | None) -> None:
        self._on_change = tell
        if tell is not None and self._watch is None and self._is_told and not self._is_closed:
            self._watch = Watch(self._link, channel=self._channel, sender=self._committer.sender, tell=self._changed)

    def _changed(self, session: str | None) -> None:
        if self._on_change is not None:
            self._on_change(session)

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, each all-or-nothing. See ``segue.store.Store.commit``."""
        self._check_open()
        if not self._shards.are_any:
            return self._committer.commit(ops, self._shift_us)
        routed = [self._shards.route(op) for op in ops]
        todo = [op for op in routed if not isinstance(op, NotDone)]
        done = iter(self._committer.commit(todo, self._shift_us))
        return [op if isinstance(op, NotDone) else shown(next(done)) for op in routed]

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""
        reader = self._open_reader()
        (found,) = reader.rows(self._shards.of_session(scope, session), [session], self._shift_us)
        if found is None:
            raise NotFound(session)
        return _own(found)

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""
        found = self._open_reader().find(self._shards.of_key(scope, key), key, self._shift_us)
        return None if found is None else _own(found)

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""
        return self._open_reader().page(
            self._shards.all(scope), scope, filter, cursor=cursor, limit=limit, shift_us=self._shift_us
        )

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
        reader = self._open_reader()
        shard = self._shards.of_session(scope, session)
        return reader.log(shard, session, _span(after, upto, reverse, limit), kinds)

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
        span = _span(after, upto, reverse, limit)
        reader = self._open_reader()
        if session is None:
            return reader.refs_in(self._shards.all(scope), ref, span, since_us)
        return reader.refs_of(self._shards.of_session(scope, session), session, ref, span, since_us)

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order, for maintenance."""
        return self._open_reader().scopes(after, limit)

    # The handle.

    def now_us(self) -> int:
        """The server's clock, microseconds since 1970. In a cluster each scope follows the clock of its node."""
        return self._open_reader().now_us(self._shift_us)

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """What the servers' settings promise; with ``deep`` also every session and entry."""
        reader = self._open_reader()
        servers = _redis_server.ask(self._link)
        reports = list(_redis_server.report(servers, self._link, self._target.pool_size, is_told=self._is_told))
        found = _redis_check.damage(reader, self._keys) if deep else ()
        return reports + [report._replace(scope=report.scope and outer(report.scope)) for report in found]

    def close(self) -> None:
        """Release all connections. Idempotent. Later calls raise ``Closed``."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._link.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")

    def _open_reader(self) -> Reader:
        self._check_open()
        return self._reader

    def _begin_in_child(self) -> None:
        """After a fork: nothing of the parent's is used, and what the parent commits is news."""
        if self._is_closed:
            return
        self._link = self._committer.link = self._reader.link = self._link.again()
        self._committer.sender = secrets.token_hex(8)
        self._watch = None
        self.on_change = self._on_change


def _span(after: int, upto: int | None, reverse: bool, limit: int) -> Span:  # noqa: FBT001 - as in the contract
    after = min(max(after, 0), ENDLESS)
    return Span(after, max(after, min(ENDLESS if upto is None else upto, ENDLESS)), reverse, min(limit, READ_MAX))


def _own(info: SessionInfo) -> SessionInfo:
    return replace(info, scope=outer(info.scope)) if "\0" in info.scope.user else info


def _check_format(link: Link, keys: Keys) -> None:
    """Which format the keys have: ours from now on, or the one that is there."""
    get = Command(keys.format, (b"GET", keys.format))
    found = answered(link.run([get])[0], link.where)
    if found is None:
        answered(link.run([Command(keys.format, (b"SET", keys.format, FORMAT, b"NX"))])[0], link.where)
        found = answered(link.run([get])[0], link.where)
    if int(found or FORMAT) > FORMAT:
        raise TooNew(int(found), FORMAT, f"Redis at {link.where} (prefix {keys.prefix})")


_stores: weakref.WeakSet[RedisStore] = weakref.WeakSet()


def _begin_in_child() -> None:
    for store in _stores:
        store._begin_in_child()  # noqa: SLF001 - the class's own module


os.register_at_fork(after_in_child=_begin_in_child)
