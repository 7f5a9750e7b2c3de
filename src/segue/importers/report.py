"""What an import found and did: by file, by session, and every defect with its place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from segue.model import Usage

DEFECTS_MAX = 200
"""Most defects of one file that are told one by one; all are counted."""

Outcome = Literal["imported", "unchanged", "skipped", "failed"]


class Defect(NamedTuple):
    """Something that could not be taken as it stands: its kind, the record it is in (0: the file), what it is."""

    kind: str
    record: int
    detail: str = ""


@dataclass
class SessionReport:
    """
    One session of a file.

    Attributes:
        id: The session's id; empty in a dry run that would make it.
        key: Its key in the scope.
        title: Its title.
        format: Whose JSON its messages are.
        records: Records of the file that belong to it.
        messages: Messages among them.
        entries: Entries that were new (in a dry run: would be).
        usage: Tokens that were new.
        forked_from: The session whose history the file no longer continues, or empty.
        abandoned: Messages that lie on branches that were given up.
    """

    id: str
    key: str
    title: str = ""
    format: str = ""
    records: int = 0
    messages: int = 0
    entries: int = 0
    usage: Usage = field(default_factory=Usage)
    forked_from: str = ""
    abandoned: int = 0


@dataclass
class FileReport:
    """
    One file: what it was taken for, and what became of it.

    Attributes:
        path: As it was given; where a name in it is no UTF-8, that part replaced and a mark added.
        format: Name of the importer; empty when none knew it.
        outcome: ``imported``, ``unchanged`` (nothing was new), ``skipped`` (not a conversation that is known),
            ``failed`` (it could not be read to the end).
        reason: Why it was skipped or failed.
        bytes: Its size.
        records: How many records were read.
        sessions: What became of its sessions.
        defects: The first ones, with their places.
        counts: How many there are of each kind of defect.
    """

    path: str
    format: str = ""
    outcome: Outcome = "skipped"
    reason: str = ""
    bytes: int = 0
    records: int = 0
    sessions: list[SessionReport] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, record: int, detail: str = "") -> None:
        """Take down a defect."""
        self.counts[kind] += 1
        if len(self.defects) < DEFECTS_MAX:
            self.defects.append(Defect(kind, record, detail))

    @property
    def entries(self) -> int:
        """Entries that were new."""
        return sum(one.entries for one in self.sessions)

    @property
    def usage(self) -> Usage:
        """Tokens that were new."""
        total = Usage()
        for one in self.sessions:
            total += one.usage
        return total

    def value(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "path": self.path,
            "format": self.format,
            "outcome": self.outcome,
            "reason": self.reason,
            "bytes": self.bytes,
            "records": self.records,
            "entries": self.entries,
            "usage": self.usage._asdict(),
            "sessions": [{**vars(one), "usage": one.usage._asdict()} for one in self.sessions],
            "defects": [one._asdict() for one in self.defects],
            "defect_counts": dict(self.counts),
        }
