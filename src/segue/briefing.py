"""
The briefing: what a resume found, for a person, for a program and, as one short note, for the model.

Everything in it is facts; ``Briefing.from_facts`` gives back an equal briefing, and equal briefings
give the same text, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Literal, NamedTuple

from . import phrases
from .config import Change
from .errors import Invalid, MissingExtra
from .ledger import Effect, Foreign, Live, Observation, Version, canonical, digest_of, from_iso, iso
from .model import Entry
from .phrases import clean
from .world import OUTCOMES, Finding, Outcome

Advice = Literal["continue", "verify", "start_anew"]

ITEMS_MAX = 8
"""Most items of one sort that the note lists; the rest is a number."""

NAMES_MAX = 5
"""Most names that one line lists."""

CALL_MAX = 200
"""Longest call ("read it again with …") in the note, in characters."""

KEPT_MAX = 200
"""Most items of one sort (effects, calls) that a briefing holds; the rest is a number."""

FINDINGS_MAX_BYTES = 1024 * 1024
"""Most bytes of findings that a briefing holds, as JSON: it must fit into an entry."""

_DRIFTED: frozenset[Outcome] = frozenset({"changed", "gone", "denied"})
_HASH = re.compile(r"\b[0-9a-f]{24,}\b")
_CLOCK_SLACK = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """
    When a resume tells something, and what it advises. The defaults do not nag.

    Attributes:
        gap_quiet: Below this gap nothing is told unless something changed.
        verify_after: From this gap on, or when anything changed, the advice is ``verify``.
        probe_budget: How long the resume waits for probes.
        anew_after: From this gap on a drifted session is advised to start anew.
        anew_changed_share: Drifted: at least this share of the checked readings does not hold any more …
        anew_changed_min: … and at least this many; or the agent's configuration changed in a breaking way.
        anew_tokens: Estimated tokens from which the size is given as a further reason.
    """

    gap_quiet: timedelta = timedelta(minutes=30)
    verify_after: timedelta = timedelta(hours=24)
    probe_budget: timedelta = timedelta(seconds=2)
    anew_after: timedelta = timedelta(days=3)
    anew_changed_share: float = 0.5
    anew_changed_min: int = 2
    anew_tokens: int = 150_000

    def __post_init__(self) -> None:
        for name in ("gap_quiet", "verify_after", "probe_budget", "anew_after"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta():
                raise Invalid(f"{name} must be a timedelta that is not negative", where=name)
        if not 0.0 <= self.anew_changed_share <= 1.0:
            raise Invalid("anew_changed_share is a share: 0 to 1", where="anew_changed_share")


class Reason(NamedTuple):
    """Why the advice is what it is; ``what`` is a key of ``Phrases.reasons``, ``n`` and ``of`` are numbers for it."""

    what: str
    n: int = 0
    of: int = 0


class OpenCall(NamedTuple):
    """A call of the history that has no result: its id and the tool's name."""

    call: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """
    What a resume found. ``brief`` makes it.

    Attributes:
        now: When, by the store's clock (UTC).
        last_active_at: The last activity before it (UTC).
        zone: The user's time zone (``Asia/Shanghai``, ``UTC+08:00``).
        language: Of ``str()``, and of ``text()`` unless told otherwise.
        counts: How many readings there are of each outcome.
        findings: Those that are not current; at most about 1 MiB of them, the most telling first.
        left_out: Readings that were too many to check; ``is_complete`` False: at least so many.
        unreadable: Records of readings that could not be understood.
        others: Effects of others on the sources that this session has read.
        unknown: Own effects whose outcome is not known.
        approvals: Calls that still wait for a person.
        calls: Calls that were interrupted; their outcome is not known.
        changes: What differs in the agent's configuration.
        entries, tokens: Size of the history; tokens are an estimate, 0 where none was made.
        advice, reasons: What to do, and why.
        more: How many others, unknown, approvals and calls there are beyond the 200 of each that are kept.
        told: Keys of what an earlier note told already.
        gap_quiet: The policy's.
    """

    now: datetime
    last_active_at: datetime
    zone: str = "UTC"
    language: str = "en"
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    left_out: int = 0
    is_complete: bool = True
    unreadable: int = 0
    others: tuple[Foreign, ...] = ()
    unknown: tuple[Effect, ...] = ()
    approvals: tuple[OpenCall, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    changes: tuple[Change, ...] = ()
    entries: int = 0
    tokens: int = 0
    advice: Advice = "continue"
    reasons: tuple[Reason, ...] = ()
    more: Mapping[str, int] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    gap_quiet: timedelta = timedelta(minutes=30)

    @property
    def gap(self) -> timedelta:
        """Time since the last activity; zero when a clock was moved back."""
        return max(self.now - self.last_active_at, timedelta())

    @property
    def days(self) -> int:
        """How many midnights of the user's time zone lie between the last activity and now."""
        there = phrases.zone(self.zone)
        between = self.now.astimezone(there).date() - self.last_active_at.astimezone(there).date()
        return max(between.days, 0)

    @property
    def is_clock_odd(self) -> bool:
        """True when the last activity is dated later than now."""
        return self.last_active_at - self.now > _CLOCK_SLACK

    @property
    def checked(self) -> int:
        """How many readings there are."""
        return sum(self.counts.values())

    @property
    def drifted(self) -> int:
        """How many readings do not hold any more: changed, gone or denied."""
        return sum(self.counts.get(outcome, 0) for outcome in _DRIFTED)

    def total(self, name: Literal["others", "unknown", "approvals", "calls"]) -> int:
        """How many there are of one sort, those beyond the kept ones included."""
        return len(getattr(self, name)) + self.more.get(name, 0)

    @property
    def news(self) -> tuple[str, ...]:
        """Keys of what the note tells for the first time; they go into the note's facts (see ``told_in``)."""
        keys = [f.key for f in self._listed()]
        keys += [_other_key(f) for f in self.others[-ITEMS_MAX:]] + [_unknown_key(e) for e in self.unknown[-ITEMS_MAX:]]
        keys += [_changes_key(self.changes)] if self.changes else []
        return tuple(key for key in dict.fromkeys(keys) if key not in self.told)

    @property
    def is_quiet(self) -> bool:
        """True when the model need not be told anything: a short gap, or an empty history, and no news."""
        return not self.news and (self.entries == 0 or (self.gap < self.gap_quiet and not self.is_clock_odd))

    def _listed(self) -> list[Finding]:
        drifted = [f for f in self.findings if f.outcome in _DRIFTED and f.key not in self.told]
        return drifted[:ITEMS_MAX]

    def text(self, language: str | None = None) -> str:
        """
        The note for the model: what it needs to know before the next question, and no more.

        Args:
            language: ``en``, ``zh`` or one registered in ``segue.phrases.templates``; None: the briefing's.
        """
        return _Note(self, language or self.language).for_model()

    def __str__(self) -> str:
        return _Note(self, self.language).for_person()

    def rich(self) -> Any:
        """
        The same as ``str()`` as a renderable for ``rich``.

        Raises:
            MissingExtra: rich is not installed.
        """
        try:
            from rich.panel import Panel
            from rich.text import Text
        except ImportError as error:
            raise MissingExtra("cli", "rich") from error
        styles = {"continue": "green", "verify": "yellow", "start_anew": "red"}
        return Panel(Text(str(self)), border_style=styles[self.advice], expand=False)

    def facts(self) -> dict[str, Any]:
        """Everything in it as plain JSON, exact: ``from_facts`` gives back an equal briefing."""
        return {
            "now": iso(self.now),
            "last_active_at": iso(self.last_active_at),
            "zone": self.zone,
            "language": self.language,
            "gap_seconds": self.gap.total_seconds(),
            "days": self.days,
            "counts": dict(self.counts),
            "findings": [finding.facts() for finding in self.findings],
            "left_out": self.left_out,
            "is_complete": self.is_complete,
            "unreadable": self.unreadable,
            "others": [{"session": f.session, **_effect_facts(f.effect)} for f in self.others],
            "unknown": [_effect_facts(effect) for effect in self.unknown],
            "approvals": [call._asdict() for call in self.approvals],
            "calls": [call._asdict() for call in self.calls],
            "changes": [change._asdict() for change in self.changes],
            "more": dict(self.more),
            "entries": self.entries,
            "tokens": self.tokens,
            "advice": self.advice,
            "reasons": [reason._asdict() for reason in self.reasons],
            "told": sorted(self.told),
            "news": list(self.news),
            "gap_quiet_seconds": self.gap_quiet.total_seconds(),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Briefing:
        """
        The briefing that ``facts`` tells.

        Raises:
            Invalid: They are no facts of a briefing.
        """
        try:
            return cls(
                now=from_iso(facts["now"]),
                last_active_at=from_iso(facts["last_active_at"]),
                findings=tuple(Finding.from_facts(f) for f in facts["findings"]),
                others=tuple(Foreign(f["session"], _effect_from(f)) for f in facts["others"]),
                unknown=tuple(_effect_from(f) for f in facts["unknown"]),
                approvals=tuple(OpenCall(**call) for call in facts["approvals"]),
                calls=tuple(OpenCall(**call) for call in facts["calls"]),
                changes=tuple(Change(**change) for change in facts["changes"]),
                reasons=tuple(Reason(**reason) for reason in facts["reasons"]),
                told=frozenset(facts["told"]),
                gap_quiet=timedelta(seconds=facts["gap_quiet_seconds"]),
                **{name: facts[name] for name in _PLAIN},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Invalid(
                f"these are no facts of a briefing: {type(error).__name__}: {error}", where="facts"
            ) from error


_PLAIN = ("zone", "language", "counts", "left_out", "is_complete", "unreadable", "entries", "tokens", "advice", "more")


def brief(
    *,
    now: datetime,
    last_active_at: datetime,
    entries: int,
    policy: ResumePolicy | None = None,
    live: Live | None = None,
    findings: Sequence[Finding] = (),
    others: Sequence[Foreign] = (),
    unknown: Sequence[Effect] = (),
    approvals: Sequence[OpenCall] = (),
    calls: Sequence[OpenCall] = (),
    changes: Sequence[Change] = (),
    tokens: int = 0,
    told: Collection[str] = (),
    time_zone: tzinfo | str | None = None,
    language: str = "en",
) -> Briefing:
    """
    Put together what a resume found, and judge it.

    Args:
        now: The store's clock.
        last_active_at: The last activity before this resume.
        entries: The session's head.
        policy: When to tell and what to advise.
        live: The readings that count.
        findings: What ``check`` says of them.
        others: What others did to the sources of this session.
        unknown: What ``open_effects`` gives.
        approvals: Calls that wait for a person.
        calls: Calls that were interrupted.
        changes: What ``compare`` gives.
        tokens: Estimated size of the history.
        told: What earlier notes told; ``told_in`` reads it from them.
        time_zone: The user's, a name or a tzinfo; None: UTC.
        language: Of the texts.

    Raises:
        Invalid: An unknown time zone or language.
    """
    policy = policy or ResumePolicy()
    phrases.phrases(language)
    found = Briefing(
        now=now.astimezone(UTC),
        last_active_at=last_active_at.astimezone(UTC),
        zone=phrases.zone_name(time_zone, now),
        language=language,
        counts=_counts(findings),
        findings=_bounded(findings, told),
        left_out=live.left_out if live else 0,
        is_complete=live.is_complete if live else True,
        unreadable=live.unreadable if live else 0,
        others=tuple(Foreign(f.session, replace(f.effect, result=None)) for f in others[-KEPT_MAX:]),
        unknown=tuple(replace(effect, result=None) for effect in unknown[-KEPT_MAX:]),
        approvals=tuple(approvals[-KEPT_MAX:]),
        calls=tuple(calls[-KEPT_MAX:]),
        more=_more(others=others, unknown=unknown, approvals=approvals, calls=calls),
        changes=tuple(changes),
        entries=entries,
        tokens=tokens,
        gap_quiet=policy.gap_quiet,
    )
    reasons = _reasons(found, policy)
    kept = frozenset(told) & {*(_all_keys(found))}
    return replace(found, told=kept, reasons=reasons, advice=_advice(found, reasons, policy))


def told_in(notes: Iterable[Entry], limit: int = 200) -> frozenset[str]:
    """
    What the notes of a session have told the model already, by key.

    Args:
        notes: Entries of kind note that the model still sees: neither retracted nor before the last
            cut; newest first. What is not understood has told nothing.
        limit: Most notes to look through.
    """
    told: set[str] = set()
    for note in islice(notes, limit):
        body = note.json() if note.kind == "note" and note.format != "raw" else None
        facts = body.get("facts") if isinstance(body, Mapping) else None
        for name in ("news", "told"):
            keys = facts.get(name) if isinstance(facts, Mapping) else None
            told.update(key for key in (keys if isinstance(keys, list) else ()) if isinstance(key, str))
    return frozenset(told)


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    counted = {outcome: sum(f.outcome == outcome for f in findings) for outcome in OUTCOMES}
    return {outcome: n for outcome, n in counted.items() if n}


def _more(**lists: Sequence[Any]) -> dict[str, int]:
    return {name: len(items) - KEPT_MAX for name, items in lists.items() if len(items) > KEPT_MAX}


def _bounded(findings: Sequence[Finding], told: Collection[str]) -> tuple[Finding, ...]:
    """What is not current, news first, so much of it as a note's facts may hold."""
    marked = [replace(f, is_told=f.key in told) for f in findings if f.outcome != "current"]
    marked.sort(key=lambda f: (f.is_told, OUTCOMES.index(f.outcome)))
    kept, size = [], 0
    for finding in marked:
        size += len(canonical(finding.facts()).encode())
        if size > FINDINGS_MAX_BYTES:
            break
        kept.append(finding)
    return tuple(kept)


def _reasons(found: Briefing, policy: ResumePolicy) -> tuple[Reason, ...]:
    is_breaking = any(change.is_breaking for change in found.changes)
    proven = found.checked - found.counts.get("unverifiable", 0) - found.counts.get("expired", 0)
    reasons = [
        Reason("changed", found.drifted, proven) if found.drifted else None,
        Reason("breaking-drift") if is_breaking else Reason("drift") if found.changes else None,
        Reason("unknown-effects", found.total("unknown")) if found.unknown else None,
        Reason("others", found.total("others")) if found.others else None,
        Reason("expired", found.counts["expired"]) if found.counts.get("expired") else None,
        Reason("gap") if found.gap >= policy.verify_after else None,
        Reason("clock") if found.is_clock_odd else None,
    ]
    return tuple(reason for reason in reasons if reason is not None)


def _advice(found: Briefing, reasons: Sequence[Reason], policy: ResumePolicy) -> Advice:
    by_name = {reason.what: reason for reason in reasons}
    changed = by_name.get("changed", Reason("changed"))
    is_drifted = changed.n >= policy.anew_changed_min and changed.n >= policy.anew_changed_share * changed.of
    if found.gap >= policy.anew_after and (is_drifted or "breaking-drift" in by_name):
        return "start_anew"
    return "verify" if reasons else "continue"


def _all_keys(found: Briefing) -> Iterable[str]:
    yield from (f.key for f in found.findings)
    yield from (_other_key(f) for f in found.others)
    yield from (_unknown_key(e) for e in found.unknown)
    yield _changes_key(found.changes)


def _other_key(foreign: Foreign) -> str:
    return f"other:{foreign.session}:{foreign.effect.id}:{foreign.effect.phase}"


def _unknown_key(effect: Effect) -> str:
    return f"unknown:{effect.id}"


def _changes_key(changes: Sequence[Change]) -> str:
    return f"config:{(digest_of([list(change) for change in changes]) or '')[:16]}"


def _effect_facts(effect: Effect) -> dict[str, Any]:
    return effect.body() | {"run": effect.run, "seq": effect.seq, "at": None if effect.at is None else iso(effect.at)}


def _effect_from(facts: Mapping[str, Any]) -> Effect:
    at = facts["at"]
    return replace(Effect.from_body(facts), run=facts["run"], seq=facts["seq"], at=None if at is None else from_iso(at))


class _Note:
    """The texts of a briefing in one language."""

    def __init__(self, found: Briefing, language: str) -> None:
        self._found = found
        self._language = language
        self._words = phrases.phrases(language)

    def for_model(self) -> str:
        found, words = self._found, self._words
        now = phrases.local(found.now, found.zone)
        weekday = words.weekdays[found.now.astimezone(phrases.zone(found.zone)).weekday()]
        lines = [words.heading.format(now=f"{weekday} {now}", zone=found.zone), self._gap(), *self._readings()]
        lines += self._findings([f for f in found.findings if f.key not in found.told])
        lines += self._effects(found.told)
        if found.changes and _changes_key(found.changes) not in found.told:
            lines += self._drift()
        lines += self._waiting()
        lines.append(words.advice[self._advice_name()])
        return "\n".join(line for line in lines if line)

    def for_person(self) -> str:
        found, words = self._found, self._words
        lines = [self._gap(), *self._readings(), *self._findings(found.findings), *self._effects(frozenset())]
        lines += self._drift() if found.changes else []
        lines += self._waiting()
        size = words.size if found.tokens else words.size_entries
        lines.append(size.format(entries=f"{found.entries:,}", tokens=f"{found.tokens:,}") + words.end)
        reasons = words.join.join(self._reason(reason) for reason in found.reasons)
        lines.append(words.short_advice[found.advice] + (words.because.format(reasons=reasons) if reasons else ""))
        return "\n".join(line for line in lines if line)

    def _advice_name(self) -> str:
        has_ground = {reason.what for reason in self._found.reasons} - {"gap", "clock"}
        return "verify_time" if self._found.advice == "verify" and not has_ground else self._found.advice

    def _gap(self) -> str:
        found, words = self._found, self._words
        at = phrases.local(found.last_active_at, found.zone)
        if found.is_clock_odd:
            return words.clock_back.format(at=at) + words.end
        day = {0: words.today, 1: words.yesterday}.get(found.days, words.days_ago).format(n=f"{found.days:,}")
        return words.gap.format(gap=phrases.span(found.gap, words), at=at, day=day) + words.end

    def _readings(self) -> list[str]:
        found, words = self._found, self._words
        parts = [words.counts[o].format(n=f"{found.counts[o]:,}") for o in OUTCOMES if found.counts.get(o)]
        told = sum(f.key in found.told for f in found.findings)
        parts += [words.told_before.format(n=f"{told:,}")] if told else []
        left_out = words.left_out if found.is_complete else words.left_out_at_least
        parts += [left_out.format(n=f"{found.left_out:,}")] if found.left_out or not found.is_complete else []
        lines = (
            [words.readings.format(n=f"{found.checked:,}", parts=words.join.join(parts)) + words.end] if parts else []
        )
        if found.unreadable:
            lines.append(words.unreadable.format(n=f"{found.unreadable:,}") + words.end)
        return lines

    def _findings(self, findings: Sequence[Finding]) -> list[str]:
        drifted = [f for f in findings if f.outcome in _DRIFTED]
        expired = [f for f in findings if f.outcome == "expired"]
        lines = [self._finding(f) for f in drifted[:ITEMS_MAX]] + self._rest(len(drifted))
        lines += [self._finding(f) for f in expired[:ITEMS_MAX]] + self._rest(len(expired))
        unproven = dict.fromkeys(clean(f.observation.source) for f in findings if f.outcome == "unverifiable")
        if unproven:
            names = self._names(list(unproven))
            lines.append(self._words.unverifiable.format(sources=names))
        return lines

    def _finding(self, finding: Finding) -> str:
        found, words, read = self._found, self._words, finding.observation
        line: str = getattr(words, finding.outcome)
        told = line.format(
            source=clean(read.source, 120),
            at=phrases.local(read.observed_at, found.zone),
            age=phrases.span(read.age(found.now), words),
            versions=self._versions(read.version, finding.now),
        )
        return told + self._again(read) if finding.outcome != "denied" else told

    def _versions(self, old: Version | None, new: Version | None) -> str:
        if old is None or new is None:
            return ""
        return f"{phrases.kind_name(new.kind, self._words)} {shown(old)} → {shown(new)}"

    def _again(self, read: Observation) -> str:
        if read.tool:
            arguments = "" if read.arguments is None else canonical(read.arguments)
            return self._words.again.format(call=f"{clean(read.tool)}({clean(arguments, CALL_MAX)})")
        return self._words.again_by_call.format(call=clean(read.call)) if read.call else ""

    def _effects(self, told: frozenset[str]) -> list[str]:
        found, words = self._found, self._words
        lines: list[str] = []
        unknown = [e for e in found.unknown if _unknown_key(e) not in told]
        if unknown:
            lines.append(words.unknown_heading.format(n=f"{len(unknown) + found.more.get('unknown', 0):,}"))
            lines += [self._effect(words.unknown, e) for e in unknown[-ITEMS_MAX:]] + self._rest(len(unknown))
        others = [f for f in found.others if _other_key(f) not in told]
        if others:
            lines.append(words.others_heading.format(n=f"{len(others) + found.more.get('others', 0):,}"))
            lines += [self._effect(words.other, f.effect, f.session) for f in others[-ITEMS_MAX:]]
            lines += self._rest(len(others))
        return lines

    def _effect(self, line: str, effect: Effect, session: str = "") -> str:
        return line.format(
            at="?" if effect.at is None else phrases.local(effect.at, self._found.zone),
            name=clean(effect.name),
            source=clean(effect.source, 120) if effect.source else "–",
            key=clean(effect.key) if effect.key else "–",
            session=clean(session, 40),
            phase=self._words.phases[effect.phase],
        )

    def _drift(self) -> list[str]:
        changes = self._found.changes
        lines = [f"- {change.text(self._language)}" for change in changes[:ITEMS_MAX]]
        return [self._words.drift_heading, *lines, *self._rest(len(changes))]

    def _waiting(self) -> list[str]:
        lines = []
        for name, line in (("approvals", self._words.approvals), ("calls", self._words.calls)):
            calls: tuple[OpenCall, ...] = getattr(self._found, name)
            if calls:
                names = self._names([clean(call.tool, 40) for call in calls])
                n = f"{len(calls) + self._found.more.get(name, 0):,}"
                lines.append(line.format(n=n, names=names) + self._words.end)
        return lines

    def _names(self, names: Sequence[str]) -> str:
        shown = self._words.name_join.join(names[:NAMES_MAX])
        return shown + (" …" if len(names) > NAMES_MAX else "")

    def _rest(self, n: int) -> list[str]:
        return [self._words.more.format(n=f"{n - ITEMS_MAX:,}")] if n > ITEMS_MAX else []

    def _reason(self, reason: Reason) -> str:
        gap = phrases.span(self._found.gap, self._words)
        return self._words.reasons[reason.what].format(n=f"{reason.n:,}", of=f"{reason.of:,}", gap=gap)


def shown(version: Version) -> str:
    """(inner) A version in at most 80 characters; long runs of hex digits by their beginning."""
    return clean(_HASH.sub(lambda found: f"{found[0][:10]}…", version.value))
