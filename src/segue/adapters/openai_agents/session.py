"""The SDK's Session protocol on a Segue session."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import fields
from datetime import timedelta
from typing import Any, Self, TypeVar

from agents.memory import SessionSettings

import segue
from segue import formats
from segue.errors import Busy, HeadMoved, Invalid
from segue.model import NAME_MAX_BYTES, Draft
from segue.store import BATCH_MAX, Appended

from . import history
from .history import Item
from .progress import Progress, Runs, TurnLost, settled, usage_of
from .states import EXPIRES_IN, SavedState
from .turn import TTL, WAIT, TurnContext, turn_of

T = TypeVar("T")

_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

ATTEMPTS_MAX = 10_000
"""How often a pop, a clear or a write behind facts is tried again while others write."""

NOTES_MAX = 16
"""Most notes of the input callback whose runs have not stored them yet."""

PART_MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of one append; a larger batch is stored in several."""


class SegueSession:
    """
    A session of the OpenAI Agents SDK, kept in Segue.

    Hand it to ``Runner.run(agent, question, session=session)``. A run's writes expect the history that
    the run has read: of two runs at once one wins, the other gets ``TurnLost`` and leaves nothing in
    the history. In ``async with session.turn(policy="enqueue")`` they wait for each other.

    Args:
        session_id: The SDK's name of the session: the ``key`` of the Segue session, within the scope.
        scope: Whose sessions: ``db.scope(tenant, user)``, sync or async.
        session_settings: The SDK's SessionSettings (or a dict): ``limit``, the most items a run reads.
        history: What a session that is still empty starts with.
        erase: True: what is popped or cleared is erased for good. False: it is taken back and stays in the log.
        options: Of the Segue session when it is made: title, tags, metadata, idle, expires_at.

    Use one instance from any number of event loops and threads.
    """

    session_id: str
    session_settings: SessionSettings | None
    _ignore_ids_for_matching: bool = False

    def __init__(
        self,
        session_id: str,
        scope: segue.Scope | segue.AsyncScope,
        *,
        session_settings: SessionSettings | Mapping[str, Any] | None = None,
        history: Sequence[Any] | None = None,
        erase: bool = False,
        **options: Any,
    ) -> None:
        self.session_id = session_id
        self.session_settings = _settings(session_settings)
        self.scope: segue.Scope = scope.sync if isinstance(scope, segue.AsyncScope) else scope
        self.erases = erase
        self._key = key_of(session_id)
        self._options = options
        self._history = list(history or ())
        self._runs = Runs()
        self._stored: segue.AsyncSession | None = None
        self._owned: segue.Database | None = None
        self._notes: list[dict[str, Any]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}>"

    @classmethod
    def from_url(
        cls,
        session_id: str,
        url: str = "sqlite:///segue.db",
        *,
        tenant: str = "default",
        user: str = "local",
        **options: Any,
    ) -> Self:
        """
        A session in the store of a URL, which is opened for it and closed by ``close()``.

        A program with many sessions opens the store once and hands out ``db.scope(...)`` instead.
        """
        db = segue.open(url)
        try:
            made = cls(session_id, db.scope(tenant, user), **options)
        except BaseException:
            db.close()
            raise
        made._owned = db
        return made

    # The protocol

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        """
        The newest items, oldest first; the results of readings that a turn has masked say so instead.

        Args:
            limit: At most this many (0 or less: none); None: as the session's settings say, else all.
            wrapper: The run's context, which the Runner passes: its next write expects what it reads here.
        """
        self._check_open()
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        head, items = await self._read(limit if limit is None else max(0, limit))
        progress = self._runs.of(wrapper)
        if progress is not None:
            progress.read(head)
        return [item.value for item in items]

    async def add_items(self, items: list[Any], *, wrapper: Any = None) -> None:
        """
        Add all items at the end, or none.

        Raises:
            TurnLost: Another run advanced the session since this one read it; its items were taken back.
            Busy: Another run holds the session (``turn()``).
            LeaseLost: The turn that this is in was overtaken.
            Invalid: An item is no JSON, or breaks a limit; nothing was stored.

        Guarantees: G1 durable, G2 atomic (up to 1,000 items), G4 exact.
        """
        self._check_open()
        if items:
            await settled(self._add(list(items), self._runs.of(wrapper), wrapper))

    async def pop_item(self, *, wrapper: Any = None) -> Any | None:
        """Take back the newest item and return it; None when there is none. Of several callers each gets another."""
        self._check_open()
        return await settled(self._pop(self._runs.of(wrapper)))

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Take back all items. The log keeps them, unless the session erases."""
        self._check_open()
        await settled(self._clear(self._runs.of(wrapper)))

    def close(self) -> None:
        """Use it no more. Idempotent; closes the store that ``from_url`` opened, and no other."""
        self._closed = True
        if self._owned is not None:
            self._owned.close()

    # Beyond the protocol

    def turn(
        self,
        *,
        policy: segue.model.Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        briefing: segue.ResumeOptions | bool = True,
    ) -> TurnContext:
        """
        One turn at a time: ``async with session.turn(policy="enqueue"): await Runner.run(...)``.

        Inside, all that is written to the session is the turn's, and nobody else writes. When time has
        passed or the world has changed since the last turn, the model is told in a note before the
        question. Tools under ``@segue.guard.reads`` and ``@writes`` are recorded and guarded.

        Args:
            policy: When another turn is active: ``reject`` (Busy), ``enqueue`` (wait, first come first
                served), ``interrupt`` (stop the other, keep its items) or ``rollback`` (take them back).
            wait: Longest wait of ``enqueue``; None: for ever.
            ttl: Lease time without renewal; it is renewed while this process lives.
            briefing: How the return is planned (``segue.ResumeOptions``); True: by default, False: no note.

        Raises:
            Busy: Another turn is active (``reject``).
            QueueTimeout: The wait ran out.
        """
        options = segue.ResumeOptions() if briefing is True else briefing or None
        return TurnContext(self, options, policy=policy, wait=wait, ttl=ttl)

    async def save_state(self, state: Any, *, expires_in: timedelta = EXPIRES_IN, **options: Any) -> str:
        """
        Keep a run that waits for a person: ``await session.save_state(result.to_state())``.

        Args:
            state: The SDK's RunState, before or after ``approve``; states of one interruption are one.
            expires_in: How long it may be resumed. In a turn, the session shows as paused so long.
            options: Of ``RunState.to_json``: context_serializer, strict_context.

        Returns:
            Its id, for ``load_state`` and ``resume_state``.
        """
        from . import states

        return await states.save(self, state, expires_in=expires_in, options=options)

    async def states(self) -> list[SavedState]:
        """The states kept with the session, newest first; a resumed one is gone when its turn ended well."""
        from . import states

        return await states.saved(self)

    async def load_state(self, agent: Any, id: str | None = None, **options: Any) -> Any:
        """
        A stored RunState, to look at or to approve and store again; it is not resumed by that.

        Args:
            agent: The agent it was of.
            id: Which; None: the newest that was not resumed.
            options: Of ``RunState.from_json``: context_override, context_deserializer.
        """
        from . import states

        return await states.load(agent, await states.find(self, id), options)

    def resume_state(
        self, agent: Any, id: str | None = None, *, policy: segue.model.Policy = "enqueue", **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """
        Resume a stored state, once, in a turn: ``async with session.resume_state(agent, id) as state``.

        Inside, ``await Runner.run(agent, state, session=session)``. Of any number of callers in any
        processes one gets the state, the others StateTaken, also when the one has crashed.

        Raises:
            StateTaken: It was resumed before.
            StateExpired: It is too old.
            StateStale: The conversation went on since.
            StateMissing: There is none (a NotFound).
        """
        from . import states

        return states.resume(self, agent, id, policy=policy, options=options)

    def input_callback(self, briefing: segue.ResumeOptions | None = None) -> Callable[[list[Any], list[Any]], Any]:
        """
        A ``RunConfig.session_input_callback`` that tells the model, before the question, what changed meanwhile.

        For runs without ``turn()``, which tells it by itself. The note is stored as Segue's note, once.
        """

        async def combine(history: list[Any], new: list[Any]) -> list[Any]:
            note = await self._note(briefing or segue.ResumeOptions())
            return [*_whole(history), *([note["message"]] if note else []), *new]

        return combine

    async def model_settings(self) -> Any:
        """``RunConfig(model_settings=...)`` under which a fork shares the provider's cache with its root."""
        from agents import ModelSettings

        return ModelSettings(extra_args={"prompt_cache_key": await self.prompt_cache_key()})

    async def stored(self) -> segue.AsyncSession:
        """The Segue session below, made if there is none yet."""
        self._check_open()
        return await self._open()

    async def fork(self, session_id: str, *, keep: int | None = None, **options: Any) -> Self:
        """
        A new session that starts with the first ``keep`` items (None: all) and goes on by itself. Nothing is copied.

        It keeps this session's prompt cache: see ``model_settings``.

        Raises:
            Exists: There is a session of that id.
            Invalid: This one has fewer items, or ``keep`` ends within a summary.
        """
        from .forks import fork

        stored = await self._open()
        await self._hop(fork, stored.sync, key_of(session_id), keep, root=self.session_id, options=options)
        return self._beside(session_id)

    async def prompt_cache_key(self) -> str:
        """The key under which the provider caches this conversation; forks share their root's."""
        stored = await self._find()
        root = None if stored is None else (await stored.refresh()).metadata.get("agents.root")
        return cache_key(root if isinstance(root, str) else self.session_id)

    # Inside

    def _beside(self, session_id: str) -> Self:
        """Another session of the same kind and scope; the store stays with whoever opened it."""
        return type(self)(session_id, self.scope, session_settings=self.session_settings, erase=self.erases)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")

    async def _hop(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Blocking code on one of the engine's threads, whatever the event loop."""
        stored = self._stored
        if stored is None:
            return await asyncio.to_thread(function, *args, **options)
        return await stored.sync.log.engine.ahop(function, *args, **options)

    async def _find(self) -> segue.AsyncSession | None:
        """The Segue session, or None while there is none: a reading makes nothing."""
        if self._stored is None:
            if self._history:
                return await self._open()
            found = await asyncio.to_thread(self.scope.get_key, self._key)
            if found is None:
                return None
            self._take(found)
        return self._stored

    async def _open(self) -> segue.AsyncSession:
        if self._stored is None:
            made = await asyncio.to_thread(self._make)
            self._take(made)
        assert self._stored is not None
        return self._stored

    def _make(self) -> segue.Session:
        made = self.scope.open_key(self._key, format=history.FORMAT, **self._options)
        if self._history and made.refresh().head == 0:
            with suppress(HeadMoved):  # somebody else has begun it
                made.append(*map(history.message, self._history), expect=0)
        self._history = []
        return made

    def _take(self, found: segue.Session) -> None:
        if found.info.format != history.FORMAT:
            raise Invalid(
                f"session {self.session_id!r} holds messages of the format {found.info.format!r}, not the items of "
                "the Agents SDK; use another session_id",
                where="session_id",
            )
        self._stored = segue.AsyncSession(found.log.engine, found)

    async def _read(self, limit: int | None) -> tuple[int, list[Item]]:
        stored = await self._find()
        if stored is None:
            return 0, []
        base, items = await self._hop(history.read, stored.sync, limit)
        return base.head, items

    async def _note(self, briefing: segue.ResumeOptions) -> dict[str, Any] | None:
        """The body of the note that a return now would tell; None: nothing to tell."""
        stored = await self._find()
        if stored is None:
            return None
        how = {field.name: getattr(briefing, field.name) for field in fields(briefing)}
        found = (await self._hop(self.scope.resume, stored.sync, **how)).briefing
        rules = formats.rules(history.FORMAT)
        if found.is_quiet or rules is None:
            return None
        text = found.text(briefing.language)
        note = {
            "facts": found.facts(),
            "language": briefing.language,
            "text": text,
            "for": history.FORMAT,
            "message": rules.note(text),
        }
        self._notes = [*self._notes[-NOTES_MAX + 1 :], note]
        return note

    async def _append(
        self, stored: segue.AsyncSession, entries: Sequence[Draft], *, expect: int | None = None
    ) -> Appended:
        turn = turn_of(stored.id)
        if turn is not None:
            return await turn.append(entries, expect=expect)
        return await stored.append(*entries, expect=expect)

    async def _add(self, items: list[Any], progress: Progress | None, wrapper: Any) -> None:
        usage = None if progress is None else progress.spend(usage_of(wrapper))
        last = len(items) - 1
        entries = [self._entry(item, usage if n == last else None) for n, item in enumerate(items)]
        stored = await self._open()
        done: list[int] = []
        try:
            for part in _parts(entries):
                appended = await self._add_part(stored, part, progress)
                done += appended.seqs
        except BaseException:
            if done:
                await self._append(stored, [history.retraction(done, "the rest of the batch failed")])
            raise

    def _entry(self, item: Any, usage: segue.Usage | None) -> Draft:
        for note in self._notes:
            if note["message"] == item:  # told by the input callback: it is Segue's note, with its facts
                self._notes.remove(note)
                return segue.draft(note, kind="note", format="segue", origin="system", refs=("note",), usage=usage)
        return history.message(item, usage=usage)

    async def _add_part(
        self, stored: segue.AsyncSession, entries: Sequence[Draft], progress: Progress | None
    ) -> Appended:
        if progress is not None and progress.lost is not None:
            raise progress.lost
        if progress is None or progress.expected is None or turn_of(stored.id) is not None:
            appended = await self._append(stored, entries)
        else:
            appended = await self._add_expecting(stored, entries, progress, progress.expected)
        if progress is not None:
            progress.stored(appended.seqs, appended.head)
        return appended

    async def _add_expecting(
        self, stored: segue.AsyncSession, entries: Sequence[Draft], progress: Progress, expected: int
    ) -> Appended:
        """Append behind what the run has read, and behind facts that came since; else the run has lost."""
        expect = expected
        for _ in range(ATTEMPTS_MAX):
            try:
                return await stored.append(*entries, expect=expect)
            except HeadMoved as moved:
                if await self._hop(history.is_contradicted, stored.sync, after=expect, upto=moved.actual):
                    await self._lose(stored, progress, expected=expected, actual=moved.actual)
                expect = moved.actual
        raise HeadMoved(expected, expect)

    async def _lose(self, stored: segue.AsyncSession, progress: Progress, *, expected: int, actual: int) -> None:
        """What the run has stored is taken back, in one entry, so that only whole turns remain."""
        if progress.seqs:
            taken = history.retraction(progress.seqs, "another run was faster", refs=(history.CONFLICT,))
            await stored.append(taken)
        progress.lost = TurnLost(self.session_id, expected=expected, actual=actual, taken_back=len(progress.seqs))
        progress.seqs = []
        raise progress.lost

    async def _pop(self, progress: Progress | None) -> Any | None:
        stored = await self._find()
        if stored is None:
            return None
        for _ in range(ATTEMPTS_MAX):
            base, items = await self._hop(history.read, stored.sync, 1, as_stored=True)
            if not items:
                return None
            self._check_free(stored)
            entry = _popping(base, items[0])
            try:
                appended = await self._append(stored, [entry], expect=base.head)
            except HeadMoved:
                continue
            self._moved(progress, appended)
            if self.erases:
                await self._hop(erase, stored.sync, (items[0].seq or base.cut,))
            return items[0].value
        raise HeadMoved(base.head, stored.info.head)

    async def _clear(self, progress: Progress | None) -> None:
        stored = await self._find()
        for _ in range(ATTEMPTS_MAX):
            if stored is None:
                return
            base, items = await self._hop(history.read, stored.sync, 1)
            if items:
                self._check_free(stored)
                try:
                    appended = await self._append(stored, [history.cut(base.head, "cleared")], expect=base.head)
                except HeadMoved:
                    continue
                self._moved(progress, appended)
            if self.erases:
                await self._hop(erase_all, stored.sync)
            return

    def _check_free(self, stored: segue.AsyncSession) -> None:
        """A turn's history is not shortened by others while it runs."""
        lease = stored.info.lease
        if lease is not None and lease.state == "running" and turn_of(stored.id) is None:
            raise Busy(lease.run)

    @staticmethod
    def _moved(progress: Progress | None, appended: Appended) -> None:
        if progress is not None and progress.expected is not None:
            progress.expected = appended.head

    # Compaction: what wrappers such as the SDK's OpenAIResponsesCompactionSession ask for.

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> Any | None:
        from .compaction import snapshot

        if _transforms(type(self)):
            return None  # what it stores is not what it shows: it must replace by itself
        return await snapshot(self, limit, prune_prefix)


def _transforms(kind: type) -> bool:
    own = {id(getattr(SegueSession, name)) for name in ("get_items", "add_items")}
    return {id(getattr(kind, name)) for name in ("get_items", "add_items")} != own


def _whole(items: list[Any]) -> list[Any]:
    """Without outputs whose call is cut off: under a callback the SDK would send them, and the provider refuse them."""
    rules = formats.rules(history.FORMAT)
    if rules is None:
        return items
    called: set[str] = set()
    kept: list[Any] = []
    for item in items:
        called |= {call.id for call in rules.calls(item)}
        if called.issuperset(rules.results(item)):
            kept.append(item)
    return kept


def _popping(base: history.Ground, item: Item) -> Draft:
    if item.seq:
        return history.retraction([item.seq], "popped")
    return history.cut(base.start, "popped", summary=base.summary[:-1])


def erase(stored: segue.Session, seqs: Sequence[int]) -> None:
    """Erase entries for good; those that a fork inherits belong to its parent, and stay there."""
    own = [seq for seq in seqs if seq > stored.info.base]
    for start in range(0, len(own), BATCH_MAX):
        stored.hollow(*own[start : start + BATCH_MAX])


def erase_all(stored: segue.Session) -> None:
    """Erase all content of the conversation that the last clearing stands before."""
    base = history.ground(stored)
    kinds = (*history.KINDS, "cut", "agents.state")
    erase(stored, [entry.seq for entry in stored.history(upto=base.cut - 1, kinds=kinds) if not entry.is_hollow])


def _parts(entries: list[Draft]) -> list[list[Draft]]:
    """Batches that one append takes: nearly always one."""
    parts: list[list[Draft]] = [[]]
    size = 0
    for entry in entries:
        size += len(entry.body)
        if parts[-1] and (len(parts[-1]) == BATCH_MAX or size > PART_MAX_BYTES):
            parts.append([])
            size = len(entry.body)
        parts[-1].append(entry)
    return parts


def _settings(value: SessionSettings | Mapping[str, Any] | None) -> SessionSettings:
    if value is None:
        return SessionSettings()
    if not isinstance(value, Mapping):
        return value
    unknown = set(value) - {field.name for field in fields(SessionSettings)}
    if unknown:
        raise Invalid(f"unknown session settings: {', '.join(sorted(map(str, unknown)))}", where="session_settings")
    return SessionSettings(**value)


def key_of(session_id: str) -> str:
    """The caller's key of a session id: the id itself, or its digest where it cannot be a key."""
    if not isinstance(session_id, str):
        raise Invalid(f"session_id must be a str, not {type(session_id).__name__}", where="session_id")
    raw = session_id.encode("utf-8", "surrogatepass")
    if 1 <= len(raw) <= NAME_MAX_BYTES and not _UNFIT.search(session_id) and not session_id.startswith("sha256:"):
        return session_id
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def cache_key(session_id: str) -> str:
    """The prompt cache key that the SDK itself makes of a session's id."""
    digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"agents-sdk:session:{digest[:32]}"
