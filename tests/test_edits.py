"""What is taken back, and what stays: rollbacks, settlements, and what hides something else."""

from __future__ import annotations

import pytest

import segue
import stores
from segue.compaction import Compaction, compact, undo
from view_logs import FORMATS, called, result, said, user


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def me(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db.scope("acme", "lin")


def shown(session):
    return [message["content"] for message in session.messages()]


def ask(text):
    return {"role": "user", "content": text}


# A rollback takes back what its run said


@pytest.mark.parametrize("format", FORMATS)
def test_a_call_of_unknown_outcome_stays_one_when_the_run_that_settled_it_is_rolled_back(me, format):
    session = me.create(format=format)
    with session.run() as run:
        run.append(user(format, "pay"), *called(format, "t1"))
    for _ in range(2):  # the second settles nothing anew
        before = session.messages()
        run = session.run(policy="rollback")
        run.append(user(format, "hello?"), *called(format, "t2"), result(format, "t2"), said(format, "yes"))
        with session.run(policy="rollback"):
            pass
        assert session.messages() == before
        run.release()
    assert "unknown" in str(before)
    assert "removed" not in str(before)
    assert [entry.origin for entry in session.read(kinds=("message",))].count("system") == 1


@pytest.mark.parametrize("between", ["nothing", "another run", "an import", "a fork", "a rollback"])
def test_a_rollback_leaves_an_earlier_run_with_the_same_id_alone(me, between):
    session = me.create()
    with session.run(id="req") as run:
        run.append(ask("finished"))
    if between == "another run":
        with session.run() as run:
            run.append(ask("other"))
    elif between == "an import":
        session.append(ask("imported"))
    elif between == "a fork":
        session = session.fork()
    elif between == "a rollback":
        gone = session.run(id="req")
        gone.append(ask("gone"))
        session.run(policy="rollback").release()
    before = shown(session)
    run = session.run(id="req")
    run.append(ask("half"))
    assert session.run(id="req").fence == run.fence  # a retry is the same run
    run.append(ask("done"))
    with session.run(policy="rollback"):
        assert shown(session) == before
    assert before[0] == "finished"
    assert "gone" not in before


def test_a_run_with_a_new_id_appends_nothing_but_what_it_is_told(me):
    session = me.create()
    for id in ("one", "two"):
        with session.run(id=id) as run:
            run.append(ask(id))
    assert [entry.kind for entry in session.read()] == ["message", "message"]


def test_a_retraction_of_an_older_version_takes_back_the_whole_run(me):
    session = me.create()
    with session.run(id="req") as run:
        run.append(ask("taken back"))
    session.append({"run": "req"}, kind="retract", format="segue", origin="system", refs=("retract",))
    assert shown(session) == []


# An answer stays behind the result that it was given for


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["erased", "taken back"])
@pytest.mark.parametrize("ids", [("t1",), ("t1", "t2")])
def test_an_answer_does_not_move_in_front_of_a_result_that_was_removed(me, format, how, ids):
    session = me.create(format=format)
    session.append(user(format, "delete it?"), *called(format, *ids))
    removed = session.append(*(result(format, id) for id in ids)).seqs[0]
    session.append(said(format, "by the result: yes"), user(format, "go on"))
    before = session.messages()
    if how == "erased":
        session.hollow(removed)
    else:
        session.append({"seqs": [removed]}, kind="retract", format="segue", origin="system", refs=("retract",))
    after = session.messages()
    assert len(after) == len(before)
    texts = [str(message) for message in after]
    answer = next(n for n, text in enumerate(texts) if "by the result" in text)
    assert after[answer] == before[answer]
    assert any("was removed" in text for text in texts[:answer])
    assert not any("was removed" in text for text in texts[answer:])


# What hides something is not erased


def cut(session, turns=6):
    session.append(*(ask(f"question {n} " + "word " * 40) for n in range(turns)))
    return compact(session, Compaction(lambda material: "Goals.", tokens=None), is_forced=True).seq


def refused(session, seq, match):
    before = session.messages()
    with pytest.raises(segue.Invalid, match=match):
        session.hollow(seq)
    assert session.messages() == before
    assert not session.read(after=seq - 1, upto=seq)[0].is_hollow


def test_a_cut_at_which_the_view_starts_is_not_erased_though_a_newer_one_was_undone(me):
    session = me.create()
    first, second = cut(session), cut(session)
    refused(session, second, "is a cut")
    undo(session, second)
    refused(session, first, "is a cut")
    before = session.messages()
    assert session.hollow(second) == 1  # it hides nothing
    refused(session, first, "is a cut")
    assert session.messages() == before
    undo(session, first)
    assert session.hollow(first) == 1


@pytest.mark.parametrize("state", ["listed", "unlisted", "archived"])
def test_a_cut_at_which_the_view_of_a_fork_starts_is_not_erased(me, state):
    session = me.create()
    first = cut(session)
    between = session.fork(listed=state != "unlisted").fork(id="f", listed=state != "unlisted")
    between.append(ask("since"))
    cut(session)
    if state == "archived":
        between.archive()
    refused(session, first, "a cut of the fork")
    if state == "archived":
        between.restore()
    undo(between, first)
    refused(session, first, "a cut of the fork")  # of the one between them
    me.open(between.info.parent.session).erase()
    assert session.hollow(first) == 1


def test_a_forks_own_cut_is_none_of_its_parent(me):
    session = me.create()
    session.append(ask("shared"))
    fork = session.fork()
    first, other = cut(session), cut(fork)
    assert first == other
    cut(session)
    before = fork.messages()
    assert session.hollow(first) == 1
    assert fork.messages() == before


def test_what_was_thought_under_an_undone_cut_is_left_out_though_the_cut_was_erased(me):
    session = me.create()
    newest = cut(session)
    session.append(*called("anthropic", "t1", thinking="under the cut"), result("anthropic", "t1"))
    assert "under the cut" in str(session.messages())
    undo(session, newest)
    before = session.messages()
    assert "under the cut" not in str(before)
    session.hollow(newest)
    assert session.messages() == before


def test_undoing_a_cut_behind_which_another_holds_changes_nothing(me):
    session = me.create()
    first, _ = cut(session), cut(session)
    session.append(*called("anthropic", "t1", thinking="under the second"), result("anthropic", "t1"))
    before = session.view()
    undo(session, first)
    assert (session.view().epoch, session.messages()) == (before.epoch, before.messages)


def test_taking_back_again_what_was_taken_back_changes_nothing(me):
    session = me.create()
    newest = cut(session)
    undo(session, newest)
    session.append(*called("anthropic", "t1", thinking="after the undo"), result("anthropic", "t1"), ask("no"))
    session.append({"seqs": [session.refresh().head]}, kind="retract", format="segue", refs=("retract",))
    before = session.view()
    undo(session, newest)
    session.append({"seqs": [session.refresh().head - 2]}, kind="retract", format="segue", refs=("retract",))
    assert (session.view().epoch, session.messages()) == (before.epoch, before.messages)
    assert "after the undo" in str(before.messages)
