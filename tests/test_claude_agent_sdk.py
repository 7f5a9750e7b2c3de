"""The store of the Claude Agent SDK: its protocol on every store, late writers, ends, and what lines survive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import uuid
from datetime import timedelta

import pytest

pytest.importorskip("claude_agent_sdk", reason="the extra claude-agent-sdk is not installed")

import claude_agent_sdk as sdk
from claude_agent_sdk.testing import run_session_store_conformance

import segue
import servers
from segue.adapters.claude_agent_sdk import SegueSessionStore
from segue.adapters.claude_agent_sdk.mirror import FORKED, TURN
from segue.adapters.claude_agent_sdk.place import Place

KEY = {"project_key": "-srv-app", "session_id": "11111111-1111-4111-8111-111111111111"}
SUB = {**KEY, "subpath": "subagents/agent-1"}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def line(uuid_, parent=None, **more):
    """A line of a conversation, as the CLI writes it."""
    told = {"parentUuid": parent, "type": "user", "uuid": uuid_, "sessionId": KEY["session_id"]}
    return {**told, "message": {"role": "user", "content": f"text of {uuid_}"}, **more}


@contextlib.contextmanager
def opened(kind, tmp_path):
    with contextlib.ExitStack() as stack:
        urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/store.db", "jsonl": f"jsonl:{tmp_path}/store"}
        url = urls.get(kind) or stack.enter_context(servers.database(kind))
        yield stack.enter_context(segue.open(url))


@pytest.fixture
def db(tmp_path):
    with opened("sqlite", tmp_path) as db:
        yield db


@pytest.fixture
def store(db):
    return SegueSessionStore(db.scope())


@pytest.fixture
def other(db):
    """Another machine: a second store object on the same database."""
    return SegueSessionStore(db.scope())


@pytest.mark.parametrize(
    "kind", ["memory", "sqlite", "jsonl", pytest.param("postgres", marks=[pytest.mark.server, pytest.mark.slow])]
)
def test_the_vendors_contracts_hold(kind, tmp_path):
    with opened(kind, tmp_path) as db:
        users = iter(range(1_000))
        run(run_session_store_conformance(lambda: SegueSessionStore(db.scope(user=f"u{next(users)}"))))


# Lines


def test_lines_come_back_equal_with_their_keys_in_order(store):
    """claude-code#56064 (half an emoji), claude-code-trace#10 (unknown types)."""
    lines = [
        {"type": "user", "uuid": "1", "z": 1, "a": {"c": [2**70, -0.0, 1.0, True, None], "b": "\x00 é 😀"}},
        {"type": "user", "uuid": "2", "text": "cut in an emoji: \ud83d", "other half": "\ude00"},
        {"type": "user", "uuid": "3", "deep": json.loads("[" * 300 + "]" * 300)},
        {"type": "user", "uuid": "4", "huge": int("9" * 2_000)},
        {"type": "mode", "mode": "plan"},
        {"type": "never seen before", "uuid": "5"},
    ]

    async def main():
        await store.append(KEY, lines)
        return await store.load(KEY)

    assert json.dumps(run(main())) == json.dumps(lines)


def test_not_a_number_comes_back(store):
    async def main():
        await store.append(KEY, [{"type": "user", "uuid": "1", "value": math.nan}])
        return (await store.load(KEY))[0]["value"]

    assert math.isnan(run(main()))


def test_a_line_over_the_size_of_an_entry_comes_back_and_is_stored_once(store):
    big = line("big", "1", text="é" * 5_000_000)

    async def main():
        await store.append(KEY, [line("1"), big])
        await store.append(KEY, [big, line("2", "big")])
        return await store.load(KEY)

    assert run(main()) == [line("1"), big, line("2", "big")]


def test_a_uuid_that_comes_again_with_other_content_keeps_the_first_and_records_the_other(store):
    async def main():
        await store.append(KEY, [line("1"), line("2", "1")])
        for _ in range(2):
            await store.append(KEY, [line("2", "1", text="other"), line("3", "2")])
        return await store.load(KEY)

    assert run(main()) == [line("1"), line("2", "1"), line("3", "2")]
    (session,) = store.scope.iterate()
    (kept,) = store.scope.open(session.id).read(kinds=["claude.mismatch"])
    assert kept.json()["text"] == "other"


def test_what_is_no_json_is_refused_whole(store):
    async def main():
        with pytest.raises(segue.Invalid, match="nothing of the append"):
            await store.append(KEY, [line("1"), {"type": "user", "value": object()}])
        return await store.load(KEY)

    assert run(main()) is None


def test_tokens_of_a_message_that_is_several_lines_are_counted_once(store):
    """dms-claudecode#52."""

    def answer(n, output):
        usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": output}
        return line(f"a{n}", type="assistant", message={"id": "msg_1", "role": "assistant", "usage": usage})

    async def main():
        await store.append(KEY, [answer(1, 3), answer(2, 3)])
        await store.append(KEY, [answer(3, 8)])

    run(main())
    (session,) = store.scope.iterate()
    assert session.usage == segue.Usage(input=15, output=8, cache_read=5)


def test_an_erased_line_is_left_out_and_its_text_leaves_the_summary(store):
    async def main():
        await store.append(KEY, [line("1"), line("2", "1")])
        (info,) = store.scope.iterate()
        store.scope.open(info.id).hollow(1)
        fresh = SegueSessionStore(store.scope)
        return await fresh.load(KEY), await fresh.list_session_summaries(KEY["project_key"])

    loaded, (summary,) = run(main())
    assert loaded == [line("2", "1")]
    assert "text of 1" not in json.dumps(summary)


def test_ids_that_look_alike_are_never_mixed():
    parts = [
        "a",
        "a/b",
        "a%2Fb",
        "..",
        "A",
        "é",
        "e\u0301",
        "项目",
        "暂存",
        "x" * 300,
        "x" * 301,
        "nul\x00",
        "\ud83d",
        "",
    ]
    places = [Place(p, s) for p in parts for s in parts] + [
        Place(p, s, t) for p in parts for s in parts for t in parts if t
    ]
    assert len({place.key for place in places}) == len(places)
    assert all(len(place.key.encode()) <= 255 for place in places)


# Lists


def test_summaries_equal_the_fold_of_all_lines_whatever_they_are(store, other):
    rng = random.Random(7)

    def any_line(n):
        made = line(f"u{n}", str(n), type=rng.choice(["user", "assistant", "tag", "custom-title", "summary"]))
        for name in ("customTitle", "aiTitle", "lastPrompt", "summary", "gitBranch", "cwd", "tag"):
            if rng.random() < 0.2:
                made[name] = rng.choice([f"{name} {n}", "", None, 3])
        if rng.random() < 0.5:
            made["timestamp"] = rng.choice(["2026-01-01T00:00:00Z", "never", "2026-02-01T00:00:00.000Z"])
        content = [f"plain {n}", "<command-name>/x</command-name>", [{"type": "tool_result", "text": "no"}]]
        made["message"]["content"] = rng.choice([*content, [{"type": "text", "text": f"block {n}"}], []])
        made["isMeta"] = rng.random() < 0.5
        del made["parentUuid"]  # lines of no conversation: two machines may write them in turns
        return made

    async def main():
        n = 0
        for _ in range(60):
            batch = [any_line(n := n + 1) for _ in range(rng.randint(1, 5))]
            await rng.choice([store, other]).append(KEY, batch)
            (found,) = await rng.choice([store, other]).list_session_summaries(KEY["project_key"])
            assert found["data"] == sdk.fold_session_summary(None, KEY, await store.load(KEY))["data"]

    run(main())


def test_a_listed_session_can_be_loaded_and_a_loaded_one_is_listed(store, db):
    """claude-code#86369, #86730: list, load and the end agree."""

    async def main():
        ids = [str(uuid.uuid4()) for _ in range(20)]
        for id in ids:
            await store.append({**KEY, "session_id": id}, [{"type": "system", "uuid": "1"}])
        await store.delete({**KEY, "session_id": ids[0]})
        await store.hop(lambda: store.mirror.make(Place(KEY["project_key"], str(uuid.uuid4()))))  # begun, no line yet
        infos = {info.metadata["claude"]["session"]: info.id for info in store.scope.iterate()}
        store.scope.open(infos[ids[1]]).archive()
        listed = {one["session_id"] for one in await store.list_sessions(KEY["project_key"])}
        assert listed == {one["session_id"] for one in await store.list_session_summaries(KEY["project_key"])}
        with pytest.raises(segue.Archived):
            await store.load({**KEY, "session_id": ids[1]})
        assert await store.load({**KEY, "session_id": ids[0]}) is None
        return listed, set(ids[2:])

    listed, living = run(main())
    assert listed == living


def test_subagents_are_children_that_no_list_shows(store):
    """claude-code#78171, #23373: they are apart from the session, which loads without them."""

    async def main():
        await store.append(KEY, [line("1")])
        for n in range(30):
            await store.append({**KEY, "subpath": f"subagents/agent-{n}"}, [line("1", isSidechain=True)])
        return await store.load(KEY), await store.list_sessions(KEY["project_key"]), await store.list_subkeys(KEY)

    loaded, listed, subkeys = run(main())
    assert loaded == [line("1")]
    assert [one["session_id"] for one in listed] == [KEY["session_id"]]
    assert len(subkeys) == 30
    (main_,) = store.scope.iterate()
    children = [info for info in store.scope.iterate(unlisted=True) if info.id != main_.id]
    assert {child.parent.session for child in children} == {main_.id}


def test_each_user_has_sessions_of_their_own(db):
    """openclaw-claude-code-plugin#6: the same key of another user is another session."""

    async def main():
        lin, wei = SegueSessionStore(db.scope(user="lin")), SegueSessionStore(db.scope(user="wei"))
        await lin.append(KEY, [line("lin's")])
        assert await wei.load(KEY) is None
        assert await wei.list_sessions(KEY["project_key"]) == []
        await wei.delete(KEY)
        return await lin.load(KEY)

    assert run(main()) == [line("lin's")]


def test_a_session_is_named_by_its_first_prompt_and_by_the_sdks_title(store):
    async def main():
        await store.append(KEY, [{"type": "mode"}, line("1")])
        first = [info.title for info in store.scope.iterate()]
        await sdk.rename_session_via_store(store, KEY["session_id"], "August sales", directory="/srv/app")
        return first, [info.title for info in store.scope.iterate()]

    assert run(main()) == (["text of 1"], ["August sales"])


def test_two_directories_that_the_sdk_gives_one_key_are_kept_apart_by_a_project(db):
    """claude-code#70674: every path of six Chinese characters has one key."""
    names = ["/项目/新聞", "/项目/暫存"]
    assert len({sdk.project_key_for_directory(name) for name in names}) == 1

    async def main():
        stores = [SegueSessionStore(db.scope(), project=name) for name in names]
        for store in stores:
            await store.append(KEY, [line(store.project)])
        return [await store.load(KEY) for store in stores]

    assert run(main()) == [[line(name)] for name in names]


# Late writers


async def conversation(store, *uuids, parent=None, key=KEY):
    for one in uuids:
        await store.append(key, [line(one, parent)])
        parent = one


def test_a_late_writer_goes_on_in_a_fork_of_what_it_had_seen(store, db):
    """claude-code#87525: neither writer is refused, none is interleaved, and it is reported."""
    forks = []
    late = SegueSessionStore(db.scope(), on_fork=forks.append)

    async def main():
        await conversation(store, "1", "2")
        await late.load(KEY)
        await store.load(KEY)
        await conversation(store, "3", parent="2")
        await conversation(late, "x", "y", parent="2")
        await conversation(store, "4", parent="3")
        fork_key = {**KEY, "session_id": forks[0].fork_id}
        return await store.load(KEY), await store.load(fork_key)

    original, fork = run(main())
    assert [one["uuid"] for one in original] == ["1", "2", "3", "4"]
    assert [one["uuid"] for one in fork] == ["1", "2", "x", "y"]
    assert {one["sessionId"] for one in fork} == {forks[0].fork_id}
    assert len(forks) == 1
    session = store.scope.open(next(info.id for info in store.scope.iterate() if info.base == 0))
    (noted,) = session.read(kinds=[FORKED])
    assert noted.json()["fork_id"] == forks[0].fork_id


def test_two_requests_in_one_process_on_one_store_object_are_two_writers(store):
    """Each has the head that its own context has read."""

    async def request(name, read, go):
        await store.load(KEY)
        read.set()
        await go.wait()
        await asyncio.create_task(conversation(store, f"{name}1", f"{name}2", parent="1"))  # the SDK's own task

    async def main():
        await conversation(store, "1")
        reads, go = [asyncio.Event(), asyncio.Event()], asyncio.Event()
        tasks = [asyncio.create_task(request(n, r, go)) for n, r in zip("ab", reads, strict=True)]
        await asyncio.gather(*(read.wait() for read in reads))
        go.set()
        await asyncio.gather(*tasks)
        listed = await store.list_sessions(KEY["project_key"])
        return sorted([[e["uuid"] for e in await store.load({**KEY, "session_id": s["session_id"]})] for s in listed])

    assert run(main()) == [["1", "a1", "a2"], ["1", "b1", "b2"]]


def test_a_title_set_meanwhile_makes_nobody_late(store, other):
    async def main():
        await conversation(store, "1")
        await store.load(KEY)
        await sdk.rename_session_via_store(other, KEY["session_id"], "New title", directory="/srv/app")
        await conversation(store, "2", parent="1")
        return [one.get("uuid") for one in await store.load(KEY) if "parentUuid" in one]

    assert run(main()) == ["1", "2"]


def test_going_on_from_an_earlier_line_is_no_lateness(store, other):
    """resume_session_at without a fork: a branch in the same session; claude-code#24471: nothing of it is lost."""

    async def main():
        await conversation(store, "1", "2", "3")
        await other.load(KEY)
        await conversation(other, "2b", "3b", parent="1")
        return [one["uuid"] for one in await store.load(KEY)], len(list(store.scope.iterate()))

    assert run(main()) == (["1", "2", "3", "2b", "3b"], 1)


def test_a_second_conversation_under_a_taken_id_becomes_a_session_of_its_own(store, db):
    forks = []
    second = SegueSessionStore(db.scope(), on_fork=forks.append)

    async def main():
        await conversation(store, "1", "2")
        await second.append(KEY, [{"type": "queue-operation"}])  # what the CLI writes before the first question
        await conversation(second, "x", "y")
        return await store.load({**KEY, "session_id": forks[0].fork_id})

    assert [one["uuid"] for one in run(main())] == ["x", "y"]
    assert forks[0].at == 0


def test_the_same_import_twice_is_no_second_conversation(store, other):
    async def main():
        for one in (store, other, other):
            await one.append(KEY, [line("1"), line("2", "1")])
        return await store.load(KEY), len(list(store.scope.iterate()))

    assert run(main()) == ([line("1"), line("2", "1")], 1)


def test_who_has_not_seen_that_a_turn_began_is_late(store, other):
    async def main():
        await conversation(store, "1")
        await other.load(KEY)
        (info,) = store.scope.iterate()
        session = store.scope.open(info.id)
        with session.run() as run_:
            run_.append({"run": run_.id}, kind=TURN, format="segue", origin="system")
        await conversation(other, "x", parent="1")
        return [one["uuid"] for one in await store.load(KEY)]

    assert run(main()) == ["1"]


def test_who_reads_a_session_while_a_turn_holds_it_is_late(store, other):
    options = sdk.ClaudeAgentOptions(cwd="/srv/app", resume=KEY["session_id"])

    async def main():
        await conversation(store, "1")
        async with store.turn(options, hooks=False):
            await other.load(KEY)
            await conversation(other, "x", parent="1")
            await conversation(store, "2", parent="1")
        return [one["uuid"] for one in await store.load(KEY)]

    assert run(main()) == ["1", "2"]


def test_what_a_turn_writes_after_its_end_is_kept_in_the_session(store):
    options = sdk.ClaudeAgentOptions(cwd="/srv/app", resume=KEY["session_id"])

    async def main():
        await conversation(store, "1")
        async with store.turn(options, hooks=False):
            await conversation(store, "2", parent="1")
        await conversation(store, "3", parent="2")
        return [one["uuid"] for one in await store.load(KEY)], len(list(store.scope.iterate()))

    assert run(main()) == (["1", "2", "3"], 1)


def test_a_turn_never_takes_an_old_session_for_a_new_one(store):
    """claude-code#87193: to begin and to go on are two things."""

    async def main():
        await conversation(store, "1")
        with pytest.raises(segue.Exists):
            async with store.turn(sdk.ClaudeAgentOptions(cwd="/srv/app", session_id=KEY["session_id"])):
                pass
        with pytest.raises(segue.NotFound):
            async with store.turn(sdk.ClaudeAgentOptions(cwd="/srv/app", resume=str(uuid.uuid4()))):
                pass

    run(main())


# Ends


def test_a_deleted_session_stays_deleted_while_its_writer_lives(store, other):
    async def main():
        await conversation(store, "1")
        await other.load(KEY)
        await store.delete(KEY)
        with pytest.raises(segue.NotFound):
            await conversation(other, "2", parent="1")
        return await store.load(KEY), list(store.scope.iterate())

    assert run(main()) == (None, [])


def test_what_comes_after_a_session_was_archived_is_kept_in_a_fork(store):
    async def main():
        await conversation(store, "1")
        (info,) = store.scope.iterate()
        store.scope.open(info.id).archive()
        await conversation(store, "2", parent="1")
        (fork,) = await store.list_sessions(KEY["project_key"])
        return [one["uuid"] for one in await store.load({**KEY, "session_id": fork["session_id"]})]

    assert run(main()) == ["1", "2"]


def test_nothing_expires_by_itself_and_a_lifetime_counts_from_the_last_line(store, db):
    """claude-code#90866, #90371."""

    async def main():
        await conversation(store, "1")
        db.engine.store.shift_clock(400 * 24 * 3600 * 1_000_000)
        assert db.sweep() == ((), ())
        (info,) = store.scope.iterate()
        store.scope.open(info.id).update(idle=timedelta(days=30))
        await conversation(store, "2", parent="1")
        db.engine.store.shift_clock(29 * 24 * 3600 * 1_000_000)
        assert db.sweep().archived == ()
        await store.load(KEY)  # reading is no activity
        db.engine.store.shift_clock(2 * 24 * 3600 * 1_000_000)
        assert len(db.sweep().archived) == 1

    run(main())


# Forks by Segue


def test_a_fork_by_segue_is_listed_and_resumed_as_a_session_of_its_own(store, other):
    async def main():
        await conversation(store, "1", "2", "3")
        await store.append(SUB, [line("s", isSidechain=True)])
        (info,) = store.scope.iterate()
        fork = store.scope.open(info.id).fork(at=2)
        id = str(uuid.UUID(hex=fork.id))
        key = {**KEY, "session_id": id}
        assert {one["session_id"] for one in await other.list_sessions(KEY["project_key"])} == {id, KEY["session_id"]}
        loaded = await other.load(key)
        await conversation(other, "x", parent="2", key=key)
        found = {one["session_id"]: one["data"] for one in await store.list_session_summaries(KEY["project_key"])}
        assert found[id] == sdk.fold_session_summary(None, key, await other.load(key))["data"]
        return loaded, await other.load(key), await other.list_subkeys(key), await store.load(KEY), id

    loaded, after, subkeys, original, id = run(main())
    assert loaded == [line("1", sessionId=id), line("2", "1", sessionId=id)]
    assert [one["uuid"] for one in after] == ["1", "2", "x"]
    assert subkeys == [SUB["subpath"]]
    assert [one["uuid"] for one in original] == ["1", "2", "3"]


def test_a_compacted_session_with_dangling_parents_comes_back_whole(store):
    """claude-code#46603, #40027: links to lines that were never written break nothing."""
    lines = [
        line("1", "never written"),
        line("c", None, type="system", subtype="compact_boundary", logicalParentUuid="of a deleted session"),
        line("s", "c", isCompactSummary=True),
    ]

    async def main():
        for one in lines:
            await store.append(KEY, [one])
        return await store.load(KEY), len(list(store.scope.iterate()))

    assert run(main()) == (lines, 1)
