"""
Tools that read and write the world, guarded: readings are recorded and stamped, writes need seen ground.

    @reads("warehouse:sales.orders")
    def query_sales(region): ...

    @writes("wiki:{page}", precondition="if_match")
    def publish(page, text, if_match=None): ...

    with session.run() as run, using(run, sources):
        query_sales("East China")          # recorded with its version; the result carries the stamp
        publish("report-8", text)          # StaleRead unless the session has seen the version that holds

What the model believes does not matter here: the version is compared outside of it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from . import ground, log, phrases
from .errors import Contended, Invalid, StaleRead
from .ledger import (
    ARGUMENTS_MAX_BYTES,
    Effect,
    Known,
    Live,
    Observation,
    Version,
    canonical,
    digest_of,
    effect_key,
    known,
)
from .ledger import source_ref as _ref
from .model import Draft, Hit, from_us, new_id
from .outcome import UNKNOWN_ON, leaves_unknown, told_of
from .phrases import Phrases, clean
from .world import Answer, Denied, Finding, Gone, Sources, Unanswered, check, look

P = ParamSpec("P")
R = TypeVar("R")

WritePolicy = Literal["deny", "ask", "allow"]
"""What happens to a write on ground that the session has not seen: refused, asked for, done and said."""

RETRIES = 2
"""How often a write to one source is refused as stale in one run before a person must decide."""

SHOWN_MAX = 5
"""How many stale sources that a write rests on all the same are named in its result."""

_KNOWN_MAX = 1_000


class Ledger(Protocol):
    """What a guard needs of a run."""

    @property
    def session(self) -> str:
        """Id of the session."""

    @property
    def sources(self) -> Sources:
        """How sources are looked at."""

    @property
    def principal(self) -> str | None:
        """As whom."""

    def now(self) -> datetime:
        """The store's clock."""

    def check(self) -> None:
        """Raise LeaseLost when this run must not write any more."""

    def observe(self, observation: Observation) -> None:
        """Record a reading."""

    def seen(self, source: str, *, in_run: bool = False) -> Known | None:
        """The version of the source that the session knows (``in_run``: that this run has read), or None."""

    def readings(self) -> Live:
        """The newest reading of each source that the session stands on."""

    def start(self, effect: Effect) -> None:
        """Record an effect before it happens; LeaseLost when this run was overtaken."""

    def end(self, effect: Effect) -> None:
        """Record what came of it, even when this run was overtaken meanwhile."""


@dataclass
class _Active:
    ledger: Ledger
    call: str | None
    language: str
    refusals: Counter[str] = field(default_factory=Counter)


_active: ContextVar[_Active | None] = ContextVar("segue_guard", default=None)


@contextmanager
def using(
    run: Any, sources: Sources | None = None, *, principal: str | None = None, language: str = "en"
) -> Iterator[None]:
    """
    Inside, guarded tools record into this run, and are guarded by it.

    Args:
        run: A ``Run``, or any ``Ledger``.
        sources: How sources are looked at; None: as the session was resumed with.
        principal: As whom; None: the scope's user.
        language: Of the stamps.

    It holds for this thread or task and for what is started from it with its context (``asyncio`` tasks
    and ``asyncio.to_thread``; not a bare ``threading.Thread``).
    """
    ledger = run if hasattr(run, "seen") else RunLedger(run, sources, principal)
    token = _active.set(_Active(ledger, None, language))
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def calling(call: str) -> Iterator[None]:
    """Inside, guarded tools are known to be the model's call of this id. Adapters wrap each call in it."""
    outer = _active.get()
    if outer is None:
        yield
        return
    token = _active.set(_Active(outer.ledger, call, outer.language, outer.refusals))
    try:
        yield
    finally:
        _active.reset(token)


def record(observation: Observation) -> Observation:
    """
    Record a reading in the run that is in use, as of the call under way; outside of ``using`` nothing is recorded.

    Returns:
        What was recorded; its ``stamp()`` is the line to hand to the model beside the value.
    """
    active = _active.get()
    if active is None:
        return observation
    call, principal = observation.call or active.call, observation.principal or active.ledger.principal
    filled = replace(observation, call=call, principal=principal)
    active.ledger.observe(filled)
    return filled


class RunLedger:
    """A run as a ``Ledger``."""

    def __init__(self, run: Any, sources: Sources | None = None, principal: str | None = None) -> None:
        self._run = getattr(run, "sync", run)
        self.sources: Sources = sources or self._run.sources or Sources()
        self.principal: str | None = principal or self._run.log.scope.user

    @property
    def session(self) -> str:
        """Id of the session."""
        return str(self._run.session_id)

    def now(self) -> datetime:
        """The clock of the run's store."""
        return from_us(self._run.log.engine.store.now_us())

    def check(self) -> None:
        """See ``Run.check``."""
        self._run.check()

    def observe(self, observation: Observation) -> None:
        """Append the observation, fenced."""
        self._run.append_drafts((_entry("observation", observation),))

    def seen(self, source: str, *, in_run: bool = False) -> Known | None:
        """What the log says of the source, inherited entries of a fork included."""
        hits: list[Hit] = self._run.log.by_ref(_ref(source), reverse=True, limit=_KNOWN_MAX)
        mine = (hit.entry for hit in hits if not in_run or hit.entry.run == self._run.id)
        return known(mine, source)

    def readings(self) -> Live:
        """What the log says of all sources, up to the last cut or named by its summary."""
        log_, info = self._run.log, self._run.log.info()
        found = ground.find(log_, info.format, info.head)
        return ground.live(found, ground.records(log_, info.head), by="source")

    def start(self, effect: Effect) -> None:
        """Append the effect's first phase, fenced."""
        self._run.append_drafts((_entry("effect", effect),))

    def end(self, effect: Effect) -> None:
        """Append the effect's end, whoever holds the session by now."""
        self._run.append_fact(_entry("effect", effect))


def _entry(kind: str, record: Observation | Effect) -> Draft:
    return log.draft(record.body(), kind=kind, format="segue", origin="tool", refs=record.refs)


def reads(
    source: str | Callable[..., str],
    *,
    version: Callable[[Any], object] | None = None,
    max_age: timedelta | None = None,
    collection: bool = False,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Record what a tool reads, and stamp its result with the source, the time and the version.

    Args:
        source: The source's name; ``{argument}`` stands for an argument of the tool. Or a callable of
            the tool's arguments.
        version: Takes the version out of the result. None: the source is looked at, before the tool
            runs, so that a change in between is told later rather than missed.
        max_age: How long the reading may be relied on unchecked.
        collection: True when rows may be added to what was read.
        name: The tool's name for the model; None: the function's.

    The stamp is a line after a str, a text block after a list of blocks, a key ``observed`` in a dict;
    other results are handed on as they are. Outside of ``using`` the tool runs as it is, unrecorded.
    The tool may be plain or async.
    """

    def guarded(tool: Callable[P, R]) -> Callable[P, R]:
        return _wrapped(tool, _Reading(_Tool(tool, source, name), version, max_age, collection))

    return guarded


def writes(
    source: str | Callable[..., str],
    *,
    precondition: str | None = None,
    rests_on: Sequence[str] | Callable[..., Iterable[str]] = (),
    version: Callable[[Any], object] | None = None,
    policy: WritePolicy | Callable[[str], WritePolicy] = "deny",
    ask: Callable[[StaleRead], bool] | None = None,
    in_run: bool = False,
    unknown_on: tuple[type[BaseException], ...] = UNKNOWN_ON,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Let a tool write only on ground that the session has seen, and record the write before it happens.

    The version that holds is compared with the one the session knows immediately before the tool runs.

    Args:
        source: The source's name, as in ``reads``.
        precondition: The tool's argument that takes the value of the version seen (None: there must be
            nothing yet), for a conditional write: ``If-Match``, ``WHERE version = ?``, ``replace_file``. A
            tool that loses the race raises ``StaleRead``. None: the other side has no conditional
            write, and the result says that a window remains.
        rests_on: Further sources that what is written rests on: each must have been read, and still be as it
            was read. A name that ends in ``*`` stands for all sources read that begin so. Or a callable of the
            tool's arguments that gives them.
        version: Takes the version that the write made out of the result, so that the session knows it.
            None: with a precondition the source must be read again before the next write; without,
            the source is looked at after the write (the same window).
        policy: For unseen ground: ``deny``, ``ask`` or ``allow``; or a callable of the source.
        ask: Asked under ``ask`` with what was found; True: write all the same.
        in_run: True: the version must have been read in this very run.
        unknown_on: Errors after which nobody knows whether it was written; like a crash, they leave the
            effect's outcome unknown. So does a cancellation.
        name: The effect's name; None: the function's.

    Raises (when the tool is called):
        StaleRead: Not written. Read the source again, then decide again.
        Contended: Not written, for the third time in this run: a person must decide.
        LeaseLost: A newer run holds the session; this one must not write.
        Invalid: No run is in use.
    """

    def guarded(tool: Callable[P, R]) -> Callable[P, R]:
        writing = _Writing(_Tool(tool, source, name), precondition, rests_on, version, policy, ask, in_run, unknown_on)
        return _wrapped(tool, writing)

    return guarded


# One guard around one call: before, then the tool, then after.


class _Guard(Protocol):
    def before(self, active: _Active | None, arguments: dict[str, Any]) -> Any: ...
    def after(self, ticket: Any, result: Any) -> Any: ...
    def failed(self, ticket: Any, error: BaseException) -> BaseException: ...
    @property
    def tool(self) -> _Tool: ...


def _wrapped(tool: Callable[P, R], guard: _Guard) -> Callable[P, R]:
    if inspect.iscoroutinefunction(tool):
        return cast("Callable[P, R]", _wrapped_async(tool, guard))

    @functools.wraps(tool)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = guard.tool.bound(args, kwargs)
        ticket = guard.before(_active.get(), arguments)
        try:
            result = guard.tool.run(arguments)
        except BaseException as error:
            told = guard.failed(ticket, error)
            if told is error:
                raise
            raise told from error
        return cast("R", guard.after(ticket, result))

    return call


def _wrapped_async(tool: Callable[..., Awaitable[Any]], guard: _Guard) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> Any:
        arguments = guard.tool.bound(args, kwargs)
        ticket = await asyncio.to_thread(guard.before, _active.get(), arguments)
        try:
            result = await guard.tool.run(arguments)  # cancelled here, a write stays "unknown": it may be done
        except Exception as error:
            told = await asyncio.shield(asyncio.to_thread(guard.failed, ticket, error))
            if told is error:
                raise
            raise told from error
        return await asyncio.shield(asyncio.to_thread(guard.after, ticket, result))

    return call


class _Tool:
    """A tool's function, its name, and the source that a call of it is about."""

    def __init__(self, function: Callable[..., Any], source: str | Callable[..., str], name: str | None) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._source = source
        self.name = name or str(getattr(function, "__name__", "tool"))

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, as a mutable dict; TypeError where the function would raise it."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def run(self, arguments: Mapping[str, Any]) -> Any:
        bound = inspect.BoundArguments(self._signature, dict(arguments))
        return self._function(*bound.args, **bound.kwargs)

    def source(self, arguments: Mapping[str, Any]) -> str:
        if callable(self._source):
            return self._source(**arguments)
        # Only whole arguments, as text: no attribute of theirs, no format of theirs.
        return self._source.format_map({name: str(value) for name, value in arguments.items()})

    def takes(self, name: str) -> bool:
        return name in self._signature.parameters

    def _is_default(self, name: str, value: object) -> bool:
        default = self._signature.parameters[name].default
        return value is default or (type(value) is type(default) and bool(value == default))

    def plain(self, arguments: Mapping[str, Any], without: str | None = None) -> Any:
        """The arguments as JSON, to call it again, defaults left out; None where they are no JSON or too large."""
        shown = {k: v for k, v in arguments.items() if k not in ("self", without) and not self._is_default(k, v)}
        try:
            return shown if len(canonical(shown).encode()) <= ARGUMENTS_MAX_BYTES else None
        except (Invalid, UnicodeEncodeError):
            return None


@dataclass
class _ReadTicket:
    active: _Active
    source: str
    arguments: Any
    version: Version | None


@dataclass
class _Reading:
    tool: _Tool
    version: Callable[[Any], object] | None
    max_age: timedelta | None
    collection: bool

    def before(self, active: _Active | None, arguments: dict[str, Any]) -> _ReadTicket | None:
        if active is None:
            return None
        source = self.tool.source(arguments)
        held: Version | None = None
        if self.version is None:
            answer = look(source, active.ledger.sources, principal=active.ledger.principal)
            held = answer if isinstance(answer, Version) else None
        return _ReadTicket(active, source, self.tool.plain(arguments), held)

    def failed(self, ticket: _ReadTicket | None, error: BaseException) -> BaseException:  # noqa: ARG002 - as _Guard
        return error

    def after(self, ticket: _ReadTicket | None, result: Any) -> Any:
        if ticket is None:
            return result
        held = ticket.version if self.version is None else _version_of(self.version, result)
        observation = Observation(
            ticket.source,
            held,
            digest_of(result),
            observed_at=ticket.active.ledger.now(),
            max_age=self.max_age,
            tool=self.tool.name,
            arguments=ticket.arguments,
            principal=ticket.active.ledger.principal,
            call=ticket.active.call,
            collection=self.collection,
        )
        ticket.active.ledger.observe(observation)
        return stamped(result, observation.stamp(ticket.active.language), key="observed")


class _Standing(NamedTuple):
    """What a write stands on: ``held`` was found instead of the version seen, ``stale`` no longer holds; allowed."""

    held: Answer | None
    stale: tuple[str, ...]


@dataclass
class _WriteTicket:
    active: _Active
    effect: Effect
    standing: _Standing


@dataclass
class _Writing:
    tool: _Tool
    precondition: str | None
    rests_on: Sequence[str] | Callable[..., Iterable[str]]
    version: Callable[[Any], object] | None
    policy: WritePolicy | Callable[[str], WritePolicy]
    ask: Callable[[StaleRead], bool] | None
    in_run: bool
    unknown_on: tuple[type[BaseException], ...]

    def __post_init__(self) -> None:
        if self.precondition is not None and not self.tool.takes(self.precondition):
            raise Invalid(f"the tool {self.tool.name} has no argument {self.precondition!r}", where="precondition")
        if isinstance(self.rests_on, str):
            raise Invalid("rests_on takes several names: a list or a tuple", where="rests_on")

    def before(self, active: _Active | None, arguments: dict[str, Any]) -> _WriteTicket:
        if active is None:
            raise Invalid(f"{self.tool.name} is a guarded write; call it inside using(run, sources)", where="run")
        ledger, source = active.ledger, self.tool.source(arguments)
        names = tuple(self.rests_on(**arguments) if callable(self.rests_on) else self.rests_on)
        ledger.check()
        seen = ledger.seen(source, in_run=self.in_run)
        standing = self._compared(active, source, None if seen is None else seen.version, names)
        if self.precondition is not None:
            arguments[self.precondition] = _precondition(seen, standing.held)
        key = effect_key(ledger.session, name=self.tool.name, source=source, call=active.call)
        before = seen.version if seen is not None and standing.held is None else None
        effect = Effect(new_id(), self.tool.name, source=source, key=key, before=before)
        ledger.start(effect)
        is_compared = self.precondition is not None or before is None
        if standing == _Standing(None, ()) and (names or not is_compared):
            self._compare_again(active, effect, names)
        return _WriteTicket(active, effect, standing)

    def _compare_again(self, active: _Active, effect: Effect, names: tuple[str, ...]) -> None:
        """Nobody compares after us, so once more: recording the start took a moment."""
        try:
            self._compared(active, effect.source or "", effect.before, names)
        except StaleRead as stale:
            active.ledger.end(effect.then("failed", result={"error": "refused: the source changed"}))
            raise stale from None

    def _compared(self, active: _Active, source: str, seen: Version | None, names: tuple[str, ...]) -> _Standing:
        """What the write stands on, where it may be made; ``StaleRead`` where not."""
        held = self._held(active, source, seen)
        found = [] if held is None else [StaleRead(source, seen, _told(held))]
        ground_ = self._stale_ground(active.ledger, source, names) if names else []
        refused = [stale for stale in (*found, *ground_) if not self._may(stale)]
        if refused:
            first, also = refused[0], refused[1:]
            raise self._refusal(active, source, StaleRead(first.source, first.seen, first.current, also=also))
        return _Standing(held, tuple(stale.source for stale in ground_))

    def _held(self, active: _Active, source: str, seen: Version | None) -> Answer | None:
        """None when the version seen is the one that holds; else what was found."""
        now = look(source, active.ledger.sources, seen=seen, principal=active.ledger.principal)
        if seen is None and isinstance(now, Gone):
            return None  # there is nothing yet: to make it rests on nothing
        if seen is not None and isinstance(now, Version) and seen.matches(now):
            return None
        if seen is not None and isinstance(now, Unanswered) and self.precondition is not None:
            return None  # the other side compares
        return now

    def _stale_ground(self, ledger: Ledger, source: str, names: tuple[str, ...]) -> list[StaleRead]:
        """What the write rests on besides its own source, and was not read or no longer holds."""
        live = ledger.readings()
        if any(name.endswith("*") for name in names) and (live.left_out or not live.is_complete):
            return [StaleRead(names[0], None, f"not known: over {len(live.observations):,} readings cannot be checked")]
        read = {observation.source: observation for observation in live.observations}
        chosen: dict[str, Observation | None] = {}
        for name in names:
            fitting = [s for s in read if s.startswith(name[:-1])] if name.endswith("*") else [name]
            chosen |= {one: read.get(one) or _own(one, ledger.seen(one)) for one in fitting if one != source}
        if self.in_run:
            chosen = {one: seen if ledger.seen(one, in_run=True) else None for one, seen in chosen.items()}
        findings = check([one for one in chosen.values() if one], ledger.sources, principal=ledger.principal)
        stale = [_stale(finding) for finding in findings if finding.outcome != "current"]
        unseen = (one for one, seen in chosen.items() if seen is None)
        return stale + [
            StaleRead(one, None, _told(look(one, ledger.sources, principal=ledger.principal))) for one in unseen
        ]

    def _may(self, stale: StaleRead) -> bool:
        policy = self.policy(stale.source) if callable(self.policy) else self.policy
        return policy == "allow" or (policy == "ask" and self.ask is not None and self.ask(stale))

    def _refusal(self, active: _Active, source: str, stale: StaleRead) -> StaleRead:
        active.refusals[source] += 1
        if active.refusals[source] > RETRIES:
            return Contended(stale.source, stale.seen, stale.current, also=stale.also)
        return stale

    def failed(self, ticket: _WriteTicket, error: BaseException) -> BaseException:
        if not isinstance(error, StaleRead) and leaves_unknown(error, self.unknown_on):
            return error  # like a crash: it may have been written
        why = {"error": clean(told_of(error), 500)}
        try:
            ticket.active.ledger.end(ticket.effect.then("failed", result=why))
        except Exception as failure:  # noqa: BLE001 - the tool's own error says more; the outcome stays unknown
            error.add_note(f"That {self.tool.name!r} failed could not be recorded: {told_of(failure)}")
        if isinstance(error, StaleRead):
            source = ticket.effect.source or ""
            return self._refusal(ticket.active, source, StaleRead(source, error.seen, error.current))
        return error

    def after(self, ticket: _WriteTicket, result: Any) -> Any:
        ledger, source = ticket.active.ledger, ticket.effect.source or ""
        try:
            made = self._made(ledger, source, result)
        except BaseException:
            ledger.end(ticket.effect.then("completed"))  # it was written, whatever its result says of the version
            raise
        ledger.end(ticket.effect.then("completed", version=made))
        ticket.active.refusals.pop(source, None)
        return stamped(result, self._stamp(ticket, made), key="written")

    def _made(self, ledger: Ledger, source: str, result: Any) -> Version | None:
        if self.version is not None:
            return _version_of(self.version, result)
        if self.precondition is not None:
            return None  # a look now may find the version of a later writer: it must not count as seen
        now = look(source, ledger.sources, principal=ledger.principal)
        return now if isinstance(now, Version) else None

    def _stamp(self, ticket: _WriteTicket, made: Version | None) -> str:
        words: Phrases = phrases.phrases(ticket.active.language)
        at, source = phrases.utc_stamp(ticket.active.ledger.now()), clean(ticket.effect.source, 120)
        line = words.written_bare.format(at=at, source=source)
        if made is not None:
            shown = f"{phrases.kind_name(made.kind, words)} {clean(made.value)}"
            line = words.written.format(at=at, source=source, version=shown)
        held, stale = ticket.standing
        if held is not None:
            line += " " + words.overwritten.format(version=clean(_told(held)))
        if stale:
            names = words.name_join.join(clean(one) for one in stale[:SHOWN_MAX])
            line += " " + words.stale_ground.format(n=f"{len(stale):,}", sources=names)
        return line if self.precondition is not None else f"{line} {words.window}"


def stamped(result: Any, line: str, *, key: str) -> Any:
    """A tool's result with a line for the model: after a str or a list of blocks, under a key of a dict."""
    if isinstance(result, str):
        return f"{result}\n{line}" if result else line
    if isinstance(result, list) and result and all(isinstance(b, Mapping) and "type" in b for b in result):
        return [*result, {"type": "text", "text": line}]
    if isinstance(result, dict) and key not in result:
        return {**result, key: line}
    return result


def _own(source: str, seen: Known | None) -> Observation | None:
    """What the session wrote itself and never read."""
    return None if seen is None else Observation(source, seen.version)


def _stale(finding: Finding) -> StaleRead:
    now = str(finding.now) if finding.now else f"{finding.outcome} ({finding.reason})".replace(" ()", "")
    return StaleRead(finding.observation.source, finding.observation.version, now)


def _precondition(seen: Known | None, held: Answer | None) -> str | None:
    if isinstance(held, Version):
        return held.value  # allowed to write over it: over this one and no later one
    return None if seen is None or held is not None else seen.version.value


def _version_of(take: Callable[[Any], object], result: Any) -> Version | None:
    value = take(result)
    return None if value is None else Version.of(value)


def _told(answer: Answer) -> str:
    if isinstance(answer, Version):
        return str(answer)
    word = {Gone: "gone", Denied: "denied", Unanswered: "unverifiable"}[type(answer)]
    return f"{word} ({answer.reason})" if answer.reason else word
