"""What callers give, checked at the door: attributes of a session, filters of lists, limits of readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args

from . import codec
from .errors import Invalid
from .model import Link, Parent, SessionInfo, Status, check_count, check_name, check_names, check_type, to_us
from .store import Filter

TITLE_MAX = 500
TAGS_MAX = 64
METADATA_MAX_BYTES = 16 * 1024


_NAMES = {"pinned": "is_pinned", "listed": "is_listed", "idle": "idle_us", "expires_at": "expires_us"}


def inherited(info: SessionInfo) -> dict[str, Any]:
    """(inner) What a session takes from the one it comes from, as the store takes it."""
    return {
        "title": info.title,
        "tags": info.tags,
        "metadata": info.metadata,
        "idle_us": info.idle_us,
        "expires_us": None if info.expires_at is None else to_us(info.expires_at),
        "is_listed": info.is_listed,
    }


def checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    """(inner) Attributes as the store takes them, or ``Invalid`` naming the one that is refused."""
    done: dict[str, Any] = {}
    for name, value in changes.items():
        check = _CHECKS.get(name)
        if check is None:
            raise Invalid(f"unknown attribute {name!r}; known are {', '.join(sorted(_CHECKS))}", where=name)
        done[_NAMES.get(name, name)] = check(value)
    return done


def _title(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TITLE_MAX:
        raise Invalid(f"title must be a str of at most {TITLE_MAX} characters", where="title")
    codec.encode(value, where="title")
    return value


def _tags(value: Any) -> tuple[str, ...]:
    tags = tuple(sorted(set(check_names(value, "tags"))))
    if len(tags) > TAGS_MAX:
        raise Invalid(f"a session has at most {TAGS_MAX} tags", where="tags")
    return tags


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid("metadata must be a mapping", where="metadata")
    size = len(codec.encode(dict(value), where="metadata"))
    if size > METADATA_MAX_BYTES:
        raise Invalid(f"metadata has {size:,} bytes, the limit is {METADATA_MAX_BYTES:,}", where="metadata")
    return dict(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"expected True or False, not {value!r}")
    return value


def _key(value: Any) -> str | None:
    return None if value is None else check_name(value, "key")


IDLE_MAX = timedelta(days=36_525)
"""Longest idle lifetime: a hundred years."""


def _idle(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, timedelta) or not timedelta(0) < value <= IDLE_MAX:
        raise Invalid(f"idle must be a positive timedelta of at most {IDLE_MAX.days:,} days, or None", where="idle")
    return value // timedelta(microseconds=1)


def _expires(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise Invalid("expires_at must be an aware datetime, or None", where="expires_at")
    return to_us(value)


_CHECKS = {
    "title": _title,
    "tags": _tags,
    "metadata": _metadata,
    "pinned": _flag,
    "listed": _flag,
    "key": _key,
    "idle": _idle,
    "expires_at": _expires,
}


def filtered(filters: dict[str, Any]) -> Filter:
    """(inner) Which sessions a list shows, as the store takes it, or ``Invalid`` naming what is refused."""
    status = filters.pop("status", None)
    since, until = (moment(filters.pop(name, None), name) for name in ("since", "until"))
    fields = {name: _name(filters.pop(name, None), name) for name in ("tag", "parent", "key_prefix")}
    fields["pinned"] = filters.pop("pinned", None)
    unlisted = bool(filters.pop("unlisted", False))
    if filters:
        raise Invalid(f"unknown filter {next(iter(filters))!r}", where=next(iter(filters)))
    return Filter(
        status=_statuses(status),
        since_us=since,
        until_us=until,
        include_unlisted=unlisted,
        **fields,
    )


def moment(value: object, where: str) -> int | None:
    """(inner) A time as the store takes it, or None."""
    if value is not None and not isinstance(value, datetime):
        raise Invalid(f"{where} must be an aware datetime, or None", where=where)
    return None if value is None else to_us(value)


def window(kinds: Sequence[str] | None, **numbers: int | None) -> tuple[str, ...] | None:
    """(inner) What limits a reading, checked; the kinds, as the store takes them."""
    for name, value in numbers.items():
        if value is not None or name == "after":
            check_count(value, name)
    return None if kinds is None else check_names(kinds, "kinds")


def parent_of(parent: Parent) -> Parent:
    """(inner) Where a session comes from, checked."""
    hint = "session.child(name) makes a sub-agent's session, session.fork() a fork"
    check_type(parent, Parent, "parent", hint)
    check_name(parent.session, "parent")
    check_count(parent.seq, "parent")
    if parent.link not in get_args(Link):
        raise Invalid(f"a parent's link is one of {', '.join(get_args(Link))}, not {parent.link!r}", where="parent")
    return parent


def _name(value: object, where: str) -> Any:
    return check_name(value, where) if value else None


def _statuses(status: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if status is None:
        return None
    chosen = (status,) if isinstance(status, str) else check_names(status, "status")
    known = Status.__args__  # type: ignore[attr-defined]
    for one in chosen:
        if one not in known:
            raise Invalid(f"status {one!r} is none of {', '.join(known)}", where="status")
    return chosen
