"""Runs of the Agents SDK that wait for a person, and runs that are killed: once, and nothing silent."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import segue

pytest.importorskip("agents")

from agents import Runner, set_tracing_disabled

from agents_sdk import Echo, agent, text_of, url_of
from agents_worker import tool
from segue.adapters.openai_agents import (
    CallStarted,
    SegueHooks,
    SegueSession,
    StateExpired,
    StateMissing,
    StateStale,
    StateTaken,
)

set_tracing_disabled(disabled=True)

WORKER = Path(__file__).parent / "agents_worker.py"
KILLS = 200 if os.environ.get("SEGUE_TORTURE") else 12


@pytest.fixture(params=["memory", "sqlite"])
def me(request, tmp_path):
    with segue.open(url_of(request.param, tmp_path)) as db:
        yield db.scope("acme", "lin")


class Nursery:
    """A process that has imported the SDK and forks children that may be killed."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, *line):
        print(*line, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def hear(self):
        return self.process.stdout.readline().strip()

    def wait(self):
        """What the child said until it was gone."""
        print(file=self.process.stdin, flush=True)
        said = []
        while (line := self.hear()) != "gone":
            said.append(line)
        return said


@pytest.fixture
def nursery():
    made = Nursery()
    yield made
    made.process.stdin.close()
    made.process.wait(60)
    made.process.stdout.close()


def payer(log, **options):
    return agent(Echo(tool="pay"), tool(log, needs_approval=True, **options))


async def ask(session, log):
    """A run that stops for the approval of one payment, in a turn; the id of its state."""
    async with session.turn(briefing=False):
        result = await Runner.run(payer(log), "q call:1", session=session)
        assert result.interruptions
        return await session.save_state(result.to_state())


async def approve_and_run(session, log, id=None, **options):
    who = payer(log)
    async with session.resume_state(who, id, **options) as state:
        for waiting in state.get_interruptions():
            state.approve(waiting)
        return (await Runner.run(who, state, session=session, hooks=SegueHooks(session))).final_output


def test_an_approved_run_goes_on_where_it_stopped(me, tmp_path):
    async def go():
        session = SegueSession("a", me)
        await ask(session, tmp_path / "log")
        waiting = await session.states()
        status = (await (await session.stored()).refresh()).status
        answer = await approve_and_run(SegueSession("a", me), tmp_path / "log")
        return [w.calls[0]["name"] for w in waiting], status, answer, await session.get_items(), await session.states()

    names, status, answer, items, left = asyncio.run(go())
    assert names == ["pay"]
    assert status == "paused"
    assert answer == "re: q call:1"
    assert [item.get("type", item.get("role")) for item in items] == [
        "user", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert left[0].is_taken if left else True
    assert (tmp_path / "log").read_text() == "q call:1#0\n"


def test_a_state_that_was_resumed_well_is_known_as_resumed_though_its_content_is_gone(me, tmp_path):
    async def go():
        session = SegueSession("a", me)
        id = await ask(session, tmp_path / "log")
        await approve_and_run(session, tmp_path / "log", id)
        with pytest.raises(StateTaken):
            await approve_and_run(session, tmp_path / "log", id)
        with pytest.raises(StateMissing, match="waits"):
            await approve_and_run(session, tmp_path / "log")
        entries = await (await session.stored()).read(kinds=("agents.state",))
        return [entry.is_hollow for entry in entries]

    assert asyncio.run(go()) == [True]


def test_the_example_runs(capsys):
    from examples import openai_agents_sdk

    openai_agents_sdk.main()
    said = capsys.readouterr().out
    assert said.count("published: August") == 1
    assert "a second time: StateTaken" in said


def test_a_state_is_resumed_once_and_the_second_is_told_by_whom(me, tmp_path):
    async def go():
        session = SegueSession("a", me)
        id = await ask(session, tmp_path / "log")
        who = payer(tmp_path / "log")
        state = await session.load_state(who, id)
        state.approve(state.get_interruptions()[0])
        again = await session.save_state(state)  # approved and stored again: still one interruption
        with pytest.raises(RuntimeError, match="crash"):
            async with session.resume_state(who, again) as state:
                raise RuntimeError("crash")
        for one in (id, again):
            with pytest.raises(StateTaken, match="resumed before"):
                await approve_and_run(session, tmp_path / "log", one)
        with pytest.raises(segue.NotFound):
            await approve_and_run(session, tmp_path / "log")

    asyncio.run(go())
    assert not (tmp_path / "log").exists()


def test_of_many_who_resume_at_once_one_gets_the_state(me, tmp_path):
    async def go():
        await ask(SegueSession("a", me), tmp_path / "log")
        [waiting] = await SegueSession("a", me).states()
        tries = (approve_and_run(SegueSession("a", me), tmp_path / "log", waiting.id) for _ in range(6))
        return await asyncio.gather(*tries, return_exceptions=True)

    results = asyncio.run(go())
    assert sum(result == "re: q call:1" for result in results) == 1
    assert sum(isinstance(result, StateTaken | segue.NotFound) for result in results) == 5
    assert (tmp_path / "log").read_text() == "q call:1#0\n"


def test_a_state_that_is_too_old_is_not_resumed(me, tmp_path):
    async def go():
        session = SegueSession("a", me)
        async with session.turn(briefing=False):
            result = await Runner.run(payer(tmp_path / "log"), "q call:1", session=session)
            await session.save_state(result.to_state(), expires_in=timedelta(hours=1))
        (await session.stored()).sync.log.engine.store.shift_clock(3_600_000_001)
        with pytest.raises(StateExpired):
            await approve_and_run(session, tmp_path / "log")

    asyncio.run(go())
    assert not (tmp_path / "log").exists()


def test_a_state_behind_which_the_conversation_went_on_is_not_resumed(me, tmp_path):
    async def go():
        session = SegueSession("a", me)
        id = await ask(session, tmp_path / "log")
        async with session.turn(briefing=False):
            await Runner.run(agent(Echo()), "never mind", session=session)
        with pytest.raises(StateStale):
            await approve_and_run(session, tmp_path / "log", id)
        return await session.get_items()

    items = asyncio.run(go())
    assert [item.get("type", item.get("role")) for item in items] == [
        "user", "function_call", "function_call_output", "user", "message",
    ]  # fmt: skip
    assert not (tmp_path / "log").exists()


def test_a_stored_call_is_started_once_even_by_runs_that_bypass_the_stored_state(me, tmp_path):
    async def go():
        session = SegueSession("a", me)
        await ask(session, tmp_path / "log")
        who = payer(tmp_path / "log")
        one, two = [await session.load_state(who) for _ in range(2)]
        for state in (one, two):
            state.approve(state.get_interruptions()[0])
        tries = [Runner.run(who, s, session=session, hooks=SegueHooks(session)) for s in (one, two)]
        return await asyncio.gather(*tries, return_exceptions=True)

    results = asyncio.run(go())
    assert sum(isinstance(getattr(r, "__cause__", None), CallStarted) for r in results) == 1
    assert (tmp_path / "log").read_text() == "q call:1#0\n"


def test_two_processes_resume_one_state_and_the_first_dies_inside_the_tool(tmp_path, nursery):
    url, log = f"sqlite:///{tmp_path}/store.db", tmp_path / "log"

    async def go():
        with segue.open(url) as db:
            await ask(SegueSession("a", db.scope("acme", "lin")), log)
        said = []
        for more in ("die", "", ""):
            nursery.start("resume", url, log, more)
            said += nursery.wait()
        with segue.open(url) as db:
            session = SegueSession("a", db.scope("acme", "lin"))
            async with session.turn(briefing=False):
                return said, await session.get_items()

    said, items = asyncio.run(go())
    assert log.read_text() == "q call:1#0\n"
    assert said == ["StateMissing", "StateMissing"]
    assert [item.get("type", item.get("role")) for item in items] == ["user", "function_call", "function_call_output"]
    assert "may or may not have been done" in items[2]["output"]


def test_two_processes_resume_one_state_at_the_same_moment_and_the_tool_runs_once(tmp_path, nursery):
    url, log = f"sqlite:///{tmp_path}/store.db", tmp_path / "log"

    async def go():
        with segue.open(url) as db:
            await ask(SegueSession("a", db.scope("acme", "lin")), log)

    asyncio.run(go())
    nursery.start("resume", url, log)
    print("resume", url, log, file=nursery.process.stdin, flush=True)
    said = [line for line in nursery.wait() if not line.isdecimal()]
    assert log.read_text() == "q call:1#0\n"
    assert max(said) == "re: q call:1"
    assert min(said) in {"StateMissing", "StateTaken"}
    assert len(said) == 2


def test_after_a_crash_between_the_tool_and_the_store_the_next_turn_knows_the_result(me, tmp_path):
    async def go():
        session = SegueSession("a", me)

        class Dies(SegueSession):
            async def add_items(self, items, *, wrapper=None):
                if any(item.get("type") == "function_call_output" for item in items):
                    raise OSError("the process ended here")
                await super().add_items(items, wrapper=wrapper)

        with pytest.raises(OSError, match="ended"):
            async with session.turn(briefing=False):
                who = agent(Echo(tool="pay"), tool(tmp_path / "log"))
                await Runner.run(who, "q call:1", session=Dies("a", me), hooks=SegueHooks(session))
        async with session.turn(briefing=False):
            return await session.get_items()

    items = asyncio.run(go())
    assert [item.get("type", item.get("role")) for item in items] == ["user", "function_call", "function_call_output"]
    assert text_of(items[2]) == "paid q call:1#0"


@pytest.mark.slow
def test_killed_at_random_points_of_a_tool_loop_it_resumes_validly_and_knows_all_executed_tools(tmp_path, nursery):
    url, log = f"sqlite:///{tmp_path}/store.db", tmp_path / "log"
    chance = random.Random(7)
    for _ in range(KILLS):
        child = nursery.start("loop", url, log)
        nursery.hear()  # one turn is done
        time.sleep(chance.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        nursery.wait()
        _check(url, log)
    assert log.read_text().count("\n") > KILLS


def _check(url, log):
    async def go():
        with segue.open(url) as db:
            session = SegueSession("a", db.scope("acme", "lin"))
            async with session.turn(policy="enqueue", briefing=False):
                items = await session.get_items()
                view = await (await session.stored()).view()
                effects = await (await session.stored()).read(kinds=("effect",))
                return items, view, effects

    items, view, effects = asyncio.run(go())
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert sorted(calls) == sorted(outputs)
    assert view.open_calls == ()
    executed = log.read_text().splitlines() if log.exists() else []
    assert len(executed) == len(set(executed))
    recorded = {entry.json()["call"] for entry in effects if entry.json()["phase"] == "started"}
    assert {text.replace("#", "-") for text in executed} <= recorded
    assert {text.replace("#", "-") for text in executed} <= set(calls)
