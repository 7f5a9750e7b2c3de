"""Operations that make sessions and change them, within one transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from segue.errors import Busy, Exists, Invalid, VersionMoved
from segue.model import Parent, SessionInfo
from segue.store import Create, Fork, Update

from ._sqlite_append import add, sift
from ._sqlite_rows import (
    ACTIVE,
    ARCHIVED,
    ERASED,
    STATES,
    Row,
    damaged_row,
    due_us,
    ends_us,
    metadata_text,
    profile_seal,
    shelf_of,
    tags_text,
)
from ._sqlite_work import Part, Work

_FIND = "SELECT no, state, key, parent_id, parent_seq, parent_link FROM sessions WHERE scope_no = ? AND id = ?"

_INSERT = """
    INSERT INTO sessions (scope_no, id, key, state, shelf, is_pinned, is_listed, version, head, base, origin_no, fence,
        parent_id, parent_seq, parent_link, idle_us, expires_us, due_us, created_us, active_us)
    VALUES (?, ?, ?, 0, ?, ?, ?, 1, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)
    RETURNING no
"""

_PROFILE = """
    INSERT OR REPLACE INTO profiles (session_no, format, title, tags, metadata, config, seal)
    VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FIND_PROFILE = "SELECT format, title, tags, metadata, config, seal FROM profiles WHERE session_no = ?"

_UPDATE = """
    UPDATE sessions SET key = ?, state = ?, shelf = ?, is_pinned = ?, is_listed = ?, version = ?,
        idle_us = ?, expires_us = ?, due_us = ?, archived_us = iif(?, archived_us, ?)
    WHERE no = ?
"""


def create(work: Work, op: Create) -> SessionInfo:
    return _again(work, op, op.parent) or _make(work, op, op.parent)


def fork(work: Work, op: Fork) -> SessionInfo:
    create = op.create
    parent = create.parent or Parent(op.source, op.at)
    again = _again(work, create, parent)
    if again is not None:
        return again
    source = work.row(create.scope, op.source)
    if not 0 <= op.at <= source.head:
        raise Invalid(f"cannot fork at {op.at}: the session ends at {source.head}", where="at")
    # The fork hangs on the session that owns entry ``at``, which may be one that the source was forked from itself.
    shared = [(no, after, min(upto, op.at)) for no, after, upto in work.parts(source) if after < op.at]
    return _make(work, create, parent, base=op.at, shared=shared)


def _again(work: Work, op: Create, parent: Parent | None) -> SessionInfo | None:
    """The session that this very operation made before, None when the id is free, else ``Exists``."""
    scope_no = work.scope_no(op.scope)
    found: Any = None if scope_no is None else work.con.execute(_FIND, (scope_no, op.id)).fetchone()
    if found is None:
        return None
    no, state, key, *link = found
    if state != ERASED and key == op.key and tuple(link) == _link(parent):
        return work.info(op.scope, no)
    raise Exists(f"the id {op.id!r} is taken; choose another", session=None if state == ERASED else op.id)


def _make(work: Work, op: Create, parent: Parent | None, *, base: int = 0, shared: Sequence[Part] = ()) -> SessionInfo:
    """A new session; it shares these parts of a history, newest first, up to its base."""
    con, now = work.con, work.moment.now
    if op.key is not None:
        _check_key(work, work.scope_no(op.scope), op.key)
    new, _seqs = sift(work, shared, base, op.entries)
    work.wrote = True
    scope_no = work.scope_no(op.scope) or work.make_scope(op.scope)
    ends = [] if op.idle_us is None else [now + op.idle_us]
    ends += [] if op.expires_us is None else [op.expires_us]
    due = None if op.is_pinned else min(ends, default=None)
    values = (
        scope_no, op.id, op.key, shelf_of(ACTIVE, op.is_listed), int(op.is_pinned), int(op.is_listed), base, base,
        shared[0][0] if shared else None, *_link(parent), op.idle_us, op.expires_us, due, now, now,
    )  # fmt: skip
    no: int = con.execute(_INSERT, values).get
    profile = (no, op.format, op.title, tags_text(op.tags), metadata_text(op.metadata), op.config)
    con.execute(_PROFILE, (*profile, profile_seal(*profile)))
    _add_tags(work, no, scope_no, op.tags)
    if new:
        add(work, work.row(op.scope, op.id), new, None)
    return work.info(op.scope, no)


def _link(parent: Parent | None) -> tuple[str | None, int | None, str | None]:
    return (None, None, None) if parent is None else (parent.session, parent.seq, parent.link)


def _check_key(work: Work, scope_no: int | None, key: str) -> None:
    taken = work.con.execute("SELECT id FROM sessions WHERE scope_no = ? AND key = ?", (scope_no, key)).get
    if taken is not None:
        raise Exists(f"the key {key!r} belongs to session {taken!r}; open that", session=taken)


def _add_tags(work: Work, no: int, scope_no: int, tags: Iterable[str]) -> None:
    rows = [(scope_no, tag, no) for tag in sorted(set(tags))]
    if rows:
        work.con.executemany("INSERT INTO tags (scope_no, tag, session_no) VALUES (?, ?, ?)", rows)


def update(work: Work, op: Update) -> SessionInfo:
    row = work.row(op.scope, op.session)
    if op.expect is not None and op.expect != row.version:
        raise VersionMoved(op.expect, row.version)
    ends = None if row.is_pinned else ends_us(row)
    if op.if_due_us is not None and (ends is None or ends > op.if_due_us):
        raise VersionMoved(op.expect or row.version, row.version)
    state = STATES.index(op.changes["state"]) if "state" in op.changes else row.state
    if state == ARCHIVED != row.state and work.is_running(row):
        raise Busy(row.lease_run or "", message=f"run {row.lease_run!r} is active; end it, then archive")
    key = op.changes.get("key", row.key)
    if key is not None and key != row.key:
        _check_key(work, row.scope_no, key)
    work.wrote = True
    _change(work, row._replace(key=key, state=state), op, was=row.state)
    _change_profile(work, row, op)
    return work.info(op.scope, row.no)


def _change(work: Work, row: Row, op: Update, *, was: int) -> None:
    changes = op.changes
    after = row._replace(
        is_pinned=int(changes.get("is_pinned", row.is_pinned)),
        is_listed=int(changes.get("is_listed", row.is_listed)),
        idle_us=changes.get("idle_us", row.idle_us),
        expires_us=changes.get("expires_us", row.expires_us),
    )
    archived_us = work.moment.now if after.state == ARCHIVED else None
    values = (
        after.key, after.state, shelf_of(after.state, after.is_listed), after.is_pinned, after.is_listed,
        row.version + 1, after.idle_us, after.expires_us, due_us(after), after.state == was, archived_us, row.no,
    )  # fmt: skip
    work.con.execute(_UPDATE, values)


def _change_profile(work: Work, row: Row, op: Update) -> None:
    con, changes, no = work.con, op.changes, row.no
    if not changes.keys() & {"title", "config", "metadata", "tags"}:
        return
    found: Any = con.execute(_FIND_PROFILE, (no,)).fetchone()
    if found is None or found[-1] != profile_seal(no, *found[:-1]):
        raise damaged_row(row.id, "its title, tags and metadata do not match their checksum")
    format, title, tags, metadata, config, _seal = found
    profile = (
        no,
        format,
        changes.get("title", title),
        tags_text(changes["tags"]) if "tags" in changes else tags,
        metadata_text(changes["metadata"]) if "metadata" in changes else metadata,
        changes.get("config", config),
    )
    con.execute(_PROFILE, (*profile, profile_seal(*profile)))
    if "tags" in changes:
        con.execute("DELETE FROM tags WHERE session_no = ?", (no,))
        _add_tags(work, no, row.scope_no, changes["tags"])
