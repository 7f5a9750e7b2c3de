"""Each operation of the contract as the script takes it, and its answer as a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from msgspec.structs import replace

from segue import codec
from segue.errors import (
    Archived,
    Busy,
    Exists,
    HeadMoved,
    IdConflict,
    Invalid,
    LeaseLost,
    NotDone,
    NotFound,
    VersionMoved,
)
from segue.model import Lease, Parent, ScopeKey, from_us
from segue.store import (
    Append,
    Appended,
    Create,
    Erase,
    Erased,
    Fork,
    Hollow,
    Op,
    Queued,
    Release,
    Renew,
    Result,
    Take,
    Update,
)

from ._redis_keys import Lineage, Table
from ._redis_wire import BATCH_MAX_BYTES, Reply, pack, pack_entries, pack_tags, pack_title, unpack_session

Answer: TypeAlias = Result | NotDone
_Settle: TypeAlias = Callable[[Sequence[Reply], int], Answer]
_Parts: TypeAlias = tuple[dict[str, Any], Sequence[bytes], _Settle]

_REPEATABLE = (Append, Create, Fork, Take, Renew, Release)


def is_repeatable(op: Op) -> bool:
    """True when done twice it is done once, and the second answer tells of the first."""
    return isinstance(op, _REPEATABLE)


def target(op: Op) -> tuple[ScopeKey, str]:
    """The session that an operation writes to."""
    if isinstance(op, Fork):
        op = op.create
    return op.scope, op.id if isinstance(op, Create) else op.session


def size(op: Op) -> int:
    """About how many bytes it has."""
    made = op.create if isinstance(op, Fork) else op
    return sum(len(draft.body) for draft in getattr(made, "entries", ()))


def check(op: Op) -> None:
    """``Invalid`` when an operation is too large to be sent."""
    if size(op) > BATCH_MAX_BYTES:
        raise Invalid(f"the bodies of this append have over {BATCH_MAX_BYTES:,} bytes; append them in parts")


class Call:
    """
    One operation on its way.

    Args:
        op: What is to be done.
        table: The keys of the call that it goes with; its own are added.
        lineage: What forks share.
    """

    def __init__(self, op: Op, table: Table, lineage: Lineage) -> None:
        self._lineage = lineage
        self._table = table
        self.scope, self.session = target(op)
        body, raws, self._settle = self._parts(op)
        body["at"], body["id"], body["raws"] = table.at(self.session), self.session, len(raws)
        self.args = (pack(body), *raws)

    def learn(self, packed_spans: bytes, op: Op) -> None:
        """The script needs the keys of these spans as well."""
        session = op.source if isinstance(op, Fork) else self.session
        self._lineage.learn(self.scope, session, packed_spans)

    def settle(self, answer: Sequence[Reply], now_us: int) -> Answer:
        """The result, or the refusal, that an answer means."""
        return self._settle(answer, now_us)

    def _places(self, session: str) -> list[int]:
        return [self._table.at(span.owner) for span in self._lineage.of(self.scope, session)]

    def _parts(self, op: Op) -> _Parts:
        match op:
            case Append():
                return self._append(op)
            case Take():
                return self._take(op)
            case Renew():
                return _renew(op)
            case Release():
                return _release(op)
            case Create():
                return self._create(op)
            case Fork():
                return self._fork(op)
            case Update():
                return self._update(op)
            case Hollow():
                return _hollow(op)
            case Erase():
                return self._erase(op)
            case _:
                assert_never(op)

    def _append(self, op: Append) -> _Parts:
        def settle(answer: Sequence[Reply], _: int) -> Answer:
            match answer[0]:
                case b"done":
                    return Appended(answer[1], tuple(answer[3:]), answer[2])
                case b"lease_lost":
                    return LeaseLost(op.run or "", op.fence or 0, answer[1])
                case b"busy":
                    return Busy(answer[1].decode(), waiting=answer[2])
                case b"head_moved":
                    return HeadMoved(op.expect or 0, answer[1])
            return _refused(op.session, answer)

        body = {"op": "append", "run": op.run, "fence": op.fence, "expect": op.expect}
        entries, records = pack_entries(op.entries)
        return {**body, "places": self._places(op.session), "entries": entries}, records, settle

    def _take(self, op: Take) -> _Parts:
        def settle(answer: Sequence[Reply], _: int) -> Answer:
            match answer[0]:
                case b"done":
                    return Lease(op.run, answer[1], "running", from_us(answer[2]), op.holder)
                case b"queued":
                    return Queued(answer[2], answer[1].decode())
                case b"busy" if not answer[1]:
                    text = f"{answer[2]} runs wait for this session; use policy='enqueue'"
                    return Busy("", waiting=answer[2], message=text)
                case b"busy":
                    return Busy(answer[1].decode(), waiting=answer[2])
            return _refused(op.session, answer)

        body = {"op": "take", "run": op.run, "ttl": op.ttl_us, "policy": op.policy, "holder": op.holder}
        body |= {"over": op.over, "dead": op.dead, "ticket": op.ticket_us}
        entries, records = pack_entries(op.entries)
        return {**body, "places": self._places(op.session), "entries": entries}, records, settle

    def _create(self, op: Create) -> _Parts:
        def settle(answer: Sequence[Reply], now_us: int) -> Answer:
            match answer[0]:
                case b"done":
                    return self._shown(answer[1], now_us)
                case b"id_taken":
                    session = answer[1].decode() or None
                    return Exists(f"the id {op.id!r} is taken; choose another", session=session)
                case b"key_taken":
                    return _key_taken(op.key, answer)
            return _refused(op.id, answer)

        entries, records = pack_entries(op.entries)
        fields = {name: value for name, value in _fields(op).items() if value is not None}
        places = {name: len(records) + n for n, name in enumerate(fields, 1)}
        body: dict[str, Any] = {"op": "create", "key": op.key, "fields": places, "entries": entries}
        if op.parent is not None:
            parent = op.parent
            body |= {"parent": parent.session, "parent_seq": parent.seq, "parent_link": parent.link}
        return body, [*records, *fields.values()], settle

    def _fork(self, op: Fork) -> _Parts:
        create = op.create
        if create.parent is None:
            create = replace(create, parent=Parent(op.source, op.at))
        body, raws, settle_create = self._create(create)

        def settle(answer: Sequence[Reply], now_us: int) -> Answer:
            match answer[0]:
                case b"no_source":
                    return NotFound(op.source)
                case b"no_such_seq":
                    return Invalid(f"cannot fork at {op.at}: the session ends at {answer[1]}", where="at")
            return settle_create(answer, now_us)

        body |= {"source": self._table.at(op.source), "source_id": op.source, "upto": op.at}
        return {**body, "places": self._places(op.source)}, raws, settle

    def _update(self, op: Update) -> _Parts:
        def settle(answer: Sequence[Reply], now_us: int) -> Answer:
            match answer[0]:
                case b"done":
                    return self._shown(answer[1], now_us)
                case b"version_moved":
                    return VersionMoved(answer[1] if op.expect is None else op.expect, answer[1])
                case b"busy":
                    run = answer[1].decode()
                    return Busy(run, message=f"run {run!r} is active; end it, then archive")
                case b"key_taken":
                    return _key_taken(op.changes["key"], answer)
            return _refused(op.session, answer)

        fields = _changed(op.changes)
        kept = {name: value for name, value in fields.items() if value is not None}
        unset = [name for name, value in fields.items() if value is None]
        places = {name: n for n, name in enumerate(kept, 1)}
        body = {"op": "update", "expect": op.expect, "if_due": op.if_due_us, "fields": places, "unset": unset}
        return body, list(kept.values()), settle

    def _erase(self, op: Erase) -> _Parts:
        def settle(answer: Sequence[Reply], _: int) -> Answer:
            match answer[0]:
                case b"done":
                    return Erased(answer[1], answer[2])
                case b"version_moved":
                    return VersionMoved(op.expect or 0, answer[1])
            return _refused(op.session, answer)

        return {"op": "erase", "expect": op.expect, "places": self._places(op.session)}, (), settle

    def _shown(self, row: Sequence[Reply], now_us: int) -> Answer:
        self._lineage.learn(self.scope, self.session, row[-1])
        return unpack_session(self.scope, self.session, row, now_us)


def _refused(session: str, answer: Sequence[Reply]) -> NotDone:
    """What several operations are refused for."""
    match answer[0]:
        case b"not_found":
            return NotFound(session)
        case b"archived":
            return Archived(session)
        case b"id_conflict":
            return IdConflict(answer[1].decode(), answer[2])
        case _:
            raise AssertionError(answer[0])


def _key_taken(key: str | None, answer: Sequence[Reply]) -> Exists:
    session = answer[1].decode()
    return Exists(f"the key {key!r} belongs to session {session!r}; open that", session=session)


def _renew(op: Renew) -> _Parts:
    def settle(answer: Sequence[Reply], _: int) -> Answer:
        match answer[0]:
            case b"done":
                return Lease(op.run, op.fence, "running", from_us(answer[1]), answer[2].decode())
            case b"lease_lost":
                return LeaseLost(op.run, op.fence, answer[1])
        return _refused(op.session, answer)

    return {"op": "renew", "run": op.run, "fence": op.fence, "ttl": op.ttl_us}, (), settle


def _release(op: Release) -> _Parts:
    def settle(answer: Sequence[Reply], _: int) -> Answer:
        match answer[0]:
            case b"done":
                return None
            case b"lease_lost":
                return LeaseLost(op.run, op.fence or 0, answer[1])
        return _refused(op.session, answer)

    return {"op": "release", "run": op.run, "fence": op.fence, "pause": op.pause_us}, (), settle


def _hollow(op: Hollow) -> _Parts:
    def settle(answer: Sequence[Reply], _: int) -> Answer:
        match answer[0]:
            case b"done":
                return int(answer[1])
            case b"not_own":
                return Invalid(
                    f"entry {answer[1]} is not one of this session's own ({answer[2] + 1} to {answer[3]}); "
                    "an inherited one is hollowed in the session that owns it",
                    where="seqs",
                )
        return _refused(op.session, answer)

    return {"op": "hollow", "seqs": op.seqs}, (), settle


# Attributes as fields of a row. What is None is not there.


def _fields(op: Create) -> dict[str, bytes | None]:
    fields = _changed({
        "key": op.key, "title": op.title, "tags": op.tags, "metadata": op.metadata, "is_pinned": op.is_pinned,
        "is_listed": op.is_listed, "config": op.config, "idle_us": op.idle_us, "expires_us": op.expires_us,
    })  # fmt: skip
    fields["format"] = op.format.encode()
    if op.parent is not None:
        fields |= {"parent": op.parent.session.encode(), "parent_link": op.parent.link.encode()}
        fields["parent_seq"] = _number(op.parent.seq)
    return fields


def _changed(changes: Mapping[str, Any]) -> dict[str, bytes | None]:
    pairs = ((*_FIELDS[name], value) for name, value in changes.items())
    return {field: convert(value) for field, convert, value in pairs}


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _number(value: int | None) -> bytes | None:
    return None if value is None else str(value).encode()


def _flag(value: object) -> bytes | None:
    return b"1" if value else None


_FIELDS: dict[str, tuple[str, Callable[[Any], bytes | None]]] = {
    "key": ("key", _text),
    "title": ("title", pack_title),
    "tags": ("tags", lambda tags: pack_tags(tags) if tags else None),
    "metadata": ("metadata", lambda value: codec.encode(dict(value), where="metadata")),
    "is_pinned": ("pinned", _flag),
    "is_listed": ("listed", _flag),
    "state": ("state", _text),
    "config": ("config", lambda value: value),
    "idle_us": ("idle", _number),
    "expires_us": ("expires", _number),
}
