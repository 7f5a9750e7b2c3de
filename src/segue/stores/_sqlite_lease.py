"""The lease and its queue, within one transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence

from segue.errors import Archived, Busy, LeaseLost
from segue.model import Draft, Lease, from_us
from segue.store import Queued, Release, Renew, Take

from ._sqlite_append import add, sift, wake
from ._sqlite_rows import ARCHIVED, PAUSED, RUNNING, Row
from ._sqlite_work import Work

_GRANT = """
    UPDATE sessions SET fence = ?, lease_run = ?, lease_state = 1, lease_boot = ?, lease_tick_us = ?,
        lease_until_us = ?, lease_holder = ?
    WHERE no = ?
"""
_END = """
    UPDATE sessions SET lease_run = NULL, lease_state = NULL, lease_boot = NULL, lease_tick_us = NULL,
        lease_until_us = NULL, lease_holder = NULL
    WHERE no = ?
"""
_QUEUE = """
    INSERT INTO queue (session_no, ticket, run, boot, lapses_tick_us)
    VALUES (?1, (SELECT coalesce(max(ticket), 0) + 1 FROM queue WHERE session_no = ?1), ?2, ?3, ?4)
"""


def take(work: Work, op: Take) -> Lease | Queued:
    row = work.row(op.scope, op.session)
    if row.state == ARCHIVED:
        raise Archived(op.session)
    new, _seqs = sift(work, work.parts(row), row.head, op.entries)  # an id with other content refuses the grant
    if row.lease_state == RUNNING and row.lease_run == op.run:
        return _grant(work, row, op, row.fence, new)  # the same run, asking again
    holder = row.lease_run if work.is_running(row) else None
    if holder is not None and op.dead is not None and row.lease_holder == op.dead:
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
        return _enqueue(work, row, op, Queued(before, holder or ""), is_new=op.run not in waiting)
    if holder is None:
        raise Busy("", waiting=before, message=f"{before} runs wait for this session; use policy='enqueue'")
    raise Busy(holder, waiting=before)


def _grant(work: Work, row: Row, op: Take, fence: int, new: Sequence[Draft]) -> Lease:
    moment, con = work.moment, work.con
    work.wrote = True
    until_us = moment.now + op.ttl_us
    con.execute(_GRANT, (fence, op.run, moment.boot, moment.tick + op.ttl_us, until_us, op.holder, row.no))
    con.execute("DELETE FROM queue WHERE session_no = ? AND run = ?", (row.no, op.run))
    wake(work, row)
    if new:
        add(work, row, new, op.run)
    return Lease(op.run, fence, "running", from_us(until_us), op.holder)


def _enqueue(work: Work, row: Row, op: Take, place: Queued, *, is_new: bool) -> Queued:
    moment, con = work.moment, work.con
    lapses = moment.tick + op.ticket_us
    work.wrote = True
    con.execute(
        "DELETE FROM queue WHERE session_no = ? AND (boot <> ? OR lapses_tick_us <= ?)",
        (row.no, moment.boot, moment.tick),
    )
    if is_new:
        con.execute(_QUEUE, (row.no, op.run, moment.boot, lapses))
    else:
        con.execute("UPDATE queue SET lapses_tick_us = ? WHERE session_no = ? AND run = ?", (lapses, row.no, op.run))
    return place


def renew(work: Work, op: Renew) -> Lease:
    row = work.row(op.scope, op.session)
    if (row.lease_run, row.fence, row.lease_state) != (op.run, op.fence, RUNNING):
        raise LeaseLost(op.run, op.fence, row.fence)
    moment = work.moment
    until_us = moment.now + op.ttl_us
    work.wrote = True
    work.con.execute(
        "UPDATE sessions SET lease_boot = ?, lease_tick_us = ?, lease_until_us = ? WHERE no = ?",
        (moment.boot, moment.tick + op.ttl_us, until_us, row.no),
    )
    return Lease(op.run, row.fence, "running", from_us(until_us), row.lease_holder or "")


def release(work: Work, op: Release) -> None:
    row = work.row(op.scope, op.session)
    con = work.con
    if op.fence is None:
        written = con.total_changes()
        con.execute("DELETE FROM queue WHERE session_no = ? AND run = ?", (row.no, op.run))
        work.wrote = work.wrote or con.total_changes() > written
        return
    is_held = row.lease_state is not None and (row.lease_run, row.fence) == (op.run, op.fence)
    if not is_held:
        if op.pause_us is not None:
            raise LeaseLost(op.run, op.fence, row.fence)
        return
    work.wrote = True
    if op.pause_us is None:
        con.execute(_END, (row.no,))
    else:
        con.execute(
            "UPDATE sessions SET lease_state = ?, lease_until_us = ? WHERE no = ?",
            (PAUSED, work.moment.now + op.pause_us, row.no),
        )
