"""
Search one order of all operations, in keeping with real time, that explains every answer.

If there is none, an append was lost, a reading was stale, or two got what only one may have. The search is
the one of Wing and Gong, with Lowe's memory of what was tried: take any operation that no unfinished one
precedes, do it on a model, go on; turn back where the answers differ.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from segue.model import Lease
from segue.store import Append, Appended, Release, Store, Take

State = TypeVar("State", bound=Hashable)

STEPS_MAX = 2_000_000
"""After so many steps of the search the history counts as too wide to be checked."""


@dataclass(frozen=True)
class Call:
    """
    One operation of a history.

    Attributes:
        began, ended: Its place in time among all beginnings and ends. ``ended`` None: nobody knows
            whether it was done (it may be explained as done at any later time, or as not done).
        op: What was asked.
        answer: What was answered.
    """

    began: int
    ended: int | None
    op: Any
    answer: Any = None


@dataclass(frozen=True)
class Verdict(Generic[State]):
    """
    What ``explain`` found.

    Attributes:
        order: The calls in an order that explains them, or None.
        stuck: Where there is none: the longest explainable beginning, and the calls that could not follow it.
    """

    order: tuple[Call, ...] | None
    stuck: tuple[tuple[Call, ...], tuple[Call, ...]] = ((), ())

    @property
    def is_linearizable(self) -> bool:
        """True when an order was found."""
        return self.order is not None


def explain(history: Sequence[Call], step: Callable[[State, Any, Any], State | None], initial: State) -> Verdict[State]:
    """
    Search an order of the calls that explains their answers.

    Args:
        history: The calls, in any order.
        step: From a state, an operation and its answer (None: unknown) the next state, or None when
            the operation would have answered otherwise.
        initial: The state before all calls; states are hashable.

    Raises:
        RuntimeError: More than ``STEPS_MAX`` steps; record fewer operations at once.
    """
    calls = sorted(history, key=lambda call: call.began)
    must = sum(1 << n for n, call in enumerate(calls) if call.ended is not None)
    longest: tuple[int, ...] = ()
    tried: set[tuple[int, State]] = set()
    branches: list[tuple[int, State, tuple[int, ...]]] = [(0, initial, ())]
    while branches:
        done, state, path = branches.pop()
        if done & must == must:
            return Verdict(tuple(calls[n] for n in path))
        if (done, state) in tried:
            continue
        tried.add((done, state))
        if len(tried) > STEPS_MAX:
            raise RuntimeError(f"no verdict after {STEPS_MAX:,} steps; record fewer operations at once")
        longest = max(longest, path, key=len)
        for n in reversed(_next(calls, done)):
            after = step(state, calls[n].op, calls[n].answer)
            if after is not None:
                branches.append((done | 1 << n, after, (*path, n)))
    blocked = _next(calls, sum(1 << n for n in longest))
    return Verdict(None, (tuple(calls[n] for n in longest), tuple(calls[n] for n in blocked)))


def _next(calls: Sequence[Call], done: int) -> list[int]:
    """The calls that may come next: those that began before any other that is not done had ended."""
    found, first_end = [], None
    for n, call in enumerate(calls):
        if done >> n & 1:
            continue
        if first_end is not None and call.began > first_end:
            break
        found.append(n)
        if call.ended is not None and (first_end is None or call.ended < first_end):
            first_end = call.ended
    return [n for n in found if first_end is None or calls[n].began <= first_end]


class Recorder:
    """Records calls from several threads, each with its place in time."""

    def __init__(self) -> None:
        self.history: list[Call] = []
        self._ticks = itertools.count()
        self._lock = threading.Lock()

    def _tick(self) -> int:
        with self._lock:
            return next(self._ticks)

    def call(self, op: Any, act: Callable[[], Any]) -> Any:
        """What ``act`` gives, recorded as the answer to ``op``; when it raises, the outcome counts as unknown."""
        began = self._tick()
        try:
            answer = act()
        except BaseException:
            self._record(Call(began, None, op))
            raise
        self._record(Call(began, self._tick(), op, answer))
        return answer

    def _record(self, call: Call) -> None:
        with self._lock:
            self.history.append(call)


# One session as a model.


@dataclass(frozen=True)
class Read:
    """The reading of a whole log; its answer is a list of entry ids."""


@dataclass(frozen=True)
class Log:
    """The state of one session: ids of its entries, the highest fence, and who holds the lease."""

    ids: tuple[str, ...] = ()
    fence: int = 0
    holder: tuple[str, int] | None = None


def step(log: Log, op: Append | Take | Release | Read, answer: Any) -> Log | None:
    """What an operation makes of a session in which no lease expires, or None when its answer would be another."""
    after, expected = _OUTCOMES[type(op)](log, op)
    return after if (answer is None and not isinstance(op, Release)) or _digest(answer) == expected else None


def _append(log: Log, op: Append) -> tuple[Log, Any]:
    known = {id: seq for seq, id in enumerate(log.ids, 1)}
    new = [entry.id for entry in op.entries if entry.id not in known]
    if new and op.fence is not None and log.holder != (op.run, op.fence):
        return log, "LeaseLost"
    if new and op.fence is None and log.holder is not None:
        return log, "Busy"
    if new and op.expect is not None and op.expect != len(log.ids):
        return log, "HeadMoved"
    after = replace(log, ids=(*log.ids, *new))
    seqs = {id: seq for seq, id in enumerate(after.ids, 1)}
    return after, Appended(len(after.ids), tuple(seqs[entry.id] for entry in op.entries), len(new))


def _take(log: Log, op: Take) -> tuple[Log, Any]:
    if log.holder is not None and log.holder[0] != op.run and op.over != log.holder[0]:
        return log, "Busy"
    fence = log.fence if log.holder is not None and log.holder[0] == op.run else log.fence + 1
    return replace(log, fence=fence, holder=(op.run, fence)), ("lease", fence)


def _release(log: Log, op: Release) -> tuple[Log, Any]:
    return (replace(log, holder=None) if log.holder == (op.run, op.fence) else log), None


def _read(log: Log, _: Read) -> tuple[Log, Any]:
    return log, list(log.ids)


_OUTCOMES: dict[type, Callable[[Log, Any], tuple[Log, Any]]] = {
    Append: _append,
    Take: _take,
    Release: _release,
    Read: _read,
}


def _digest(answer: Any) -> Any:
    """What of an answer is compared."""
    if isinstance(answer, Lease):
        return "lease", answer.fence
    return type(answer).__name__ if isinstance(answer, Exception) else answer


def do(store: Store, op: Append | Take | Release) -> Any:
    """The answer of a store to one operation, refusals as values."""
    (answer,) = store.commit([op])
    return answer
