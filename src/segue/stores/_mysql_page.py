"""The list of a scope's sessions: the conditions of a filter as SQL, keyset pages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from segue.model import ScopeKey
from segue.store import Filter

from ._mysql_rows import COLUMNS, pack_tag
from ._mysql_work import NOW_US, WAITING
from ._spans import read_cursor

# Conditions are fixed text; what a caller gives is always a value, never a part of the text.

_STATUS = f"""
    CASE WHEN s.state = 2 THEN 'archived' WHEN s.state = 1 THEN 'completed'
         WHEN s.lease_run IS NULL OR s.lease_until_us <= {NOW_US} + %s THEN 'idle'
         WHEN s.lease_paused THEN 'paused' ELSE 'running' END
"""
_RUNNING = f"(s.lease_run IS NOT NULL AND NOT s.lease_paused AND s.lease_until_us > {NOW_US} + %s)"


class Order(NamedTuple):
    """How a list is sorted, by which index that is done, and what lies behind a place in it."""

    name: str
    column: str
    by_index: str
    behind: str
    by: str


_NEWEST = Order(
    "active",
    "active_us",
    "sessions_active",
    "s.active_us <= %s AND (s.active_us < %s OR s.id < %s)",
    "s.active_us DESC, s.id DESC",
)
_SOONEST = Order("due", "due_us", "sessions_due", "s.due_us >= %s AND (s.due_us > %s OR s.id > %s)", "s.due_us, s.id")
_OLDEST = Order(
    "archived",
    "archived_us",
    "sessions_archived",
    "s.archived_us >= %s AND (s.archived_us > %s OR s.id > %s)",
    "s.archived_us, s.id",
)


def order_of(filter: Filter) -> Order:
    """How the list that a filter shows is sorted."""
    if filter.due_us is not None:
        return _SOONEST
    return _NEWEST if filter.archived_us is None else _OLDEST


def page_query(
    scope: ScopeKey, filter: Filter, *, cursor: str | None, limit: int, shift_us: int
) -> tuple[str, list[Any]]:
    """
    The query for a page, and its values. Its rows: now, waiting, place, then COLUMNS.

    Raises:
        Invalid: The cursor is of another list.
    """
    order = order_of(filter)
    conditions, values = _conditions(filter, shift_us)
    if cursor is not None:
        place_us, session = read_cursor(cursor, scope, order.name)
        conditions.append(order.behind)
        values += (place_us, place_us, session.encode())
    index = "sessions_parent" if filter.parent is not None else "sessions_key" if filter.key_prefix else order.by_index
    head = [shift_us, shift_us, scope.tenant.encode(), scope.user.encode()]
    return _text(tuple(conditions), order, index), [*head, *values, limit]


@lru_cache(256)
def _text(conditions: tuple[str, ...], order: Order, index: str) -> str:
    columns = ", ".join(f"s.{name}" for name in COLUMNS)
    where = "".join(f" AND {condition}" for condition in conditions)
    return (
        f"SELECT {NOW_US} + %s, {WAITING}, s.{order.column}, {columns} FROM sessions s FORCE INDEX ({index}) "  # noqa: S608
        f"WHERE s.tenant = %s AND s.user_id = %s AND s.is_gone = 0{where} ORDER BY {order.by} LIMIT %s"
    )


def _conditions(filter: Filter, shift_us: int) -> tuple[list[str], list[Any]]:
    found: list[tuple[str, list[Any]]] = []
    if filter.status is not None:
        marks = ", ".join(["%s"] * len(filter.status)) or "NULL"
        found.append((f"({_STATUS}) IN ({marks})", [shift_us, *(status.encode() for status in filter.status)]))
    elif filter.archived_us is None:
        found.append(("s.state <> 2", []))
    if not filter.include_unlisted:
        found.append(("s.is_listed = 1", []))
    if filter.tag is not None:
        found.append(("LOCATE(%s, s.tags) > 0", [b"," + pack_tag(filter.tag) + b","]))
    if filter.parent is not None:
        found.append(("s.parent = %s", [filter.parent.encode()]))
    if filter.key_prefix:
        prefix = filter.key_prefix.encode()
        # As a range, too, for the sake of the index: no name has a byte above 0xF4.
        found.append(("s.own_key >= %s AND s.own_key < %s AND LEFT(s.own_key, %s) = %s",
                      [prefix, prefix + b"\xff", len(prefix), prefix]))  # fmt: skip
    if filter.since_us is not None:
        found.append(("s.active_us >= %s", [filter.since_us]))
    if filter.until_us is not None:
        found.append(("s.active_us <= %s", [filter.until_us]))
    if filter.pinned is not None:
        found.append(("s.is_pinned = %s", [int(filter.pinned)]))
    if filter.due_us is not None:
        found.append(
            (f"s.due_us <= %s AND s.is_pinned = 0 AND s.state <> 2 AND NOT {_RUNNING}", [filter.due_us, shift_us])
        )
    if filter.archived_us is not None:
        found.append(("s.archived_us <= %s AND s.is_pinned = 0", [filter.archived_us]))
    return [condition for condition, _ in found], [value for _, values in found for value in values]
