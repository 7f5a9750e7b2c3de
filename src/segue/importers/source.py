"""One file as importers see it: its beginning, its lines, or the document that it is."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from segue import codec

from .records import LINE_MAX, Line, lines, mended, objects, parse, value_of

SAMPLE_LINES = 60
SAMPLE_BYTES = 4 * 1024 * 1024
READ_BYTES = 1024 * 1024
"""How much of a file of lines is read at a time, in bytes."""

DOCUMENT_MAX = 512 * 1024 * 1024
"""Largest file that is read as one JSON document, in bytes."""

SQLITE = b"SQLite format 3\x00"
SQLITE_SIDE = (
    b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83",  # -wal
    b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7",  # -journal
    b"\x18\xe2\x2d\x00", b"\x00\x2d\xe2\x18",  # -shm, in either order of bytes
)  # fmt: skip
"""How the files begin that SQLite keeps beside a database: they hold fragments of it."""

_CONTROLS = bytes(n for n in range(1, 32) if n not in b"\b\t\n\v\f\r\x1b")
_CONTROLS_MAX = 2
"""Control characters that may stand before the first record by an accident of the disk."""

Progress = Callable[[str, int, int], None]
"""Told from time to time: path, bytes done, bytes in all."""


class Source:
    """
    A file to be imported.

    Attributes:
        path: Where it is.
        size: Its bytes.
        sample: JSON values of its first lines, where it is a file of lines.
        document: Its value, where it is one JSON document.
        is_damaged: The document is no whole JSON; ``document`` is what could be read of it.

    Raises:
        OSError: It may not be looked at, or is no file.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.is_damaged = False
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # reading it may wait for ever
            raise OSError(errno.EINVAL, "it is a pipe, a socket or a device; write it to a file, and import that")
        self.size = found.st_size
        self._progress = progress

    @cached_property
    def start(self) -> bytes:
        """Its first bytes."""
        with self.path.open("rb") as file:
            return file.read(4096)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is an SQLite database."""
        return self.start.startswith(SQLITE)

    @property
    def is_sqlite_side(self) -> bool:
        """Whether it is a file that SQLite keeps beside a database."""
        return self.start.startswith(SQLITE_SIDE)

    @cached_property
    def is_text(self) -> bool:
        """
        Whether it can be a file of lines: not when control characters stand before the first line that is whole JSON.

        NULs do not count, as a crash leaves them between records, nor does what stands behind a whole record.
        """
        if self.is_sqlite or self.is_sqlite_side:
            return False
        if _controls(self.start) <= _CONTROLS_MAX:
            return True
        with self.path.open("rb") as file:
            start = file.read(SAMPLE_BYTES)
        found = 0
        for line in start.split(b"\n")[:SAMPLE_LINES]:
            parsed = parse(line)
            if parsed.values and parsed.defect != "broken":
                return True
            found += _controls(line)
            if found > _CONTROLS_MAX:
                return False
        return True

    @cached_property
    def sample(self) -> list[Any]:
        """JSON values of its first lines; none when it is a document, a database, no text or no JSON."""
        if not self.is_text or self.document is not None:
            return []
        return self._first_values

    @cached_property
    def _first_values(self) -> list[Any]:
        found: list[Any] = []
        read = 0
        with self.path.open("rb") as file:
            for line in lines(file):
                read += len(line.raw)
                found += parse(line.raw).values if not line.is_part else []
                if line.number >= SAMPLE_LINES or (read > SAMPLE_BYTES and found):
                    break
        return found

    @cached_property
    def document(self) -> Any:
        """Its value when it is one JSON array, or an object over several lines; else None."""
        if self.is_sqlite or not self.size or self.size > DOCUMENT_MAX or self.start.lstrip()[:1] not in {b"{", b"["}:
            return None
        with self.path.open("rb") as file:
            first = file.readline(LINE_MAX)
        if any(isinstance(value, dict) for value in _strict(first)):
            return None  # lines of records, or one of them
        if self.size > SAMPLE_BYTES and self._has_records():
            return None  # the first of them is damaged
        found = _strict(self.whole())
        if not found:
            return self._damaged()
        return found[0] if isinstance(found[0], dict | list) else None

    def _has_records(self) -> bool:
        """Whether most of the first lines are objects: a document over several lines has few that are."""
        with self.path.open("rb") as file:
            found = [_strict(line.raw) for line in islice(lines(file), SAMPLE_LINES)]
        return sum(bool(values) and isinstance(values[0], dict) for values in found) * 2 > len(found)

    def _damaged(self) -> Any:
        """What can be read of a document that is no whole JSON: objects of an array, the beginning of an object."""
        whole = self.whole()
        if whole.lstrip()[:1] == b"[":
            values: Any = [value_of(body) for _, body in objects(whole, whole.find(b"[") + 1)]
        else:
            values = mended(whole) if b"\n" in whole.strip() else None
        self.is_damaged = bool(values)
        return values or None

    @property
    def only(self) -> Any:
        """The document, or the value of the only line; else None."""
        if self.document is not None:
            return self.document
        return self.sample[0] if len(self.sample) == 1 else None

    def whole(self) -> bytes:
        """All its bytes."""
        return self.path.read_bytes()

    def lines(self) -> Iterator[Line]:
        """Its lines, with progress told."""
        done = told = 0
        with self.path.open("rb", READ_BYTES) as file:
            for line in lines(file):
                yield line
                done += len(line.raw) + line.ends
                if self._progress is not None and done - told > 1_000_000:
                    self._progress(str(self.path), done, self.size)
                    told = done

    def key(self, tool: str, part: str = "") -> str:
        """A key for what has no id of its own: made of the file's place."""
        place = hashlib.sha256(os.fsencode(os.path.realpath(self.path))).hexdigest()[:32]
        return f"{tool}:file:{place}{'/' if part else ''}{part}"


def printable(path: str | os.PathLike[str]) -> str:
    """The path as text; what in it is no UTF-8 is U+FFFD, and then a mark at the end tells it from others."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(text)
        return f"{raw.decode('utf-8', 'replace')}~{hashlib.sha256(raw).hexdigest()[:8]}"
    return text


def _controls(raw: bytes) -> int:
    return len(raw) - len(raw.translate(None, _CONTROLS))


def _strict(raw: bytes) -> list[Any]:
    try:
        return [codec.decode(raw.removeprefix(b"\xef\xbb\xbf"))]
    except (ValueError, RecursionError):
        return []
