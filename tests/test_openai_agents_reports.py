"""What users have reported of the Agents SDK's sessions, tried on Segue's. Numbers are the SDK's issues."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from importlib.metadata import version
from types import SimpleNamespace

import pytest

import segue

pytest.importorskip("agents")

from agents import RunConfig, Runner, SessionSettings, SQLiteSession, set_tracing_disabled
from agents.extensions.memory import EncryptedSession

from agents_sdk import Echo, agent, note, text_of
from segue.adapters.openai_agents import SegueCompactingSession, SegueSession

set_tracing_disabled(disabled=True)

VERSION = tuple(int(part) for part in version("openai-agents").split(".")[:2])
CALL = {"type": "function_call", "call_id": "c1", "name": "note", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


@pytest.fixture
def me(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/store.db") as db:
        yield db.scope("acme", "lin")


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


@pytest.mark.parametrize("callback", [False, True])
def test_4322_a_limit_gives_exactly_so_many_items_and_the_model_no_half_pair(me, callback):
    async def go():
        model, session = Echo(), SegueSession("a", me, session_settings=SessionSettings(limit=2))
        await session.add_items([user("q"), CALL, OUTPUT, said("a")])
        stored = await session.get_items()
        config = RunConfig(session_input_callback=session.input_callback() if callback else None)
        await Runner.run(agent(model), "next", session=session, run_config=config)
        return stored, model.seen[0]

    stored, seen = asyncio.run(go())
    assert stored == [OUTPUT, said("a")]
    assert [item.get("type", item.get("role")) for item in seen] == ["message", "user"]


def test_1900_items_of_one_moment_come_in_the_order_they_were_stored_in(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user(str(n)) for n in range(1_000)])
        return [[text_of(item) for item in await session.get_items()] for _ in range(10)]

    assert all(texts == [str(n) for n in range(1_000)] for texts in asyncio.run(go()))


def test_3755_popping_and_clearing_a_branch_leaves_the_other_and_no_phantom_rows(me):
    async def go():
        session = SegueSession("a", me)
        await Runner.run(agent(Echo()), "one", session=session)
        fork = await session.fork("b")
        while await fork.pop_item():
            pass
        await fork.clear_session()
        return await session.get_items(), await fork.get_items()

    main, branch = asyncio.run(go())
    assert [text_of(item) for item in main] == ["one", "re: one"]
    assert branch == []
    assert me.get_key("b").info.usage == segue.Usage()
    assert me.get_key("a").info.usage.input == 10


class Client:
    """OpenAI's compaction as the SDK calls it."""

    def __init__(self, during=None):
        self.responses = self
        self.during = during

    async def compact(self, **options):
        if self.during is not None:
            await self.during()
        return SimpleNamespace(output=[{"type": "compaction", "id": "cmp", "encrypted_content": "short"}], usage=None)


@pytest.mark.skipif(VERSION < (0, 23), reason="the Runner of openai-agents 0.22 compacts by itself in fewer cases")
def test_a_compacting_session_compacts_by_itself_and_the_log_keeps_all(me):
    async def go():
        session = SegueCompactingSession(
            "a", me, client=Client(), should_trigger_compaction=lambda c: len(c["compaction_candidate_items"]) >= 4
        )
        model = Echo()

        class Responding(Echo):
            async def get_response(self, *args, **kwargs):
                response = await super().get_response(*args, **kwargs)
                response.response_id = "resp_1"
                return response

        model = Responding()
        for n in range(5):
            await Runner.run(agent(model), f"q{n}", session=session)
        log = await (await session.stored()).read(kinds=("message",))
        return await session.get_items(), [entry.json() for entry in log]

    items, log = asyncio.run(go())
    assert items[0]["type"] == "compaction"
    assert [text_of(item) for item in items[1:]] == ["q4", "re: q4"]
    assert [text_of(item) for item in log if item.get("role") == "user"] == [f"q{n}" for n in range(5)]


def test_a_fork_of_a_compacting_session_compacts_with_the_same_client(me):
    async def go():
        session = SegueCompactingSession("a", me, client=Client())
        await session.add_items([user("q"), said("a")])
        fork = await session.fork("b")
        await fork.run_compaction({"force": True})
        return len(await session.get_items()), [item["type"] for item in await fork.get_items()]

    assert asyncio.run(go()) == (2, ["compaction"])


def test_3116_when_a_compaction_fails_at_the_store_the_history_is_intact(me, monkeypatch):
    async def go():
        session = SegueCompactingSession("a", me, client=Client())
        await session.add_items([user("q"), said("a")])
        real = segue.AsyncSession.append

        async def full(self, *entries, **options):
            raise segue.DiskFull("no space is left")

        monkeypatch.setattr(segue.AsyncSession, "append", full)
        with pytest.raises(segue.DiskFull):
            await session.run_compaction({"force": True})
        monkeypatch.setattr(segue.AsyncSession, "append", real)
        return await session.get_items()

    assert asyncio.run(go()) == [user("q"), said("a")]


def test_5010_a_compaction_of_the_window_keeps_what_is_outside_of_it(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user("old"), said("older answer"), user("q"), said("a")])
        snapshot = await session._get_compaction_snapshot(2)
        assert not snapshot.complete
        assert await snapshot.replace_suffix(0, [user("summary")])
        first = await session.get_items()
        whole = await session._get_compaction_snapshot(10)
        await session.add_items([user("meanwhile")])
        assert not await whole.replace_suffix(0, [user("stale")])
        return first, await session.get_items()

    first, last = asyncio.run(go())
    assert first == [user("old"), said("older answer"), user("summary")]
    assert last == [*first, user("meanwhile")]


def test_js_1241_a_call_that_was_stored_and_never_executed_leaves_the_conversation_usable(me):
    async def go():
        session, model = SegueSession("a", me), Echo()
        await session.add_items([user("q"), CALL])
        async with session.turn(briefing=False):
            await Runner.run(agent(model), "next", session=session)
        return model.seen[0], await session.get_items()

    seen, items = asyncio.run(go())
    assert [item.get("type", item.get("role")) for item in seen] == [
        "user",
        "function_call",
        "function_call_output",
        "user",
    ]
    assert len(items) == 5


@pytest.mark.parametrize(("key", "expired"), [("right", True), ("wrong", False), ("wrong", True)])
def test_5005_and_5080_whatever_an_encrypted_pop_does_the_log_loses_nothing(me, key, expired, monkeypatch):
    async def go():
        session = SegueSession("a", me)
        await EncryptedSession("a", session, "right" * 8, ttl=10).add_items([user("1"), user("2")])
        if expired:
            now = time.time() + 60
            monkeypatch.setattr(time, "time", lambda: now)
        with contextlib.suppress(Exception):  # how it tells is the SDK's matter
            await EncryptedSession("a", session, key * 8, ttl=10).pop_item()
        monkeypatch.undo()
        log = await (await session.stored()).read(kinds=("message",))
        return [entry.is_hollow for entry in log][:2]

    assert asyncio.run(go()) == [False, False]


def test_1953_many_threads_append_to_one_session_and_nothing_is_lost(me):
    session = SegueSession("a", me)

    def work(name):
        async def go():
            for n in range(50):
                await session.add_items([user(f"{name}.{n}")])

        asyncio.run(go())

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    texts = [text_of(item) for item in asyncio.run(session.get_items())]
    assert len(texts) == len(set(texts)) == 800
    assert [entry.seq for entry in me.get_key("a").read()] == list(range(1, 801))


def test_4827_an_orphan_left_by_an_abandoned_approval_is_answered_in_the_log(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user("q"), CALL])
        async with session.turn(briefing=False):
            return await session.get_items()

    assert [item.get("type", "user") for item in asyncio.run(go())] == ["user", "function_call", "function_call_output"]


@pytest.mark.slow
def test_a_window_or_a_cut_makes_a_session_of_16_000_items_ten_times_faster_than_sqlite_without(me, tmp_path):
    many = [user(f"q{n}" + "x" * 300) if n % 2 == 0 else said(f"a{n}" + "x" * 300) for n in range(16_000)]

    async def took(session):
        best = 1e9
        for n in range(3):
            began = time.perf_counter()
            await Runner.run(agent(Echo(), note), f"again {n}", session=session)
            best = min(best, time.perf_counter() - began)
        return best

    async def go():
        own = SQLiteSession("a", tmp_path / "own.db")
        await own.add_items(many)
        unlimited = await took(own)
        own.close()
        await SegueSession("a", me).add_items(many)
        window = await took(SegueSession("a", me, session_settings={"limit": 50}))
        stored = await SegueSession("a", me).stored()
        body = {"upto": (await stored.refresh()).head - 20, "summary": None, "reason": "budget"}
        await stored.append(body, kind="cut", format="segue", refs=("cut",))
        return unlimited / window, unlimited / await took(SegueSession("a", me))

    window, cut = asyncio.run(go())
    assert window >= 10
    assert cut >= 10
