"""Public bug reports of the kinds A (orphan calls), L (compaction), M (partials) and R (tokens), as tests."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys

import pytest

import fakes
import segue
from import_samples import REAL
from segue import usage
from segue.compaction import Compaction, compact
from segue.errors import OutcomeUnknown
from segue.formats import rules
from segue.importers import import_file
from segue.model import Usage
from segue.view import ViewSpec, plan_cut
from test_plain_chat import ask, chat_of

CALL = {"type": "tool_use", "id": "T1", "name": "step", "input": {"name": "x", "n": 1}}


@pytest.fixture
def session(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/s.db") as db:
        yield db.scope().create()


@pytest.fixture
def server():
    with fakes.serve() as server:
        server.clients = []
        yield server
        for client in server.clients:
            client.close()
        assert server.refused == []


def user(text):
    return {"role": "user", "content": text}


def calls(*ids):
    return {"role": "assistant", "content": [{**CALL, "id": id} for id in ids]}


def results(*ids):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "ok"} for id in ids]}


def test_report_1_a_killed_call_is_closed_and_the_next_question_is_accepted(session, server):
    session.append(user("do 1 #x"), calls("T1"))
    stored = [e.body for e in session.read()]
    assert session.messages() == session.messages()
    with session.run() as run:
        assert chat_of(run, server, "anthropic").send("go on").text.startswith("Done")
    assert [e.body for e in session.read()][:2] == stored


def test_report_2_the_only_call_at_the_very_end_is_closed_too(session):
    session.append(user("a"), calls("T1"))
    assert session.messages()[-1]["content"][0]["is_error"]
    session.append(user("b"))
    rules("anthropic").check(session.messages())


def test_reports_3_and_4_no_window_begins_with_half_a_pair(session):
    for n in range(4):
        session.append(user(f"q{n}"), calls(f"T{n}"), results(f"T{n}"))
    for last in range(1, 13):
        rules("anthropic").check(session.view(ViewSpec("anthropic", last_entries=last)).messages)


def test_report_4_nor_one_of_responses_items(tmp_path):
    with segue.open("memory:") as db:
        session = db.scope().create(format="openai.responses")
        session.append(
            {"type": "message", "role": "user", "content": "a"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        )
        assert len(session.read(last=2)) == 2
        for last in range(1, 5):
            view = session.view(ViewSpec("openai.responses", last_entries=last))
            rules("openai.responses").check(view.messages)


def test_report_5_cancelled_in_the_first_tool_it_takes_a_new_question(session, server):
    def step(name: str, n: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.run() as run:
        chat_of(run, server, "anthropic", tools=[step]).send("do 1 #x")
    with session.run() as run:
        assert chat_of(run, server, "anthropic").send("never mind").text.startswith("Done")


def test_report_6_three_orphan_calls_and_an_orphan_result_make_a_valid_view(session):
    session.append(user("a"), calls("T1"), user("b"), calls("T2"), user("c"), results("T9"), calls("T3"), user("d"))
    view = session.view()
    rules("anthropic").check(view.messages)
    assert [o.reason for o in view.omitted] == ["orphan-result"]


def test_report_64_what_a_compaction_holds_is_in_the_view(session):
    session.append(user("old"))
    kept = [user("kept question"), {"role": "assistant", "content": "kept answer"}]
    session.append({"upto": 1, "summary": kept}, kind="cut", format="segue", refs=("cut",))
    assert session.messages() == kept


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")
def test_report_64_so_it_is_with_the_recorded_rollout(tmp_path):
    """Its texts are trimmed to one and the same; here each is its own, so that none may hide behind another."""
    lines = (REAL / "agent-sessions/codex/small.jsonl").read_text().splitlines()
    numbers = itertools.count()
    rollout = tmp_path / "rollout.jsonl"
    unique = [re.sub(r"\[trimmed for fixture\]", lambda _: f"text {next(numbers)}", line) for line in lines]
    rollout.write_text("\n".join(unique))
    records = [json.loads(line) for line in unique]
    compacted = [one["payload"]["replacement_history"] for one in records if one.get("type") == "compacted"]
    assert len(compacted) == 6
    with segue.open("memory:") as db:
        report = import_file(db.scope(), rollout)
        session = db.scope().open(report.sessions[0].id)
        cuts = [hit.entry.seq for hit in session.by_ref("cut")]
        assert len(cuts) == 6
        for n, kept in enumerate(compacted):
            upto = cuts[n + 1] - 1 if n + 1 < len(cuts) else session.info.head
            view = session.view(upto=upto)
            assert view.cut == cuts[n]
            shown = json.dumps(view.messages)
            texts = [
                part["text"]
                for item in kept
                if item.get("role") == "user"
                for part in item["content"]
                if "text" in part
            ]
            assert texts and all(f'"{text}"' in shown for text in texts)


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")
def test_report_84_so_it_is_with_the_recorded_rollouts():
    with segue.open("memory:") as db:
        for name in ("parent", "branch"):
            import_file(db.scope(), REAL / f"ccusage/branch-history/{name}.jsonl")
        total = usage.add(info.usage for info in db.scope().iterate(unlisted=True))
        assert total.input + total.output == 2_050


@pytest.mark.parametrize("when", ["before", "at"])
def test_report_65_a_cut_that_fails_to_be_written_leaves_the_history_as_it_was(session, monkeypatch, when):
    for n in range(8):
        session.append(user(f"q{n} " + "word " * 40), {"role": "assistant", "content": f"a{n}"})
    before = session.view().json()
    store = session.log.engine.store
    commit = store.commit

    def failing(ops):
        if when == "at":
            commit(ops)
        raise OutcomeUnknown("the disk is gone")

    monkeypatch.setattr(store, "commit", failing)
    with pytest.raises(segue.SegueError):
        compact(session, Compaction(lambda m: "Goals.", tokens=200))
    monkeypatch.undo()
    view = session.view()
    assert view.json() == before or view.cut is not None  # all of it or nothing of it
    assert len(session.read(kinds=("message",))) == 16


def test_report_66_no_cut_keeps_a_result_and_drops_its_call(tmp_path):
    with segue.open("memory:") as db:
        session = db.scope().create(format="openai.chat")
        call = {"id": "123", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        session.append(
            {"role": "system", "content": "s"},
            user("a"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "123", "content": "text only"},
            user("b"),
            {"role": "assistant", "content": "c"},
        )
        for last in range(1, 7):
            rules("openai.chat").check(session.view(ViewSpec("openai.chat", last_entries=last)).messages)


def test_report_67_below_the_threshold_the_view_is_what_it_was(session):
    session.append(user("a"), calls("T1"), results("T1"), {"role": "assistant", "content": "b"})
    before = session.view().json()
    assert compact(session, Compaction(lambda m: "x", tokens=100_000)).reason == "not-needed"
    assert session.view().json() == before


def test_report_68_parallel_calls_stay_with_all_their_results_wherever_it_is_cut(session):
    session.append(user("a"), {"role": "assistant", "content": "b"}, user("c"))
    session.append(calls("T1", "T2", "T3", "T4"), results("T1", "T2"), results("T3", "T4"))
    session.append({"role": "assistant", "content": "d"}, user("e"))
    view = session.view()
    for budget in range(5, view.estimated_tokens):
        cut = plan_cut(view, view.spec, budget)
        if cut is not None:
            rules("anthropic").check(view.messages[cut.messages :])
            assert cut.upto not in (4, 5)


def test_report_69_empty_and_half_streamed_messages_never_reach_the_provider(session, server):
    session.append(user("a"), {"role": "assistant", "content": []})
    server.faults = [("cut", 12)]
    with session.run() as run:
        chat = chat_of(run, server, "anthropic")
        with pytest.raises(segue.NotDone):
            ask(chat, "do 1 #x", is_streamed=True, id="q")
        assert session.read(kinds=("segue.partial",))
        assert ask(chat, "do 1 #x", is_streamed=True, id="q").text.startswith("Done")


def test_report_70_stopped_between_the_streamed_call_and_its_tool(session, server):
    with session.run() as run:
        pieces = chat_of(run, server, "anthropic").stream("do 1 #x")
        for delta in pieces:
            if delta.kind == "arguments":
                pieces.close()
                break
    with session.run() as run:
        assert chat_of(run, server, "anthropic").send("go on").text.startswith("Done")


def test_report_71_what_append_returned_for_survives_an_exit_at_once(tmp_path):
    program = (
        "import os, segue; s = segue.open(f'sqlite:///{os.sys.argv[1]}').scope().create(id='s');"
        "s.append({'role': 'user', 'content': 'a'}); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, f"{tmp_path}/x.db"], check=True)
    with segue.open(f"sqlite:///{tmp_path}/x.db") as db:
        assert db.scope().open("s").messages() == [user("a")]


def test_reports_82_and_83_lines_of_one_message_count_once_and_with_the_last_counts():
    found = usage.once([("m", Usage(500, 9)), ("m", Usage(500, 9)), ("m", Usage(500, 159))])
    assert usage.add(one for one in found if one) == Usage(500, 159)


def test_report_84_a_fork_does_not_count_its_parents_history_again(session):
    session.append({"role": "assistant", "content": "a"}, usage=Usage(1_000, 200))
    fork = session.fork()
    fork.append({"role": "assistant", "content": "b"}, usage=Usage(800, 50))
    total = usage.add(one.refresh().usage for one in (session, fork))
    assert total.input + total.output == 2_050


def test_report_85_a_sub_agent_is_counted_in_full(session):
    session.append({"role": "assistant", "content": "a"}, usage=Usage(1_000, 200))
    child = session.child("helper")
    child.append({"role": "assistant", "content": "b"}, usage=Usage(300, 30))
    assert child.refresh().usage == Usage(300, 30)
