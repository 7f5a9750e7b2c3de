"""
What a session stands on: where the model's view of it begins, which readings count, what others did to them.

All of it is read from the log, bounded, and nothing is written. What an imported entry says oddly is
counted as not understood; it never stops a resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from . import codec, formats, ledger, view
from .edits import Retracts
from .ledger import Foreign, Live, Observation
from .log import Log
from .model import Entry, Hit, to_us
from .store import READ_MAX

KEEP_MAX = 10_000
"""Most readings before a cut that its summary may rest on."""

SOURCES_MAX = 8
"""Up to so many sources are looked up one by one; of more, all effects since the oldest reading are looked through."""

EFFECTS_MAX = 2_000
"""Most effects of a scope that are looked through at once; beyond, each source is looked up."""

OTHERS_MAX = 100
"""Most entries of others looked at for one source."""

CALLED_MAX = 20_000
"""Most messages looked through for the tools that they call; the newest."""


class Ground(NamedTuple):
    """
    Where the model's view of a session begins.

    Attributes:
        after: What has a seq up to this is not read: the last cut stands for it.
        keep: Ids of the readings before it that the cut's summary rests on.
        unreadable: How much of what the cut says of readings could not be understood.
        retracts: What was taken back.
    """

    after: int
    keep: frozenset[str]
    unreadable: int
    retracts: Retracts


def find(log_: Log, format: str, upto: int) -> Ground:
    """
    Where the view of a log begins.

    Raises:
        ViewInvalid: The last cut is none; the message says how to take it back.
    """
    retracts = Retracts(_hits(log_, "retract", upto))
    if formats.rules(format) is None:
        after, cut = _bare_cut(log_, upto, retracts)
    else:
        begin = view.begin(log_, format, upto)
        after, cut = begin.upto, None
        if begin.cut is not None:
            (cut,) = log_.read(after=begin.cut - 1, upto=begin.cut)
    keep, unreadable = _kept(cut)
    return Ground(after, keep, unreadable, retracts)


def _hits(log_: Log, ref: str, upto: int) -> Iterator[Hit]:
    """Newest first, all of them, a page at a time."""
    while True:
        hits = log_.by_ref(ref, upto=upto, reverse=True)
        yield from hits
        if len(hits) < READ_MAX:
            return
        upto = hits[-1].entry.seq - 1


def _bare_cut(log_: Log, upto: int, retracts: Retracts) -> tuple[int, Entry | None]:
    """The last cut of a session whose format has no views in Segue."""
    for hit in _hits(log_, "cut", upto):
        entry, said = hit.entry, _body(hit.entry).get("upto")
        if type(said) is int and 0 <= said < entry.seq and not retracts.by(entry):
            return said, entry
    return 0, None


def _kept(cut: Entry | None) -> tuple[frozenset[str], int]:
    said = () if cut is None or cut.kind != "cut" else _body(cut).get("observations", ())
    if not isinstance(said, list | tuple):
        return frozenset(), 1
    ids = [one for one in islice(said, KEEP_MAX) if isinstance(one, str)]
    return frozenset(ids), len(said) - len(ids)


def _body(entry: Entry) -> dict[str, Any]:
    body = None if entry.format == "raw" else entry.json()
    return body if isinstance(body, dict) else {}


def records(log_: Log, upto: int) -> list[Entry]:
    """Entries about readings and effects, newest first: one more than is looked through, to know whether it is all."""
    return log_.read(kinds=("observation", "effect"), upto=upto, reverse=True, limit=ledger.SCAN_MAX + 1)


def live(found: Ground, records: Iterable[Entry], **options: Any) -> Live:
    """The readings that count; see ``ledger.live``."""
    seen = ledger.live(records, after=found.after, keep=found.keep, **options)
    return seen._replace(unreadable=seen.unreadable + found.unreadable)


def notes(log_: Log, found: Ground, upto: int, limit: int) -> list[Entry]:
    """The notes that the model still sees, newest first: neither retracted nor before the last cut."""
    hits = log_.by_ref("note", after=found.after, upto=upto, reverse=True, limit=limit)
    return [hit.entry for hit in hits if not found.retracts.by(hit.entry)]


def called(log_: Log, format: str, found: Ground, upto: int) -> frozenset[str]:
    """Names of the tools that the model sees itself call."""
    rules = formats.rules(format)
    names: set[str] = set()
    if rules is None:
        return frozenset()
    entries = log_.iterate(after=found.after, upto=upto, kinds=("message",), reverse=True)
    for entry in islice(entries, CALLED_MAX):
        if entry.body is not None and entry.format == format and not found.retracts.by(entry):
            shape = rules.shape(codec.decode(entry.body))
            names.update(call.name for call in (shape.calls if shape else ()))
    return frozenset(names)


def others(log_: Log, observations: Sequence[Observation], records: Iterable[Entry]) -> tuple[Foreign, ...]:
    """What other sessions of the user did to the sources of these readings, since they were read."""
    since: dict[str, datetime] = {}
    for seen in observations:
        moment = seen.stored_at or seen.observed_at
        since[seen.source] = min(since.get(seen.source, moment), moment)
    if not since:
        return ()
    own = {entry.id for entry in records}  # a fork's log holds what it inherited
    hits = [hit for hit in _effects(log_, since) if hit.entry.id not in own]
    return ledger.effects_of_others(hits, own=(log_.id,))


def _effects(log_: Log, since: dict[str, datetime]) -> list[Hit]:
    by_ref = log_.engine.store.by_ref
    if len(since) > SOURCES_MAX:
        oldest = to_us(min(since.values()))
        hits = by_ref(log_.scope, "effect", since_us=oldest, reverse=True, limit=EFFECTS_MAX)
        if len(hits) < EFFECTS_MAX:
            wanted = {ledger.source_ref(source): to_us(moment) for source, moment in since.items()}
            return [hit for hit in hits if any(wanted.get(r, 1 << 62) <= hit.entry.created_us for r in hit.entry.refs)]
    return [
        hit
        for source, moment in since.items()
        for hit in by_ref(log_.scope, ledger.source_ref(source), since_us=to_us(moment), reverse=True, limit=OTHERS_MAX)
    ]
