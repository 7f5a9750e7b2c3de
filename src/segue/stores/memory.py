"""
Sessions in this process's memory: for tests, for trials, and as the contract's readable model.

It does what ``segue.store`` says and nothing else, in the plainest way. Read it beside the contract:
other stores are compared with it. Nothing survives the process.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, assert_never

from msgspec.structs import replace

from segue.errors import (
    Archived,
    Busy,
    Closed,
    Corrupt,
    Exists,
    HeadMoved,
    Invalid,
    LeaseLost,
    NotDone,
    NotFound,
    VersionMoved,
)
from segue.model import Entry, Hit, Lease, Parent, ScopeKey, SessionInfo, Usage, from_us, to_us
from segue.store import (
    READ_MAX,
    Append,
    Appended,
    Create,
    Erase,
    Erased,
    Filter,
    Fork,
    Hollow,
    Op,
    Page,
    Queued,
    Release,
    Renew,
    Report,
    Result,
    Take,
    Update,
)

from ._history import ENDLESS, Batch, Segment, Session, clip, entry_of, held, needed, wake
from ._listing import page_of

_Owned: TypeAlias = dict[ScopeKey, dict[str, Session]]


class _Data:
    """What all handles on the same data share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sessions: _Owned = {}
        self.tombstones: set[tuple[ScopeKey, str]] = set()


_named: weakref.WeakValueDictionary[str, _Data] = weakref.WeakValueDictionary()
_named_lock = threading.Lock()


def _data_of(shared: MemoryStore | str | None) -> _Data:
    if isinstance(shared, MemoryStore):
        return shared._data  # noqa: SLF001 - the same class
    if shared is None:
        return _Data()
    with _named_lock:
        data = _named.get(shared)
        if data is None:
            data = _named[shared] = _Data()
        return data


class MemoryStore:
    """
    A store in memory (``memory:``), gone with the process.

    Args:
        shared: A store, or a name, whose data this handle shares (``memory:name``); named data live
            as long as a handle on them. None: data of its own.
    """

    name = "memory"
    capabilities: frozenset[str] = frozenset()
    lanes = 1

    def __init__(self, shared: MemoryStore | str | None = None) -> None:
        self.on_change: Callable[[str | None], None] | None = None
        self._data = _data_of(shared)
        self._shift_us = 0
        self._is_closed = False

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, each all-or-nothing. See ``segue.store.Store.commit``."""
        self._check_open()
        with self._data.lock:
            now = self.now_us()
            return [self._try(op, now) for op in ops]

    def _try(self, op: Op, now: int) -> Result | NotDone:
        try:
            return self._do(op, now)
        except NotDone as refusal:
            return refusal

    def _do(self, op: Op, now: int) -> Result:
        match op:
            case Append():
                return self._append(op, now)
            case Take():
                return self._take(op, now)
            case Renew():
                return self._renew(op, now)
            case Release():
                self._release(op, now)
                return None
            case Create():
                return self._create(op, None, now)
            case Fork():
                return self._fork(op, now)
            case Update():
                return self._update(op, now)
            case Hollow():
                return self._hollow(op)
            case Erase():
                return self._erase(op)
            case _:
                assert_never(op)

    def _create(self, op: Create, source: Session | None, now: int) -> SessionInfo:
        mine = self._data.sessions.get(op.scope, {})
        again = mine.get(op.id)
        if again is not None and (again.info.key, again.info.parent) == (op.key, op.parent):
            return again.shown(now)
        if self._is_taken(op.scope, op.id):
            raise Exists(f"the id {op.id!r} is taken; choose another", session=op.id if again else None)
        self._check_key(op.scope, op.key)
        base = op.parent.seq if source and op.parent else 0
        shared = clip(source.parts, base) if source else ()
        session = Session(_info_of(op, base, now), (*shared, (Segment(op.id, base), ENDLESS)))
        self._add(session, Batch(session, op.entries), None, now)
        self._data.sessions.setdefault(op.scope, {})[op.id] = session
        return session.shown(now)

    def _fork(self, op: Fork, now: int) -> SessionInfo:
        create = op.create
        if create.parent is None:
            create = replace(create, parent=Parent(op.source, op.at))
        if self._is_taken(create.scope, create.id):
            return self._create(create, None, now)  # the same fork again, or Exists
        source = self._session(create.scope, op.source)
        if not 0 <= op.at <= source.info.head:
            raise Invalid(f"cannot fork at {op.at}: the session ends at {source.info.head}", where="at")
        return self._create(create, source, now)

    def _update(self, op: Update, now: int) -> SessionInfo:
        session = self._session(op.scope, op.session)
        info = session.info
        if op.expect is not None and op.expect != info.version:
            raise VersionMoved(op.expect, info.version)
        if op.if_due_us is not None and (info.is_pinned or info.due_at is None or to_us(info.due_at) > op.if_due_us):
            raise VersionMoved(op.expect or info.version, info.version)
        archives = op.changes.get("state") == "archived" and info.state != "archived"
        active = session.running(now)
        if archives and active:
            raise Busy(active.run, message=f"run {active.run!r} is active; end it, then archive")
        if "key" in op.changes and op.changes["key"] != info.key:
            self._check_key(op.scope, op.changes["key"])
        session.info = replace(info, version=info.version + 1, **_columns(op.changes))
        if "state" in op.changes and op.changes["state"] != info.state:
            session.info = replace(session.info, archived_at=from_us(now) if archives else None)
        return session.shown(now)

    def _append(self, op: Append, now: int) -> Appended:
        session = self._session(op.scope, op.session)
        batch = Batch(session, op.entries)
        if batch.new:
            self._check_may_append(session, op, batch, now)
        return self._add(session, batch, op.run, now)

    def _check_may_append(self, session: Session, op: Append, batch: Batch, now: int) -> None:
        info = session.info
        if info.state == "archived":
            raise Archived(info.id)
        if op.fence is not None:
            lease = held(session, op.run, op.fence)
            if lease is None or lease.state != "running":
                raise LeaseLost(op.run or "", op.fence, info.fence)
        elif batch.has_message and (active := session.running(now)):
            raise Busy(active.run, waiting=len(session.waiting(now)))
        if op.expect is not None and op.expect != info.head:
            raise HeadMoved(op.expect, info.head)

    def _add(self, session: Session, batch: Batch, run: str | None, now: int) -> Appended:
        info = session.info
        if batch.new:
            for seq, draft in enumerate(batch.new, info.head + 1):
                session.own.add(entry_of(draft, seq, run, now))
            usage = sum((draft.usage for draft in batch.new if draft.usage), info.usage)
            session.info = replace(info, head=info.head + len(batch.new), active_at=from_us(now), usage=usage)
            if batch.has_message:
                wake(session)
        return Appended(session.info.head, batch.seqs, len(batch.new))

    # The lease and its queue.

    def _take(self, op: Take, now: int) -> Lease | Queued:
        session = self._session(op.scope, op.session)
        if session.info.state == "archived":
            raise Archived(op.session)
        batch = Batch(session, op.entries)
        lease = session.info.lease
        if lease and lease.state == "running" and lease.run == op.run:
            return self._grant(session, op, batch, lease.fence, now)  # the same run, asking again
        holder = session.running(now)
        if holder and op.dead is not None and holder.holder == op.dead:
            holder = None
        waiting = session.waiting(now)
        before = waiting.index(op.run) if op.run in waiting else len(waiting)
        if op.policy in ("interrupt", "rollback"):
            is_free = holder is None or holder.run == op.over
        else:
            is_free = holder is None and before == 0
        if is_free:
            return self._grant(session, op, batch, session.info.fence + 1, now)
        if op.policy == "enqueue":
            session.queue = {run: session.queue[run] for run in waiting} | {op.run: now + op.ticket_us}
            return Queued(before, holder.run if holder else "")
        if holder is None:
            raise Busy("", waiting=before, message=f"{before} runs wait for this session; use policy='enqueue'")
        raise Busy(holder.run, waiting=before)

    def _grant(self, session: Session, op: Take, batch: Batch, fence: int, now: int) -> Lease:
        lease = Lease(op.run, fence, "running", from_us(now + op.ttl_us), op.holder)
        session.queue.pop(op.run, None)
        session.info = replace(session.info, lease=lease, fence=fence)
        wake(session)
        self._add(session, batch, op.run, now)
        return lease

    def _renew(self, op: Renew, now: int) -> Lease:
        session = self._session(op.scope, op.session)
        lease = held(session, op.run, op.fence)
        if lease is None or lease.state != "running":
            raise LeaseLost(op.run, op.fence, session.info.fence)
        lease = replace(lease, expires_at=from_us(now + op.ttl_us))
        session.info = replace(session.info, lease=lease)
        return lease

    def _release(self, op: Release, now: int) -> None:
        session = self._session(op.scope, op.session)
        if op.fence is None:
            session.queue.pop(op.run, None)
            return
        lease = held(session, op.run, op.fence)
        if op.pause_us is None:
            session.info = replace(session.info, lease=None if lease else session.info.lease)
        elif lease is None:
            raise LeaseLost(op.run, op.fence, session.info.fence)
        else:
            paused = replace(lease, state="paused", expires_at=from_us(now + op.pause_us))
            session.info = replace(session.info, lease=paused)

    # Erasure.

    def _hollow(self, op: Hollow) -> int:
        session = self._session(op.scope, op.session)
        for seq in op.seqs:
            if not session.info.base < seq <= session.info.head:
                raise Invalid(
                    f"entry {seq} is not one of this session's own ({session.info.base + 1} to {session.info.head}); "
                    "an inherited one is hollowed in the session that owns it",
                    where="seqs",
                )
        return sum(session.own.hollow(seq) for seq in op.seqs)

    def _erase(self, op: Erase) -> Erased:
        if (op.scope, op.session) in self._data.tombstones:
            return Erased(0, 0)
        session = self._session(op.scope, op.session)
        if op.expect is not None and op.expect != session.info.version:
            raise VersionMoved(op.expect, session.info.version)
        mine = self._data.sessions[op.scope]
        del mine[op.session]
        self._data.tombstones.add((op.scope, op.session))
        # Of each segment, what no living history takes goes: the session's own, and what was kept for it.
        gone = sum(segment.cut(needed(segment, mine)) for segment, _ in session.parts)
        if not mine:
            del self._data.sessions[op.scope]
        return Erased(gone, len(session.own.entries))

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""
        with self._reading() as now:
            return self._session(scope, session).shown(now)

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""
        with self._reading() as now:
            found = self._with_key(scope, key)
            return found.shown(now) if found else None

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""
        with self._reading() as now:
            shown = [session.shown(now) for session in self._data.sessions.get(scope, {}).values()]
        return page_of(shown, scope, filter, cursor=cursor, limit=limit)

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
        with self._reading():
            found = self._session(scope, session)
            entries = list(found.between(after, found.info.head if upto is None else upto))
        if kinds is not None:
            entries = [entry for entry in entries if entry.kind in kinds]
        chosen = (entries[::-1] if reverse else entries)[: min(limit, READ_MAX)]
        return [entry.verify(session) for entry in chosen]

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
        """Entries that carry the ref. See ``segue.store.Store.by_ref``."""
        end = ENDLESS if upto is None else upto
        with self._reading():
            if session is not None:
                parts = self._session(scope, session).parts
            else:
                parts = tuple((found.own, ENDLESS) for found in self._data.sessions.get(scope, {}).values())
            hits = [
                Hit(segment.owner, entry)
                for segment, shared in parts
                for entry in segment.with_ref(ref, after, min(end, shared))
                if since_us is None or entry.created_us >= since_us
            ]
        order = _by_time if session is None else _by_seq
        hits.sort(key=order, reverse=reverse)
        return [Hit(owner, entry.verify(owner)) for owner, entry in hits[: min(limit, READ_MAX)]]

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order (which is the order of code points)."""
        with self._reading():
            return [scope for scope in sorted(self._data.sessions) if after is None or scope > after][:limit]

    # The handle.

    def now_us(self) -> int:
        """The store's clock, microseconds since 1970."""
        return time.time_ns() // 1_000 + self._shift_us

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """Always says that nothing here is durable; with ``deep`` also every entry that does not match its digest."""
        reports = [Report("warn", "this store keeps everything in memory; nothing survives the process")]
        with self._reading():
            for scope, mine in self._data.sessions.items() if deep else ():
                for name, session in mine.items():
                    reports += _damage(scope, name, session)
            if deep:
                count = sum(map(len, self._data.sessions.values()))
                reports.append(Report("ok", f"{count} sessions were read, entry by entry"))
        return reports

    def close(self) -> None:
        """Close this handle; others on the same data go on. Idempotent. Later calls raise ``Closed``."""
        self._is_closed = True

    # Finding things.

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """The lock, and the time, for one reading."""
        self._check_open()
        with self._data.lock:
            yield self.now_us()

    def _session(self, scope: ScopeKey, session: str) -> Session:
        found = self._data.sessions.get(scope, {}).get(session)
        if found is None:
            raise NotFound(session)
        return found

    def _is_taken(self, scope: ScopeKey, session: str) -> bool:
        return session in self._data.sessions.get(scope, {}) or (scope, session) in self._data.tombstones

    def _with_key(self, scope: ScopeKey, key: str) -> Session | None:
        mine = self._data.sessions.get(scope, {}).values()
        return next((session for session in mine if session.info.key == key), None)

    def _check_key(self, scope: ScopeKey, key: str | None) -> None:
        if key is not None and (taken := self._with_key(scope, key)):
            raise Exists(f"the key {key!r} belongs to session {taken.info.id!r}; open that", session=taken.info.id)


def _info_of(op: Create, base: int, now: int) -> SessionInfo:
    return SessionInfo(
        scope=op.scope,
        id=op.id,
        key=op.key,
        format=op.format,
        title=op.title,
        state="active",
        head=base,
        base=base,
        fence=0,
        version=1,
        tags=tuple(sorted(set(op.tags))),
        metadata=copy.deepcopy(op.metadata),
        is_pinned=op.is_pinned,
        is_listed=op.is_listed,
        config=op.config,
        idle_us=op.idle_us,
        expires_at=None if op.expires_us is None else from_us(op.expires_us),
        created_at=from_us(now),
        active_at=from_us(now),
        usage=Usage(),
        parent=op.parent,
    )


def _columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """An update's changes as fields of SessionInfo."""
    columns = copy.deepcopy(dict(changes))
    if "tags" in columns:
        columns["tags"] = tuple(sorted(set(columns["tags"])))
    if "expires_us" in columns:
        expires_us = columns.pop("expires_us")
        columns["expires_at"] = None if expires_us is None else from_us(expires_us)
    return columns


def _damage(scope: ScopeKey, name: str, session: Session) -> Iterator[Report]:
    for entry in session.between(session.info.base, session.info.head):
        try:
            entry.verify(name)
        except Corrupt as error:
            yield Report("damage", str(error), scope, name, entry.seq)


def _by_seq(hit: Hit) -> int:
    return hit.entry.seq


def _by_time(hit: Hit) -> tuple[int, str, int]:
    return hit.entry.created_us, hit.session, hit.entry.seq
