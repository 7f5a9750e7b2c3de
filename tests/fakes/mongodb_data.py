"""
What the stand-in for MongoDB keeps: documents in versions, indexes, transactions on snapshots.

It knows the operators that the store uses, with the server's meaning of them, and raises ``Unheard`` for
everything else. A query that no index answers, or a sort that no index gives, is unheard of too.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import bson
from bson.int64 import Int64

DOCUMENT_MAX_BYTES = 16 * 1024 * 1024

# Fields that hold what callers name. They are compared with strings, and with nothing else.
NAMES = {"tenant", "user", "id", "key", "session", "kind", "refs", "tags", "state", "parent.session", "lease.state"}


class Unheard(Exception):
    """The store used something that the stand-in does not know; a test fails by it."""


class Refused(Exception):
    """The server's refusal."""

    def __init__(self, code: int, message: str, *labels: str) -> None:
        super().__init__(message)
        self.code, self.labels = code, labels


def write_conflict() -> Refused:
    return Refused(
        112, "WriteConflict error: this operation conflicted with another operation", "TransientTransactionError"
    )


def duplicate(index: str, key: tuple) -> Refused:
    return Refused(11000, f"E11000 duplicate key error index: {index} dup key: {key!r}")


# Values.


def order(value) -> tuple:
    """A value's place in the server's order of all values."""
    if value is None:
        return (1,)
    if isinstance(value, bool):
        return (8, value)
    if isinstance(value, int | float):
        return (2, value)
    if isinstance(value, str):
        return (3, value.encode())  # the simple collation: bytes
    if isinstance(value, dict):
        return (4, [(order(each)[0], name.encode(), order(each)) for name, each in value.items()])
    if isinstance(value, list):
        return (5, [order(each) for each in value])
    if isinstance(value, bytes):
        return (6, len(value), 0, value)
    raise Unheard(f"a value of type {type(value).__name__}")


def values_at(document: dict, path: str) -> list:
    """The values at a path, each element of an array by itself; empty when there is none."""
    first, _, rest = path.partition(".")
    if first not in document:
        return []
    found = document[first]
    if not rest:
        return [*found, found] if isinstance(found, list) else [found]
    inner = found if isinstance(found, list) else [found]
    return [value for each in inner if isinstance(each, dict) for value in values_at(each, rest)]


_COMPARE = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def matches(document: dict, filter: dict) -> bool:
    for path, condition in filter.items():
        if path in ("$and", "$or", "$nor"):
            if not condition:
                raise Refused(2, f"{path} must be a nonempty array")
            found = [matches(document, each) for each in condition]
            if not {"$and": all, "$or": any, "$nor": lambda all_: not any(all_)}[path](found):
                return False
        elif path.startswith("$"):
            raise Unheard(f"the operator {path}")
        elif not all(_holds(document, path, *each) for each in _operators(path, condition)):
            return False
    return True


def _operators(path: str, condition) -> list[tuple[str, object]]:
    """A condition as operators, after a look at what it is compared with."""
    is_document = isinstance(condition, dict)
    if is_document and not all(name.startswith("$") for name in condition):
        raise Unheard(f"{path} compared with a document")
    operators = list(condition.items()) if is_document else [("$eq", condition)]
    for name, operand in operators:
        if name not in (*_COMPARE, "$eq", "$in", "$exists"):
            raise Unheard(f"the operator {name} of {path}")
        operands = operand if name == "$in" else [operand]
        if path in NAMES and name != "$exists" and not all(isinstance(each, str) for each in operands):
            raise Unheard(f"{path} compared with {operand!r}, which is no string")
    return operators


def _holds(document: dict, path: str, name: str, operand) -> bool:
    found = values_at(document, path)
    if name == "$exists":
        return bool(found) == operand
    if name in ("$eq", "$in"):
        wanted = [order(each) for each in ([operand] if name == "$eq" else operand)]
        return any(order(value) in wanted for value in found)
    bound = order(operand)
    places = [order(value) for value in found]
    return any(place[0] == bound[0] and _COMPARE[name](place, bound) for place in places)  # only of the same type


def updated(document: dict, update: dict) -> dict:
    """The document after an update, which must consist of operators."""
    new = dict(document)
    for operator, fields in update.items():
        for name, value in fields.items():
            if "." in name or name == "_id" or name.startswith("$"):
                raise Unheard(f"{operator} of {name}")
            if operator == "$set":
                new[name] = value
            elif operator == "$unset":
                new.pop(name, None)
            elif operator == "$inc":
                new[name] = Int64(new.get(name, 0) + value)
            else:
                raise Unheard(f"the update {operator}")
    if not update:
        raise Refused(9, "an update must not be empty")
    return new


def projected(document: dict, projection: dict | None) -> dict:
    if not projection:
        return document
    if not all(value in (True, 1) for value in projection.values()):
        raise Unheard(f"the projection {projection}")
    return {name: value for name, value in document.items() if name == "_id" or name in projection}


# Indexes.


@dataclass
class Index:
    name: str
    keys: list[tuple[str, int]]
    unique: bool = False
    partial: str | None = None  # a field that must be there
    buckets: dict = field(default_factory=dict)  # the first key, and (unique) all keys -> _ids, of any version

    def spec(self) -> dict:
        found: dict = {"v": 2, "key": dict(self.keys), "name": self.name}
        if self.unique:
            found["unique"] = True
        if self.partial:
            found["partialFilterExpression"] = {self.partial: {"$exists": True}}
        return found

    def keys_of(self, document: dict) -> set[tuple]:
        """The document's keys; several when one of the fields is an array."""
        if self.partial and not values_at(document, self.partial):
            return set()
        columns = []
        for path, _ in self.keys:
            found = [value for value in values_at(document, path) if not isinstance(value, list)]
            columns.append([_frozen(order(value)) for value in found] or [(1,)])
        if sum(len(column) > 1 for column in columns) > 1:
            raise Refused(171, "cannot index parallel arrays")
        return set(itertools.product(*columns))

    def gives(self, query: Query, sort: list[tuple[str, int]]) -> bool:
        """Whether it answers the query, in the order asked for."""
        paths = [path for path, _ in self.keys]
        if self.partial and self.partial not in query.bounded:
            return False
        if paths[0] not in query.bounded:
            return False
        if not sort:
            return True
        fixed = 0
        while fixed < len(paths) and paths[fixed] in query.fixed:
            fixed += 1
        rest = self.keys[fixed : fixed + len(sort)]
        return rest == sort or rest == [(path, -way) for path, way in sort]


def _frozen(place: tuple) -> tuple:
    return tuple(tuple(each) if isinstance(each, list) else each for each in place)


class Query:
    """Which fields a filter fixes to one value, and which it bounds; what is only in an $or is neither."""

    def __init__(self, filter: dict) -> None:
        self.fixed: dict[str, object] = {}
        self.bounded: dict[str, list[tuple[str, object]]] = {}
        self._read(filter)

    def _read(self, filter: dict) -> None:
        for path, condition in filter.items():
            if path == "$and":
                for each in condition:
                    self._read(each)
            elif not path.startswith("$"):
                for name, operand in _operators(path, condition):
                    if name == "$eq":
                        self.fixed[path] = operand
                    if name != "$exists" or operand:
                        self.bounded.setdefault(path, []).append((name, operand))

    def points(self, path: str) -> list[tuple] | None:
        """The keys that a field is fixed to, or None."""
        for name, operand in self.bounded.get(path, ()):
            if name in ("$eq", "$in"):
                return [_frozen(order(each)) for each in ([operand] if name == "$eq" else operand)]
        return None


# Collections.


class Collection:
    """Documents in versions, which a snapshot chooses from."""

    def __init__(self, name: str, options: dict) -> None:
        self.name, self.options = name, options
        self.versions: dict[bytes | str, list[tuple[int, dict | None]]] = {}
        self.ids: list[tuple[tuple, bytes | str]] = []  # in order
        self.indexes: list[Index] = [Index("_id_", [("_id", 1)], unique=True)]

    def at(self, id, moment: int) -> dict | None:
        for since, document in reversed(self.versions.get(id, ())):
            if since <= moment:
                return document
        return None

    def latest(self, id) -> tuple[int, dict | None]:
        return self.versions.get(id, [(0, None)])[-1]

    def put(self, id, moment: int, document: dict | None) -> None:
        if id not in self.versions:
            bisect.insort(self.ids, (order(id), id))
        self.versions.setdefault(id, []).append((moment, document))
        if document is not None:
            for index in self.indexes[1:]:
                self.note(index, id, document)

    def note(self, index: Index, id, document: dict) -> None:
        for key in index.keys_of(document):
            index.buckets.setdefault(key[0], {})[id] = None
            if index.unique:
                index.buckets.setdefault(key, {})[id] = None

    def with_key(self, index: Index, key: tuple) -> list:
        """Ids of documents that have or had the key of a unique index."""
        if index.name == "_id_":
            return []
        return list(index.buckets.get(key, ()))

    def candidates(self, filter: dict, sort: list[tuple[str, int]]) -> list:
        """Ids of documents that the filter may match, by an index."""
        query = Query(filter)
        usable = [index for index in self.indexes if index.gives(query, sort)]
        if not usable:
            raise Unheard(f"{self.name}: no index for {filter} sorted by {sort}")
        if "_id" in query.bounded:
            return self._by_id(query.bounded["_id"])
        return self._by_keys(
            min(usable, key=lambda index: (not index.unique, index.keys[0][0] not in query.fixed)), query
        )

    def _by_id(self, bounds: list[tuple[str, object]]) -> list:
        low, high = 0, len(self.ids)
        for name, operand in bounds:
            if name in ("$eq", "$in"):
                return [id for id in ([operand] if name == "$eq" else operand) if id in self.versions]
            at = bisect.bisect_right if name in ("$gt", "$lte") else bisect.bisect_left
            place = at(self.ids, order(operand), key=lambda each: each[0])
            if name in ("$gt", "$gte"):
                low = max(low, place)
            else:
                high = min(high, place)
        return [id for _, id in self.ids[low:high]]

    def _by_keys(self, index: Index, query: Query) -> list:
        points = [query.points(path) for path, _ in index.keys]
        if index.unique and None not in points:
            keys = itertools.product(*points)
        elif points[0] is not None:
            keys = iter(points[0])
        else:
            return [id for _, id in self.ids]
        return list(dict.fromkeys(id for key in keys for id in index.buckets.get(key, ())))


# Transactions.


@dataclass
class Transaction:
    """What one transaction sees and has written. Everything on its own also goes through one, for an instant."""

    moment: int
    used: float = field(default_factory=time.monotonic)  # when its client was last heard of
    writes: dict[tuple[str, object], dict | None] = field(default_factory=dict)
    keys: dict[tuple[str, str, tuple], object] = field(default_factory=dict)  # of unique indexes -> _id


class Data:
    """All collections of all databases, and the transactions under way."""

    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {}
        self.moment = 1  # the last commit
        self.open: list[Transaction] = []

    def begin(self, moment: int | None = None) -> Transaction:
        made = Transaction(self.moment if moment is None else moment)
        self.open.append(made)
        return made

    def commit(self, done: Transaction) -> None:
        self.open.remove(done)
        if done.writes:
            self.moment += 1
            for (name, id), document in done.writes.items():
                self.collections[name].put(id, self.moment, document)

    def abort(self, ended: Transaction) -> None:
        self.open.remove(ended)

    def find(self, seen: Transaction, name: str, filter: dict, sort: list[tuple[str, int]]) -> list[dict]:
        collection = self.collections.get(name)
        if collection is None:
            return []
        own = [id for where, id in seen.writes if where == name]
        ids = dict.fromkeys([*collection.candidates(filter, sort), *own])
        found = [document for id in ids if (document := self.seen(seen, name, id)) and matches(document, filter)]
        for path, way in reversed(sort):
            found.sort(key=lambda document: order(document.get(path)), reverse=way < 0)
        return found

    def seen(self, seen: Transaction, name: str, id) -> dict | None:
        if (name, id) in seen.writes:
            return seen.writes[name, id]
        return self.collections[name].at(id, seen.moment)

    def write(self, by: Transaction, name: str, id, document: dict | None) -> None:
        """Write one document; who writes it first wins."""
        collection = self.collections[name]
        others = [each for each in self.open if each is not by]
        if any((name, id) in each.writes for each in others) or collection.latest(id)[0] > by.moment:
            raise write_conflict()
        if document is not None and len(bson.encode(document)) > DOCUMENT_MAX_BYTES:
            raise Refused(10334, "BSONObj size is invalid: larger than 16793600")
        keys = [] if document is None else self._checked_keys(by, others, collection, id, document)
        pending = by.writes.get((name, id))
        for where, index, key in self._keys(collection, pending) if pending else ():
            del by.keys[where, index.name, key]
        by.keys |= dict.fromkeys(keys, id)
        by.writes[name, id] = document

    def _keys(self, collection: Collection, document: dict) -> Iterator[tuple[str, Index, tuple]]:
        for index in collection.indexes[1:]:
            if index.unique:
                yield from ((collection.name, index, key) for key in index.keys_of(document))

    def _checked_keys(self, by, others, collection: Collection, id, document: dict) -> list[tuple[str, str, tuple]]:
        """The document's keys in unique indexes, which nobody else may have."""
        found = []
        for name, index, key in self._keys(collection, document):
            place = name, index.name, key
            if by.keys.get(place, id) != id:
                raise duplicate(index.name, key)
            if any(each.keys.get(place, id) != id for each in others):
                raise write_conflict()
            for other in collection.with_key(index, key):
                if other == id or (name, other) in by.writes:
                    continue
                mine, newest = self.seen(by, name, other), collection.latest(other)[1]
                if mine is not None and key in index.keys_of(mine):
                    raise duplicate(index.name, key)
                if newest is not None and key in index.keys_of(newest):
                    raise write_conflict()  # committed since the snapshot
            found.append(place)
        return found

    def insert(self, by: Transaction, name: str, document: dict) -> None:
        collection = self.collections.get(name)
        if collection is None:
            raise Unheard(f"a collection that nobody made: {name}")
        id = document.get("_id")
        if not isinstance(id, bytes | str):
            raise Unheard(f"{name}: an _id of type {type(id).__name__}")
        if self.seen(by, name, id) is not None:
            raise duplicate("_id_", (id,))
        if isinstance(document.get("id"), dict) or any(key.startswith("$") for key in document):
            raise Unheard(f"{name}: an operator in a document")
        self.write(by, name, id, document)

    def update(self, by: Transaction, name: str, filter: dict, update: dict, *, multi: bool) -> tuple[int, int]:
        """How many documents matched, and how many of them were changed."""
        found = self.find(by, name, filter, [])
        changed = 0
        for document in found if multi else found[:1]:
            new = updated(document, update)
            if new != document:
                self.write(by, name, document["_id"], new)
                changed += 1
        return len(found if multi else found[:1]), changed

    def delete(self, by: Transaction, name: str, filter: dict) -> int:
        found = self.find(by, name, filter, [])
        for document in found:
            self.write(by, name, document["_id"], None)
        return len(found)

    def make_index(self, name: str, wanted: Index) -> bool:
        """Whether it was made; the same again is there already."""
        collection = self.collections[name]
        for index in collection.indexes:
            if index.name == wanted.name or index.keys == wanted.keys:
                if index.spec() == wanted.spec():
                    return False
                raise Refused(86 if index.name == wanted.name else 85, f"an index conflicts with {wanted.name}")
        documents = [(id, document) for id in collection.versions if (document := collection.latest(id)[1])]
        if wanted.unique:
            keys = [key for _, document in documents for key in wanted.keys_of(document)]
            if len(set(keys)) < len(keys):
                raise Refused(11000, f"E11000 duplicate key error index: {wanted.name}")
        for id in collection.versions:
            for _, document in collection.versions[id]:
                if document is not None:
                    collection.note(wanted, id, document)
        collection.indexes.append(wanted)
        return True


def batches(documents: list[dict], first: int) -> Iterator[list[dict]]:
    """Documents in answers of at most 16 MiB, the first of which has a largest number too."""
    batch: list[dict] = []
    size = 0
    limit = first
    for document in documents:
        mine = len(bson.encode(document))
        if batch and (size + mine > DOCUMENT_MAX_BYTES or len(batch) >= limit):
            yield batch
            batch, size, limit = [], 0, 1 << 30
        batch.append(document)
        size += mine
    yield batch
