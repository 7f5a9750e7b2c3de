"""One turn of the SDK as a run of Segue: lease, queue, briefing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import segue
from segue.aio import AsyncRunContext
from segue.guard import using
from segue.model import Draft, Policy
from segue.store import Appended

from .recovery import calls_of, recovered, unstored

if TYPE_CHECKING:
    from .session import SegueSession

TTL = timedelta(seconds=30)
WAIT = timedelta(seconds=30)

_turns: ContextVar[Mapping[str, Turn]] = ContextVar("segue_agents_turns", default=MappingProxyType({}))


def turn_of(session: str) -> Turn | None:
    """The turn on this Segue session that the caller is in, or None."""
    return _turns.get().get(session)


class Turn:
    """
    A turn: the right to advance the session.

    Attributes:
        run: The Segue run. ``run.id`` is on every entry of the turn.
        briefing: What was found on coming back, or None.
        usage: Tokens of the turn so far.
    """

    def __init__(self, run: segue.AsyncRun, briefing: segue.Briefing | None) -> None:
        self.run = run
        self.briefing = briefing
        self.usage = segue.Usage()
        self.paused: timedelta | None = None

    async def append(self, entries: Sequence[Draft], *, expect: int | None = None) -> Appended:
        """(inner) Append what the SDK stores in this turn, fenced."""
        appended = await self.run.append(*entries, expect=expect)
        self.usage += sum((entry.usage for entry in entries if entry.usage is not None), segue.Usage())
        if any(entry.kind == "message" for entry in entries):
            self.paused = None
        return appended


class TurnContext:
    """A turn that is being started: enter it. It holds for this task and those started from it."""

    def __init__(
        self,
        session: SegueSession,
        briefing: segue.ResumeOptions | None,
        *,
        policy: Policy,
        wait: timedelta | None,
        ttl: timedelta,
        keep_open: frozenset[str] | None = None,
    ) -> None:
        self._session = session
        self._briefing = briefing
        self._options: dict[str, Any] = {"policy": policy, "wait": wait, "ttl": ttl}
        self._keep_open = keep_open
        self._turn: Turn | None = None
        self._before: Mapping[str, Turn] = {}
        self._guard: AbstractContextManager[None] | None = None

    async def __aenter__(self) -> Turn:
        stored = await self._session.stored()
        self._turn = turn = await self._start(stored)
        try:
            self._before = _turns.get()
            sources = None if self._briefing is None else self._briefing.sources
            self._guard = using(turn.run, sources)
            self._guard.__enter__()
            _turns.set({**self._before, stored.id: turn})
        except BaseException:
            await turn.run.release()
            raise
        return turn

    async def _start(self, stored: segue.AsyncSession) -> Turn:
        engine = stored.sync.log.engine
        keep_open = self._keep_open
        if keep_open is None:
            keep_open = calls_of(await engine.ahop(unstored, stored.sync))
        options = {**self._options, "keep_open": keep_open}
        briefing: segue.Briefing | None = None
        if self._briefing is None:
            run = await AsyncRunContext(engine, lambda: stored.sync.acquire(**options))
        else:
            how = {field.name: getattr(self._briefing, field.name) for field in fields(self._briefing)}
            resumed = await engine.ahop(self._session.scope.resume, stored.sync, **how)
            run = await AsyncRunContext(engine, lambda: resumed.acquire(**options))
            briefing = resumed.briefing
        turn = Turn(run, briefing)
        if self._keep_open is None:
            await self._recover(stored, turn)
        return turn

    async def _recover(self, stored: segue.AsyncSession, turn: Turn) -> None:
        """What a crash kept from being stored: the calls that were recorded before they started."""
        try:
            entries = await stored.sync.log.engine.ahop(recovered, stored.sync)
            if entries:
                await turn.append(entries)
        except BaseException:
            await turn.run.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._turn is not None
        _turns.set(self._before)
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
        run = self._turn.run
        if error is None and self._turn.paused is not None and not run.is_lost:
            await run.pause(self._turn.paused)
        await run.__aexit__(kind, error, trace)
