"""What a resume takes from the log: where the view begins, what counts before a cut, what was told, what others did."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest

import segue
from segue import ground, ledger
from segue.errors import ViewInvalid
from segue.guard import reads, using
from segue.ledger import Effect, Observation, leaves_unknown
from segue.world import Sources

QUESTION = {"role": "user", "content": "Why did East China's sales fall in August?"}


@pytest.fixture
def db():
    with segue.open("memory:") as opened:
        yield opened


@pytest.fixture
def me(db):
    return db.scope(user="lin")


@pytest.fixture
def session(me):
    return me.create()


def turn(session, *names, answer="It fell."):
    """A question, a call of each tool, the results, an answer."""
    calls = [{"type": "tool_use", "id": f"c{session.refresh().head}-{n}", "name": n, "input": {}} for n in names]
    results = [{"type": "tool_result", "tool_use_id": c["id"], "content": "1"} for c in calls]
    session.append(QUESTION)
    if calls:
        session.append({"role": "assistant", "content": calls}, {"role": "user", "content": results})
    return session.append({"role": "assistant", "content": answer}).head


def observe(session, source, version="1", id=None, **options):
    observation = Observation(source, segue.Version.of(version), **options)
    entry = segue.draft(observation.body(), kind="observation", format="segue", id=id, refs=observation.refs)
    session.append(entry)
    return observation


def cut(session, upto, **more):
    body = {"upto": upto, "summary": None, "reason": "test", **more}
    return session.append(body, kind="cut", format="segue", refs=("cut",)).head


def retract(session, *seqs):
    session.append({"seqs": list(seqs)}, kind="retract", format="segue", refs=("retract",))


def counted(version):
    sources = Sources()
    sources.register("x:", lambda: version)
    return sources


# Where the view begins


def test_readings_before_the_last_cut_count_only_if_its_summary_rests_on_them(me, session):
    observe(session, "x:1", id="one")
    observe(session, "x:2")
    head = turn(session)
    cut(session, head, observations=["one"])
    observe(session, "x:3")
    found = me.resume(session, sources=counted("2")).briefing.findings
    assert {f.observation.source for f in found} == {"x:1", "x:3"}


@pytest.mark.parametrize("odd", ["one", 7, {"a": 1}, [["one"], 5, None], True])
def test_an_odd_imported_list_of_readings_is_counted_and_stops_no_resume(me, session, odd):
    observe(session, "x:1", id="one")
    cut(session, turn(session), observations=odd)
    briefing = me.resume(session, sources=counted("1")).briefing
    assert briefing.counts == {} and briefing.unreadable >= 1


def test_a_summary_that_names_a_million_readings_is_bounded(session):
    head = turn(session)
    cut(session, head, observations=[f"{i:x}" for i in range(ground.KEEP_MAX + 5)])
    found = ground.find(session.log, "anthropic", session.refresh().head)
    assert (len(found.keep), found.unreadable) == (ground.KEEP_MAX, 5)


def test_a_cut_that_covers_itself_is_refused_with_the_way_out(me, session):
    turn(session)
    bad = cut(session, 10**6)
    with pytest.raises(ViewInvalid, match="take it back"):
        me.resume(session)
    retract(session, bad)
    assert me.resume(session).briefing.entries == bad + 1


def test_a_cut_that_was_taken_back_hides_no_reading(me, session):
    observe(session, "x:1")
    retract(session, cut(session, turn(session)))
    assert me.resume(session, sources=counted("2")).briefing.counts == {"changed": 1}


def test_a_session_of_a_format_without_views_has_its_cuts_too(me):
    session = me.create(format="graph")
    observe(session, "x:1")
    session.append({"n": 1}, kind="graph.step", format="graph")
    cut(session, 2)
    cut(session, "nonsense")
    assert me.resume(session, sources=counted("2")).briefing.counts == {}


def test_more_readings_than_are_looked_through_are_said_to_be_incomplete(me, session, monkeypatch):
    monkeypatch.setattr(ledger, "SCAN_MAX", 10)
    monkeypatch.setattr(ledger.live, "__kwdefaults__", ledger.live.__kwdefaults__ | {"scan": 10})
    for n in range(10):
        observe(session, f"x:{n}")
    assert me.resume(session).briefing.is_complete
    observe(session, "x:10")
    assert not me.resume(session).briefing.is_complete


# What was told


def told(me, session, **options):
    """Whether a resume tells the change of x:1 to the model."""
    with me.resume(session, sources=counted("2"), **options).run():
        pass
    return len(session.read(kinds=("note",)))


def test_what_a_retracted_note_told_is_told_again(me, session):
    observe(session, "x:1")
    turn(session)
    assert told(me, session) == 1
    assert told(me, session) == 1
    (note,) = session.read(kinds=("note",))
    retract(session, note.seq)
    assert told(me, session) == 2


def test_what_a_note_before_the_cut_told_is_told_again(me, session):
    observe(session, "x:1", id="one")
    turn(session)
    assert told(me, session) == 1
    cut(session, session.refresh().head, observations=["one"])
    assert told(me, session) == 2


# The configuration


OLD = segue.AgentConfig(name="analyst", version="1", model="m", tools=["query_sales", "publish"])
NEW = segue.AgentConfig(name="analyst", version="2", model="m", tools=["publish"])


def changes(me, session):
    back = me.resume(session, agent=NEW, config="adopt")
    return [change.what for change in back.briefing.changes]


def test_a_tool_that_is_gone_breaks_a_history_that_calls_it_and_no_other(me):
    calling, other = me.create(agent=OLD), me.create(agent=OLD)
    turn(calling, "query_sales")
    turn(other, "publish")
    assert changes(me, calling) == ["tool-gone-called", "version"]
    assert changes(me, other) == ["version", "tool-gone"]


def test_a_call_before_the_last_cut_or_taken_back_breaks_nothing(me):
    before_cut, retracted = me.create(agent=OLD), me.create(agent=OLD)
    cut(before_cut, turn(before_cut, "query_sales"))
    turn(retracted, "query_sales")
    retract(retracted, 2, 3)
    assert "tool-gone-called" not in changes(me, before_cut) + changes(me, retracted)


def test_a_breaking_change_after_days_advises_to_start_anew(db, me):
    session = me.create(agent=OLD)
    turn(session, "query_sales")
    db.engine.store.shift_clock(timedelta(days=4) // timedelta(microseconds=1))
    assert me.resume(session, agent=NEW, config="adopt").briefing.advice == "start_anew"
    with pytest.raises(segue.ConfigDrift, match="query_sales is gone, and the history calls it"):
        me.resume(session, agent=NEW)


# Others


@pytest.mark.parametrize("sources", [2, 40])
def test_what_others_did_to_any_of_the_sources_is_found_by_one_scan_or_by_many_lookups(me, session, sources):
    theirs, older = me.create(), me.create()
    with older.run() as run, run.effect("before", source="x:0"):
        pass
    for n in range(sources):
        observe(session, f"x:{n}")
    for n, source in enumerate(["x:1", "y:1", f"x:{sources - 1}"]):
        with theirs.run() as run, run.effect(f"act-{n}", source=source):
            pass
    found = me.resume(session).briefing.others
    assert sorted((f.session == theirs.id, f.effect.name) for f in found) == [(True, "act-0"), (True, "act-2")]


def test_a_scope_with_more_effects_than_are_scanned_hides_none(me, session, monkeypatch):
    monkeypatch.setattr(ground, "EFFECTS_MAX", 6)
    for n in range(10):
        observe(session, f"x:{n}")
    theirs = me.create()
    for source in ("x:7", *["elsewhere"] * 6):
        with theirs.run() as run, run.effect("act", source=source):
            pass
    assert [f.effect.source for f in me.resume(session).briefing.others] == ["x:7"]


# Effects whose outcome nobody knows


def phases(session):
    return [Effect.from_entry(e).phase for e in session.history(kinds=("effect",))]


def wrapped_timeout():
    try:
        raise TimeoutError
    except TimeoutError as error:
        raise httpx.ReadTimeout("the server did not answer") from error


def lost():
    raise ConnectionResetError


def cancelled():
    raise asyncio.CancelledError


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("fail", [wrapped_timeout, lost, cancelled, interrupted])
def test_an_error_that_says_nothing_of_the_outcome_leaves_it_unknown(me, session, fail):
    with pytest.raises(BaseException), session.run() as run, run.effect("pay", source="bank"):
        fail()
    assert phases(session) == ["started"]
    assert [e.name for e in me.resume(session).briefing.unknown] == ["pay"]


def test_an_error_of_the_block_is_a_failure(session):
    with pytest.raises(ZeroDivisionError), session.run() as run, run.effect("pay"):
        1 / 0
    assert phases(session) == ["started", "failed"]


def test_what_was_told_to_be_done_is_done_whatever_happens_afterwards(session):
    with pytest.raises(TimeoutError), session.run() as run, run.effect("pay") as effect:
        effect.done({"receipt": 7})
        raise TimeoutError
    assert phases(session) == ["started", "completed"]


def test_a_cancelled_task_leaves_its_effect_unknown():
    async def main():
        async with await segue.aopen("memory:") as db:
            session = await db.scope(user="lin").create()
            begun = asyncio.Event()

            async def pay():
                async with session.run() as run, run.effect("pay"):
                    begun.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(pay())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [entry.json()["phase"] async for entry in session.history(kinds=("effect",))]

    assert asyncio.run(main()) == ["started"]


def test_an_error_raised_instead_of_another_one_on_purpose_stands_for_itself():
    try:
        try:
            raise TimeoutError
        except TimeoutError:
            raise ValueError("wrong account") from None
    except ValueError as error:
        assert not leaves_unknown(error)


# Using a run that knows how sources are looked at


def test_a_resumed_run_brings_its_sources_along(me, session):
    session.append(QUESTION)
    with me.resume(session, sources=counted("5")).run() as run, using(run):
        reads("x:1")(lambda: "what it says")()
    (seen,) = session.read(kinds=("observation",))
    assert seen.json()["version"] == "5"


def test_a_reading_made_elsewhere_is_recorded_as_it_is(me, session):
    made = Observation("x:1", segue.Version("etag", '"7"'), tool="look")
    with session.run() as run:
        assert run.observe(made, call="c1").call == "c1"
    (entry,) = session.read(kinds=("observation",))
    assert Observation.from_entry(entry).version == made.version and "source:x:1" in entry.refs
