"""A folder, or the files in it that fit a pattern."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from segue.ledger import Answer, Denied, Gone, Unanswered, Version


class Folder:
    """
    The version is the number of files and a digest over their names and contents.

    Args:
        root: The folder; links inside it are not followed, only their targets' names count.
        pattern: Which files, by their path inside the folder (``*.csv``); ``*`` crosses folders.
        content: False: size and mtime stand for the content.
        files_max, bytes_max: Beyond these it is unverifiable.

    Blind spots: empty folders, owners and modes. A file that changes and changes back before the check.
    With ``content=False``, edits that keep size and mtime do not show, and a touched but unchanged file alarms.
    Files are read one after the other, so the digest of a folder in motion may name a state that never was.
    """

    def __init__(
        self,
        root: str | Path,
        pattern: str = "*",
        *,
        content: bool = True,
        files_max: int = 10_000,
        bytes_max: int = 256 * 1024 * 1024,
    ) -> None:
        self._root = Path(root)
        self._pattern = pattern
        self._content = content
        self._files_max = files_max
        self._bytes_max = bytes_max

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """The folder's version now; the source's name is not used."""
        hashing = hashlib.sha256()
        files = size = 0
        try:
            if not self._root.is_dir():
                return Gone()
            for name, path in self._fitting():
                found = path.lstat()
                files += 1
                size += found.st_size if self._content else 0
                if files > self._files_max or size > self._bytes_max:
                    return Unanswered(f"over {self._files_max:,} files or {self._bytes_max:,} bytes")
                hashing.update(f"{len(name)}:{name}:{self._state(path, found)}\n".encode("utf-8", "surrogateescape"))
        except PermissionError:
            return Denied()
        return Version("count+digest", f"{files} {hashing.hexdigest()}")

    def _fitting(self) -> Iterator[tuple[str, Path]]:
        for folder, folders, names in os.walk(self._root, onerror=_raise):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                inside = path.relative_to(self._root).as_posix()
                if fnmatchcase(inside, self._pattern):
                    yield inside, path

    def _state(self, path: Path, found: os.stat_result) -> str:
        if stat.S_ISLNK(found.st_mode):
            return f"link:{path.readlink()}"
        if not stat.S_ISREG(found.st_mode):
            return "special"
        if not self._content:
            return f"{found.st_size}:{found.st_mtime_ns}"
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _raise(error: OSError) -> None:
    # os.walk passes over what it cannot list; a folder that became unreadable must not look emptied.
    raise error
