"""How rows of the SQLite store become values, and back."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from segue import codec
from segue.errors import Corrupt
from segue.model import Draft, Entry, Lease, Parent, ScopeKey, SessionInfo, Usage, from_us

from ._pack import pack, unpack

SEQ_BITS = 32
SEQ_MASK = (1 << SEQ_BITS) - 1

ACTIVE, COMPLETED, ARCHIVED, ERASED = range(4)
STATES = ("active", "completed", "archived")
LISTED, UNLISTED, SHELVED = range(3)
RUNNING, PAUSED = 1, 2

Label = tuple[str, str, str]
"""Kind, format and origin of an entry."""

_seal_bytes = msgspec.msgpack.Encoder().encode
_sha256 = hashlib.sha256
_new_tuple: Any = tuple.__new__  # an Entry's own __new__ takes longer than all else in the loop


class Row(NamedTuple):
    """What a write has to know of a session. The columns that are never null come first."""

    no: int
    scope_no: int
    id: str
    state: int
    is_pinned: int
    is_listed: int
    version: int
    head: int
    base: int
    fence: int
    active_us: int
    key: str | None
    origin_no: int | None
    lease_run: str | None
    lease_state: int | None
    lease_boot: str | None
    lease_tick_us: int | None
    lease_until_us: int | None
    lease_holder: str | None
    idle_us: int | None
    expires_us: int | None
    usage: str | None


_NEVER_NULL = Row._fields.index("key")


def row_of(values: tuple[Any, ...], session: str) -> Row:
    """
    The row that these columns are.

    Raises:
        Corrupt: One of them has no value, which only damage can do.
    """
    if None in values[:_NEVER_NULL]:
        raise damaged_row(session, "a column has no value")
    return Row._make(values)


ROW_OF = f"SELECT {', '.join(Row._fields)} FROM sessions WHERE scope_no = ? AND id = ? AND state < 3"  # noqa: S608

# Who waits in the queue is judged by :boot and :tick.
INFO_COLUMNS = """
    s.no, s.id, s.key, p.format, p.title, s.state, s.head, s.base, s.fence, s.version, p.tags, p.metadata, p.seal,
    s.is_pinned, s.is_listed, p.config, s.idle_us, s.expires_us, s.created_us, s.active_us, s.archived_us,
    s.usage, s.parent_id, s.parent_seq, s.parent_link, s.lease_run, s.lease_state, s.lease_boot,
    s.lease_tick_us, s.lease_until_us, s.lease_holder,
    (SELECT count(*) FROM queue q WHERE q.session_no = s.no AND q.boot = :boot AND q.lapses_tick_us > :tick)
"""
INFO = f"SELECT {INFO_COLUMNS} FROM sessions s JOIN profiles p ON p.session_no = s.no "  # noqa: S608

ENTRY_COLUMNS = "pos, id, label, created_us, occurred_us, run, refs, usage, seal, digest, codec, body"


class Moment(NamedTuple):
    """When something is judged: wall clock, boot and time since it."""

    now: int
    boot: str
    tick: int

    def is_running(self, state: int | None, boot: str | None, tick_us: int | None) -> bool:
        """Whether a lease is running and has not expired. Of another boot it has: its holder is gone."""
        return state == RUNNING and boot == self.boot and tick_us is not None and tick_us > self.tick


def squeeze(name: str) -> bytes | str:
    """An id as it is stored: 32 hex digits take 16 bytes."""
    if len(name) == 32:
        try:
            packed = bytes.fromhex(name)
        except ValueError:
            return name
        if packed.hex() == name:
            return packed
    return name


def expand(stored: bytes | str) -> str:
    """The id that ``squeeze`` was given."""
    return stored if isinstance(stored, str) else stored.hex()


def usage_text(usage: Iterable[int]) -> str:
    return ",".join(map(str, usage))


def usage_of(text: str) -> Usage:
    return Usage(*map(int, text.split(",")))


def due_us(row: Row) -> int | None:
    """When a sweep is due; None: endless, pinned, archived."""
    return None if row.is_pinned or row.state >= ARCHIVED else ends_us(row)


def ends_us(row: Row) -> int | None:
    """When the session's lifetime ends; None: never."""
    if row.idle_us is None:
        return row.expires_us
    ends = row.active_us + row.idle_us
    return ends if row.expires_us is None else min(ends, row.expires_us)


def shelf_of(state: int, is_listed: int) -> int:
    return SHELVED if state == ARCHIVED else LISTED if is_listed else UNLISTED


def metadata_text(metadata: Mapping[str, Any]) -> str:
    return codec.encode(dict(metadata), where="metadata").decode()


def tags_text(tags: Iterable[str]) -> str:
    return codec.encode(sorted(set(tags)), where="tags").decode()


def info_of(row: tuple[Any, ...], scope: ScopeKey, moment: Moment) -> SessionInfo:
    """A session's row, as ``INFO`` selects it."""
    (
        no, id, key, format, title, state, head, base, fence, version, tags, metadata, checksum, is_pinned, is_listed,
        config, idle_us, expires_us, created_us, active_us, archived_us, usage, parent_id, parent_seq, parent_link,
        run, lease_state, boot, tick_us, until_us, holder, waiting,
    ) = row  # fmt: skip
    if checksum != profile_seal(no, format, title, tags, metadata, config):
        raise damaged_row(id, "it does not match its checksum")
    lease = None
    if lease_state is not None:
        if moment.is_running(lease_state, boot, tick_us):
            lease = Lease(run, fence, "running", from_us(until_us), holder)
        elif lease_state == PAUSED and until_us > moment.now:
            lease = Lease(run, fence, "paused", from_us(until_us), holder)
    try:
        return SessionInfo(
            scope=scope,
            id=id,
            key=key,
            format=format,
            title=title,
            state=STATES[state],  # type: ignore[arg-type]
            head=head,
            base=base,
            fence=fence,
            version=version,
            tags=() if tags == "[]" else tuple(codec.decode(tags.encode())),
            metadata={} if metadata == "{}" else codec.decode(metadata.encode()),
            is_pinned=bool(is_pinned),
            is_listed=bool(is_listed),
            config=config,
            idle_us=idle_us,
            expires_at=_time(expires_us),
            created_at=from_us(created_us),
            active_at=from_us(active_us),
            archived_at=_time(archived_us),
            usage=Usage() if usage is None else usage_of(usage),
            parent=None if parent_id is None else Parent(parent_id, parent_seq, parent_link),
            lease=lease,
            waiting=waiting,
        )
    except (ValueError, TypeError, IndexError, OverflowError, msgspec.MsgspecError) as error:
        raise damaged_row(id, str(error)) from error


def _time(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def profile_seal(  # noqa: PLR0917 - the columns in their order
    no: int, format: str, title: str, tags: str, metadata: str, config: bytes | None
) -> int:
    """Checksum of what is in a session's profile."""
    return zlib.crc32(_seal_bytes((no, format, title, tags, metadata, config)))


def seal(  # noqa: PLR0917 - the columns in their order, and this runs for every entry
    pos: int,
    id: bytes | str,
    label: Label,
    created_us: int,
    occurred_us: int | None,
    run: bytes | str | None,
    refs: str | None,
    usage: str | None,
    digest: bytes,
) -> int:
    """Checksum of everything in an entry's row but the body, which the digest covers."""
    return zlib.crc32(_seal_bytes((pos, id, label, created_us, occurred_us, run, refs, usage, digest)))


def entry_values(draft: Draft, *, pos: int, label: int, created_us: int, run: bytes | str | None) -> tuple[Any, ...]:
    """An entry's row: what ``_sqlite_append`` inserts."""
    kind, format, origin, body, digest, id, refs, occurred_us, usage = draft
    packed_id = squeeze(id)
    refs_text = "\n".join(refs) if refs else None
    usage_packed = None if usage is None else usage_text(usage)
    code, packed = pack(body)
    checksum = seal(
        pos, packed_id, (kind, format, origin), created_us, occurred_us, run, refs_text, usage_packed, digest
    )
    return (
        pos, pos >> SEQ_BITS, packed_id, label, created_us, occurred_us, run, refs_text, usage_packed,
        checksum, digest, code, packed,
    )  # fmt: skip


def entries_of(rows: Iterable[tuple[Any, ...]], labels: Mapping[int, Label], session: str) -> list[Entry]:
    """
    Entries, as ``ENTRY_COLUMNS`` selects them, each proved against its checksum and its digest.

    Raises:
        Corrupt: They do not match.
    """
    found: list[Entry] = []
    for pos, id, label_no, created_us, occurred_us, run, refs, usage, checksum, digest, code, stored in rows:
        label = labels.get(label_no)
        if label is None or checksum != seal(pos, id, label, created_us, occurred_us, run, refs, usage, digest):
            raise damaged(session, pos & SEQ_MASK, "its row does not match its checksum")
        body = stored
        if body is not None:
            if code:
                body = _unpacked(code, stored, session, pos)
            if _sha256(body).digest() != digest:
                raise damaged(session, pos & SEQ_MASK, "the stored body does not match its digest")
        values = (
            pos & SEQ_MASK,
            id if id.__class__ is str else id.hex(),
            *label,
            body,
            digest,
            tuple(refs.split("\n")) if refs else (),
            None if run is None else run if run.__class__ is str else run.hex(),
            created_us,
            occurred_us,
            None if usage is None else usage_of(usage),
        )
        found.append(_new_tuple(Entry, values))
    return found


def _unpacked(code: int, stored: bytes, session: str, pos: int) -> bytes:
    try:
        return unpack(code, stored)
    except Corrupt as error:
        raise damaged(session, pos & SEQ_MASK, str(error)) from error


def damaged_row(session: str, what: str) -> Corrupt:
    return Corrupt(
        f"the row of session {session!r} is damaged ({what}); restore it from a backup, "
        "or run segue verify to see all damage",
        session=session,
    )


def damaged(session: str, seq: int, what: str) -> Corrupt:
    return Corrupt(
        f"session {session!r}, entry {seq}: {what}; restore it from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq,
    )
