"""Adding entries, the lease and its queue: what an operation makes of a locked row. A refusal changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from segue.errors import Archived, Busy, HeadMoved, IdConflict, LeaseLost, NotDone
from segue.model import Draft, Lease, Usage, from_us
from segue.store import Append, Appended, Queued, Release, Renew, Take

from ._mysql_rows import ACTIVE, ARCHIVED, COMPLETED, Row, pack_tokens, unpack_tokens
from ._mysql_work import Work


def append(work: Work, op: Append) -> Appended:
    """See ``segue.store.Append``."""
    row = work.row(op.scope, op.session)
    new, seqs = _sifted(work, row, op)
    if not new:
        return Appended(row.head, seqs, 0)
    refusal = _refusal(work, row, op, new)
    if refusal is not None:
        raise refusal
    add(work, row, new, op.run)
    return Appended(row.head, seqs, len(new))


def _sifted(work: Work, row: Row, op: Append) -> tuple[list[Draft], tuple[int, ...]]:
    """What is new; before anything is refused for an id, all ids were looked up."""
    if not must_look(work, row, op):
        with suppress(IdConflict):
            return work.sift(row, op.entries)
    work.look([(row, op.entries)])
    return work.sift(row, op.entries)


def must_look(work: Work, row: Row, op: Append) -> bool:
    """
    Whether ids have to be looked up before anything else is said.

    Nearly always everything is new and may be added: then the unique index is the only look-up of ids.
    """
    return work.is_careful or row.base > 0 or _refusal(work, row, op, op.entries) is not None


def _refusal(work: Work, row: Row, op: Append, new: Sequence[Draft]) -> NotDone | None:
    if row.state == ARCHIVED:
        return Archived(op.session)
    if op.fence is not None:
        if not _holds(row, op.run, op.fence) or row.lease_paused:
            return LeaseLost(op.run or "", op.fence, row.fence)
    elif any(draft.kind == "message" for draft in new) and (run := row.running(work.now)) is not None:
        return Busy(run, waiting=len(work.waiting(row)))
    if op.expect is not None and op.expect != row.head:
        return HeadMoved(op.expect, row.head)
    return None


def _holds(row: Row, run: str | None, fence: int) -> bool:
    """Whether this is the session's newest lease, also expired or paused."""
    return run is not None and row.fence == fence and row.lease_run == run.encode()


def add(work: Work, row: Row, new: Sequence[Draft], run: str | None) -> None:
    """Write new entries behind the head, and move what moves with it."""
    if not new:
        return
    work.add(row, new, run)
    used = [draft.usage for draft in new if draft.usage is not None]
    if used:
        row.set(tokens=pack_tokens(sum(used, unpack_tokens(row.tokens) or Usage())))
    row.set(head=row.head + len(new), active_us=work.now)
    if any(draft.kind == "message" for draft in new):
        _wake(row)


def _wake(row: Row) -> None:
    """A completed session that goes on is active again."""
    if row.state == COMPLETED:
        row.set(state=ACTIVE, version=row.version + 1)


# The lease and its queue.


def take(work: Work, op: Take) -> Lease | Queued:
    """See ``segue.store.Take``."""
    row = work.row(op.scope, op.session)
    if row.state == ARCHIVED:
        raise Archived(op.session)
    work.look([(row, op.entries)])
    new, _ = work.sift(row, op.entries)  # an id with other content refuses the grant
    if _holds(row, op.run, row.fence) and not row.lease_paused:
        return _grant(work, row, op, row.fence, new)  # the same run, asking again
    holder = row.running(work.now)
    if op.dead is not None and row.lease_holder == op.dead.encode():
        holder = None
    waiting = work.waiting(row)
    before = waiting.index(op.run) if op.run in waiting else len(waiting)
    if op.policy in ("interrupt", "rollback"):
        is_free = holder is None or holder == op.over
    else:
        is_free = holder is None and before == 0
    if is_free:
        return _grant(work, row, op, row.fence + 1, new)
    if op.policy == "enqueue":
        work.enqueue(row, op.run, work.now + op.ticket_us)
        return Queued(before, holder or "")
    if holder is None:
        raise Busy("", waiting=before, message=f"{before} runs wait for this session; use policy='enqueue'")
    raise Busy(holder, waiting=before)


def _grant(work: Work, row: Row, op: Take, fence: int, new: Sequence[Draft]) -> Lease:
    until_us = work.now + op.ttl_us
    row.set(
        fence=fence,
        lease_run=op.run.encode(),
        lease_paused=0,
        lease_until_us=until_us,
        lease_holder=op.holder.encode(),
    )
    work.dequeue(row, op.run)
    _wake(row)
    add(work, row, new, op.run)
    return Lease(op.run, fence, "running", from_us(until_us), op.holder)


def renew(work: Work, op: Renew) -> Lease:
    """See ``segue.store.Renew``."""
    row = work.row(op.scope, op.session)
    if not _holds(row, op.run, op.fence) or row.lease_paused:
        raise LeaseLost(op.run, op.fence, row.fence)
    until_us = work.now + op.ttl_us
    row.set(lease_until_us=until_us)
    return Lease(op.run, op.fence, "running", from_us(until_us), (row.lease_holder or b"").decode())


def release(work: Work, op: Release) -> None:
    """See ``segue.store.Release``."""
    row = work.row(op.scope, op.session)
    if op.fence is None:
        work.dequeue(row, op.run)
    elif not _holds(row, op.run, op.fence):
        if op.pause_us is not None:
            raise LeaseLost(op.run, op.fence, row.fence)
    elif op.pause_us is None:
        row.set(lease_run=None, lease_paused=None, lease_until_us=None, lease_holder=None)
    else:
        row.set(lease_paused=1, lease_until_us=work.now + op.pause_us)
