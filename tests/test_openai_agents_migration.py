"""What the Agents SDK's own session classes have kept is taken over whole, and only read."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3

import pytest

import segue

pytest.importorskip("agents")

from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, EncryptedSession

from agents_sdk import text_of
from segue.adapters.openai_agents import SegueSession, migrate_file, migrate_session


@pytest.fixture
def me(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/segue.db") as db:
        yield db.scope("acme", "lin")


def user(text):
    return {"role": "user", "content": text}


def fill(path, **sessions):
    async def go():
        for session_id, items in sessions.items():
            session = SQLiteSession(session_id, path)
            await session.add_items(items)
            session.close()

    asyncio.run(go())


def items(me, session_id):
    return asyncio.run(SegueSession(session_id, me).get_items())


def test_all_sessions_of_a_file_are_taken_over_and_the_file_is_not_touched(me, tmp_path):
    path = tmp_path / "old.db"
    odd = {"z": 1, "a": "上海", "role": "user", "content": ""}
    fill(path, one=[user("1"), odd], two=[user(str(n)) for n in range(2_100)])
    before = hashlib.sha256(path.read_bytes()).digest()
    done = migrate_file(path, me)
    assert done.sessions == ("one", "two")
    assert done.items == 2_102
    assert done.damaged == done.skipped == ()
    assert items(me, "one")[1] == odd
    assert [text_of(item) for item in items(me, "two")] == [str(n) for n in range(2_100)]
    assert hashlib.sha256(path.read_bytes()).digest() == before
    entry = me.get_key("one").read()[0]
    assert entry.occurred_at is not None
    assert entry.origin == "import"


def test_a_second_migration_stores_only_what_is_new(me, tmp_path):
    fill(tmp_path / "old.db", one=[user("1")])
    migrate_file(tmp_path / "old.db", me)
    fill(tmp_path / "old.db", one=[user("2")])
    assert migrate_file(tmp_path / "old.db", me).items == 1
    assert migrate_file(tmp_path / "old.db", me).items == 0
    assert items(me, "one") == [user("1"), user("2")]


def test_a_row_that_is_no_json_is_kept_and_told(me, tmp_path):
    fill(tmp_path / "old.db", one=[user("1"), user("2")])
    with sqlite3.connect(tmp_path / "old.db") as file:
        file.execute("UPDATE agent_messages SET message_data = '{torn' WHERE id = 1")
    file.close()
    assert migrate_file(tmp_path / "old.db", me).damaged == (("one", 1),)
    assert items(me, "one") == [user("2")]
    assert me.get_key("one").read()[0].body == b"{torn"


def test_branches_become_forks_that_share_what_they_have_in_common(me, tmp_path):
    async def go():
        session = AdvancedSQLiteSession(session_id="one", db_path=tmp_path / "old.db", create_tables=True)
        for n in range(3):
            await session.add_items([user(f"q{n}"), {"role": "assistant", "content": f"a{n}"}])
        await session.create_branch_from_turn(2, "other")
        await session.add_items([user("else"), {"role": "assistant", "content": "well"}])
        mains = await session.get_items(branch_id="main"), await session.get_items(branch_id="other")
        session.close()
        return mains

    main, other = asyncio.run(go())
    done = migrate_file(tmp_path / "old.db", me)
    assert set(done.sessions) == {"one", "one@other"}
    assert items(me, "one") == main
    assert items(me, "one@other") == other
    fork = me.get_key("one@other").info
    assert (fork.parent.session, fork.base) == (me.get_key("one").id, 2)
    assert migrate_file(tmp_path / "old.db", me).items == 0


def test_encrypted_sessions_are_left_out_of_a_file_and_taken_over_with_their_key(me, tmp_path):
    async def go():
        below = SQLiteSession("one", tmp_path / "old.db")
        old = EncryptedSession("one", below, "a key of thirty-two characters!!", ttl=600)
        await old.add_items([user("1"), user("2")])
        done = migrate_file(tmp_path / "old.db", me)
        target = SegueSession("one", me)
        first, second = await migrate_session(old, target), await migrate_session(old, target)
        below.close()
        return done, first, second, await target.get_items()

    done, first, second, found = asyncio.run(go())
    assert done.sessions == ()
    assert "encrypted" in done.skipped[0][1]
    assert (first, second) == (2, 0)
    assert found == [user("1"), user("2")]


def test_what_is_no_file_of_the_sdk_is_refused(me, tmp_path):
    with pytest.raises(segue.NotFound):
        migrate_file(tmp_path / "nothing.db", me)
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(segue.Invalid, match="no sessions"):
        migrate_file(tmp_path / "empty.db", me)
    with pytest.raises(segue.Invalid, match="no name"):
        migrate_file(tmp_path / "empty.db", me, messages_table="x; DROP TABLE y")
