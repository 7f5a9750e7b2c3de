"""Operator injection: whatever is no string is refused, by type, before the driver hears of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Binary, Code, DBRef, Int64, MaxKey, MinKey, ObjectId, Regex
from bson.son import SON
from msgspec.structs import replace

import segue
from fakes.mongodb import Server, replica_set
from segue.errors import Invalid
from segue.model import Parent, ScopeKey
from segue.store import Append, Create, Erase, Filter, Fork, Hollow, Op, Release, Renew, Take, Update
from segue.stores.mongodb import MongoStore
from segue.testing.case import draft, drafts

ME = ScopeKey("acme", "lin")

PAYLOADS: tuple[Any, ...] = (
    {"$ne": ""},
    {"$gt": ""},
    {"$exists": True},
    {"$in": ["s"]},
    {"$nin": []},
    {"$regex": ".*"},
    {"$where": "1"},
    {"$expr": {"$eq": [1, 1]}},
    {"$not": {"$eq": "x"}},
    {"$or": [{}]},
    {"$type": 2},
    {"": ""},
    {},
    SON([("$ne", "")]),
    ["s"],
    [{"$ne": ""}],
    [],
    ("s",),
    {"s"},
    b"s",
    bytearray(b"s"),
    Binary(b"s"),
    Regex(".*"),
    re.compile(".*"),
    Code("true"),
    ObjectId("0" * 24),
    DBRef("a", "b"),
    MinKey(),
    MaxKey(),
    1,
    Int64(1),
    1.5,
    float("nan"),
    True,
    object(),
    "\ud800",
    "s\udfff",
)
"""Values that a JSON body, a pickle or a mistake may bring where a name is wanted."""

Ops = dict[str, Callable[[Any], Op]]
NAMES: Ops = {
    "tenant": lambda value: Erase(ScopeKey(value, "lin"), "s"),
    "user": lambda value: Erase(ScopeKey("acme", value), "s"),
    "create.id": lambda value: Create(ME, value),
    "create.format": lambda value: Create(ME, "new", format=value),
    "create.title": lambda value: Create(ME, "new", title=value),
    "create.tags": lambda value: Create(ME, "new", tags=(value,)),
    "create.parent": lambda value: Create(ME, "new", parent=Parent(value, 1)),
    "create.link": lambda value: Create(ME, "new", parent=Parent("s", 1, value)),
    "fork.id": lambda value: Fork(Create(ME, value), "s", 0),
    "fork.source": lambda value: Fork(Create(ME, "new"), value, 0),
    "update.session": lambda value: Update(ME, value, {"title": "x"}),
    "update.title": lambda value: Update(ME, "s", {"title": value}),
    "update.state": lambda value: Update(ME, "s", {"state": value}),
    "update.tags": lambda value: Update(ME, "s", {"tags": (value,)}),
    "update.changes": lambda value: Update(ME, "s", {str(value): "x"} if isinstance(value, str) else value or 7),
    "append.session": lambda value: Append(ME, value, drafts(1)),
    "append.id": lambda value: Append(ME, "s", (draft()._replace(id=value),)),
    "append.kind": lambda value: Append(ME, "s", (draft()._replace(kind=value),)),
    "append.format": lambda value: Append(ME, "s", (draft()._replace(format=value),)),
    "append.origin": lambda value: Append(ME, "s", (draft()._replace(origin=value),)),
    "append.refs": lambda value: Append(ME, "s", (draft()._replace(refs=(value,)),)),
    "append.entries": lambda value: Append(ME, "s", (value,)),
    "append.run": lambda value: Append(ME, "s", drafts(1), run=value, fence=1),
    "take.session": lambda value: Take(ME, value, "run-1", 1),
    "take.run": lambda value: Take(ME, "s", value, 1),
    "take.policy": lambda value: Take(ME, "s", "run-1", 1, value),
    "take.holder": lambda value: Take(ME, "s", "run-1", 1, holder=value),
    "take.over": lambda value: Take(ME, "s", "run-1", 1, "interrupt", over=value),
    "take.dead": lambda value: Take(ME, "s", "run-1", 1, dead=value),
    "renew.session": lambda value: Renew(ME, value, "run-1", 1, 1),
    "renew.run": lambda value: Renew(ME, "s", value, 1, 1),
    "release.session": lambda value: Release(ME, value, "run-1", 1),
    "release.run": lambda value: Release(ME, "s", value, None),
    "hollow.session": lambda value: Hollow(ME, value, (1,)),
    "erase.session": lambda value: Erase(ME, value),
}
COUNTS: Ops = {
    "fork.at": lambda value: Fork(Create(ME, "new"), "s", value),
    "append.fence": lambda value: Append(ME, "s", drafts(1), run="run-1", fence=value),
    "append.expect": lambda value: Append(ME, "s", drafts(1), expect=value),
    "update.expect": lambda value: Update(ME, "s", {"title": "x"}, value),
    "take.ttl_us": lambda value: Take(ME, "s", "run-1", value),
    "renew.fence": lambda value: Renew(ME, "s", "run-1", value, 1),
    "hollow.seqs": lambda value: Hollow(ME, "s", (value,)),
    "create.idle_us": lambda value: Create(ME, "new", idle_us=value),
}
READINGS: dict[str, Callable[[MongoStore, Any], object]] = {
    "get.tenant": lambda store, value: store.get(ScopeKey(value, "lin"), "s"),
    "get.user": lambda store, value: store.get(ScopeKey("acme", value), "s"),
    "get.session": lambda store, value: store.get(ME, value),
    "find.key": lambda store, value: store.find(ME, value),
    "page.user": lambda store, value: store.page(ScopeKey("acme", value), Filter(), None, 1),
    "page.status": lambda store, value: store.page(ME, Filter(status=(value,)), None, 1),
    "page.tag": lambda store, value: store.page(ME, Filter(tag=value), None, 1),
    "page.parent": lambda store, value: store.page(ME, Filter(parent=value), None, 1),
    "page.key_prefix": lambda store, value: store.page(ME, Filter(key_prefix=value), None, 1),
    "page.cursor": lambda store, value: store.page(ME, Filter(), value, 1),
    "read.session": lambda store, value: store.read(ME, value),
    "read.kinds": lambda store, value: store.read(ME, "s", kinds=(value,)),
    "by_ref.ref": lambda store, value: store.by_ref(ME, value),
    "by_ref.session": lambda store, value: store.by_ref(ME, "x", session=value),
    "by_ref.user": lambda store, value: store.by_ref(ScopeKey("acme", value), "x"),
    "scopes.after": lambda store, value: store.scopes(ScopeKey(value, "lin"), 1),
}
BOUNDS: dict[str, Callable[[MongoStore, Any], object]] = {
    "page.since_us": lambda store, value: store.page(ME, Filter(since_us=value), None, 1),
    "page.due_us": lambda store, value: store.page(ME, Filter(due_us=value), None, 1),
    "page.pinned": lambda store, value: store.page(ME, Filter(pinned=value), None, 1),
    "page.limit": lambda store, value: store.page(ME, Filter(), None, value),
    "read.after": lambda store, value: store.read(ME, "s", after=value),
    "read.upto": lambda store, value: store.read(ME, "s", upto=value),
    "read.limit": lambda store, value: store.read(ME, "s", limit=value),
    "by_ref.after": lambda store, value: store.by_ref(ME, "x", after=value),
    "by_ref.since_us": lambda store, value: store.by_ref(ME, "x", since_us=value),
    "scopes.limit": lambda store, value: store.scopes(None, value),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with replica_set() as server:
        yield server
        assert server.unheard == []


@pytest.fixture(scope="module")
def store(server: Server) -> Iterator[MongoStore]:
    store = MongoStore(server.url)
    store.commit([Create(ME, "s", key="k", tags=("t",), entries=(draft("secret", refs=("x",)),))])
    yield store
    store.close()


def numbers(name: str) -> tuple[Any, ...]:
    """What is wrong for a number (or, pinned, for a flag)."""
    fine = (bool,) if name == "page.pinned" else (int,)
    return (*(value for value in PAYLOADS if type(value) not in (*fine, Int64, bool)), 1 << 64)


@pytest.mark.parametrize("name", [*NAMES, *COUNTS])
def test_what_is_no_string_or_number_is_refused_by_each_operation_and_reaches_no_server(
    server: Server, store: MongoStore, name: str
) -> None:
    make, payloads = (NAMES[name], PAYLOADS) if name in NAMES else (COUNTS[name], numbers(name))
    before = len(server.commands)
    answers = [store.commit([make(value)])[0] for value in payloads]
    fine = [value for value, answer in zip(payloads, answers, strict=True) if type(answer) is not Invalid]
    assert fine == []
    assert len(server.commands) == before


@pytest.mark.parametrize("name", [*READINGS, *BOUNDS])
def test_what_is_no_string_or_number_is_refused_by_each_reading_and_reaches_no_server(
    server: Server, store: MongoStore, name: str
) -> None:
    ask, payloads = (READINGS[name], PAYLOADS) if name in READINGS else (BOUNDS[name], numbers(name))
    before = len(server.commands)
    for value in payloads:
        with pytest.raises(Invalid):
            ask(store, value)
    assert len(server.commands) == before


def test_a_refused_one_among_others_stops_nobody(store: MongoStore) -> None:
    answers = store.commit([Create(ME, "s1"), Create(ME, {"$ne": ""}), Create(ME, "s2")])  # type: ignore[arg-type]
    assert [type(answer).__name__ for answer in answers] == ["SessionInfo", "Invalid", "SessionInfo"]


def test_code_is_a_text_for_the_public_face(store: MongoStore) -> None:
    me = segue.open(store).scope("acme", "lin")
    assert type(me.create(id=Code("true")).id) is str
    assert me.open("true").id == me.open(Code("true")).id == "true"


@pytest.mark.parametrize("value", [each for each in PAYLOADS[:28] if each and not isinstance(each, str)], ids=repr)
def test_the_public_face_refuses_it_too(store: MongoStore, value: Any) -> None:
    db = segue.open(store)
    me = db.scope("acme", "lin")
    with pytest.raises(Invalid):
        db.scope("acme", value).open("s")
    for act in (me.open, me.get_key, me.by_ref, lambda value: me.create(id=value), lambda value: me.list(tag=value)):
        with pytest.raises(Invalid):
            act(value)


@pytest.mark.parametrize("name", ["$where", "$ne", "a.b", "__proto__", "$$NOW", "{'$ne': ''}", "\x00x"])
def test_names_that_look_like_operators_are_names(store: MongoStore, name: str) -> None:
    session = f"of {name}"
    create = Create(ME, session, key=name, title=name, metadata={name: {name: 1}}, tags=(name,), format=name)
    batch = (draft(id=name, kind=name, refs=(name,)),)
    assert [type(each).__name__ for each in store.commit([create, Append(ME, session, batch)])] == [
        "SessionInfo",
        "Appended",
    ]
    info = store.find(ME, name)
    assert info is not None
    assert (info.id, info.title, dict(info.metadata)) == (session, name, {name: {name: 1}})
    assert [hit.session for hit in store.by_ref(ME, name)] == [session]
    assert [each.id for each in store.page(ME, Filter(tag=name), None, 9).sessions] == [session]
    assert store.commit([replace(Append(ME, session, batch), expect=0)])[0].new == 0  # type: ignore[union-attr]
