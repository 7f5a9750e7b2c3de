"""
The lines of a session's file: JSON for people, exact and checked for us.

    {"segue":1,"session":…}   the first line: whose session it is, and its attributes
    {"seq":7,"id":…}          an entry; its body is the last member, byte for byte
    {"row":{…}}               the attributes, from here on
    {"lease":{…}|null,…}      who advances the session, from here on; in the session's file whenever a
                              run gets it, in the file beside it for all that happens to it afterwards

``crc`` is the CRC-32 of all that stands before it in the line, begun (except in the first line) with that
of the owner's and the session's names, so that a line copied into another session is noticed there. The
body behind it answers to ``digest``. The lines of one write say so (``part``: which of how many), so that a
torn write is known as one.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from segue import codec
from segue.errors import Invalid
from segue.model import Draft, Entry, Lease, Parent, Usage, from_us, to_us

FORMAT = 1
"""Version of the folder's format. It grows when an older Segue could not read what this one writes."""

_CRC = b',"crc":"'
_CRC_BYTES = len(_CRC) + 8 + 1  # the member with its value and the closing quote
_BEGINS = (b'{"seq":', b'{"row":', b'{"lease":', b'{"segue":')
_MARKS = (b'"crc":"', b'"digest":"', b'"state":"', b'"fence":', b'"erased":"')
_SEAM = re.compile(rb'\}[^\n}]?(?=\{"(?:seq|row|lease|segue)":)', re.DOTALL)
_SEQ = re.compile(rb'"seq":(\d{1,15})[,}]')
_YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # what a date can say, in microseconds since 1970

Moment = datetime | int
Part = tuple[int, int]


class UsageLine(msgspec.Struct, omit_defaults=True):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_long: int = 0
    reasoning: int = 0


class EntryLine(msgspec.Struct, omit_defaults=True):
    """An entry without its body."""

    seq: int
    id: str
    kind: str
    format: str
    origin: str
    at: Moment
    digest: str
    occurred: Moment | None = None
    refs: tuple[str, ...] = ()
    run: str | None = None
    usage: UsageLine | None = None
    hollow: bool = False
    part: Part | None = None


class Row(msgspec.Struct, omit_defaults=True):
    """A session's attributes."""

    version: int
    state: str
    format: str
    title: str = ""
    key: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    pinned: bool = False
    listed: bool = True
    config: str | None = None
    config_base64: bytes | None = None
    idle_us: int | None = None
    expires: Moment | None = None
    archived: Moment | None = None


class RowLine(msgspec.Struct, omit_defaults=True):
    row: Row
    part: Part | None = None


class ParentLine(msgspec.Struct):
    session: str
    seq: int
    link: str


class Header(msgspec.Struct, omit_defaults=True):
    """
    The first line of a session's file.

    ``base`` is the last seq it shares; ``shares`` says which sessions own these entries, each with the
    last seq taken from it. ``rewrite`` counts how often the file was written anew. An erased session
    has no row; the entries that its file still holds belong to its forks.
    """

    segue: int
    rewrite: int
    session: str
    tenant: str
    user: str
    created: Moment | None = None
    erased: Moment | None = None
    base: int = 0
    shares: tuple[tuple[str, int], ...] = ()
    parent: ParentLine | None = None
    row: Row | None = None
    part: Part | None = None


class LeaseOf(msgspec.Struct, omit_defaults=True):
    """
    A run's lease. ``expires`` is for people; ``until`` is what counts, in ticks since the boot named by ``boot``.

    After another boot, or where the system names none, ``expires`` counts.
    """

    run: str
    fence: int
    state: str
    expires: Moment
    boot: str = ""
    until: int = 0
    holder: str = ""


class Ticket(msgspec.Struct, omit_defaults=True):
    """A run's place in the queue, which lapses as a lease does."""

    run: str
    expires: Moment
    boot: str = ""
    until: int = 0


class LeaseLine(msgspec.Struct, omit_defaults=True):
    """The lease and the queue. ``rev`` counts their changes: of two lines the one with the higher holds."""

    lease: LeaseOf | None
    fence: int
    rev: int
    queue: tuple[Ticket, ...] = ()
    part: Part | None = None


Head = EntryLine | RowLine | Header | LeaseLine

_encode = msgspec.json.Encoder().encode
_decoders: dict[bytes, msgspec.json.Decoder[Any]] = {
    b'{"seq"': msgspec.json.Decoder(EntryLine),
    b'{"segue': msgspec.json.Decoder(Header),
    b'{"row"': msgspec.json.Decoder(RowLine),
    b'{"lease': msgspec.json.Decoder(LeaseLine),
}
_text = msgspec.json.Decoder(str)


# Writing.


def moment(us: int) -> Moment:
    """A time as people read it; a bare number where no calendar reaches."""
    return from_us(us) if _YEARS[0] <= us <= _YEARS[1] else us


def micros(moment: Moment) -> int:
    """Microseconds since 1970."""
    return moment if isinstance(moment, int) else to_us(moment)


def seed_of(tenant: str, user: str, session: str) -> int:
    """What the checksums of a session's lines begin with."""
    return zlib.crc32(f"{tenant}\0{user}\0{session}".encode())


def sealed(head: Head, seed: int, body: bytes = b"") -> bytes:
    """A line: the head, its checksum, the member that holds the body, a line feed."""
    text = _encode(head)[:-1]
    crc = zlib.crc32(text, 0 if isinstance(head, Header) else seed)
    return b'%b%b%08x"%b}\n' % (text, _CRC, crc, body)


def entry_head(draft: Draft, *, seq: int, run: str | None, now: int) -> EntryLine:
    """The line of a new entry, without its body."""
    return EntryLine(
        seq=seq,
        id=draft.id,
        kind=draft.kind,
        format=draft.format,
        origin=draft.origin,
        at=moment(now),
        digest=draft.digest.hex(),
        occurred=None if draft.occurred_us is None else moment(draft.occurred_us),
        refs=draft.refs,
        run=run,
        usage=None if draft.usage is None else UsageLine(*draft.usage),
    )


def body_member(body: bytes, format: str) -> bytes:
    """
    The member that holds a body, with its comma.

    A JSON value where the bytes can stand in a line as they are; else a string of its characters;
    else base64.
    """
    if b"\n" not in body and b"\r" not in body and _is_json(body, format):
        return b',"body":' + body
    try:
        text = _encode(body.decode())
    except UnicodeDecodeError:
        text = b""
    if text and len(text) <= 1.5 * len(body) + 16:
        return b',"text":' + text
    return b',"base64":"%b"' % base64.b64encode(body)


def _is_json(body: bytes, format: str) -> bool:
    try:
        if format == "raw":
            codec.check(body)  # nothing has looked at these bytes yet
        else:
            codec.decode(body)
    except (Invalid, ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True


# Reading.


class Line(NamedTuple):
    """
    A line of a file. ``head`` is None where it is damaged, or not ours (``is_foreign``).

    ``start`` and ``end`` are its place in the file, the line feed not counted. ``is_glued``: the line
    feed before it is damaged.
    """

    start: int
    end: int
    head: Head | None
    has_nul: bool
    is_foreign: bool
    was_entry: bool = False  # a damaged line that seems to have held one
    seq_max: int = 0  # the highest seq that can be read in a damaged line
    is_glued: bool = False

    @property
    def part(self) -> Part:
        """Which line of how many that were written together."""
        return (self.head and self.head.part) or (1, 1)


def parsed(data: bytes, start: int, end: int, *, offset: int, seed: int) -> Line:
    """The line in ``data[start:end]``; the file holds ``data`` at ``offset``."""
    head = _head_of(data, start, end, seed)
    if head is not None:
        return Line(offset + start, offset + end, head, data.find(b"\0", start, end) >= 0, is_foreign=False)
    line = data[start:end]
    has_nul = b"\0" in line
    # Each of our lines has three of the marks, so one that is damaged in one place still shows two.
    is_foreign = not has_nul and line.startswith(_BEGINS) + sum(mark in line for mark in _MARKS) < 2
    seqs = [int(seq) for seq in _SEQ.findall(line)]
    was_entry = not is_foreign and (line.startswith(b'{"seq":') or b'"digest":"' in line)
    return Line(offset + start, offset + end, None, has_nul, is_foreign, was_entry, max(seqs, default=0))


def _head_of(data: bytes, start: int, end: int, seed: int) -> Head | None:
    decoder = _decoders.get(data[start : start + 6]) or _decoders.get(data[start : start + 7])
    if decoder is None:
        return None
    if decoder.type is EntryLine:
        crc = data.find(_CRC, start, end)
        is_whole = data[end - 1 : end] == b"}"
    else:
        crc = end - _CRC_BYTES - 1  # nothing follows; a member "crc" inside the metadata is not it
        is_whole = data[crc : crc + len(_CRC)] == _CRC and data[end - 2 : end] == b'"}'
    if crc < start or not is_whole:
        return None
    text = data[start:crc]
    if data[crc + len(_CRC) : crc + _CRC_BYTES] != b'%08x"' % zlib.crc32(text, 0 if decoder.type is Header else seed):
        return None
    try:
        return decoder.decode(text + b"}")  # type: ignore[no-any-return]
    except msgspec.MsgspecError:
        return None


def lines_of(data: bytes, *, offset: int, seed: int) -> Iterator[Line]:
    """The lines of a piece of a file, as far as they end with a line feed."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        line = parsed(data, start, end, offset=offset, seed=seed)
        if line.head is None or isinstance(line.head, EntryLine):
            seams = [at for begin in _BEGINS if (at := data.find(begin, start + 1, end)) >= 0]
            if seams and not _is_intact(line, data[start:end]):
                yield from _unglued(line, data, end, offset=offset, seed=seed)
                start = end + 1
                continue
        yield line
        start = end + 1


def _is_intact(line: Line, text: bytes) -> bool:
    try:
        return isinstance(line.head, EntryLine) and codec.digest(_body_of(text)).hex() == line.head.digest
    except ValueError:
        return False


def _unglued(line: Line, data: bytes, end: int, *, offset: int, seed: int) -> Iterator[Line]:
    """The lines in what looks like one, where damaged or missing line feeds made them that; else the line as it is."""
    is_glued = False
    start = line.start - offset
    for seam in _SEAM.finditer(data, start + 1, end):
        rest = parsed(data, seam.end(), end, offset=offset, seed=seed)
        before = parsed(data, start, seam.start() + 1, offset=offset, seed=seed)
        if rest.head is not None or before.head is not None:
            yield before._replace(is_glued=is_glued)
            start, line, is_glued = seam.end(), rest, True
    yield line._replace(is_glued=is_glued)


def entry_of(head: EntryLine, line: bytes) -> Entry:
    """
    The entry of a line.

    Raises:
        ValueError: The member that holds the body is damaged.
    """
    return Entry(
        seq=head.seq,
        id=head.id,
        kind=head.kind,
        format=head.format,
        origin=head.origin,
        body=None if head.hollow else _body_of(line),
        digest=bytes.fromhex(head.digest),
        refs=head.refs,
        run=head.run,
        created_us=micros(head.at),
        occurred_us=None if head.occurred is None else micros(head.occurred),
        usage=None if head.usage is None else usage_of(head.usage),
    )


def body_part(line: bytes) -> bytes:
    """The member that holds the body, with its comma, as it stands in an entry's line; empty when hollow."""
    return line[line.index(_CRC) + _CRC_BYTES : -1]


def _body_of(line: bytes) -> bytes:
    member = body_part(line)
    if member.startswith(b',"body":'):
        return member[8:]
    if member.startswith(b',"text":'):
        try:
            return _text.decode(member[8:]).encode()
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error
    if member.startswith(b',"base64":"') and member.endswith(b'"'):
        try:
            return base64.b64decode(member[11:-1], validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from error
    raise ValueError("no body")


def usage_of(line: UsageLine) -> Usage:
    """Tokens of one call."""
    return Usage(*(getattr(line, name) for name in Usage._fields))


def lease_of(line: LeaseOf) -> Lease:
    """A lease as callers know it."""
    state: Literal["running", "paused"] = "paused" if line.state == "paused" else "running"
    return Lease(line.run, line.fence, state, from_us(micros(line.expires)), line.holder)


def parent_line(parent: Parent | None) -> ParentLine | None:
    """Where a session comes from, as a line says it."""
    return None if parent is None else ParentLine(parent.session, parent.seq, parent.link)


def parent_of(line: ParentLine | None) -> Parent | None:
    """Where a session comes from."""
    return None if line is None else Parent(line.session, line.seq, line.link)  # type: ignore[arg-type]
