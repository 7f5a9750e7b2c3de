"""
The items of a session: what stands of its log, as the SDK wants it.

The SDK's list shrinks (pop, clear, compaction); the log only grows. So shrinking is an entry, too:
a cut stands before what was cleared, a retraction names what was popped, and a reading starts at the
last cut, which is found by its ref. What was taken back stays in the log until it is erased. A mask
changes what is read in the place of a result; what is stored stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import segue
from segue.errors import ViewInvalid
from segue.formats.masking import masked
from segue.model import Draft, Entry, Usage

FORMAT = "openai.responses"
"""Items are those of the Responses API, whatever the model."""

COMPACTION = "agents.compaction"
"""Ref of what a compaction wrote: it stands for what it replaced and contradicts no run under way."""

CONFLICT = "agents.conflict"
"""Ref of the retraction of a run that lost: it takes back that run's own items only."""

KINDS = ("message", "note")
_MOVING = (*KINDS, "cut", "retract")
_PAGE = 256  # first step backwards for a limit; each further step is twice as long
PAGE_MAX = 10_000


class Item(NamedTuple):
    """One item: its seq (0: it belongs to the summary of a cut) and its value."""

    seq: int
    value: Any


class Ground(NamedTuple):
    """Where a reading starts and ends, and what is not read."""

    head: int
    start: int  # nothing up to this seq is read
    cut: int  # seq of the cut that says so; 0: none
    summary: tuple[Any, ...]
    taken: Taken


class Taken:
    """
    What is taken back: entries by seq, by run, or all after a seq; always of before the retraction.

    And what is shown in another way: results that a mask replaces.
    """

    def __init__(self) -> None:
        self._seqs: set[int] = set()
        self._runs: dict[str, int] = {}
        self._after: list[tuple[int, int]] = []
        self._masks: dict[int, dict[str, tuple[str, int]]] = {}  # by seq and call: the text, and the mask that says so

    def add(self, entry: Entry) -> None:
        """Take in one retraction or mask; newest first, since one that a later one names does not hold."""
        if entry.body is None or entry.seq in self._seqs:
            return
        if entry.kind == "mask":
            self._mask(entry)
        if entry.kind != "retract":
            return
        body = _body(entry)
        seqs, run, after = body.get("seqs", []), body.get("run"), body.get("after")
        if not _is_seqs(seqs) or not isinstance(run, str | None) or not isinstance(after, int | None):
            raise _bad(entry)
        self._seqs.update(seq for seq in seqs if seq < entry.seq)
        if run is not None:
            self._runs.setdefault(run, entry.seq)
        if after is not None:
            self._after.append((after, entry.seq))

    def _mask(self, entry: Entry) -> None:
        for one in _body(entry).get("results", ()):
            seq, call, text = (
                (one.get(name) for name in ("seq", "call", "text")) if isinstance(one, dict) else (0, 0, 0)
            )
            if not (isinstance(seq, int) and isinstance(call, str) and isinstance(text, str)):
                raise _bad(entry)
            if seq < entry.seq:
                self._masks.setdefault(seq, {}).setdefault(call, (text, entry.seq))

    def shown(self, entry: Entry) -> Any:
        """The item of an entry, with what its masks say in the place of results."""
        value = value_of(entry)
        texts = self._masks.get(entry.seq)
        if texts is None:
            return value
        found = masked(entry.format, value, {call: text for call, (text, _) in texts.items()})
        return value if found is None else found

    def masks_after(self, at: int) -> Iterator[tuple[int, str, str]]:
        """Seq, call and text of what stands up to a seq and was masked later."""
        for seq, texts in sorted(self._masks.items()):
            yield from ((seq, call, text) for call, (text, by) in texts.items() if seq <= at < by)

    def holds(self, entry: Entry) -> bool:
        """True when the entry was taken back."""
        if entry.seq in self._seqs:
            return True
        if entry.run is not None and self._runs.get(entry.run, 0) > entry.seq:
            return True
        return entry.kind in KINDS and any(after < entry.seq < seq for after, seq in self._after)


def ground(session: segue.Session) -> Ground:
    """Where the items of the session start now."""
    head = session.refresh().head
    upto = head
    while True:
        cuts = session.by_ref("cut", upto=upto, reverse=True, limit=1)
        if not cuts:
            return Ground(head, 0, 0, (), _taken(session, 0, head))
        entry = cuts[0].entry
        if entry.kind == "cut" and entry.body is not None:
            start, summary = _cut(entry)
            taken = _taken(session, start, head)
            if not taken.holds(entry):
                return Ground(head, start, entry.seq, summary, taken)
        upto = entry.seq - 1


def _taken(session: segue.Session, after: int, upto: int) -> Taken:
    found = Taken()
    while True:
        page = session.by_ref("retract", after=after, upto=upto, reverse=True)
        for hit in page:
            found.add(hit.entry)
        if len(page) < PAGE_MAX:
            return found
        upto = page[-1].entry.seq - 1


def read(session: segue.Session, limit: int | None = None, *, as_stored: bool = False) -> tuple[Ground, list[Item]]:
    """The newest ``limit`` items (None: all), oldest first, as of one head; results as they are masked."""
    base = ground(session)
    show = value_of if as_stored else base.taken.shown
    found: list[Item] = []  # newest first
    step, upto = _PAGE if limit is not None else PAGE_MAX, base.head
    while upto > base.start and (limit is None or len(found) < limit):
        page = session.read(after=base.start, upto=upto, kinds=KINDS, reverse=True, limit=min(step, PAGE_MAX))
        found += [Item(entry.seq, show(entry)) for entry in page if _stands(entry, base.taken)]
        if len(page) < min(step, PAGE_MAX):
            break
        upto, step = page[-1].seq - 1, step * 2
    if limit is None or len(found) < limit:
        found += [Item(0, value) for value in reversed(base.summary)]
    return base, found[:limit][::-1]


def oldest(session: segue.Session, base: Ground, *, before: int, limit: int) -> list[Item]:
    """The oldest items before a seq, at most about ``limit``."""
    page = session.read(after=base.start, upto=before - 1, kinds=KINDS, limit=limit)
    return [Item(entry.seq, value_of(entry)) for entry in page if _stands(entry, base.taken)]


def value_of(entry: Entry) -> Any:
    """The item of a message, or the message of a note."""
    value = entry.json()
    return value["message"] if entry.kind == "note" else value


def is_contradicted(session: segue.Session, *, after: int, upto: int) -> bool:
    """
    True when something after a seq changed the conversation under a run that had read up to it.

    Facts (effects, observations), compactions and the retractions of runs that lost do not.
    """
    if upto <= after:
        return False
    entries = session.read(after=after, upto=upto, kinds=_MOVING)
    return any(CONFLICT not in entry.refs and COMPACTION not in entry.refs for entry in entries)


def last_message(session: segue.Session) -> int:
    """Seq of the newest message, standing or not; 0 when there is none."""
    found = session.read(kinds=("message",), reverse=True, limit=1)
    return found[0].seq if found else 0


def message(value: Any, *, usage: Usage | None = None, id: str | None = None, refs: Sequence[str] = ()) -> Draft:
    """The entry of one item."""
    return segue.draft(value, format=FORMAT, usage=usage, id=id, refs=refs)


def retraction(seqs: Sequence[int], reason: str, *, refs: Sequence[str] = ()) -> Draft:
    """The entry that takes items back."""
    body = {"seqs": sorted(seqs), "reason": reason}
    return segue.draft(body, kind="retract", format="segue", origin="system", refs=("retract", *refs))


def retraction_after(seq: int, reason: str, *, refs: Sequence[str] = ()) -> Draft:
    """The entry that takes back all items after a seq."""
    body = {"after": seq, "reason": reason}
    return segue.draft(body, kind="retract", format="segue", origin="system", refs=("retract", *refs))


def cut(upto: int, reason: str, *, summary: Sequence[Any] = (), refs: Sequence[str] = ()) -> Draft:
    """The entry before which nothing is read."""
    body = {"upto": upto, "summary": list(summary) or None, "reason": reason}
    return segue.draft(body, kind="cut", format="segue", origin="system", refs=("cut", *refs))


def _stands(entry: Entry, taken: Taken) -> bool:
    return entry.body is not None and entry.format != "raw" and not taken.holds(entry)


def _cut(entry: Entry) -> tuple[int, tuple[Any, ...]]:
    body = _body(entry)
    start, summary = body.get("upto"), body.get("summary")
    if not isinstance(start, int) or not 0 <= start < entry.seq:
        raise _bad(entry)
    if summary is None:
        return start, ()
    return start, tuple(summary) if isinstance(summary, list) else (summary,)


def _body(entry: Entry) -> dict[str, Any]:
    body = entry.json()
    if not isinstance(body, dict):
        raise _bad(entry)
    return body


def _is_seqs(value: Any) -> bool:
    return isinstance(value, list) and all(type(seq) is int for seq in value)


def _bad(entry: Entry) -> ViewInvalid:
    return ViewInvalid(
        f"entry {entry.seq} is no {entry.kind} that Segue can read; take it back with a retract entry that names it",
        rule=f"bad-{entry.kind}",
        where=f"entry {entry.seq}",
    )
