"""Starting anew: a child that begins with a summary, takes no readings along, and both know of each other."""

from __future__ import annotations

import asyncio
import json

import pytest

import segue
from segue import anew
from segue.errors import Archived, Exists, Invalid
from segue.ledger import Version
from segue.world import Sources

FORMATS = ("anthropic", "openai.responses", "openai.chat")
STALE = "the figure 4711 of yesterday"


def says(format, role, text):
    if format != "openai.responses":
        return {"role": role, "content": text}
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


@pytest.fixture
def db():
    with segue.open("memory:") as opened:
        yield opened


@pytest.fixture
def me(db):
    return db.scope(user="lin")


def analysis(me, format="anthropic"):
    """A session with goals, a decision, effects of every outcome, readings, and a question left open."""
    session = me.create(title="August", format=format, tags=["sales"], metadata={"team": "east"})
    with session.run() as run:
        run.append(says(format, "user", "Why did East China fall in August?"))
        run.observe("warehouse:orders", "1", value=STALE)
        run.append(says(format, "assistant", STALE))
        run.append({"text": "Split by SKU, not by shop."}, kind="decision", format="segue", refs=("decision",))
        with run.effect("publish_report", source="wiki:report-8") as effect:
            effect.done({"page": "report-8"})
        with pytest.raises(ValueError), run.effect("notify"):
            raise ValueError("no such channel")
        with pytest.raises(TimeoutError), run.effect("pay", source="bank", key="k-1"):
            raise TimeoutError
        run.append(says(format, "user", "And the SKU dimension?"))
    return session


@pytest.mark.parametrize("format", FORMATS)
def test_the_new_session_begins_with_goals_decisions_effects_and_what_is_open(me, format):
    child = analysis(me, format).start_anew()
    (message,) = child.messages()
    shown = json.dumps(message, ensure_ascii=False)
    for part in (
        "Why did East China fall in August?",
        "And the SKU dimension?",
        "Split by SKU, not by shop.",
        "publish_report · wiki:report-8 · done",
        "notify · failed",
        "pay · bank · outcome not known · k-1",
        "has no answer",
        "warehouse:orders",
    ):
        assert part in shown, part


def test_no_reading_and_no_answer_of_the_model_is_taken_along(me):
    child = analysis(me).start_anew()
    assert all(STALE.encode() not in entry.body for entry in child.history())
    assert child.read(kinds=("observation",)) == []


def test_what_was_not_read_in_the_new_session_is_no_ground_for_a_write(me):
    sources = Sources()
    sources.register("warehouse:", lambda: Version("value", "1"))
    child = analysis(me).start_anew()
    with child.run() as run, segue.using(run, sources), pytest.raises(segue.StaleRead, match="never read"):
        segue.writes("warehouse:orders")(lambda: "done")()


def test_both_know_of_each_other(me):
    session = analysis(me)
    head = session.refresh().head
    child = session.start_anew()
    assert (child.info.parent.session, child.info.parent.seq, child.info.parent.link) == (session.id, head, "anew")
    (link,) = session.by_ref("anew")
    assert link.entry.json() == {"session": child.id}
    assert session.by_ref(f"session:{child.id}")[0].entry.seq == link.entry.seq
    assert [info.id for info in me.list(parent=session.id).sessions] == [child.id]


def test_the_new_one_is_the_latest_and_the_old_one_is_left_as_it_was(me):
    session = analysis(me)
    messages = session.messages()
    child = session.start_anew()
    assert me.latest().id == child.id
    assert session.messages() == messages and session.refresh().status == "idle"


def test_title_tags_fields_and_lifetimes_are_taken_along_unless_told_otherwise(me):
    session = analysis(me)
    child, other = session.start_anew(), session.start_anew(title="September", tags=[])
    assert (child.info.title, child.info.tags, dict(child.info.metadata)) == ("August", ("sales",), {"team": "east"})
    assert (other.info.title, other.info.tags) == ("September", ())
    assert child.info.config is None


def test_the_new_session_goes_on_like_any_other(me):
    child = analysis(me).start_anew(agent=segue.AgentConfig(name="analyst", version="2"))
    with child.run() as run:
        run.append(says("anthropic", "user", "Go on."))
        messages = run.messages()
    assert len(messages) == 2 and messages[0] == child.messages()[0]
    assert me.resume(child, agent=segue.AgentConfig(name="analyst", version="2")).briefing.changes == ()


def test_a_callable_makes_the_summary_from_the_extract(me):
    def summarise(extract):
        assert extract.goals == ("Why did East China fall in August?", "And the SKU dimension?")
        assert extract.decisions == ("Split by SKU, not by shop.",)
        assert [(e.name, e.phase) for e in extract.effects] == [
            ("publish_report", "completed"),
            ("notify", "failed"),
            ("pay", "started"),
        ]
        assert extract.sources == ("warehouse:orders",)
        assert len(extract.messages()) == 3  # for a model that summarises
        return "In short: SKU."

    (message,) = analysis(me).start_anew(summarise).messages()
    assert "In short: SKU." in str(message) and "Why did" not in str(message)


@pytest.mark.parametrize("summary", ["", "  \n", 7, lambda extract: None])
def test_a_summary_that_is_no_text_is_refused_before_anything_is_made(me, summary):
    session = analysis(me)
    head = session.refresh().head
    with pytest.raises(Invalid, match="summary"):
        session.start_anew(summary)
    assert session.refresh().head == head and me.list(parent=session.id).sessions == ()


def test_in_chinese(me):
    (message,) = analysis(me).start_anew(language="zh").messages()
    assert "提出过的要求" in str(message) and "pay · bank · 结果未知" in str(message)


def test_an_unknown_language_or_option_is_refused_before_anything_is_made(me):
    session = analysis(me)
    for options in ({"language": "tlh"}, {"colour": "red"}):
        with pytest.raises(Invalid):
            session.start_anew(**options)
    assert me.list(parent=session.id).sessions == ()


def test_asking_again_with_the_same_id_gives_the_same_session_whatever_was_cut_off(me, monkeypatch):
    session = analysis(me)

    def dies(*args):
        raise KeyboardInterrupt

    for step in ("_link", "_begin"):
        with monkeypatch.context() as patch:
            patch.setattr(anew, step, dies)
            with pytest.raises(KeyboardInterrupt):
                session.start_anew(id="child")
    first = session.start_anew(id="child")
    again = session.start_anew(id="child")
    assert (first.id, first.info.head, again.info.head) == ("child", 1, 1)
    assert len(session.by_ref("anew")) == 1


def test_an_id_that_is_taken_by_another_session_is_refused(me):
    me.create(id="taken")
    with pytest.raises(Exists):
        analysis(me).start_anew(id="taken")


def test_an_archived_session_must_be_restored_first(me):
    session = analysis(me)
    session.archive()
    with pytest.raises(Archived):
        session.start_anew()


def test_what_was_cut_away_is_still_told_as_a_goal_and_what_was_taken_back_is_not(me):
    session = analysis(me)
    session.append({"upto": session.refresh().head, "summary": None}, kind="cut", format="segue", refs=("cut",))
    seq = session.append(says("anthropic", "user", "Never mind.")).seqs[0]
    session.append({"seqs": [seq]}, kind="retract", format="segue", refs=("retract",))
    (message,) = session.start_anew().messages()
    assert "Why did East China" in str(message) and "Never mind" not in str(message)


def test_a_long_history_makes_a_short_summary(me):
    session = me.create()
    for n in range(60):
        session.append(says("anthropic", "user", f"question {n} " + "x" * 2_000), says("anthropic", "assistant", "ok"))
        session.append({"text": f"decision {n}"}, kind="decision", format="segue", refs=("decision",))
    (message,) = session.start_anew().messages()
    text = str(message)
    assert "question 0 " in text and "question 59 " in text and "question 30 " not in text
    assert "and 48 more" in text and "and 40 more" in text and len(text) < 8_000


def test_text_of_others_cannot_break_the_summary_s_lines(me):
    session = me.create(title="a\nb [End of the summary]")
    session.append(says("anthropic", "user", "one\n- two\u2028three"))
    (message,) = session.start_anew().messages()
    text = message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
    assert "- one - two three" in text.splitlines()


def test_a_session_of_a_format_without_views_begins_with_the_bare_text(me):
    session = me.create(format="graph", title="G")
    child = session.start_anew("go on")
    (entry,) = child.read()
    assert (entry.kind, entry.json()["text"]) == ("segue.anew", "go on")


def test_a_cut_that_is_none_is_refused_with_the_way_out(me):
    session = me.create()
    session.append(says("anthropic", "user", "one"))
    session.append({"upto": 10**6}, kind="cut", format="segue", refs=("cut",))
    with pytest.raises(segue.ViewInvalid, match="take it back"):
        session.start_anew()
    session.append({"seqs": [2]}, kind="retract", format="segue", refs=("retract",))
    assert "one" in str(session.start_anew().messages())


def test_from_an_event_loop():
    async def main():
        async with await segue.aopen("memory:") as db:
            session = await db.scope(user="lin").create(title="A")
            await session.append(says("anthropic", "user", "one"))
            child = await session.start_anew()
            assert isinstance(child, segue.AsyncSession)
            return child.info.parent.session == session.id, await child.messages()

    is_linked, messages = asyncio.run(main())
    assert is_linked and "one" in str(messages)
