"""
The async face: the same names as the sync one, from any event loop.

Written by scripts/make_aio.py; do not edit. Each call runs its blocking twin in one hop to a thread;
appends go straight to the engine's lane. Waiting (for a session's turn, for new entries) holds no
thread. Cancelling a call stops the waiting for it: what was under way is finished, and a lease that
it took is given back before the cancellation goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Self

from . import database
from .anew import Extract
from .briefing import Briefing
from .config import AgentConfig
from .database import PURGE_AFTER, Database, SweepReport
from .engine import Engine, Watch
from .errors import LeaseLost, MaskRefused, OutcomeUnknown
from .ledger import Observation
from .log import Log
from .mask import Mask
from .model import Draft, Entry, Hit, Parent, Policy, ScopeKey, SessionInfo
from .resume import ConfigPolicy, Resumed
from .run import TTL, WAIT, Run, RunEffect
from .session import Scope, Session, SessionList, is_over
from .store import READ_MAX, Appended, Erased, Report, Store
from .view import View, ViewSpec
from .world import Sources


async def aopen(url: str | Store = "sqlite:///segue.db", **options: Any) -> AsyncDatabase:
    """Open a store for async callers; see ``segue.open``. Close it with ``await db.close()`` or ``async with``."""
    return AsyncDatabase(await asyncio.to_thread(database.open, url, **options))


async def _each(engine: Engine, items: Iterator[Any]) -> AsyncIterator[Any]:
    """An iterator that reads the store, taken a hundred items a hop."""

    def some() -> list[Any]:
        return list(islice(items, 100))

    while found := await engine.ahop(some):
        for item in found:
            yield item


class AsyncDatabase:
    """An open store. Its scopes are the only door to data.

    The async face of ``Database``.
    """

    def __init__(self, sync: Database) -> None:
        self._engine = sync.engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<async {self._sync!r}>"

    @property
    def sync(self) -> Database:
        """The same thing for blocking code."""
        return self._sync

    @property
    def name(self) -> str:
        """See ``Database.name``."""
        return self._sync.name

    @property
    def capabilities(self) -> frozenset[str]:
        """See ``Database.capabilities``."""
        return self._sync.capabilities

    def scope(self, tenant: str = "default", user: str = "local") -> AsyncScope:
        """See ``Database.scope``."""
        return AsyncScope(self._engine, self._sync.scope(tenant, user))

    async def now(self) -> datetime:
        """See ``Database.now``."""
        return await self._engine.ahop(self._sync.now)

    async def check(self, *, deep: bool = False) -> list[Report]:
        """See ``Database.check``."""
        return await self._engine.ahop(self._sync.check, deep=deep)

    async def sweep(
        self, *, purge_after: timedelta = PURGE_AFTER, dry: bool = False, progress: Callable[[str], None] | None = None
    ) -> SweepReport:
        """See ``Database.sweep``."""
        return await self._engine.ahop(self._sync.sweep, purge_after=purge_after, dry=dry, progress=progress)

    async def close(self) -> None:
        """See ``Database.close``."""
        await self._engine.ahop(self._sync.close)

    def scopes(self) -> AsyncIterator[ScopeKey]:
        """See ``Database.scopes``."""
        return _each(self._sync.engine, self._sync.scopes())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncScope:
    """A tenant's user: everything that can be done to their sessions, and to nobody else's (guarantee G7).

    The async face of ``Scope``.
    """

    def __init__(self, engine: Engine, sync: Scope) -> None:
        self._engine = engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<async {self._sync!r}>"

    @property
    def sync(self) -> Scope:
        """The same thing for blocking code."""
        return self._sync

    @property
    def key(self) -> ScopeKey:
        """See ``Scope``."""
        return self._sync.key

    async def create(
        self,
        *,
        id: str | None = None,
        key: str | None = None,
        format: str = "anthropic",
        agent: AgentConfig | None = None,
        parent: Parent | None = None,
        **options: Any,
    ) -> AsyncSession:
        """See ``Scope.create``."""
        return AsyncSession(
            self._engine,
            await self._engine.ahop(
                self._sync.create, id=id, key=key, format=format, agent=agent, parent=parent, **options
            ),
        )

    async def open(self, id: str) -> AsyncSession:
        """See ``Scope.open``."""
        return AsyncSession(self._engine, await self._engine.ahop(self._sync.open, id))

    async def open_key(self, key: str, **options: Any) -> AsyncSession:
        """See ``Scope.open_key``."""
        return AsyncSession(self._engine, await self._engine.ahop(self._sync.open_key, key, **options))

    async def get_key(self, key: str) -> AsyncSession | None:
        """See ``Scope.get_key``."""
        found = await self._engine.ahop(self._sync.get_key, key)
        return None if found is None else AsyncSession(self._engine, found)

    async def by_ref(
        self, ref: str, *, since: datetime | None = None, reverse: bool = False, limit: int = 1000
    ) -> list[Hit]:
        """See ``Scope.by_ref``."""
        return await self._engine.ahop(self._sync.by_ref, ref, since=since, reverse=reverse, limit=limit)

    async def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> SessionList:
        """See ``Scope.list``."""
        return await self._engine.ahop(self._sync.list, limit=limit, cursor=cursor, **filters)

    async def latest(self, **filters: Any) -> AsyncSession:
        """See ``Scope.latest``."""
        return AsyncSession(self._engine, await self._engine.ahop(self._sync.latest, **filters))

    async def resume(self, what: str | Session, **options: Any) -> AsyncResumed:
        """See ``Scope.resume``."""
        return AsyncResumed(
            self._engine, await self._engine.ahop(self._sync.resume, getattr(what, "sync", what), **options)
        )

    async def erase(self, id: str) -> Erased:
        """See ``Scope.erase``."""
        return await self._engine.ahop(self._sync.erase, id)

    def iterate(self, **filters: Any) -> AsyncIterator[SessionInfo]:
        """See ``Scope.iterate``."""
        return _each(self._engine, self._sync.iterate(**filters))


class AsyncSession:
    """One session: an append-only log under one id, owned by one scope.

    The async face of ``Session``.
    """

    def __init__(self, engine: Engine, sync: Session) -> None:
        self._engine = engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<async {self._sync!r}>"

    @property
    def sync(self) -> Session:
        """The same thing for blocking code."""
        return self._sync

    @property
    def info(self) -> SessionInfo:
        """See ``Session``."""
        return self._sync.info

    @property
    def id(self) -> str:
        """See ``Session.id``."""
        return self._sync.id

    async def refresh(self) -> SessionInfo:
        """See ``Session.refresh``."""
        return await self._engine.ahop(self._sync.refresh)

    async def read(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[str] | None = None,
        last: int | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[Entry]:
        """See ``Session.read``."""
        return await self._engine.ahop(
            self._sync.read, after=after, upto=upto, kinds=kinds, last=last, reverse=reverse, limit=limit
        )

    async def by_ref(
        self, ref: str, *, after: int = 0, upto: int | None = None, reverse: bool = False, limit: int = READ_MAX
    ) -> list[Hit]:
        """See ``Session.by_ref``."""
        return await self._engine.ahop(self._sync.by_ref, ref, after=after, upto=upto, reverse=reverse, limit=limit)

    async def hollow(self, *seqs: int) -> int:
        """See ``Session.hollow``."""
        return await self._engine.ahop(self._sync.hollow, *seqs)

    async def view(self, spec: ViewSpec | None = None, *, upto: int | None = None) -> View:
        """See ``Session.view``."""
        return await self._engine.ahop(self._sync.view, spec, upto=upto)

    async def messages(self, *, format: str | None = None, upto: int | None = None) -> list[Any]:
        """See ``Session.messages``."""
        return await self._engine.ahop(self._sync.messages, format=format, upto=upto)

    async def update(self, *, expect: int | None = None, **changes: Any) -> SessionInfo:
        """See ``Session.update``."""
        return await self._engine.ahop(self._sync.update, expect=expect, **changes)

    async def rename(self, title: str) -> SessionInfo:
        """See ``Session.rename``."""
        return await self._engine.ahop(self._sync.rename, title)

    async def tag(self, *add: str, remove: Sequence[str] = ()) -> SessionInfo:
        """See ``Session.tag``."""
        return await self._engine.ahop(self._sync.tag, *add, remove=remove)

    async def set_metadata(self, patch: Mapping[str, Any]) -> SessionInfo:
        """See ``Session.set_metadata``."""
        return await self._engine.ahop(self._sync.set_metadata, patch)

    async def pin(self) -> SessionInfo:
        """See ``Session.pin``."""
        return await self._engine.ahop(self._sync.pin)

    async def unpin(self) -> SessionInfo:
        """See ``Session.unpin``."""
        return await self._engine.ahop(self._sync.unpin)

    async def end(self) -> SessionInfo:
        """See ``Session.end``."""
        return await self._engine.ahop(self._sync.end)

    async def reopen(self) -> SessionInfo:
        """See ``Session.reopen``."""
        return await self._engine.ahop(self._sync.reopen)

    async def archive(self) -> SessionInfo:
        """See ``Session.archive``."""
        return await self._engine.ahop(self._sync.archive)

    async def restore(self) -> SessionInfo:
        """See ``Session.restore``."""
        return await self._engine.ahop(self._sync.restore)

    async def fork(self, at: int | None = None, *, id: str | None = None, **options: Any) -> AsyncSession:
        """See ``Session.fork``."""
        return AsyncSession(self._engine, await self._engine.ahop(self._sync.fork, at, id=id, **options))

    async def start_anew(
        self,
        summary: str | Callable[[Extract], str] | None = None,
        *,
        id: str | None = None,
        language: str = "en",
        **options: Any,
    ) -> AsyncSession:
        """See ``Session.start_anew``."""
        return AsyncSession(
            self._engine, await self._engine.ahop(self._sync.start_anew, summary, id=id, language=language, **options)
        )

    async def child(
        self, name: str, *, call: str | None = None, format: str | None = None, **options: Any
    ) -> AsyncSession:
        """See ``Session.child``."""
        return AsyncSession(
            self._engine, await self._engine.ahop(self._sync.child, name, call=call, format=format, **options)
        )

    async def erase(self) -> Erased:
        """See ``Session.erase``."""
        return await self._engine.ahop(self._sync.erase)

    async def append(
        self,
        *items: Any,
        kind: str = "message",
        format: str | None = None,
        ids: Sequence[str] | None = None,
        expect: int | None = None,
        **options: Any,
    ) -> Appended:
        """See ``Session.append``."""
        entries = self._sync.drafts(items, ids, kind=kind, format=format, **options)
        return await _append(self._sync.log, entries, expect=expect)

    def history(
        self, *, after: int = 0, upto: int | None = None, kinds: Sequence[str] | None = None
    ) -> AsyncIterator[Entry]:
        """See ``Session.history``."""
        return _each(self._engine, self._sync.history(after=after, upto=upto, kinds=kinds))

    async def follow(
        self, *, after: int = 0, kinds: Sequence[str] | None = None, silence: timedelta | None = None
    ) -> AsyncIterator[Entry]:
        """See ``Session.follow``."""
        watch = Watch(self._engine, self._sync.id)
        try:
            quiet_since = time.monotonic()
            while True:
                entries = await self._engine.ahop(self._sync.log.next_after, after)
                for entry in entries:
                    after = entry.seq
                    if kinds is None or entry.kind in kinds:
                        yield entry
                if entries:
                    quiet_since = time.monotonic()
                elif is_over(quiet_since, silence):
                    return
                else:
                    await watch.await_(watch.pause(None if silence is None else silence.total_seconds()))
        finally:
            watch.close()

    def run(
        self,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        id: str | None = None,
        agent: AgentConfig | None = None,
        config: ConfigPolicy = "ask",
        keep_open: Collection[str] = (),
    ) -> AsyncRunContext:
        """See ``Session.run``: ``async with session.run() as run``, or ``run = await session.run()``."""
        return AsyncRunContext(
            self._engine,
            lambda: self._sync.acquire(
                policy=policy, wait=wait, ttl=ttl, id=id, agent=agent, config=config, keep_open=keep_open
            ),
        )


class AsyncRun:
    """The right to write into a session, as a context manager.

    The async face of ``Run``.
    """

    def __init__(self, engine: Engine, sync: Run) -> None:
        self._engine = engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<async {self._sync!r}>"

    @property
    def sync(self) -> Run:
        """The same thing for blocking code."""
        return self._sync

    @property
    def id(self) -> str:
        """See ``Run``."""
        return self._sync.id

    @property
    def fence(self) -> int:
        """See ``Run``."""
        return self._sync.fence

    @property
    def is_lost(self) -> bool:
        """See ``Run``."""
        return self._sync.is_lost

    @property
    def sources(self) -> Sources | None:
        """See ``Run``."""
        return self._sync.sources

    @property
    def session_id(self) -> str:
        """See ``Run.session_id``."""
        return self._sync.session_id

    async def drafts(
        self, items: Sequence[Any], ids: Sequence[str] | None = None, *, format: str | None = None, **options: Any
    ) -> tuple[Draft, ...]:
        """See ``Run.drafts``."""
        return await self._engine.ahop(self._sync.drafts, items, ids, format=format, **options)

    async def check(self) -> None:
        """See ``Run.check``."""
        await self._engine.ahop(self._sync.check)

    async def observe(
        self, source: str | Observation, version: object = None, *, value: object = None, **options: Any
    ) -> Observation:
        """See ``Run.observe``."""
        return await self._engine.ahop(self._sync.observe, source, version, value=value, **options)

    async def view(self, spec: ViewSpec | None = None) -> View:
        """See ``Run.view``."""
        return await self._engine.ahop(self._sync.view, spec)

    async def messages(self, *, format: str | None = None, budget: int | None = None) -> list[Any]:
        """See ``Run.messages``."""
        return await self._engine.ahop(self._sync.messages, format=format, budget=budget)

    async def pause(self, at_most: timedelta) -> None:
        """See ``Run.pause``."""
        await self._engine.ahop(self._sync.pause, at_most)

    async def release(self) -> None:
        """See ``Run.release``."""
        await self._engine.ahop(self._sync.release)

    async def append(
        self,
        *items: Any,
        kind: str = "message",
        format: str | None = None,
        origin: str | None = None,
        ids: Sequence[str] | None = None,
        expect: int | None = None,
        **options: Any,
    ) -> Appended:
        """See ``Run.append``."""
        entries = self._sync.drafts(items, ids, kind=kind, format=format, origin=origin, **options)
        return await self.append_drafts(entries, expect=expect)

    async def append_drafts(self, entries: tuple[Draft, ...], *, expect: int | None = None) -> Appended:
        """See ``Run.append_drafts``."""
        try:
            return await _append(self._sync.log, entries, run=self._sync.id, fence=self._sync.fence, expect=expect)
        except LeaseLost as error:
            self._sync.lose(error)
            raise

    def anthropic(self, client: Any, **options: Any) -> Any:
        """See ``Run.anthropic``."""
        from .adapters.anthropic import chat

        return chat(self, client, **options)

    def openai(self, client: Any, **options: Any) -> Any:
        """See ``Run.openai``."""
        from .adapters.openai import chat

        return chat(self, client, **options)

    def effect(self, name: str, **options: Any) -> AsyncEffect:
        """See ``Run.effect``."""
        return AsyncEffect(self._engine, self._sync.effect(name, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _finish(self.release())


class AsyncResumed:
    """A session, and what was found on coming back to it.

    The async face of ``Resumed``.
    """

    def __init__(self, engine: Engine, sync: Resumed) -> None:
        self._engine = engine
        self._sync = sync

    def __repr__(self) -> str:
        return f"<async {self._sync!r}>"

    @property
    def sync(self) -> Resumed:
        """The same thing for blocking code."""
        return self._sync

    @property
    def info(self) -> SessionInfo:
        """See ``Resumed``."""
        return self._sync.info

    @property
    def briefing(self) -> Briefing:
        """See ``Resumed``."""
        return self._sync.briefing

    @property
    def mask(self) -> Mask | None:
        """See ``Resumed``."""
        return self._sync.mask

    @property
    def mask_refused(self) -> MaskRefused | None:
        """See ``Resumed``."""
        return self._sync.mask_refused

    @property
    def id(self) -> str:
        """See ``Resumed.id``."""
        return self._sync.id

    async def messages(self) -> list[Any]:
        """See ``Resumed.messages``."""
        return await self._engine.ahop(self._sync.messages)

    def run(
        self,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        id: str | None = None,
        keep_open: Collection[str] = (),
    ) -> AsyncRunContext:
        """See ``Resumed.run``."""
        return AsyncRunContext(
            self._engine,
            lambda: self._sync.acquire(policy=policy, wait=wait, ttl=ttl, id=id, keep_open=keep_open),
        )


class AsyncRunContext:
    """A run that is being started: await it, or enter it."""

    def __init__(self, engine: Engine, steps: Callable[[], Any]) -> None:
        self._engine = engine
        self._steps = steps
        self._run: AsyncRun | None = None

    def __await__(self) -> Any:
        return self._start().__await__()

    async def _start(self) -> AsyncRun:
        steps = await self._engine.ahop(self._steps)
        return AsyncRun(self._engine, await self._engine.adrive(steps))

    async def __aenter__(self) -> AsyncRun:
        self._run = await self._start()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)


class AsyncEffect:
    """An effect around an ``async with`` block; see ``Run.effect``."""

    def __init__(self, engine: Engine, sync: RunEffect) -> None:
        self._engine = engine
        self._sync = sync

    async def __aenter__(self) -> RunEffect:
        await self._engine.ahop(self._sync.__enter__)
        return self._sync

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _finish(self._engine.ahop(self._sync.__exit__, kind, error, trace))


async def _finish(last: Any) -> None:
    """Let the last step of a context finish, however often its waiting is cancelled; then go on being cancelled."""
    task = asyncio.ensure_future(last)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
            if task.cancelled():
                break
    if cancelled:
        raise asyncio.CancelledError
    task.result()


async def _append(log: Log, entries: tuple[Draft, ...], **options: Any) -> Appended:
    op = log.append_op(entries, **options)
    try:
        return await log.engine.ado(op)  # type: ignore[no-any-return]
    except OutcomeUnknown:
        return await log.engine.ado(op)  # type: ignore[no-any-return]
