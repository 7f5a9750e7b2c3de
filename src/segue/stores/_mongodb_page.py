"""The list of a scope's sessions: the conditions of a filter, the order of an index, cursors."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from segue.errors import Invalid
from segue.model import ScopeKey
from segue.store import Filter

from ._mongodb_rows import Document

_LAST = "\U0010ffff" * 64
"""Longer than any key and behind every character: what begins with a prefix is not beyond prefix + this."""


class Order(NamedTuple):
    """By which field a list is sorted (then by id), and where it begins: 1 upwards, -1 downwards."""

    field: str
    way: int

    def after(self, us: int, session: str) -> Document:
        """What comes behind a place of the list."""
        beyond = "$gt" if self.way > 0 else "$lt"
        return {
            self.field: {f"{beyond}e": us},  # for the index; what is exact comes next
            "$or": [{self.field: {beyond: us}}, {self.field: us, "id": {beyond: session}}],
        }

    def sort(self) -> Document:
        """The stage of a pipeline."""
        return {"$sort": {self.field: self.way, "id": self.way}}


def order_of(filter: Filter) -> Order:
    """The order that a filter asks for."""
    if filter.due_us is not None:
        return Order("due_us", 1)
    return Order("active_us", -1) if filter.archived_us is None else Order("archived_us", 1)


def conditions(scope: ScopeKey, filter: Filter, now: int) -> Document:
    """What a session must be to be shown; the filter has been looked at by the door."""
    asked: list[Document] = [_bounds(filter)]
    if filter.status is not None:
        asked.append({"$or": [_status(status, now) for status in filter.status]} if filter.status else _NEVER)
    elif filter.archived_us is None:
        asked.append(_NOT_ARCHIVED)
    if filter.due_us is not None:
        asked += [_NOT_ARCHIVED, {"is_pinned": False}, {"$nor": [_lease("running", now)]}]
    if filter.archived_us is not None:
        asked.append({"is_pinned": False})
    if not filter.include_unlisted:
        asked.append({"is_listed": True})
    if filter.tag is not None:
        asked.append({"tags": filter.tag})
    if filter.parent is not None:
        asked.append({"parent.session": filter.parent})
    if filter.key_prefix is not None:
        asked.append({"key": {"$gte": filter.key_prefix, "$lte": filter.key_prefix + _LAST}})
    if filter.pinned is not None:
        asked.append({"is_pinned": filter.pinned})
    return {"tenant": scope.tenant, "user": scope.user, "$and": asked}


_NOT_ARCHIVED: Document = {"state": {"$in": ["active", "completed"]}}
_NEVER: Document = {"state": {"$in": []}}


def _bounds(filter: Filter) -> Document:
    """Bounds of the field that the list is sorted by come first: they leave out what has none."""
    bounds: Document = {"active_us": {"$gte": 0 if filter.since_us is None else filter.since_us}}
    if filter.until_us is not None:
        bounds["active_us"]["$lte"] = filter.until_us
    for name in ("due_us", "archived_us"):
        if getattr(filter, name) is not None:
            bounds[name] = {"$lte": getattr(filter, name)}
    return bounds


def _lease(state: str, now: int) -> Document:
    return {"lease.state": state, "lease.expires_us": {"$gt": now}}


def _status(status: str, now: int) -> Document:
    if status in ("archived", "completed"):
        return {"state": status}
    if status == "idle":
        return {"state": "active", "$nor": [{"lease.expires_us": {"$gt": now}}]}
    return {"state": "active", **_lease(status, now)}


def write_cursor(scope: ScopeKey, filter: Filter, us: int, session: str) -> str:
    """A cursor behind the session at that place of the list."""
    text = json.dumps([*scope, order_of(filter).field, us, session])
    return base64.urlsafe_b64encode(text.encode()).decode()


def read_cursor(cursor: str, scope: ScopeKey, filter: Filter) -> tuple[int, str]:
    """The place that a cursor names; ``Invalid`` when it is of another list."""
    try:
        tenant, user, field, us, session = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError) as error:
        raise Invalid("this is no cursor of this store; begin again without one", where="cursor") from error
    place: tuple[Any, ...] = (tenant, user, field)
    if place != (*scope, order_of(filter).field) or type(us) is not int or type(session) is not str:
        raise Invalid("this cursor belongs to another list; begin again without one", where="cursor")
    return us, session
