"""What people with SQL tools see in PostgreSQL, what verify finds there, and how values get there."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

import segue
import servers
from segue.errors import Corrupt
from segue.session import Scope
from segue.store import Report
from segue.stores._postgres_wire import ADAPTERS, blobs, longs, texts
from segue.stores.postgres import PostgresStore

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with servers.database() as url:
        yield url


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return f"s_{zlib.crc32(request.node.name.encode()):x}"


@pytest.fixture
def store(url: str, schema: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url, schema=schema)
    yield store
    store.close()


@pytest.fixture
def me(store: PostgresStore) -> Scope:
    return segue.open(store).scope("acme", "lin")


@pytest.fixture
def conn(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


def conversation(conn: psycopg.Connection, schema: str, session: str) -> tuple:
    query = (
        "SELECT messages, total_input_tokens, total_output_tokens, status, created_at, updated_at, user_id, tenant "
        f"FROM {schema}.conversations WHERE session_id = %s"
    )
    return conn.execute(query, (session,)).fetchone()


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# The view.


def test_a_conversation_is_a_row_with_its_messages_as_json(me: Scope, conn: psycopg.Connection, schema: str) -> None:
    session = me.create(id="s", title="not shown")
    asked, answered = {"role": "user", "content": "继续昨天那个脚本 \u0000"}, {"role": "assistant", "content": "Ready."}
    session.append(asked)
    session.append(answered, usage=segue.Usage(input=70, output=9))
    session.append({"seqs": []}, kind="retract", format="segue")
    messages, given, made, status, created_at, updated_at, user, tenant = conversation(conn, schema, "s")
    assert json.loads(messages) == [asked, answered]
    assert (given, made, status, user, tenant) == (70, 9, 0, "lin", "acme")
    assert created_at <= updated_at
    assert abs((datetime.now(UTC) - updated_at).total_seconds()) < 3600


def test_status_is_0_1_2(me: Scope, conn: psycopg.Connection, schema: str) -> None:
    session = me.create(id="s")
    seen = [conversation(conn, schema, "s")[3]]
    for change in (session.end, session.archive):
        change()
        seen.append(conversation(conn, schema, "s")[3])
    assert seen == [0, 1, 2]


def test_a_fork_shows_what_it_shares_and_an_erased_session_is_not_shown(
    me: Scope, conn: psycopg.Connection, schema: str
) -> None:
    parent = me.create(id="parent")
    parent.append(*map(said, ("one", "two", "three")))
    me.open("parent").fork(2, id="fork").append(said("four"))
    parent.hollow(1)
    parent.erase()
    assert json.loads(conversation(conn, schema, "fork")[0]) == [said("two"), said("four")]
    assert conversation(conn, schema, "parent") is None


def test_the_view_takes_no_writes(me: Scope, conn: psycopg.Connection, schema: str) -> None:
    me.create(id="s")
    for statement in (f"DELETE FROM {schema}.conversations", f"UPDATE {schema}.conversations SET status = 2"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            conn.execute(statement)


# Verify.


@pytest.fixture
def damaged(me: Scope, conn: psycopg.Connection, schema: str) -> Iterator[psycopg.Connection]:
    """A connection on a schema that holds some sessions, for a test that damages them."""
    parent = me.create(id="parent")
    parent.append(said("one"), usage=segue.Usage(input=1))
    parent.append(said("two"), refs=("source:x",))
    parent.append(said("three"))
    parent.fork(2, id="fork").append(said("four"))
    gone = me.create(id="gone")
    gone.append(*map(said, "abc"))
    gone.fork(1, id="heir")
    gone.erase()
    conn.execute(f"SET search_path = {schema}")
    yield conn


def found(store: PostgresStore) -> list[tuple[str | None, int | None]]:
    return [(report.session, report.seq) for report in damage(store)]


def damage(store: PostgresStore) -> list[Report]:
    return [report for report in store.check(deep=True) if report.level == "damage"]


def test_a_whole_store_has_no_damage(store: PostgresStore, damaged: psycopg.Connection) -> None:
    assert found(store) == []


PARENT = "(SELECT segment FROM sessions WHERE id = 'parent')"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (f"UPDATE entries SET body = '\"ONE\"' WHERE segment = {PARENT} AND seq = 1", {("parent", 1)}),
        (f"UPDATE entries SET digest = sha256('') WHERE segment = {PARENT} AND seq = 3", {("parent", 3)}),
        (f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 3", {("parent", 3)}),
        (f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 1", {("parent", 1), ("fork", None)}),
        (f"UPDATE entries SET seq = 9 WHERE segment = {PARENT} AND seq = 3", {("parent", 3), ("parent", 9)}),
        ("UPDATE sessions SET head = 2 WHERE id = 'parent'", {("parent", 3)}),
        ("UPDATE sessions SET head = 5 WHERE id = 'parent'", {("parent", 4), ("parent", 5)}),
        (f"DELETE FROM refs WHERE segment = {PARENT}", {("parent", 2)}),
        (f"INSERT INTO refs VALUES ({PARENT}, 3, 0, 'acme', 'lin', 'r')", {("parent", 3)}),
        ("UPDATE sessions SET usage[1] = 7 WHERE id = 'parent'", {("parent", None)}),
        ("UPDATE sessions SET lease_run = 'r', lease_until_us = 1, fence = 0 WHERE id = 'parent'", {("parent", None)}),
        ("DELETE FROM spans WHERE segment = " + PARENT, {("fork", None)}),
        ("UPDATE spans SET upto = 1 WHERE segment = " + PARENT, {("fork", None)}),
        ("DELETE FROM sessions WHERE id = 'parent'", {("fork", None), (None, None)}),
        (
            "DELETE FROM spans WHERE child = (SELECT segment FROM sessions WHERE id = 'heir')",
            {("heir", None), ("gone", 1)},
        ),
    ],
)
def test_a_change_behind_the_stores_back_is_found(
    store: PostgresStore, damaged: psycopg.Connection, change: str, expected: set[tuple[str | None, int | None]]
) -> None:
    damaged.execute(change)
    assert expected <= set(found(store))


def test_a_damaged_body_is_never_given_out_and_the_others_stay_readable(me: Scope, damaged: psycopg.Connection) -> None:
    damaged.execute(f"UPDATE entries SET body = '\"ONE\"' WHERE segment = {PARENT} AND seq = 1")
    with pytest.raises(Corrupt) as caught:
        me.open("parent").read()
    assert (caught.value.session, caught.value.seq) == ("parent", 1)
    assert [entry.json() for entry in me.open("parent").read(after=1)] == [said("two"), said("three")]


@pytest.mark.parametrize("limit", [5, 1_000])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_missing_entry_is_never_skipped(me: Scope, damaged: psycopg.Connection, limit: int, reverse: bool) -> None:
    damaged.execute(f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 2")
    for session in ("parent", "fork"):
        with pytest.raises(Corrupt) as caught:
            me.open(session).read(limit=limit, reverse=reverse)
        assert caught.value.seq == 2


def test_a_ref_whose_entry_is_missing_is_never_skipped(me: Scope, damaged: psycopg.Connection) -> None:
    damaged.execute(f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 2")
    for search in (me.by_ref, me.open("fork").by_ref):
        with pytest.raises(Corrupt):
            search("source:x")


@pytest.mark.parametrize(
    ("setting", "text"),
    [("synchronous_commit", "can be lost in a crash"), ("fsync", "destroy the database"), ("full_page_writes", "tear")],
)
def test_a_setting_that_risks_what_was_acknowledged_is_a_warning(setting: str, text: str) -> None:
    with servers.private("postgres") as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"ALTER SYSTEM SET {setting} = off")
            admin.execute("SELECT pg_reload_conf()")
        store = PostgresStore(server.url)
        warnings = [report.text for report in store.check(deep=False) if report.level == "warn"]
        store.close()
    assert [setting in warning and text in warning for warning in warnings] == [True]


# Packed arrays.


@pytest.mark.parametrize(
    ("packed", "type_", "items"),
    [
        (texts, "text[]", []),
        (texts, "text[]", ["", None, "NULL", '{"a,b"}', "继续\U0001f600", "\\"]),
        (blobs, "bytea[]", [b"", b"\x00\xff", b"{,}" * 1000]),
        (longs, "bigint[]", [0, None, -1, (1 << 63) - 1, -(1 << 63)]),
    ],
)
def test_a_packed_array_arrives_as_it_was(url: str, packed: object, type_: str, items: list) -> None:
    with psycopg.connect(url, context=ADAPTERS) as conn:
        query = f"SELECT %s::{type_}, cardinality(%s::{type_})"
        assert conn.execute(query, (packed(items), packed(items))).fetchone() == (items, len(items))
