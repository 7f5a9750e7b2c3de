"""A file, by the hash of its content."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from segue.errors import Invalid, Locked, StaleRead
from segue.ledger import Answer, Denied, Gone, Unanswered, Version
from segue.model import new_id

_CHUNK_BYTES = 1024 * 1024
_LOCK_SECONDS = 5.0
_SETTLED_NS = 2_000_000_000


class File:
    """
    The version is the SHA-256 of the content.

    Args:
        roots: Folders inside which files may be looked at, links resolved. A relative name belongs to
            the first.
        hash_always_bytes: Files up to this size are always hashed. Larger ones are taken to be
            unchanged while size, mtime, ctime and inode are those of the last hashing.
        hash_max_bytes: Larger files are not hashed: unverifiable, unless the shortcut tells.

    The source is ``file:`` and a path. Outside the roots nothing is looked at, not even whether it exists.

    Blind spots: for files over ``hash_always_bytes``, an edit that keeps size, mtime, ctime and inode (a
    file system without ctime, a clock set back, writes through a memory map that were not flushed). Metadata
    (owner, mode) is not part of the version. A change that was undone before the check does not show.
    """

    def __init__(
        self,
        *,
        roots: Iterable[str | Path],
        hash_always_bytes: int = 1024 * 1024,
        hash_max_bytes: int = 1024 * 1024 * 1024,
    ) -> None:
        self._roots = tuple(Path(os.path.realpath(root)) for root in roots)
        if not self._roots:
            raise Invalid("name at least one folder in which files may be looked at", where="roots")
        self._hash_always_bytes = hash_always_bytes
        self._hash_max_bytes = hash_max_bytes

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """The file's version now; looked at with the rights of this process, whoever the principal is."""
        name = source.removeprefix("file:")
        name = name.removeprefix("//") if name.startswith("///") else name
        path = Path(os.path.realpath(self._roots[0] / name))
        root = next((root for root in self._roots if path.is_relative_to(root)), None)
        if root is None:
            return Unanswered("outside the folders that may be looked at")
        try:
            return _version(path, seen, self._hash_always_bytes, self._hash_max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return Gone() if root.is_dir() else Unanswered("the folder that holds it is not there; is it mounted?")
        except PermissionError:
            return Denied()


def file_version(path: str | Path) -> Version:
    """
    The version that ``File`` gives a file that a tool reads: take it before reading, so that no change is missed.

    Raises:
        Invalid: No regular file, or over 1 GiB.
        OSError: It cannot be opened.
    """
    answer = _version(Path(path), None, 0, _CHUNK_BYTES * 1024)
    if isinstance(answer, Version):
        return answer
    raise Invalid(f"{path}: {getattr(answer, 'reason', '')}")


def replace_file(path: str | Path, data: str | bytes, expect: Version | str | None) -> Version:
    """
    Compare, then replace a file in one step, as seen by all who write it this way.

    Args:
        path: The file; a link is followed.
        data: Its new content; a str as UTF-8.
        expect: The version (or its value) that the caller has seen; None: there must be no file yet.

    Returns:
        The version of the new content, durable.

    Raises:
        StaleRead: The file is not as expected; nothing was written. Read it again.
        Locked: Others kept replacing files of this folder for 5 s.

    Writers that do not lock the folder (editors) are not kept out between the comparison and the
    replacement.
    """
    path = Path(os.path.realpath(path))
    raw = data.encode() if isinstance(data, str) else data
    wanted = expect.value if isinstance(expect, Version) else expect
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        _lock(folder, path.parent)
        held = file_version(path).value if path.exists() else None
        if held != wanted:
            raise StaleRead(f"file:{path}", wanted, held)
        _replace(path, raw)
        os.fsync(folder)
    finally:
        os.close(folder)  # and with it the lock
    return Version("sha256", hashlib.sha256(raw).hexdigest())


def _lock(folder: int, path: Path) -> None:
    import fcntl  # not on every system that can read files

    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Locked(f"others keep replacing files in {path}; try again") from None
            time.sleep(0.002)


def _replace(path: Path, raw: bytes) -> None:
    beside = path.with_name(f".{path.name[:100]}.{new_id()}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            if path.exists():
                os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
            file.flush()
            os.fsync(handle)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _version(path: Path, seen: Version | None, hash_always_bytes: int, hash_max_bytes: int) -> Answer:
    # O_NONBLOCK: opening a pipe must not hang; O_NOFOLLOW: the path was resolved, a link is a race.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            return Unanswered("not a regular file")
        if before.st_size > hash_always_bytes and seen and seen.kind == "sha256" and seen.hint == _hint(before):
            return seen
        if before.st_size > hash_max_bytes:
            return Unanswered(f"over {hash_max_bytes:,} bytes, not hashed")
        value = _sha256(handle)
        after = os.fstat(handle)
    finally:
        os.close(handle)
    # A file written within the last moments may be written again in the same tick: no shortcut for it.
    is_settled = time.time_ns() - after.st_mtime_ns > _SETTLED_NS and _hint(before) == _hint(after)
    return Version("sha256", value, _hint(after) if is_settled else "")


def _hint(found: os.stat_result) -> str:
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"


def _sha256(handle: int) -> str:
    hashing = hashlib.sha256()
    while chunk := os.read(handle, _CHUNK_BYTES):
        hashing.update(chunk)
    return hashing.hexdigest()
