"""Entries from their places in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from segue.errors import Corrupt
from segue.model import Entry

from ._jsonl_disk import Place, mapped
from ._jsonl_entries import Span
from ._jsonl_lines import EntryLine, entry_of, parsed
from ._jsonl_names import session_file
from ._jsonl_table import Table

_RUN_BYTES = 4 << 20
_HOLE_BYTES = 32 << 10  # reading over so much is cheaper than another call


class Moved(Exception):
    """The file was written anew since its table was read: read that again."""


def fetch(place: Place, table: Table, spans: Sequence[Span], *, session: str) -> list[Entry]:
    """
    The entries at some places of a table's file, in the order of the places.

    Args:
        place: The scope's directory.
        table: Of the session that owns the entries.
        spans: Where they lie.
        session: How an error names the session: the one that was asked for.

    Raises:
        Corrupt: One of them is damaged or missing.
        Moved: The file is another one now.
    """
    file = session_file(table.summary.session)
    for span in spans:
        if not span.size:
            raise damaged(session, span.seq, place.shown(file))
    found: dict[int, Entry] = {}
    try:
        with place.reading(file) as opened, mapped(place.shown(file)):
            if os.fstat(opened).st_ino != table.inode:
                raise Moved
            for run in _runs(sorted(spans, key=_by_offset)):
                start, last = run[0].offset, run[-1]
                data = os.pread(opened, last.offset + last.size - start, start)
                for span in run:
                    at = span.offset - start
                    found[span.seq] = _entry(table, data[at : at + span.size], span, session, place.shown(file))
    except FileNotFoundError:
        raise Moved from None
    return [found[span.seq] for span in spans]


def known_at(place: Place, table: Table, seq: int) -> tuple[str, bytes]:
    """Id and digest of an entry, whatever its body is like by now."""
    file, span = session_file(table.summary.session), table.spans().span(seq)
    try:
        with place.reading(file) as opened, mapped(place.shown(file)):
            line = os.pread(opened, span.size, span.offset)
    except FileNotFoundError:
        raise Moved from None
    head = parsed(line, 0, len(line), offset=span.offset, seed=table.seed).head
    if not isinstance(head, EntryLine) or head.seq != seq:
        raise damaged(table.summary.session, seq, place.shown(file))
    return head.id, bytes.fromhex(head.digest)


def damaged(session: str, seq: int, where: str) -> Corrupt:
    """The error for an entry that is damaged or missing."""
    return Corrupt(
        f"session {session!r}, entry {seq} is damaged or missing in {where}; "
        "restore the file from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq,
    )


def _entry(table: Table, line: bytes, span: Span, session: str, where: str) -> Entry:
    head = parsed(line, 0, len(line), offset=span.offset, seed=table.seed).head
    if not isinstance(head, EntryLine) or head.seq != span.seq:
        raise damaged(session, span.seq, where)
    try:
        return entry_of(head, line).verify(session)
    except ValueError:
        raise damaged(session, span.seq, where) from None


def _by_offset(span: Span) -> int:
    return span.offset


def _runs(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Places that are read in one call: close together, and not too much at a time."""
    run: list[Span] = []
    for span in spans:
        if run:
            end = run[-1].offset + run[-1].size
            if span.offset - end > _HOLE_BYTES or span.offset + span.size - run[0].offset > _RUN_BYTES:
                yield run
                run = []
        run.append(span)
    if run:
        yield run
