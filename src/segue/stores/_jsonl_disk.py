"""
The folder on disk: every call that changes it, and the rules they follow.

Nothing outside the folder is reached: each step is taken from an open directory and follows no
symbolic link. A name is durable when its directory was synced, content when its file was. An error of
a sync is never answered by another sync: what the disk then holds is unknown.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from segue.errors import Corrupt, DiskFull, Locked, ReadOnly, SegueError, Unavailable
from segue.model import ScopeKey

from ._jsonl_names import TEMPORARY, file_of
from ._local import PRIVATE

DIRECTORY_MODE = 0o700
LOCK = "segue.lock"

_CHUNK_BYTES = 1 << 20
_POLL_MAX_SECONDS = 0.01
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a planted pipe must not block an open
_temporary_numbers = itertools.count(1)


class Disk:
    """The system calls that change files and directories; a test records, refuses or forgets them here."""

    def open(self, name: str, flags: int, at: int) -> int:
        """Open a file for writing, or make it; private whatever the umask."""
        opened = os.open(name, flags | _FLAGS, PRIVATE, dir_fd=at)
        if flags & os.O_EXCL:
            os.fchmod(opened, PRIVATE)
        return opened

    def write(self, file: int, data: memoryview) -> int:
        """Write at the end (the file was opened to append), or where it stands."""
        return os.write(file, data)

    def overwrite(self, file: int, data: bytes, offset: int) -> int:
        """Write in place."""
        return os.pwrite(file, data, offset)

    def truncate(self, file: int, size: int) -> None:
        """Drop all that lies behind ``size``."""
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """Make the content of a file, or the names in a directory, survive a power loss."""
        if sys.platform == "darwin":  # its fsync stops at the drive's cache
            with suppress(OSError):
                fcntl.fcntl(file, fcntl.F_FULLFSYNC)
                return
        os.fsync(file)

    def mkdir(self, name: str, at: int) -> None:
        """Make a private directory."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=at)
        os.chmod(name, DIRECTORY_MODE, dir_fd=at)

    def rename(self, old: str, new: str, at: int) -> None:
        """Put a file in the place of another, in one step."""
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=at)

    def unlink(self, name: str, at: int) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=at)


def typed(error: OSError, path: str) -> SegueError:
    """The typed error for an error of the system."""
    code, why = error.errno or 0, os.strerror(error.errno or 0)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: {why}; free some space and call again")
    if code == errno.EFBIG:
        return DiskFull(f"{path}: {why}; raise the limit (ulimit -f) or move to a file system for larger files")
    if code in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnly(f"{path}: {why}; give this user the right to write there")
    if code in (errno.ELOOP, errno.ENOTDIR):
        return Corrupt(f"{path} is a symbolic link or no directory; Segue follows none: see who put it there")
    return Unavailable(f"{path}: {why}; mend the cause and call again")


@contextmanager
def mapped(path: str) -> Iterator[None]:
    """Errors of the system as typed ones. A file that is not there is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise typed(error, path) from error


class Place:
    """An open directory of the folder. Close it, or use it as a context manager."""

    def __init__(self, disk: Disk, opened: int, path: str) -> None:
        self.disk = disk
        self.fd = opened
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self.fd)

    def shown(self, name: str) -> str:
        """How a message names a file here."""
        return f"{self.path}/{name}"

    def enter(self, name: str, *, make: bool = False) -> Place:
        """A directory inside this one; FileNotFoundError when it is not there and not to be made."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            opened = os.open(name, flags, dir_fd=self.fd)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                self.disk.mkdir(name, self.fd)
            self.disk.sync(self.fd)
            opened = os.open(name, flags, dir_fd=self.fd)
        except OSError as error:
            raise typed(error, self.shown(name)) from error
        return Place(self.disk, opened, self.shown(name))

    def names(self) -> list[str]:
        """All names here, sorted."""
        return sorted(os.listdir(self.fd))  # noqa: PTH208 - of an open directory

    def stat(self, name: str) -> os.stat_result | None:
        """What a regular file is like; None when there is none. ``Corrupt`` when it is something else."""
        try:
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise Corrupt(f"{self.shown(name)} is no regular file; Segue follows no links: see who put it there")
        return found

    @contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A file, open to read; FileNotFoundError when it is not there."""
        try:
            opened = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=self.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise typed(error, self.shown(name)) from error
        try:
            yield opened
        finally:
            os.close(opened)

    def read(self, name: str) -> bytes | None:
        """A whole small file; None when there is none."""
        try:
            with self.reading(name) as opened, mapped(self.shown(name)):
                return b"".join(iter(lambda: os.read(opened, _CHUNK_BYTES), b""))
        except FileNotFoundError:
            return None

    def opened_to_append(self, name: str, *, make: bool) -> int:
        """A file, open to write at its end; the caller closes it."""
        flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT | os.O_EXCL if make else 0)
        return self.disk.open(name, flags, self.fd)

    def sync(self) -> None:
        """Make the names here survive a power loss."""
        self.disk.sync(self.fd)

    def replace(self, name: str, pieces: Iterable[bytes]) -> None:
        """
        Put a new content in the place of a file: the old one is there whole until the new one is.

        The directory is left to be synced by the caller.
        """
        temporary = f"{TEMPORARY}{os.getpid()}-{next(_temporary_numbers)}"
        self.remove(temporary)  # of a process that had the same number and was killed; the lock is ours
        opened = self.disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.fd)
        try:
            try:
                for piece in pieces:
                    write_all(self.disk, opened, piece)
                self.disk.sync(opened)
            finally:
                os.close(opened)
            self.disk.rename(temporary, name, self.fd)
        except BaseException:
            with suppress(OSError):
                self.disk.unlink(temporary, self.fd)
            raise

    def remove(self, name: str) -> bool:
        """Remove a file; False when there was none. The directory is left to be synced by the caller."""
        try:
            self.disk.unlink(name, self.fd)
        except FileNotFoundError:
            return False
        return True


def write_all(disk: Disk, opened: int, data: bytes) -> None:
    """All of the data. The system may take less at a time; when it takes no more it says why."""
    rest = memoryview(data)
    while rest:
        rest = rest[disk.write(opened, rest) :]


class Folder:
    """
    The top of the store, open.

    Args:
        path: An existing directory.
        disk: The system calls.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = str(path)
        with mapped(self.path):
            opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.top = Place(disk, opened, self.path)

    def scope(self, scope: ScopeKey, *, make: bool = False) -> Place:
        """The directory of a scope; FileNotFoundError when it is not there and not to be made."""
        with self.top.enter(file_of(scope.tenant), make=make) as tenant:
            return tenant.enter(file_of(scope.user), make=make)

    def close(self) -> None:
        """Let go of the directory."""
        self.top.close()


def make_folder(path: Path) -> None:
    """Make a directory and those above it, each private and durable."""
    if path.is_dir():
        return
    with mapped(str(path)):
        if not path.parent.is_dir():
            make_folder(path.parent)
        with suppress(FileExistsError):
            path.mkdir(DIRECTORY_MODE)
            path.chmod(DIRECTORY_MODE)
        parent = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


class FolderLock:
    """
    The one writer of a folder, whichever process it lives in.

    The system gives the lock back when its holder dies. It belongs to this handle alone: two handles
    of one process exclude each other, and a forked child must ``reopen`` before it writes.
    """

    def __init__(self, top: Place, wait_seconds: float, pause: Callable[[float], None] = time.sleep) -> None:
        self._top = top
        self._wait_seconds = wait_seconds
        self._pause = pause
        self._fd = -1

    @contextmanager
    def held(self, wait_seconds: float | None = None) -> Iterator[None]:
        """
        The lock, for one commit.

        Args:
            wait_seconds: How long to wait for it, where not as long as the handle may.

        Raises:
            Locked: Another process holds it for longer than the handle may wait.
        """
        with mapped(self._top.shown(LOCK)):
            self._take(self._wait_seconds if wait_seconds is None else wait_seconds)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def is_free(self) -> bool:
        """Whether nobody writes in this moment."""
        self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def reopen(self) -> None:
        """Let go of a file that a forked child shares with its parent."""
        self.close()

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self, wait_seconds: float) -> None:
        until = time.monotonic() + wait_seconds
        pause = 0.0002
        while True:
            self._open()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise self._locked() from None
                self._pause(pause)
                pause = min(pause * 1.5, _POLL_MAX_SECONDS)
                continue
            if self._is_current():
                return
            self.close()  # somebody removed the file: the lock that counts is on the new one

    def _open(self) -> None:
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | _FLAGS
            self._fd = os.open(LOCK, flags, PRIVATE, dir_fd=self._top.fd)
            if not os.fstat(self._fd).st_mode & stat.S_IRUSR:  # made under a strange umask
                os.fchmod(self._fd, PRIVATE)

    def _is_current(self) -> bool:
        found, mine = self._top.stat(LOCK), os.fstat(self._fd)
        return found is not None and (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _locked(self) -> Locked:
        holder = _holder(os.fstat(self._fd).st_ino)
        who = f"process {holder}" if holder else "another process"
        return Locked(
            f"{who} holds {self._top.shown(LOCK)} for more than {self._wait_seconds:g} s; "
            "see whether it hangs, then call again"
        )


def _holder(inode: int) -> str:
    """Who holds a lock, where the system tells (Linux)."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "->" not in fields and len(fields) > 5 and fields[5].endswith(f":{inode}"):
                return fields[4]
    return ""
