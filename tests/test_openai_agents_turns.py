"""Concurrent runs of the Agents SDK on one session: one at a time, or the loser is told and leaves nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import segue

pytest.importorskip("agents")

from agents import RunContextWrapper, Runner, UserError, set_tracing_disabled

from agents_sdk import Echo, agent, note, text_of, turns, url_of
from segue import guard
from segue.adapters.openai_agents import SegueHooks, SegueSession, TurnLost, tell_refusal

set_tracing_disabled(disabled=True)


@pytest.fixture(params=["memory", "sqlite"])
def me(request, tmp_path):
    with segue.open(url_of(request.param, tmp_path)) as db:
        yield db.scope("acme", "lin")


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.slow
def test_runs_in_turns_wait_for_each_other_and_every_question_has_its_own_answer(me):
    async def talk(name):
        session = SegueSession("a", me)
        for n in range(25):
            async with session.turn(policy="enqueue", wait=timedelta(minutes=5)):
                await Runner.run(agent(Echo(0.001)), f"{name}.{n}", session=session)

    async def go():
        await asyncio.gather(*(talk(name) for name in "abcdefgh"))
        return await SegueSession("a", me).get_items()

    pairs = turns(asyncio.run(go()))
    assert len(pairs) == 200
    assert all(answer == f"re: {question}" for question, answer in pairs)
    assert {question for question, _ in pairs} == {f"{name}.{n}" for name in "abcdefgh" for n in range(25)}
    for name in "abcdefgh":
        mine = [int(question[2:]) for question, _ in pairs if question[0] == name]
        assert mine == sorted(mine)


def test_without_turns_exactly_the_winners_turns_remain_and_the_losers_are_told(me):
    won, lost = [], []

    async def talk(name):
        session = SegueSession("a", me)
        for n in range(25):
            question = f"{name}.{n} call:1"
            try:
                await Runner.run(agent(Echo(0.002), note), question, session=session)
            except TurnLost:
                lost.append(question)
            else:
                won.append(question)

    async def go():
        await asyncio.gather(*(talk(name) for name in "abcdefgh"))
        return await SegueSession("a", me).get_items()

    items = asyncio.run(go())
    assert len(won) + len(lost) == 200
    assert won
    assert lost
    blocks = [items[n : n + 4] for n in range(0, len(items), 4)]
    for question, call, output, answer in blocks:
        assert call["call_id"] == output["call_id"] == f"{text_of(question)}-0"
        assert text_of(answer) == f"re: {text_of(question)}"
    assert sorted(text_of(block[0]) for block in blocks) == sorted(won)


class Context:
    """The context of one run, as the Runner hands it to the session."""

    def __new__(cls):
        return RunContextWrapper(context=None)


def test_a_run_that_lost_leaves_nothing_and_the_error_names_the_session(me):
    async def go():
        session, one, two = SegueSession("a", me), Context(), Context()
        await session.get_items(wrapper=one)
        await session.add_items([user("one")], wrapper=one)
        await session.get_items(wrapper=two)
        await session.add_items([user("two")], wrapper=two)
        with pytest.raises(TurnLost, match="'a'") as lost:
            await session.add_items([user("one again")], wrapper=one)
        with pytest.raises(TurnLost):
            await session.add_items([user("one once more")], wrapper=one)
        await session.add_items([user("two again")], wrapper=two)  # the loser's retraction does not stop the winner
        return lost.value.taken_back, await session.get_items()

    assert asyncio.run(go()) == (1, [user("two"), user("two again")])


def test_a_run_that_lost_may_read_again_and_go_on(me):
    async def go():
        session, one = SegueSession("a", me), Context()
        await session.get_items(wrapper=one)
        await session.add_items([user("other")])
        with pytest.raises(TurnLost):
            await session.add_items([user("one")], wrapper=one)
        await session.get_items(wrapper=one)
        await session.add_items([user("one")], wrapper=one)
        return await session.get_items()

    assert asyncio.run(go()) == [user("other"), user("one")]


def test_a_clear_between_reading_and_writing_is_a_conflict(me):
    async def go():
        session, one = SegueSession("a", me), Context()
        await session.add_items([user("before")])
        await session.get_items(wrapper=one)
        await session.clear_session()
        with pytest.raises(TurnLost):
            await session.add_items([user("one")], wrapper=one)
        return await session.get_items()

    assert asyncio.run(go()) == []


def test_facts_that_arrive_between_reading_and_writing_are_no_conflict(me):
    async def go():
        session, one = SegueSession("a", me), Context()
        await session.add_items([user("before")])
        await session.get_items(wrapper=one)
        await (await session.stored()).append({"effect": "x"}, kind="effect", format="segue", origin="tool")
        await session.add_items([user("one")], wrapper=one)
        return len(await session.get_items())

    assert asyncio.run(go()) == 2


def test_a_call_outside_of_a_run_expects_nothing(me):
    async def go():
        session = SegueSession("a", me)
        await session.get_items()
        await SegueSession("a", me).add_items([user("other")])
        await session.add_items([user("mine")])
        return await session.get_items()

    assert asyncio.run(go()) == [user("other"), user("mine")]


def test_while_a_turn_runs_nobody_else_writes_pops_or_clears(me):
    async def go():
        session, other = SegueSession("a", me), SegueSession("a", me)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold():
            async with session.turn():
                await session.add_items([user("mine")])
                entered.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        for call in (other.add_items([user("x")]), other.pop_item(), other.clear_session(), _enter(other)):
            with pytest.raises(segue.Busy):
                await call
        leave.set()
        await holding
        async with other.turn():
            return await other.get_items()

    assert asyncio.run(go()) == [user("mine")]


async def _enter(session):
    async with session.turn():
        pass


def test_an_interrupted_turn_can_write_no_more_and_its_work_stays(me):
    async def go():
        session = SegueSession("a", me)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold():
            async with session.turn():
                await session.add_items([user("old")])
                entered.set()
                await leave.wait()
                with pytest.raises(segue.LeaseLost):
                    await session.add_items([user("late")])

        holding = asyncio.create_task(hold())
        await entered.wait()
        async with SegueSession("a", me).turn(policy="interrupt"):
            leave.set()
            await holding
            await SegueSession("a", me).add_items([user("new")])
        return await session.get_items()

    assert asyncio.run(go()) == [user("old"), user("new")]


def test_a_rolled_back_turn_leaves_nothing(me):
    async def go():
        session = SegueSession("a", me)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold():
            async with session.turn():
                await session.add_items([user("old")])
                entered.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        async with SegueSession("a", me).turn(policy="rollback"):
            await SegueSession("a", me).add_items([user("new")])
        leave.set()
        await holding
        return await session.get_items()

    assert asyncio.run(go()) == [user("new")]


def test_a_turn_holds_for_every_instance_of_the_session_in_its_task(me):
    async def go():
        async with SegueSession("a", me).turn() as turn:
            await SegueSession("a", me).add_items([user("1")])
            entries = await (await SegueSession("a", me).stored()).read(kinds=("message",))
            return turn.run.id, {entry.run for entry in entries}

    run, runs = asyncio.run(go())
    assert runs == {run}


def test_the_usage_of_a_turn_is_told(me):
    async def go():
        session = SegueSession("a", me)
        async with session.turn() as turn:
            await Runner.run(agent(Echo(), note), "q call:2", session=session)
        return turn.usage

    assert asyncio.run(go())[:2] == (30, 9)


def test_after_a_pause_the_turn_tells_the_model_before_the_question(me):
    async def go():
        session, model = SegueSession("a", me), Echo()
        for question in ("one", "two", "three"):
            async with session.turn() as turn:
                await Runner.run(agent(model), question, session=session)
            if question == "one":
                (await session.stored()).sync.log.engine.store.shift_clock(18 * 3_600_000_000)
        return turn.briefing.is_quiet, [item.get("role") for item in await session.get_items()]

    quiet, roles = asyncio.run(go())
    assert quiet
    assert roles == ["user", "assistant", "developer", "user", "assistant", "user", "assistant"]


def test_a_turn_without_a_briefing_says_nothing(me):
    async def go():
        session = SegueSession("a", me)
        await session.add_items([user("one")])
        (await session.stored()).sync.log.engine.store.shift_clock(18 * 3_600_000_000)
        async with session.turn(briefing=False) as turn:
            return turn.briefing, await session.get_items()

    assert asyncio.run(go()) == (None, [user("one")])


def test_a_masked_reading_is_sent_as_superseded_and_stored_as_it_was(me, tmp_path):
    from agents import function_tool

    report = tmp_path / "report.md"
    report.write_text("first")
    sources = segue.Sources(roots=[tmp_path])
    how = segue.ResumeOptions(sources=sources, stale="mask")

    @function_tool
    @guard.reads(f"file:{report}")
    def look(text: str) -> str:
        """Look at it."""
        return report.read_text()

    async def go():
        session, model = SegueSession("a", me), Echo(tool="look")
        async with session.turn(briefing=how):
            await Runner.run(agent(model, look), "q call:1", session=session, hooks=SegueHooks(session))
        before = await session.get_items()
        stored = await (await session.stored()).read()
        report.write_text("second")
        async with session.turn(briefing=how):
            await Runner.run(agent(model), "and now?", session=session)
        fork = await session.fork("b", keep=4)
        again = await (await session.stored()).read(upto=stored[-1].seq)
        assert [entry.body for entry in again] == [entry.body for entry in stored]
        popped = []
        while (item := await fork.pop_item()) is not None:
            popped.append(item)
        return before, await session.get_items(), model.seen[-1], popped

    before, items, sent, popped = asyncio.run(go())
    at = next(n for n, item in enumerate(before) if item.get("type") == "function_call_output")
    assert before[at]["output"].startswith("first")
    for shown in (items, sent):
        assert "first" not in shown[at]["output"] and "superseded" in shown[at]["output"]
        assert [item for n, item in enumerate(shown[:4]) if n != at] == [b for n, b in enumerate(before) if n != at]
    assert popped[::-1] == before, "what is popped is what was stored"


def test_a_fork_of_before_a_mask_shows_what_its_parent_shows(me):
    async def go():
        session = SegueSession("a", me)
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "old"}
        await session.add_items([user("q"), call, output, user("more")])
        stored = (await session.stored()).sync
        mask = stored.append(segue.mask.Mask(((3, "c", "superseded"),)).draft())
        fork = await session.fork("b", keep=3)
        shown = [(await one.get_items())[2]["output"] for one in (session, fork)]
        assert (await session.get_items(2))[0]["output"] == "superseded"
        stored.append({"seqs": [mask.seqs[0]]}, kind="retract", format="segue", refs=("retract",))
        shown += [(await one.get_items())[2]["output"] for one in (session, fork)]
        broken = {"results": [{"seq": 3, "call": 7, "text": "x"}]}
        stored.append(broken, kind="mask", format="segue", refs=("mask", "retract"))
        with pytest.raises(segue.errors.ViewInvalid, match="no mask that Segue can read"):
            await session.get_items()
        return shown

    assert asyncio.run(go()) == ["superseded", "superseded", "old", "superseded"]


def test_a_cancelled_wait_for_the_turn_takes_nothing(me):
    async def go():
        session = SegueSession("a", me)
        async with session.turn():
            waiting = asyncio.create_task(_enter_queue(SegueSession("a", me)))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with session.turn():
            return (await session.stored()).sync.refresh().waiting

    assert asyncio.run(go()) == 0


async def _enter_queue(session):
    async with session.turn(policy="enqueue"):
        pass


def test_a_tool_that_writes_unseen_ground_is_refused_and_the_model_reads_why(me, tmp_path):
    from agents import function_tool

    report = tmp_path / "report.md"
    report.write_text("draft")

    @function_tool(failure_error_function=tell_refusal)
    @guard.writes(f"file:{report}")
    def publish(text: str) -> str:
        """Publish it."""
        report.write_text(text)
        return "published"

    async def go():
        session = SegueSession("a", me)
        async with session.turn():
            await Runner.run(agent(Echo(tool="publish"), publish), "q call:1", session=session)
        return await session.get_items()

    items = asyncio.run(go())
    assert "read it again" in items[2]["output"]
    assert report.read_text() == "draft"


def test_a_tool_call_is_recorded_before_it_starts_and_after_it_ends(me):
    async def go():
        session = SegueSession("a", me)
        hooks = SegueHooks(session)
        async with session.turn() as turn:
            await Runner.run(agent(Echo(), note), "q call:2", session=session, hooks=hooks)
        await Runner.run(agent(Echo(), note), "p call:1", session=session, hooks=hooks)
        entries = await (await session.stored()).read(kinds=("effect",))
        return turn.run.id, [(entry.json()["phase"], entry.run) for entry in entries]

    run, phases = asyncio.run(go())
    assert phases == [("started", run), ("completed", run)] * 2 + [("started", None), ("completed", None)]


def test_a_tool_does_not_start_when_its_turn_was_overtaken(me):
    made = []

    async def go():
        from agents import function_tool

        session = SegueSession("a", me)
        await session.add_items([user("before")])

        class Slow(Echo):
            async def get_response(self, *args, **kwargs):
                async with SegueSession("a", me).turn(policy="interrupt"):
                    pass
                return await super().get_response(*args, **kwargs)

        @function_tool
        def pay(text: str) -> str:
            """Pay."""
            made.append(text)
            return "paid"

        async with session.turn():
            with pytest.raises(UserError) as told:  # the SDK wraps what a hook raises
                await Runner.run(agent(Slow(tool="pay"), pay), "q call:1", session=session, hooks=SegueHooks(session))

        return told.value.__cause__

    assert isinstance(asyncio.run(go()), segue.LeaseLost)
    assert made == []
