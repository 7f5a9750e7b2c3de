"""
What may reach the driver: names are strings, counts are integers, and nothing is a document.

A filter such as ``{"id": {"$ne": ""}}`` matches everything. So every value that goes into one is
looked at here first, whatever the layers above have already checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson.code import Code
from msgspec.structs import asdict

from segue.errors import Invalid
from segue.model import Draft, Parent, ScopeKey
from segue.store import UPDATABLE, Filter, Op

_TEXTS = frozenset({
    "id", "key", "format", "title", "session", "run", "policy", "holder", "source", "over", "dead", "state", "kind",
    "origin", "link", "tag", "parent", "key_prefix",
})  # fmt: skip
_COUNTS = frozenset({
    "idle_us", "expires_us", "expect", "if_due_us", "fence", "ttl_us", "ticket_us", "pause_us", "at", "seq",
    "occurred_us", "since_us", "until_us", "due_us", "archived_us",
})  # fmt: skip
_FLAGS = frozenset({"is_pinned", "is_listed", "pinned", "include_unlisted"})
_BYTES = frozenset({"config", "body", "digest"})
_OPTIONAL = frozenset({
    "key", "config", "idle_us", "expires_us", "parent", "expect", "if_due_us", "run", "fence", "over", "dead",
    "pause_us", "occurred_us", "usage", "status", "tag", "key_prefix", "since_us", "until_us", "pinned", "due_us",
    "archived_us",
})  # fmt: skip

_INT64 = 1 << 63


def text(value: object, where: str) -> str:
    """
    The value, which must be a well-formed str.

    Raises:
        Invalid: It is something else, such as a document with an operator in it.
    """
    if not isinstance(value, str) or isinstance(value, Code):  # the driver's code is a str, and sent as code
        raise Invalid(f"{where} must be a str, not {type(value).__name__}", where=where)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{where} holds a lone surrogate; it must be well-formed Unicode", where=where) from None
    return value


def count(value: object, where: str) -> int:
    """The value, which must be an int of 64 bits. Raises ``Invalid``."""
    if not isinstance(value, int) or isinstance(value, bool) or not -_INT64 <= value < _INT64:
        raise Invalid(f"{where} must be an int of 64 bits, not {type(value).__name__}", where=where)
    return value


def texts(values: object, where: str) -> tuple[str, ...]:
    """The values, which must be several str. Raises ``Invalid``."""
    if not isinstance(values, tuple | list):
        raise Invalid(f"{where} must be a sequence of str, not {type(values).__name__}", where=where)
    return tuple(text(value, where) for value in values)


def scope_of(scope: object) -> ScopeKey:
    """The owner, two str. Raises ``Invalid``."""
    if not isinstance(scope, tuple) or len(scope) != 2:
        raise Invalid("scope must be a ScopeKey of tenant and user", where="scope")
    return ScopeKey(text(scope[0], "tenant"), text(scope[1], "user"))


def check_op(op: Op) -> None:
    """Refuse an operation that holds anything but what its fields say. Raises ``Invalid``."""
    _check(asdict(op))


def check_filter(filter: Filter) -> None:
    """The same for a filter of the list."""
    _check(asdict(filter))


def _check(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None and name in _OPTIONAL:
            continue
        if name == "scope":
            scope_of(value)
        elif name == "changes":
            _check_changes(value)
        elif name == "entries":
            for draft in value:
                _check_draft(draft)
        elif name == "create" or (name == "parent" and isinstance(value, Parent)):
            _check(asdict(value))
        else:
            _check_value(name, value)


def _check_changes(changes: object) -> None:
    if not isinstance(changes, Mapping) or not changes.keys() <= UPDATABLE:
        raise Invalid(f"changes must name attributes of {', '.join(sorted(UPDATABLE))}", where="changes")
    _check(changes)


def _check_draft(draft: object) -> None:
    if not isinstance(draft, Draft):
        raise Invalid(f"an entry must be a Draft, not {type(draft).__name__}", where="entries")
    _check(draft._asdict())


def _check_value(name: str, value: object) -> None:
    if name in _TEXTS:
        text(value, name)
    elif name in _COUNTS:
        count(value, name)
    elif name in ("tags", "refs", "status"):
        texts(value, name)
    elif name in ("seqs", "usage"):
        for number in value if isinstance(value, tuple) else (value,):
            count(number, name)
    elif name in _FLAGS and not isinstance(value, bool):
        raise Invalid(f"{name} must be True or False, not {type(value).__name__}", where=name)
    elif name in _BYTES and not isinstance(value, bytes):
        raise Invalid(f"{name} must be bytes, not {type(value).__name__}", where=name)
    elif name == "metadata" and not isinstance(value, Mapping):
        raise Invalid(f"metadata must be a mapping, not {type(value).__name__}", where=name)
