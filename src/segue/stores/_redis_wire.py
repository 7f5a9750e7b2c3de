"""Values on their way to Redis and back: entries, session rows, operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec

from segue import codec
from segue.errors import Corrupt, Invalid
from segue.model import Draft, Entry, Lease, Parent, ScopeKey, SessionInfo, Usage, from_us

from . import _pack

Reply: TypeAlias = Any
"""What the server answers: bytes, int, None, or a list of these."""

BATCH_MAX_BYTES = 256 * 1024 * 1024
"""Most bytes of one append's bodies: a message to the server has a limit of 512 MiB, and memory has one too."""

pack = msgspec.msgpack.Encoder().encode


DIGEST_BYTES = 32
"""Of a record's beginning."""


class _Record(msgspec.Struct, array_like=True):
    """
    An entry as it is stored behind its digest; its seq is the name of its field.

    The first two are the server's, the rest ours.
    """

    created: int
    run: str | None
    id: str
    kind: str
    format: str
    origin: str
    occurred: int | None
    usage: tuple[int, int, int, int, int, int] | None
    refs: tuple[str, ...]
    codec: int | None
    body: bytes | None


_read_record = msgspec.msgpack.Decoder(_Record).decode
_read_usage = msgspec.msgpack.Decoder(tuple[int, int, int, int, int, int]).decode
_read_queue = msgspec.msgpack.Decoder(tuple[tuple[str, int], ...]).decode


def pack_entries(drafts: Sequence[Draft]) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """
    Drafts as the script takes them: what it looks at (id, is it a message, refs, usage), and the records.

    The scripts' reader of MessagePack knows no byte strings: so records go beside it.

    Raises:
        Invalid: A ref holds NUL, which parts a ref from what follows in the index.
    """
    looked_at, records = [], []
    for kind, format, origin, body, digest, id, refs, occurred, usage in drafts:
        if refs and any("\0" in ref for ref in refs):
            raise Invalid("a ref holds NUL; use names without control characters", where="refs")
        number, content = _pack.pack(body)
        looked_at.append((id, kind == "message", refs or None, usage))
        # Without its first byte, which says how many follow: the server puts two before them.
        records.append(digest + pack((id, kind, format, origin, occurred, usage, refs, number, content))[1:])
    return looked_at, records


def unpack_entry(seq: int, record: bytes | None, session: str) -> Entry:
    """An entry. ``Corrupt`` when it is missing, damaged, or its body does not match its digest."""
    if record is None:
        raise lost(session, seq)
    try:
        kept = _read_record(memoryview(record)[DIGEST_BYTES:])
        body = kept.body if kept.codec is None or kept.body is None else _pack.unpack(kept.codec, kept.body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(session, seq, str(error)) from error
    except Corrupt as error:
        raise _damaged(session, seq, str(error)) from error
    digest = record[:DIGEST_BYTES]
    entry = Entry(
        seq,
        kept.id,
        kept.kind,
        kept.format,
        kept.origin,
        body,
        digest,
        kept.refs,
        kept.run,
        kept.created,
        kept.occurred,
        None if kept.usage is None else Usage(*kept.usage),
    )
    # The check of ``verify``, without a call for each of what may be ten thousand.
    if body is not None and sha256(body).digest() != digest:
        entry.verify(session)
    return entry


def lost(session: str, seq: int) -> Corrupt:
    """The error for an entry that should be there and is not."""
    return Corrupt(
        f"session {session!r}, entry {seq} is missing; restore it from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq,
    )


def _damaged(session: str, seq: int, said: str) -> Corrupt:
    return Corrupt(
        f"session {session!r}, entry {seq} is damaged ({said}); "
        "restore it from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq,
    )


# Session rows.


def unpack_session(scope: ScopeKey, id: str, row: Sequence[Reply], now_us: int) -> SessionInfo:
    """
    A row in the order of ROW in the scripts, as it is shown at that time.

    Raises:
        Corrupt: It is damaged.
    """
    try:
        return _session(scope, id, row, now_us)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Corrupt(
            f"the row of session {id!r} is damaged ({error}); restore it from a backup, or run segue verify",
            session=id,
        ) from error


def _session(scope: ScopeKey, id: str, row: Sequence[Reply], now_us: int) -> SessionInfo:
    key, format, title, state, head, base, fence, version, tags, metadata, pinned, listed = row[:12]
    config, idle, expires, created, active, archived, usage = row[12:19]
    parent, parent_seq, parent_link = row[19:22]
    queue = row[26]
    return SessionInfo(
        scope=scope,
        id=id,
        key=None if key is None else key.decode(),
        format=format.decode(),
        title=title.decode("utf-8", "surrogatepass"),
        state=state.decode(),
        head=int(head),
        base=int(base),
        fence=int(fence),
        version=int(version),
        tags=tuple(tags.decode("utf-8", "surrogatepass").split("\0")) if tags else (),
        metadata=codec.decode(metadata),
        is_pinned=pinned is not None,
        is_listed=listed is not None,
        config=config,
        idle_us=None if idle is None else int(idle),
        expires_at=None if expires is None else from_us(int(expires)),
        created_at=from_us(int(created)),
        active_at=from_us(int(active)),
        archived_at=None if archived is None else from_us(int(archived)),
        usage=Usage(*_read_usage(usage)) if usage else Usage(),
        parent=None if parent is None else Parent(parent.decode(), int(parent_seq), parent_link.decode()),
        lease=_lease(row[22:26], int(fence), now_us),
        waiting=sum(until > now_us for _, until in _read_queue(queue)) if queue else 0,
    )


def _lease(held: Sequence[Reply], fence: int, now_us: int) -> Lease | None:
    run, paused, lapses, holder = held
    if run is None or int(lapses) <= now_us:
        return None
    state: Any = "running" if paused is None else "paused"
    return Lease(run.decode(), fence, state, from_us(int(lapses)), (holder or b"").decode())


def pack_tags(tags: Iterable[str]) -> bytes:
    """Tags as they are kept: sorted, each once. ``Invalid`` when one holds NUL, which parts them."""
    mine = sorted(set(tags))
    if any("\0" in tag for tag in mine):
        raise Invalid("a tag holds NUL; use names without control characters", where="tags")
    return "\0".join(mine).encode("utf-8", "surrogatepass")


def pack_title(title: str) -> bytes:
    """A title as it is kept: any characters at all."""
    return title.encode("utf-8", "surrogatepass")
