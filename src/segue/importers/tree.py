"""
Which records of a tree are on the path that is alive.

The path leads from the newest message back to the beginning. Beside it stand, as parts of it, the other records of
the same messages, and results of its calls. Everything else with a message in it is a branch that was given up.
"""

from __future__ import annotations

from collections.abc import Sequence

_NONE: tuple[str, ...] = ()


class Tree:
    """Names and links of all records, in the order of the file, and the seqs of their messages."""

    def __init__(self, tip: str = "") -> None:
        self.tip = tip
        self.duplicates: list[str] = []
        self._index: dict[str, int] = {}
        # One place a record in each of these; lists of texts and numbers are what the collector looks at least.
        self._names: list[str] = []
        self._parents: list[str | None] = []
        self._groups: list[str] = []
        self._seqs: list[int | tuple[int, ...]] = []
        self._calls: dict[int, tuple[str, ...]] = {}
        self._results: dict[int, tuple[str, ...]] = {}

    def add(
        self,
        name: str,
        parent: str | None,
        *,
        group: str = "",
        seqs: Sequence[int] = (),
        calls: tuple[str, ...] = _NONE,
        results: tuple[str, ...] = _NONE,
    ) -> None:
        """
        The next record.

        Args:
            name: Empty: it has none, and nothing can follow it by name.
            parent: The name of what it follows; empty: the record before; None: nothing, it is a beginning.
            group: Records of one message have the same.
            seqs: Of its messages.
            calls: Ids of calls that it makes.
            results: Ids of calls that it answers.
        """
        at = len(self._names)
        if name:
            if name in self._index:
                self.duplicates.append(name)
            else:
                self._index[name] = at
        self._names.append(name)
        self._parents.append(parent)
        self._groups.append(group)
        self._seqs.append(seqs[0] if len(seqs) == 1 else tuple(seqs) if seqs else 0)
        if calls:
            self._calls[at] = calls
        if results:
            self._results[at] = results

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def off_path(self) -> list[int]:
        """Seqs of all messages that are not on the living path, ascending."""
        on = self._path()
        self._take_along(on)
        found: list[int] = []
        for at, seqs in enumerate(self._seqs):
            if seqs and not on[at]:
                found += [seqs] if isinstance(seqs, int) else seqs
        return sorted(found)

    def problems(self) -> list[tuple[str, int, str]]:
        """Kind, record (from 1) and detail of links that lead nowhere or in a circle, and of names given twice."""
        found = [("duplicate-id", 0, name) for name in self.duplicates]
        for at, parent in enumerate(self._parents):
            if parent and parent not in self._index:
                found.append(("dangling-parent", at + 1, parent))
        done = bytearray(len(self._names))  # 1: walked now, 2: known to lead to a beginning
        for start in range(len(self._names)):
            walked: list[int] = []
            at = start
            while at >= 0 and not done[at]:
                done[at] = 1
                walked.append(at)
                at = self._before(at)
            if at >= 0 and done[at] == 1:
                found.append(("cycle", at + 1, self._names[at]))
            for one in walked:
                done[one] = 2
        return found

    def _before(self, at: int) -> int:
        parent = self._parents[at]
        if parent is None:
            return -1
        return self._index.get(parent, at - 1) if parent else at - 1

    def _path(self) -> bytearray:
        on = bytearray(len(self._names))
        at = self._index.get(self.tip, -1) if self.tip else -1
        if at < 0:
            at = len(self._seqs) - 1
            while at >= 0 and not self._seqs[at]:
                at -= 1
        while at >= 0:
            on[at] = 1
            before = self._before(at)
            while before >= 0 and on[before]:  # a circle: go on with what was not seen yet
                before -= 1
            at = before
        return on

    def _take_along(self, on: bytearray) -> None:
        groups = {group for at, group in enumerate(self._groups) if group and on[at]}
        for at, group in enumerate(self._groups):
            if group and group in groups:
                on[at] = 1
        calls = {call for at, made in self._calls.items() if on[at] for call in made}
        for at, given in self._results.items():
            if on[at]:
                calls.difference_update(given)
        for at, given in self._results.items():
            if not on[at] and calls.intersection(given):
                on[at] = 1
                calls.difference_update(given)
