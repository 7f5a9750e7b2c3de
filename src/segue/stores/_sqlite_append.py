"""Adding entries to a session, within one transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from segue.errors import Archived, Busy, Corrupt, HeadMoved, IdConflict, LeaseLost, NotDone
from segue.model import Draft, Usage
from segue.store import Append, Appended

from ._sqlite_rows import (
    ARCHIVED,
    COMPLETED,
    RUNNING,
    SEQ_BITS,
    Row,
    damaged_row,
    due_us,
    entry_values,
    squeeze,
    usage_of,
    usage_text,
)
from ._sqlite_work import Part, Work

_INSERT = """
    INSERT INTO entries
        (pos, session_no, id, label, created_us, occurred_us, run, refs, usage, seal, digest, codec, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_no, id) DO NOTHING
"""


def append(work: Work, op: Append) -> Appended:
    row = work.row(op.scope, op.session)
    entries = op.entries
    # Nearly always everything is new and may be added: then the unique index is the only look-up of ids.
    is_plain = row.origin_no is None and entries and _refusal(work, row, op, entries) is None
    if is_plain and _try_add(work, row, entries, op.run):
        head = row.head + len(entries)
        return Appended(head, tuple(range(row.head + 1, head + 1)), len(entries))
    new, seqs = sift(work, work.parts(row), row.head, entries)
    if not new:
        return Appended(row.head, seqs, 0)
    refusal = _refusal(work, row, op, new)
    if refusal is not None:
        raise refusal
    return Appended(add(work, row, new, op.run), seqs, len(new))


def _refusal(work: Work, row: Row, op: Append, new: Sequence[Draft]) -> NotDone | None:
    if row.state == ARCHIVED:
        return Archived(row.id)
    if op.fence is not None:
        if (row.fence, row.lease_run, row.lease_state) != (op.fence, op.run, RUNNING):
            return LeaseLost(op.run or "", op.fence, row.fence)
    elif work.is_running(row) and any(draft.kind == "message" for draft in new):
        return Busy(row.lease_run or "", waiting=len(work.waiting(row)))
    if op.expect is not None and op.expect != row.head:
        return HeadMoved(op.expect, row.head)
    return None


def sift(work: Work, parts: Sequence[Part], head: int, entries: Sequence[Draft]) -> tuple[list[Draft], tuple[int, ...]]:
    """
    The entries that are new to a history, and the seq of every one.

    Raises:
        IdConflict: A known id comes with other content.
    """
    known = dict(_known(work, parts, entries))
    new: list[Draft] = []
    seqs: list[int] = []
    for draft in entries:
        seq, digest = known.get(draft.id, (0, b""))
        if not seq:
            new.append(draft)
            seq = head + len(new)
            known[draft.id] = (seq, draft.digest)
        elif digest != draft.digest:
            raise IdConflict(draft.id, seq)
        seqs.append(seq)
    return new, tuple(seqs)


def _known(work: Work, parts: Sequence[Part], entries: Sequence[Draft]) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """Of the ids, those that the history has, with seq and digest."""
    for no, _after, upto in parts:
        start = no << SEQ_BITS
        for draft in entries:
            found = work.con.execute(
                "SELECT pos, digest FROM entries WHERE session_no = ? AND id = ?", (no, squeeze(draft.id))
            ).fetchone()
            if found is not None and found[0] <= start + upto:
                yield draft.id, (found[0] - start, found[1])


def add(work: Work, row: Row, new: Sequence[Draft], run: str | None) -> int:
    """Write entries, whose ids are known to be new, behind the head, and move it. The new head."""
    if not _try_add(work, row, new, run):
        raise Corrupt(
            f"session {row.id!r}: the index of entry ids contradicts itself; run segue verify to see all damage",
            session=row.id,
        )
    return row.head + len(new)


def _try_add(work: Work, row: Row, new: Sequence[Draft], run: str | None) -> bool:
    """The same; False, and nothing is written, when an id was known after all."""
    con, now = work.con, work.moment.now
    first = (row.no << SEQ_BITS) + row.head + 1
    values = _values(work, new, first, run)
    written = con.total_changes()
    work.wrote = True
    try:
        con.executemany(_INSERT, values)
    except apsw.ConstraintError as error:
        raise Corrupt(
            f"session {row.id!r} ends at {row.head}, and yet has an entry behind that; "
            "run segue verify to see all damage",
            session=row.id,
            seq=row.head + 1,
        ) from error
    if con.total_changes() - written != len(new):
        con.execute("DELETE FROM entries WHERE pos BETWEEN ? AND ?", (first, first + len(new) - 1))
        return False
    refs = [
        (row.no, ref, seq, row.scope_no, now)
        for seq, draft in enumerate(new, row.head + 1)
        for ref in dict.fromkeys(draft.refs)
    ]
    if refs:
        con.executemany("INSERT INTO refs (session_no, ref, seq, scope_no, created_us) VALUES (?, ?, ?, ?, ?)", refs)
    _advance(work, row, new)
    return True


def _values(work: Work, new: Sequence[Draft], first: int, run: str | None) -> list[tuple[Any, ...]]:
    now = work.moment.now
    packed_run = None if run is None else squeeze(run)
    label_no = work.label_no
    return [
        entry_values(draft, pos=pos, label=label_no(draft[:3]), created_us=now, run=packed_run)
        for pos, draft in enumerate(new, first)
    ]


def _advance(work: Work, row: Row, new: Sequence[Draft]) -> None:
    """Move the head, with all that moves with it."""
    con, now = work.con, work.moment.now
    used = [draft.usage for draft in new if draft.usage is not None]
    usage = _total(row, used) if used else row.usage
    con.execute(
        "UPDATE sessions SET head = ?, active_us = ?, usage = ? WHERE no = ?",
        (row.head + len(new), now, usage, row.no),
    )
    if row.idle_us is not None:
        con.execute("UPDATE sessions SET due_us = ? WHERE no = ?", (due_us(row._replace(active_us=now)), row.no))
    if row.state == COMPLETED and any(draft.kind == "message" for draft in new):
        wake(work, row)


def wake(work: Work, row: Row) -> None:
    """A completed session that goes on is active again."""
    if row.state == COMPLETED:
        work.con.execute("UPDATE sessions SET state = 0, version = ? WHERE no = ?", (row.version + 1, row.no))


def _total(row: Row, used: list[Usage]) -> str:
    try:
        before = Usage() if row.usage is None else usage_of(row.usage)
    except (ValueError, TypeError) as error:
        raise damaged_row(row.id, str(error)) from error
    return usage_text(map(sum, zip(before, *used, strict=True)))
