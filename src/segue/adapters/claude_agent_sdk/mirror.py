"""
The mirror: transcripts of the SDK in sessions of Segue. Blocking code; ``store.py`` is its async face.

Who is late. A writer has seen a head: what it read, and what it wrote since. When its lines go on a
conversation that somebody else has gone on with meanwhile, they become a fork of what it had seen,
with a session id of its own, reported and listed. So nothing is interleaved, overtaken or lost.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from segue import Scope, Session
from segue.errors import (
    Archived,
    Exists,
    HeadMoved,
    IdConflict,
    Invalid,
    LeaseLost,
    NotDone,
    NotFound,
    SegueError,
)
from segue.log import BATCH_MAX_BYTES
from segue.model import Draft, Entry, Parent, SessionInfo
from segue.store import BATCH_MAX, Appended

from . import lines
from .lines import Batch
from .place import FORMAT, Place, id_of
from .writers import Writer, Writers

TURN = "claude.turn"
"""Kind of the entry that a turn begins with: whoever has not seen it is late."""

FORKED = "claude.fork"
"""Kind of the entry that reports a late writer's fork in the session that it left."""

HANDLES_MAX = 4_096
"""Most sessions, and most summaries, that one store object keeps in memory."""

FOLD_SECONDS = 60.0
"""How long a summary is kept in memory: the text of an erased line leaves the list after at most this time."""

_ALL = ("running", "idle", "paused", "completed", "archived")
_SMALL = 8  # a session up to this head may hold no line yet
_log = logging.getLogger("segue.claude")


class Forked(NamedTuple):
    """
    A late writer's entries went into a fork.

    Attributes:
        session_id: The session that it wanted to go on with.
        fork_id: The session that has its entries; resume it by this id.
        at: Up to which entry the two are the same.
        reason: Why, in a sentence.
    """

    session_id: str
    fork_id: str
    at: int
    reason: str


class Folded(NamedTuple):
    """A summary up to a head, and when its fold was begun."""

    head: int
    data: dict[str, Any]
    began: float


_UNFOLDED = Folded(0, {}, -math.inf)


class Mirror:
    """Transcripts in the sessions of one scope."""

    def __init__(self, scope: Scope, fold: Callable[..., Any], on_fork: Callable[[Forked], None] | None = None) -> None:
        self.scope = scope
        self._summarise = fold
        self.writers = Writers()
        self._on_fork = on_fork
        self._handles: OrderedDict[Place, Session] = OrderedDict()
        self._folded: OrderedDict[str, Folded] = OrderedDict()
        self._lock = threading.Lock()  # over both: they are shared by the threads of all callers

    # Writing

    def append(self, place: Place, batch: Batch, writer: Writer) -> None:
        """Store the lines of one append at their place, or in the fork of a late writer."""
        with writer.lock:
            if writer.is_restored:
                writer.is_restored = False
                fork = Place(place.project, writer.id)
                writer.fork = fork if self.session(fork) is not None else None
            if writer.fork is not None:
                self._append_plain(place._replace(session=writer.fork.session), batch)
            elif place.subpath or not batch.is_linked:
                self._append_plain(place, batch, writer)
            else:
                self._append_linked(place, batch, writer)

    def _append_plain(self, place: Place, batch: Batch, writer: Writer | None = None) -> None:
        """Lines that go on no conversation (a title, a mode, a subagent's): nobody is late with them."""
        for _ in range(3):
            session = self.session(place) or self._create(place, batch)
            try:
                done = put(session, batch.drafts)
            except NotFound:
                self._lost(place, session, writer, batch)
                continue
            except Archived:
                if writer is None or place.subpath:
                    raise
                return self._fork_off(session, batch, writer, "the session was archived meanwhile")
            self._name(session, batch)
            if writer is not None and not place.subpath and writer.session is None:
                writer.session = session.id
                writer.head = done.head if done.head == done.new else None
            return None
        raise NotFound(place.session)

    def _append_linked(self, place: Place, batch: Batch, writer: Writer) -> None:
        session = self.session(place) or self._create(place, batch)
        reason = self._why_late(session, batch, writer)
        while not reason:
            try:
                done = put(session, batch.drafts, expect=writer.head, run=writer.run)
            except HeadMoved as moved:
                if self._has_seen(session, batch, writer, moved.actual):
                    writer.head = moved.actual
                else:
                    reason = "another writer went on with the session since it was read"
            except LeaseLost:
                if writer.run is not None:
                    reason = "another run took the session over"
            except Archived:
                reason = "the session was archived meanwhile"
            except NotFound:
                self._lost(place, session, writer, batch)
                session = self._create(place, batch)
            else:
                writer.session, writer.head = session.id, max(done.head, writer.head or 0)
                self._name(session, batch)
                return
        self._fork_off(session, batch, writer, reason)

    def _why_late(self, session: Session, batch: Batch, writer: Writer) -> str:
        """Why the writer's first lines cannot go into the session; empty: they can."""
        if writer.session is None:
            writer.head = session.refresh().head
            writer.session = session.id
            if batch.root is not None and self._has_other_root(session, batch.root):
                writer.head = 0
                return "the session id is taken by another conversation"
        elif writer.session != session.id and not writer.has_read:
            writer.session, writer.head = session.id, 0  # it was deleted here and begins anew
        elif writer.session != session.id:
            raise NotFound(session.id)
        elif batch.root is not None and not writer.has_read and self._has_other_root(session, batch.root):
            writer.head = 0
            return "the session id is taken by another conversation"
        if writer.busy is not None and writer.run is None:
            lease = session.refresh().lease
            if lease is not None and lease.run == writer.busy and lease.state == "running":
                return f"run {lease.run} held the session when it was read, and still does"
            writer.busy = None
        return ""

    def _has_other_root(self, session: Session, root: str) -> bool:
        return any(hit.entry.id != root for hit in session.by_ref(lines.ROOT, limit=1))

    def _has_seen(self, session: Session, batch: Batch, writer: Writer, upto: int) -> bool:
        """
        Whether what was appended since is the writer's own, or goes on no conversation.

        A batch that names a line as coming before it has seen that line, and all before it.
        """
        seen = False
        for entry in session.read(after=writer.head or 0, upto=upto, kinds=(lines.LINE, TURN), reverse=True):
            if entry.kind == TURN:
                return seen or (writer.run is not None and entry.run == writer.run.id)
            if entry.id in batch.parents:
                return True
            if _is_linked(entry):
                return False
        return True

    def _lost(self, place: Place, session: Session, writer: Writer | None, batch: Batch) -> None:
        """The session was erased: its own writers are refused, a new conversation may begin in its name."""
        self._forget(place)
        is_its_own = writer is not None and (writer.has_read or writer.session == session.id)
        if is_its_own and batch.root is None and writer is not None and writer.session is not None:
            raise NotFound(session.id)
        if writer is not None:
            writer.session, writer.head = None, None

    def _create(self, place: Place, batch: Batch) -> Session:
        if place.subpath:
            main = self.session(place.main)
            parent = None if main is None else Parent(main.id, main.info.head, "child")
            return self._made(place, listed=False, parent=parent)
        return self._made(place, title=(batch.title or batch.prompt)[:200])

    def make(self, place: Place) -> Session:
        """The session of a place, made if there is none: for a turn that begins one."""
        return self.session(place) or self._made(place)

    def _made(self, place: Place, **options: Any) -> Session:
        made = self.scope.open_key(place.key, format=FORMAT, tags=place.tags, metadata=place.metadata, **options)
        self._remember(place, made)
        return made

    def _name(self, session: Session, batch: Batch) -> None:
        """The SDK's title is the session's: what ``segue ls`` shows."""
        title = batch.title or (batch.prompt if not session.info.title else None)
        title = title and title[:500]
        if title and session.info.title != title:
            try:
                session.rename(title)
            except SegueError as error:
                _log.info("session %s: its title was not kept: %s", session.id, error)

    # A late writer

    def _fork_off(self, session: Session, batch: Batch, writer: Writer, reason: str) -> None:
        """The late writer's lines become a fork of what it had seen; asked again, it is the same fork."""
        at = min(writer.head or 0, session.refresh().head)
        place = Place(writer.place.project, writer.id)
        fork = self.session(place)
        if fork is None:
            fork = self._fork(session, place, at, title=f"{session.info.title[:480]} (fork)".lstrip())
            self._remember(place, fork)
        if at:
            self._fork_children(writer.place, place)
        put(fork, batch.drafts)
        writer.fork = place
        self._report(session, Forked(writer.place.session, place.session, at, reason))

    def _fork(self, session: Session, place: Place, at: int, **options: Any) -> Session:
        return session.fork(
            at, id=id_of(place.session), key=place.key, tags=place.tags, metadata=place.metadata, **options
        )

    def _fork_children(self, old: Place, new: Place) -> None:
        for place, child in self._children(old):
            mine = Place(new.project, new.session, place.subpath)
            if self.scope.get_key(mine.key) is None:
                child.fork(key=mine.key, tags=mine.tags, metadata=mine.metadata)

    def _report(self, session: Session, forked: Forked) -> None:
        _log.warning(
            "session %s: %s; what this writer says goes into the fork %s (the same up to entry %d)",
            forked.session_id, forked.reason, forked.fork_id, forked.at,
        )  # fmt: skip
        try:
            session.append(forked._asdict(), kind=FORKED, format="segue", origin="system", ids=[f"f:{forked.fork_id}"])
        except NotDone as error:
            _log.info("session %s: the fork is not noted in it: %s", session.id, error)
        if self._on_fork is not None:
            self._on_fork(forked)

    # Reading

    def session(self, place: Place) -> Session | None:
        """The session of a place, or None; a fork that Segue made is found by its own id."""
        with self._lock:
            found = self._handles.get(place)
            if found is not None:
                self._handles.move_to_end(place)
                return found
        found = self.scope.get_key(place.key) or self._adopted(place)
        if found is not None:
            self._remember(place, found)
        return found

    def _remember(self, place: Place, session: Session) -> None:
        with self._lock:
            self._handles[place] = session
            if len(self._handles) > HANDLES_MAX:
                self._handles.popitem(last=False)

    def _forget(self, place: Place) -> None:
        with self._lock:
            self._handles.pop(place, None)

    def _adopted(self, place: Place) -> Session | None:
        """A fork made by Segue is given its name, and forks of its parent's subagents, when it is first asked for."""
        id = None if place.subpath else id_of(place.session)
        try:
            found = None if id is None else self.scope.open(id)
        except NotFound:
            return None
        if found is None or Place.from_info(found.info) != place or found.info.parent is None:
            return None
        parent = Place.from_info(self.scope.open(found.info.parent.session).info)
        try:
            found.update(key=place.key, metadata={**found.info.metadata, **place.metadata})
        except Exists:
            return self.scope.get_key(place.key)
        if parent is not None:
            self._fork_children(parent, place)
        return found

    def load(self, place: Place) -> tuple[list[dict[str, Any]], Writer] | None:
        """
        The whole transcript, and a writer that has seen it; None when there is none.

        Raises:
            Archived: It was put away, or its lifetime ended.
            Corrupt: It is damaged.
        """
        session = self.living(place)
        if session is None:
            return None
        info = session.info
        found = lines.decode(session.history(upto=info.head, kinds=lines.KINDS), session=info.id)
        if info.base:
            _rename(found, place.session)
        writer = Writer(place)
        writer.session, writer.head, writer.has_read, writer.info = info.id, info.head, True, info
        if info.lease is not None and info.lease.state == "running":
            writer.busy = info.lease.run
        return (found, writer) if found else None

    def living(self, place: Place) -> Session | None:
        """The session as it is now, or ``Archived``; what the handle knew may have been erased and begun anew."""
        for _ in range(2):
            session = self.session(place)
            if session is None:
                return None
            try:
                session.check_lifetime()
            except NotFound:
                self._forget(place)
            else:
                return session
        return None

    def transcripts(self, project: str) -> list[tuple[Place, SessionInfo]]:
        """The main transcripts of a project, forks included, last active first."""
        tag = Place(project, "").project_tag
        found = [(Place.from_info(info), info) for info in self.scope.iterate(tag=tag)]
        return [(place, info) for place, info in found if place is not None and self._has_lines(info)]

    def _has_lines(self, info: SessionInfo) -> bool:
        if info.head > _SMALL:
            return True
        try:
            return bool(info.head and self.scope.open(info.id).read(kinds=lines.KINDS, limit=1))
        except NotFound:
            return False

    def summaries(self, project: str) -> Iterator[tuple[Place, SessionInfo, dict[str, Any]]]:
        """Of each main transcript the SDK's summary: the fold of its lines, and of nothing else."""
        for place, info in self.transcripts(project):
            try:
                yield place, info, self._fold(place, info)
            except NotFound:
                continue

    def _fold(self, place: Place, info: SessionInfo) -> dict[str, Any]:
        with self._lock:
            known = self._folded.get(info.id, _UNFOLDED)
        if time.monotonic() - known.began > FOLD_SECONDS:
            known = _UNFOLDED
        if known.head < info.head:
            session = self.scope.open(info.id)
            marked = [line for entry in _marked(session, known.head, info.head) for line in lines.whole(session, entry)]
            before = {"session_id": place.session, "mtime": 0, "data": known.data} if known.head else None
            key = {"project_key": place.project, "session_id": place.session}
            data = self._summarise(before, key, marked)["data"]
            known = Folded(info.head, data, known.began if known.head else time.monotonic())
            with self._lock:
                self._folded[info.id] = known
                if len(self._folded) > HANDLES_MAX:
                    self._folded.popitem(last=False)
        return dict(known.data)

    def subpaths(self, place: Place) -> list[str]:
        """Subpaths of a session's subagents."""
        self.session(place.main)  # a fork that Segue made gets its subagents when it is first asked for
        return sorted(child.subpath for child, _ in self._children(place))

    def _children(self, place: Place) -> list[tuple[Place, Session]]:
        infos = self.scope.iterate(tag=place.session_tag, unlisted=True, status=_ALL)
        found = [(Place.from_info(info), info.id) for info in list(infos)]
        return [
            (child, self.scope.open(id))
            for child, id in found
            if child is not None and child.subpath and child.main == place.main
        ]

    def delete(self, place: Place) -> None:
        """Erase a transcript for good, a main one with those of its subagents. Unknown is done already."""
        self._forget(place)
        doomed = [] if place.subpath else self._children(place)
        session = self.session(place)
        for each, one in [*doomed, *([(place, session)] if session is not None else [])]:
            one.erase()
            self._forget(each)
        if not place.subpath:
            self.writers.forget(place)


def _marked(session: Session, after: int, upto: int) -> Iterator[Entry]:
    while True:
        hits = session.by_ref(lines.FOLD, after=after, upto=upto, limit=1_000)
        yield from (hit.entry for hit in hits)
        if len(hits) < 1_000:
            return
        after = hits[-1].entry.seq


def put(session: Session, drafts: Sequence[Draft], *, expect: int | None = None, run: Any = None) -> Appended:
    """
    Append entries, as many at a time as one append takes; the first ones only if nothing came between.

    An entry whose id is known with other content is kept beside the transcript, as a mismatch.
    """
    done = Appended(0, (), 0)
    for some in _split(drafts):
        done = _put_some(session, some, expect, run)
        expect = done.head if expect is not None else None
    return done


def _put_some(session: Session, drafts: list[Draft], expect: int | None, run: Any) -> Appended:
    for _ in range(len(drafts) + 1):
        try:
            if run is not None:
                return run.append(*drafts, expect=expect)  # type: ignore[no-any-return]
            return session.append(*drafts, expect=expect)
        except IdConflict as conflict:
            _log.warning(
                "session %s: line %s came again with other content; the first one stays, the other is kept beside it",
                session.id, conflict.entry_id,
            )  # fmt: skip
            drafts = [lines.mismatch(one) if one.id == conflict.entry_id else one for one in drafts]
    raise Invalid("the lines conflict with each other; nothing was stored", where="entries")


def _split(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    some: list[Draft] = []
    size = 0
    for draft in drafts:
        if some and (len(some) == BATCH_MAX or size + len(draft.body) > BATCH_MAX_BYTES):
            yield some
            some, size = [], 0
        some.append(draft)
        size += len(draft.body)
    if some:
        yield some


def _is_linked(entry: Entry) -> bool:
    if entry.body is None or entry.kind != lines.LINE:
        return False
    if entry.format == lines.PARTS_FORMAT:
        return True  # a line that large is a message
    return any("parentUuid" in line for line in lines.decode([entry], session=""))


def _rename(found: list[dict[str, Any]], session: str) -> None:
    """A fork's inherited lines name the session they were written in; the CLI wants the one it resumes."""
    for line in found:
        if "sessionId" in line:
            line["sessionId"] = session
