"""LangGraph's checkpointer on Segue, sync and async in one class."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

import segue
from segue.model import Policy
from segue.run import TTL, WAIT

from . import reading, upkeep, writing
from .place import NamedId, Place, name
from .serde import SegueSerializer
from .thread import Thread, Threads
from .turns import AsyncTurn, Forks, Turn, Turns
from .values import Codec

T = TypeVar("T")

PAGE = 10
"""Checkpoints that ``alist`` reads a hop."""


class SegueSaver(BaseCheckpointSaver[str]):
    """
    LangGraph's checkpointer, kept in Segue: ``builder.compile(checkpointer=SegueSaver(scope))``.

    A thread is a session of the scope; no thread of another owner can be reached. All methods are safe from any
    thread and any event loop; the async ones never block theirs.

    A run's checkpoint is accepted when its parent is still the head of its namespace. Of two runs at once on a
    thread the later one gets ``ThreadMoved``; none is lost without a word. In ``turn()`` they take turns.

    Args:
        scope: Whose threads: ``db.scope(tenant, user)``, sync or async.
        types: The program's own classes in the state (pydantic models, dataclasses, named tuples, enums). A stored
            name that is not among them is given back as ``Unknown``.
        overtaken: What becomes of a run that was overtaken: ``error`` (ThreadMoved), or ``fork``: it goes on in a
            thread of its own, see ``forks``.
        options: Of the sessions of new threads: title, tags, metadata, listed, idle, expires_at.
    """

    def __init__(
        self,
        scope: segue.Scope | segue.AsyncScope,
        *,
        types: Iterable[type] = (),
        overtaken: Literal["error", "fork"] = "error",
        **options: Any,
    ) -> None:
        self.codec = Codec(types)
        super().__init__(serde=SegueSerializer(self.codec))
        self.scope: segue.Scope = scope.sync if isinstance(scope, segue.AsyncScope) else scope
        self._engine = scope._engine  # noqa: SLF001
        self._threads = Threads(self.scope, options)
        self._turns = Turns()
        self._forks = Forks(keeps=overtaken == "fork")
        self._owned: segue.Database | None = None

    @classmethod
    def open(cls, url: str, *, tenant: str = "default", user: str = "local", **options: Any) -> Self:
        """
        A saver with a database of its own, for one owner; close it, or use it as a (async) context manager.

        Args:
            url: See ``segue.open``.
            tenant: The owner's tenant.
            user: The owner.
            options: See the class.
        """
        db = segue.open(url)
        made = cls(db.scope(tenant, user), **options)
        made._owned = db
        return made

    def close(self) -> None:
        """Close the database, where the saver has one of its own."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned is not None:
            await self._hop(self.close)

    async def _hop(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        return await self._engine.ahop(function, *args, **options)

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """
        The checkpoint that the config names, or the head of its namespace; None when there is none.

        Raises:
            Corrupt: What the checkpoint needs is damaged.
        """
        place = self._forks.follow(Place.of(config))
        return self._read(place, lambda thread: reading.tuple_of(thread, place, self.codec))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See ``get_tuple``."""
        return await self._hop(self.get_tuple, config)

    def _read(self, place: Place, read: Callable[[Thread], T]) -> T | None:
        thread = self._threads.find(place.thread)
        if thread is None:
            self._threads.begins(place.thread)
            return None
        try:
            with thread.lock:
                return read(thread)
        except segue.NotFound:  # deleted while it was read
            self._threads.forget(thread)
            return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """
        Checkpoints, last stored first.

        Args:
            config: Of which thread, and namespace where it names one; None: of all threads of the scope.
            filter: Fields of the metadata that must be equal, as JSON values: ``1`` and ``1.0`` are equal, ``1`` and
                ``True`` are not, the order of keys in an object does not matter, None matches only a None that is
                there. Keys are names, never paths.
            before: Only what was stored before this checkpoint. Without an id: everything.
            limit: At most so many.
        """
        query = reading.Query(self.codec, filter or {}, before)
        return islice(query.tuples(self._threads, None if config is None else Place.of(config)), limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See ``list``."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        size = 1
        while page := await self._hop(lambda: [*islice(found, size)]):  # noqa: B023
            for one in page:
                yield one
            size = min(size * 2, PAGE)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What DeltaChannels are made from: their writes on the way back to their last snapshot, and that."""
        place = self._forks.follow(Place.of(config))
        found = self._read(place, lambda thread: reading.delta_history(thread, place, channels, self.codec))
        return {channel: {"writes": []} for channel in channels} if found is None else found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See ``get_delta_channel_history``."""
        return await self._hop(self.get_delta_channel_history, config=config, channels=channels)

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """
        Store a checkpoint; it becomes the head of its namespace.

        Raises:
            ThreadMoved: Another run advanced the thread since this one read it, or it was deleted.
            Busy: A turn of another run is active on the thread.
            LeaseLost: This run's turn was overtaken.
            Invalid: A value cannot be given back as it is; nothing was stored.

        Guarantees: G1 durable, G2 atomic, G5 fenced.
        """
        put = writing.Put.of(self.codec, config, checkpoint, metadata, new_versions)
        return writing.put(self._writer(), put)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See ``put``."""
        turns = self._turns.current()
        return await self._hop(self._in_turn, turns, self.put, config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """
        Store what a task of a checkpoint wrote. The checkpoint may come later.

        Of LangGraph's own four (error, scheduled, interrupt, resume) the last one holds, of all others the first.
        """
        writing.put_writes(self._writer(), config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See ``put_writes``."""
        turns = self._turns.current()
        await self._hop(self._in_turn, turns, self.put_writes, config, writes, task_id, task_path)

    def _writer(self) -> writing.Writer:
        return writing.Writer(self._threads, self.codec, self._turns, self._forks)

    def _in_turn(self, turns: Mapping[str, Turn], function: Callable[..., T], *args: Any) -> T:
        with self._turns.using(turns):
            return function(*args)

    def get_next_version(self, current: str | float | None, channel: None) -> str:  # noqa: ARG002
        """The version after ``current``: a number of fixed width and a random part, so that branches never meet."""
        return writing.next_version(current)

    def import_checkpoint(self, place: Any, parent: str | None, checkpoint: Any, metadata: Any) -> None:
        """(inner) Store a checkpoint as it was elsewhere, on whatever parent it had there."""
        config: Any = {"configurable": {**place, **({"checkpoint_id": NamedId(parent)} if parent else {})}}
        put = writing.Put.of(self.codec, {}, checkpoint, metadata, {})
        put.place, put.is_import = Place.of(config), True
        writing.put(self._writer(), put)

    # Upkeep

    def delete_thread(self, thread_id: str) -> None:
        """
        Erase a thread for good, with all it holds. A run that is still going gets ``ThreadMoved``.

        Guarantees: G9 deleted stays deleted.
        """
        upkeep.delete(self._threads, name(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """See ``delete_thread``."""
        await self._hop(self.delete_thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """
        Delete the checkpoints of LangGraph's runs (``run_id`` in the metadata) and their writes, in all threads.

        What a later checkpoint's DeltaChannel is made from stays until nobody needs it, out of sight.
        """
        upkeep.delete_for_runs(self._threads, run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See ``delete_for_runs``."""
        await self._hop(self.delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """
        Copy a thread, all of it, without copying its content. The two go their own ways from there.

        Raises:
            Exists: There is a thread of the target's id.
        """
        upkeep.copy(self._threads, name(source_thread_id), name(target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See ``copy_thread``."""
        await self._hop(self.copy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """
        Delete old checkpoints, and every value that no other one needs.

        Args:
            thread_ids: Of these threads.
            strategy: ``keep_latest`` keeps the head of each namespace (and, out of sight, what its DeltaChannels are
                made from); ``delete`` keeps nothing.
        """
        upkeep.prune(self._threads, [name(one) for one in thread_ids], strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See ``prune``."""
        await self._hop(self.prune, thread_ids, strategy=strategy)

    # Turns, and Segue's own words

    def turn(
        self,
        thread_id: object,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        resume: segue.ResumeOptions | None = None,
    ) -> Turn:
        """
        The right to advance a thread: ``with saver.turn("t") as turn: graph.invoke(input, turn.config)``.

        Args:
            thread_id: The thread.
            policy: When another turn is active, by LangGraph's names: ``reject`` (Busy), ``enqueue`` (wait, first
                come first served), ``interrupt`` (fence the other off, keep its finished steps), ``rollback`` (the
                same, and take its checkpoints back).
            wait: Longest wait of ``enqueue``; None: for ever.
            ttl: Lease time without renewal.
            resume: Look at what happened and what changed since the thread was left: ``turn.briefing``, and the
                note that ``SegueMiddleware`` hands to the model.

        Raises:
            Busy: Another turn is active.
            QueueTimeout: The wait ran out.
            Archived: The thread's session is archived or past its lifetime; ``saver.session(t).restore()`` it first.
            ConfigDrift: The agent's configuration changed, and nothing says what to do.
        """
        return Turn(self._threads, self._turns, name(thread_id), policy=policy, wait=wait, ttl=ttl, resume=resume)

    def aturn(self, thread_id: object, **options: Any) -> AsyncTurn:
        """The same for async code: ``async with saver.aturn("t") as turn``."""
        return AsyncTurn(self.turn(thread_id, **options), self._engine)

    @property
    def forks(self) -> tuple[tuple[str, str], ...]:
        """(thread, fork) of the runs that were overtaken and went on in a fork, in this process."""
        return self._forks.made

    def session(self, thread_id: object) -> segue.Session:
        """
        The Segue session that keeps a thread: rename, tag, expire, resume or erase it there.

        Raises:
            NotFound: There is no such thread.
        """
        thread = self._threads.find(name(thread_id))
        if thread is None:
            raise segue.NotFound(name(thread_id))
        return thread.session

    def threads(self) -> Iterator[tuple[str, segue.SessionInfo]]:
        """All threads of the scope, last active first, with their sessions' rows."""
        for thread in self._threads.each():
            yield thread.name, thread.session.info

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:  # noqa: ARG002
        """This saver: it makes no class by a stored name, so that there is nothing to allow."""
        return self
