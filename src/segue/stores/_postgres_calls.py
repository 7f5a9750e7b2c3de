"""Each operation of the contract as a call of one function of the schema, and its rows as the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, assert_never

from msgspec.structs import replace
from psycopg import sql

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
from segue.model import Lease, Parent, SessionInfo, from_us
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

from ._postgres_repeats import Refused, distinct
from ._postgres_wire import (
    SESSION_COLUMNS,
    STATES,
    Row,
    blobs,
    longs,
    pack_entries,
    pack_tags,
    pack_title,
    texts,
    unpack_session,
)

Answer: TypeAlias = Result | NotDone
_Settle: TypeAlias = Callable[[list[Row]], list[Answer]]
_Parts: TypeAlias = tuple[str, tuple[Any, ...], _Settle]

_SESSION = "o.code, o.name, o.one, o.now_us, o.waiting, " + ", ".join(f"(o.session).{name}" for name in SESSION_COLUMNS)
_COLUMNS = {
    "append": "o.code, o.name, o.one, o.head, o.seqs, o.added",
    "create_session": _SESSION,
    "update_session": _SESSION,
    "take": "o.code, o.name, o.one, o.two",
    "renew": "o.code, o.name, o.one",
    "release": "o.code, o.name, o.one",
    "hollow": "o.code, o.name, o.one, o.two, o.three",
    "erase": "o.code, o.name, o.one, o.two",
    "refuse_twice": "o.code, o.name, o.one",
}


_REPEATABLE = (Append, Create, Fork, Take, Renew, Release, Refused)


class Call(NamedTuple):
    """A statement, its values, and the operations (by their place in the batch) that its rows answer."""

    statement: bytes
    args: tuple[Any, ...]
    places: tuple[int, ...]
    settle: _Settle
    is_repeatable: bool
    """Done twice, it is done once, and the second answer tells of the first."""


class Calls:
    """
    Makes calls for one schema.

    Args:
        schema: Its name, already checked.
        lock_ms: How long a statement may wait for a lock, where the connection has no such limit.
        sender: What notifications are signed with; None sends none.
    """

    def __init__(self, schema: str, *, lock_ms: int | None, sender: str | None) -> None:
        self._schema = schema
        self._lock_ms = lock_ms
        self._sender = sender
        self._statements: dict[str, bytes] = {}

    def sign(self, sender: str | None) -> None:
        """Sign notifications with this from now on."""
        self._sender = sender

    def make(self, places: Sequence[int], ops: Sequence[Op | Refused], shift_us: int) -> Call:
        """
        The call for one operation, or for several appends (of which a session may have more than one).

        Raises:
            Invalid: A value cannot be stored.
        """
        name, args, settle = _parts(ops)
        args = (shift_us, self._lock_ms, self._sender, *args)
        statement = self._statements.get(name) or self._statement(name, len(args))
        return Call(statement, args, tuple(places), settle, isinstance(ops[0], _REPEATABLE))

    def _statement(self, name: str, count: int) -> bytes:
        places = sql.SQL(", ").join(sql.SQL(f"${n}") for n in range(1, count + 1))
        call = sql.SQL("SELECT {} FROM {}({}) AS o").format(
            sql.SQL(_COLUMNS[name]),
            sql.Identifier(self._schema, name),
            places,
        )
        return self._statements.setdefault(name, call.as_bytes())


def _parts(ops: Sequence[Op | Refused]) -> _Parts:
    op = ops[0]
    match op:
        case Append():
            return _append([op for op in ops if isinstance(op, Append)])
        case Take():
            return _take(op)
        case Renew():
            return _renew(op)
        case Release():
            return _release(op)
        case Create():
            return _create(op)
        case Fork():
            return _fork(op)
        case Update():
            return _update(op)
        case Hollow():
            return _hollow(op)
        case Erase():
            return _erase(op)
        case Refused():
            return _refuse(op)
        case _:
            assert_never(op)


def _append(ops: Sequence[Append]) -> _Parts:
    args = (
        texts([op.scope.tenant for op in ops]),
        texts([op.scope.user for op in ops]),
        texts([op.session for op in ops]),
        texts([op.run for op in ops]),
        longs([op.fence for op in ops]),
        longs([op.expect for op in ops]),
        longs([len(op.entries) for op in ops]),
        *pack_entries([draft for op in ops for draft in op.entries]),
    )
    return "append", args, lambda rows: [_appended(op, row) for op, row in zip(ops, rows, strict=True)]


def _appended(op: Append, row: Row) -> Answer:
    code, name, one, head, seqs, added = row
    match code:
        case "done":
            return Appended(head, tuple(seqs or ()), added)
        case "lease_lost":
            return LeaseLost(op.run or "", op.fence or 0, one)
        case "busy":
            return Busy(name, waiting=one)
        case "head_moved":
            return HeadMoved(op.expect or 0, one)
        case _:
            return _refused(op.session, row)


def _refused(session: str, row: Row) -> NotDone:
    """What several operations are refused for."""
    code, name, one = row[:3]
    match code:
        case "not_found":
            return NotFound(session)
        case "archived":
            return Archived(session)
        case "id_conflict":
            return IdConflict(name, one)
        case _:
            raise AssertionError(code)


def _take(op: Take) -> _Parts:
    policy = (op.run, op.ttl_us, op.policy, op.holder, op.over, op.dead, op.ticket_us)
    args = (*op.scope, op.session, *policy, *pack_entries(op.entries))
    return "take", args, lambda rows: [_taken(op, rows[0])]


def _taken(op: Take, row: Row) -> Answer:
    code, name, one, two = row
    match code:
        case "done":
            return Lease(op.run, one, "running", from_us(two), op.holder)
        case "queued":
            return Queued(one, name or "")
        case "busy" if name is None:
            return Busy("", waiting=one, message=f"{one} runs wait for this session; use policy='enqueue'")
        case "busy":
            return Busy(name, waiting=one)
        case _:
            return _refused(op.session, row)


def _renew(op: Renew) -> _Parts:
    def settle(rows: list[Row]) -> list[Answer]:
        code, holder, one = rows[0]
        if code == "done":
            return [Lease(op.run, op.fence, "running", from_us(one), holder)]
        if code == "lease_lost":
            return [LeaseLost(op.run, op.fence, one)]
        return [_refused(op.session, rows[0])]

    return "renew", (*op.scope, op.session, op.run, op.fence, op.ttl_us), settle


def _release(op: Release) -> _Parts:
    def settle(rows: list[Row]) -> list[Answer]:
        code, _, one = rows[0]
        if code == "done":
            return [None]
        if code == "lease_lost":
            return [LeaseLost(op.run, op.fence or 0, one)]
        return [_refused(op.session, rows[0])]

    return "release", (*op.scope, op.session, op.run, op.fence, op.pause_us), settle


def _create(op: Create, source: str | None = None, at: int | None = None) -> _Parts:
    entries, _, twice = distinct(op.entries)
    parent = (None, None, None) if op.parent is None else (op.parent.session, op.parent.seq, op.parent.link)
    args = (
        source,
        at,
        *op.scope,
        op.id,
        op.key,
        op.format,
        pack_title(op.title),
        pack_tags(op.tags),
        codec.encode(dict(op.metadata), where="metadata"),
        op.is_pinned,
        op.is_listed,
        op.config,
        op.idle_us,
        op.expires_us,
        *parent,
        *pack_entries(entries),
        None if twice is None else twice + 1,
    )
    return "create_session", args, lambda rows: [_created(op, source, at, rows[0])]


def _fork(op: Fork) -> _Parts:
    create = op.create
    if create.parent is None:
        create = replace(create, parent=Parent(op.source, op.at))
    return _create(create, op.source, op.at)


def _created(op: Create, source: str | None, at: int | None, row: Row) -> Answer:
    code, name, one = row[:3]
    match code:
        case "done":
            return _session(op.scope, row)
        case "id_taken":
            return Exists(f"the id {op.id!r} is taken; choose another", session=name)
        case "key_taken":
            return Exists(f"the key {op.key!r} belongs to session {name!r}; open that", session=name)
        case "no_source":
            return NotFound(source or "")
        case "no_such_seq":
            return Invalid(f"cannot fork at {at}: the session ends at {one}", where="at")
        case _:
            return _refused(op.id, row)


def _session(scope: Any, row: Row) -> SessionInfo:
    return unpack_session(scope, row[5:], now_us=row[3], waiting=row[4])


def _update(op: Update) -> _Parts:
    changes = op.changes
    metadata = codec.encode(dict(changes["metadata"]), where="metadata") if "metadata" in changes else None
    args = (
        *op.scope,
        op.session,
        op.expect,
        op.if_due_us,
        texts(list(changes)),
        changes.get("key"),
        pack_title(changes.get("title", "")),
        pack_tags(changes.get("tags", ())),
        metadata,
        changes.get("is_pinned"),
        changes.get("is_listed"),
        STATES.index(changes["state"]) if "state" in changes else None,
        changes.get("config"),
        changes.get("idle_us"),
        changes.get("expires_us"),
    )
    return "update_session", args, lambda rows: [_updated(op, rows[0])]


def _updated(op: Update, row: Row) -> Answer:
    code, name, one = row[:3]
    match code:
        case "done":
            return _session(op.scope, row)
        case "version_moved":
            return VersionMoved(one if op.expect is None else op.expect, one)
        case "busy":
            return Busy(name, message=f"run {name!r} is active; end it, then archive")
        case "key_taken":
            return Exists(f"the key {op.changes['key']!r} belongs to session {name!r}; open that", session=name)
        case _:
            return _refused(op.session, row)


def _hollow(op: Hollow) -> _Parts:
    def settle(rows: list[Row]) -> list[Answer]:
        code, _, one, base, head = rows[0]
        if code == "done":
            return [int(one)]
        if code == "not_own":
            return [
                Invalid(
                    f"entry {one} is not one of this session's own ({base + 1} to {head}); "
                    "an inherited one is hollowed in the session that owns it",
                    where="seqs",
                )
            ]
        return [_refused(op.session, rows[0])]

    return "hollow", (*op.scope, op.session, longs(op.seqs)), settle


def _erase(op: Erase) -> _Parts:
    def settle(rows: list[Row]) -> list[Answer]:
        code, _, one, two = rows[0]
        if code == "done":
            return [Erased(one, two)]
        if code == "version_moved":
            return [VersionMoved(op.expect or 0, one)]
        return [_refused(op.session, rows[0])]

    return "erase", (*op.scope, op.session, op.expect), settle


def _refuse(op: Refused) -> _Parts:
    ids, digests = texts([draft.id for draft in op.entries]), blobs([draft.digest for draft in op.entries])
    args = (*op.scope, op.session, isinstance(op.op, Take), ids, digests, op.twice + 1)
    return "refuse_twice", args, lambda rows: [_refused(op.session, rows[0])]
