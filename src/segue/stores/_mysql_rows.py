"""How rows in MySQL become values, and back. Names and texts go and come as bytes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from segue import codec
from segue.errors import Corrupt
from segue.model import Draft, Entry, Lease, Parent, ScopeKey, SessionInfo, State, Usage, from_us

Values: TypeAlias = "tuple[Any, ...]"

STATES: tuple[State, ...] = ("active", "completed", "archived")
"""States by the number that stands for them."""

ACTIVE, COMPLETED, ARCHIVED = range(3)

_SEGMENT_EPOCH_MS = 1_767_225_600_000  # 2026-01-01
_RANDOM_BITS = 22


def new_segment() -> int:
    """
    A number for a new session's segment: 41 bits of milliseconds, which keep new ones near each other, then 22 random.

    No counter of the server, so that one message can make a session and its entries. Taken ones are refused
    by the unique index.
    """
    moment = max(0, time.time_ns() // 1_000_000 - _SEGMENT_EPOCH_MS) & ((1 << 41) - 1)
    return moment << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


# Sessions.


@dataclass(slots=True)
class Row:
    """
    A session's row while its lock is held. Its fields up to ``lease_holder`` are what every operation needs.

    ``set`` notes what is to be written. Fields behind ``lease_holder`` are empty unless they were asked for.
    """

    tenant: bytes
    user_id: bytes
    id: bytes
    segment: int
    head: int
    base: int
    fence: int
    version: int
    state: int
    active_us: int
    erased_us: int | None
    tokens: bytes
    lease_run: bytes | None
    lease_paused: int | None
    lease_until_us: int | None
    lease_holder: bytes | None
    created_us: int = 0
    idle_us: int | None = None
    expires_us: int | None = None
    is_pinned: int = 0
    archived_us: int | None = None
    is_listed: int = 1
    own_key: bytes | None = None
    format: bytes = b""
    parent: bytes | None = None
    parent_seq: int | None = None
    parent_link: bytes | None = None
    title: bytes = b""
    tags: bytes = b""
    metadata: bytes = b""
    config: bytes | None = None
    changed: set[str] = field(default_factory=set)
    is_new: bool = False

    def set(self, **changes: Any) -> None:
        """Change some columns."""
        for name, value in changes.items():
            setattr(self, name, value)
        self.changed.update(changes)

    @property
    def due_us(self) -> int | None:
        """When its lifetime ends; None: never."""
        ends = [] if self.idle_us is None else [self.active_us + self.idle_us]
        return min(ends if self.expires_us is None else [*ends, self.expires_us], default=None)

    def running(self, now: int) -> str | None:
        """The run that is active now, or None."""
        if self.lease_run is None or self.lease_paused or (self.lease_until_us or 0) <= now:
            return None
        return self.lease_run.decode()


COLUMNS = tuple(column.name for column in fields(Row))[:-2]
"""Columns of a whole row, in the order of the fields of Row."""

LEAN = COLUMNS[: COLUMNS.index("lease_holder") + 1]
"""Columns of what appends and leases need of a row."""


def info_of(row: Row, scope: ScopeKey, *, now_us: int, waiting: int) -> SessionInfo:
    """
    A whole row as it is shown at a time: a lease that has ended is not.

    Raises:
        Corrupt: It holds what was never written.
    """
    try:
        return SessionInfo(
            scope=scope,
            id=row.id.decode(),
            key=text(row.own_key),
            format=row.format.decode(),
            title=row.title.decode("utf-8", "surrogatepass"),
            state=STATES[row.state],
            head=row.head,
            base=row.base,
            fence=row.fence,
            version=row.version,
            tags=unpack_tags(row.tags),
            metadata=codec.decode(row.metadata),
            is_pinned=bool(row.is_pinned),
            is_listed=bool(row.is_listed),
            config=row.config,
            idle_us=row.idle_us,
            expires_at=None if row.expires_us is None else from_us(row.expires_us),
            created_at=from_us(row.created_us),
            active_at=from_us(row.active_us),
            archived_at=None if row.archived_us is None else from_us(row.archived_us),
            usage=unpack_tokens(row.tokens),
            parent=_parent(row),
            lease=_lease(row, now_us),
            waiting=waiting,
        )
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        name = row.id.decode("utf-8", "replace")
        raise Corrupt(
            f"session {name!r}: its row is damaged ({error}); run segue verify to see all damage", session=name
        ) from error


def _parent(row: Row) -> Parent | None:
    if row.parent is None:
        return None
    return Parent(row.parent.decode(), row.parent_seq or 0, (row.parent_link or b"").decode())  # type: ignore[arg-type]


def _lease(row: Row, now_us: int) -> Lease | None:
    if row.lease_run is None or row.lease_until_us is None or row.lease_until_us <= now_us:
        return None
    run, holder = row.lease_run.decode(), (row.lease_holder or b"").decode()
    return Lease(run, row.fence, "paused" if row.lease_paused else "running", from_us(row.lease_until_us), holder)


def text(name: bytes | None) -> str | None:
    """A name, as it came."""
    return None if name is None else name.decode()


def pack(name: str | None) -> bytes | None:
    """A name, as it is kept."""
    return None if name is None else name.encode()


def pack_title(title: str) -> bytes:
    """A title as it is kept: any characters at all."""
    return title.encode("utf-8", "surrogatepass")


def pack_tag(tag: str) -> bytes:
    """One tag as it is found among the others."""
    return tag.replace("%", "%25").replace(",", "%2C").encode("utf-8", "surrogatepass")


def pack_tags(tags: Iterable[str]) -> bytes:
    """Tags as they are kept: sorted, each once, each between commas."""
    kept = [pack_tag(tag) for tag in sorted(set(tags))]
    return b"," + b",".join(kept) + b"," if kept else b""


def unpack_tags(packed: bytes) -> tuple[str, ...]:
    """The tags."""
    kept = packed.decode("utf-8", "surrogatepass")[1:-1]
    return tuple(tag.replace("%2C", ",").replace("%25", "%") for tag in kept.split(",")) if packed else ()


def pack_tokens(usage: Iterable[int]) -> bytes:
    """Token counts as they are kept."""
    return ",".join(map(str, usage)).encode()


def unpack_tokens(packed: bytes) -> Usage:
    """The token counts."""
    return Usage(*map(int, packed.split(b",")))


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
    "tokens",
)
"""In the order of the fields of Entry."""


def entry_values(segment: int, seq: int, draft: Draft, run: bytes | None, now_us: int) -> Values:
    """An entry's row: segment, then ENTRY_COLUMNS."""
    kind, format, origin, body, digest, id, refs, occurred_us, usage = draft
    return (
        segment,
        seq,
        id.encode(),
        kind.encode(),
        format.encode(),
        origin.encode(),
        body,
        digest,
        "\n".join(refs).encode() if refs else None,
        run,
        now_us,
        occurred_us,
        None if usage is None else pack_tokens(usage),
    )


def entries_of(rows: Iterable[Sequence[Any]], session: str) -> list[Entry]:
    """Rows of ENTRY_COLUMNS as entries. ``Corrupt`` when one does not match its digest, or is none."""
    return [entry_of(row, session) for row in rows]


def entry_of(row: Sequence[Any], session: str) -> Entry:
    """A row of ENTRY_COLUMNS as an entry; ``Corrupt`` when it is damaged."""
    seq, id, kind, format, origin, body, digest, refs, run, created_us, occurred_us, tokens = row
    try:
        entry = Entry(
            seq,
            id.decode(),
            kind.decode(),
            format.decode(),
            origin.decode(),
            body,
            digest,
            tuple(refs.decode().split("\n")) if refs else (),
            None if run is None else run.decode(),
            created_us,
            occurred_us,
            None if tokens is None else unpack_tokens(tokens),
        )
    except (ValueError, TypeError) as error:
        raise Corrupt(
            f"session {session!r}, entry {seq} is damaged ({error}); run segue verify to see all damage",
            session=session,
            seq=seq,
        ) from error
    return entry.verify(session)
