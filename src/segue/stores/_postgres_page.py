"""The list of a scope's sessions: the conditions of a filter as SQL, keyset pages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from psycopg import sql

from segue.model import ScopeKey
from segue.store import Filter

from ._postgres_wire import SESSION_COLUMNS
from ._spans import read_cursor

# Conditions are fixed text; what a caller gives is always a value, never a part of the text.

_STATUS = """
    CASE WHEN s.state = 2 THEN 'archived' WHEN s.state = 1 THEN 'completed'
         WHEN s.lease_run IS NULL OR s.lease_until_us <= n.now_us THEN 'idle'
         WHEN s.lease_paused THEN 'paused' ELSE 'running' END
"""
_RUNNING = "(s.lease_run IS NOT NULL AND NOT s.lease_paused AND s.lease_until_us > n.now_us)"
_CONDITIONS = {
    "status": f"({_STATUS}) = ANY (%s)",
    "tag": "%s = ANY (s.tags)",
    "parent": "s.parent = %s",
    "key_prefix": "starts_with(COALESCE(s.key, ''), %s)",
    "since_us": "s.active_us >= %s",
    "until_us": "s.active_us <= %s",
    "pinned": "s.is_pinned = %s",
    "due_us": f"s.due_us <= %s AND NOT s.is_pinned AND s.state <> 2 AND NOT {_RUNNING}",
    "archived_us": "s.archived_us <= %s AND NOT s.is_pinned",
}


class _Order(NamedTuple):
    name: str
    after: str
    by: str


_NEWEST = _Order("active", "(s.active_us, s.id) < (%s, %s)", "s.active_us DESC, s.id DESC")
_SOONEST = _Order("due", "(s.due_us, s.id) > (%s, %s)", "s.due_us, s.id")
_OLDEST = _Order("archived", "(s.archived_us, s.id) > (%s, %s)", "s.archived_us, s.id")


def order_of(filter: Filter) -> _Order:
    """How the list that a filter shows is sorted."""
    if filter.due_us is not None:
        return _SOONEST
    return _NEWEST if filter.archived_us is None else _OLDEST


def page_query(
    schema: str, scope: ScopeKey, filter: Filter, *, cursor: str | None, limit: int, shift_us: int
) -> tuple[bytes, list[Any]]:
    """
    The query for a page, and its values. Its rows: now, waiting, place, then SESSION_COLUMNS.

    Raises:
        Invalid: The cursor is of another list.
    """
    order = order_of(filter)
    conditions, values = _conditions(filter)
    if cursor is not None:
        conditions.append(order.after)
        values += read_cursor(cursor, scope, order.name)
    return _text(schema, tuple(conditions), order, limit), [shift_us, *scope, *values]


@lru_cache(256)
def _text(schema: str, conditions: tuple[str, ...], order: _Order, limit: int) -> bytes:
    """
    The query's text.

    The limit is a part of it: with an unknown one, PostgreSQL plans for a tenth of all sessions.
    """
    query = sql.SQL(
        "SELECT n.now_us, (SELECT count(*) FROM {tickets} t WHERE t.segment = s.segment AND t.lapses_us > n.now_us), "
        "{place}, {columns} FROM {now}(%s) AS n(now_us) CROSS JOIN {sessions} s "
        "WHERE s.tenant = %s AND s.user_id = %s AND s.erased_us IS NULL{conditions} ORDER BY {order} LIMIT {limit}"
    ).format(
        tickets=sql.Identifier(schema, "tickets"),
        now=sql.Identifier(schema, "now_us"),
        sessions=sql.Identifier(schema, "sessions"),
        place=sql.SQL(order.by.partition(" ")[0].rstrip(",")),
        columns=sql.SQL(", ").join(sql.Identifier("s", name) for name in SESSION_COLUMNS),
        conditions=sql.SQL("".join(f" AND {condition}" for condition in conditions)),
        order=sql.SQL(order.by),
        limit=sql.Literal(limit),
    )
    return query.as_bytes()


def _conditions(filter: Filter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    for name, condition in _CONDITIONS.items():
        value = getattr(filter, name)
        if value is not None:
            conditions.append(condition)
            values.append(_value(name, value))
    if filter.status is None and filter.archived_us is None:
        conditions.append("s.state <> 2")
    if not filter.include_unlisted:
        conditions.append("s.is_listed")
    return conditions, values


def _value(name: str, value: Any) -> Any:
    if name == "status":
        return list(value)
    return value.encode("utf-8", "surrogatepass") if name == "tag" else value
