"""The operations of the contract, each within a transaction: what refuses comes before what writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from msgspec.structs import replace

from segue.errors import Archived, Busy, Exists, HeadMoved, IdConflict, Invalid, LeaseLost, NotFound, VersionMoved
from segue.model import Draft, Lease, Parent, ScopeKey, SessionInfo, Usage, from_us, to_us
from segue.store import (
    Append,
    Appended,
    Create,
    Erase,
    Erased,
    Fork,
    Hollow,
    Op,
    Queued,
    Release,
    Renew,
    Result,
    Take,
    Update,
)

from ._mongodb_rows import Part, Row, Ticket, new_segment, row_document
from ._mongodb_work import Work

QUEUE_MAX = 10_000
"""Most runs that wait for one session: they stand in its document."""


def do(work: Work, op: Op) -> Result:
    """Do one operation, or raise what refuses it (then it has written nothing)."""
    match op:
        case Append():
            return _append(work, op)
        case Take():
            return _take(work, op)
        case Renew():
            return _renew(work, op)
        case Release():
            _release(work, op)
            return None
        case Create():
            return _create(work, op)
        case Fork():
            return _fork(work, op)
        case Update():
            return _update(work, op)
        case Hollow():
            return _hollow(work, op)
        case Erase():
            return _erase(work, op)
        case _:
            assert_never(op)


# Entries.


class _Batch(NamedTuple):
    """The entries of one append: those that are new, and the seq of every one."""

    new: list[Draft]
    seqs: tuple[int, ...]

    @property
    def has_message(self) -> bool:
        return any(draft.kind == "message" for draft in self.new)


def _sift(work: Work, row: Row, entries: Sequence[Draft]) -> _Batch:
    known = work.known(row.history, (draft.id for draft in entries)) if entries and row.info.head else {}
    new: list[Draft] = []
    seqs: list[int] = []
    for draft in entries:
        seq, digest = known.get(draft.id, (0, b""))
        if not seq:
            new.append(draft)
            seq = row.info.head + len(new)
            known[draft.id] = (seq, draft.digest)
        elif digest != draft.digest:
            raise IdConflict(draft.id, seq)
        seqs.append(seq)
    return _Batch(new, tuple(seqs))


def _append(work: Work, op: Append) -> Appended:
    row = work.row(op.scope, op.session)
    batch = _sift(work, row, op.entries)
    if batch.new:
        _check_may_append(row, op, batch, work.now)
        _add(work, row, batch, op.run)
        work.save(row)
    return Appended(row.info.head, batch.seqs, len(batch.new))


def _check_may_append(row: Row, op: Append, batch: _Batch, now: int) -> None:
    info = row.info
    if info.state == "archived":
        raise Archived(info.id)
    if op.fence is not None:
        lease = row.held(op.run, op.fence)
        if lease is None or lease.state != "running":
            raise LeaseLost(op.run or "", op.fence, info.fence)
    elif batch.has_message and (active := row.running(now)):
        raise Busy(active.run, waiting=len(row.waiting(now)))
    if op.expect is not None and op.expect != info.head:
        raise HeadMoved(op.expect, info.head)


def _add(work: Work, row: Row, batch: _Batch, run: str | None) -> None:
    """Write the new entries; the row says what follows, and is to be saved."""
    if not batch.new:
        return
    work.add(row, batch.new, run)
    info = row.info
    usage = sum((draft.usage for draft in batch.new if draft.usage), info.usage)
    row.info = replace(info, head=info.head + len(batch.new), active_at=from_us(work.now), usage=usage)
    if batch.has_message:
        _wake(row)


def _wake(row: Row) -> None:
    """A completed session that goes on is active again."""
    if row.info.state == "completed":
        row.info = replace(row.info, state="active", version=row.info.version + 1)


# Sessions.


def _create(work: Work, op: Create) -> SessionInfo:
    if work.stored(op.scope, op.id) is not None:
        return _again(work, op)
    _check_key(work, op.scope, op.key)
    return _make(work, op, base=0, parts=())


def _make(work: Work, op: Create, *, base: int, parts: tuple[Part, ...]) -> SessionInfo:
    row = Row(new_segment(), _info_of(op, base, work.now), parts)
    _add(work, row, _sift(work, row, op.entries), None)
    work.insert(row_document(row))
    return row.shown(work.now)


def _again(work: Work, op: Create) -> SessionInfo:
    """The same create, repeated; else ``Exists``."""
    try:
        row = work.row(op.scope, op.id)
    except NotFound:
        raise Exists(f"the id {op.id!r} is taken; choose another") from None
    if (row.info.key, row.info.parent) != (op.key, op.parent):
        raise Exists(f"the id {op.id!r} is taken; choose another", session=op.id)
    return row.shown(work.now)


def _clip(history: Sequence[Part], at: int) -> tuple[Part, ...]:
    return tuple(Part(segment, low, min(upto, at)) for segment, low, upto in history if low < min(upto, at))


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
        metadata=dict(op.metadata),
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


def _check_key(work: Work, scope: ScopeKey, key: str | None) -> None:
    if key is not None and (taken := work.with_key(scope, key)):
        raise Exists(f"the key {key!r} belongs to session {taken.info.id!r}; open that", session=taken.info.id)


def _fork(work: Work, op: Fork) -> SessionInfo:
    create = op.create if op.create.parent is not None else replace(op.create, parent=Parent(op.source, op.at))
    if work.stored(create.scope, create.id) is not None:
        return _again(work, create)
    source = work.row(create.scope, op.source)
    if not 0 <= op.at <= source.info.head:
        raise Invalid(f"cannot fork at {op.at}: the session ends at {source.info.head}", where="at")
    _check_key(work, create.scope, create.key)
    work.touch(source.segment)  # or it could be erased meanwhile, and what is shared with it
    return _make(work, create, base=op.at, parts=_clip(source.history, op.at))


def _update(work: Work, op: Update) -> SessionInfo:
    row = work.row(op.scope, op.session)
    info = row.info
    if op.expect is not None and op.expect != info.version:
        raise VersionMoved(op.expect, info.version)
    if op.if_due_us is not None and (info.is_pinned or info.due_at is None or to_us(info.due_at) > op.if_due_us):
        raise VersionMoved(op.expect or info.version, info.version)
    archives = op.changes.get("state") == "archived" and info.state != "archived"
    active = row.running(work.now)
    if archives and active:
        raise Busy(active.run, message=f"run {active.run!r} is active; end it, then archive")
    if "key" in op.changes and op.changes["key"] != info.key:
        _check_key(work, op.scope, op.changes["key"])
    row.info = replace(info, version=info.version + 1, **_columns(op.changes))
    if "state" in op.changes and op.changes["state"] != info.state:
        row.info = replace(row.info, archived_at=from_us(work.now) if archives else None)
    work.save(row)
    return row.shown(work.now)


def _columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """An update's changes as fields of SessionInfo."""
    columns = dict(changes)
    if "tags" in columns:
        columns["tags"] = tuple(sorted(set(columns["tags"])))
    if "expires_us" in columns:
        expires_us = columns.pop("expires_us")
        columns["expires_at"] = None if expires_us is None else from_us(expires_us)
    return columns


# The lease and its queue.


def _take(work: Work, op: Take) -> Lease | Queued:
    row = work.row(op.scope, op.session)
    now = work.now
    if row.info.state == "archived":
        raise Archived(op.session)
    batch = _sift(work, row, op.entries)
    lease = row.info.lease
    if lease and lease.state == "running" and lease.run == op.run:
        return _grant(work, row, op, batch, lease.fence)  # the same run, asking again
    holder = row.running(now)
    if holder and op.dead is not None and holder.holder == op.dead:
        holder = None
    waiting = row.waiting(now)
    before = waiting.index(op.run) if op.run in waiting else len(waiting)
    if op.policy in ("interrupt", "rollback"):
        is_free = holder is None or holder.run == op.over
    else:
        is_free = holder is None and before == 0
    if is_free:
        return _grant(work, row, op, batch, row.info.fence + 1)
    if op.policy == "enqueue" and before < QUEUE_MAX:
        _stand(work, row, op)
        return Queued(before, holder.run if holder else "")
    if holder is None:
        raise Busy("", waiting=before, message=f"{before} runs wait for this session; use policy='enqueue'")
    raise Busy(holder.run, waiting=before)


def _grant(work: Work, row: Row, op: Take, batch: _Batch, fence: int) -> Lease:
    lease = Lease(op.run, fence, "running", from_us(work.now + op.ttl_us), op.holder)
    row.queue = tuple(ticket for ticket in row.queue if ticket.run != op.run)
    row.info = replace(row.info, lease=lease, fence=fence)
    _wake(row)
    _add(work, row, batch, op.run)
    work.save(row)
    return lease


def _stand(work: Work, row: Row, op: Take) -> None:
    """Keep the place in the queue, or take the last; places that lapsed are gone."""
    queue = {ticket.run: ticket.lapses_us for ticket in row.queue if ticket.lapses_us > work.now}
    queue[op.run] = work.now + op.ticket_us
    row.queue = tuple(Ticket(*each) for each in queue.items())
    work.save(row)


def _renew(work: Work, op: Renew) -> Lease:
    row = work.row(op.scope, op.session)
    lease = row.held(op.run, op.fence)
    if lease is None or lease.state != "running":
        raise LeaseLost(op.run, op.fence, row.info.fence)
    lease = replace(lease, expires_at=from_us(work.now + op.ttl_us))
    row.info = replace(row.info, lease=lease)
    work.save(row)
    return lease


def _release(work: Work, op: Release) -> None:
    row = work.row(op.scope, op.session)
    if op.fence is None:
        row.queue = tuple(ticket for ticket in row.queue if ticket.run != op.run)
    elif (lease := row.held(op.run, op.fence)) is None:
        if op.pause_us is not None:
            raise LeaseLost(op.run, op.fence, row.info.fence)
        return
    elif op.pause_us is None:
        row.info = replace(row.info, lease=None)
    else:
        paused = replace(lease, state="paused", expires_at=from_us(work.now + op.pause_us))
        row.info = replace(row.info, lease=paused)
    work.save(row)


# Erasure.


def _hollow(work: Work, op: Hollow) -> int:
    row = work.row(op.scope, op.session)
    for seq in op.seqs:
        if not row.info.base < seq <= row.info.head:
            raise Invalid(
                f"entry {seq} is not one of this session's own ({row.info.base + 1} to {row.info.head}); "
                "an inherited one is hollowed in the session that owns it",
                where="seqs",
            )
    return work.hollow(row.segment, op.seqs)


def _erase(work: Work, op: Erase) -> Erased:
    found = work.stored(op.scope, op.session)
    if found is not None and "erased_us" in found:
        return Erased(0, 0)
    row = work.row(op.scope, op.session)
    if op.expect is not None and op.expect != row.info.version:
        raise VersionMoved(op.expect, row.info.version)
    gone = 0
    for part in row.parts:
        # Whoever else erases a sharer of this segment writes the same document: only one of us at a time.
        work.touch(part.segment)
        owner = work.owner(part.segment)
        if owner is not None and "erased_us" in owner:
            gone += work.cut(part.segment, work.taken_by_others(part.segment, row))
    gone += work.cut(row.segment, work.taken_by_others(row.segment, row))
    kept = work.disown(row.segment)
    blank = dict.fromkeys(row.stored.keys() - {"_id", "tenant", "user", "id", "base"}, "")
    work.update(row.segment, {"$unset": blank, "$set": {"erased_us": work.now}})
    return Erased(gone, kept)
