"""Sessions and their scope: the only door to data."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from . import log
from .attributes import checked, filtered, inherited, moment, parent_of, window
from .engine import Engine, Pause, Watch
from .errors import Archived, Exists, IdConflict, Invalid, NotFound, VersionMoved
from .log import Log
from .model import (
    Draft,
    Entry,
    Hit,
    Parent,
    Policy,
    ScopeKey,
    SessionInfo,
    Usage,
    check_count,
    check_name,
    check_names,
    check_type,
    new_id,
    to_us,
)
from .run import TTL, WAIT, Run, acquire
from .store import LIST_MAX, READ_MAX, Appended, Create, Erase, Erased, Fork, Hollow, Update
from .view import View, ViewSpec, build

if TYPE_CHECKING:  # what a resume needs is imported by the first resume
    from .anew import Extract
    from .config import AgentConfig
    from .resume import ConfigPolicy, Resumed


class SessionList(NamedTuple):
    """One page of sessions, and the cursor of the next (None: that was all)."""

    sessions: tuple[SessionInfo, ...]
    cursor: str | None


def is_over(since: float, silence: timedelta | None) -> bool:
    """(inner) Whether nothing came for so long that a follower ends."""
    return silence is not None and time.monotonic() - since >= silence.total_seconds()


class Session:
    """
    One session: an append-only log under one id, owned by one scope.

    Attributes:
        info: Its row as this handle last saw it; ``refresh()`` reads it again.
    """

    info: SessionInfo

    def __init__(self, log: Log, info: SessionInfo) -> None:
        self._log = log
        self.info = info

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.info.title!r} {self.info.status}, head {self.info.head}>"

    @property
    def id(self) -> str:
        """Its id, unique within the scope."""
        return self._log.id

    @property
    def log(self) -> Log:
        """(inner) Engine, scope and id, for the layers that read the log themselves."""
        return self._log

    def refresh(self) -> SessionInfo:
        """
        Read the row again.

        Raises:
            NotFound: It was erased meanwhile.
        """
        self.info = self._log.info()
        return self.info

    # Entries

    def append(
        self,
        *items: Any,
        kind: str = "message",
        format: str | None = None,
        ids: Sequence[str] | None = None,
        expect: int | None = None,
        **options: Any,
    ) -> Appended:
        """
        Append all items without a run, or none: imports, mirrors, facts that arrive late.

        A conversation is advanced in a run (``with session.run() as run``), which only one caller has at a time.

        Args:
            items: 1 to 1,000 messages (or other values); see ``segue.draft`` for the options.
            kind: What they are; see ``segue.model.KINDS``.
            format: Whose JSON they are; None: the session's own format.
            ids: One id an item, for a caller that may ask again; the same id is stored once.
            expect: The head the caller has seen; 0 means empty.

        Returns:
            The new head, the seq of each item, and how many were new.

        Raises:
            Busy: A run is active, and the items are messages.
            HeadMoved: Something was appended since; read it and decide again.
            IdConflict: An id is known with other content.
            Archived: Restore the session first.
            NotFound: No such session in this scope.

        Guarantees: G1 durable, G2 atomic, G3 no gaps, G4 exact, G6 once.
        """
        entries = self.drafts(items, ids, kind=kind, format=format, **options)
        return self._log.append(entries, expect=expect)

    def drafts(
        self, items: Sequence[Any], ids: Sequence[str] | None = None, *, format: str | None = None, **options: Any
    ) -> tuple[Draft, ...]:
        """(inner) The entries that ``append`` would store, checked."""
        return log.drafts(items, ids, format=format or self.info.format, **options)

    def read(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[str] | None = None,
        last: int | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[Entry]:
        """
        Entries of the log, a fork's inherited ones included.

        Args:
            after: Only entries with a higher seq.
            upto: Only entries up to this seq; None: the head.
            kinds: Only these kinds; None: all.
            last: The last n of them, in ascending order.
            reverse: Newest first.
            limit: At most this many; None: all.

        Raises:
            Corrupt: A stored entry is damaged (guarantee G11).
            NotFound: No such session in this scope.
        """
        kinds = window(kinds, after=after, upto=upto, last=last, limit=limit)
        if last is None:
            return self._log.read(after=after, upto=upto, kinds=kinds, reverse=reverse, limit=limit)
        found = self._log.read(after=after, upto=upto, kinds=kinds, reverse=True, limit=last)
        return found if reverse else found[::-1]

    def history(
        self, *, after: int = 0, upto: int | None = None, kinds: Sequence[str] | None = None
    ) -> Iterator[Entry]:
        """All entries up to the present head, read in pages, so that memory stays bounded."""
        kinds = window(kinds, after=after, upto=upto)
        return self._log.iterate(after=after, upto=upto, kinds=kinds, page=1_000)

    def follow(
        self, *, after: int = 0, kinds: Sequence[str] | None = None, silence: timedelta | None = None
    ) -> Iterator[Entry]:
        """
        Every entry behind ``after``, once and in order, then each new one as it is stored, by any process.

        Args:
            after: The last seq that the caller has; 0: from the beginning.
            kinds: Only these kinds; None: all.
            silence: End when nothing came for so long; None: go on until the caller stops.

        Raises:
            NotFound: It was erased meanwhile.
        """
        kinds = window(kinds, after=after)
        if silence is not None:
            check_type(silence, timedelta, "silence")
        watch = Watch(self._log.engine, self.id)
        try:
            quiet_since = time.monotonic()
            while True:
                entries = self._log.next_after(after)
                for entry in entries:
                    after = entry.seq
                    if kinds is None or entry.kind in kinds:
                        yield entry
                if entries:
                    quiet_since = time.monotonic()
                elif is_over(quiet_since, silence):
                    return
                else:
                    watch.wait(watch.pause(None if silence is None else silence.total_seconds()))
        finally:
            watch.close()

    def by_ref(
        self, ref: str, *, after: int = 0, upto: int | None = None, reverse: bool = False, limit: int = READ_MAX
    ) -> list[Hit]:
        """Entries of this session that carry a ref (``call:…``, ``source:…``, ``cut``), by index."""
        window(None, after=after, upto=upto, limit=check_count(limit, "limit"))
        return self._log.by_ref(check_name(ref, "ref"), after=after, upto=upto, reverse=bool(reverse), limit=limit)

    def hollow(self, *seqs: int) -> int:
        """
        Erase the content of entries for good; seq, id and digest stay, so that nothing moves.

        Returns:
            How many had content.

        Raises:
            Invalid: There is no such entry here, it belongs to the session this one was forked from, or
                it is a retraction, a mask or a cut that holds, here or in a fork that shares it: without it the
                view would show what it hides. ``compaction.undo`` takes a cut back where that is meant.
        """
        entries = [e for seq in seqs for e in self._log.read(after=max(0, check_count(seq, "seqs") - 1), upto=seq)]
        held: dict[int, str] = {}
        if any(entry.kind == "cut" for entry in entries):
            from .compaction import holding

            held = holding(self._log)
        for entry in entries:
            if entry.kind in ("retract", "mask") or entry.seq in held:
                of = "" if held.get(entry.seq, self.id) == self.id else f" of the fork {held[entry.seq]!r}"
                raise Invalid(f"entry {entry.seq} is a {entry.kind}{of}: without it, what it hides shows", where="seqs")
        return self._log.engine.do(Hollow(self._log.scope, self.id, tuple(seqs)))  # type: ignore[no-any-return]

    # For the model

    def view(self, spec: ViewSpec | None = None, *, upto: int | None = None) -> View:
        """The messages for the model, computed from the log up to ``upto``. See ``segue.view``."""
        spec = ViewSpec(format=self.info.format) if spec is None else check_type(spec, ViewSpec, "spec")
        window(None, upto=upto)
        return build(self._log, spec, upto)

    def messages(self, *, format: str | None = None, upto: int | None = None) -> list[Any]:
        """
        The messages for the model, outside a run: calls left open are answered in the view only.

        Raises:
            ViewInvalid: The history breaks a rule of the provider that cannot be mended in the view.

        Guarantees: G10 valid.
        """
        return self.view(ViewSpec(format=format or self.info.format), upto=upto).messages

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
    ) -> Run:
        """
        Start a run: take the session's lease. Use it as a context manager.

        Args:
            policy: When another run is active: ``reject`` (Busy), ``enqueue`` (wait, first come first
                served), ``interrupt`` (fence the other off, keep its finished work), ``rollback``
                (the same, and retract its messages; observations and effects stay, they happened).
            wait: Longest wait of ``enqueue``; None: for ever.
            ttl: Lease time without renewal; a run renews it while its process lives.
            id: Id of the run, for a caller that may ask again: the same id gets the same lease.
            agent: The agent's configuration; pinned to the session by its first run.
            config: When it differs from the pinned one: ``ask``, ``pin`` or ``adopt``.
            keep_open: Ids of calls that this run will answer itself (a person has approved them): they are
                not settled as interrupted.

        Raises:
            ConfigDrift: It differs, and ``config`` is ``ask``.
            Busy: Another run is active (``reject``); ``run`` names it.
            QueueTimeout: The wait ran out; the place in the queue was given up.
            Archived: Restore the session first.
            NotFound: No such session in this scope.

        Guarantees: G5 fenced.
        """
        return self._log.engine.drive(
            self.acquire(policy=policy, wait=wait, ttl=ttl, id=id, agent=agent, config=config, keep_open=keep_open)
        )

    def acquire(
        self, *, agent: AgentConfig | None = None, config: ConfigPolicy = "ask", **options: Any
    ) -> Generator[Pause, None, Run]:
        """(inner) The procedure of ``run``, whose pauses the caller drives."""
        _encoded(agent)
        self.check_lifetime()

        def prepare(_: Run) -> tuple[Draft, ...]:
            from .resume import configure

            return configure(self._log, self._log.info(), agent, config)

        return acquire(self._log, format=self.info.format, prepare=prepare if agent else None, **options)

    def check_lifetime(self) -> None:
        """(inner) ``Archived`` when the session is archived or its lifetime has ended."""
        info = self.refresh()
        due = info.due_at
        if info.state == "archived" or (
            due is not None and not info.is_pinned and to_us(due) <= self._log.engine.store.now_us()
        ):
            raise Archived(self.id)

    # Attributes

    def update(self, *, expect: int | None = None, **changes: Any) -> SessionInfo:
        """
        Change attributes of the session; entries are not touched, and appends never disturb this.

        Args:
            expect: The ``info.version`` that the caller has seen, or None.
            changes: title, tags, metadata (whole), pinned, listed, key, idle, expires_at.

        Raises:
            VersionMoved: Somebody changed the attributes since; read them and decide again.
            Invalid: Unknown name or a value over its limit.
            Exists: The key belongs to another session.
        """
        return self._update(checked(changes), expect)

    def _update(self, changes: Mapping[str, Any], expect: int | None = None) -> SessionInfo:
        self.info = self._log.engine.do(Update(self._log.scope, self.id, changes, expect))
        return self.info

    def rename(self, title: str) -> SessionInfo:
        """Set the title, at most 500 characters."""
        return self.update(title=title)

    def tag(self, *add: str, remove: Sequence[str] = ()) -> SessionInfo:
        """Add and remove tags; others set meanwhile stay."""
        added, removed = set(check_names(add, "tags")), set(check_names(remove, "remove"))
        return self._change(lambda info: {"tags": tuple((set(info.tags) | added) - removed)})

    def set_metadata(self, patch: Mapping[str, Any]) -> SessionInfo:
        """Set the caller's own fields; None deletes one. Fields set meanwhile by others stay."""
        if not isinstance(patch, Mapping):
            raise Invalid(f"patch must be a mapping, not a {type(patch).__name__}", where="patch")
        return self._change(
            lambda info: {"metadata": {k: v for k, v in {**info.metadata, **patch}.items() if v is not None}}
        )

    def _change(self, change: Any) -> SessionInfo:
        for _ in range(100):
            info = self.refresh()
            try:
                return self.update(expect=info.version, **change(info))
            except VersionMoved:
                continue
        raise VersionMoved(info.version, self.refresh().version)

    def pin(self) -> SessionInfo:
        """Pin it: a pinned session is never swept."""
        return self.update(pinned=True)

    def unpin(self) -> SessionInfo:
        """Let sweeps see it again."""
        return self.update(pinned=False)

    def end(self) -> SessionInfo:
        """Mark it completed. A new message, a run or ``reopen()`` makes it active again."""
        return self._update({"state": "completed"})

    def reopen(self) -> SessionInfo:
        """Make a completed session active. An archived one needs ``restore()``."""
        if self.refresh().state == "archived":
            raise Archived(self.id)
        return self._update({"state": "active"})

    def archive(self) -> SessionInfo:
        """
        Put it away: hidden from lists, no appends, nothing deleted.

        Raises:
            Busy: A run is active on it.
        """
        return self._update({"state": "archived"})

    def restore(self) -> SessionInfo:
        """Bring an archived or expired session back; its idle lifetime starts again, a past end is lifted."""
        info = self.refresh()
        changes: dict[str, Any] = {"state": "active"}
        if info.expires_at is not None and to_us(info.expires_at) <= self._log.engine.store.now_us():
            changes["expires_us"] = None
        self._update(changes)
        # The idle lifetime counts from the last entry, so the restoration is one.
        self.append({"action": "restored"}, kind="segue.status", format="segue", origin="system")
        return self.refresh()

    # Relatives and end

    def fork(self, at: int | None = None, *, id: str | None = None, **options: Any) -> Session:
        """
        A new session that shares entries 1..at and goes on by itself. Nothing is copied, the parent never changes.

        Args:
            at: The last entry to share; None: the head.
            id: Id of the fork, for a caller that may ask again.
            options: title, tags, metadata, key, pinned, idle, expires_at; what is not given is
                taken from this session (but the key and the pin).

        Raises:
            Invalid: ``at`` lies beyond the head.

        Guarantees: G8 the parent never changes.
        """
        info = self.refresh()
        at = info.head if at is None else at
        if check_count(at, "at") > info.head:
            raise Invalid(f"at must lie between 0 and the head ({info.head}), not {at!r}", where="at")
        create = Create(
            self._log.scope,
            new_id() if id is None else check_name(id, "id"),
            format=info.format,
            parent=Parent(self.id, at, "fork"),
            **{"config": info.config, **inherited(info), **checked(options)},
        )
        made = self._log.engine.do(Fork(create, self.id, at))
        return Session(self._log._replace(id=made.id), made)

    def start_anew(
        self,
        summary: str | Callable[[Extract], str] | None = None,
        *,
        id: str | None = None,
        language: str = "en",
        **options: Any,
    ) -> Session:
        """
        A new session that goes on from this one with a summary: goals, decisions, open points, effects.

        Readings are not taken along: what the new session says of the world it must read itself. Both
        know of each other: the new one has this one as parent (link ``anew``), this one has an entry
        with the ref ``anew``. This one is left as it is; ``end()`` it if it is over.

        Args:
            summary: The text; or a callable that makes one from the extract (ask a model in it); None:
                the extract as plain text, made without a model.
            id: Id of the new session, for a caller that may ask again.
            language: Of the plain text.
            options: agent, and as for ``fork``; what is not given is taken from this session (but the key,
                the pin, and the configuration, which the first run pins).

        Raises:
            Archived: Restore this one first.
            Invalid: An unknown option or language, or a summary that is no text.
        """
        from .anew import start

        self.check_lifetime()
        info = start(self._log, self.info, summary, id=id, language=language, options=options)
        return Session(self._log._replace(id=info.id), info)

    def child(self, name: str, *, call: str | None = None, format: str | None = None, **options: Any) -> Session:
        """
        The session of a sub-agent: its own log, run and config; made by the first call, found by the next.

        Args:
            name: Which of this session's children; a retry after a crash gets the same one by it.
            call: Id of the tool call that it is made for; the link keeps that of the first.
            format: Whose JSON its messages are; None: this session's format.
            options: title, tags, metadata, idle, expires_at, listed (False unless given).

        Returns:
            A session whose parent is this one (link ``child``), named by an entry here (ref ``child``).

        Raises:
            NotFound: This session was erased.
            Exists: The child of this name was erased, which is for good; choose another name.
        """
        id = hashlib.sha256(f"{self.id}/{check_name(name, 'name')}".encode()).hexdigest()[:32]
        body = {"session": id, "name": name, "call": call}
        refs = ("child", f"child:{id}")
        link = log.draft(body, kind="segue.child", format="segue", origin="system", id=f"child:{id}", refs=refs)
        try:
            seq = self._log.append((link,)).seqs[0]
        except IdConflict as known:  # it was made for another call
            seq = known.seq
        create = Create(
            self._log.scope,
            id,
            format=check_name(format or self.info.format, "format"),
            parent=Parent(self.id, seq, "child"),
            **{"is_listed": False, **checked(options)},
        )
        made = self._log.engine.do(create)
        return Session(self._log._replace(id=made.id), made)

    def erase(self) -> Erased:
        """
        Erase it for good, whatever its state. Entries that its forks share live on in them alone.

        Returns:
            How many entries were erased, and how many forks still share.

        Guarantees: G9 deleted stays deleted.
        """
        return self._log.engine.do(Erase(self._log.scope, self.id))  # type: ignore[no-any-return]


class Scope:
    """A tenant's user: everything that can be done to their sessions, and to nobody else's (guarantee G7)."""

    key: ScopeKey

    def __init__(self, engine: Engine, key: ScopeKey) -> None:
        self._engine = engine
        self.key = key

    def __repr__(self) -> str:
        return f"<Scope tenant={self.key.tenant!r} user={self.key.user!r}>"

    def _session(self, info: SessionInfo) -> Session:
        return Session(Log(self._engine, self.key, info.id), info)

    def create(
        self,
        *,
        id: str | None = None,
        key: str | None = None,
        format: str = "anthropic",
        agent: AgentConfig | None = None,
        parent: Parent | None = None,
        **options: Any,
    ) -> Session:
        """
        Make a new session.

        Args:
            id: Its id; None: a fresh one. The same id with the same key again gives the same session.
            key: The caller's own key (a ticket, a chat id), unique within the scope.
            format: Whose JSON its messages are: anthropic, openai.responses or openai.chat.
            agent: The agent's configuration, pinned to the session.
            parent: The session it belongs to, for a sub-agent's.
            options: title (500 characters), tags (64), metadata (16 KiB of JSON), pinned, listed,
                idle (lifetime after the last activity), expires_at (end of its lifetime).

        Raises:
            Exists: The id or key is taken.
            Invalid: A value is over its limit.
        """
        create = Create(
            self.key,
            new_id() if id is None else check_name(id, "id"),
            key=None if key is None else check_name(key, "key"),
            format=check_name(format, "format"),
            config=_encoded(agent),
            parent=None if parent is None else parent_of(parent),
            **checked(options),
        )
        return self._session(self._engine.do(create))

    def open(self, id: str) -> Session:
        """
        A session by its id.

        Raises:
            NotFound: Unknown, erased or another scope's; they are not told apart.
        """
        return self._session(self._engine.store.get(self.key, _lookup(id)))

    def open_key(self, key: str, **options: Any) -> Session:
        """The session with the caller's own key; made with these options where there is none. Safe against races."""
        found = self.get_key(key)
        if found is not None:
            return found
        try:
            return self.create(key=key, **options)
        except Exists as error:
            found = self.get_key(key)  # somebody made it in the same moment
            if found is None:
                raise error from None
            return found

    def get_key(self, key: str) -> Session | None:
        """The session with the caller's own key, or None."""
        info = self._engine.store.find(self.key, check_name(key, "key"))
        return None if info is None else self._session(info)

    def by_ref(
        self, ref: str, *, since: datetime | None = None, reverse: bool = False, limit: int = 1_000
    ) -> list[Hit]:
        """Entries of all sessions of the scope that carry a ref, by time of storing."""
        window(None, limit=check_count(limit, "limit"))
        since_us, ref = moment(since, "since"), check_name(ref, "ref")
        return self._engine.store.by_ref(self.key, ref, since_us=since_us, reverse=bool(reverse), limit=limit)

    def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> SessionList:
        """
        One page of the scope's sessions, last active first.

        Args:
            limit: 1 to 1,000.
            cursor: Where the page before ended.
            filters: status (one or several; archived sessions only when named), tag, parent,
                key_prefix, since and until (last activity), pinned, unlisted (sub-agents too).

        Raises:
            Invalid: An unknown filter, or a cursor of another list.
        """
        if not isinstance(limit, int) or not 1 <= limit <= LIST_MAX:
            raise Invalid(f"limit must lie between 1 and {LIST_MAX:,}, not {limit!r}", where="limit")
        return SessionList(*self._engine.store.page(self.key, filtered(filters), cursor, limit))

    def iterate(self, **filters: Any) -> Iterator[SessionInfo]:
        """All sessions that ``list`` would show, a page at a time."""
        cursor: str | None = None
        while True:
            page = self.list(limit=200, cursor=cursor, **filters)
            yield from page.sessions
            cursor = page.cursor
            if cursor is None:
                return

    def latest(self, **filters: Any) -> Session:
        """
        The session that was active last.

        Raises:
            NotFound: There is none that fits the filters.
        """
        page = self.list(limit=1, **filters)
        if not page.sessions:
            raise NotFound("latest")
        return self._session(page.sessions[0])

    def resume(self, what: str | Session, **options: Any) -> Resumed:
        """
        Plan the continuation of a session: what happened since, and what changed. Writes nothing.

        Args:
            what: An id or a session, such as ``scope.latest()``.
            options: See ``segue.ResumeOptions``.

        Raises:
            NotFound: No such session in this scope.
            Archived: Archived or past its lifetime; ``restore()`` it first.
            ConfigDrift: The agent's configuration changed, and nothing says what to do.
        """
        from .resume import ResumeOptions, plan

        hint = "give an id, or a session such as scope.latest()"
        session = self.open(what if isinstance(what, str) else check_type(what, Session, "what", hint).id)
        session.check_lifetime()
        return plan(session.log, session.info, ResumeOptions(**options))

    def erase(self, id: str) -> Erased:
        """Erase a session for good; see ``Session.erase``."""
        return self._engine.do(Erase(self.key, _lookup(id)))  # type: ignore[no-any-return]


def _lookup(id: object) -> str:
    """An id to look for. What cannot be an id is no session; what is not a str is a mistake of the program."""
    if not isinstance(id, str):
        raise Invalid(f"id must be a str, not {type(id).__name__}", where="id")
    try:
        return check_name(id, "id")
    except Invalid:
        raise NotFound(id) from None


def _encoded(agent: AgentConfig | None) -> bytes | None:
    if agent is None:
        return None
    from .config import AgentConfig

    return check_type(agent, AgentConfig, "agent").encode()


def total(sessions: Sequence[SessionInfo]) -> Usage:
    """Tokens of several sessions together; forks count what they added, never what they share."""
    usage = Usage()
    for info in sessions:
        usage += info.usage
    return usage
