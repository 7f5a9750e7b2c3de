"""The stand-in for MongoDB itself: it keeps the server's rules, and refuses what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson.codec_options import CodecOptions
from pymongo import IndexModel, MongoClient, ReadPreference
from pymongo.errors import BulkWriteError, DocumentTooLarge, DuplicateKeyError, OperationFailure, WriteError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from fakes.mongodb import Fault, Server, replica_set

DURABLE = WriteConcern("majority", j=True)


@pytest.fixture
def server() -> Iterator[Server]:
    with replica_set() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[MongoClient]:
    with MongoClient(server.url, serverSelectionTimeoutMS=20_000) as client:
        yield client


@pytest.fixture
def things(client: MongoClient) -> Any:
    """A collection with a unique index, the documents a and b, and the demanded concerns."""
    db = client.get_database("segue", write_concern=DURABLE, read_concern=ReadConcern("majority"))
    db.create_collection("things", check_exists=False)
    db.things.create_indexes([IndexModel([("id", 1)], name="id", unique=True), IndexModel([("n", 1)], name="n")])
    for id in ("a", "b"):
        db.things.insert_one({"_id": id, "id": id, "n": 1})
    return db.things


def begin(client: MongoClient) -> Any:
    session = client.start_session()
    session.start_transaction(read_concern=ReadConcern("snapshot"), write_concern=DURABLE)
    return session


def is_conflict(error: OperationFailure) -> bool:
    return error.code == 112 and error.has_error_label("TransientTransactionError")


def test_a_transaction_sees_its_own_writes_and_nobody_elses_until_both_are_over(client, things) -> None:
    with begin(client) as mine:
        assert things.find_one({"id": "a"}, session=mine)["n"] == 1
        things.update_one({"id": "b"}, {"$set": {"n": 2}})
        assert things.find_one({"id": "b"}, session=mine)["n"] == 1
        things.update_one({"id": "a"}, {"$set": {"n": 3}}, session=mine)
        assert things.find_one({"id": "a"}, session=mine)["n"] == 3
        assert things.find_one({"id": "a"})["n"] == 1
        mine.commit_transaction()
    assert things.find_one({"id": "a"})["n"] == 3


def test_who_writes_first_wins(client, things) -> None:
    with begin(client) as one, begin(client) as two:
        for session in (one, two):
            things.find_one({"id": "a"}, session=session)
        things.update_one({"id": "a"}, {"$set": {"n": 2}}, session=one)
        with pytest.raises(OperationFailure, match="WriteConflict") as caught:
            things.update_one({"id": "a"}, {"$set": {"n": 3}}, session=two)
        assert is_conflict(caught.value)
        one.commit_transaction()
    assert things.find_one({"id": "a"})["n"] == 2


def test_what_was_written_since_the_snapshot_is_a_conflict(client, things) -> None:
    with begin(client) as mine:
        things.find_one({"id": "b"}, session=mine)
        things.update_one({"id": "a"}, {"$set": {"n": 2}})
        with pytest.raises(OperationFailure) as caught:
            things.update_one({"id": "a"}, {"$set": {"n": 3}}, session=mine)
        assert is_conflict(caught.value)


def test_what_two_decide_from_each_others_documents_both_commit(client, things) -> None:
    with begin(client) as one, begin(client) as two:
        assert things.find_one({"id": "b"}, session=one)["n"] == things.find_one({"id": "a"}, session=two)["n"] == 1
        things.update_one({"id": "a"}, {"$set": {"n": 0}}, session=one)
        things.update_one({"id": "b"}, {"$set": {"n": 0}}, session=two)
        one.commit_transaction()
        two.commit_transaction()
    assert [each["n"] for each in things.find({"n": 0})] == [0, 0]


def test_a_unique_index_refuses_what_is_there_and_what_is_on_its_way(client, things) -> None:
    with pytest.raises(DuplicateKeyError):
        things.insert_one({"_id": "c", "id": "a"})
    with begin(client) as one, begin(client) as two:
        things.insert_one({"_id": "c", "id": "c"}, session=one)
        with pytest.raises(OperationFailure) as caught:
            things.insert_one({"_id": "d", "id": "c"}, session=two)
        assert is_conflict(caught.value)
        one.abort_transaction()
    things.insert_one({"_id": "d", "id": "c"})


def test_any_error_ends_a_transaction(client, things) -> None:
    with begin(client) as mine:
        things.update_one({"id": "b"}, {"$set": {"n": 2}}, session=mine)
        with pytest.raises((DuplicateKeyError, BulkWriteError)):
            things.insert_many([{"_id": "c", "id": "a"}], session=mine)
        with pytest.raises(OperationFailure) as caught:
            things.find_one({"id": "a"}, session=mine)
        assert caught.value.code == 251
    assert things.find_one({"id": "b"})["n"] == 1


def test_a_transaction_that_is_committed_twice_is_committed_once(client, things) -> None:
    with begin(client) as mine:
        things.update_one({"id": "a"}, {"$inc": {"n": 1}}, session=mine)
        mine.commit_transaction()
        mine.commit_transaction()
    assert things.find_one({"id": "a"})["n"] == 2


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_write_that_is_sent_twice_is_done_once(server, things, cut: str) -> None:
    server.faults = [Fault("update", cut=cut)]
    things.update_one({"id": "a"}, {"$inc": {"n": 1}})
    assert things.find_one({"id": "a"})["n"] == 2


def test_a_snapshot_session_sees_one_moment(client, things) -> None:
    with client.start_session(snapshot=True) as mine:
        assert things.find_one({"id": "a"}, session=mine)["n"] == 1
        things.update_one({"id": "b"}, {"$set": {"n": 2}})
        assert things.find_one({"id": "b"}, session=mine)["n"] == 1
    assert things.find_one({"id": "b"})["n"] == 2


def test_a_document_over_16_mib_is_refused_by_driver_and_server(client, things) -> None:
    with pytest.raises(DocumentTooLarge):
        things.insert_one({"_id": "c", "id": "c", "x": b"x" * (17 << 20)})
    with begin(client) as mine:
        things.update_one({"id": "a"}, {"$set": {"x": b"x" * (9 << 20)}}, session=mine)
        with pytest.raises((OperationFailure, WriteError)) as caught:
            things.update_one({"id": "a"}, {"$set": {"y": b"x" * (9 << 20)}}, session=mine)
        assert caught.value.code == 10334


def test_values_of_another_type_are_not_between_and_names_are_compared_as_bytes(things) -> None:
    for id in ("A", "a ", "á", "a\u0301"):
        things.insert_one({"_id": id, "id": id, "n": "text"})
    assert [each["id"] for each in things.find({"n": {"$gte": 0}})] == ["a", "b"]
    assert [each["id"] for each in things.find({"id": {"$gte": "a"}}).sort("id", 1)] == ["a", "a ", "a\u0301", "b", "á"]


UNHEARD = {
    "an operator it does not know": lambda things: things.find_one({"n": {"$mod": [2, 0]}}),
    "a name that is no string": lambda things: things.find_one({"id": 7}),
    "a name compared with a document": lambda things: things.find_one({"id": {"x": 1}}),
    "a regular expression": lambda things: things.find_one({"id": {"$regex": "^a"}}),
    "a query without an index": lambda things: things.find_one({"x": 1}),
    "a sort without an index": lambda things: list(things.find({"id": "a"}).sort("n", 1)),
    "a replacement": lambda things: things.replace_one({"id": "a"}, {"id": "a"}),
    "an upsert": lambda things: things.update_one({"id": "a"}, {"$set": {"n": 1}}, upsert=True),
    "an update operator it does not know": lambda things: things.update_one({"id": "a"}, {"$mul": {"n": 2}}),
    "a command it does not know": lambda things: things.find_one_and_delete({"id": "a"}),
    "a stage it does not know": lambda things: list(things.aggregate([{"$match": {"id": "a"}}, {"$out": "x"}])),
    "a collection that nobody made": lambda things: things.database.others.insert_one({"_id": "a"}),
    "an index that expires": lambda things: things.create_index([("x", 1)], expireAfterSeconds=1),
    "a write that may be lost": lambda things: things.with_options(write_concern=WriteConcern(1)).insert_one(
        {"_id": "c", "id": "c"}
    ),
    "a reading that may be undone": lambda things: things.with_options(read_concern=ReadConcern("local")).find_one(
        {"id": "a"}
    ),
    "a reading of a secondary": lambda things: things.with_options(
        read_preference=ReadPreference.SECONDARY_PREFERRED
    ).find_one({"id": "a"}),
}


@pytest.mark.parametrize("name", UNHEARD)
def test_what_it_does_not_know_is_refused_loudly(server, things, name: str) -> None:
    assert server.unheard == []
    with pytest.raises(OperationFailure):
        UNHEARD[name](things)
    assert len(server.unheard) == 1


def test_bytes_come_back_as_bytes(things) -> None:
    things.insert_one({"_id": "c", "id": "c", "x": b"\x00\xff"})
    found = things.with_options(CodecOptions(document_class=dict)).find_one({"id": "c"})
    assert found["x"] == b"\x00\xff"
