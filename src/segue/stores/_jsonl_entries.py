"""Where the entries of one file lie, and what they can be found by."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._jsonl_lines import EntryLine, Line, micros


class Span(NamedTuple):
    """Where an entry's line lies in a file; no size: it is damaged or missing."""

    seq: int
    offset: int
    size: int


class Entries:
    """Where each entry of a file lies, in a few bytes an entry, and what it can be found by."""

    __slots__ = ("_base", "_created", "_ids", "_kind_names", "_kinds", "_offsets", "_refs", "_sizes", "damaged")

    def __init__(self, base: int) -> None:
        self._base = base
        self._offsets = array("Q")
        self._sizes = array("I")
        self._created = array("q")
        self._kinds = array("H")
        self._kind_names: list[str] = [""]
        self._ids: dict[int, int] = {}  # hash of the id -> seq
        self._refs: dict[int, int | array[int]] = {}  # hash of the ref -> seqs, ascending
        self.damaged: set[int] = set()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, line: Line, head: EntryLine) -> None:
        """The next entry."""
        seq = self._base + len(self) + 1
        self._offsets.append(line.start)
        self._sizes.append(line.end - line.start)
        self._created.append(micros(head.at))
        self._kinds.append(self._kind_no(head.kind))
        self._ids[hash(head.id)] = seq
        for ref in dict.fromkeys(head.refs):
            self._add_ref(hash(ref), seq)

    def add_damaged(self) -> None:
        """The next entry is damaged or missing."""
        self.damaged.add(self._base + len(self) + 1)
        self._offsets.append(0)
        self._sizes.append(0)
        self._created.append(self._created[-1] if self._created else 0)
        self._kinds.append(0)

    def spoil(self, seq: int) -> None:
        """An entry that is there twice with different content is not there at all."""
        self.damaged.add(seq)
        self._sizes[seq - self._base - 1] = 0

    def seq_of(self, entry_id: str) -> int:
        """The seq of the entry with this id; 0 when there is none. To be compared with the line."""
        return self._ids.get(hash(entry_id), 0)

    def span(self, seq: int) -> Span:
        """Where an entry lies."""
        at = seq - self._base - 1
        return Span(seq, self._offsets[at], self._sizes[at])

    def created_us(self, seq: int) -> int:
        """When an entry was stored."""
        return self._created[seq - self._base - 1]

    def of_kinds(self, seqs: Sequence[int], kinds: tuple[str, ...]) -> Iterator[int]:
        """Those of the seqs that are of these kinds; the damaged ones, whose kind nobody knows, too."""
        numbers = {no for no, name in enumerate(self._kind_names) if name in kinds} | {0}
        found, first = self._kinds, self._base + 1
        return (seq for seq in seqs if found[seq - first] in numbers)

    def with_ref(self, ref: str) -> Sequence[int]:
        """Seqs of the entries with this ref, ascending. To be compared with the lines."""
        found = self._refs.get(hash(ref), ())
        return (found,) if isinstance(found, int) else found

    def _kind_no(self, kind: str) -> int:
        try:
            return self._kind_names.index(kind)
        except ValueError:
            self._kind_names.append(kind)
            return len(self._kind_names) - 1

    def _add_ref(self, ref: int, seq: int) -> None:
        found = self._refs.get(ref)
        if found is None:
            self._refs[ref] = seq
        elif isinstance(found, int):
            self._refs[ref] = array("I", (found, seq))
        else:
            found.append(seq)
