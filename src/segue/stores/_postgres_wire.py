"""Values on their way to PostgreSQL and back: packed arrays, entries, session rows."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import psycopg
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format as WireFormat
from psycopg.types.numeric import Int8BinaryDumper

from segue import codec
from segue.model import Draft, Entry, Lease, Parent, ScopeKey, SessionInfo, State, Usage, from_us

Row: TypeAlias = tuple[Any, ...]

STATES: tuple[State, ...] = ("active", "completed", "archived")
"""States by the number that stands for them."""

BATCH_MAX_BYTES = 256 * 1024 * 1024
"""Most bytes of one append's bodies: a message to the server has a limit of 1 GiB, and memory has one too."""


# Arrays are packed here: the driver's own way takes longer than the server takes for the whole append.


class _Packed:
    """An array in PostgreSQL's binary form."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Texts(_Packed):
    """A packed text[]."""


class Blobs(_Packed):
    """A packed bytea[]."""


class Longs(_Packed):
    """A packed bigint[]."""


class _PackedDumper(Dumper):
    format = WireFormat.BINARY

    def dump(self, obj: Any) -> bytes:
        return obj.data  # type: ignore[no-any-return]


class _TextsDumper(_PackedDumper):
    oid = 1009


class _BlobsDumper(_PackedDumper):
    oid = 1001


class _LongsDumper(_PackedDumper):
    oid = 1016


ADAPTERS = AdaptersMap(psycopg.adapters)
"""How this store's connections adapt values: packed arrays, and every int as a bigint."""
for _kind, _dumper in ((Texts, _TextsDumper), (Blobs, _BlobsDumper), (Longs, _LongsDumper), (int, Int8BinaryDumper)):
    ADAPTERS.register_dumper(_kind, _dumper)

_head = struct.Struct("!5i").pack
_length = struct.Struct("!i").pack
_long = struct.Struct("!iq").pack
_NULL = _length(-1)
_TEXT, _BYTEA, _BIGINT = 25, 17, 20


def _array(element: int, count: int, parts: Iterable[bytes]) -> bytes:
    if not count:
        return struct.pack("!3i", 0, 0, element)
    return b"".join((_head(1, 1, element, count, 1), *parts))


def texts(items: Sequence[str | None]) -> Texts:
    """A text[] of strings and NULLs."""
    encoded = [None if item is None else item.encode() for item in items]
    return Texts(_array(_TEXT, len(items), _sized(encoded)))


def blobs(items: Sequence[bytes]) -> Blobs:
    """A bytea[]."""
    return Blobs(_array(_BYTEA, len(items), _sized(items)))


def longs(items: Sequence[int | None]) -> Longs:
    """A bigint[] of numbers and NULLs."""
    return Longs(_array(_BIGINT, len(items), [_NULL if item is None else _long(8, item) for item in items]))


def _sized(items: Sequence[bytes | None]) -> list[bytes]:
    parts: list[bytes] = []
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_length(len(item)), item)
    return parts


# Entries.

ENTRY_COLUMNS = (
    "seq",
    "id",
    "kind",
    "format",
    "origin",
    "body",
    "digest",
    "refs",
    "run",
    "created_us",
    "occurred_us",
    "usage",
)
"""In the order of the fields of Entry."""

_NO_ENTRIES = (texts(()), blobs(()), *(texts(()),) * 3, blobs(()), None, None, None)


def pack_entries(drafts: Sequence[Draft]) -> tuple[Any, ...]:
    """Drafts as the nine arrays e_* of the schema's functions."""
    if not drafts:
        return _NO_ENTRIES
    kinds, formats, origins, bodies, digests, ids, refs, occurred, usages = zip(*drafts, strict=True)
    return (
        texts(ids),
        blobs(digests),
        texts(kinds),
        texts(formats),
        texts(origins),
        blobs(bodies),
        texts(["\n".join(mine) if mine else None for mine in refs]) if any(refs) else None,
        longs(occurred) if any(at is not None for at in occurred) else None,
        texts([_braced(usage) for usage in usages]) if any(usage is not None for usage in usages) else None,
    )


def _braced(usage: Usage | None) -> str | None:
    return None if usage is None else "{" + ",".join(map(str, usage)) + "}"


def unpack_log(rows: Sequence[Row], session: str) -> list[Entry]:
    """Rows of ENTRY_COLUMNS as entries. ``Corrupt`` when a body does not match its digest."""
    entries = []
    for row in rows:
        body = row[5]
        entry = unpack_entry(row)
        # The check of ``verify``, without a call for each of what may be ten thousand.
        if body is not None and sha256(body).digest() != row[6]:
            entry.verify(session)
        entries.append(entry)
    return entries


def unpack_entry(row: Row) -> Entry:
    """A row of ENTRY_COLUMNS as an entry."""
    refs, usage = row[7], row[11]
    if refs is None and usage is None:
        return Entry._make((*row[:7], (), *row[8:]))
    return Entry._make((*row[:7], tuple(refs or ()), *row[8:11], None if usage is None else Usage(*usage)))


# Session rows.

SESSION_COLUMNS = (
    "id",
    "key",
    "format",
    "title",
    "state",
    "head",
    "base",
    "fence",
    "version",
    "tags",
    "metadata",
    "is_pinned",
    "is_listed",
    "config",
    "idle_us",
    "expires_us",
    "created_us",
    "active_us",
    "archived_us",
    "usage",
    "parent",
    "parent_seq",
    "parent_link",
    "lease_run",
    "lease_paused",
    "lease_until_us",
    "lease_holder",
)


def unpack_session(scope: ScopeKey, row: Row, *, now_us: int, waiting: int) -> SessionInfo:
    """A row of SESSION_COLUMNS as it is shown at a time: a lease that has ended is not."""
    id, key, format, title, state, head, base, fence, version, tags, metadata, is_pinned, is_listed = row[:13]
    config, idle_us, expires_us, created_us, active_us, archived_us, usage = row[13:20]
    parent, parent_seq, parent_link = row[20:23]
    return SessionInfo(
        scope=scope,
        id=id,
        key=key,
        format=format,
        title=title.decode("utf-8", "surrogatepass"),
        state=STATES[state],
        head=head,
        base=base,
        fence=fence,
        version=version,
        tags=tuple(tag.decode("utf-8", "surrogatepass") for tag in tags),
        metadata=codec.decode(metadata),
        is_pinned=is_pinned,
        is_listed=is_listed,
        config=config,
        idle_us=idle_us,
        expires_at=None if expires_us is None else from_us(expires_us),
        created_at=from_us(created_us),
        active_at=from_us(active_us),
        archived_at=None if archived_us is None else from_us(archived_us),
        usage=Usage(*usage),
        parent=None if parent is None else Parent(parent, parent_seq, parent_link),
        lease=_lease(row[23:], fence, now_us),
        waiting=waiting,
    )


def _lease(row: Row, fence: int, now_us: int) -> Lease | None:
    run, is_paused, until_us, holder = row
    if run is None or until_us <= now_us:
        return None
    return Lease(run, fence, "paused" if is_paused else "running", from_us(until_us), holder)


def pack_tags(tags: Iterable[str]) -> Blobs:
    """Tags as they are kept: sorted, each once."""
    return blobs([tag.encode("utf-8", "surrogatepass") for tag in sorted(set(tags))])


def pack_title(title: str) -> bytes:
    """A title as it is kept: any characters at all."""
    return title.encode("utf-8", "surrogatepass")
