"""Turns: the right to advance a thread, and where a run goes that was overtaken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import Any, Self

import segue
from segue.aio import AsyncRunContext
from segue.engine import Engine
from segue.errors import LeaseLost
from segue.guard import using
from segue.model import Policy, new_id

from . import upkeep
from .place import TURN, NamedId, Place, ThreadMoved
from .thread import Lru, Thread, Threads

logger = logging.getLogger(__name__)

FOLLOWED_MAX = 10_000
"""Most checkpoints of overtaken runs whose thread is remembered."""

_active: ContextVar[Mapping[str, Turn]] = ContextVar("segue_langgraph_turns", default=MappingProxyType({}))


def turn_of(thread: str) -> Turn | None:
    """The turn on a thread that the caller is in, or None."""
    return next((turn for turn in _active.get().values() if turn.thread == thread), None)


class Turn:
    """
    A turn on a thread, as a context manager: a Segue run around a graph's run.

    What is written in it is fenced: once another turn took over, it gets ``LeaseLost``. It holds for this thread of
    execution and what is started from it; hand ``config`` to the graph to be sure.

    Attributes:
        thread: The thread.
        run: The Segue run, while the turn lasts.
        briefing: What was found on coming back to the thread, with ``resume``; else None.
    """

    run: segue.Run | None
    briefing: segue.Briefing | None

    def __init__(
        self,
        threads: Threads,
        turns: Turns,
        thread: str,
        *,
        policy: Policy,
        wait: timedelta | None,
        ttl: timedelta,
        resume: segue.ResumeOptions | None = None,
    ) -> None:
        self._threads = threads
        self._turns = turns
        self._resume = resume
        self._resumed: segue.Resumed | None = None
        self._guard: AbstractContextManager[None] | None = None
        self.briefing = None
        self._options: dict[str, Any] = {"policy": policy, "wait": wait, "ttl": ttl}
        self._before: Mapping[str, Turn] = {}
        self._is_told = False
        self.thread = thread
        self.run = None

    @property
    def config(self) -> Any:
        """The config for the graph: the thread, and this turn."""
        assert self.run is not None, "enter the turn first"
        return {"configurable": {"thread_id": self.thread, TURN: self.run.id}}

    @property
    def session_id(self) -> str:
        """The Segue session that the turn advances."""
        assert self.run is not None, "enter the turn first"
        return self.run.session_id

    def note(self) -> str | None:
        """What the model should be told before it goes on, once a turn; None when there is nothing to tell."""
        told, self._is_told = self._is_told, True
        if told or self.briefing is None or self.briefing.is_quiet:
            return None
        return self.briefing.text()

    def __enter__(self) -> Self:
        thread, acquire = self.prepare()
        self.begin(thread, thread.session.log.engine.drive(acquire()))
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        if self.run is not None:
            self.run.release()

    def prepare(self) -> tuple[Thread, Callable[[], Any]]:
        """(inner) The thread, and the procedure that takes its lease."""
        thread = self._threads.make(self.thread)
        if self._resume is None:
            return thread, lambda: thread.session.acquire(**self._options)
        how = {field.name: getattr(self._resume, field.name) for field in fields(self._resume)}
        self._resumed = resumed = thread.scope.resume(thread.session, **how)
        return thread, lambda: resumed.acquire(**self._options)

    def begin(self, thread: Thread, run: segue.Run) -> None:
        """(inner) Hold the turn: with ``rollback`` take back what the one before it stored."""
        self.run = run
        try:
            if self._options["policy"] == "rollback":
                upkeep.take_back(thread, run)
        except BaseException:
            run.release()
            raise
        if self._resumed is not None:
            self.briefing = self._resumed.briefing
        self._turns.add(self)

    def enter(self) -> None:
        """(inner) Let it hold for the caller's context, and guard its tools."""
        self._guard = using(self.run, None if self._resume is None else self._resume.sources)
        self._guard.__enter__()
        self._before = _active.get()
        _active.set({**self._before, self.session_id: self})

    def leave(self) -> None:
        """(inner) Let it hold no more. What still runs from it stays fenced by it."""
        _active.set(self._before)
        if self._guard is not None:
            self._guard.__exit__(None, None, None)


class AsyncTurn:
    """The same for async code."""

    def __init__(self, turn: Turn, engine: Engine) -> None:
        self._turn = turn
        self._engine = engine

    async def __aenter__(self) -> Turn:
        thread, acquire = await self._engine.ahop(self._turn.prepare)
        run = await AsyncRunContext(self._engine, acquire)
        await self._engine.ahop(self._turn.begin, thread, run.sync)
        self._turn.enter()
        return self._turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn.leave()
        assert self._turn.run is not None
        await self._engine.ahop(self._turn.run.release)


class Turns:
    """The turns of a saver, by their run's id."""

    def __init__(self) -> None:
        self._turns: Lru[Turn] = Lru(1_000)
        self._lock = threading.Lock()

    def add(self, turn: Turn) -> None:
        """Know a turn."""
        assert turn.run is not None
        with self._lock:
            self._turns.keep(turn.run.id, turn)

    def current(self) -> Mapping[str, Turn]:
        """The turns that hold in the caller's context, by session."""
        return _active.get()

    @contextmanager
    def using(self, turns: Mapping[str, Turn]) -> Iterator[None]:
        """Let them hold on another thread of execution."""
        token = _active.set(turns)
        try:
            yield
        finally:
            _active.reset(token)

    def run(self, place: Place, thread: Thread) -> segue.Run | None:
        """
        The run that a write belongs to: of the turn that the config names, or that holds in this context.

        Raises:
            LeaseLost: The named turn is over, or of another thread.
        """
        if place.turn is None:
            turn = _active.get().get(thread.session.id)
            return None if turn is None else turn.run
        with self._lock:
            named = self._turns.see(place.turn)
        if named is None or named.run is None or named.session_id != thread.session.id:
            raise LeaseLost(str(place.turn), 0, thread.session.info.fence)
        return named.run


class Forks:
    """Where runs went that were overtaken: checkpoint → the thread that has it."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._lock = threading.Lock()
        self._where: Lru[str] = Lru(FOLLOWED_MAX)
        self._made: list[tuple[str, str]] = []

    @property
    def made(self) -> tuple[tuple[str, str], ...]:
        """(thread, fork) of each."""
        return tuple(self._made)

    def follow(self, place: Place) -> Place:
        """The place in the fork, where the checkpoint is of a run that went on in one."""
        if place.checkpoint is None or not self._where:
            return place
        with self._lock:
            fork = self._where.see((place.thread, place.checkpoint))
        return place if fork is None else place._replace(thread=fork)

    def make(self, threads: Threads, place: Place, moved: ThreadMoved) -> Place:
        """A fork for a run that was overtaken; ``moved`` again where none is wanted."""
        if not self._keeps or moved.head is None:
            raise moved
        fork = f"{place.thread}~{new_id()}"
        if place.checkpoint is None:
            threads.make(fork)
        else:
            upkeep.copy(threads, place.thread, fork)
        self._made.append((place.thread, fork))
        logger.warning("thread %r was advanced by another run; this one goes on in %r", place.thread, fork)
        parent = None if place.checkpoint is None else NamedId(place.checkpoint)
        return place._replace(thread=fork, checkpoint=parent, turn=None)

    def went(self, asked: Place, place: Place, checkpoint: str) -> None:
        """Note where a checkpoint was stored, where it is not the thread that was asked for."""
        if asked.thread != place.thread:
            with self._lock:
                self._where.keep((asked.thread, checkpoint), place.thread)
