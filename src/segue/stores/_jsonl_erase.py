"""Erasing and hollowing: files are written anew without what must be gone, so that it is gone from the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence

import msgspec

from segue.errors import Invalid, NotFound, VersionMoved
from segue.model import ScopeKey
from segue.store import Erase, Erased, Hollow

from ._jsonl_disk import Place, mapped
from ._jsonl_entries import Span
from ._jsonl_lines import FORMAT, EntryLine, Header, LeaseLine, RowLine, body_part, moment, parsed, sealed
from ._jsonl_names import INDEX, TEMPORARY, lease_file, session_file, torn_files
from ._jsonl_read import damaged
from ._jsonl_shelf import Shelf
from ._jsonl_summary import Moment
from ._jsonl_table import Table
from ._jsonl_write import Writer


class Eraser:
    """
    Takes content away for good. Used with the folder's lock held.

    Args:
        shelf: What the handle knows.
        writer: What writes.
        at: Now.
    """

    def __init__(self, shelf: Shelf, writer: Writer, at: Moment) -> None:
        self._shelf = shelf
        self._writer = writer
        self._at = at

    def hollow(self, place: Place, op: Hollow) -> int:
        """Erase the content of some entries; how many had one. The session is living and its row is known."""
        with self._shelf.lock:
            table = self._shelf.living(place, op.scope, op.session)
            lease = self._shelf.lease(place, op.scope, table)
        base, head = table.summary.base, table.summary.head
        for seq in op.seqs:
            if not base < seq <= head:
                raise Invalid(
                    f"entry {seq} is not one of this session's own ({base + 1} to {head}); "
                    "an inherited one is hollowed in the session that owns it",
                    where="seqs",
                )
        full = self._full(place, table, sorted(set(op.seqs)))
        names = place.names()
        with self._writer.rewriting(place):
            if full:
                place.replace(session_file(op.session), _hollowed(place, table, full, lease))
                leftover = [name for name in names if name.startswith(TEMPORARY)]
                for name in leftover + torn_files(names, session_file(op.session)):
                    place.remove(name)
        self._forget(op.scope, op.session)
        return len(full)

    def _full(self, place: Place, table: Table, seqs: Sequence[int]) -> set[int]:
        file, spans = session_file(table.summary.session), table.spans()
        full = set()
        with place.reading(file) as opened, mapped(place.shown(file)):
            for seq in seqs:
                if not _line_at(opened, table, spans.span(seq), place.shown(file))[0].hollow:
                    full.add(seq)
        return full

    def erase(self, place: Place, op: Erase) -> Erased:
        """Erase a session, and what was kept of others for it alone."""
        with self._shelf.lock:
            table = self._shelf.table(place, op.scope, op.session, full=False)
        if table is None or not table.is_there:
            raise NotFound(op.session)
        summary = table.summary
        if summary.is_erased:
            self._tidy(place, op.scope)
            return Erased(0, 0)
        if op.expect is not None and op.expect != summary.known_row().version:
            raise VersionMoved(op.expect, summary.known_row().version)
        with self._writer.rewriting(place):
            if place.remove(INDEX):
                place.sync()
        kept = self._needs(place, op.scope, but=op.session).get(op.session, 0)
        self._bury(place, op.scope, table, upto=kept)
        shared = max(0, min(kept, summary.head) - summary.base)
        return Erased(summary.head - summary.base - shared + self._tidy(place, op.scope), shared)

    def _needs(self, place: Place, scope: ScopeKey, *, but: str = "") -> dict[str, int]:
        """Up to which seq the entries of each session are shared by living forks."""
        needs: dict[str, int] = {}
        with self._shelf.lock:
            for table, _lease in self._shelf.all(place, scope):
                if not table.summary.is_erased and table.summary.session != but:
                    for owner, upto in table.summary.shares:
                        needs[owner] = max(needs.get(owner, 0), upto)
        return needs

    def _bury(self, place: Place, scope: ScopeKey, table: Table, *, upto: int) -> None:
        """Leave a tombstone where a session was, with its own entries up to a seq behind it."""
        session = table.summary.session
        if upto > table.summary.base:
            with self._shelf.lock:
                table = self._shelf.table(place, scope, session) or table
            base, last = table.summary.base, min(upto, table.summary.head)
            kept = [span for span in map(table.spans().span, range(base + 1, last + 1)) if span.size]
        else:
            base, kept = 0, []
        stone = sealed(_tombstone(scope, table, base, self._at.now), 0)
        with self._writer.rewriting(place):
            try:
                place.replace(session_file(session), _buried(place, table, stone, kept))
            except OSError as error:
                if kept or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._bury_in_place(place, session_file(session), stone)
        self._forget(scope, session)

    def _bury_in_place(self, place: Place, file: str, stone: bytes) -> None:
        """On a full disk there is no room for a second file: the first bytes become the tombstone, the rest goes."""
        opened = place.disk.open(file, os.O_WRONLY, place.fd)
        try:
            place.disk.overwrite(opened, stone, 0)
            place.disk.sync(opened)
            place.disk.truncate(opened, len(stone))
            place.disk.sync(opened)
        finally:
            os.close(opened)

    def _tidy(self, place: Place, scope: ScopeKey) -> int:
        """
        Finish what erasures left to do, this one and any that was cut short by a crash.

        Returns:
            How many entries of erased sessions went because nobody shares them any more.
        """
        needs, gone = self._needs(place, scope), 0
        names = place.names()
        with self._shelf.lock:
            stones = [table for table, _lease in self._shelf.all(place, scope) if table.summary.is_erased]
        leftover = [name for name in names if name.startswith(TEMPORARY)]
        for stone in stones:
            summary, file = stone.summary, session_file(stone.summary.session)
            need = needs.get(summary.session, 0)
            if summary.head > max(need, summary.base):
                gone += summary.head - max(need, summary.base)
                self._bury(place, scope, stone, upto=need)
            leftover += torn_files(names, file)
            leftover += [lease_file(file)] if lease_file(file) in names else []
        with self._writer.rewriting(place):
            for name in leftover:
                place.remove(name)
        return gone

    def _forget(self, scope: ScopeKey, session: str) -> None:
        with self._shelf.lock:
            self._shelf.forget(scope, session)
            self._shelf.known(scope).changed += 1


def _tombstone(scope: ScopeKey, table: Table, base: int, now: int) -> Header:
    session, rewrite = table.summary.session, table.summary.rewrite + 1
    return Header(FORMAT, rewrite, session=session, tenant=scope.tenant, user=scope.user, erased=moment(now), base=base)


def _buried(place: Place, table: Table, stone: bytes, kept: Sequence[Span]) -> Iterator[bytes]:
    """The content of an erased session's file."""
    yield stone
    if kept:
        file = session_file(table.summary.session)
        with place.reading(file) as opened:
            for span in kept:
                head, line = _line_at(opened, table, span, place.shown(file))
                yield sealed(msgspec.structs.replace(head, part=None), table.seed, body_part(line))


def _hollowed(place: Place, table: Table, seqs: Collection[int], lease: LeaseLine) -> Iterator[bytes]:
    """
    The content of a file in which some entries are hollow.

    Its attributes and its lease are in its beginning. Lines that are damaged or another program's stay;
    behind them both are said again, so that no doubt falls on them.
    """
    summary, seed = table.summary, table.seed
    row = summary.known_row()
    header = summary.known_header()
    lease = msgspec.structs.replace(lease, part=None)
    yield sealed(msgspec.structs.replace(header, rewrite=summary.rewrite + 1, row=row, part=None), seed)
    yield sealed(lease, seed)
    file = session_file(summary.session)
    with place.reading(file) as opened:
        for start, end, seq in _places(table):
            if not seq:
                yield os.pread(opened, end - start, start) + b"\n"
                continue
            head, line = _line_at(opened, table, Span(seq, start, end - start), place.shown(file))
            if seq in seqs:
                yield sealed(msgspec.structs.replace(head, part=None, hollow=True, refs=()), seed)
            else:
                yield sealed(msgspec.structs.replace(head, part=None), seed, body_part(line))
    if table.bad:
        yield sealed(RowLine(row), seed)
        yield sealed(lease, seed)


def _places(table: Table) -> list[tuple[int, int, int]]:
    """Where entries (with their seq) and strange lines (with 0) lie, in the file's order."""
    summary, entries = table.summary, table.spans()
    spans = map(entries.span, range(summary.base + 1, summary.head + 1))
    places = [(span.offset, span.offset + span.size, span.seq) for span in spans if span.size]
    return sorted(places + [(start, end, 0) for start, end in table.bad])


def _line_at(opened: int, table: Table, span: Span, where: str) -> tuple[EntryLine, bytes]:
    line = os.pread(opened, span.size, span.offset)
    head = parsed(line, 0, len(line), offset=span.offset, seed=table.seed).head
    if not isinstance(head, EntryLine) or head.seq != span.seq:
        raise damaged(table.summary.session, span.seq, where)
    return head, line
