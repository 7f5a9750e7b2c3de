"""
Records, some to an entry, without the messages that have entries of their own.

Before each record stands a line: its kind, two numbers, and the length of the bytes that follow.

    L 0 0 17    the record, whole; a line feed follows it
    l 0 0 17    the same, and no line feed
    A 41 9 8    the record but for 9 bytes at place 41: these are the body of the message with the record's number
    P 2 0 0     the record is two entries of the kind ``import.part``
    p 2 0 0     the same, and no line feed

The first record's number is in the entry's id (``k.<number>.…``), the others follow. Where packs end depends on the
records alone, so that a file that grew has the same packs, but for the last: a longer one supersedes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from segue.errors import Corrupt

PACK, PART = "import.pack", "import.part"

RECORDS_MAX = 64
"""Most records of a pack."""

BYTES_MAX = 128 * 1024
"""A pack ends behind the record with which it has so many bytes."""

PIECE_MAX = 1024 * 1024
"""Most bytes of a record in a pack; a longer one is kept in parts."""


class Pack:
    """A pack in the making."""

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self.size = 0
        self._pieces: list[bytes] = []

    @property
    def body(self) -> bytes:
        """What is in it by now."""
        return b"".join(self._pieces)

    @property
    def is_full(self) -> bool:
        """Whether it ends here."""
        return self.count >= RECORDS_MAX or self.size >= BYTES_MAX

    def line(self, number: int, raw: bytes, *, ends: bool) -> None:
        """A record, whole."""
        self._add(number, b"%b 0 0 %d\n%b" % (b"L" if ends else b"l", len(raw), raw))

    def around(self, number: int, raw: bytes, at: int, size: int) -> None:
        """A record but for a message of so many bytes at a place."""
        self._add(number, b"A %d %d %d\n%b%b" % (at, size, len(raw) - size, raw[:at], raw[at + size :]))

    def parts(self, number: int, count: int, *, ends: bool) -> None:
        """A record that is kept in so many parts."""
        self._add(number, b"%b %d 0 0\n" % (b"P" if ends else b"p", count))

    def _add(self, number: int, piece: bytes) -> None:
        if not self.count:
            self.first = number
        self.count += 1
        self.size += len(piece)
        self._pieces.append(piece)

    def take(self) -> tuple[bytes, int]:
        """Its body and the number of its first record; the next pack begins."""
        done = self.body, self.first
        self.count = self.size = 0
        self._pieces = []
        return done


class Piece(NamedTuple):
    """One record of a pack: its kind, its two numbers, its bytes."""

    kind: str
    at: int
    size: int
    rest: bytes


def pieces(body: bytes) -> Iterator[Piece]:
    """
    The records of a pack, in order.

    Raises:
        Corrupt: It is none.
    """
    at = 0
    while at < len(body):
        end = body.find(b"\n", at)
        head = body[at:end].split(b" ")
        if end < 0 or len(head) != 4 or not all(part.isdigit() for part in head[1:]):
            raise Corrupt("a pack of imported records cannot be read; restore the store from a backup")
        size = int(head[3])
        yield Piece(head[0].decode("ascii", "replace"), int(head[1]), int(head[2]), body[end + 1 : end + 1 + size])
        at = end + 1 + size
