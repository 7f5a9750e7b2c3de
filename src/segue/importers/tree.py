"""
Which records of a tree are on the path that is alive.

The path leads from the newest message back to the beginning. Beside it stand, as parts of it, the other records of
the same messages, and results of its calls. Everything else with a message in it is a branch that was given up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple


class Node(NamedTuple):
    """A record's place: its name, what it follows (None: nothing; empty: the one before), its messages' seqs."""

    name: str
    parent: str | None
    group: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class Tree:
    """Names and links of all records, in the order of the file, and the seqs of their messages."""

    def __init__(self, tip: str = "") -> None:
        self.tip = tip
        self.duplicates: list[str] = []
        self._nodes: list[Node] = []
        self._seqs: list[array[int]] = []
        self._index: dict[str, int] = {}

    def add(self, node: Node, seqs: Iterable[int] = ()) -> None:
        """The next record."""
        if node.name:
            if node.name in self._index:
                self.duplicates.append(node.name)
            self._index.setdefault(node.name, len(self._nodes))
        self._nodes.append(node)
        self._seqs.append(array("q", seqs))

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def off_path(self) -> list[int]:
        """Seqs of all messages that are not on the living path, ascending."""
        on = self._path()
        self._take_along(on)
        return sorted(seq for at, seqs in enumerate(self._seqs) if not on[at] for seq in seqs)

    def problems(self) -> list[tuple[str, int, str]]:
        """Kind, record (from 1) and detail of links that lead nowhere or in a circle, and of names given twice."""
        found = [("duplicate-id", 0, name) for name in self.duplicates]
        for at, node in enumerate(self._nodes):
            if node.parent and node.parent not in self._index:
                found.append(("dangling-parent", at + 1, node.parent))
        done: set[int] = set()
        for start in range(len(self._nodes)):
            walked: set[int] = set()
            at = start
            while at >= 0 and at not in done and at not in walked:
                walked.add(at)
                at = self._before(at)
            if at in walked:
                found.append(("cycle", at + 1, self._nodes[at].name))
            done |= walked
        return found

    def _before(self, at: int) -> int:
        parent = self._nodes[at].parent
        if parent is None:
            return -1
        return self._index.get(parent, at - 1) if parent else at - 1

    def _path(self) -> bytearray:
        on = bytearray(len(self._nodes))
        at = self._index.get(self.tip, -1) if self.tip else -1
        if at < 0:
            at = max((i for i, seqs in enumerate(self._seqs) if seqs), default=-1)
        while at >= 0:
            on[at] = 1
            before = self._before(at)
            while before >= 0 and on[before]:  # a circle: go on with what was not seen yet
                before -= 1
            at = before
        return on

    def _take_along(self, on: bytearray) -> None:
        groups = {node.group for at, node in enumerate(self._nodes) if on[at] and node.group}
        calls: set[str] = set()
        for at, node in enumerate(self._nodes):
            if node.group in groups and node.group:
                on[at] = 1
            if on[at]:
                calls.update(node.calls)
        for at, node in enumerate(self._nodes):
            if on[at]:
                calls.difference_update(node.results)
        for at, node in enumerate(self._nodes):
            if not on[at] and calls.intersection(node.results):
                on[at] = 1
                calls.difference_update(node.results)
