"""
What ``page`` shows, and in which order, for stores that choose in Python.

A place in the list is (microseconds, id); a cursor is the place of the last session shown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from segue.errors import Invalid
from segue.model import ScopeKey, SessionInfo, to_us
from segue.store import LIST_MAX, Filter, Page


def page_of(
    sessions: Iterable[SessionInfo], scope: ScopeKey, filter: Filter, *, cursor: str | None, limit: int
) -> Page:
    """The page behind the cursor, of all sessions of a scope as they are now. ``Invalid`` for a foreign cursor."""
    start = None if cursor is None else _read_cursor(cursor, scope, filter)
    falling = _is_newest_first(filter)
    places = {_place(info, filter): info for info in sessions if _matches(info, filter)}
    rest = [at for at in sorted(places, reverse=falling) if start is None or (at < start if falling else at > start)]
    chosen = rest[: min(limit, LIST_MAX)]
    more = _write_cursor(chosen[-1], scope, filter) if len(chosen) < len(rest) else None
    return Page(tuple(places[at] for at in chosen), more)


def _matches(info: SessionInfo, filter: Filter) -> bool:
    if filter.status is not None:
        if info.status not in filter.status:
            return False
    elif info.state == "archived" and filter.archived_us is None:
        return False
    active_us = to_us(info.active_at)
    return (
        (filter.include_unlisted or info.is_listed)
        and (filter.tag is None or filter.tag in info.tags)
        and (filter.parent is None or (info.parent is not None and info.parent.session == filter.parent))
        and (filter.key_prefix is None or (info.key or "").startswith(filter.key_prefix))
        and (filter.since_us is None or active_us >= filter.since_us)
        and (filter.until_us is None or active_us <= filter.until_us)
        and (filter.pinned is None or info.is_pinned == filter.pinned)
        and (filter.due_us is None or _is_due(info, filter.due_us))
        and (filter.archived_us is None or _is_purgeable(info, filter.archived_us))
    )


def _is_due(info: SessionInfo, at_us: int) -> bool:
    is_running = info.lease is not None and info.lease.state == "running"
    may_end = not info.is_pinned and info.state != "archived" and not is_running
    return may_end and info.due_at is not None and to_us(info.due_at) <= at_us


def _is_purgeable(info: SessionInfo, at_us: int) -> bool:
    return not info.is_pinned and info.archived_at is not None and to_us(info.archived_at) <= at_us


def _place(info: SessionInfo, filter: Filter) -> tuple[int, str]:
    if filter.due_us is not None:
        moment = info.due_at
    elif filter.archived_us is not None:
        moment = info.archived_at
    else:
        moment = info.active_at
    return to_us(moment or info.active_at), info.id


def _is_newest_first(filter: Filter) -> bool:
    return filter.due_us is None and filter.archived_us is None


def _write_cursor(place: tuple[int, str], scope: ScopeKey, filter: Filter) -> str:
    return base64.urlsafe_b64encode(json.dumps([*scope, _is_newest_first(filter), *place]).encode()).decode()


def _read_cursor(cursor: str, scope: ScopeKey, filter: Filter) -> tuple[int, str]:
    try:
        tenant, user, newest_first, us, session = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError) as error:
        raise Invalid("this is no cursor of this store; begin again without one", where="cursor") from error
    if (tenant, user, newest_first) != (*scope, _is_newest_first(filter)):
        raise Invalid("this cursor belongs to another list; begin again without one", where="cursor")
    return int(us), str(session)
