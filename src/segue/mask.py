"""
Masking: in the view, never in the log, a reading that no longer holds is replaced by what says so.

A mask is an entry that names the results and the text in the place of each, so the same bytes are
sent for ever. It changes what stands before later messages: a new epoch begins, what a cache held is
lost, and thinking that is signed over its prefix would be refused. So there it is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from . import codec, formats, log, phrases, view
from .briefing import CALL_MAX, shown
from .errors import MaskRefused
from .formats.masking import is_bound, masked
from .ground import Ground
from .ledger import Observation, canonical
from .log import Log
from .model import Draft
from .phrases import Phrases, clean
from .world import Finding

Stale = Literal["note", "mask"]
"""What is done about readings that no longer hold: told in the note; or masked in the view as well."""

MASKED: frozenset[str] = frozenset({"changed", "gone", "denied"})
"""The outcomes of a reading that is masked. One that is only too old, or cannot be verified, is told, not hidden."""

_HITS_MAX = 100


class Mask(NamedTuple):
    """
    What is to be masked.

    Attributes:
        results: Seq of the message, call id, text in the place of the payload.
        left: Readings that no longer hold and whose result cannot be found (recorded without their call, and
            no result holds their stamp).
    """

    results: tuple[tuple[int, str, str], ...] = ()
    left: int = 0

    def draft(self) -> Draft:
        """Its entry."""
        results = [{"seq": seq, "call": call, "text": text} for seq, call, text in self.results]
        body = {"results": results, "left": self.left}
        # Under the ref of retractions, too: a view looks up in one step all that is not to be shown.
        return log.draft(body, kind="mask", format="segue", origin="system", refs=("mask", "retract"))


def plan_mask(
    log_: Log, format: str, found: Ground, findings: Sequence[Finding], *, now: datetime, language: str, upto: int
) -> Mask:
    """
    Which results of a session are to be masked, beyond those that are masked already.

    Args:
        log_: The session's log.
        format: The session's.
        found: Where its view begins.
        findings: What became of its readings.
        now: The store's clock; readings are superseded since then at the latest.
        language: Of the texts.
        upto: The head that was seen.

    Raises:
        MaskRefused: ``signed-thinking`` or ``format``.
    """
    words = phrases.phrases(language)
    texts: dict[_Place, list[str]] = {}
    left = 0
    for finding in findings:
        if finding.outcome not in MASKED:
            continue
        read = finding.observation
        place = _stamped(log_, format, found, read, upto) if read.call is None else None
        if read.call is None and place is None:
            left += 1
            continue
        place = place or _result(log_, format, found, read, upto)
        if place and place.call not in found.retracts.masks.get(place.seq, {}):
            texts.setdefault(place, []).append(_text(finding, now, words))
    if texts:
        _check(log_, format, upto, min(seq for seq, _ in texts))
    return Mask(tuple((seq, call, "\n".join(lines)) for (seq, call), lines in sorted(texts.items())), left)


class _Place(NamedTuple):
    """A result: seq of its message, id of the call."""

    seq: int
    call: str


def _result(log_: Log, format: str, found: Ground, read: Observation, upto: int) -> _Place | None:
    """The message in the view that holds what was read: the first after the reading that answers its call."""
    _rules(format)
    call = read.call or ""
    hits = log_.by_ref(formats.call_ref(call), after=found.after, upto=upto, limit=_HITS_MAX)
    answers = [hit.entry for hit in hits if hit.entry.kind == "message" and hit.entry.format == format]
    answers = [e for e in answers if e.body is not None and masked(format, codec.decode(e.body), {call: ""})]
    later = [entry for entry in answers if entry.seq > read.seq]
    place = later[0] if later else answers[-1] if answers else None
    return None if place is None or found.retracts.by(place) else _Place(place.seq, call)


def _stamped(log_: Log, format: str, found: Ground, read: Observation, upto: int) -> _Place | None:
    """The same for a reading whose call is not known, as some SDKs do not tell it: by the line that it left."""
    rules = _rules(format)
    lines = {_quoted(read.stamp(language)) for language in phrases.templates}
    after = max(read.seq, found.after)
    for entry in log_.read(after=after, upto=upto, kinds=("message",), limit=_HITS_MAX):
        if entry.format != format or entry.body is None or found.retracts.by(entry):
            continue
        value = codec.decode(entry.body)
        for call in rules.results(value):
            rest = masked(format, value, {call: ""})
            if rest is not None and any(_count(line, value) > _count(line, rest) for line in lines):
                return _Place(entry.seq, call)
    return None


def _count(line: str, value: Any) -> int:
    return codec.encode(value).decode().count(line)


def _quoted(text: str) -> str:
    return codec.encode(text).decode()[1:-1]


def _rules(format: str) -> formats.FormatRules:
    rules = formats.rules(format)
    if rules is None:
        raise MaskRefused(
            f"Segue does not know how results look in the format {format!r}; use stale='note'", reason="format"
        )
    return rules


def _check(log_: Log, format: str, upto: int, first: int) -> None:
    """Refuse where thinking behind the first masked result is bound to it."""
    made = view.build(log_, view.ViewSpec(format, foreign="omit"), upto)
    for value, seqs in zip(made.messages, made.seqs, strict=True):
        if seqs and max(seqs) > first and is_bound(format, value):
            raise MaskRefused(
                f"entry {max(seqs)} holds thinking that is bound to what stands before it, and masking entry {first} "
                "would change that: the provider would refuse or drop it. Use stale='note', or start anew",
                reason="signed-thinking",
                seq=max(seqs),
            )


def _text(finding: Finding, now: datetime, words: Phrases) -> str:
    read, versions = finding.observation, ""
    if read.version is not None and finding.now is not None:
        versions = f"{phrases.kind_name(finding.now.kind, words)} {shown(read.version)} → {shown(finding.now)}"
    again = words.mask_again.format(call=_call(read)) if read.tool else ""
    source = clean(read.source, 120)
    return words.masks[finding.outcome].format(at=phrases.utc_stamp(now), source=source, versions=versions, again=again)


def _call(read: Observation) -> str:
    arguments: Any = "" if read.arguments is None else canonical(read.arguments)
    return f"{clean(read.tool)}({clean(arguments, CALL_MAX)})"
