"""
The file of the SQLite store: how it is opened, how its connections are shared, and what its errors mean.

Writes go through one connection, guarded by a lock; every reading borrows a connection of its own.
No connection is open while the process forks: SQLite keeps account of its locks per file in the
process's memory, and a child that inherits the account writes without a lock.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from segue.errors import Closed, Corrupt, DiskFull, Invalid, Locked, NotDone, ReadOnly, SegueError, TooNew, Unavailable

from ._local import create_private, network_file_system, sync_file
from ._sqlite_migrate import APPLICATION, FORMAT, migrate

SQLITE_MIN = (3, 51, 3)
"""Oldest SQLite that is used: earlier ones can damage a database when the log is reset (fixed in 3.51.3)."""

READERS_MAX = 8
"""Most idle connections for readings that are kept."""

CHECKPOINT_PAGES = 1_000
"""How long the log grows before its pages go into the database file, in pages of 4 KiB."""

LOG_MAX_BYTES = 64 * 1024 * 1024
"""What remains of a log that a long reading let grow."""

_SETTINGS = f"""
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;
    PRAGMA checkpoint_fullfsync = ON;
    PRAGMA foreign_keys = ON;
    PRAGMA trusted_schema = OFF;
    PRAGMA cell_size_check = ON;
    PRAGMA secure_delete = ON;
    PRAGMA temp_store = MEMORY;
    PRAGMA mmap_size = 0;
    PRAGMA journal_size_limit = {LOG_MAX_BYTES};
"""

T = TypeVar("T")

_Error = tuple[type[apsw.Error], type[SegueError], str]

_HELD = "another program holds it too long; end that program, or call again"
_NO_DATABASE = (
    "it is no SQLite database, or its beginning is damaged; nothing was changed. "
    "Choose another path, or restore a backup"
)
_DAMAGED = "it is damaged; restore a backup. What can still be read is; segue verify lists what cannot"

# What SQLite's errors mean for the caller, the most special first.
_ERRORS: tuple[_Error, ...] = (
    (apsw.BusyError, Locked, _HELD),
    (apsw.LockedError, Locked, _HELD),
    (apsw.ProtocolError, Locked, _HELD),
    (apsw.ReadOnlyError, ReadOnly, "it, its folder or its disk takes no writes; make them writable"),
    (apsw.PermissionsError, ReadOnly, "this user may not use it; change its owner or mode"),
    (apsw.FullError, DiskFull, "no space is left on its disk; free some and call again"),
    (apsw.NotADBError, Corrupt, _NO_DATABASE),
    (apsw.CorruptError, Corrupt, _DAMAGED),
    (apsw.FormatError, Corrupt, _DAMAGED),
    (apsw.ConstraintError, Corrupt, "its tables contradict each other. Run segue verify to see all damage"),
    (apsw.CantOpenError, Unavailable, "it cannot be opened; see that its folder exists and is writable"),
    (apsw.NoMemError, Unavailable, "there is not enough memory; free some and call again"),
    (apsw.IOError, Unavailable, "its disk reports an error; see the system's log, then call again"),
    (apsw.Error, Unavailable, "SQLite refused; call again, and report it if it stays"),
)  # fmt: skip


def explain(error: Exception, path: Path) -> SegueError:
    """The typed error for one of SQLite's, or for a text that is none, with the file's name and the next step."""
    if isinstance(error, UnicodeDecodeError):
        return Corrupt(f"{path}: {_DAMAGED} ({error})")
    kind = type(error)
    if isinstance(error, (apsw.IOError, apsw.CantOpenError)):
        # SQLite tells a full or closed folder from a broken disk only when it is the database file's own.
        if _is_full(path):
            kind = apsw.FullError
        elif path.exists() and not os.access(path, os.R_OK):
            kind = apsw.PermissionsError
        elif not os.access(path.parent, os.W_OK):
            kind = apsw.ReadOnlyError
    ours, what = next((ours, what) for theirs, ours, what in _ERRORS if issubclass(kind, theirs))
    return ours(f"{path}: {what} ({type(error).__name__}: {error})")


def _is_full(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Let SQLite's errors leave as typed ones."""
    try:
        yield
    except apsw.Error as error:
        raise explain(error, path) from error


class Patience:
    """
    Waits for a lock in short, uneven steps.

    SQLite's own waiting doubles its steps, so that with many writers the last comer waits longest.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self.seconds
        if now >= self._until:
            return False
        time.sleep(random.uniform(0.000_2, 0.001_2))  # noqa: S311 - not a secret
        return True


def check_library(version: str) -> None:
    """``Unavailable`` when this SQLite is one that can damage databases."""
    if tuple(int(part) for part in version.split(".")[:3]) < SQLITE_MIN:
        raise Unavailable(
            f"SQLite {version} can damage a database when its log is reset; "
            f"{'.'.join(map(str, SQLITE_MIN))} or newer is needed: pip install --upgrade apsw"
        )


class File:
    """
    A database file and the connections of this process to it.

    Args:
        path: Where it is; it is made, readable by its owner only, when it is not there.
        vfs: Name of an SQLite VFS, for tests; None: the system's.
        busy_seconds: How long to wait for another process's lock.
        read_only: Never write, not even the log's index, if that can be helped.
    """

    def __init__(self, path: Path, *, vfs: str | None, busy_seconds: float, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.is_new = False
        self._vfs = vfs
        self._busy_seconds = busy_seconds
        self._immutable = False
        self._inode: tuple[int, int] | None = None
        self._idle: list[apsw.Connection] = []
        self._closed = False
        self._pid = os.getpid()
        self._is_inherited = False
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.Lock()  # of the writer
        self._readers = threading.Condition(threading.Lock())
        self._lent = 0

    # Opening.

    def open(self, now_us: Callable[[], int]) -> apsw.Connection:
        """Make the file if need be, check that it is ours, bring it up to date. The first connection."""
        check_library(apsw.sqlite_lib_version())
        self._check_place()
        with explained(self.path):
            con = self._connect_first()
            try:
                self._check_identity(con)
                if not self.read_only:
                    self._retry(lambda: self._prepare(con, now_us))
            except BaseException:
                con.close()
                raise
        return con

    def _check_place(self) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise Unavailable(f"{self.path}: the folder {folder} does not exist; make it, or choose another path")
        if self.path.is_dir():
            raise Invalid(f"{self.path} is a folder; name a file in it", where="path")
        kind = network_file_system(folder)
        if kind is not None:
            raise Unavailable(
                f"{self.path} lies on a network file system ({kind}), where locks do not protect the data; "
                "choose a local disk, or a server store such as postgresql://"
            )
        try:
            if not self.read_only:
                self.is_new = create_private(self.path)
        except PermissionError as error:
            raise ReadOnly(f"{self.path}: the folder {folder} takes no new files; make it writable") from error
        except OSError as error:
            kind_of = DiskFull if error.errno == 28 else ReadOnly if error.errno == 30 else Unavailable
            raise kind_of(f"{self.path} cannot be made: {error.strerror}; choose another path") from error
        if not self.path.exists():
            raise Unavailable(f"{self.path} does not exist; open it once without read_only to make it")
        names = self.path.stat().st_nlink
        if names > 1:
            raise Unavailable(
                f"{self.path} has {names} names (hard links), and each gets a log of its own: what is stored through "
                "one is lost through the other. Keep the name with a -wal beside it "
                f"(find / -samefile {self.path} shows all); to copy a store use "
                "segue.stores.sqlite.SQLiteStore(path).backup(target)"
            )

    def _connect_first(self) -> apsw.Connection:
        try:
            return self.connect(check=False)
        except (apsw.CantOpenError, apsw.ReadOnlyError):
            # On a medium without writes the log's index cannot be made. Without a log nothing is lost by doing without.
            if not self.read_only or self.log_bytes():
                raise
            self._immutable = True
            return self.connect(check=False)

    def _check_identity(self, con: apsw.Connection) -> None:
        con.execute("BEGIN")  # one moment for all three: another process may be making the tables
        try:
            application = con.pragma("application_id")
            found = con.pragma("user_version")
            tables = con.execute("SELECT count(*) FROM sqlite_schema").get
        finally:
            con.execute("ROLLBACK")
        if application == APPLICATION:
            if found > FORMAT:
                raise TooNew(found, FORMAT, str(self.path))
        elif application or tables:
            raise Invalid(
                f"{self.path} is the SQLite database of another program; nothing was changed. Choose another path",
                where="path",
            )
        elif self.read_only:
            raise Unavailable(f"{self.path} is empty; open it once without read_only to make its tables")

    def _prepare(self, con: apsw.Connection, now_us: Callable[[], int]) -> None:
        if con.pragma("journal_mode") != "wal" and con.pragma("journal_mode", "wal") != "wal":
            raise Unavailable(f"{self.path}: its file system cannot hold a write-ahead log; choose another disk")
        if con.pragma("user_version") < FORMAT:
            migrate(con, now_us())

    def _retry(self, step: Callable[[], None]) -> None:
        # Changing the journal mode gives up at once when another process does the same, without asking for patience.
        patience = Patience(self._busy_seconds)
        tries = 0
        while True:
            try:
                return step()
            except (apsw.BusyError, apsw.LockedError, apsw.ProtocolError):
                if not patience(tries):
                    raise
                tries += 1

    def connect(self, *, check: bool = True) -> apsw.Connection:
        """One more connection, with all settings. ``Unavailable`` when the file is not the one it was."""
        if check:
            self.check_same()
        else:
            self._inode = self._find_inode()
        flags = apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE
        name = str(self.path)
        if self._immutable:
            flags |= apsw.SQLITE_OPEN_URI
            name = f"{self.path.absolute().as_uri()}?immutable=1"
        con = apsw.Connection(name, flags=flags, vfs=self._vfs)
        con.set_busy_handler(Patience(self._busy_seconds))
        # Only close() empties the log and removes it, never the end of an object somewhere.
        con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        con.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        # Without this SQLite plans many statements anew with every new value, which costs more than running them.
        con.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        con.execute(_SETTINGS).fetchall()  # to its end: some of them return a row
        con.wal_autocheckpoint(0)
        return con

    def check_same(self) -> None:
        """
        ``Unavailable`` when the file was moved, deleted or replaced since it was opened.

        SQLite would go on writing to the file that has no name any more, and nobody would find it again.
        """
        if self._find_inode() != self._inode:
            raise Unavailable(
                f"{self.path} was moved, deleted or replaced while it was in use; put it back, or open the store again"
            )

    def _find_inode(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    # Readings.

    def read(self, step: Callable[[apsw.Connection], T]) -> T:
        """Do one reading, on a connection within a read transaction: everything is seen as of one moment."""
        con = self._borrow()
        keep = False
        try:
            con.execute("BEGIN")
            try:
                found = step(con)
            finally:
                con.execute("ROLLBACK")
            keep = True
        except (apsw.Error, UnicodeDecodeError) as error:
            raise explain(error, self.path) from error
        except (NotDone, Corrupt):
            keep = True
            raise
        finally:
            self._give_back(con, keep=keep)
        return found

    def _borrow(self) -> apsw.Connection:
        with self._readers:
            self.check_open()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            with explained(self.path):
                return self.connect()
        except BaseException:
            self._give_back(None, keep=False)
            raise

    def _give_back(self, con: apsw.Connection | None, *, keep: bool) -> None:
        with self._readers:
            self._lent -= 1
            if con is not None:
                if keep and len(self._idle) < READERS_MAX and not self._closed:
                    self._idle.append(con)
                else:
                    con.close(True)
            if not self._lent:
                self._readers.notify_all()

    def check_open(self) -> None:
        """``Closed`` after close; ``Unavailable`` in a process that was forked past Python."""
        if self._closed:
            raise Closed(f"{self.path}: this handle was closed; open the store again")
        if not self.is_mine():
            raise Unavailable(
                f"{self.path} was opened before this process was forked, and could not be made safe for it; "
                "open the store after the fork"
            )

    def is_mine(self) -> bool:
        """Whether the connections were opened by this very process."""
        return os.getpid() == self._pid and not self._is_inherited

    # Copies.

    def copy_to(self, target: Path) -> Path:
        """
        Write all that is committed now into a new file, while others read and write.

        Returns:
            The new file; ``target``, or the file of our own name in it when it is a folder.
        """
        self.check_open()
        if target.is_dir():
            target = target / self.path.name
        try:
            if not create_private(target):
                raise Invalid(f"{target} exists; name a new file for the backup", where="target")
        except OSError as error:
            raise Unavailable(f"{target} cannot be made: {error.strerror}; choose another place") from error
        try:
            with explained(target):
                con = self.connect()
                try:
                    con.execute("VACUUM INTO ?", (str(target),))
                finally:
                    con.close()
            sync_file(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target

    # The end, and forks.

    def close_readers(self, seconds: float) -> bool:
        """
        Close all connections of readings, and lend none until ``lend_again``.

        Returns:
            False when one was still under way after that time.
        """
        until = time.monotonic() + seconds
        self._readers.acquire()
        while self._lent and time.monotonic() < until:
            self._readers.wait(max(0.0, until - time.monotonic()))
        while self._idle:
            self._idle.pop().close(True)
        return not self._lent

    def lend_again(self) -> None:
        """Let readings go on after ``close_readers``."""
        self._readers.release()

    def begin_child(self, *, is_safe: bool) -> None:
        """Start anew in a forked process: no lock and no connection is the parent's."""
        self._begin()
        self._pid = os.getpid()
        self._is_inherited = not is_safe

    def mark_closed(self) -> None:
        """From now on every use is ``Closed``."""
        self._closed = True

    def journal_mode(self, con: apsw.Connection) -> str:
        """How the file keeps its log. By its header where it is read without one: SQLite then says ``delete``."""
        if self._immutable and con.read("main", 0, 18, 2) == (True, b"\2\2"):
            return "wal"
        return str(con.pragma("journal_mode"))

    @property
    def log(self) -> Path:
        """The write-ahead log beside the database file; where that is a symbolic link, beside what it leads to."""
        return Path(f"{os.path.realpath(self.path)}-wal")

    def log_bytes(self) -> int:
        """Size of the log; 0 when there is none."""
        try:
            return self.log.stat().st_size
        except OSError:
            return 0
