"""Where an export goes: a file that appears when it is whole, a pipe or device as it is, a terminal made harmless."""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from segue.errors import Invalid, Unavailable

from . import address, text
from .screen import Screen

PRIVATE = 0o600
"""Mode of a file that was not there before."""

_BESIDE = ("", "-wal", "-shm", "-journal")
_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")


class Output:
    """
    What an export is written to.

    Attributes:
        out: Takes the bytes.
        size_bytes: How many they were, once everything is written to a named place.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.size_bytes = 0


@contextmanager
def opened(path: str | None, screen: Screen, *, store: str, is_text: bool = True) -> Iterator[Output]:
    """
    Open what an export goes to: standard output (None) or a named place.

    A regular file, or the one that a link names, appears when it is whole and keeps its mode; a new one is private.
    Anything else that is there (a pipe, a device) is written to as it is. A terminal gets text made harmless.

    Args:
        path: What ``--output`` named.
        screen: Of the command.
        store: The URL of the store, whose files are refused.
        is_text: False for what no terminal can show.

    Raises:
        Invalid: The place is a file of the store; or a terminal, for what is not text.
        Unavailable: It cannot be written.
    """
    if path is None:
        with _standard(screen, is_text=is_text) as made:
            yield made
        return
    try:
        _refuse_store(path, store)
        with _straight(path, is_text=is_text) if _is_straight(path) else _whole(path) as made:
            yield made
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from error


def _refuse_store(path: str, url: str) -> None:
    place = address.file_of(url)
    if place is None:
        return
    target, own = Path(os.path.realpath(path)), Path(os.path.realpath(place))
    if url.startswith("jsonl:"):
        is_own = any(_is_same(folder, own) for folder in (target, *target.parents))
    else:
        is_own = any(_is_same(target, Path(f"{own}{end}")) for end in _BESIDE)
    if is_own:
        raise Invalid(f"{path} belongs to the store {address.shown(url)}; give --output another name", where="output")


def _is_same(one: Path, other: Path) -> bool:
    if one == other:
        return True
    with suppress(OSError):
        return one.samefile(other)
    return False


def _is_straight(path: str) -> bool:
    """Whether what is there must be written to as it is: a new file in its place would destroy it, or go unread."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(found.st_mode) or str(Path(path).absolute()).startswith(_STREAMS) or _is_stdout(path)


def _is_stdout(path: str) -> bool:
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # it has no number, or is closed
        return False


@contextmanager
def _standard(screen: Screen, *, is_text: bool) -> Iterator[Output]:
    sys.stdout.flush()
    if not screen.is_terminal:
        yield Output(sys.stdout.buffer)
        return
    with _shown(is_text=is_text) as (made, body):
        yield made
    screen.body(body.getvalue().removesuffix(b"\n"))


@contextmanager
def _shown(*, is_text: bool) -> Iterator[tuple[Output, io.BytesIO]]:
    """Collects what a terminal is to show."""
    if not is_text:
        raise Invalid("this is not text, a terminal cannot show it; name a file with --output", where="output")
    body = io.BytesIO()
    made = Output(body)
    yield made, body
    made.size_bytes = len(body.getvalue())


class _Counted(io.FileIO):
    """A file that counts what is written to it; a pipe cannot be asked."""

    written = 0

    def write(self, data: Any, /) -> int:
        count = super().write(data) or 0
        self.written += count
        return count


@contextmanager
def _straight(path: str, *, is_text: bool) -> Iterator[Output]:
    """What is there already, as it is; standard output by another name goes on where it is."""
    sys.stdout.flush()
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
    raw = _Counted(os.dup(sys.stdout.fileno()) if _is_stdout(path) else os.open(path, flags), "w")
    with io.BufferedWriter(raw) as out:
        if not raw.isatty():
            made = Output(out)
            yield made
            out.flush()
            made.size_bytes = raw.written
            return
        with _shown(is_text=is_text) as (made, body):
            yield made
        for line in text.lines(body.getvalue().removesuffix(b"\n").decode(errors="backslashreplace")):
            out.write(line.encode(errors="backslashreplace") + b"\n")


@contextmanager
def _whole(path: str) -> Iterator[Output]:
    """A file that takes its place when it is whole. Until then it has a name that nobody else has."""
    target = Path(os.path.realpath(path))
    if path.endswith("/"):
        raise Invalid(f"{path} names a folder; give --output the name of a file", where="output")
    try:
        mode = stat.S_IMODE(target.stat().st_mode) & 0o777
    except FileNotFoundError:
        mode = PRIVATE
    number, name = tempfile.mkstemp(prefix=".segue-", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(number, "wb") as out:
            made = Output(out)
            yield made
            out.flush()
            made.size_bytes = out.tell()
            os.fchmod(number, mode)
            os.fsync(number)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
