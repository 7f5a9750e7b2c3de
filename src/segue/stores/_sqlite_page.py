"""Lists of sessions: by keyset over an index, so that their cost does not depend on how many there are."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from typing import Any, NamedTuple

import apsw

from segue.errors import Invalid
from segue.model import ScopeKey
from segue.store import LIST_MAX, Filter, Page

from ._sqlite_read import View
from ._sqlite_rows import INFO_COLUMNS, LISTED, SHELVED, UNLISTED, info_of

FEW = 1_000
"""Up to so many sessions with a tag, they are looked up and sorted; of more, the list is searched for them."""

_CHECK_BYTES = 8
_ID, _IDLE_US, _EXPIRES_US, _ACTIVE_US, _ARCHIVED_US = 1, 16, 17, 19, 20  # where INFO_COLUMNS has them

# All SQL is put together from the constants below; values are always bound.

_RUNNING = "(s.lease_state IS 1 AND s.lease_boot = :boot AND s.lease_tick_us > :tick)"
_PAUSED = "(s.lease_state IS 2 AND s.lease_until_us > :now)"
_STATUS = {
    "running": f"(s.state = 0 AND {_RUNNING})",
    "paused": f"(s.state = 0 AND {_PAUSED})",
    "idle": f"(s.state = 0 AND NOT {_RUNNING} AND NOT {_PAUSED})",
    "completed": "s.state = 1",
    "archived": "s.state = 2",
}
_HAS_TAG = "EXISTS (SELECT 1 FROM tags t WHERE t.scope_no = :scope AND t.tag = :tag AND t.session_no = s.no)"
_ONE_OF_TAG = "s.no IN (SELECT session_no FROM tags WHERE scope_no = :scope AND tag = :tag)"
_COUNT_TAG = "SELECT count(*) FROM (SELECT 1 FROM tags WHERE scope_no = ? AND tag = ? LIMIT ?)"

_BY_ACTIVITY = "sessions s INDEXED BY sessions_active"
_BY_DUE = "sessions s INDEXED BY sessions_due"
_BY_ARCHIVED = "sessions s INDEXED BY sessions_archived"
_BY_PARENT = "sessions s INDEXED BY sessions_parent"
_BY_KEY = "sessions s INDEXED BY sessions_key"
_BY_NUMBER = "sessions s NOT INDEXED"

_NEWEST_FIRST = " ORDER BY s.active_us DESC, s.id DESC LIMIT :limit"
_SOONEST_FIRST = " ORDER BY s.due_us, s.id LIMIT :limit"
_OLDEST_FIRST = " ORDER BY s.archived_us, s.id LIMIT :limit"


class Order(NamedTuple):
    """How a list is sorted, and what lies behind a place in it."""

    name: str
    behind: str
    sort: str


_ACTIVE = Order("active", "(s.active_us, s.id) < (:us, :id)", _NEWEST_FIRST)
_DUE = Order("due", "(s.due_us, s.id) > (:us, :id)", _SOONEST_FIRST)
_ARCHIVED = Order("archived", "(s.archived_us, s.id) > (:us, :id)", _OLDEST_FIRST)


def page(view: View, scope: ScopeKey, *, filter: Filter, cursor: str | None, limit: int) -> Page:
    """One page of a scope's sessions, read within one read transaction."""
    order = _DUE if filter.due_us is not None else _ARCHIVED if filter.archived_us is not None else _ACTIVE
    place = None if cursor is None else _read_cursor(cursor, scope, order)
    limit = max(1, min(limit, LIST_MAX))
    con, moment = view.con, view.moment
    scope_no = view.names.scope_no(con, scope)
    if scope_no is None:
        return Page((), None)
    values: dict[str, Any] = {
        "scope": scope_no,
        "boot": moment.boot,
        "tick": moment.tick,
        "now": moment.now,
        "limit": limit + 1,
    }
    conditions = _conditions(filter, values)
    if place is not None:
        conditions.append(order.behind)
        values["us"], values["id"] = place
    rows: list[tuple[Any, ...]] = []
    for source, more in _sources(con, filter, order, values):
        where = " AND ".join([*more, *conditions])
        sql = (
            f"SELECT {INFO_COLUMNS} FROM {source} CROSS JOIN profiles p ON p.session_no = s.no "  # noqa: S608
            f"WHERE s.scope_no = :scope AND {where}{order.sort}"
        )
        rows += con.execute(sql, values).fetchall()
    if order is _ACTIVE:  # several shelves, each in order
        rows.sort(key=lambda row: (row[_ACTIVE_US], row[_ID]), reverse=True)
    sessions = tuple(info_of(row, scope, moment) for row in rows[:limit])
    if len(rows) <= limit:
        return Page(sessions, None)
    return Page(sessions, _write_cursor(_place(rows[limit - 1], order), scope, order))


def _sources(con: apsw.Connection, filter: Filter, order: Order, values: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """From which index to read, and under which first conditions."""
    if order is _DUE:
        return [(_BY_DUE, ["s.due_us <= :due", f"NOT {_RUNNING}"])]
    if order is _ARCHIVED:
        return [(_BY_ARCHIVED, ["s.archived_us <= :archived", "s.is_pinned = 0"])]
    shelves = _shelves(filter)
    narrow = _narrow(con, filter, values)
    if narrow is not None:
        source, conditions = narrow
        return [(source, [*conditions, f"s.shelf IN ({', '.join(map(str, shelves))})"])]
    return [(_BY_ACTIVITY, [f"s.shelf = {shelf}"]) for shelf in shelves]


def _narrow(con: apsw.Connection, filter: Filter, values: dict[str, Any]) -> tuple[str, list[str]] | None:
    """A source that gives few rows, to be sorted; None: read the list in its order."""
    if filter.parent is not None:
        return _BY_PARENT, []
    if filter.key_prefix:
        return _BY_KEY, []
    if filter.tag is not None and con.execute(_COUNT_TAG, (values["scope"], filter.tag, FEW + 1)).get <= FEW:
        return _BY_NUMBER, [_ONE_OF_TAG]
    return None


def _shelves(filter: Filter) -> list[int]:
    open_shelves = [LISTED, UNLISTED] if filter.include_unlisted else [LISTED]
    if filter.status is None:
        return open_shelves
    wanted = open_shelves if set(filter.status) - {"archived"} else []
    return [*wanted, SHELVED] if "archived" in filter.status else wanted


def _conditions(filter: Filter, values: dict[str, Any]) -> list[str]:
    found: list[str] = []
    end = _end_of(filter.key_prefix or "")
    if filter.status is not None:
        found.append(f"({' OR '.join(_STATUS[status] for status in filter.status if status in _STATUS) or '0'})")
    if not filter.include_unlisted:
        found.append("s.is_listed = 1")
    if filter.tag is not None:
        found.append(_HAS_TAG)
    if filter.parent is not None:
        found.append("s.parent_id = :parent")
    if filter.key_prefix:
        found.append("s.key >= :prefix" if end is None else "s.key >= :prefix AND s.key < :prefix_end")
    if filter.since_us is not None:
        found.append("s.active_us >= :since")
    if filter.until_us is not None:
        found.append("s.active_us <= :until")
    if filter.pinned is not None:
        found.append("s.is_pinned = :pinned")
    values |= {
        "tag": filter.tag,
        "parent": filter.parent,
        "prefix": filter.key_prefix,
        "prefix_end": end,
        "since": filter.since_us,
        "until": filter.until_us,
        "pinned": int(bool(filter.pinned)),
        "due": filter.due_us,
        "archived": filter.archived_us,
    }
    return found


def _end_of(prefix: str) -> str | None:
    """The first name behind all that begin with the prefix, in byte order; None: there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at]) + 1
        if code <= sys.maxunicode:
            return prefix[:at] + chr(0xE000 if 0xD800 <= code < 0xE000 else code)
    return None


# Cursors: the place of the last session shown, bound to the scope and the order.


def _place(row: tuple[Any, ...], order: Order) -> tuple[int, str]:
    if order is _ACTIVE:
        return row[_ACTIVE_US], row[_ID]
    if order is _ARCHIVED:
        return row[_ARCHIVED_US], row[_ID]
    idle_us, expires_us = row[_IDLE_US], row[_EXPIRES_US]
    ends = [] if idle_us is None else [row[_ACTIVE_US] + idle_us]
    return min(ends if expires_us is None else [*ends, expires_us]), row[_ID]


def _write_cursor(place: tuple[int, str], scope: ScopeKey, order: Order) -> str:
    text = json.dumps([order.name, *place]).encode()
    return base64.urlsafe_b64encode(_check(text, scope) + text).decode()


def _read_cursor(cursor: str, scope: ScopeKey, order: Order) -> tuple[int, str]:
    try:
        packed = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
        check, text = packed[:_CHECK_BYTES], packed[_CHECK_BYTES:]
        if check != _check(text, scope):
            raise ValueError("changed, or of another scope")  # noqa: TRY301 - one answer to all that is wrong
        name, us, session = json.loads(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid("this is no cursor of this list; begin again without one", where="cursor") from error
    if name != order.name:
        raise Invalid("this cursor belongs to a list in another order; begin again without one", where="cursor")
    return us, session


def _check(text: bytes, scope: ScopeKey) -> bytes:
    return hashlib.sha256(json.dumps(scope).encode() + text).digest()[:_CHECK_BYTES]
