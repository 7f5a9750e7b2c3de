"""The collections, their indexes, and the mark that says by which format they were written."""

from __future__ import annotations

import re
from typing import Any

from pymongo import IndexModel
from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure, PyMongoError

from segue.errors import Invalid, TooNew, Unavailable

from ._mongodb_errors import translate
from ._mongodb_link import Link
from ._mongodb_rows import Document
from ._mongodb_work import FORMAT

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_EXISTS = {"$exists": True}
_NAMESPACE_EXISTS = 48


def _index(name: str, keys: list[tuple[str, int]], **options: Any) -> Document:
    return {"name": name, "keys": keys, **options}


# Nothing here expires by itself (no TTL index): a session ends as a whole, never entry by entry.
INDEXES: dict[str, list[Document]] = {
    "sessions": [
        _index("id", [("tenant", 1), ("user", 1), ("id", 1)], unique=True),
        _index("key", [("tenant", 1), ("user", 1), ("key", 1)], unique=True, partialFilterExpression={"key": _EXISTS}),
        _index(
            "active",
            [("tenant", 1), ("user", 1), ("active_us", -1), ("id", -1)],
            partialFilterExpression={"active_us": _EXISTS},
        ),
        _index(
            "due",
            [("tenant", 1), ("user", 1), ("due_us", 1), ("id", 1)],
            partialFilterExpression={"due_us": _EXISTS},
        ),
        _index(
            "archived",
            [("tenant", 1), ("user", 1), ("archived_us", 1), ("id", 1)],
            partialFilterExpression={"archived_us": _EXISTS},
        ),
        _index("sharers", [("parts.segment", 1)], partialFilterExpression={"parts.segment": _EXISTS}),
    ],
    "entries": [
        _index("id", [("segment", 1), ("id", 1)], unique=True),
        _index("refs", [("segment", 1), ("refs", 1), ("seq", 1)], partialFilterExpression={"refs": _EXISTS}),
        _index(
            "refs_of_scope",
            [("tenant", 1), ("user", 1), ("refs", 1), ("created_us", 1), ("session", 1), ("seq", 1)],
            partialFilterExpression={"refs": _EXISTS},
        ),
    ],
}


def check_prefix(prefix: object) -> str:
    """The prefix of the collections' names. Raises ``Invalid``."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise Invalid(
            "prefix must be a letter or underscore, then at most 39 letters, digits or underscores", where="prefix"
        )
    return prefix


def prepare(link: Link, *, migrate: bool) -> None:
    """
    Make what is missing, as often as you like and from several processes; the mark comes last.

    Raises:
        TooNew: A newer Segue made the collections; nothing was touched.
        Unavailable: They are missing and ``migrate`` is False, or a collection is not as it must be.
    """
    try:
        found = stored_format(link)
        if found > FORMAT:
            raise TooNew(found, FORMAT, f"MongoDB at {link.where}")
        there = _collections(link)
        if migrate:
            _make(link, there)
            if found == 0:
                _mark(link)
        elif found == 0:
            raise Unavailable(
                f"MongoDB at {link.where}: no store there, the collections of Segue are missing; segue.open makes one, "
                "with migrate=True"
            )
    except PyMongoError as error:
        raise translate(error, link.where) from error


def stored_format(link: Link) -> int:
    """The format that the mark names; 0 when there is none."""
    mark = link.marks.find_one({"_id": "format"})
    return int(mark["format"]) if mark else 0


def _make(link: Link, there: set[str]) -> None:
    for collection in (link.sessions, link.entries, link.marks):
        if collection.name not in there:
            try:
                link.database.create_collection(collection.name, check_exists=False)
            except (CollectionInvalid, OperationFailure) as error:
                if getattr(error, "code", None) != _NAMESPACE_EXISTS:  # another was faster
                    raise
    for name, indexes in INDEXES.items():
        getattr(link, name).create_indexes([IndexModel(**index) for index in indexes])


def _mark(link: Link) -> None:
    try:
        link.marks.insert_one({"_id": "format", "format": FORMAT})
    except DuplicateKeyError:
        return  # another was faster


def _collections(link: Link) -> set[str]:
    """Those that are there. One that somebody made with a collation or a cap would merge names, or lose entries."""
    names = sorted((link.sessions.name, link.entries.name, link.marks.name))
    there = list(link.database.list_collections(filter={"name": {"$in": names}}))
    for found in there:
        options = found.get("options", {})
        if found.get("type", "collection") != "collection" or "collation" in options or options.get("capped"):
            raise Unavailable(
                f"MongoDB at {link.where}: {found['name']} is a view, is capped or has a collation, so that names "
                "would not be compared as bytes; use another prefix, or drop it"
            )
    return {found["name"] for found in there}
