"""The Agents SDK's Session protocol on Segue: what goes in comes out, in order, exactly, once."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

import segue

pytest.importorskip("agents")

from agents import RunConfig, Runner, SessionSettings, set_tracing_disabled
from agents.memory import Session

from agents_sdk import Echo, agent, note, text_of, url_of
from segue.adapters.openai_agents import SegueCompactingSession, SegueSession

set_tracing_disabled(disabled=True)


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def me(request, tmp_path):
    with segue.open(url_of(request.param, tmp_path)) as db:
        yield db.scope("acme", "lin")


@pytest.fixture
def mine(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/store.db") as db:
        yield db.scope("acme", "lin")


def run(work):
    return asyncio.run(work)


def user(text):
    return {"role": "user", "content": text}


ODD = [
    {"z": 1, "a": {"y": None, "b": [True, 0.1, -7, 1e300]}, "role": "user", "content": "order of keys"},
    {"id": "__fake_id__", "type": "message", "role": "assistant", "content": [], "provider_data": {"model": "x"}},
    {"id": "__fake_id__", "type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "\\u0000"}'},
    {"type": "function_call_output", "call_id": "c", "output": "上海 😀 \u0000 \u2028 '; DROP TABLE x; --"},
    {"type": "something_new", "payload": {"deep": [[[{}]]]}},
    {"role": "user", "content": ""},
]


def test_it_is_a_session_by_the_sdks_own_protocol_and_not_compaction_aware(me):
    assert isinstance(SegueSession("a", me), Session)
    assert not hasattr(SegueSession("a", me), "run_compaction")
    assert callable(SegueCompactingSession("a", me, client=object()).run_compaction)


def test_items_come_back_as_they_were_key_order_and_all(me):
    async def go():
        await SegueSession("a", me).add_items(ODD)
        return await SegueSession("a", me).get_items()

    assert json.dumps(run(go())) == json.dumps(ODD)


def test_equal_ids_are_no_reason_to_drop_an_item(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([ODD[1], ODD[1]])
        await session.add_items([ODD[1]])
        return await session.get_items()

    assert run(go()) == [ODD[1]] * 3


@pytest.mark.parametrize(("limit", "expected"), [(None, 5), (2, 2), (5, 5), (9, 5), (0, 0), (-1, 0)])
def test_a_limit_is_the_newest_items_oldest_first(me, limit, expected):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user(str(n)) for n in range(5)])
        return await session.get_items(limit), await session.get_items(limit=limit)

    by_place, by_name = run(go())
    assert by_place == by_name == [user(str(n)) for n in range(5)][5 - expected :]


def test_the_settings_limit_holds_unless_the_call_says_otherwise(me):
    async def go():
        session = SegueSession("a", me, session_settings={"limit": 2})
        await session.add_items([user(str(n)) for n in range(5)])
        return await session.get_items(), await session.get_items(4)

    assert [len(items) for items in run(go())] == [2, 4]
    with pytest.raises(segue.Invalid, match="limitt"):
        SegueSession("a", me, session_settings={"limitt": 2})
    assert SegueSession("a", me, session_settings=SessionSettings(limit=3)).session_settings.limit == 3


def test_a_limit_passes_over_what_was_popped(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user(str(n)) for n in range(600)])
        for _ in range(3):
            await session.pop_item()
        await session.add_items([user("new")])
        return await session.get_items(3)

    assert [text_of(item) for item in run(go())] == ["595", "596", "new"]


def test_one_item_that_is_no_json_stores_nothing_of_the_batch_and_blocks_nobody(me):
    async def go():
        session = SegueSession("a", me)
        with pytest.raises(segue.Invalid):
            await session.add_items([user("fine"), object()])
        await SegueSession("a", me).add_items([user("other")])
        return await session.get_items()

    assert run(go()) == [user("other")]


def test_a_batch_over_the_stores_limit_is_stored_whole(mine):
    async def go():
        session = SegueSession("a", mine)
        await session.add_items([user(str(n)) for n in range(2_345)])
        return await session.get_items()

    assert [text_of(item) for item in run(go())] == [str(n) for n in range(2_345)]


def test_reading_makes_no_session(me):
    async def go():
        session = SegueSession("a", me)
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])

    run(go())
    assert me.list().sessions == ()


def test_popping_takes_back_the_newest_and_the_log_keeps_it(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user("1"), user("2")])
        popped = [await session.pop_item() for _ in range(3)]
        await session.add_items([user("3")])
        log = await (await session.stored()).read(kinds=("message",))
        return popped, await session.get_items(), [text_of(entry.json()) for entry in log]

    assert run(go()) == ([user("2"), user("1"), None], [user("3")], ["1", "2", "3"])


def test_of_many_who_pop_at_once_each_gets_another_item(mine):
    async def go():
        session = SegueSession("a", mine)
        await session.add_items([user(str(n)) for n in range(24)])
        popped = await asyncio.gather(*(SegueSession("a", mine).pop_item() for _ in range(32)))
        return popped, await session.get_items()

    popped, left = run(go())
    assert sorted(int(text_of(item)) for item in popped if item) == list(range(24))
    assert left == []


def test_clearing_takes_back_all_and_the_log_keeps_it(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user("1"), user("2")])
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items([user("3")])
        return await session.get_items(), len(await (await session.stored()).read(kinds=("message",)))

    assert run(go()) == ([user("3")], 3)


def test_what_an_erasing_session_pops_or_clears_is_gone_for_good(me):
    async def go():
        session = SegueSession("a", me, erase=True)
        await session.add_items([user("secret-1"), user("secret-2")])
        assert await session.pop_item() == user("secret-2")
        first = await (await session.stored()).read(kinds=("message",))
        await session.clear_session()
        await session.add_items([user("after")])
        last = await (await session.stored()).read(kinds=("message",))
        return [e.is_hollow for e in first], [e.is_hollow for e in last], await session.get_items()

    assert run(go()) == ([False, True], [True, True, False], [user("after")])


def test_a_closed_session_says_so_even_to_an_empty_batch(me):
    async def go():
        session = SegueSession("a", me)
        session.close()
        for call in (session.get_items(), session.add_items([]), session.pop_item(), session.clear_session()):
            with pytest.raises(RuntimeError, match="SegueSession is closed"):
                await call
        assert await SegueSession("a", me).get_items() == []  # the store is not its own

    run(go())


def test_closing_a_session_from_a_url_closes_its_store(tmp_path):
    session = SegueSession.from_url("a", f"sqlite:///{tmp_path}/own.db", user="lin")
    run(session.add_items([user("1")]))
    session.close()
    with segue.open(f"sqlite:///{tmp_path}/own.db") as db:
        assert run(SegueSession("a", db.scope(user="lin")).get_items()) == [user("1")]
    with pytest.raises(segue.Closed):
        session.scope.list()


def test_sessions_of_others_with_the_same_id_are_not_seen(mine, tmp_path):
    run(SegueSession("a", mine).add_items([user("mine")]))
    with segue.open(f"sqlite:///{tmp_path}/store.db") as db:
        assert run(SegueSession("a", db.scope("acme", "wang")).get_items()) == []


@pytest.mark.parametrize(
    "session_id", ["", "a:messages", "x" * 5_000, "two\nlines", "\ud800", "sha256:x", "上海", "'; --"]
)
def test_any_str_is_a_session_id_and_no_two_are_one(me, session_id):
    async def go():
        await SegueSession(session_id, me).add_items([user("1")])
        await SegueSession("a", me).add_items([user("2")])
        return await SegueSession(session_id, me).get_items()

    assert run(go()) == [user("1")]


def test_a_session_of_another_format_is_refused(me):
    me.create(key="a", format="anthropic")
    with pytest.raises(segue.Invalid, match="anthropic"):
        run(SegueSession("a", me).get_items())


def test_history_is_what_an_empty_session_starts_with(me):
    async def go():
        first = await SegueSession("a", me, history=[user("1")]).get_items()
        return first, await SegueSession("a", me, history=[user("other")]).get_items()

    assert run(go()) == ([user("1")], [user("1")])


def test_one_instance_works_in_two_loops_and_four_threads(mine):
    session = SegueSession("a", mine)
    run(session.add_items([user("0")]))
    run(session.add_items([user("1")]))
    threads = [threading.Thread(target=run, args=(session.add_items([user(str(n))]),)) for n in range(2, 6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(text_of(item) for item in run(session.get_items())) == list("012345")


def test_a_cancelled_write_is_settled_before_the_cancellation_goes_on(mine):
    async def go():
        session = SegueSession("a", mine)
        for n in range(50):
            writing = asyncio.create_task(session.add_items([user(str(n))]))
            for _ in range(n % 7):
                await asyncio.sleep(0)
            begun = n % 7 > 0
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            settled = len(await session.get_items())
            await asyncio.sleep(0)
            assert len(await session.get_items()) == settled
            assert settled == 0 or begun
            await session.clear_session()

    run(go())


def test_first_use_of_fresh_stores_by_many_writers_loses_nothing(tmp_path):
    async def go(n):
        with segue.open(f"sqlite:///{tmp_path}/fresh-{n}.db") as db:
            await asyncio.gather(*(SegueSession("a", db.scope()).add_items([user(str(w))]) for w in range(8)))
            return len(await SegueSession("a", db.scope()).get_items())

    assert [run(go(n)) for n in range(5)] == [8] * 5


def test_runs_remember_and_the_usage_of_each_answer_is_counted(me):
    async def go():
        model = Echo()
        session = SegueSession("a", me)
        await Runner.run(agent(model, note), "one call:1", session=session)
        await Runner.run(agent(model, note), "two", session=session)
        return await session.get_items(), (await session.stored()).info, model.seen[-1]

    items, _, seen = run(go())
    assert [item.get("type", item.get("role")) for item in items] == [
        "user", "function_call", "function_call_output", "message", "user", "message",
    ]  # fmt: skip
    assert len(seen) == 5
    assert me.get_key("a").info.usage[:2] == (30, 9)


def test_run_sync_and_run_are_one_conversation(mine):
    session = SegueSession("a", mine)
    loop = asyncio.new_event_loop()  # the SDK keeps the one that run_sync finds or makes
    asyncio.set_event_loop(loop)
    try:
        Runner.run_sync(agent(Echo()), "one", session=session)
        thread = threading.Thread(target=lambda: run(Runner.run(agent(Echo()), "two", session=session)))
        thread.start()
        thread.join()
        Runner.run_sync(agent(Echo()), "three", session=session)
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    assert [text_of(i) for i in run(session.get_items())] == ["one", "re: one", "two", "re: two", "three", "re: three"]


def test_the_callback_tells_the_briefing_once_and_it_is_kept_as_a_note(mine):
    async def go():
        model = Echo()
        session = SegueSession("a", mine)
        config = RunConfig(session_input_callback=session.input_callback())
        await Runner.run(agent(model), "one", session=session, run_config=config)
        (await session.stored()).sync.log.engine.store.shift_clock(18 * 3_600_000_000)
        for question in ("two", "three"):
            await Runner.run(agent(model), question, session=session, run_config=config)
        return await session.get_items(), await (await session.stored()).read(kinds=("note",)), model.seen

    items, notes, seen = run(go())
    assert len(notes) == 1
    assert notes[0].json()["facts"]
    assert [item.get("role") for item in items] == [
        "user", "assistant", "developer", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert seen[1] == items[:4]  # what the model saw is what is stored


def test_a_fork_starts_with_the_first_items_and_shares_the_cache_of_its_root(me):
    async def go():
        session = SegueSession("root", me)
        await session.add_items([user("1"), user("2"), user("3")])
        await session.pop_item()
        await session.add_items([user("4")])
        fork = await session.fork("branch", keep=2)
        await fork.add_items([user("5")])
        twig = await fork.fork("twig")
        keys = {await s.prompt_cache_key() for s in (session, fork, twig)}
        settings = await twig.model_settings()
        return await session.get_items(), await fork.get_items(), await twig.get_items(), keys, settings.extra_args

    root, branch, twig, keys, extra = run(go())
    assert [[text_of(i) for i in items] for items in (root, branch, twig)] == [list("124"), list("125"), list("125")]
    assert len(keys) == 1
    assert extra == {"prompt_cache_key": keys.pop()}


def test_the_key_is_the_one_that_the_sdk_makes_of_the_session_id(me):
    from agents.run_internal.prompt_cache_key import _prompt_cache_key_for_grouping

    assert run(SegueSession("root", me).prompt_cache_key()) == _prompt_cache_key_for_grouping("session", "root")


def test_a_fork_of_what_was_taken_back_later_does_not_show_it(me):
    async def go():
        session = SegueSession("root", me)
        await session.add_items([user("1"), user("2"), user("3")])
        await session.pop_item()
        await session.pop_item()
        await session.add_items([user("4")])
        await session.pop_item()
        fork = await session.fork("branch")
        short = await session.fork("short", keep=1)
        return await fork.get_items(), await short.get_items()

    assert run(go()) == ([user("1")], [user("1")])


def test_a_fork_name_that_is_taken_is_refused_before_anything_is_written(me):
    async def go():
        session = SegueSession("root", me)
        await session.add_items([user("1")])
        await session.fork("branch")
        with pytest.raises(segue.Exists):
            await session.fork("branch")
        with pytest.raises(segue.Invalid):
            await session.fork("other", keep=7)

    run(go())
    assert len(me.list().sessions) == 2


def test_popping_a_forks_inherited_item_leaves_the_parent_alone(me):
    async def go():
        session = SegueSession("root", me, erase=True)
        await session.add_items([user("1"), user("2")])
        fork = await session.fork("branch")
        assert await fork.pop_item() == user("2")
        await fork.clear_session()
        return await session.get_items(), await fork.get_items()

    assert run(go()) == ([user("1"), user("2")], [])
