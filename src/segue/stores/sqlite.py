"""
Sessions in one SQLite file: the default store.

Durable in the strict sense: what ``commit`` acknowledges survives a power loss (write-ahead log,
``synchronous=FULL``). All operations of one ``commit`` share one transaction and one sync of the disk.
Several threads, handles and processes of one machine may use a file at once.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import apsw

from segue.errors import Invalid, NotDone, OutcomeUnknown, ReadOnly, Unavailable
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import (
    READ_MAX,
    Append,
    Create,
    Erase,
    Filter,
    Fork,
    Hollow,
    Op,
    Page,
    Release,
    Renew,
    Report,
    Result,
    Take,
    Update,
)

from . import _sqlite_migrate
from ._local import Clock
from ._sqlite_append import append
from ._sqlite_check import check
from ._sqlite_erase import erase, hollow
from ._sqlite_file import CHECKPOINT_PAGES, File, Patience, explain, explained
from ._sqlite_lease import release, renew, take
from ._sqlite_migrate import Migration
from ._sqlite_page import page
from ._sqlite_read import Range, View, clip
from ._sqlite_rows import Moment
from ._sqlite_sessions import create, fork, update
from ._sqlite_work import Names, Work

T = TypeVar("T")

BUSY_TIMEOUT = timedelta(seconds=5)
"""How long a commit waits for another process's, before it is ``Locked``."""

SCRUB_WAIT_SECONDS = 0.25
"""How long an erasure waits for other readers, so that the log can be emptied at once."""

SCRUB_PAUSE_SECONDS = 1.0
"""Time between attempts to empty a log that others were reading."""

_DO: dict[type, Callable[[Work, Any], Result]] = {
    Append: append,
    Take: take,
    Renew: renew,
    Release: release,
    Create: create,
    Fork: fork,
    Update: update,
    Hollow: hollow,
    Erase: erase,
}


class SQLiteStore:
    """
    A store in one SQLite file.

    Args:
        path: The file; made with mode 0600 when it is not there. Its folder must exist, on a disk of
            this machine.
        vfs: Name of an SQLite VFS to use instead of the system's, for tests.
        busy_timeout: How long to wait for another process's commit before ``Locked``.
        read_only: Only readings; works on a medium without writes, too.

    Raises:
        Unavailable: The file cannot be opened; the message says why and what to do.
        Invalid: It is another program's database, or a folder.
        Corrupt: It is no SQLite database, or its beginning is damaged.
        TooNew: A newer Segue wrote it; nothing was touched.
    """

    name = "sqlite"
    capabilities = frozenset({"backup", "durable", "processes", "disk"})
    lanes = 1

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vfs: str | None = None,
        busy_timeout: timedelta = BUSY_TIMEOUT,
        read_only: bool = False,
    ) -> None:
        name = os.fspath(path)
        if name in ("", ":memory:") or "\0" in name:
            raise Invalid("an SQLite store needs a file; for one in memory use memory:", where="path")
        self.on_change: Callable[[str | None], None] | None = None
        self._clock = Clock()
        self._names = Names()
        self._busy_seconds = busy_timeout.total_seconds()
        self._file = File(Path(name).absolute(), vfs=vfs, busy_seconds=self._busy_seconds, read_only=read_only)
        self._work: Work | None = None
        self._is_proven = False  # whatever this connection sees is on the disk
        self._must_scrub = False  # erased content may still be in the log
        self._scrub_at = 0.0
        self._has_lock = self._is_fork_safe = True
        with self._file.lock:
            self._adopt(self._file.open(self.now_us))
        _stores.add(self)

    # Writes.

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Do the operations in order, in one transaction with one sync. See ``segue.store.Store.commit``."""
        file = self._file
        with file.lock:
            file.check_open()
            if file.read_only:
                raise ReadOnly(f"{file.path} was opened with read_only; open it without to write")
            file.check_same()
            work = self._work or self._reopen()
            self._begin(work)
            try:
                results = [_try(work, op) for op in ops]
                if not self._is_proven and not all(isinstance(result, NotDone) for result in results):
                    work.touch()
            except BaseException as error:
                self._undo(work)
                if isinstance(error, (apsw.Error, UnicodeDecodeError)):
                    raise explain(error, file.path) from error
                raise
            if work.wrote:
                self._finish(work)
            else:
                self._undo(work)
            if work.hides or self._must_scrub:
                self._scrub(work)
            return results

    def _begin(self, work: Work) -> None:
        try:
            work.con.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            if not isinstance(error, apsw.BusyError):
                self._drop_writer()
            raise explain(error, self._file.path) from error
        work.begin(self._moment())

    def _finish(self, work: Work) -> None:
        try:
            work.con.execute("COMMIT")
        except apsw.Error as error:
            self._undo(work)
            if isinstance(error, (apsw.FullError, apsw.BusyError)):
                raise explain(error, self._file.path) from error
            self._mend()
            raise OutcomeUnknown(
                f"{self._file.path}: the disk failed at the commit ({error}); look at the system's log, "
                "then call again with the same ids"
            ) from error
        self._is_proven = True
        work.end(committed=True)

    def _undo(self, work: Work) -> None:
        """Back to before the transaction; a connection that cannot do that is not used again."""
        work.end(committed=False)
        try:
            if work.con.in_transaction:
                work.con.execute("ROLLBACK")
        except apsw.Error:
            self._drop_writer()

    def _mend(self) -> None:
        """
        After a failed sync: go on with another connection, and overwrite what the failed commit left in the log.

        Until a sync succeeds the log holds, for readers of it, what will never be on the disk: then whoever
        opens it next would take that for committed. The new connection is opened before the old one is
        closed, so that what this process knows of the log's end is not lost.
        """
        self._is_proven = False
        broken = self._work
        try:
            fresh = Work(self._file.connect(), self._names)
            fresh.con.wal_autocheckpoint(CHECKPOINT_PAGES)
            self._work = fresh
            if broken is not None:
                broken.con.close(True)
            fresh.con.execute("BEGIN IMMEDIATE")
            fresh.touch()
            fresh.con.execute("COMMIT")
            self._is_proven = True
        except (apsw.Error, Unavailable):
            if self._work is not None:
                self._undo(self._work)  # the disk still fails; the next commit tries again

    def _adopt(self, con: apsw.Connection) -> Work:
        """Make a new connection the writer."""
        self._is_proven = self._file.log_bytes() == 0
        if not self._file.read_only:
            con.wal_autocheckpoint(CHECKPOINT_PAGES)
            if not self._is_proven:
                # What a killed process has written and not synced is read back as committed, and is lost with
                # the next power loss. It is brought to the disk now or, where others read, by our first commit.
                with suppress(apsw.Error):
                    self._empty_log(con, 0.0)
        self._work = Work(con, self._names)
        return self._work

    def _reopen(self) -> Work:
        with explained(self._file.path):
            return self._adopt(self._file.connect())

    def _drop_writer(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.con.close(True)

    # The log.

    def _empty_log(self, con: apsw.Connection, seconds: float) -> bool:
        """
        Put all of the log into the database file, sync that, and empty the log.

        Returns:
            False when another program's reading is in the way.
        """
        con.set_busy_handler(Patience(seconds))
        try:
            con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            return False
        finally:
            con.set_busy_handler(Patience(self._busy_seconds))
        self._is_proven, self._must_scrub = True, False
        return True

    def _scrub(self, work: Work) -> None:
        """Take erased content out of the log, too: best effort, ``check`` tells when it was not reached."""
        now = time.monotonic()
        if not work.hides and now < self._scrub_at:
            return
        self._must_scrub = True
        self._scrub_at = now + SCRUB_PAUSE_SECONDS
        try:
            self._empty_log(work.con, SCRUB_WAIT_SECONDS if work.hides else 0.0)
        except apsw.Error:
            self._drop_writer()  # the commit itself is done; the next one opens anew

    # Readings.

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""
        return self._read(lambda view: view.get(scope, session))

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""
        return self._read(lambda view: view.find(scope, key))

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """One page of the scope's sessions. See ``segue.store.Store.page``."""
        return self._read(lambda view: page(view, scope, filter=filter, cursor=cursor, limit=limit))

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
        range = Range(after, upto, reverse, clip(limit))
        return self._read(lambda view: view.read(scope, session, range, kinds))

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
        range = Range(after, upto, reverse, clip(limit))
        if session is None:
            return self._read(lambda view: view.by_ref(scope, ref, range, since_us))
        return self._read(lambda view: view.by_ref_of(scope, ref, session, range, since_us))

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order."""
        return self._read(lambda view: view.scopes(after, limit))

    def _read(self, step: Callable[[View], T]) -> T:
        return self._file.read(lambda con: step(View(con, self._names, self._moment())))

    # The handle.

    def now_us(self) -> int:
        """The store's clock, microseconds since 1970."""
        return self._clock.wall_us()

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock. Adds to earlier shifts."""
        self._clock.shift_us += us

    def check(self, *, deep: bool) -> list[Report]:
        """Settings of the file; with ``deep`` also every row and entry. Damage is reported, never raised."""
        self._file.check_open()
        reports = check(self._file, self._moment(), deep=deep)
        if self._must_scrub:
            reports.append(Report("warn", "erased content may still be in the log: another program was reading it"))
        return reports

    def backup(self, target: str | os.PathLike[str]) -> Path:
        """
        Copy everything that is committed at this moment into a new file, while others go on reading and writing.

        Never copy the database file by other means while it is in use: what is in its log would be missing.

        Args:
            target: A new file, or a folder for one of the same name. It is made with mode 0600.

        Returns:
            The new file, on the disk; open it like any other.

        Raises:
            Invalid: There is such a file already.
            Unavailable: It cannot be written; nothing of it is left.
        """
        return self._file.copy_to(Path(target).absolute())

    def close(self) -> None:
        """Empty the log when this is the last handle on the file, and close it. Idempotent."""
        file = self._file
        _stores.discard(self)
        if not file.is_mine():
            file.mark_closed()  # the connections belong to the parent process
            return
        with file.lock:
            work, self._work = self._work, None
            file.mark_closed()
            file.close_readers(self._busy_seconds)
            file.lend_again()
            if work is not None:
                work.con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
                work.con.close(True)

    def _moment(self) -> Moment:
        clock = self._clock
        return Moment(clock.wall_us(), clock.boot, clock.tick_us())

    # Forks.

    def _before_fork(self) -> None:
        seconds = self._busy_seconds + 1
        self._has_lock = self._file.lock.acquire(timeout=seconds)
        if self._has_lock:
            self._drop_writer()
        self._is_fork_safe = self._file.close_readers(seconds) and self._has_lock

    def _after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._file.begin_child(is_safe=self._is_fork_safe)
            return
        self._file.lend_again()
        if self._has_lock:
            self._file.lock.release()


def _try(work: Work, op: Op) -> Result | NotDone:
    try:
        return _DO[type(op)](work, op)
    except NotDone as refusal:
        return refusal


def plan(path: str) -> tuple[Migration, ...]:
    """
    The migrations that a file still lacks, in order; changes nothing. A file that is not there lacks all.

    Raises:
        TooNew: A newer Segue wrote it.
        Invalid: It is another program's database.
    """
    place = Path(path)
    if not place.exists() or (place.is_file() and not place.stat().st_size):
        return _sqlite_migrate.migrations()
    file = File(place, vfs=None, busy_seconds=BUSY_TIMEOUT.total_seconds(), read_only=True)
    with closing(file.open(lambda: 0)) as con, explained(place):
        found = con.pragma("user_version")
    return tuple(step for step in _sqlite_migrate.migrations() if step.no > found)


def apply(path: str) -> tuple[Migration, ...]:
    """
    Bring a file up to date, all in one transaction with its record; it is made where there is none.

    Returns:
        The steps that it lacked.
    """
    lacked = plan(path)
    SQLiteStore(path).close()
    return lacked


_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_forking = threading.Lock()
_paused: list[SQLiteStore] = []


def _before_fork() -> None:
    _forking.acquire()
    _paused[:] = _stores
    for store in _paused:
        store._before_fork()  # noqa: SLF001


def _after_fork(*, in_child: bool) -> None:
    for store in _paused:
        store._after_fork(in_child=in_child)  # noqa: SLF001
    _paused.clear()
    _forking.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(in_child=False),
    after_in_child=lambda: _after_fork(in_child=True),
)
