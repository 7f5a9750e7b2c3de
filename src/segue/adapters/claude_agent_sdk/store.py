"""The ``SessionStore`` of the Claude Agent SDK: the async face of the mirror, with the spool in front of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from claude_agent_sdk import fold_session_summary

import segue
from segue import Database, Scope
from segue.errors import Archived, Corrupt, Invalid, NotFound, Unavailable
from segue.model import SessionInfo, to_us

from . import lines
from .hooks import Hooks
from .lines import Batch
from .mirror import Forked, Mirror
from .place import Place
from .spool import Record, Spool
from .threads import Threads
from .turn import Turn
from .writers import Writer

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher
    from claude_agent_sdk.types import SessionKey, SessionStoreEntry, SessionStoreListEntry, SessionSummaryEntry

T = TypeVar("T")

PATIENCE = timedelta(seconds=1)
"""How long an append waits for the store before it goes into the spool."""

RETRY_SECONDS = (0.5, 30.0)
"""Shortest and longest pause between two attempts to send what is in the spool."""

_FOR_GOOD = (Invalid, NotFound, Archived, Corrupt)
_log = logging.getLogger("segue.claude")


class SegueSessionStore:
    """
    Sessions of the Claude Agent SDK in Segue: hand it to ``ClaudeAgentOptions(session_store=…)``.

    Args:
        where: A store's URL (``sqlite:///agent.db``, ``postgresql://…``), which this object opens
            and closes; or a scope of a database that you opened.
        tenant, user: The owner of all sessions of this object, where ``where`` is a URL. Take both
            from the login, never from a request's body.
        project: One name for all sessions, in place of the SDK's project key, which is made of the
            working directory: with it a session resumes from any directory and machine.
        spool: Folder on the local disk for what the store cannot take now. None: with a URL, a
            folder of its own below ``$XDG_STATE_HOME/segue`` (``~/.local/state/segue``); with a
            scope, none. False: none.
        patience: How long an append waits for the store before it goes into the spool.
        on_fork: Called, from any thread, with a ``Forked`` when a late writer's entries became a fork.

    Raises:
        Unavailable: The store cannot be opened.
        Invalid: The URL names no store.

    Guarantees: G1 durable, G2 atomic, G4 exact, G6 once, G7 owner, G8 forks, G9 deleted.
    """

    def __init__(
        self,
        where: str | Scope,
        *,
        tenant: str = "default",
        user: str = "local",
        project: str | None = None,
        spool: str | os.PathLike[str] | bool | None = None,
        patience: timedelta = PATIENCE,
        on_fork: Callable[[Forked], None] | None = None,
    ) -> None:
        self._database: Database | None = None
        if isinstance(where, str):
            self._database = segue.open(where)
            scope = self._database.scope(tenant, user)
            spool = _own_spool(where, tenant, user) if spool is None or spool is True else spool
        else:
            scope = where
        self.project = project
        self._mirror = Mirror(scope, fold_session_summary, on_fork)
        self._threads = Threads("segue-claude")
        self._patience = patience.total_seconds()
        self._sender = Sender(self._mirror, Spool(spool)) if isinstance(spool, str | os.PathLike) else None

    def __repr__(self) -> str:
        return f"<SegueSessionStore {self._mirror.scope!r}>"

    @property
    def scope(self) -> Scope:
        """The owner's door to the same sessions in Segue: list, search, fork, expire, erase, export."""
        return self._mirror.scope

    @property
    def mirror(self) -> Mirror:
        """(inner) The blocking half, for ``turn`` and ``hooks``."""
        return self._mirror

    def place(self, key: Mapping[str, Any]) -> Place:
        """(inner) Which session a key of the SDK names."""
        return Place.of(key, self.project)

    # The protocol

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """
        Keep the lines of a transcript, each uuid once.

        When it returns they survive a power loss: in the store, or, when the store cannot take them
        within ``patience``, in the spool. A late writer's lines become a fork; see ``docs/claude-agent-sdk.md``.

        Raises:
            NotFound: The session was deleted while its writer lived; a deleted session stays deleted.
            Invalid: A value in them is no JSON; nothing was stored.
            Unavailable: Neither the store nor the spool takes them.
        """
        if not entries:
            return
        place = self.place(key)
        sending = Sending(self._mirror, place, entries, writer=self._mirror.writers.of(place.main))
        if self._sender is None:
            await self.hop(sending.store)
            return
        sent = self._threads.start(self._sender.send, sending)
        await asyncio.wait([sent], timeout=self._patience)
        if sent.done():
            sent.result()
        else:
            sent.add_done_callback(_heard)
            await self.hop(self._sender.spool, sending)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """
        The whole transcript in its order, every line equal to what was appended; None when there is none.

        Raises:
            Archived: It was put away or its lifetime ended; ``restore()`` it first.
            Corrupt: A stored line is damaged (guarantee G11).
        """
        place = self.place(key)
        found = await self._asked(self._mirror.load, place)
        if found is None:
            return None
        if not place.subpath:
            self._mirror.writers.read(found[1])
        return found[0]  # type: ignore[return-value]  # lines are dicts of any keys

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The main transcripts of a project, forks included, last active first."""
        found = await self._asked(self._mirror.transcripts, self.project or project_key)
        return [{"session_id": place.session, "mtime": _mtime(info)} for place, info in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Of each of them the SDK's summary, equal to the fold of its lines."""
        found = await self._asked(lambda: list(self._mirror.summaries(self.project or project_key)))
        return [{"session_id": place.session, "mtime": _mtime(info), "data": data} for place, info, data in found]

    async def list_subkeys(self, key: Mapping[str, Any]) -> list[str]:
        """Subpaths of the subagents' transcripts of a session."""
        return await self._asked(self._mirror.subpaths, self.place(key))

    async def delete(self, key: SessionKey) -> None:
        """
        Erase a transcript for good; a main one with those of its subagents. Unknown keys are done already.

        Guarantees: G9 deleted stays deleted.
        """
        place = self.place(key)
        await self._asked(self._mirror.delete, place)
        if not place.subpath:
            self._mirror.writers.forget(place)  # in the context of the caller, not of the thread

    # Beside the protocol

    def turn(self, options: ClaudeAgentOptions | None = None, **how: Any) -> Turn:
        """
        A run around a query: take the session's lease before the CLI starts, tell what changed, write fenced.

        Args:
            options: As for ``query``: with ``resume``, ``continue_conversation``, ``fork_session`` or
                ``session_id``, or none of them for a new session.
            how: ``policy`` when another run is active (``reject``, ``enqueue``, ``interrupt``), ``wait``
                (longest wait of ``enqueue``), ``ttl``; ``resume`` (``ResumeOptions`` of the briefing);
                ``hooks`` (``Hooks``, or False for none).

        Returns:
            An async context manager (asyncio); its ``options`` are for ``query``. Entering it raises:
            ``Busy`` (another run is active: the CLI was not started), ``QueueTimeout``, ``NotFound``
            (nothing to resume), ``Exists`` (the session id is taken), ``Archived``.

        Guarantees: G5 fenced.
        """
        return Turn(self, options, **how)

    def hooks(self, **how: Any) -> dict[str, list[HookMatcher]]:
        """The hooks for ``ClaudeAgentOptions(hooks=…)`` where no turn is used; see ``Hooks`` for the arguments."""
        return Hooks(self, **how).matchers()

    def keep(self, place: Place, batch: Batch) -> None:
        """(inner) Record entries beside the transcript, for the hooks. Blocking."""
        sending = Sending(self._mirror, place, (), writer=self._mirror.writers.of(place.main), batch=batch)
        if self._sender is None:
            sending.store()
        else:
            self._sender.send(sending)

    async def hop(self, function: Callable[..., T], *args: Any) -> T:
        """(inner) Blocking code on a thread, in this context. Cancelling stops the waiting, not the code."""
        return await self._threads.start(function, *args)

    async def drain(self) -> int:
        """
        Send what is in the spool now; it happens by itself, too.

        Returns:
            How many records still wait.
        """
        if self._sender is None:
            return 0
        return await self.hop(self._sender.drain)

    async def aclose(self) -> None:
        """Send what is in the spool if the store takes it, then release everything. Idempotent."""
        await self.hop(self.close)

    def close(self) -> None:
        """The same for blocking code."""
        if self._sender is not None:
            self._sender.close()
        if self._database is not None:
            self._database.close()
        self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _asked(self, function: Callable[..., T], *args: Any) -> T:
        """A question: asked after what waits in the spool was sent, so that the answer has it."""
        if self._sender is not None and self._sender.is_waiting:
            await self.hop(self._sender.drain)
        return await self.hop(function, *args)


class Sending:
    """One append under way: encoded once, by the thread that stores it."""

    def __init__(
        self,
        mirror: Mirror,
        place: Place,
        entries: Sequence[Mapping[str, Any]],
        *,
        writer: Writer,
        batch: Batch | None = None,
    ) -> None:
        self.place = place
        self.writer = writer
        self._mirror = mirror
        self._entries = entries
        self._batch = batch
        self._lock = threading.Lock()

    @property
    def batch(self) -> Batch:
        """The entries to be stored; the same ids, however often it is asked."""
        with self._lock:
            if self._batch is None:
                is_main = not self.place.subpath
                spent = self.writer.spent if is_main else None
                self._batch = lines.encode(self._entries, is_main=is_main, spent=spent)
            return self._batch

    def store(self) -> None:
        """Into the store."""
        self._mirror.append(self.place, self.batch, self.writer)

    def record(self) -> Record:
        """For the spool."""
        return Record(self.place, self.writer.facts(), self.batch)


class Sender:
    """Sends appends to the store, or keeps them in the spool and sends them when the store is back."""

    def __init__(self, mirror: Mirror, spool: Spool) -> None:
        self._mirror = mirror
        self._spool = spool
        self._draining = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.is_waiting = bool(spool.paths())

    def send(self, sending: Sending) -> None:
        """Into the store, or behind what already waits."""
        _ = sending.batch  # refused here, before anything is kept
        if self.is_waiting and (self._draining.locked() or self.drain()):
            self.spool(sending)
            return
        try:
            sending.store()
        except _FOR_GOOD:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a driver throws: the lines are kept
            _log.warning("the store does not take the lines now (%s); they are kept in %s", error, self._spool.folder)
            self.spool(sending)

    def spool(self, sending: Sending) -> None:
        """Onto the local disk; a thread sends it when the store is back."""
        try:
            self._spool.put(sending.record())
        except OSError as error:
            raise Unavailable(
                f"neither the store nor the spool takes the lines: {error}; free the disk of {self._spool.folder}"
            ) from error
        self.is_waiting = True
        self._start()

    def drain(self) -> int:
        """Send what waits, oldest first, until the store refuses; how many records are left."""
        with self._draining:
            writers: dict[str, Writer] = {}
            try:
                for path, record in self._spool.records():
                    self._drain_one(path, record, writers)
            except Exception as error:  # noqa: BLE001 - the store is still away: later again
                _log.info("what is in the spool cannot be sent yet: %s", error)
            left = len(self._spool.paths())
            self.is_waiting = bool(left)
            return left

    def _drain_one(self, path: Path, record: Record, writers: dict[str, Writer]) -> None:
        place = record.place
        writer = writers.setdefault(record.writer["id"], Writer.from_facts(place.main, record.writer))
        try:
            self._mirror.append(place, record.batch, writer)
        except NotFound:
            _log.warning("session %s was deleted; what waited in the spool for it goes, too", place.session)
        except (Invalid, Archived, Corrupt) as error:
            _log.error("a record of the spool is refused for good: %s; it is put aside: %s", error, path)
            self._spool.put_aside(path)
            return
        self._spool.remove(path)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="segue-spool", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        pause, longest = RETRY_SECONDS
        while not self._wake.wait(pause) and self.drain():
            pause = min(pause * 2, longest)

    def close(self) -> None:
        """One last attempt; what is left is sent at the next start."""
        if not self._is_closed:
            self._is_closed = True
            self._wake.set()
            if self.is_waiting:
                self.drain()


def _heard(sent: asyncio.Future[None]) -> None:
    """The lines are in the spool; how the first attempt ended is of no more interest."""
    if not sent.cancelled():
        sent.exception()


def _mtime(info: SessionInfo) -> int:
    return to_us(info.active_at) // 1_000


def _own_spool(url: str, tenant: str, user: str) -> Path | None:
    """A folder for one store and one user: what waits there must never reach another's."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return None  # what outlives the process would be sent to the memory of another one
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    if scheme in ("sqlite", "jsonl"):  # one file has one spool, from whatever directory it is named
        url = str(Path.cwd() / url.partition(":")[2].removeprefix("///").removeprefix("//"))
    name = hashlib.sha256(f"{url}\0{tenant}\0{user}".encode()).hexdigest()[:32]
    return Path(state) / "segue" / "claude" / name
