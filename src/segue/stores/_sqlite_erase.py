"""
Taking content away for good, within one transaction of the SQLite store.

What is deleted is overwritten in the file (secure_delete); the store empties the log after the commit.
"""

from __future__ import annotations

from typing import Any

from segue.errors import Invalid, NotFound, VersionMoved
from segue.model import ScopeKey
from segue.store import Erase, Erased, Hollow

from ._sqlite_rows import ENTRY_COLUMNS, ERASED, SEQ_BITS, seal
from ._sqlite_work import Work

_TOMBSTONE = """
    UPDATE sessions SET key = NULL, state = 3, shelf = NULL, is_pinned = 0, is_listed = 0, lease_run = NULL,
        lease_state = NULL, lease_boot = NULL, lease_tick_us = NULL, lease_until_us = NULL, lease_holder = NULL,
        parent_id = NULL, parent_seq = NULL, parent_link = NULL, idle_us = NULL, expires_us = NULL, due_us = NULL,
        archived_us = NULL, usage = NULL, erased_us = ?
    WHERE no = ?
"""


def hollow(work: Work, op: Hollow) -> int:
    row = work.row(op.scope, op.session)
    for seq in op.seqs:
        if not row.base < seq <= row.head:
            raise Invalid(
                f"entry {seq} is not one of this session's own ({row.base + 1} to {row.head}); "
                "an inherited one is hollowed in the session that owns it",
                where="seqs",
            )
    return sum(_hollow(work, row.no, seq) for seq in dict.fromkeys(op.seqs))


def _hollow(work: Work, no: int, seq: int) -> int:
    con = work.con
    pos = (no << SEQ_BITS) + seq
    found = con.execute(
        f"SELECT {ENTRY_COLUMNS}, l.kind, l.format, l.origin "  # noqa: S608
        "FROM entries e LEFT JOIN labels l ON l.no = e.label WHERE pos = ? AND body IS NOT NULL",
        (pos,),
    ).fetchone()
    if found is None:
        return 0
    _pos, id, _label, created_us, occurred_us, run, refs, usage, before, digest, _codec, _body, *label = found
    work.wrote = work.hides = True
    if before == seal(pos, id, tuple(label), created_us, occurred_us, run, refs, usage, digest):
        after = seal(pos, id, tuple(label), created_us, occurred_us, run, None, usage, digest)
        mine = [(no, ref, seq) for ref in refs.split("\n")] if refs else []
        con.executemany("DELETE FROM refs WHERE session_no = ? AND ref = ? AND seq = ?", mine)
    else:  # a damaged row says nothing of its refs, and stays damaged
        after = before
        con.execute("DELETE FROM refs WHERE session_no = ? AND seq = ?", (no, seq))
    con.execute("UPDATE entries SET body = NULL, codec = 0, refs = NULL, seal = ? WHERE pos = ?", (after, pos))
    return 1


def erase(work: Work, op: Erase) -> Erased:
    found = _find(work, op.scope, op.session)
    if found is None:
        raise NotFound(op.session)
    no, state, version, base = found
    if state == ERASED:
        return Erased(0, 0)
    if op.expect is not None and op.expect != version:
        raise VersionMoved(op.expect, version)
    con = work.con
    work.wrote = work.hides = True
    con.execute(_TOMBSTONE, (work.moment.now, no))
    con.execute("DELETE FROM profiles WHERE session_no = ?", (no,))
    con.execute("DELETE FROM tags WHERE session_no = ?", (no,))
    con.execute("DELETE FROM queue WHERE session_no = ?", (no,))
    gone = _shrink(work, no)
    kept: int = con.execute("SELECT head FROM sessions WHERE no = ?", (no,)).get
    return Erased(gone, max(0, kept - base))


def _find(work: Work, scope: ScopeKey, session: str) -> tuple[int, int, int, int] | None:
    scope_no = work.scope_no(scope)
    return work.con.execute(
        "SELECT no, state, version, base FROM sessions WHERE scope_no = ? AND id = ?", (scope_no, session)
    ).fetchone()


def _shrink(work: Work, first: int) -> int:
    """
    Delete what no fork needs of an erased session, then of its erased ancestors.

    Returns:
        How many entries were deleted.
    """
    con = work.con
    gone = 0
    no: int | None = first
    while no is not None:
        row: Any = con.execute("SELECT state, base, head, origin_no FROM sessions WHERE no = ?", (no,)).fetchone()
        state, base, head, origin_no = row
        if state != ERASED:
            break
        # A fork that was erased itself and is not needed any more has let go of its origin already.
        needed = con.execute("SELECT max(base) FROM sessions WHERE origin_no = ?", (no,)).get or 0
        if needed < head:
            written = con.total_changes()
            start = (no << SEQ_BITS) + max(needed, base) + 1
            con.execute("DELETE FROM entries WHERE pos BETWEEN ? AND ?", (start, (no << SEQ_BITS) + head))
            gone += con.total_changes() - written
            con.execute("DELETE FROM refs WHERE session_no = ? AND seq > ?", (no, needed))
        if needed:
            con.execute("UPDATE sessions SET head = ? WHERE no = ?", (needed, no))
            break
        con.execute("UPDATE sessions SET head = 0, base = 0, origin_no = NULL WHERE no = ?", (no,))
        no = origin_no
    return gone
