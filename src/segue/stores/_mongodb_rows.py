"""
Documents and what they mean: a session's row, an entry.

A document leaves out what is None or empty. Whatever a caller may name is a BSON string, compared as
bytes; what a caller may fill with anything (bodies, metadata, configurations) is binary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from segue import codec
from segue.errors import Corrupt
from segue.model import (
    Draft,
    Entry,
    Lease,
    Parent,
    ScopeKey,
    SessionInfo,
    Usage,
    from_us,
    new_id,
    to_us,
)

from ._pack import pack, unpack

Document: TypeAlias = dict[str, Any]

SEGMENT_BYTES = 16


class Part(NamedTuple):
    """What a fork takes of another session's segment: entries with low < seq <= upto."""

    segment: bytes
    low: int
    upto: int


class Ticket(NamedTuple):
    """A place in the queue."""

    run: str
    lapses_us: int


@dataclass(slots=True)
class Row:
    """
    A session as it is stored; operations change ``info`` and ``queue``, then save it.

    ``info.lease`` is the last lease given out, also when it has expired; ``shown`` judges it.
    """

    segment: bytes
    info: SessionInfo
    parts: tuple[Part, ...] = ()
    queue: tuple[Ticket, ...] = ()
    stored: Document = field(default_factory=dict)

    @property
    def history(self) -> tuple[Part, ...]:
        """What its history is made of, oldest first; the last part is its own."""
        return (*self.parts, Part(self.segment, self.info.base, self.info.head))

    def running(self, now: int) -> Lease | None:
        """The lease of the run that is active now, or None."""
        lease = self.info.lease
        return lease if lease and lease.state == "running" and to_us(lease.expires_at) > now else None

    def waiting(self, now: int) -> list[str]:
        """Runs whose place in the queue has not lapsed, first come first."""
        return [ticket.run for ticket in self.queue if ticket.lapses_us > now]

    def held(self, run: str | None, fence: int) -> Lease | None:
        """The newest lease when it is this one, also expired or paused."""
        lease = self.info.lease
        return lease if lease and (lease.run, lease.fence) == (run, fence) else None

    def shown(self, now: int) -> SessionInfo:
        """The row as the contract shows it."""
        lease = self.info.lease
        if lease is not None and to_us(lease.expires_at) <= now:
            lease = None
        return _replace(self.info, lease=lease, waiting=len(self.waiting(now)))

    def changes(self) -> Document:
        """The update that makes the stored document say what this row says."""
        wanted = row_document(self)
        new = {name: value for name, value in wanted.items() if self.stored.get(name) != value}
        gone = dict.fromkeys((name for name in _ABSENT_WHEN_EMPTY if name in self.stored and name not in wanted), "")
        return {**({"$set": new} if new else {}), **({"$unset": gone} if gone else {})}


def _replace(info: SessionInfo, **changes: Any) -> SessionInfo:
    from msgspec.structs import replace

    return replace(info, **changes)


def new_segment() -> bytes:
    """A fresh segment; one that is made later sorts behind, which keeps the index of entries compact."""
    return bytes.fromhex(new_id())


def place(segment: bytes, seq: int) -> bytes:
    """The ``_id`` of an entry: it sorts by segment, then by seq."""
    return segment + seq.to_bytes(8, "big")


# Sessions.

_ABSENT_WHEN_EMPTY = (
    "key", "config", "idle_us", "expires_us", "due_us", "archived_us", "usage", "parent", "lease", "queue", "parts",
)  # fmt: skip


def row_document(row: Row) -> Document:
    """A session's whole document."""
    info = row.info
    whole: Document = {
        "_id": row.segment,
        "tenant": info.scope.tenant,
        "user": info.scope.user,
        "id": info.id,
        "key": info.key,
        "format": info.format,
        "title": info.title,
        "state": info.state,
        "head": info.head,
        "base": info.base,
        "fence": info.fence,
        "version": info.version,
        "tags": list(info.tags),
        "metadata": codec.encode(dict(info.metadata), where="metadata"),
        "is_pinned": info.is_pinned,
        "is_listed": info.is_listed,
        "config": info.config,
        "idle_us": info.idle_us,
        "expires_us": info.expires_at and to_us(info.expires_at),
        "due_us": info.due_at and to_us(info.due_at),
        "created_us": to_us(info.created_at),
        "active_us": to_us(info.active_at),
        "archived_us": info.archived_at and to_us(info.archived_at),
        "usage": list(info.usage) if any(info.usage) else None,
        "parent": info.parent and {"session": info.parent.session, "seq": info.parent.seq, "link": info.parent.link},
        "lease": info.lease and _lease_document(info.lease),
        "queue": [ticket._asdict() for ticket in row.queue] or None,
        "parts": [part._asdict() for part in row.parts] or None,
    }
    return {name: value for name, value in whole.items() if value is not None}


def _lease_document(lease: Lease) -> Document:
    return {
        "run": lease.run,
        "fence": lease.fence,
        "state": lease.state,
        "expires_us": to_us(lease.expires_at),
        "holder": lease.holder,
    }


def row_of(found: Document) -> Row:
    """
    The session of a document.

    Raises:
        Corrupt: The document is not one that this store wrote.
    """
    try:
        return Row(
            bytes(found["_id"]),
            _info(found),
            tuple(Part(**part) for part in found.get("parts", ())),
            tuple(Ticket(**ticket) for ticket in found.get("queue", ())),
            found,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        name = str(found.get("id"))
        raise Corrupt(
            f"session {name!r}: its document is damaged ({error!r}); restore it from a backup", session=name
        ) from error


def _info(found: Mapping[str, Any]) -> SessionInfo:
    lease, parent = found.get("lease"), found.get("parent")
    return SessionInfo(
        scope=ScopeKey(found["tenant"], found["user"]),
        id=found["id"],
        key=found.get("key"),
        format=found["format"],
        title=found["title"],
        state=found["state"],
        head=found["head"],
        base=found["base"],
        fence=found["fence"],
        version=found["version"],
        tags=tuple(found["tags"]),
        metadata=codec.decode(found["metadata"]),
        is_pinned=found["is_pinned"],
        is_listed=found["is_listed"],
        config=found.get("config"),
        idle_us=found.get("idle_us"),
        expires_at=_moment(found.get("expires_us")),
        created_at=from_us(found["created_us"]),
        active_at=from_us(found["active_us"]),
        archived_at=_moment(found.get("archived_us")),
        usage=Usage(*map(int, found.get("usage", ()))),
        parent=parent and Parent(**parent),
        lease=lease
        and Lease(lease["run"], lease["fence"], lease["state"], from_us(lease["expires_us"]), lease["holder"]),
    )


def _moment(us: int | None) -> Any:
    return None if us is None else from_us(us)


# Entries.


def entry_document(row: Row, draft: Draft, seq: int, run: str | None, now: int) -> Document:
    """An entry's document."""
    number, body = pack(draft.body)
    whole: Document = {
        "_id": place(row.segment, seq),
        "segment": row.segment,
        "seq": seq,
        "tenant": row.info.scope.tenant,
        "user": row.info.scope.user,
        "session": row.info.id,
        "id": draft.id,
        "kind": draft.kind,
        "format": draft.format,
        "origin": draft.origin,
        "digest": draft.digest,
        "codec": number,
        "body": body,
        "refs": list(draft.refs) or None,
        "run": run,
        "created_us": now,
        "occurred_us": draft.occurred_us,
        "usage": None if draft.usage is None else list(draft.usage),
    }
    return {name: value for name, value in whole.items() if value is not None}


def entry_of(found: Document, session: str) -> Entry:
    """
    The entry of a document, compared with its digest.

    Raises:
        Corrupt: It is not what was stored; ``session`` is the one that the caller reads.
    """
    seq = found.get("seq")
    try:
        usage = found.get("usage")
        return Entry(
            seq=found["seq"],
            id=found["id"],
            kind=found["kind"],
            format=found["format"],
            origin=found["origin"],
            body=unpack(found["codec"], found["body"]) if "body" in found else None,
            digest=bytes(found["digest"]),
            refs=tuple(found.get("refs", ())),
            run=found.get("run"),
            created_us=found["created_us"],
            occurred_us=found.get("occurred_us"),
            usage=None if usage is None else Usage(*map(int, usage)),
        ).verify(session)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(session, seq, f"its document is damaged ({error!r})") from error
    except Corrupt as error:
        if error.session is not None:
            raise
        raise _damaged(session, seq, str(error)) from error


def _damaged(session: str, seq: Any, what: str) -> Corrupt:
    return Corrupt(
        f"session {session!r}, entry {seq}: {what}; restore it from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq if isinstance(seq, int) else None,
    )


def lost(session: str, seq: int) -> Corrupt:
    """The error for an entry that should be there and is not."""
    return Corrupt(
        f"session {session!r}, entry {seq} is missing; restore it from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq,
    )


def first_missing(found: Sequence[int], wanted: range) -> int | None:
    """The first of the seqs wanted that is not there, both in the order of the reading."""
    if len(found) == len(wanted) and (not found or (found[0], found[-1]) == (wanted[0], wanted[-1])):
        return None
    there = set(found)
    return next((seq for seq in wanted if seq not in there), None)
