"""
Sessions in a folder of JSON lines, for people: read it, search it, put it under version control.

    folder/segue.json                       the format of the folder
    folder/<tenant>/<user>/<session>.jsonl  a session: its first line says whose it is, then a line an entry
    folder/<tenant>/<user>/<session>.lease  who advances it in this moment

Durable in the strict sense: what ``commit`` acknowledges was written and synced, file and directory.
Any number of processes of one machine may use a folder at once; one writes at a time, readers need no
lock. The lines are the truth: whatever a handle knows besides is rebuilt from them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from segue.errors import Closed, Corrupt, Invalid, NotDone, NotFound, ReadOnly, SegueError, TooNew, Unavailable
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import READ_MAX, Filter, Op, Page, Report, Result

from ._jsonl_check import Checker
from ._jsonl_disk import LOCK, Disk, Folder, FolderLock, Place, make_folder, mapped
from ._jsonl_entries import Span
from ._jsonl_lines import FORMAT
from ._jsonl_names import INDEX, LEASE, SESSION, TEMPORARY
from ._jsonl_read import Moved, damaged, fetch
from ._jsonl_shelf import Shelf, scopes_of
from ._jsonl_summary import Moment, Summary
from ._jsonl_table import Table
from ._jsonl_work import Work
from ._jsonl_write import Writer
from ._listing import page_of
from ._local import Clock, network_file_system

BUSY_TIMEOUT = timedelta(seconds=10)
"""How long a commit waits for other processes', before it is ``Locked``."""

ABOUT = "segue.json"
"""The file at the top of the folder that says what it is."""

INDEX_EVERY = 1_000
"""After how many writes to its sessions a scope's index file is written again."""

INDEX_SHARE = 20
"""A handle that is closed writes the index file of a scope when it wrote to one session in so many."""

CLOSE_WAIT_SECONDS = 0.2
"""How long ``close`` waits for the lock to write the index files; it does without them then."""

_TRIES = 20
_FOR_GIT = {
    ".gitignore": f"{LOCK}\n*{LEASE}\n{INDEX}\n{TEMPORARY}*\n",
    ".gitattributes": f"*{SESSION} -text\n",  # git must not touch line ends
}

T = TypeVar("T")
Wanted = tuple[Table, list[Span]]


class _About(msgspec.Struct):
    format: int
    store: str = "jsonl"


class JsonlStore:
    """
    A store in a folder of JSON lines (``jsonl:folder``).

    Args:
        folder: Made, private to its owner, when it is not there; else it must be empty or a folder of Segue's.
        busy_timeout: How long to wait for other processes' commits before ``Locked``.
        read_only: Only readings; takes no lock and works on a medium without writes, too.
        allow_network: Use a network file system all the same. Locks and syncs may not hold there.
        disk: The system calls that change the folder, for tests.

    Raises:
        Unavailable: The folder cannot be used; the message says why and what to do.
        Invalid: Something else is in it.
        Corrupt: Its ``segue.json`` is damaged.
        TooNew: A newer Segue wrote it; nothing was touched.
    """

    name = "jsonl"
    capabilities = frozenset({"durable", "processes", "disk"})
    lanes = 1

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        busy_timeout: timedelta = BUSY_TIMEOUT,
        read_only: bool = False,
        allow_network: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self.on_change: Callable[[str | None], None] | None = None
        path = _folder_of(folder, read_only=read_only, allow_network=allow_network)
        self._disk = disk or Disk()
        self._clock = Clock()
        self._is_read_only = read_only
        self._folder = Folder(path, self._disk)
        self._shelf = Shelf()
        self._writer = Writer(self._folder, self._disk, self._shelf)
        self._lock = FolderLock(self._folder.top, busy_timeout.total_seconds())
        self._is_closed = False
        self._begin()
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            self._folder.close()
            raise
        _stores.add(self)

    def _begin(self) -> None:
        self._writing = threading.Lock()
        self._gate = threading.Condition()
        self._users = 0

    def _claim(self) -> None:
        """See what the folder is, or make it Segue's."""
        if self._is_read_only:
            if not self._is_ours():
                raise Invalid(f"{self._folder.path} is no folder of Segue's; open it without read_only to make it one")
            return
        if not self._is_ours():
            self._check_empty()  # before the lock leaves a file in a folder that is not ours
        with self._lock.held():
            if self._is_ours():
                return
            self._check_empty()
            top = self._folder.top
            with self._writer.rewriting(top):
                for name, text in _FOR_GIT.items():
                    if top.stat(name) is None:
                        top.replace(name, [text.encode()])
                top.replace(ABOUT, [msgspec.json.encode(_About(FORMAT)) + b"\n"])

    def _check_empty(self) -> None:
        others = [name for name in self._folder.top.names() if not name.startswith(".") and name != LOCK]
        if others and not self._is_ours():  # another process may have made it ours meanwhile
            raise Invalid(
                f"{self._folder.path} holds {others[0]!r} and no {ABOUT}; choose an empty folder "
                f'(or, if that file was lost, put back {{"format":{FORMAT},"store":"jsonl"}})',
                where="folder",
            )

    def _is_ours(self) -> bool:
        where = self._folder.top.shown(ABOUT)
        data = self._folder.top.read(ABOUT)
        if data is None:
            return False
        try:
            about = msgspec.json.decode(data, type=_About)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"{where} is damaged ({error}); restore it from a backup") from error
        if about.store != "jsonl":
            raise Invalid(f"{where} names another kind of store: {about.store!r}; open it as that", where="folder")
        if about.format > FORMAT:
            raise TooNew(about.format, FORMAT, where)
        return True

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, with one write and one sync a file. See ``segue.store.Store.commit``."""
        with self._using():
            if self._is_read_only:
                raise ReadOnly(f"{self._folder.path} was opened with read_only; open it without to write")
            try:
                with mapped(self._folder.path), self._writing, self._lock.held():
                    self._writer.check_may_write()
                    results = Work(self._folder, self._shelf, self._writer, self._moment()).do(ops)
                    self._save_indexes()
                    return results
            except (FileNotFoundError, Moved) as error:
                raise Unavailable(
                    f"{self._folder.path}: another program removed or replaced files of a session while it was locked; "
                    "stop that one, then call again"
                ) from error

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""

        def read(place: Place) -> SessionInfo:
            with self._shelf.lock:
                table = self._shelf.living(place, scope, session, full=False)
                table.summary.known_row()
                return table.summary.info(scope, self._moment(), self._shelf.lease(place, scope, table))

        return self._reading(scope, read, NotFound(session))

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""

        def read(place: Place) -> SessionInfo | None:
            with self._shelf.lock:
                for table, lease in self._shelf.all(place, scope):
                    row = table.summary.row
                    if row is not None and row.key == key and not table.summary.is_erased:
                        table.summary.known_row()
                        return table.summary.info(scope, self._moment(), lease)
            return None

        return self._reading(scope, read, None)

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""

        def read(place: Place) -> list[SessionInfo]:
            at = self._moment()
            with self._shelf.lock:
                return [
                    table.summary.info(scope, at, lease)
                    for table, lease in self._shelf.all(place, scope)
                    if table.summary.row is not None and not table.summary.is_erased
                ]

        return page_of(self._reading(scope, read, []), scope, filter, cursor=cursor, limit=limit)

    def read(
        self,
        scope: ScopeKey,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: tuple[str, ...] | None = None,
        reverse: bool = False,
        limit: int = READ_MAX,
    ) -> list[Entry]:
        """Entries with after < seq <= upto. See ``segue.store.Store.read``."""

        def read(place: Place) -> list[Entry]:
            left = min(limit, READ_MAX)
            wanted: list[Wanted] = []
            with self._shelf.lock:
                parts = self._parts(place, scope, session, after=after, upto=upto)
                for table, low, high in reversed(parts) if reverse else parts:
                    seqs: Sequence[int] = range(high, low, -1) if reverse else range(low + 1, high + 1)
                    entries = table.spans()
                    chosen = seqs if kinds is None else entries.of_kinds(seqs, kinds)
                    spans = [entries.span(seq) for seq in islice(chosen, left)]
                    wanted.append((table, spans))
                    left -= len(spans)
            return [entry for table, spans in wanted for entry in fetch(place, table, spans, session=session)]

        return self._reading(scope, read, NotFound(session))

    def by_ref(
        self,
        scope: ScopeKey,
        ref: str,
        *,
        session: str | None = None,
        after: int = 0,
        upto: int | None = None,
        since_us: int | None = None,
        reverse: bool = False,
        limit: int = READ_MAX,
    ) -> list[Hit]:
        """Entries that carry the ref. See ``segue.store.Store.by_ref``."""

        def read(place: Place) -> list[Hit]:
            with self._shelf.lock:
                if session is not None:
                    parts = self._parts(place, scope, session, after=after, upto=upto)
                else:
                    parts = self._all_parts(place, scope, after=after, upto=upto, since_us=since_us)
                found = [
                    (0 if session is not None else table.spans().created_us(seq), table.summary.session, seq, table)
                    for table, low, high in parts
                    for seq in _with_ref(table, ref, low, high)
                    if since_us is None or table.spans().created_us(seq) >= since_us
                ]
                # Of one session by seq, of all by (time, session, seq): in a history each seq is there once.
                found.sort(key=_by_seq if session is not None else _by_time, reverse=reverse)
                wanted = [(table, table.spans().span(seq)) for _us, _of, seq, table in found[: min(limit, READ_MAX)]]
            hits = _fetch_each(place, wanted, session)
            return [hit for hit in hits if ref in hit.entry.refs]

        return self._reading(scope, read, [] if session is None else NotFound(session))

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order (which is the order of code points)."""
        found: list[ScopeKey] = []
        with self._using(), mapped(self._folder.path):
            for scope in scopes_of(self._folder):
                if len(found) == limit:
                    break
                if (after is None or scope > after) and self._has_sessions(scope):
                    found.append(scope)
        return found

    def _has_sessions(self, scope: ScopeKey) -> bool:
        try:
            with self._folder.scope(scope) as place, self._shelf.lock:
                return any(not table.summary.is_erased for table, _lease in self._shelf.all(place, scope))
        except FileNotFoundError:
            return False

    # The handle.

    def now_us(self) -> int:
        """The store's clock, microseconds since 1970."""
        return self._clock.wall_us()

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._clock.shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """
        The file system, the lock, the modes, what was set aside; with ``deep`` also every line of every session.

        Damage is a finding. Nothing is changed.
        """
        with self._using():
            checker = Checker(self._folder, None if self._is_read_only else self._lock)
            return checker.settings() + (checker.sessions() if deep else [])

    def close(self) -> None:
        """Release everything. Idempotent. Later calls raise ``Closed``."""
        with self._gate:
            if self._is_closed:
                return
            self._is_closed = True
            while self._users:
                self._gate.wait()
        if not self._is_read_only and not self._writer.refuses:
            with suppress(SegueError, OSError), self._lock.held(CLOSE_WAIT_SECONDS):
                self._save_indexes(at_end=True)
        self._writer.close()
        self._lock.close()
        self._folder.close()

    # Inside.

    @contextmanager
    def _using(self) -> Iterator[None]:
        """The handle stays open until the call ends."""
        with self._gate:
            if self._is_closed:
                raise Closed("this handle on the store was closed; open another")
            self._users += 1
        try:
            yield
        finally:
            with self._gate:
                self._users -= 1
                self._gate.notify_all()

    def _reading(self, scope: ScopeKey, read: Callable[[Place], T], nothing: T | NotFound) -> T:
        """What a reading gives in the scope's directory; ``nothing`` where there is none."""
        with self._using(), mapped(self._folder.path):
            for _ in range(_TRIES):
                try:
                    with self._folder.scope(scope) as place:
                        return read(place)
                except (Moved, FileNotFoundError):
                    pass  # written anew, or made or erased, in this moment: look again
                try:
                    self._folder.scope(scope).close()
                except FileNotFoundError:
                    if isinstance(nothing, NotFound):
                        raise nothing from None
                    return nothing
        raise Unavailable(f"{self._folder.path}: the session was written anew during each reading; call again")

    def _moment(self) -> Moment:
        return Moment(self._clock.wall_us(), self._clock.boot, self._clock.tick_us())

    def _parts(
        self, place: Place, scope: ScopeKey, session: str, *, after: int, upto: int | None
    ) -> list[tuple[Table, int, int]]:
        """
        The history between two seqs: tables of the sessions that own it, each with low < seq <= high.

        Raises:
            Corrupt: A part of it has no file, or the line that names its parts is damaged.
            NotFound: The session is not there, or another process erased it in this moment.
        """
        summary = self._shelf.living(place, scope, session, full=False).summary
        end = summary.head if upto is None else min(upto, summary.head)
        parts: list[tuple[Table, int, int]] = []
        before = 0
        for owner, last in summary.parts(session):
            low, high = max(before, after), min(last, end)
            if low < high:
                table = self._shelf.table(place, scope, owner)
                own = table.summary if table else Summary(owner)
                if table is None or low < own.base or high > own.head:
                    self._shelf.living(place, scope, session, full=False)  # what it shared goes right after it
                    raise damaged(session, max(low, own.head) + 1 if low >= own.base else low + 1, place.shown(owner))
                parts.append((table, low, high))
            before = max(before, last)
        return parts

    def _all_parts(
        self, place: Place, scope: ScopeKey, *, after: int, upto: int | None, since_us: int | None
    ) -> list[tuple[Table, int, int]]:
        """What each living session of the scope owns between two seqs, where it was active since."""
        parts = []
        for summary in [table.summary for table, _lease in self._shelf.all(place, scope)]:
            if not summary.is_erased and (since_us is None or summary.active_us >= since_us):
                low, high = max(after, summary.base), summary.head if upto is None else min(upto, summary.head)
                if low < high:
                    with suppress(NotFound):  # another process erased it in this moment
                        parts.append((self._shelf.living(place, scope, summary.session), low, high))
        return parts

    def _save_indexes(self, *, at_end: bool = False) -> None:
        """Write the index files of scopes in which much changed. With the folder's lock held."""
        for scope, known in self._shelf.changed_scopes():
            if known.changed >= INDEX_EVERY or (at_end and known.changed * INDEX_SHARE >= len(known.tables)):
                with suppress(SegueError, OSError), self._folder.scope(scope) as place, self._shelf.lock:
                    known.changed = 0
                    place.replace(INDEX, [self._shelf.index_of(place, scope)])


def _folder_of(folder: str | os.PathLike[str], *, read_only: bool, allow_network: bool) -> Path:
    name = os.fspath(folder)
    if not name or "\0" in name:
        raise Invalid("a JSON-lines store needs a folder: jsonl:folder", where="folder")
    path = Path(name).absolute()
    if path.exists() and not path.is_dir():
        raise Invalid(f"{path} is a file; name a folder", where="folder")
    kind = network_file_system(path)
    if kind is not None and not allow_network:
        raise Unavailable(
            f"{path} is on a network file system ({kind}), where locks and syncs may not hold; use a disk of this "
            "machine or a server such as postgresql://, or pass allow_network=True if one machine alone uses it"
        )
    if not read_only:
        make_folder(path)
    elif not path.exists():
        raise Unavailable(f"{path} does not exist; open it once without read_only to make it")
    return path


def _with_ref(table: Table, ref: str, low: int, high: int) -> list[int]:
    """Seqs with the ref; ``Corrupt`` where a damaged entry may have carried it."""
    entries = table.spans()
    for seq in entries.damaged:
        if low < seq <= high:
            raise damaged(table.summary.session, seq, "its file")
    return [seq for seq in entries.with_ref(ref) if low < seq <= high]


def _by_seq(found: tuple[int, str, int, Table]) -> int:
    return found[2]


def _by_time(found: tuple[int, str, int, Table]) -> tuple[int, str, int]:
    return found[:3]


def _fetch_each(place: Place, wanted: Sequence[tuple[Table, Span]], session: str | None) -> list[Hit]:
    """The entries, in order, read a file at a time."""
    files: dict[str, tuple[Table, list[Span]]] = {}
    for table, span in wanted:
        files.setdefault(table.summary.session, (table, []))[1].append(span)
    entries = {
        (owner, entry.seq): entry
        for owner, (table, spans) in files.items()
        for entry in fetch(place, table, spans, session=session or owner)
    }
    owners = [(table.summary.session, span.seq) for table, span in wanted]
    return [Hit(owner, entries[owner, seq]) for owner, seq in owners]


_stores: weakref.WeakSet[JsonlStore] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child has no lock, no threads and no half-read tables of its parent."""
    for store in list(_stores):
        store._begin()  # noqa: SLF001
        store._shelf.clear()  # noqa: SLF001
        store._writer.begin_anew()  # noqa: SLF001
        store._lock.reopen()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
