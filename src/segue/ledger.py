"""
The ledger: what the agent read of the world and what it did to it, and which of that still counts.

Observations and effects are entries of the log. They are parsed strictly, since they may come from
an import or another version; what cannot be understood is counted, never guessed at.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from . import codec, phrases
from .errors import Invalid
from .model import NAME_MAX_BYTES, Entry, Hit, check_name, from_us, new_id, to_us
from .outcome import UNKNOWN_ON, leaves_unknown  # noqa: F401 - they are named here, too

if TYPE_CHECKING:
    from .log import Log

SOURCE_MAX_BYTES = 2_000
"""Longest name of a source, in UTF-8 bytes."""

VERSION_MAX = 256
"""Longest value of a version, in characters. ``Version.of`` folds longer ones to their SHA-256."""

ARGUMENTS_MAX_BYTES = 64 * 1024
"""Largest arguments kept with an observation, encoded. Larger ones stay with the call they belong to."""

LIVE_MAX = 500
"""Most observations that are re-checked on one resume; the newest."""

SCAN_MAX = 20_000
"""Most ledger entries that are looked through on one resume; the newest."""

ENDS_MAX = 100
"""Most effects that a fork shares whose ends are looked for in its parent; the newest."""

Phase = Literal["started", "completed", "failed"]
_EFFECT_ID_MAX_BYTES = NAME_MAX_BYTES - len("effect:")
_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_PHASES = frozenset({"started", "completed", "failed"})


@dataclass(frozen=True, slots=True)
class Version:
    """
    What tells one state of a source from another. Equal versions are compared within one kind only.

    Args:
        kind: How it was made: ``etag``, ``last-modified``, ``sha256``, ``watermark``,
            ``count+digest``, ``git``, ``value`` … 1 to 40 characters.
        value: At most 256 printable characters.
        hint: What lets the same probe answer faster next time (a size and mtime); never compared.

    Raises:
        Invalid: Empty, too long, or not printable. ``Version.of`` makes one from any plain value.
    """

    kind: str
    value: str
    hint: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name, limit in (("kind", 40), ("value", VERSION_MAX), ("hint", VERSION_MAX)):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > limit or not text.isprintable():
                raise Invalid(
                    f"a version's {name} must be at most {limit} printable characters; use Version.of(value)",
                    where=name,
                )
        if not self.kind or not self.value:
            raise Invalid("a version needs a kind and a value", where="version")

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"

    def matches(self, other: Version) -> bool | None:
        """True when both name the same state, False when not, None when the kinds cannot be compared."""
        if self.kind != other.kind:
            return None
        if self.kind == "etag":  # RFC 9110 §8.8.3.2: a cache compares weakly
            return self.value.removeprefix("W/") == other.value.removeprefix("W/")
        return self.value == other.value

    @classmethod
    def of(cls, value: object, kind: str = "value") -> Version:
        """
        A version from a plain value: str, int, float, bytes, date, datetime, Decimal, UUID, list or dict.

        Values over 256 characters, or not printable, are folded to ``sha256:…`` of the same kind.

        Raises:
            Invalid: None, NaN, an object, or over 64 MiB.
        """
        if isinstance(value, Version):
            return value
        return cls(kind, _folded(_plain(value)))


def _plain(value: object) -> str | bytes:
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, bool | int | Decimal | UUID):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else from_us(to_us(value))).isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple | dict):
        try:
            return _CANONICAL.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"a version cannot be made of this {type(value).__name__}: {error}") from error
    raise Invalid(f"a version cannot be made of {type(value).__name__}; return a str, number, time, bytes or JSON")


def _folded(plain: str | bytes) -> str:
    if isinstance(plain, str) and 0 < len(plain) <= VERSION_MAX and plain.isprintable():
        return plain
    if len(plain) > 64 * 1024 * 1024:
        raise Invalid("a version over 64 MiB is refused; return a digest of it")
    raw = plain if isinstance(plain, bytes) else plain.encode("utf-8", "surrogatepass")
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Gone:
    """The source does not exist any more."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """The principal may not read the source now."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The probe cannot tell: why, in a few words."""

    reason: str = ""


Answer = Version | Gone | Denied | Unanswered


@runtime_checkable
class Probe(Protocol):
    """Looks at a source and tells the version that holds now. ``segue.probes`` has ready ones."""

    def read(self, source: str, *, principal: str | None, seen: Version | None) -> Answer | Awaitable[Answer]:
        """
        Look at the source, on a thread of the check's own; a coroutine runs in an event loop of its own.

        Args:
            source: Its name, as the observation has it. It may come from untrusted text.
            principal: The user who resumes; look with that user's rights.
            seen: The version the session knows: answer in its kind where that is possible.

        Returns:
            The version, ``Gone``, ``Denied``, or ``Unanswered``. An exception counts as ``Unanswered``.
        """


@dataclass(frozen=True, slots=True)
class Observation:
    """
    One reading of a source.

    Args:
        source: The name of what was read (``warehouse:sales.orders``).
        version: The state it was in, or None when nothing tells it.
        digest: SHA-256 of the value that was read (hex), or None; ``digest_of`` makes it.
        observed_at: When, as claimed by who read it (aware; kept as UTC).
        max_age: How long it may be relied on unchecked, or None.
        tool, arguments: What reads it again; arguments are JSON, at most 64 KiB.
        principal: As whom it was read.
        call: The id of the tool call.
        collection: True when the reading is a part of a set to which rows may be added.
        seq, stored_at: The entry's, once it is stored; not part of the body.

    Raises:
        Invalid: A value that could not be stored and read back.
    """

    source: str
    version: Version | None
    digest: str | None = None
    observed_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    max_age: timedelta | None = None
    tool: str | None = None
    arguments: Any = None
    principal: str | None = None
    call: str | None = None
    collection: bool = False
    seq: int = field(default=0, compare=False)
    stored_at: datetime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_source(self.source)
        if self.version is not None and not isinstance(self.version, Version):
            raise Invalid("version must be a Version or None; Version.of(value) makes one", where="version")
        if not isinstance(self.observed_at, datetime) or self.observed_at.tzinfo is None:
            raise Invalid("observed_at must be an aware datetime such as datetime.now(UTC)", where="observed_at")
        if not 1900 <= self.observed_at.year <= 9000:  # so that every zone can show it
            raise Invalid("observed_at must lie between the years 1900 and 9000", where="observed_at")
        object.__setattr__(self, "observed_at", from_us(to_us(self.observed_at)))
        if self.max_age is not None and not (isinstance(self.max_age, timedelta) and self.max_age >= timedelta()):
            raise Invalid("max_age must be a timedelta that is not negative", where="max_age")
        for name in ("digest", "tool", "principal", "call"):
            _check_text(getattr(self, name), name)
        if self.arguments is not None and (len(codec.encode(self.arguments, where="arguments")) > ARGUMENTS_MAX_BYTES):
            raise Invalid(
                f"arguments over {ARGUMENTS_MAX_BYTES:,} bytes; leave them out and give call=", where="arguments"
            )

    @property
    def refs(self) -> tuple[str, ...]:
        """The refs of its entry."""
        return ("observation", source_ref(self.source))

    @property
    def reading(self) -> tuple[str, str | None, str]:
        """What a later reading must equal to supersede this one: source, tool and arguments."""
        return (self.source, self.tool, canonical(self.arguments))

    def body(self) -> dict[str, Any]:
        """The body of its entry: plain JSON values."""
        body: dict[str, Any] = {
            "source": self.source,
            "kind": None if self.version is None else self.version.kind,
            "version": None if self.version is None else self.version.value,
            "digest": self.digest,
            "observed_at": iso(self.observed_at),
            "max_age_seconds": None if self.max_age is None else self.max_age.total_seconds(),
            "tool": self.tool,
            "arguments": self.arguments,
            "principal": self.principal,
            "call": self.call,
        }
        if self.version is not None and self.version.hint:
            body["hint"] = self.version.hint
        if self.collection:
            body["collection"] = True
        return body

    @classmethod
    def from_body(cls, body: Any, *, seq: int = 0, stored_at: datetime | None = None) -> Observation:
        """
        The observation of an entry's body; unknown keys are passed over.

        Args:
            body: The body's value.
            seq: The entry's.
            stored_at: The entry's store time.

        Raises:
            Invalid: It is not the body of an observation.
        """
        if not isinstance(body, Mapping):
            raise Invalid("the body of an observation is an object", where="body")
        seconds = body.get("max_age_seconds")
        return cls(
            source=body.get("source", ""),
            version=_version(body),
            digest=body.get("digest"),
            observed_at=from_iso(body.get("observed_at")),
            max_age=None if seconds is None else _duration(seconds),
            tool=body.get("tool"),
            arguments=body.get("arguments"),
            principal=body.get("principal"),
            call=body.get("call"),
            collection=body.get("collection") is True,
            seq=seq,
            stored_at=stored_at,
        )

    @classmethod
    def from_entry(cls, entry: Entry) -> Observation:
        """The observation that an entry holds, with the entry's seq and store time; ``Invalid`` if it holds none."""
        return cls.from_body(entry.json(), seq=entry.seq, stored_at=entry.created_at)

    def stamp(self, language: str = "en") -> str:
        """One absolute line for the model, written once beside the value; it never needs to change."""
        words = phrases.phrases(language)
        at, source = phrases.utc_stamp(self.observed_at), phrases.clean(self.source, 120)
        if self.version is None:
            return words.observed_bare.format(at=at, source=source)
        shown = f"{phrases.kind_name(self.version.kind, words)} {phrases.clean(self.version.value)}"
        return words.observed.format(at=at, source=source, version=shown)

    def age(self, now: datetime) -> timedelta:
        """How old it is at most: by the claimed time or by the store's, whichever is earlier."""
        return max(now - moment for moment in (self.observed_at, self.stored_at) if moment is not None)


@dataclass(frozen=True, slots=True)
class Effect:
    """
    One phase of a change to the world. ``started`` is stored before it happens, so a crash leaves a trace.

    Args:
        id: Names the effect; the same in all its phases.
        name: What is done (``publish_report``).
        phase: ``started``, then ``completed`` or ``failed``.
        source: What is changed, where it is a source.
        key: The idempotency key that was handed to the other side.
        result: JSON that tells the outcome: a receipt, or an error's text.
        before: The version the write rested on, where it was compared.
        version: The version that the write made, where known.
        run, seq, at: The run, seq and store time of the phase's entry; not part of the body.
    """

    id: str
    name: str
    phase: Phase = "started"
    source: str | None = None
    key: str | None = None
    result: Any = None
    before: Version | None = None
    version: Version | None = None
    run: str | None = field(default=None, compare=False)
    seq: int = field(default=0, compare=False)
    at: datetime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_name(self.id, "id")
        if len(self.id.encode()) > _EFFECT_ID_MAX_BYTES:
            raise Invalid(f"an effect's id has at most {_EFFECT_ID_MAX_BYTES} bytes", where="id")
        if not self.name:
            raise Invalid("an effect needs a name", where="name")
        for name in ("name", "key"):
            _check_text(getattr(self, name), name)
        if self.phase not in _PHASES:
            raise Invalid("the phase of an effect is started, completed or failed", where="phase")
        if self.source is not None:
            check_source(self.source)

    @property
    def refs(self) -> tuple[str, ...]:
        """The refs of its entry."""
        own = ("effect", f"effect:{self.id}")
        return own if self.source is None else (*own, source_ref(self.source))

    def body(self) -> dict[str, Any]:
        """The body of its entry: plain JSON values."""
        body: dict[str, Any] = {
            "effect": self.id,
            "name": self.name,
            "source": self.source,
            "key": self.key,
            "phase": self.phase,
        }
        if self.result is not None:
            body["result"] = self.result
        if self.before is not None:
            body["before"] = {"kind": self.before.kind, "version": self.before.value}
        if self.version is not None:
            body |= {"kind": self.version.kind, "version": self.version.value}
            if self.version.hint:
                body["hint"] = self.version.hint
        return body

    @classmethod
    def from_body(cls, body: Any) -> Effect:
        """The effect of an entry's body, or ``Invalid``; unknown keys are passed over."""
        if not isinstance(body, Mapping):
            raise Invalid("the body of an effect is an object", where="body")
        before = body.get("before")
        return cls(
            id=body.get("effect", ""),
            name=body.get("name", ""),
            phase=body.get("phase", ""),
            source=body.get("source"),
            key=body.get("key"),
            result=body.get("result"),
            before=_version(before) if isinstance(before, Mapping) else None,
            version=_version(body),
        )

    @classmethod
    def from_entry(cls, entry: Entry) -> Effect:
        """The phase that an entry holds, with the entry's run, seq and store time; ``Invalid`` if it holds none."""
        return replace(cls.from_body(entry.json()), run=entry.run, seq=entry.seq, at=entry.created_at)

    def then(self, phase: Phase, *, result: Any = None, version: Version | None = None) -> Effect:
        """The next phase of the same effect."""
        return replace(self, phase=phase, result=result, version=version, run=None, seq=0, at=None)


def effect_key(session: str, *, name: str, source: str | None = None, call: str | None = None) -> str:
    """
    An idempotency key for the other side.

    The same call of the same session gives the same key, so that a repeat after a crash is recognised.
    Without a call the key is fresh: two like actions may both be meant; it is kept in the effect's
    first entry, from which a repeat must take it.
    """
    if call is None:
        return new_id()
    return hashlib.sha256(canonical([session, name, source, call]).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Live(NamedTuple):
    """
    The observations that count now, newest first.

    ``left_out``: how many further readings were seen but are over the limit; ``is_complete`` False:
    not the whole log was looked through, there may be more. ``unreadable``: records not understood.
    """

    observations: tuple[Observation, ...]
    left_out: int = 0
    unreadable: int = 0
    is_complete: bool = True


def live(
    entries: Iterable[Entry],
    *,
    by: Literal["reading", "source"] = "reading",
    after: int = 0,
    keep: Collection[str] = (),
    limit: int = LIVE_MAX,
    scan: int = SCAN_MAX,
) -> Live:
    """
    The unsuperseded observations of a session.

    Args:
        entries: Entries of kind observation and effect, newest first (others are passed over).
        by: ``reading``: a later reading of the same source with the same tool and arguments
            supersedes an earlier one. ``source``: any later reading of the source does.
        after: The seq of the last cut; what it stands for counts only if it is in ``keep``.
        keep: Ids of entries before the cut whose readings its summary rests on.
        limit: Most observations to give.
        scan: Most entries to look through.

    Own completed writes refresh the readings before them: a reading of version A, then a write from A
    (or from no compared version) to B, counts as B. A write from another version does not: somebody
    else changed the source in between.
    """
    found: dict[object, Observation] = {}
    beyond: set[object] = set()
    writes: dict[str, list[Effect]] = {}
    unreadable = looked = 0
    for entry in entries:
        if looked >= scan:
            return Live(tuple(found.values()), len(beyond), unreadable, is_complete=False)
        if entry.seq <= after and not keep:
            break
        looked += 1
        if entry.is_hollow:
            continue
        try:
            if entry.kind == "effect":
                _remember_write(writes, Effect.from_entry(entry))
            elif entry.kind == "observation" and (entry.seq > after or entry.id in keep):
                body = entry.json()
                key = body.get("source") if by == "source" else _reading(body)
                if key in found or key in beyond:
                    continue  # superseded: not worth reading further
                observation = Observation.from_body(body, seq=entry.seq, stored_at=entry.created_at)
                if len(found) < limit:
                    found[key] = _refreshed(observation, writes.get(observation.source, ()))
                else:
                    beyond.add(key)
        except (Invalid, AttributeError, TypeError):
            unreadable += 1
    return Live(tuple(found.values()), len(beyond), unreadable)


def _reading(body: Mapping[str, Any]) -> tuple[Any, Any, str]:
    return (body.get("source"), body.get("tool"), canonical(body.get("arguments")))


def _remember_write(writes: dict[str, list[Effect]], effect: Effect) -> None:
    if effect.phase == "completed" and effect.source is not None and effect.version is not None:
        writes.setdefault(effect.source, []).append(effect)


def _refreshed(observation: Observation, newest_first: Iterable[Effect]) -> Observation:
    version = observation.version
    for write in reversed(list(newest_first)):
        if write.before is None or (version is not None and version.matches(write.before)):
            version = write.version
    return observation if version is observation.version else replace(observation, version=version)


def open_effects(
    entries: Iterable[Entry],
    *,
    running: Collection[str] = (),
    scan: int = SCAN_MAX,
    log: Log | None = None,
    shared: int = 0,
) -> tuple[Effect, ...]:
    """
    Effects that started and whose end is not recorded: their outcome is unknown. Oldest first.

    Args:
        entries: Entries of kind effect, in any order (others are passed over).
        running: Ids of runs that are alive: what they started is under way, not unknown.
        scan: Most entries to look through.
        log: Where the ends of what a fork shares with its parent are looked up.
        shared: Up to which seq the entries are shared with the parent (``SessionInfo.base``).
    """
    started: dict[str, Effect] = {}
    ended: set[str] = set()
    for effect in filter(None, map(effect_of, islice(entries, scan))):
        if effect.phase == "started":
            started.setdefault(effect.id, effect)
        else:
            ended.add(effect.id)
    unknown = (e for e in started.values() if e.id not in ended and e.run not in running)
    ordered = tuple(sorted(unknown, key=lambda e: e.seq))
    if log is None:
        return ordered
    asked = [e for e in ordered if e.seq <= shared][-ENDS_MAX:]
    ended |= {e.id for e in asked if end_of(log, e)}
    return tuple(e for e in ordered if e.id not in ended)


def end_of(log: Log, effect: Effect) -> Effect | None:
    """The end of an effect that the session shares: who began it went on. Found by its ref in the scope, by no scan."""
    since_us = None if effect.at is None else to_us(effect.at)
    hits = log.engine.store.by_ref(log.scope, f"effect:{effect.id}", since_us=since_us, reverse=True, limit=ENDS_MAX)
    phases = (effect_of(hit.entry) for hit in hits)
    return next((found for found in phases if found is not None and found.phase != "started"), None)


class Known(NamedTuple):
    """The version of a source that a session has seen last, or made itself; the entry's seq and run."""

    version: Version
    seq: int
    run: str | None


def known(entries: Iterable[Entry], source: str, *, scan: int = SCAN_MAX) -> Known | None:
    """
    The version of a source that the session knows: of its newest reading, or of its own newest write.

    Args:
        entries: Entries of kind observation and effect, newest first (others are passed over), such
            as ``by_ref(source_ref(source), reverse=True)`` gives.
        source: The source; readings of others are passed over, and so are those without a version.
        scan: Most entries to look through.
    """
    for entry in islice(entries, scan):
        if entry.is_hollow or entry.kind not in ("observation", "effect"):
            continue
        try:
            found = Observation.from_entry(entry) if entry.kind == "observation" else Effect.from_entry(entry)
        except Invalid:
            continue
        if found.source != source or found.version is None:
            continue
        if isinstance(found, Observation) or found.phase == "completed":
            return Known(found.version, entry.seq, entry.run)
    return None


class Foreign(NamedTuple):
    """An effect of another session on a source that this one has read."""

    session: str
    effect: Effect


def effects_of_others(hits: Iterable[Hit], *, own: Collection[str], limit: int = 100) -> tuple[Foreign, ...]:
    """
    The latest phase of each effect in ``hits`` that belongs to none of the ``own`` sessions, oldest first.

    Args:
        hits: Entries found by ``source:`` refs, any order; other kinds are passed over.
        own: The session, and those whose entries it inherits up to the fork.
        limit: Most effects to give, the newest.
    """
    latest: dict[tuple[str, str], Foreign] = {}
    for hit in hits:
        effect = None if hit.session in own else effect_of(hit.entry)
        if effect is None:
            continue
        known = latest.get((hit.session, effect.id))
        if known is None or known.effect.seq < effect.seq:
            latest[hit.session, effect.id] = Foreign(hit.session, effect)
    ordered = sorted(latest.values(), key=lambda f: (f.effect.at or datetime.min.replace(tzinfo=UTC), f.session))
    return tuple(ordered[-limit:])


def effect_of(entry: Entry) -> Effect | None:
    """(inner) The effect of an entry, or None for what is none."""
    if entry.kind != "effect" or entry.is_hollow:
        return None
    try:
        return Effect.from_entry(entry)
    except (Invalid, ValueError):
        return None


def digest_of(value: object) -> str | None:
    """SHA-256 (hex) of a value as read: bytes and str as they are, JSON canonically; None for what is neither."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, str):
        return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    try:
        return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()
    except Invalid:
        return None


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text. ``Invalid`` for what is not JSON."""
    try:
        return _CANONICAL.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"not JSON: {error}") from error


def check_source(source: object) -> str:
    """
    A source's name: 1 to 2,000 UTF-8 bytes, no control characters. It may come from untrusted text.

    Raises:
        Invalid: Anything else.
    """
    if isinstance(source, str):
        size = len(source.encode("utf-8", "surrogatepass"))
        if 1 <= size <= SOURCE_MAX_BYTES and not _UNFIT.search(source):
            return source
    raise Invalid(
        f"a source is named by 1 to {SOURCE_MAX_BYTES:,} bytes of text without control characters", where="source"
    )


def source_ref(source: str) -> str:
    """The ref under which entries about a source are found; long names by their SHA-256."""
    ref = f"source:{source}"
    if len(ref.encode()) <= NAME_MAX_BYTES:
        return ref
    return f"source:sha256:{hashlib.sha256(source.encode()).hexdigest()}"


def iso(moment: datetime) -> str:
    """UTC, to the microsecond, as text that ``from_iso`` gives back exactly."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def from_iso(text: object) -> datetime:
    """The moment that ``iso`` wrote; ``Invalid`` for anything without a zone."""
    try:
        moment = datetime.fromisoformat(text)  # type: ignore[arg-type]
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise Invalid(f"not a time with a zone: {phrases.clean(text, 40)!r}", where="observed_at")


def _version(body: Mapping[str, Any]) -> Version | None:
    if body.get("version") is None:
        return None
    return Version(body.get("kind", ""), body["version"], body.get("hint") or "")


def _duration(seconds: object) -> timedelta:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Invalid("max_age_seconds must be a number", where="max_age_seconds")
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise Invalid("max_age_seconds is out of range", where="max_age_seconds") from error


def _check_text(text: object, what: str) -> None:
    if text is None:
        return
    if not isinstance(text, str) or len(text) > 500 or _SURROGATE.search(text):
        raise Invalid(f"{what} must be a str of at most 500 characters", where=what)
