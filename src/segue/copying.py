"""
Sessions of one store, copied into another with everything in them.

A copy adds what the target lacks, and compares everything else; it overwrites nothing. So it may be ended at any
point and called again: what is there is recognised by ids and digests, what is missing is added behind it. A session
that went on in the source goes on in the target; one that differs is reported as what it is.

What forks share is shared again. A parent that was erased in the source, of which forks still hold a part, is made with
that part, forked, and erased again: it leaves the same tombstone.

Times are kept by the clock of the target's handle, which is moved to the time of each entry
(``Store.shift_clock``). They come out later by what a commit takes; ``drift_us`` says by how much at most.

Some of what a session is cannot be carried over by the contract of stores. ``Copied.left`` names it, a session at a
time: the number of fences given out, the version of the attributes, the lease of a run that is active, the queue.
Sessions that were erased and live on in no fork are not told by a store, so their tombstones are not made.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .database import Database, find_store, open
from .errors import (
    Archived,
    Busy,
    Closed,
    Corrupt,
    Exists,
    Invalid,
    MissingExtra,
    NotDone,
    NotFound,
    TooNew,
    Unavailable,
    Unsupported,
    VersionMoved,
)
from .model import Entry, Parent, ScopeKey, SessionInfo, Status, to_us
from .store import LIST_MAX, Create, Erase, Filter, Fork, Op, Release, Take, Update
from .transfer import DIFFERENCES, Damaged, Difference, Differs, Outcome, Tally, Transfer

SLACK_US = 60_000_000
"""How far times are trusted: clocks were set, and copies keep times to some milliseconds."""

REBUILT = "segue.copy:erased"
"""Tag of a session that is made only to be forked and erased again, as it was in the source."""

_STATUSES: tuple[Status, ...] = ("running", "idle", "paused", "completed", "archived")
_TAKE = "attributes='source' (--source-attributes) takes the source's"
_FILES = ("sqlite:", "jsonl:")
_FATAL = (Unavailable, Closed, TooNew, MissingExtra, Unsupported)


class Copied(NamedTuple):
    """
    What became of one session.

    Attributes:
        scope, session: Which.
        outcome: ``copied`` (new in the target), ``continued`` (something was added or changed), ``unchanged``;
            ``tombstone`` (erased in the source, and so in the target, but for what forks share); ``differs``
            (nothing was overwritten; see ``difference``), ``refused`` (see ``reason``), ``damaged`` (an entry of
            either side does not match its digest; what lies before it may have been copied), ``gone`` (erased
            in the source meanwhile).
        entries: Entries that were added.
        hollowed: Entries whose content was erased in the target, because it was in the source.
        running: The run that was active in the source: the copy ends where its last batch ended; or empty.
        drift_us: Most microseconds that an entry's ``created_at`` differs from the source's.
        left: What was not carried over: ``fence``, ``version``, ``lease``, ``waiting`` (the queue), and ``hollow``
            (content erased in the target alone).
        difference: Where it differs, or None.
        reason: Why it was refused or is damaged, in words; or empty.
    """

    scope: ScopeKey
    session: str
    outcome: Outcome
    entries: int = 0
    hollowed: int = 0
    running: str = ""
    drift_us: int = 0
    left: tuple[str, ...] = ()
    difference: Difference | None = None
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        """True when the target has now all of it that a store can be given."""
        return self.outcome in ("copied", "continued", "unchanged", "tombstone", "gone")


class CopyReport(NamedTuple):
    """What a copy did, a session at a time."""

    sessions: tuple[Copied, ...]

    @property
    def entries(self) -> int:
        """How many entries were added."""
        return sum(one.entries for one in self.sessions)

    @property
    def outcomes(self) -> dict[str, int]:
        """How many sessions had each outcome."""
        return dict(Counter(one.outcome for one in self.sessions))

    @property
    def is_whole(self) -> bool:
        """True when every session is now in the target as it was in the source."""
        return all(one.is_whole for one in self.sessions)


class Progress(NamedTuple):
    """How far a copy is. Entries are those that sessions own, whether they had to be added or only compared."""

    sessions: int
    sessions_total: int
    entries: int
    entries_total: int


def copy(
    source: str | Database,
    target: str | Database,
    *,
    scope: ScopeKey | Sequence[ScopeKey] | None = None,
    running: Literal["copy", "refuse"] = "copy",
    attributes: Literal["keep", "source"] = "keep",
    each: Callable[[Copied], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CopyReport:
    """
    Copy sessions into another store, and compare digests. Call it again to go on, or to add what came since.

    Args:
        source: Its URL (files are opened for reading only), or an open database. It may be in use.
        target: Its URL, or an open database that nobody else uses meanwhile: the clock of the handle is moved.
        scope: Only the sessions of this owner, or of these; None: all owners'.
        running: What to do with a session on which a run is active: ``copy`` it up to the run's last batch (a
            later copy adds the rest), or ``refuse`` it.
        attributes: Where a session is in the target already with another title, state and so on: ``keep`` them
            and report it, unless nobody can have changed them there; or take the ``source``'s.
        each: Called with each session's outcome.
        progress: Called several times a session at most.

    Returns:
        Every session's outcome.

    Raises:
        Invalid: A URL names no store, both are the same (also by another spelling of a path, or by a link), or an
            option is unknown.
        Unavailable: A store cannot work now; call again to go on.
        Corrupt: The list of sessions is damaged. Damaged entries are reported and end only their session.

    Guarantees: G4 exact, G8 forks, G9 erased, G11 damage.
    """
    _check(source, target, running, attributes)
    with ExitStack() as opened:
        here = opened.enter_context(_read(source)) if isinstance(source, str) else source
        there = opened.enter_context(open(target)) if isinstance(target, str) else target
        copier = _Copier(here, there, running=running, attributes=attributes)
        opened.callback(copier.transfer.clock.reset)
        copier.each = each
        copier.progress = progress
        copier.run([scope] if isinstance(scope, ScopeKey) else list(here.scopes() if scope is None else scope))
        return CopyReport(tuple(copier.done))


def _check(source: object, target: object, running: object, attributes: object) -> None:
    for name, value in (("source", source), ("target", target)):
        if not isinstance(value, str | Database):
            raise Invalid(f"{name} must be a URL or a Database, not a {type(value).__name__}", where=name)
    is_same = is_same_place(source, target) if isinstance(source, str) and isinstance(target, str) else source == target
    if is_same:
        raise Invalid("source and target are the same store", where="target")
    if running not in ("copy", "refuse"):
        raise Invalid(f"running {running!r} is none of copy, refuse", where="running")
    if attributes not in ("keep", "source"):
        raise Invalid(f"attributes {attributes!r} is none of keep, source", where="attributes")


def is_same_place(source: str, target: str) -> bool:
    """Whether both URLs are one: the same words, or the same file or folder, however it is spelled or linked."""
    if source == target or not (source.startswith(_FILES) and target.startswith(_FILES)):
        return source == target
    ours, theirs = (Path(find_store(url)[2] or "") for url in (source, target))
    return ours.samefile(theirs) if ours.exists() and theirs.exists() else ours.resolve() == theirs.resolve()


def _read(url: str) -> Database:
    return open(url, **({"read_only": True} if url.startswith(_FILES) else {}))


class _Listed(NamedTuple):
    """What is kept of a session while others are copied."""

    id: str
    parent: str
    base: int
    head: int
    created_us: int
    active_us: int


class _Copier:
    """One copy under way: two stores, and what is known of the scope that is copied."""

    each: Callable[[Copied], None] | None = None
    progress: Callable[[Progress], None] | None = None

    def __init__(self, source: Database, target: Database, *, running: str, attributes: str) -> None:
        self.source = source.engine.store
        self.target = target.engine.store
        self.transfer = Transfer(self.source, self.target, lambda entries: self._tell(entries=entries))
        self.running = running
        self.attributes = attributes
        self.done: list[Copied] = []
        self.told = Progress(0, 0, 0, 0)
        self.listed: dict[str, _Listed] = {}  # of this scope
        self.erased: dict[str, Tally] = {}  # session that was erased in the source → what was done for its forks
        self.firsts: dict[str, Entry | None] = {}
        self.failed: set[str] = set()

    def run(self, scopes: Iterable[ScopeKey]) -> None:
        began = self.source.now_us() - SLACK_US
        all_of = {scope: list(self._list(scope, None)) for scope in scopes}
        for listed in all_of.values():
            self._expect(listed)
        for scope, listed in all_of.items():
            self.listed, self.transfer.common, self.erased, self.firsts = {}, {}, {}, {}
            self.failed = set()
            new = listed
            while new:
                self.listed |= {one.id: one for one in new}
                self._scope(scope, new)
                new = [one for one in self._list(scope, began) if one.id not in self.listed]  # made meanwhile
                self._expect(new)
            self._bury(scope)

    def _list(self, scope: ScopeKey, since_us: int | None) -> Iterator[_Listed]:
        filter = Filter(status=_STATUSES, include_unlisted=True, since_us=since_us)
        cursor: str | None = None
        while True:
            page = self.source.page(scope, filter, cursor, LIST_MAX)
            for info in page.sessions:
                parent = info.parent.session if info.parent is not None and info.base else ""
                times = to_us(info.created_at), to_us(info.active_at)
                yield _Listed(info.id, parent, info.base, info.head, *times)
            cursor = page.cursor
            if cursor is None:
                return

    def _expect(self, listed: Sequence[_Listed]) -> None:
        more = sum(one.head - one.base for one in listed)
        told = self.told
        self.told = told._replace(
            sessions_total=told.sessions_total + len(listed), entries_total=told.entries_total + more
        )

    def _tell(self, *, sessions: int = 0, entries: int = 0) -> None:
        self.told = self.told._replace(sessions=self.told.sessions + sessions, entries=self.told.entries + entries)
        if self.progress is not None:
            self.progress(self.told)

    def _scope(self, scope: ScopeKey, listed: Sequence[_Listed]) -> None:
        """Parents before their forks; orphans last, for by then all that they may share with is there."""
        forks: dict[str, list[_Listed]] = {}
        roots: list[_Listed] = []
        orphans: list[_Listed] = []
        here = {one.id for one in listed}
        for one in sorted(listed, key=lambda one: (one.created_us, one.id)):
            under = forks.setdefault(one.parent, []) if one.parent in here else orphans if one.parent else roots
            under.append(one)
        for first in (roots, orphans):
            queue = deque(first)
            while queue:
                one = queue.popleft()
                self._report(self._session(scope, one.id))
                self._tell(sessions=1)
                queue.extend(forks.pop(one.id, ()))

    def _report(self, copied: Copied) -> None:
        self.done.append(copied)
        if not copied.is_whole:
            self.failed.add(copied.session)
        if self.each is not None:
            self.each(copied)

    # One session.

    def _session(self, scope: ScopeKey, id: str) -> Copied:
        self.transfer.clock.reset()
        tally = Tally()
        run = ""
        try:
            ours = self.source.get(scope, id)
        except NotFound:
            return Copied(scope, id, "gone")
        except Corrupt as error:
            return Copied(scope, id, "damaged", reason=f"in the source: {error}")
        if ours.lease is not None and ours.lease.state == "running":
            run = ours.lease.run
        try:
            self._copy(ours, tally)
            failed: dict[str, Any] = {"outcome": tally.outcome}
        except Differs as found:
            failed = {"outcome": "differs", "difference": found.difference}
        except Corrupt as error:
            where = "source" if isinstance(error, Damaged) else "target"
            failed = {"outcome": "damaged", "reason": f"in the {where}: {error}"}
        except _FATAL:
            raise
        except NotDone as error:
            failed = {"outcome": "refused", "reason": str(error)}
        left = tuple(sorted(tally.left))
        return Copied(
            scope, id, **failed, entries=tally.entries, hollowed=tally.hollowed, running=run,
            drift_us=tally.drift_us, left=left,
        )  # fmt: skip

    def _copy(self, ours: SessionInfo, tally: Tally) -> None:
        lease = ours.lease
        if self.running == "refuse" and lease is not None and lease.state == "running":
            raise Busy(lease.run, message=f"run {lease.run!r} is active on it; copy it when that has ended")
        theirs = self._theirs(ours.scope, ours.id)
        if theirs is None:
            theirs = self._make(ours)
            tally.is_new = True
        elif (theirs.parent, theirs.base, theirs.format) != (ours.parent, ours.base, ours.format):
            raise Differs("identity")
        if self.attributes == "source" and theirs.state == "archived" and theirs.head < ours.head:
            theirs = self.transfer.do(Update(ours.scope, ours.id, {"state": "active"}, theirs.version))
        shared = ours.base if ours.parent and self.transfer.common.get(ours.parent.session, 0) >= ours.base else 0
        try:
            self.transfer.entries(ours.scope, ours.id, theirs, tally, after=shared, upto=ours.head)
        except Archived:
            raise Differs("attributes", f"it is archived in the target, and went on in the source; {_TAKE}") from None
        finally:
            self.transfer.clock.reset()
        if theirs.head > ours.head:
            raise Differs("ahead", seq=ours.head + 1)
        self._finish(ours, self.target.get(ours.scope, ours.id), tally)

    def _theirs(self, scope: ScopeKey, id: str) -> SessionInfo | None:
        try:
            return self.target.get(scope, id)
        except NotFound:
            return None

    def _make(self, ours: SessionInfo) -> SessionInfo:
        """The session in the target, still without entries of its own."""
        create = Create(
            ours.scope, ours.id, format=ours.format, parent=ours.parent,
            **{name: value for name, value in _attributes(ours).items() if name != "state"},
        )  # fmt: skip
        op: Op = create
        if ours.base and ours.parent is not None:
            self._make_parent(ours, ours.parent)
            op = Fork(create, ours.parent.session, ours.base)
        self.transfer.clock.set(to_us(ours.created_at))
        try:
            return self.transfer.do(op)  # type: ignore[no-any-return]
        except Exists as error:
            if error.session in (None, ours.id):
                raise Differs("erased") from None
            raise Differs("key", f"session {error.session!r} of the target has the key {ours.key!r}") from None
        finally:
            self.transfer.clock.reset()

    def _finish(self, ours: SessionInfo, theirs: SessionInfo, tally: Tally) -> None:
        """What changes besides entries: attributes, and a run that waits for a person."""
        theirs = self._settle(ours, theirs, tally)
        theirs = self._pause(ours, theirs, tally)
        gone = {
            "fence": ours.fence != theirs.fence,
            "version": ours.version != theirs.version,
            "waiting": bool(ours.waiting),
            "lease": ours.lease is not None and (theirs.lease is None or theirs.lease.run != ours.lease.run),
        }
        tally.left |= {name for name, is_left in gone.items() if is_left}

    def _settle(self, ours: SessionInfo, theirs: SessionInfo, tally: Tally) -> SessionInfo:
        own = _attributes(theirs)
        changes = {name: value for name, value in _attributes(ours).items() if own[name] != value}
        if not changes:
            return theirs
        # At version 1 nobody has changed anything since the session was made, and that was a copy.
        if theirs.version != 1 and self.attributes != "source":
            names = ", ".join(sorted(changes))
            raise Differs("attributes", f"{names} not as in the source, and perhaps changed in the target; {_TAKE}")
        if ours.archived_at is not None:
            self.transfer.clock.set(to_us(ours.archived_at))
        try:
            theirs = self.transfer.do(Update(ours.scope, ours.id, changes, theirs.version))
        except Exists as error:
            raise Differs("key", f"session {error.session!r} of the target has the key {ours.key!r}") from None
        except VersionMoved:
            theirs = self.target.get(ours.scope, ours.id)
            if _attributes(theirs) != _attributes(ours):  # else it was this very change, whose answer was lost
                raise
        finally:
            self.transfer.clock.reset()
        tally.is_changed = True
        return theirs

    def _pause(self, ours: SessionInfo, theirs: SessionInfo, tally: Tally) -> SessionInfo:
        """A paused run says that a person is waited for: it is paused in the target, too, as long as it is here."""
        lease, other = ours.lease, theirs.lease
        paused = lease if lease is not None and lease.state == "paused" else None
        if paused is not None and other is None:
            left_us = to_us(paused.expires_at) - self.source.now_us()
            granted = self.transfer.do(Take(ours.scope, ours.id, paused.run, max(left_us, 1), holder=paused.holder))
            self.transfer.do(Release(ours.scope, ours.id, paused.run, granted.fence, pause_us=max(left_us, 1)))
            tally.is_changed = True
        elif (
            other is not None and other.state == "paused" and tally.entries and (not paused or paused.run != other.run)
        ):
            self.transfer.do(Release(ours.scope, ours.id, other.run, other.fence))
        else:
            return theirs
        return self.target.get(ours.scope, ours.id)

    # What forks share.

    def _make_parent(self, ours: SessionInfo, parent: Parent) -> None:
        """See to it that the fork finds in the target what it shares."""
        scope, id = ours.scope, parent.session
        if self.transfer.common.get(id, 0) < ours.base:
            try:
                self.source.get(scope, id)
            except NotFound:
                self._make_erased(scope, id)
            else:
                if id not in self.failed:  # it was not copied yet, or not so far
                    self._report(self._session(scope, id))
        if self.transfer.common.get(id, 0) < ours.base:
            raise Differs("parent", f"it shares {ours.base} entries with {id!r}, which is not so in the target")

    def _make_erased(self, scope: ScopeKey, id: str) -> None:
        """Make the session that was erased in the source, with what its forks still hold of it."""
        longest = max((one for one in self.listed.values() if one.parent == id), key=lambda one: one.base)
        tally = self.erased.setdefault(id, Tally())
        theirs = self._theirs(scope, id)
        if theirs is None:
            first = self._first(scope, longest.id)
            assert first is not None  # it shares at least one entry
            host, at = self._relative(scope, longest, first)
            parent = Parent(host, at) if at else None
            create = Create(scope, id, tags=(REBUILT,), is_listed=False, parent=parent)
            self.transfer.clock.set(first.created_us)
            try:
                theirs = self.transfer.do(Fork(create, host, at) if at else create)
            except Exists:
                raise Differs("parent", f"it shares entries with {id!r}, which was erased in the target") from None
            finally:
                self.transfer.clock.reset()
        try:
            self.transfer.entries(scope, longest.id, theirs, tally, after=0, upto=longest.base)
        finally:
            self.transfer.clock.reset()

    def _relative(self, scope: ScopeKey, orphan: _Listed, first: Entry) -> tuple[str, int]:
        """
        The session, already copied, that shares most of what an orphan inherits, and up to which seq.

        The erased parent may have been a fork itself. The contract does not tell of whom; its entries do.
        """
        best, at = "", 0
        for one in self.listed.values():
            known = min(self.transfer.common.get(one.id, 0), orphan.base)
            is_of_that_time = one.base or one.created_us - SLACK_US <= first.created_us <= one.active_us + SLACK_US
            if known <= at or one.id == orphan.id or not is_of_that_time or self._first(scope, one.id) != first:
                continue
            low, high = 1, known  # what is shared is shared from the beginning
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._is_shared(scope, orphan.id, one.id, middle) else (low, middle - 1)
            if low > at:
                best, at = one.id, low
        return best, at

    def _first(self, scope: ScopeKey, id: str) -> Entry | None:
        """The first entry of a session of the source, without its body."""
        if id not in self.firsts:
            found = self.source.read(scope, id, upto=1)
            self.firsts[id] = found[0]._replace(body=None) if found else None
        return self.firsts[id]

    def _is_shared(self, scope: ScopeKey, one: str, other: str, seq: int) -> bool:
        mine, theirs = (self.source.read(scope, id, after=seq - 1, upto=seq)[0] for id in (one, other))
        return mine == theirs

    def _bury(self, scope: ScopeKey) -> None:
        """Erase in the target what was made only for forks to share, when they all are there."""
        for id in sorted({one.parent for one in self.listed.values()} - {"", *self.listed}):
            theirs = self._theirs(scope, id)
            forks = [one for one in self.listed.values() if one.parent == id]
            if theirs is None:
                continue
            if REBUILT not in theirs.tags:
                differs = Difference("erased-in-source", None, DIFFERENCES["erased-in-source"])
                self._report(Copied(scope, id, "differs", difference=differs))
            elif all(self.transfer.common.get(one.id, 0) >= one.base for one in forks):
                self.transfer.do(Erase(scope, id, theirs.version))
                tally = self.erased.get(id, Tally())
                self._report(Copied(scope, id, "tombstone", entries=tally.entries, drift_us=tally.drift_us))


def _attributes(info: SessionInfo) -> dict[str, Any]:
    """What may change of a session, as the store takes it."""
    return {
        "key": info.key,
        "title": info.title,
        "tags": info.tags,
        "metadata": dict(info.metadata),
        "is_pinned": info.is_pinned,
        "is_listed": info.is_listed,
        "state": info.state,
        "config": info.config,
        "idle_us": info.idle_us,
        "expires_us": None if info.expires_at is None else to_us(info.expires_at),
    }
