"""
What a handle knows of one session's file: its row, and where each of its entries lies.

It is read from the lines and from nothing else, on from where the last reading ended. What a write left
torn at the end is not seen. A line that is damaged in the middle costs itself only: the entry it held
is known to be missing, the rest is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from segue.model import ScopeKey

from ._jsonl_entries import Entries
from ._jsonl_lines import (
    EntryLine,
    Header,
    LeaseLine,
    Line,
    RowLine,
    lines_of,
    micros,
    parsed,
    seed_of,
    usage_of,
)
from ._jsonl_summary import Summary

LINE_MAX_BYTES = 64 << 20
"""Longest line that is looked at. No entry comes near it; a longer one is another program's."""

GAP_MAX = 1_000_000
"""Most entries that may be missing between two lines."""

_PIECE_BYTES = 4 << 20
_PROBE_BYTES = 64
_TORN_NULS = b"\0" * 16


def _is_cut(lines: Sequence[Line]) -> bool:
    """Whether these are the first lines of a write whose last are not there."""
    return all(line.head and not line.has_nul and line.part[0] == no for no, line in enumerate(lines, 1))


class Finding(NamedTuple):
    """Something in a file that is not as it was written."""

    text: str
    seq: int | None = None
    is_damage: bool = True


Sign = tuple[int, int, int, int]


def sign_of(stat: os.stat_result) -> Sign:
    """What tells that a file is as it was: inode, size and times."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


class Table:
    """
    One session's file, as far as it was read.

    Attributes:
        summary: The session but for its entries.
        entries: Where they lie; None when only the summary is known (from the index file).
        sign: What the file was like then; None when a reading did not go to its end.
        end: Where the next write belongs: behind the last whole write.
        torn: How many bytes behind it a write left torn.
        missing_feed: Where a line feed is to be mended, or None.
        findings: What is not as it was written.
        bad: Places of lines that are damaged, repeated or another program's.
        seed: What the checksums of its lines begin with.
        proven: How much of it this handle knows to be durable.
    """

    def __init__(self, scope: ScopeKey, session: str) -> None:
        self._scope = scope
        self.summary = Summary(session)
        self.entries: Entries | None = Entries(0)
        self.sign: Sign | None = None
        self.end = 0
        self.torn = 0
        self.missing_feed: int | None = None
        self.findings: list[Finding] = []
        self.bad: list[tuple[int, int]] = []
        self.proven = 0
        self.seed = seed_of(*scope, session)
        self._probes = (b"", b"")
        self._pending: list[Line] = []
        self._unassigned: list[Line] = []  # damaged lines of which is not known yet what they held
        self._restated: set[str] = set()

    @classmethod
    def summarised(cls, scope: ScopeKey, summary: Summary, sign: Sign) -> Table:
        """A table that knows no entries, from the index file."""
        table = cls(scope, summary.session)
        table.summary, table.sign, table.entries = summary, sign, None
        return table

    @property
    def is_there(self) -> bool:
        """Whether the file holds a session, be it a damaged one; not so when its first write was torn."""
        return self.summary.header is not None or any(each.is_damage for each in self.findings)

    @property
    def inode(self) -> int:
        """The file that the places of entries belong to."""
        return self.sign[0] if self.sign else 0

    def spans(self) -> Entries:
        """Where the entries lie. Only for a table that was read in full."""
        if self.entries is None:
            raise AssertionError("the table holds only a summary")
        return self.entries

    def compare(self, before: Table) -> None:
        """Say so when the same file held more that was durable: somebody cut it, and nothing in it tells."""
        if before.inode == self.inode and self.end < before.proven:
            lost = f"the file ended at byte {before.proven} and ends at {self.end}: what was stored behind it is gone"
            self.findings.append(Finding(lost, self.summary.head + 1))
            self.summary.is_row_unsure = True

    # Reading the file.

    def read(self, opened: int, limit: int | None = None) -> bool:
        """
        Read on to the end of the file, or to ``limit``.

        Returns:
            False when the file is not the one that was read before: begin with a new table.
        """
        stat = os.fstat(opened)
        size = stat.st_size if limit is None else min(stat.st_size, limit)
        if self.end and (size < self.end or stat.st_ino != self.inode or not self._is_same(opened)):
            return False
        self.torn = 0
        self._pending = []
        rest, start = self._read_lines(opened, size)
        self._settle(opened, rest, start, size)
        self._probes = (os.pread(opened, _PROBE_BYTES, 0), self._last(opened))
        is_all = limit is None or size == stat.st_size
        self.sign = sign_of(stat) if is_all else (stat.st_ino, -1, -1, -1)
        return True

    def _is_same(self, opened: int) -> bool:
        return self._probes == (os.pread(opened, _PROBE_BYTES, 0), self._last(opened))

    def _last(self, opened: int) -> bytes:
        return os.pread(opened, _PROBE_BYTES, max(0, self.end - _PROBE_BYTES))[: min(self.end, _PROBE_BYTES) - 1]

    def _read_lines(self, opened: int, size: int) -> tuple[bytes, int]:
        """Take all whole lines; what lies behind the last line feed, and where."""
        rest, at = b"", self.end
        while at < size:
            piece = os.pread(opened, min(_PIECE_BYTES, size - at), at)
            if not piece:
                break
            data, start = rest + piece, at - len(rest)
            at += len(piece)
            cut = data.rfind(b"\n") + 1
            for line in lines_of(data, offset=start, seed=self.seed):
                self._take(line)
            rest = data[cut:]
            if len(rest) > LINE_MAX_BYTES:
                at = self._skip(opened, start + cut, size)
                rest = b""
        return rest, at - len(rest)

    def _skip(self, opened: int, start: int, size: int) -> int:
        """Pass over a line that is too long to look at; where the next begins."""
        at = start
        while at < size:
            feed = os.pread(opened, min(_PIECE_BYTES, size - at), at).find(b"\n")
            if feed >= 0:
                self._take(Line(start, at + feed, None, has_nul=False, is_foreign=True))
                return at + feed + 1
            at += _PIECE_BYTES
        return size

    def _settle(self, opened: int, rest: bytes, start: int, size: int) -> None:
        """At the end of the file: tell a torn write, which is not seen, from damage, which is reported."""
        self.missing_feed = None
        if rest and (line := self._without_feed(rest, start)):
            self._take(line)
            if not self._pending:
                self.missing_feed = line.end
            rest = b""
        if not self._pending and not rest:
            self._resolve(at_end=True)
            return
        if rest or _is_cut(self._pending) or self._is_torn_by_nuls(opened, size):
            self.torn = size - self.end
            return
        for line in self._pending:
            self._accept(line)
        self._pending = []
        self._resolve(at_end=True)

    def _without_feed(self, rest: bytes, start: int) -> Line | None:
        """The last line, where all of it is there but its line feed (or its line feed is damaged)."""
        for end in (len(rest), len(rest) - 1):
            line = parsed(rest, 0, end, offset=start, seed=self.seed)
            if line.head is not None and not line.has_nul:
                return line
        return None

    def _is_torn_by_nuls(self, opened: int, size: int) -> bool:
        """Whether blocks of a write never came to the disk: they read as NULs, from its begin or to its end."""
        tail = os.pread(opened, min(size - self.end, LINE_MAX_BYTES), self.end)
        return tail.startswith(b"\0") or tail.endswith(b"\0") or _TORN_NULS in tail

    # Taking lines.

    def _take(self, line: Line) -> None:
        """The next line. A write counts when all of it is there; damage counts when a whole write follows."""
        if line.is_foreign and not self._pending:
            self._accept(line)
            return
        self._pending.append(line)
        number, count = line.part
        if line.head is None or number != count or len(self._pending) < count:
            return
        group = self._pending[-count:]
        if all(each.head and not each.has_nul and each.part == (no, count) for no, each in enumerate(group, 1)):
            for each in self._pending:
                self._accept(each)
            self._pending = []

    def _accept(self, line: Line) -> None:
        self.end = line.end + 1
        head = line.head
        if line.is_glued:
            self.findings.append(Finding(f"the line feed before byte {line.start} is damaged"))
        if isinstance(head, EntryLine):
            self._accept_entry(line, head)
        elif isinstance(head, RowLine):
            self.summary.row, self.summary.is_row_unsure = head.row, False
            self._restated.add("row")
        elif isinstance(head, LeaseLine):
            self.summary.lease, self.summary.is_lease_unsure = head, False
            self._restated.add("lease")
        elif isinstance(head, Header) and self._is_mine(line, head):
            self._accept_header(head)
        else:
            self._accept_bad(line)

    def _is_mine(self, line: Line, head: Header) -> bool:
        mine = (*self._scope, self.summary.session)
        return line.start == 0 and (head.tenant, head.user, head.session) == mine

    def _accept_header(self, head: Header) -> None:
        self.summary = Summary.begun(head)
        self.entries = Entries(head.base)

    def _accept_bad(self, line: Line) -> None:
        self.bad.append((line.start, line.end))
        if line.is_foreign:
            self.findings.append(Finding(f"the line at byte {line.start} is not Segue's", is_damage=False))
            return
        self.findings.append(Finding(f"the line at byte {line.start} is damaged"))
        self._unassigned.append(line)
        self._restated.clear()

    def _accept_entry(self, line: Line, head: EntryLine) -> None:
        summary, entries = self.summary, self.spans()
        if summary.header is None and not len(entries):
            base = summary.base = summary.head = head.seq - 1  # the first line is damaged: this one tells
            entries = self.entries = Entries(base)
            if base:
                self.findings.append(Finding(f"nothing says whose entries 1 to {base} are", base))
        gap = head.seq - summary.head - 1
        if gap < 0:
            self._accept_again(line, head)
            return
        if gap > GAP_MAX:
            self._accept_bad(line._replace(head=None))
            return
        for _ in range(gap):
            self._add_damaged()
        del self._unassigned[:gap]
        self._resolve()
        entries.add(line, head)
        summary.head = head.seq
        summary.active_us = micros(head.at)
        if head.usage is not None:
            summary.usage += usage_of(head.usage)

    def _accept_again(self, line: Line, head: EntryLine) -> None:
        """An entry that is there already: repeated, or (two histories merged by hand) in contradiction."""
        entries = self.spans()
        self.bad.append((line.start, line.end))
        if entries.seq_of(head.id) == head.seq:
            self.findings.append(Finding(f"entry {head.seq} is there twice", head.seq, is_damage=False))
        else:
            self.findings.append(Finding(f"there are two entries {head.seq}", head.seq))
            if head.seq > self.summary.base:
                entries.spoil(head.seq)

    def _add_damaged(self) -> None:
        self.spans().add_damaged()
        self.summary.head += 1
        self.findings.append(Finding(f"entry {self.summary.head} is damaged or missing", self.summary.head))

    def _resolve(self, *, at_end: bool = False) -> None:
        """
        Decide what damaged lines held that no missing entry accounts for.

        Before another entry they held none, so the attributes or the lease. Behind the last one they held
        entries where they look so; of the others nobody knows, and no more is written to the session.
        """
        summary = self.summary
        if at_end:
            count = sum(line.was_entry for line in self._unassigned)
            upto = summary.head + count
            # A flipped bit may have cut a line in two: the seq that can be read is the better witness.
            seen = max((line.seq_max for line in self._unassigned if summary.head < line.seq_max <= upto), default=upto)
            del self._unassigned[: seen - summary.head]
            while summary.head < seen:
                self._add_damaged()
        if self._unassigned:
            summary.is_row_unsure = summary.is_row_unsure or at_end or "row" not in self._restated
            summary.is_lease_unsure = summary.is_lease_unsure or at_end or "lease" not in self._restated
        self._unassigned = []
