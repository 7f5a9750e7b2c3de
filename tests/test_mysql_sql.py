"""What people with SQL tools see in MySQL, and what verify finds there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pymysql
import pytest

import segue
import servers
from segue.errors import Corrupt
from segue.session import Scope
from segue.store import Report
from segue.stores.mysql import MySQLStore

pytestmark = pytest.mark.server


@pytest.fixture
def url() -> Iterator[str]:
    with servers.database("mysql") as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    store = MySQLStore(url)
    yield store
    store.close()


@pytest.fixture
def me(store: MySQLStore) -> Scope:
    return segue.open(store).scope("acme", "lin")


@pytest.fixture
def cursor(url: str) -> Iterator[pymysql.cursors.Cursor]:
    parts = urlsplit(url)
    with pymysql.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        database=parts.path[1:],
        autocommit=True,
        ssl_disabled=True,
    ) as conn:
        yield conn.cursor()


def conversation(cursor: pymysql.cursors.Cursor, session: str) -> tuple | None:
    cursor.execute(
        "SELECT messages, total_input_tokens, total_output_tokens, status, created_at, updated_at, user_id, tenant "
        "FROM conversations WHERE session_id = %s",
        (session,),
    )
    return cursor.fetchone()


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# The view.


def test_a_conversation_is_a_row_with_its_messages_as_json(me: Scope, cursor: pymysql.cursors.Cursor) -> None:
    session = me.create(id="s", title="not shown")
    asked, answered = {"role": "user", "content": "继续昨天那个脚本 \u0000"}, {"role": "assistant", "content": "Ready."}
    session.append(asked)
    session.append(answered, usage=segue.Usage(input=70, output=9))
    session.append({"seqs": []}, kind="retract", format="segue")
    messages, given, made, status, created_at, updated_at, user, tenant = conversation(cursor, "s")
    assert json.loads(messages) == [asked, answered]
    assert (given, made, status, user, tenant) == (70, 9, 0, "lin", "acme")
    assert created_at <= updated_at
    assert abs((datetime.now(UTC).replace(tzinfo=None) - updated_at).total_seconds()) < 3600


def test_status_is_0_1_2(me: Scope, cursor: pymysql.cursors.Cursor) -> None:
    session = me.create(id="s")
    seen = [conversation(cursor, "s")[3]]
    for change in (session.end, session.archive):
        change()
        seen.append(conversation(cursor, "s")[3])
    assert seen == [0, 1, 2]


def test_a_fork_shows_what_it_shares_and_an_erased_session_is_not_shown(
    me: Scope, cursor: pymysql.cursors.Cursor
) -> None:
    parent = me.create(id="parent")
    parent.append(*map(said, ("one", "two", "three")))
    me.open("parent").fork(2, id="fork").append(said("four"))
    parent.hollow(1)
    parent.erase()
    assert json.loads(conversation(cursor, "fork")[0]) == [said("two"), said("four")]
    assert conversation(cursor, "parent") is None


def test_messages_longer_than_the_reader_takes_are_null_and_never_cut(
    me: Scope, cursor: pymysql.cursors.Cursor
) -> None:
    texts = [said("x" * 900) for _ in range(3)]
    me.create(id="s").append(*texts)
    cursor.execute("SET SESSION group_concat_max_len = 1024")
    assert conversation(cursor, "s")[0] is None
    cursor.execute("SET SESSION group_concat_max_len = 1073741824")
    assert json.loads(conversation(cursor, "s")[0]) == texts


def test_the_view_takes_no_writes(me: Scope, cursor: pymysql.cursors.Cursor) -> None:
    me.create(id="s")
    for statement in (
        "DELETE FROM conversations",
        "UPDATE conversations SET status = 2",
        "UPDATE conversations SET tenant = 'x'",
        "INSERT INTO conversations (status) VALUES (1)",
    ):
        with pytest.raises(pymysql.MySQLError, match="join view|not updatable|not insertable"):
            cursor.execute(statement)


def test_names_that_look_alike_are_different_rows(me: Scope, cursor: pymysql.cursors.Cursor) -> None:
    names = ["a", "A", "á", "a ", "a\u0301"]
    for name in names:
        me.create(id=name)
    cursor.execute("SELECT COUNT(*) FROM sessions WHERE id = 'a'")
    assert cursor.fetchone() == (1,)
    assert [me.open(name).id for name in names] == names


# Verify.


@pytest.fixture
def damaged(me: Scope, cursor: pymysql.cursors.Cursor) -> pymysql.cursors.Cursor:
    """For a test that damages some sessions."""
    parent = me.create(id="parent")
    parent.append(said("one"), usage=segue.Usage(input=1))
    parent.append(said("two"), refs=("source:x",))
    parent.append(said("three"))
    parent.fork(2, id="fork").append(said("four"))
    gone = me.create(id="gone")
    gone.append(*map(said, "abc"))
    gone.fork(1, id="heir")
    gone.erase()
    return cursor


def damage(store: MySQLStore) -> list[Report]:
    return [report for report in store.check(deep=True) if report.level == "damage"]


def found(store: MySQLStore) -> set[tuple[str | None, int | None]]:
    return {(report.session, report.seq) for report in damage(store)}


PARENT = "(SELECT segment FROM sessions WHERE id = 'parent')"
CHANGES = [
    (f"UPDATE entries SET body = '\"ONE\"' WHERE segment = {PARENT} AND seq = 1", {("parent", 1)}),
    (f"UPDATE entries SET digest = UNHEX(SHA2('', 256)) WHERE segment = {PARENT} AND seq = 3", {("parent", 3)}),
    (f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 3", {("parent", 3)}),
    (f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 1", {("parent", 1), ("fork", None)}),
    (f"UPDATE entries SET seq = 9 WHERE segment = {PARENT} AND seq = 3", {("parent", 3), ("parent", 9)}),
    ("UPDATE sessions SET head = 2 WHERE id = 'parent'", {("parent", 3)}),
    ("UPDATE sessions SET head = 5 WHERE id = 'parent'", {("parent", 4), ("parent", 5)}),
    (f"DELETE FROM refs WHERE segment = {PARENT}", {("parent", 2)}),
    (f"INSERT INTO refs VALUES ({PARENT}, 'r', 3, 0, 'acme', 'lin', 'parent')", {("parent", 3)}),
    ("UPDATE sessions SET tokens = '7,0,0,0,0,0' WHERE id = 'parent'", {("parent", None)}),
    ("UPDATE sessions SET tokens = 'x' WHERE id = 'parent'", {("parent", None)}),
    ("UPDATE sessions SET metadata = '{' WHERE id = 'parent'", {("parent", None)}),
    ("UPDATE sessions SET lease_run = 'r', lease_until_us = 1, fence = 0 WHERE id = 'parent'", {("parent", None)}),
    (f"DELETE FROM spans WHERE segment = {PARENT}", {("fork", None)}),
    (f"UPDATE spans SET upto = 1 WHERE segment = {PARENT}", {("fork", None)}),
    ("DELETE FROM sessions WHERE id = 'parent'", {("fork", None), (None, None)}),
    (
        "DELETE FROM spans WHERE child = (SELECT segment FROM sessions WHERE id = 'heir')",
        {("heir", None), ("gone", 1)},
    ),
]


def test_each_change_behind_the_stores_back_is_found(store: MySQLStore, damaged: pymysql.cursors.Cursor) -> None:
    assert found(store) == set()
    for change, expected in CHANGES:
        damaged.execute("START TRANSACTION")
        kept = {table: rows_of(damaged, table) for table in ("sessions", "entries", "spans", "refs")}
        damaged.execute(change)
        damaged.execute("COMMIT")
        assert expected <= found(store), change
        put_back(damaged, kept)
    assert found(store) == set()


def rows_of(cursor: pymysql.cursors.Cursor, table: str) -> tuple[list[str], tuple]:
    made = "is_gone", "due_us"
    cursor.execute(f"SHOW COLUMNS FROM {table}")
    names = [row[0] for row in cursor.fetchall() if row[0] not in made]
    cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
    return names, cursor.fetchall()


def put_back(cursor: pymysql.cursors.Cursor, kept: dict[str, tuple[list[str], tuple]]) -> None:
    for table, (names, rows) in kept.items():
        cursor.execute(f"DELETE FROM {table}")
        marks = ", ".join(["%s"] * len(names))
        cursor.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)


def test_damage_is_reported_when_it_is_read_and_the_rest_stays_readable(
    me: Scope, damaged: pymysql.cursors.Cursor
) -> None:
    damaged.execute(f"UPDATE entries SET body = '\"ONE\"' WHERE segment = {PARENT} AND seq = 1")
    with pytest.raises(Corrupt) as caught:
        me.open("parent").read()
    assert (caught.value.session, caught.value.seq) == ("parent", 1)
    assert [entry.json() for entry in me.open("parent").read(after=1)] == [said("two"), said("three")]


def test_a_missing_entry_is_never_skipped(me: Scope, damaged: pymysql.cursors.Cursor) -> None:
    damaged.execute(f"DELETE FROM entries WHERE segment = {PARENT} AND seq = 2")
    for session in ("parent", "fork"):
        for reverse in (False, True):
            with pytest.raises(Corrupt) as caught:
                me.open(session).read(reverse=reverse)
            assert caught.value.seq == 2
    for search in (me.by_ref, me.open("fork").by_ref):
        with pytest.raises(Corrupt):
            search("source:x")


def test_an_append_onto_a_head_that_lies_is_refused_as_damage(me: Scope, damaged: pymysql.cursors.Cursor) -> None:
    damaged.execute("UPDATE sessions SET head = 2 WHERE id = 'parent'")
    with pytest.raises(Corrupt, match="behind the head"):
        me.open("parent").append(said("more"))
