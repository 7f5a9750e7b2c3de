"""Making, changing and erasing sessions: what an operation makes of locked rows. A refusal changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from segue import codec
from segue.errors import Busy, Exists, Invalid, NotFound, VersionMoved
from segue.model import Parent, ScopeKey, SessionInfo, Usage
from segue.store import Create, Erase, Erased, Fork, Hollow, Update

from ._mysql_append import add
from ._mysql_rows import (
    ARCHIVED,
    STATES,
    Row,
    info_of,
    new_segment,
    pack,
    pack_tags,
    pack_title,
    pack_tokens,
    text,
)
from ._mysql_work import Part, Place, Work

_ANCESTORS = """
    SELECT o.tenant, o.user_id, o.id FROM sessions s JOIN spans p ON p.child = s.segment
    JOIN sessions o ON o.segment = p.segment WHERE s.tenant = %s AND s.user_id = %s AND s.id = %s
"""


def shown(work: Work, scope: ScopeKey, row: Row) -> SessionInfo:
    """A whole row as it is now."""
    return info_of(row, scope, now_us=work.now, waiting=len(work.waiting(row)))


def create(work: Work, op: Create) -> SessionInfo:
    """See ``segue.store.Create``."""
    return _again(work, op, op.parent) or _make(work, op, op.parent)


def fork(work: Work, op: Fork) -> SessionInfo:
    """See ``segue.store.Fork``."""
    create = op.create
    parent = create.parent or Parent(op.source, op.at)
    again = _again(work, create, parent)
    if again is not None:
        return again
    source = work.row(create.scope, op.source)
    if not 0 <= op.at <= source.head:
        raise Invalid(f"cannot fork at {op.at}: the session ends at {source.head}", where="at")
    parts = (*work.parts(source), Part(source.segment, source.base, source.head))
    shared = [part._replace(upto=min(part.upto, op.at)) for part in parts if part.low < min(part.upto, op.at)]
    return _make(work, create, parent, base=op.at, shared=shared)


def _again(work: Work, op: Create, parent: Parent | None) -> SessionInfo | None:
    """The session that this very operation made before, None when the id is free, else ``Exists``."""
    row = work.find(op.scope, op.id)
    if row is None:
        return None
    work.complete(row)
    mine = (text(row.own_key), text(row.parent), row.parent_seq, text(row.parent_link))
    if row.erased_us is None and mine == (op.key, *_link(parent)):
        return shown(work, op.scope, row)
    raise Exists(f"the id {op.id!r} is taken; choose another", session=None if row.erased_us else op.id)


def _make(work: Work, op: Create, parent: Parent | None, *, base: int = 0, shared: Sequence[Part] = ()) -> SessionInfo:
    """A new session; it shares these parts of a history up to its base."""
    _check_key(work, op.scope, op.key)
    link = _link(parent)
    row = Row(
        tenant=op.scope.tenant.encode(),
        user_id=op.scope.user.encode(),
        id=op.id.encode(),
        segment=new_segment(),
        head=base,
        base=base,
        fence=0,
        version=1,
        state=0,
        active_us=work.now,
        erased_us=None,
        idle_us=op.idle_us,
        expires_us=op.expires_us,
        is_pinned=int(op.is_pinned),
        tokens=pack_tokens(Usage()),
        lease_run=None,
        lease_paused=None,
        lease_until_us=None,
        lease_holder=None,
        created_us=work.now,
        is_listed=int(op.is_listed),
        own_key=pack(op.key),
        format=op.format.encode(),
        parent=pack(link[0]),
        parent_seq=link[1],
        parent_link=pack(link[2]),
        title=pack_title(op.title),
        tags=pack_tags(op.tags),
        metadata=codec.encode(dict(op.metadata), where="metadata"),
        config=op.config,
    )
    row.is_new = True
    new = work.sift_new(row, op.entries, shared)
    work.make((op.scope, op.id), row, shared)
    add(work, row, new, None)
    return shown(work, op.scope, row)


def _link(parent: Parent | None) -> tuple[str | None, int | None, str | None]:
    return (None, None, None) if parent is None else (parent.session, parent.seq, parent.link)


def _check_key(work: Work, scope: ScopeKey, key: str | None) -> None:
    if key is None:
        return
    found = work.rows(
        "SELECT id FROM sessions WHERE tenant = %s AND user_id = %s AND own_key = %s",
        scope.tenant.encode(),
        scope.user.encode(),
        key.encode(),
    )
    for (id,) in found:
        raise Exists(f"the key {key!r} belongs to session {id.decode()!r}; open that", session=id.decode())


def update(work: Work, op: Update) -> SessionInfo:
    """See ``segue.store.Update``."""
    row, changes = work.row(op.scope, op.session), op.changes
    if op.expect is not None and op.expect != row.version:
        raise VersionMoved(op.expect, row.version)
    due = None if row.is_pinned else row.due_us
    if op.if_due_us is not None and (due is None or due > op.if_due_us):
        raise VersionMoved(op.expect or row.version, row.version)
    state = STATES.index(changes["state"]) if "state" in changes else row.state
    active = row.running(work.now)
    if state == ARCHIVED != row.state and active is not None:
        raise Busy(active, message=f"run {active!r} is active; end it, then archive")
    if "key" in changes and changes["key"] != text(row.own_key):
        _check_key(work, op.scope, changes["key"])
    columns = dict(changes)
    if "key" in columns:
        columns["own_key"] = pack(columns.pop("key"))
    if "title" in columns:
        columns["title"] = pack_title(columns["title"])
    if "tags" in columns:
        columns["tags"] = pack_tags(columns["tags"])
    if "metadata" in columns:
        columns["metadata"] = codec.encode(dict(columns["metadata"]), where="metadata")
    columns |= {name: int(columns[name]) for name in ("is_pinned", "is_listed") if name in columns}
    if state != row.state:
        columns["archived_us"] = work.now if state == ARCHIVED else None
    row.set(**(columns | {"state": state, "version": row.version + 1}))
    return shown(work, op.scope, row)


def hollow(work: Work, op: Hollow) -> int:
    """See ``segue.store.Hollow``."""
    row = work.row(op.scope, op.session)
    for seq in op.seqs:
        if not row.base < seq <= row.head:
            raise Invalid(
                f"entry {seq} is not one of this session's own ({row.base + 1} to {row.head}); "
                "an inherited one is hollowed in the session that owns it",
                where="seqs",
            )
    if not op.seqs:
        return 0
    marks = ", ".join(["%s"] * len(op.seqs))
    count = work.change(
        f"UPDATE entries SET body = NULL, refs = NULL WHERE segment = %s AND seq IN ({marks}) AND body IS NOT NULL",  # noqa: S608
        row.segment,
        *op.seqs,
    )
    work.change(f"DELETE FROM refs WHERE segment = %s AND seq IN ({marks})", row.segment, *op.seqs)  # noqa: S608
    return count


def touched_by_erase(work: Work, op: Erase) -> list[Place]:
    """The session and all whose entries it shares: of two forks erased at once, one must come after the other."""
    found = work.rows(_ANCESTORS, op.scope.tenant.encode(), op.scope.user.encode(), op.session.encode())
    ancestors = [(ScopeKey(tenant.decode(), user.decode()), id.decode()) for tenant, user, id in found]
    return [(op.scope, op.session), *ancestors]


def erase(work: Work, op: Erase) -> Erased:
    """See ``segue.store.Erase``."""
    row = work.find(op.scope, op.session)
    if row is None:
        raise NotFound(op.session)
    if row.erased_us is not None:
        return Erased(0, 0)
    if op.expect is not None and op.expect != row.version:
        raise VersionMoved(op.expect, row.version)
    gone = _cut(work, row.segment, None)
    ((kept,),) = work.rows("SELECT COUNT(*) FROM entries WHERE segment = %s", row.segment)
    # What erased ancestors had kept for this session alone goes with it.
    ancestors = work.rows(
        "SELECT p.segment FROM spans p JOIN sessions o ON o.segment = p.segment "
        "WHERE p.child = %s AND o.erased_us IS NOT NULL",
        row.segment,
    )
    gone += sum(_cut(work, segment, row.segment) for (segment,) in ancestors)
    work.change("DELETE FROM spans WHERE child = %s", row.segment)
    work.change("DELETE FROM tickets WHERE segment = %s", row.segment)
    row.set(
        erased_us=work.now, own_key=None, title=b"", tags=b"", metadata=b"", config=None, idle_us=None,
        expires_us=None, archived_us=None, lease_run=None, lease_paused=None, lease_until_us=None,
        lease_holder=None, parent=None, parent_seq=None, parent_link=None,
    )  # fmt: skip
    return Erased(gone, kept)


def _cut(work: Work, segment: int, but: int | None) -> int:
    """Delete the entries of a segment that no living fork (but one) takes; how many they were."""
    ((needed,),) = work.rows(
        "SELECT COALESCE(MAX(upto), 0) FROM spans WHERE segment = %s AND child <> COALESCE(%s, -1)", segment, but
    )
    work.change("DELETE FROM refs WHERE segment = %s AND seq > %s", segment, needed)
    return work.change("DELETE FROM entries WHERE segment = %s AND seq > %s", segment, needed)
