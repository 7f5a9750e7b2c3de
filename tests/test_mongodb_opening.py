"""Opening the MongoDB store: what it demands of a server, its indexes and format, doctor and verify."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from bson.datetime_ms import DatetimeMS

import segue
from fakes.mongodb import Fault, Server, replica_set
from fakes.mongodb_data import Collection, Index
from segue.errors import Corrupt, Invalid, ReadOnly, TooNew, Unavailable
from segue.model import ScopeKey, Usage
from segue.store import Append, Create, Erase, Filter, Fork
from segue.stores._mongodb_rows import place
from segue.stores._mongodb_schema import INDEXES
from segue.stores.mongodb import MongoStore
from segue.testing.case import draft, drafts

ME = ScopeKey("acme", "lin")
SOON = timedelta(milliseconds=700)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for a lost server at most every half second; here it need not wait so long."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    with replica_set() as server:
        yield server
        assert server.unheard == []


def opened(url: str, **options) -> MongoStore:
    return MongoStore(url, **{"connect_timeout": SOON, **options})


def spoilt(server: Server) -> list[tuple[str | None, int | None]]:
    """Session and seq of all damage."""
    store = opened(server.url)
    try:
        return [(report.session, report.seq) for report in store.check(deep=True) if report.level == "damage"]
    finally:
        store.close()


def warnings(server: Server) -> list[str]:
    store = opened(server.url)
    try:
        return [report.text for report in store.check(deep=False) if report.level != "ok"]
    finally:
        store.close()


# What it demands.


@pytest.mark.parametrize("query", ["?replicaSet=rs0", "", "?directConnection=true"])
def test_a_standalone_is_refused_by_name_and_told_what_to_do(server: Server, query: str) -> None:
    server.hello_more = {"setName": None, "setVersion": None, "hosts": None, "primary": None, "me": None}
    with pytest.raises(Unavailable, match=r"standalone mongod .* --replSet rs0, run rs.initiate\(\)"):
        opened(f"mongodb://127.0.0.1:{server.port}/segue{query}")
    assert set(server.commands) <= {"endSessions"}


def test_a_secondary_alone_is_refused_with_the_way_to_the_set(server: Server) -> None:
    server.elections = 1_000
    with pytest.raises(ReadOnly, match="takes no writes"):
        opened(f"mongodb://127.0.0.1:{server.port}/segue?directConnection=true")


def test_a_set_without_a_primary_is_named(server: Server) -> None:
    server.elections = 1_000
    with pytest.raises(Unavailable, match="cannot reach a primary"):
        opened(server.url)


def test_a_set_of_another_name_is_named(server: Server) -> None:
    with pytest.raises(Unavailable, match="replicaSet"):
        opened(server.url.replace("rs0", "rs1"))


def test_a_server_that_is_too_old_is_refused(server: Server) -> None:
    server.hello_more = {"maxWireVersion": 9}
    with pytest.raises(Unavailable, match="older than 5.0"):
        opened(server.url)


def test_nobody_there_is_named_without_the_password() -> None:
    with replica_set() as server:
        port = server.port
    with pytest.raises(Unavailable, match="is the server up") as caught:
        opened(f"mongodb://me:secret@127.0.0.1:{port}/segue?replicaSet=rs0")
    assert "secret" not in str(caught.value)


def test_a_name_without_hosts_is_named_without_the_password() -> None:
    with pytest.raises(Unavailable, match="cannot be looked up") as caught:
        opened("mongodb+srv://me:secret@127.0.0.1/db")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://me:p@ss:word@host/db",
        "mongodb://host/a b",
        "mongodb://host:port/db",
        "mongodb://",
        "http://host/db",
        "mongodb://me:secret@host/db?replicaSet=rs0&readConcernLevel=linearizable&tls=perhaps",
    ],
)
def test_a_url_that_is_none_is_refused_and_nothing_of_it_repeated(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        opened(url)
    assert "secret" not in str(caught.value)
    assert "p@ss" not in str(caught.value)


def test_a_url_cannot_talk_it_out_of_durable_writes_and_readings_of_the_primary(server: Server) -> None:
    store = opened(f"{server.url}&w=1&journal=false&retryWrites=false&readPreference=secondary&readConcernLevel=local")
    store.commit([Create(ME, "s", entries=drafts(2))])
    assert len(store.read(ME, "s")) == 2
    store.close()  # the stand-in refuses anything less


@pytest.mark.parametrize("prefix", ["", "a.b", "$x", "a b", "x" * 41, {"$ne": ""}, 7])
def test_a_prefix_that_is_no_name_is_refused(server: Server, prefix: object) -> None:
    with pytest.raises(Invalid):
        opened(server.url, prefix=prefix)


def test_a_url_opens_it(server: Server) -> None:
    with segue.open(server.url, prefix="here") as db:
        session = db.scope("acme", "lin").create()
        assert db.name == "mongodb"
        assert [info.id for info in db.scope("acme", "lin").list().sessions] == [session.id]
    assert set(server.data.collections) == {"here.sessions", "here.entries", "here.format"}


# Collections, indexes, format.


def test_opening_makes_indexes_once_and_many_may_do_so_at_once(server: Server) -> None:
    errors: list[Exception] = []

    def act() -> None:
        try:
            MongoStore(server.url).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=act) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    made = {name: server.data.collections[f"segue.{name}"].indexes for name in INDEXES}
    assert {name: len(indexes) for name, indexes in made.items()} == {"sessions": 7, "entries": 4}
    assert [document["format"] for document in server.documents("format")] == [1]


def test_no_index_lets_documents_expire(server: Server) -> None:
    assert not [index for indexes in INDEXES.values() for index in indexes if "expireAfterSeconds" in index]


def test_without_migrate_nothing_is_made(server: Server) -> None:
    with pytest.raises(Unavailable, match="migrate=True"):
        opened(server.url, migrate=False)
    assert server.data.collections == {}
    opened(server.url).close()
    made = server.commands.count("createIndexes")
    opened(server.url, migrate=False).close()
    assert server.commands.count("createIndexes") == made


def test_what_a_newer_segue_made_is_refused_and_not_touched(server: Server) -> None:
    opened(server.url).close()
    server.plant("format", {"_id": "format", "format": 2})
    before = list(server.commands)
    with pytest.raises(TooNew, match="nothing was changed"):
        opened(server.url)
    assert server.commands[len(before) :] == ["find", "endSessions"]


def test_a_format_that_became_newer_meanwhile_is_noticed_when_a_session_is_made(server: Server) -> None:
    store = opened(server.url)
    server.plant("format", {"_id": "format", "format": 2})
    (answer,) = store.commit([Create(ME, "s")])
    assert isinstance(answer, TooNew)
    store.close()


@pytest.mark.parametrize("options", [{"collation": {"locale": "en", "strength": 1}}, {"capped": True}])
def test_a_collection_that_compares_or_keeps_otherwise_is_refused(server: Server, options: dict) -> None:
    server.data.collections["segue.sessions"] = Collection("segue.sessions", options)
    with pytest.raises(Unavailable, match="compared as bytes"):
        opened(server.url)


def test_an_index_of_the_same_name_and_another_form_is_named(server: Server) -> None:
    collection = server.data.collections["segue.sessions"] = Collection("segue.sessions", {})
    collection.indexes.append(Index("id", [("id", 1)]))
    with pytest.raises(Unavailable, match="drop it, then open again"):
        opened(server.url)


def test_times_are_the_servers(server: Server) -> None:
    server.shift_ms = 86_400_000
    store = opened(server.url)
    store.commit([Create(ME, "s")])
    assert abs(store.get(ME, "s").created_at.timestamp() * 1_000 - int(DatetimeMS(int(server.now())))) < 60_000
    store.close()


def test_what_is_done_later_in_one_millisecond_of_the_server_is_later(server: Server) -> None:
    server.now = lambda: DatetimeMS(1_790_000_000_000)
    store = opened(server.url)
    for id in ("first", "a later one", "the last"):
        store.commit([Create(ME, id)])
    shown = store.page(ME, Filter(), None, 10).sessions
    assert [info.id for info in shown] == ["the last", "a later one", "first"]
    assert shown[0].created_at.timestamp() - 1_790_000_000 < 0.001
    store.close()


# Doctor.


def test_a_sound_server_gives_no_warning(server: Server) -> None:
    assert warnings(server) == []


def test_settings_that_lose_data_are_warned_of(server: Server) -> None:
    server.config["writeConcernMajorityJournalDefault"] = False
    server.engine = {"name": "ephemeralForTest", "persistent": False}
    server.hello_more = {"arbiters": ["127.0.0.1:1"]}
    found = warnings(server)
    assert len(found) == 3
    assert all(any(word in text for text in found) for word in ("arbiters", "JournalDefault", "storage engine"))


def test_a_user_who_may_not_see_settings_is_no_reason_for_a_warning(server: Server) -> None:
    server.faults = [Fault("serverStatus", code=13), Fault("replSetGetConfig", code=13)]
    assert warnings(server) == []


def test_a_missing_index_and_one_that_lets_documents_expire_are_warned_of(server: Server) -> None:
    store = opened(server.url)
    indexes = server.data.collections["segue.entries"].indexes
    expiring = Index("ttl", [("created_us", 1)])
    expiring.more = {"expireAfterSeconds": 60}
    indexes[1:] = [index for index in indexes[1:] if index.name != "refs"] + [expiring]
    texts = [report.text for report in store.check(deep=False) if report.level == "warn"]
    assert any("'refs' of segue.entries is missing" in text for text in texts)
    assert any("TTL" in text for text in texts)
    assert len(texts) == 2
    store.close()


# Verify.


@pytest.fixture
def forked(server: Server) -> Iterator[MongoStore]:
    """A session "s" of four entries and a fork "f" of two of them with one of its own."""
    store = opened(server.url)
    store.commit([Create(ME, "s", entries=tuple(draft(usage=Usage(1, 2)) for _ in range(4)))])
    store.commit([Fork(Create(ME, "f"), "s", 2), Append(ME, "f", drafts(1))])
    yield store
    store.close()


def entry(server: Server, seq: int) -> dict:
    return next(each for each in server.documents("entries") if each["seq"] == seq and each["session"] == "s")


def row(server: Server, id: str) -> dict:
    return next(each for each in server.documents("sessions") if each["id"] == id)


def test_a_sound_store_verifies_also_after_an_erase(server: Server, forked: MongoStore) -> None:
    assert spoilt(server) == []
    assert forked.check(deep=True)[-1].text == "2 sessions were read, entry by entry"
    forked.commit([Erase(ME, "s")])
    assert spoilt(server) == []


def test_a_missing_entry_is_found_where_it_belongs_and_where_it_is_shared(server: Server, forked: MongoStore) -> None:
    server.plant("entries", None, id=entry(server, 2)["_id"])
    assert ("s", 2) in spoilt(server)
    assert ("f", None) in spoilt(server)
    for session in ("s", "f"):
        with pytest.raises(Corrupt) as caught:
            forked.read(ME, session)
        assert caught.value.seq == 2


@pytest.mark.parametrize(
    "change",
    [{"body": b"other"}, {"codec": 9}, {"digest": b"x" * 32}, {"usage": ["x"]}, {"kind": None, "id": None}],
)
def test_a_changed_entry_is_found(server: Server, forked: MongoStore, change: dict) -> None:
    spoilt_entry = {name: value for name, value in {**entry(server, 3), **change}.items() if value is not None}
    server.plant("entries", spoilt_entry)
    assert ("s", 3) in spoilt(server)
    with pytest.raises(Corrupt) as caught:
        forked.read(ME, "s")
    assert (caught.value.session, caught.value.seq) == ("s", 3)
    assert len(forked.read(ME, "s", upto=2)) == 2


@pytest.mark.parametrize(
    "change",
    [{"usage": [9, 9, 0, 0, 0, 0]}, {"head": 3}, {"head": 5}, {"tags": 7}, {"metadata": b"{"}, {"lease": {"run": "r"}}],
)
def test_a_changed_row_is_found(server: Server, forked: MongoStore, change: dict) -> None:
    server.plant("sessions", {**row(server, "s"), **change})
    assert "s" in {session for session, _ in spoilt(server)}


def test_a_fork_whose_history_does_not_reach_its_base_is_found(server: Server, forked: MongoStore) -> None:
    found = row(server, "f")
    server.plant("sessions", {**found, "parts": [{**found["parts"][0], "upto": 1}]})
    assert "f" in {session for session, _ in spoilt(server)}


def test_entries_without_a_session_are_found(server: Server, forked: MongoStore) -> None:
    stray = b"\xff" * 16
    server.plant("entries", {**entry(server, 1), "_id": place(stray, 1), "segment": stray})
    assert spoilt(server) == [(None, None)]
