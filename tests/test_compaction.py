"""Cuts: the history stays, a failed summary changes nothing, and nothing that lands meanwhile is lost."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import timedelta

import pytest

import fakes
import segue
import stores
from segue.compaction import PROMPT_EN, PROMPT_ZH, Compaction, acompact, compact, undo

RACES = 200 if stores.FULL else 20


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def me(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db.scope("acme", "lin")


def talk(session, turns=10, start=0):
    for n in range(start, start + turns):
        session.append(
            {"role": "user", "content": f"question {n} " + "word " * 40},
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{n}", "name": "look", "input": {"n": n}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": f"result {n}"}]},
            {"role": "assistant", "content": f"answer {n} " + "word " * 40},
        )


def short(material):
    return "Goals: go on."


HOW = Compaction(short, tokens=400)


def test_a_summary_stands_for_the_old_and_the_history_stays(me):
    session = me.create()
    talk(session)
    before = [(e.seq, e.body) for e in session.read()]
    done = compact(session, HOW)
    view = session.view()
    assert done.reason == "tokens"
    assert view.cut == done.seq
    assert "Goals: go on." in str(view.messages[0])
    assert view.estimated_tokens == done.tokens_after <= 400
    assert [(e.seq, e.body) for e in session.read()][: len(before)] == before


def test_undo_shows_the_history_again_and_keeps_what_was_said_since(me):
    session = me.create()
    talk(session)
    whole = session.messages()
    done = compact(session, HOW)
    session.append({"role": "user", "content": "since"})
    undo(session, done.seq)
    assert session.messages() == [*whole, {"role": "user", "content": "since"}]
    with pytest.raises(segue.Invalid):
        undo(session, 1)


def failing(material):
    raise RuntimeError("529")


@pytest.mark.parametrize(
    ("summarise", "reason"),
    [
        (failing, "failed"),
        (lambda m: "  ", "empty"),
        (lambda m: [], "empty"),
        (lambda m: 7, "failed"),
        (lambda m: m.text * 3, "longer"),
        (lambda m: float("nan"), "failed"),
    ],
)
def test_a_summary_that_is_none_changes_nothing(me, summarise, reason):
    session = me.create()
    talk(session)
    head, before = session.refresh().head, session.view().json()
    done = compact(session, Compaction(summarise, tokens=400))
    assert (done.seq, done.reason) == (None, reason)
    assert (session.refresh().head, session.view().json()) == (head, before)


def test_below_the_threshold_nothing_happens(me):
    session = me.create()
    talk(session, 2)
    assert compact(session, Compaction(failing, tokens=100_000)).reason == "not-needed"


def test_a_fork_is_silent_since_its_parent_was_until_it_is_cut():
    with segue.open("memory:") as db:
        session = db.scope().create()
        talk(session)
        db.engine.store.shift_clock(3_600_000_000)
        fork, age = session.fork(), Compaction(short, tokens=None, age=timedelta(hours=1))
        assert [compact(fork, age).reason for _ in range(2)] == ["age", "not-needed"]


def test_the_triggers_are_tokens_share_age_and_hand():
    with segue.open("memory:") as db:
        session = db.scope().create()
        talk(session)
        assert Compaction(tokens=500, window=1_000, share=0.3).limit == 300
        age = Compaction(tokens=None, age=timedelta(hours=1))
        assert compact(session, age).reason == "not-needed"
        db.engine.store.shift_clock(3_600_000_000)
        assert compact(session, age).reason == "age"
        talk(session, 3)
        assert compact(session, Compaction(tokens=None), is_forced=True).reason == "by-hand"


def test_one_unit_cannot_be_parted(me):
    session = me.create()
    session.append({"role": "user", "content": "x" * 4_000})
    assert compact(session, HOW).reason == "one-unit"


def test_a_cut_leaves_room_so_that_it_is_rare(me):
    session = me.create()
    cuts = 0
    for n in range(40):
        talk(session, 1, start=n)
        cuts += compact(session, Compaction(short, tokens=2_000)).seq is not None
    assert 1 <= cuts <= 6


def test_the_cut_tells_which_observations_its_summary_rests_on(me):
    session = me.create()
    with session.run() as run:
        run.observe("warehouse:sales", 7)
    talk(session)
    done = compact(session, HOW)
    cut = session.read(after=done.seq - 1, upto=done.seq)[0].json()
    assert cut["observations"] == [session.read(kinds=("observation",))[0].id]


def test_a_fork_from_before_a_cut_does_not_see_it(me):
    session = me.create()
    talk(session)
    at, before = session.refresh().head, session.messages()
    done = compact(session, HOW)
    assert session.fork(at).messages() == before
    assert session.fork().view().cut == done.seq


def test_what_is_pinned_stays_in_cuts_and_windows(me):
    session = me.create()
    rule = {"role": "user", "content": "Never publish without asking."}
    session.append(rule, refs=("pinned",))
    session.append({"role": "assistant", "content": "Understood."})
    talk(session)
    assert session.messages()[0] == rule
    compact(session, HOW)
    assert session.messages()[1] == rule
    assert rule in session.view(segue.ViewSpec("anthropic", last_turns=1)).messages
    small = session.view(segue.ViewSpec("anthropic", budget_tokens=250))
    assert rule in small.messages
    assert small.estimated_tokens <= 250


def rule(session, words):
    session.append({"role": "user", "content": "rule " * words}, refs=("pinned",))
    session.append({"role": "assistant", "content": "Understood."})


@pytest.mark.parametrize("at", ["the beginning", "a cut"])
def test_a_budget_is_held_beside_what_is_pinned_and_its_cuts_are_rare(me, at):
    session = me.create()
    rule(session, 600)
    talk(session, 20)
    with session.run() as run:
        if at == "a cut":
            run.messages(budget=2_000)
        cuts = len(session.by_ref("cut"))
        for n in range(12):
            run.messages(budget=1_500)
            assert session.view().estimated_tokens <= 1_500
            assert "rule rule" in str(session.messages()[0])
            run.append({"role": "user", "content": f"next {n}"}, {"role": "assistant", "content": "word " * 40})
    assert 1 <= len(session.by_ref("cut")) - cuts <= 4


def test_a_plan_tells_what_stays_with_what_is_pinned_before_and_behind_a_cut(me):
    session = me.create()
    rule(session, 100)
    talk(session, 6)
    compact(session, Compaction(tokens=700))
    rule(session, 50)
    talk(session, 6)
    done = compact(session, Compaction(tokens=700))
    view = session.view()
    assert done.tokens_after == view.estimated_tokens <= 700
    assert sum(str(message).count("rule rule rule") > 0 for message in view.messages) == 2


def test_pinned_messages_that_fill_the_budget_are_refused_by_name_and_nothing_is_cut(me):
    session = me.create()
    rule(session, 600)
    talk(session, 6)
    compact(session, Compaction(tokens=None), is_forced=True)
    with session.run() as run:
        head = session.refresh().head
        for _ in range(2):
            with pytest.raises(segue.ViewInvalid, match="pinned") as caught:
                run.messages(budget=500)
            assert caught.value.rule == "pinned-exceeds-budget"
    assert compact(session, Compaction(failing, tokens=500)).reason == "pinned"
    assert session.refresh().head == head
    assert compact(session, Compaction(tokens=500), is_forced=True).seq  # by hand it is cut as far as it can be


def test_a_large_newest_message_is_no_fault_of_a_small_pinned_one(me):
    session = me.create()
    rule(session, 3)
    talk(session, 6)
    session.append({"role": "user", "content": "word " * 600})
    done = compact(session, HOW)
    assert (done.reason, len(session.messages())) == ("tokens", 3)


def test_a_summary_is_measured_by_what_it_replaces_not_by_what_stays_pinned(me):
    session = me.create()
    rule(session, 600)
    talk(session, 3)
    given = []

    def summarise(material):
        given.append(material)
        return "word " * 500

    assert compact(session, Compaction(summarise, tokens=None), is_forced=True).reason == "longer"
    assert given[0].tokens < 500


def test_five_cuts_and_every_original_is_there_bit_exact(me):
    session = me.create()
    bodies = []
    for n in range(5):
        talk(session, 5, start=5 * n)
        bodies = [(e.seq, e.body) for e in session.read(kinds=("message",))]
        compact(session, HOW, is_forced=True)
    assert [(e.seq, e.body) for e in session.read(kinds=("message",))] == bodies
    assert len(session.by_ref("cut")) == 5


# Races


def test_a_turn_that_lands_while_the_summary_is_made_survives(me):
    session = me.create()
    talk(session)

    def slow(material):
        talk(session, 1, start=99)
        return "Goals."

    done = compact(session, Compaction(slow, tokens=400))
    assert done.seq is not None
    assert "question 99" in str(session.messages())


def test_a_cut_on_ground_that_changed_is_not_applied(me):
    session = me.create()
    talk(session)

    def beaten(material):
        compact(session, HOW)
        return "Goals."

    assert compact(session, Compaction(beaten, tokens=400)).reason == "overtaken"

    def erased(material):
        session.hollow(session.read(kinds=("message",))[-1].seq)
        return "Goals."

    assert compact(session, Compaction(erased, tokens=100)).reason == "overtaken"


def test_what_is_pinned_before_a_cut_belongs_to_the_epoch(me):
    for change in (lambda session: session.hollow(1), lambda session: retract(session, 1)):
        session = pinned(me)
        before = session.view()
        change(session)
        assert session.view().epoch != before.epoch
        session = me.create()
        session.append({"role": "user", "content": "My passport is K1234567."}, refs=("pinned",))
        talk(session, 2)
        window = segue.ViewSpec("anthropic", last_turns=1)
        before = session.view(window)
        change(session)
        assert session.view(window).epoch != before.epoch


@pytest.mark.parametrize("moment", ["while it is made", "while it is applied"])
def test_what_is_erased_meanwhile_does_not_live_on_in_a_summary(me, monkeypatch, moment):
    session = pinned(me)
    talk(session, 6, start=20)

    def summarise(material):
        if moment == "while it is made":
            session.hollow(1)
        return "Summary: K1234567" if "K1234567" in material.text else "Goals."

    append = segue.log.Log.append

    def overtaken(log, entries, **options):
        if moment == "while it is applied" and entries[0].kind == "cut":
            session.hollow(1)
        return append(log, entries, **options)

    monkeypatch.setattr(segue.log.Log, "append", overtaken)
    done = compact(session, Compaction(summarise, tokens=400))
    assert (done.seq, done.reason) == (None, "overtaken")
    assert not any(b"K1234567" in (entry.body or b"") for entry in session.read())
    monkeypatch.undo()
    assert session.messages()
    assert compact(session, HOW).seq


def pinned(me):
    session = me.create()
    session.append({"role": "user", "content": "My passport is K1234567."}, refs=("pinned",))
    session.append({"role": "assistant", "content": "Noted."})
    talk(session, 6)
    compact(session, HOW)
    talk(session, 1, start=10)
    assert "K1234567" in str(session.messages()[1])
    return session


def retract(session, *seqs):
    session.append({"seqs": list(seqs)}, kind="retract", format="segue", origin="system", refs=("retract",))


def test_an_erased_session_stays_erased(me):
    session = me.create()
    talk(session)

    def gone(material):
        session.erase()
        return "Goals."

    with pytest.raises(segue.NotFound):
        compact(session, Compaction(gone, tokens=400))
    with pytest.raises(segue.NotFound):
        me.open(session.id)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def test_races_of_cuts_with_appends_forks_erasures_and_cuts_lose_nothing(tmp_path, store):
    with stores.url_of(store, tmp_path) as url, segue.open(url) as one, segue.open(url) as two:
        for race in range(RACES):
            _race(random.Random(race), one.scope(), two.scope())


def _race(rng, mine, theirs):
    session = mine.create()
    talk(session, 6)
    other = theirs.open(session.id)
    kind = rng.choice(["append", "append", "fork", "erase", "cut"])
    found = {}

    def act():
        if kind == "append":
            for n in range(3):
                talk(other, 1, start=50 + n)
        elif kind == "fork":
            found["fork"] = other.fork()
        elif kind == "erase":
            other.erase()
        else:
            found["cut"] = compact(other, HOW)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        done = compact(session, HOW)
    except segue.NotFound:
        assert kind == "erase"
        done = None
    thread.join()
    if kind == "erase":
        with pytest.raises(segue.NotFound):
            mine.open(session.id)
        return
    entries = session.read()
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
    messages = [e for e in entries if e.kind == "message"]
    assert len(messages) == 24 + (12 if kind == "append" else 0)
    view = session.view()
    shown = {seq for seqs in view.seqs for seq in seqs}
    cuts = [e for e in entries if e.kind == "cut"]
    upto = cuts[-1].json()["upto"] if cuts else 0
    assert {e.seq for e in messages if e.seq > upto} <= shown
    assert done.seq is not None or kind == "cut"
    if kind == "cut":  # one of them, or both one after the other; never two on the same ground
        assert [done.seq, found["cut"].seq] != [None, None]
    if "fork" in found:
        assert found["fork"].messages()


# By a model


def test_the_prompts_keep_what_matters_in_both_languages():
    for word in ("Goals", "Decisions", "identifiers", "Effects", "Open points"):
        assert word in PROMPT_EN
    for word in ("目标", "决定", "标识", "影响", "未决"):
        assert word in PROMPT_ZH


def test_an_anthropic_or_openai_model_makes_the_summary():
    import anthropic
    import openai

    from segue.adapters import anthropic as ours
    from segue.adapters import openai as theirs

    with fakes.serve() as server, segue.open("memory:") as db:
        one = anthropic.Anthropic(api_key="none", base_url=server.url)
        two = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1")
        with one, two:
            for summarise in (ours.summariser(one, model="m"), theirs.summariser(two, model="m")):
                session = db.scope().create()
                talk(session)
                assert compact(session, Compaction(summarise, tokens=400, language="en")).seq
                assert "Goals: kept." in str(session.messages()[0])
        assert server.refused == []


def test_the_providers_own_compaction_is_kept_verbatim():
    import openai

    from segue.adapters.openai import compactor

    with fakes.serve() as server, segue.open("memory:") as db:
        session = db.scope().create(format="openai.responses")
        with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1") as client:
            with session.run() as run:
                chat = run.openai(client, model="m")
                for n in range(6):
                    chat.send(f"question {n} " + "word " * 40)
                done = chat.compact(Compaction(compactor(client, model="m"), tokens=300))
                assert done.reason == "by-hand", done
                chat.send("go on")
        sent = server.requests[-1][1]["input"]
        assert [item["type"] for item in sent].count("compaction") == 1
        assert server.refused == []


def test_an_async_summariser_on_the_async_face(tmp_path):
    async def summarise(material):
        await asyncio.sleep(0)
        return "Goals."

    async def main():
        async with await segue.aopen("memory:") as db:
            session = await db.scope().create()
            await asyncio.to_thread(talk, session.sync)
            return await acompact(session, Compaction(summarise, tokens=400))

    assert asyncio.run(main()).seq


def test_async_code_on_the_blocking_face_is_refused_and_changes_nothing(me):
    async def summarise(material):
        return "Goals."

    session = me.create()
    talk(session)
    assert compact(session, Compaction(summarise, tokens=400)).reason == "failed"
