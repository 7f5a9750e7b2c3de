"""
A resumed session is not a resumed world: which of the readings that it rests on still hold.

``Sources`` says how each source is looked at, ``check`` looks at all of them at once within a time
budget. What does not answer is unverifiable; it is never taken to be unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from . import phrases
from .errors import SegueError
from .ledger import (
    Answer,
    Denied,
    Effect,
    Foreign,
    Gone,
    Known,
    Live,
    Observation,
    Probe,
    Unanswered,
    Version,
    check_source,
    digest_of,
    effect_key,
    effects_of_others,
    known,
    live,
    open_effects,
    source_ref,
)

__all__ = [
    "OUTCOMES",
    "Answer",
    "Denied",
    "Effect",
    "Finding",
    "Foreign",
    "Gone",
    "Known",
    "Live",
    "Observation",
    "Outcome",
    "Probe",
    "Sources",
    "Unanswered",
    "Version",
    "check",
    "digest_of",
    "effect_key",
    "effects_of_others",
    "known",
    "live",
    "look",
    "open_effects",
    "source_ref",
]

Outcome = Literal["current", "changed", "gone", "denied", "expired", "unverifiable"]
OUTCOMES: tuple[Outcome, ...] = ("changed", "gone", "denied", "expired", "unverifiable", "current")
"""All outcomes, the most telling first."""

THREADS_MAX = 32
"""Most probes of one check that run at a time."""

STRANDED_MAX = 128
"""Most probe threads of this process, hanging ones included; beyond, probes are not started."""

REASON_MAX = 160
"""Longest reason of a finding, in characters."""

BUDGET = timedelta(seconds=2)
"""How long a check waits for probes, unless the caller says otherwise."""

_K = TypeVar("_K", bound=Hashable)
_log = logging.getLogger("segue.world")
_CLOCK_SLACK = timedelta(minutes=1)


class Sources:
    """
    How each source is looked at.

    Args:
        roots: Folders in which ``file:`` sources may be looked at. None: no file is ever opened,
            since names of sources may come from untrusted text.

    ``file:`` is built in; register the rest by name or by prefix.
    """

    def __init__(self, *, roots: Iterable[str | Path] = ()) -> None:
        self._exact: dict[str, Probe] = {}
        self._prefixes: dict[str, Probe] = {}
        roots = tuple(roots)
        if roots:
            self.allow(*roots)

    def allow(self, *roots: str | Path) -> None:
        """Let ``file:`` sources inside these folders be looked at; replaces the earlier ones."""
        from .probes import File

        self._prefixes["file:"] = File(roots=roots)

    def register(self, name: str, probe: Probe | Callable[..., object]) -> None:
        """
        Look at a source with a probe, or with a callable that returns its version.

        Args:
            name: A source's name; one that ends in ``*`` or ``:`` stands for all that begin so. An exact
                name goes before a prefix, a longer prefix before a shorter; the last registration counts.
            probe: A ``Probe``, or a callable (plain or async) that takes any of ``source``,
                ``principal``, ``seen`` by name.
        """
        check_source(name)
        if not isinstance(probe, Probe):
            from .probes import Call

            probe = Call(probe)
        if name.endswith(("*", ":")):
            self._prefixes[name.removesuffix("*")] = probe
        else:
            self._exact[name] = probe

    def find(self, source: str) -> Probe | None:
        """The probe for a source, or None when nobody said how to look at it."""
        if source in self._exact:
            return self._exact[source]
        fitting = [prefix for prefix in self._prefixes if source.startswith(prefix)]
        return self._prefixes[max(fitting, key=len)] if fitting else None


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What became of one observation.

    Attributes:
        observation: What was read.
        outcome: ``current``; ``changed``; ``gone``; ``denied``; ``expired`` (its lifetime is over
            and nothing proves it current); ``unverifiable``.
        now: The version that holds, where the probe told it.
        reason: Why, in at most 160 characters; empty where the outcome says it all.
        is_told: True when a note already told the model exactly this.
    """

    observation: Observation
    outcome: Outcome
    now: Version | None = None
    reason: str = ""
    is_told: bool = False

    @property
    def key(self) -> str:
        """What makes it the same news: the reading, its version, the outcome, and the version that holds."""
        seen, now = self.observation.version, self.now
        told = [*self.observation.reading, seen and str(seen), self.outcome, now and str(now)]
        return (digest_of(told) or "")[:16]

    def facts(self) -> dict[str, Any]:
        """Plain JSON from which ``from_facts`` gives back an equal finding."""
        now = self.now
        return {
            "observation": self.observation.body() | {"seq": self.observation.seq},
            "outcome": self.outcome,
            "now": None if now is None else {"kind": now.kind, "version": now.value},
            "reason": self.reason,
            "told": self.is_told,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Finding:
        """The finding that ``facts`` tells."""
        now, body = facts["now"], facts["observation"]
        return cls(
            observation=replace(Observation.from_body(body), seq=body.get("seq", 0)),
            outcome=facts["outcome"],
            now=None if now is None else Version(now["kind"], now["version"]),
            reason=facts["reason"],
            is_told=facts["told"],
        )


class _Task(NamedTuple):
    probe: Probe
    source: str
    seen: Version | None


def check(
    observations: Iterable[Observation],
    sources: Sources,
    *,
    budget: timedelta = BUDGET,
    principal: str | None = None,
    now: datetime | None = None,
) -> list[Finding]:
    """
    Look at the source of every observation, all at once, and say which still hold.

    It blocks for at most the budget (plus moments), whatever the probes do: call it on a thread, not
    on an event loop. Each source is looked at once for each kind of version. A probe that hangs is
    left behind on its daemon thread.

    Args:
        observations: What to check, at most a few hundred; ``live`` gives them.
        sources: How to look.
        budget: How long to wait for answers.
        principal: Whose rights the probes use.
        now: The time that lifetimes are judged by; the store's clock, if given.

    Returns:
        One finding for each observation, in their order.
    """
    observed = list(observations)
    now = now or datetime.now(UTC)
    tasks: dict[tuple[str, str | None], _Task] = {}
    for observation in sorted(observed, key=lambda o: -o.seq):  # the newest version is the best hint
        probe = sources.find(observation.source)
        if probe is not None and observation.version is not None:
            tasks.setdefault(_task_key(observation), _Task(probe, observation.source, observation.version))
    answers = _ask_all(tasks, principal, budget)
    return [_judge(o, answers.get(_task_key(o)), sources, now) for o in observed]


def look(
    source: str,
    sources: Sources,
    *,
    seen: Version | None = None,
    principal: str | None = None,
    budget: timedelta = BUDGET,
) -> Answer:
    """
    Look at one source now, within the budget, whether or not it was read before.

    Returns:
        Its version, ``Gone``, ``Denied``, or ``Unanswered`` with the reason. Never an exception of the probe.
    """
    probe = sources.find(check_source(source))
    if probe is None:
        return Unanswered("nobody said how to look at this source")
    task = {(source, None): _Task(probe, source, seen)}
    return _ask_all(task, principal, budget)[source, None]


def _task_key(observation: Observation) -> tuple[str, str | None]:
    return (observation.source, None if observation.version is None else observation.version.kind)


def _judge(observation: Observation, answer: Answer | None, sources: Sources, now: datetime) -> Finding:
    if isinstance(answer, Gone | Denied):
        outcome: Outcome = "gone" if isinstance(answer, Gone) else "denied"
        return Finding(observation, outcome, reason=answer.reason)
    why = _why_not(observation, answer, sources)
    if isinstance(answer, Version) and observation.version is not None:
        same = observation.version.matches(answer)
        if same is not None:
            return Finding(observation, "current" if same else "changed", answer)
        why = f"the version was of kind {observation.version.kind}, now it is of kind {answer.kind}"
    return _by_age(observation, now, why)


def _why_not(observation: Observation, answer: Answer | None, sources: Sources) -> str:
    if isinstance(answer, Unanswered):
        return answer.reason or "the probe could not tell"
    if observation.version is None:
        return "no version was kept with the reading"
    return "nobody said how to look at this source" if sources.find(observation.source) is None else ""


def _by_age(observation: Observation, now: datetime, why: str) -> Finding:
    """Nothing proves it current; what is left is its declared lifetime."""
    why = phrases.clean(why, REASON_MAX)
    if observation.max_age is None:
        return Finding(observation, "unverifiable", reason=why)
    age = observation.age(now)
    if age > observation.max_age:
        return Finding(observation, "expired", reason=why)
    if age < -_CLOCK_SLACK:
        return Finding(observation, "unverifiable", reason="it is dated later than now: a clock was moved")
    # A reading that was declared good for a time, with no version to compare: the declaration is all there is.
    if observation.version is None:
        return Finding(observation, "current", reason="within its declared lifetime")
    return Finding(observation, "unverifiable", reason=why)


# Asking: a few daemon threads, one deadline, no waiting beyond it.

_stranded = threading.Semaphore(STRANDED_MAX)


def _ask_all(tasks: Mapping[_K, _Task], principal: str | None, budget: timedelta) -> dict[_K, Answer]:
    """Every task's answer; ``Unanswered`` for what did not come in time."""
    if not tasks:
        return {}
    asking = _Asking(tasks, principal)
    asking.wait(max(budget.total_seconds(), 0.0))
    return asking.answers


class _Asking(Generic[_K]):
    def __init__(self, tasks: Mapping[_K, _Task], principal: str | None) -> None:
        self._tasks = tasks
        self._principal = principal
        self._waiting = deque(_interleaved(tasks))
        self._came = threading.Condition()
        self._is_over = False
        self.answers: dict[_K, Answer] = {}

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._start_threads()
        with self._came:
            while len(self.answers) < len(self._tasks) and (left := deadline - time.monotonic()) > 0:
                before = len(self.answers)
                self._came.wait(min(left, seconds / 8))
                if self._waiting and len(self.answers) == before:
                    self._start_threads()  # all hang: the rest shall not starve behind them
            self._is_over = True
        self._close(seconds)

    def _close(self, seconds: float) -> None:
        for key in self._tasks.keys() - self.answers.keys():
            is_asked = key not in self._waiting
            self.answers[key] = Unanswered(f"no answer within {seconds:g} s" if is_asked else "no time left to look")
        self._waiting.clear()

    def _start_threads(self) -> None:
        for _ in range(min(len(self._waiting), THREADS_MAX)):
            if not _stranded.acquire(blocking=False):
                return
            threading.Thread(target=self._work, name="segue-probe", daemon=True).start()

    def _work(self) -> None:
        try:
            while not self._is_over:
                try:
                    key = self._waiting.popleft()
                except IndexError:
                    return
                answer = _ask(self._tasks[key], self._principal)
                with self._came:
                    if self._is_over:
                        return
                    self.answers[key] = answer
                    self._came.notify()
        finally:
            _stranded.release()


def _interleaved(tasks: Mapping[_K, _Task]) -> list[_K]:
    """The keys, probes taking turns: one server that hangs shall not hold up the others."""
    by_probe: dict[int, list[_K]] = {}
    for key, task in tasks.items():
        by_probe.setdefault(id(task.probe), []).append(key)
    rows = zip_longest(*by_probe.values(), fillvalue=None)
    return [key for row in rows for key in row if key is not None]


def _ask(task: _Task, principal: str | None) -> Answer:
    try:
        answer = task.probe.read(task.source, principal=principal, seen=task.seen)
        if inspect.isawaitable(answer):
            answer = asyncio.run(_awaited(answer))
    except BaseException as error:  # noqa: BLE001 - whatever a probe throws, the resume comes back
        _log.info("probe of %s failed", phrases.clean(task.source, 120), exc_info=True)
        return Unanswered(_told(error))
    return _bounded(answer)


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer


def _told(error: BaseException) -> str:
    """Our own errors tell their text; a driver's may hold an address or a password, so only its name."""
    name = type(error).__name__
    return phrases.clean(str(error), REASON_MAX) if isinstance(error, SegueError) else f"the probe failed: {name}"


def _bounded(answer: object) -> Answer:
    if isinstance(answer, Version):
        return answer
    if isinstance(answer, Gone | Denied | Unanswered):
        return replace(answer, reason=phrases.clean(answer.reason, REASON_MAX))
    return Unanswered(f"the probe answered with a {type(answer).__name__} instead of a Version")
