"""From the log to the messages for the model: each promise of a view, and the bug reports that it answers."""

from __future__ import annotations

import json

import pytest

from segue import codec
from segue.errors import Invalid, ViewInvalid
from segue.formats import INTERRUPTED, WITHDRAWN, rules
from segue.tokens import estimate_tokens
from segue.view import View, ViewSpec, build, open_calls, plan_cut
from view_logs import FORMATS, Log, begins_with_opening, called, check_beginning, reported, result, said, strict, user

each_format = pytest.mark.parametrize("format", FORMATS)


def log_of(format: str, *messages) -> Log:
    log = Log(format)
    for message in messages:
        for one in message if isinstance(message, list) else [message]:
            log.add(one)
    return log


def a_turn(format: str, n: int) -> list:
    call_id = f"t{n}"
    made = called(format, call_id)
    return [user(format, f"question {n}"), *made, result(format, call_id), said(format, f"answer {n}")]


def reasons(view: View) -> list[str]:
    return [omission.reason for omission in view.omitted]


def texts_of(view: View) -> str:
    return view.json().decode()


# What is whole is sent as it is.


@each_format
def test_a_complete_history_is_sent_byte_for_byte(format):
    log = Log(format)
    for n in range(3):
        for message in a_turn(format, n):
            log.add(json.dumps(message, indent=n).encode())
    view = log.view()
    assert view.bodies == tuple(entry.body for entry in log.entries)
    assert view.messages == [entry.json() for entry in log.entries]
    assert view.seqs == tuple((entry.seq,) for entry in log.entries)
    assert (view.omitted, view.open_calls, view.synthetic) == ((), (), ())
    assert view.is_settled
    assert json.loads(view.json()) == view.messages


@each_format
def test_an_empty_session_has_an_empty_view(format):
    view = Log(format).view()
    assert view.json() == b"[]"
    assert (view.head, view.cut, view.estimated_tokens) == (0, None, 0)


@each_format
def test_the_same_log_and_spec_give_the_same_view(format):
    log = log_of(format, *a_turn(format, 1), *called(format, "open"))
    assert log.view() == log.view()


def test_only_messages_and_notes_enter():
    log = log_of("anthropic", user("anthropic", "hi"))
    for kind in ("observation", "effect", "derived", "config", "claude.line"):
        log.add({"role": "user", "content": "no"}, kind=kind)
    assert log.view().seqs == ((1,),)


def test_a_view_up_to_a_seq_knows_nothing_of_what_comes_later():
    log = log_of("anthropic", *a_turn("anthropic", 1))
    early = log.view(2)
    log.retract(1)
    log.cut(4)
    assert log.view(2) == early
    assert early.head == 2
    assert [call.id for call in early.open_calls] == ["t1"]


# Kind A: orphan calls and results.


@each_format
def test_a_call_that_a_crash_left_open_is_answered_right_after_it(format):
    """claude-code#1894: later requests were refused for ever."""
    log = log_of(format, user(format, "hi"), *called(format, "T1"), user(format, "go on"))
    stored = [entry.body for entry in log.entries]
    view = log.view()
    strict(format, view.messages)
    assert view.messages[2] == rules(format).settlement(view.open_calls[0])
    assert view.messages[3] == user(format, "go on")
    assert INTERRUPTED in texts_of(view)
    assert view.synthetic == (2,)
    assert view.seqs[2] == ()
    assert not view.is_settled
    assert log.view() == view
    assert [entry.body for entry in log.entries] == stored


@each_format
def test_the_last_message_is_mended_too(format):
    """strands#2025: the repair skipped the last message."""
    log = log_of(format, user(format, "hi"), *called(format, "T1"))
    view = log.view()
    strict(format, view.messages)
    assert view.synthetic == (2,)


@each_format
def test_a_call_cancelled_among_parallel_ones_keeps_the_results_of_the_others(format):
    log = log_of(format, user(format, "hi"), *called(format, "T1", "T2", "T3"), result(format, "T2", "two"))
    view = log.view()
    strict(format, view.messages)
    assert "two" in texts_of(view)
    assert [call.id for call in view.open_calls] == ["T1", "T3"]


@each_format
def test_appending_the_settlements_changes_no_byte_of_the_view(format):
    log = log_of(format, user(format, "hi"), *called(format, "T1", "T2", "T3"), result(format, "T2"))
    view = log.view()
    for call in view.open_calls:
        log.add(rules(format).settlement(call), origin="system")
    settled = log.view()
    assert settled.bodies == view.bodies
    assert (settled.open_calls, settled.synthetic) == ((), ())
    assert settled.is_settled


@each_format
def test_three_orphan_calls_and_an_orphan_result_in_the_middle_heal_and_are_told(format):
    """pydantic-ai#4728: one broken pair bricked the session."""
    log = Log(format)
    for n in range(3):
        for message in (user(format, f"q{n}"), *called(format, f"T{n}"), user(format, "well?"), said(format, f"a{n}")):
            log.add(message)
    log.add(result(format, "never"))
    log.add(user(format, "and now?"))
    view = log.view()
    strict(format, view.messages)
    assert len(view.synthetic) == 3
    assert [(o.first, o.reason) for o in view.omitted] == [(13, "orphan-result")]
    assert view.is_settled, "the model has gone on: nothing appended now can change what it saw"
    assert view.open_calls == ()


@each_format
@pytest.mark.parametrize("last", range(1, 13))
def test_no_window_cuts_a_pair(format, last):
    """strands#1274 and openai-agents#4322: a limited read began with a result whose call was cut away."""
    log = Log(format)
    for n in range(3):
        for message in a_turn(format, n):
            log.add(message)
    view = log.view(last_entries=last)
    strict(format, view.messages)
    assert view.messages
    assert {entry.seq for entry in log.entries} == reported(view), "what was left out is said"
    assert sum(map(bool, view.seqs)) <= max(last, 2)


@each_format
def test_a_second_result_for_a_call_is_left_out(format):
    log = log_of(
        format, user(format, "q"), *called(format, "T1"), result(format, "T1", "one"), result(format, "T1", "two")
    )
    view = log.view()
    strict(format, view.messages)
    assert "one" in texts_of(view)
    assert "two" not in texts_of(view)
    assert reasons(view) == ["duplicate-result"]


@each_format
def test_a_result_that_comes_after_the_model_went_on_is_late_and_said_to_be(format):
    log = log_of(format, user(format, "q"), *called(format, "T1"), user(format, "well?"), said(format, "I lost it"))
    before = log.view()
    log.add(result(format, "T1"))
    view = log.view()
    strict(format, view.messages)
    assert reasons(view) == ["late-result"]
    assert view.bodies == before.bodies, "what the model has seen stands"


@each_format
def test_ids_that_come_twice_are_paired_in_order(format):
    log = log_of(format, user(format, "q"))
    for text in ("first", "second"):
        for message in (*called(format, "same"), result(format, "same", text)):
            log.add(message)
    view = log.view()
    strict(format, view.messages)
    assert view.bodies == tuple(entry.body for entry in log.entries)


@each_format
def test_a_text_between_a_call_and_its_result_follows_the_result(format):
    log = log_of(format, user(format, "q"), *called(format, "T1"), user(format, "hurry"), result(format, "T1"))
    view = log.view()
    strict(format, view.messages)
    assert view.seqs == ((1,), (2,), (4,), (3,))


@each_format
def test_repeated_calls_in_one_turn_are_made_once(format):
    log = log_of(format, user(format, "q"), *called(format, "T1"), *called(format, "T1"), result(format, "T1"))
    view = log.view()
    strict(format, view.messages)
    assert reasons(view)[0] == "duplicate-call"


# Prefixes.


@each_format
def test_what_a_run_hands_out_is_a_prefix_of_all_that_it_hands_out_later(format):
    log = Log(format)
    views = []
    for n in range(4):
        for message in (user(format, f"q{n}"), *called(format, f"a{n}", f"b{n}", text="t", thinking=f"x{n}")):
            log.add(message)
        for call_id in (f"b{n}", f"a{n}"):
            log.add(result(format, call_id))
        views.append(log.view())
        log.add(said(format, f"a{n}"))
        log.note("the table changed")
        views.append(log.view())
    assert len({view.epoch for view in views}) == 1
    for earlier, later in zip(views, views[1:], strict=False):
        assert later.json().startswith(earlier.json()[:-1])


def test_results_that_came_one_by_one_stand_in_one_message_with_their_exact_bytes():
    log = Log("anthropic")
    log.add(user("anthropic", "q"))
    log.add(called("anthropic", "1", "2")[0])
    log.add(b'{"role": "user", "content": [ {"type":"tool_result", "tool_use_id":"1", "content":"\\u4e2d 1.50"} ]}')
    log.add(b'{"content":[{"tool_use_id":"2","type":"tool_result","content":"two"}],"role":"user"}')
    view = log.view()
    assert view.bodies[2] == (
        b'{"role":"user","content":[{"type":"tool_result", "tool_use_id":"1", "content":"\\u4e2d 1.50"},'
        b'{"tool_use_id":"2","type":"tool_result","content":"two"}]}'
    )
    assert view.seqs[2] == (3, 4)


def test_a_text_after_the_last_result_stays_a_message_of_its_own():
    log = log_of("anthropic", user("anthropic", "q"), *called("anthropic", "1"), result("anthropic", "1"))
    before = log.view()
    log.add(user("anthropic", "thanks"))
    after = log.view()
    assert after.bodies[:-1] == before.bodies
    assert after.messages[-1] == user("anthropic", "thanks")


def test_text_in_a_message_with_results_comes_behind_all_results():
    log = log_of("anthropic", user("anthropic", "q"), *called("anthropic", "1", "2"))
    log.add({"role": "user", "content": [{"type": "text", "text": "see"}, *result("anthropic", "1")["content"]]})
    log.add(result("anthropic", "2"))
    view = log.view()
    strict("anthropic", view.messages)
    assert [block["type"] for block in view.messages[2]["content"]] == ["tool_result", "tool_result", "text"]


def test_blocks_of_one_turn_stored_one_by_one_are_joined():
    """The Claude CLI writes one line for each block."""
    thinking = b'{"type":"thinking","thinking":"","signature":"EqQB/+=="}'
    log = log_of("anthropic", user("anthropic", "q"))
    log.add(b'{"role":"assistant","content":[' + thinking + b"]}")
    held = log.view()
    assert held.seqs == ((1,),)
    assert reasons(held) == ["incomplete"]
    for call_id in ("1", "2"):
        log.add(called("anthropic", call_id)[0])
    for call_id in ("1", "2"):
        log.add(result("anthropic", call_id))
    view = log.view()
    strict("anthropic", view.messages)
    assert view.seqs == ((1,), (2, 3, 4), (5, 6))
    assert thinking in view.bodies[1]


# Reasoning.


def test_thinking_with_nothing_after_it_is_left_out_when_the_conversation_goes_on():
    log = log_of("anthropic", user("anthropic", "q"))
    log.add(
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "so"}, {"type": "thinking", "thinking": "", "signature": "x"}],
        }
    )
    log.add(user("anthropic", "well?"))
    view = log.view()
    strict("anthropic", view.messages)
    assert view.messages[1] == {"role": "assistant", "content": [{"type": "text", "text": "so"}]}
    assert reasons(view) == ["reasoning-without-item"]


def test_reasoning_travels_with_its_item_and_is_left_out_without_it():
    log = log_of("openai.responses", user("openai.responses", "q"), *called("openai.responses", "c", thinking="1"))
    log.add(result("openai.responses", "c"))
    assert log.view().bodies == tuple(entry.body for entry in log.entries)
    log.retract(3)
    view = log.view()
    strict("openai.responses", view.messages)
    assert view.seqs == ((1,),)
    assert sorted(reasons(view)) == ["orphan-result", "reasoning-without-item", "retracted"]


def test_an_item_that_lost_its_reasoning_is_sent_without_its_id():
    log = log_of("openai.responses", user("openai.responses", "q"))
    log.add({"type": "reasoning", "id": "rs_1", "summary": []})
    log.add({**said("openai.responses", "hi"), "id": "msg_1"})
    log.retract(2)
    view = log.view()
    assert view.messages[1] == said("openai.responses", "hi")


def test_items_after_a_cut_keep_their_ids_unless_reasoning_was_cut_off():
    log = log_of("openai.responses", user("openai.responses", "q"))
    log.add({**said("openai.responses", "one"), "id": "msg_1"})
    log.add({"type": "reasoning", "id": "rs_1", "summary": []})
    log.add({**said("openai.responses", "two"), "id": "msg_2"})
    assert "msg_1" in texts_of(Log.view(_with_cut(log, 1)))
    assert "msg_2" not in texts_of(_with_cut(log, 3).view())


def _with_cut(log: Log, upto: int) -> Log:
    after = Log(log.format)
    after.entries = list(log.entries)
    after.cut(upto)
    return after


def test_reasoning_of_which_nothing_can_be_found_again_is_left_out():
    log = log_of("openai.responses", user("openai.responses", "q"))
    log.add({"type": "reasoning", "id": "__fake_id__", "summary": []})
    log.add({**said("openai.responses", "hi"), "id": "__fake_id__"})
    view = log.view()
    strict("openai.responses", view.messages)
    assert view.messages == [user("openai.responses", "q"), said("openai.responses", "hi")]


def test_fields_that_an_sdk_keeps_for_itself_are_not_sent():
    item = {**said("openai.responses", "hi"), "id": "msg_1", "provider_data": {"model": "x"}}
    log = log_of("openai.responses", user("openai.responses", "q"), item)
    assert log.view().messages[1] == {**said("openai.responses", "hi"), "id": "msg_1"}


def test_one_item_id_is_sent_once():
    log = log_of("openai.responses", user("openai.responses", "q"))
    for text in ("one", "one", "two"):
        log.add({**said("openai.responses", text), "id": "msg_1"})
    view = log.view()
    strict("openai.responses", view.messages)
    assert [m.get("id") for m in view.messages] == [None, "msg_1", None]
    assert reasons(view) == ["duplicate-item"]


# The provider's own tools, compaction, and what belongs to a request.


SEARCH = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"q": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}


def test_an_item_that_comes_again_is_a_repetition_wherever_a_cut_falls():
    """Found by random histories: behind a cut it was one, in the whole history it was not."""
    items = [{**said("openai.responses", text), "id": "msg_1"} for text in ("v0", "v1", "v1")]
    log = log_of("openai.responses", user("openai.responses", "q"), *items)
    assert [omission[::2] for omission in log.view().omitted] == [(4, "duplicate-item")]
    log.cut(2)
    assert [seqs for seqs in log.view().seqs] == [(3,)]


def test_a_paused_turn_is_sent_as_it_is_so_that_it_can_go_on():
    log = log_of("anthropic", user("anthropic", "q"), {"role": "assistant", "content": [SEARCH]})
    paused = log.view()
    assert paused.bodies == tuple(entry.body for entry in log.entries)
    assert not paused.is_settled
    log.add({"role": "assistant", "content": [FOUND, {"type": "text", "text": "found"}]})
    assert log.view().bodies == tuple(entry.body for entry in log.entries)


def test_a_server_tool_that_never_ended_goes_when_the_conversation_goes_on():
    text = {"type": "text", "text": "let me see"}
    log = log_of(
        "anthropic", user("anthropic", "q"), {"role": "assistant", "content": [text, SEARCH]}, user("anthropic", "stop")
    )
    view = log.view()
    strict("anthropic", view.messages)
    assert view.messages[1]["content"] == [text]
    assert reasons(view) == ["unfinished-call"]


def test_calls_of_an_unfinished_server_tool_go_with_it():
    use = {
        "type": "tool_use",
        "id": "T1",
        "name": "n",
        "input": {},
        "caller": {"type": "code_execution_20260120", "tool_id": "srv1"},
    }
    log = log_of("anthropic", user("anthropic", "q"), {"role": "assistant", "content": [SEARCH, use]})
    log.add(result("anthropic", "T1"))
    under_way = log.view()
    assert under_way.bodies == tuple(entry.body for entry in log.entries), "the provider can go on from here"
    log.add(user("anthropic", "stop"))
    view = log.view()
    strict("anthropic", view.messages)
    assert view.seqs == ((1,), (4,))
    assert {2, 3} <= reported(view)


def test_a_program_goes_on_after_the_calls_that_it_made():
    program = {"type": "program", "id": "p1", "call_id": "pc", "code": "1", "fingerprint": "f"}
    nested = {**called("openai.responses", "c1")[0], "caller": {"type": "program", "caller_id": "pc"}}
    log = log_of("openai.responses", user("openai.responses", "q"), program, nested, result("openai.responses", "c1"))
    assert log.view().bodies == tuple(entry.body for entry in log.entries)
    log.add({**nested, "call_id": "c2"})
    log.add(result("openai.responses", "c2"))
    log.add({"type": "program_output", "id": "p2", "call_id": "pc", "result": "1", "status": "completed"})
    log.add(said("openai.responses", "done"))
    assert log.view().bodies == tuple(entry.body for entry in log.entries)


def test_calls_that_may_be_answered_later_stay_open_and_keep_their_place():
    later = {**called("openai.responses", "c1")[0], "async": True}
    log = log_of("openai.responses", user("openai.responses", "q"), later, said("openai.responses", "working on it"))
    before = log.view()
    assert before.open_calls == ()
    log.add(user("openai.responses", "fine"))
    log.add(result("openai.responses", "c1"))
    view = log.view()
    assert view.bodies == tuple(entry.body for entry in log.entries)
    assert view.bodies[:3] == before.bodies
    assert [unit.may_start for unit in view.units] == [True, True, False, False, False], "no cut parts call and answer"


def test_a_compaction_block_stands_for_all_before_it():
    log = log_of("anthropic", *a_turn("anthropic", 1), *a_turn("anthropic", 2))
    block = {"type": "compaction", "content": "they talked", "encrypted_content": "e", "signature": "s"}
    seq = log.add({"role": "assistant", "content": [block]})
    log.add(user("anthropic", "and now?"))
    log.given = 0
    view = log.view()
    assert view.seqs == ((seq,), (seq + 1,))
    assert view.cut == seq
    assert log.given <= 4, "what lies before is not read"
    failed = log_of(
        "anthropic", *a_turn("anthropic", 1), {"role": "assistant", "content": [{**block, "content": None}]}
    )
    assert failed.view().cut is None


def test_a_compaction_block_without_its_ref_is_seen_on_the_way():
    log = log_of("anthropic", *a_turn("anthropic", 1))
    block = {"type": "compaction", "content": "they talked"}
    log.add({"role": "assistant", "content": [block]}, refs=())
    view = log.view()
    assert view.seqs == ((5,),)
    assert view.cut == 5


def test_the_trigger_of_a_compaction_belongs_to_the_request():
    log = log_of("openai.responses", user("openai.responses", "q"), {"type": "compaction_trigger"})
    view = log.view()
    assert view.seqs == ((1,),)
    assert reasons(view) == ["request-only"]


def test_cache_marks_of_old_requests_are_not_sent_again():
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    tool = {
        "type": "tool_use",
        "id": "T1",
        "name": "n",
        "input": {"cache_control": "mine", "content": [{"cache_control": 1}]},
    }
    log = log_of("anthropic", *[{"role": "user", "content": [marked]}] * 6, {"role": "assistant", "content": [tool]})
    log.add({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "T1", "content": [marked]}]})
    view = log.view()
    assert view.messages[0]["content"] == [{"type": "text", "text": "hi"}]
    assert view.messages[6]["content"][0]["input"] == tool["input"], "a call's input is nobody's business"
    assert view.messages[7]["content"][0]["content"] == [{"type": "text", "text": "hi"}]


def test_a_response_may_be_stored_whole():
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1},
    }
    log = log_of("anthropic", user("anthropic", "q"), {**whole, "content": [{"type": "text", "text": "a"}]})
    assert log.view().messages[1] == {"role": "assistant", "content": [{"type": "text", "text": "a"}]}


def test_images_and_documents_are_sent_as_they_are():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    log = log_of("anthropic", {"role": "user", "content": [image, {"type": "text", "text": "what is it?"}]})
    assert log.view().bodies == (log.entries[0].body,)


def test_a_refusal_is_part_of_the_history_and_an_empty_one_is_left_out():
    chat = log_of("openai.chat", user("openai.chat", "q"), {"role": "assistant", "content": None, "refusal": "no"})
    assert len(chat.view().messages) == 2
    log = log_of("anthropic", user("anthropic", "q"), {"role": "assistant", "content": [], "stop_reason": "refusal"})
    view = log.view()
    assert view.seqs == ((1,),)
    assert reasons(view) == ["empty"]


@each_format
def test_empty_and_half_streamed_messages_are_left_out_or_closed(format):
    """vercel/ai#10638: a partial answer bricked the next request."""
    log = log_of(format, user(format, "q"))
    log.add({"type": "message", "role": "assistant", "content": []})
    half = called(format, "T1")[0]
    if format == "anthropic":
        half["content"][0]["input"] = '{"a": '
    elif format == "openai.chat":
        half["tool_calls"][0]["function"]["arguments"] = '{"a": '
    else:
        half["arguments"] = '{"a": '
    log.add(half)
    log.add(user(format, "go on"))
    view = log.view()
    strict(format, view.messages)
    assert {1, 2, 3, 4} <= reported(view)


def test_an_empty_text_beside_others_is_dropped_and_the_rest_kept():
    log = log_of(
        "anthropic", {"role": "user", "content": [{"type": "text", "text": "\n\n"}, {"type": "text", "text": "hi"}]}
    )
    assert log.view().messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


# Retractions, erasure, other formats.


@each_format
def test_what_was_retracted_is_left_out_and_said(format):
    log = log_of(format, user(format, "one"), said(format, "two"), user(format, "three"))
    before = log.view()
    log.retract(1, 2)
    view = log.view()
    assert view.seqs == ((3,),)
    assert reasons(view) == ["retracted", "retracted"]
    assert view.epoch != before.epoch


@each_format
def test_a_retracted_run_takes_its_messages_and_notes_along(format):
    log = log_of(format, user(format, "q"))
    for message in (*called(format, "T1"), result(format, "T1")):
        log.add(message, run="r2")
    log.add({"source": "file:x"}, kind="observation", run="r2")
    log.retract(run="r2")
    log.add(user(format, "again"), run="r3")
    view = log.view()
    strict(format, view.messages)
    assert [seqs[0] for seqs in view.seqs] == [1, log.entries[-1].seq]


def test_all_after_a_seq_can_be_retracted_but_nothing_that_comes_later():
    log = log_of("anthropic", user("anthropic", "1"), said("anthropic", "2"), user("anthropic", "3"))
    log.retract(after=1)
    log.add(user("anthropic", "5"))
    assert log.view().seqs == ((1,), (5,))


def test_a_retraction_can_be_taken_back():
    log = log_of("anthropic", user("anthropic", "1"), said("anthropic", "2"))
    before = log.view()
    retraction = log.retract(2)
    log.retract(retraction)
    view = log.view()
    assert view.bodies == before.bodies
    assert view.epoch == before.epoch


def test_a_retraction_of_what_is_not_in_the_view_opens_no_epoch():
    log = log_of("anthropic", user("anthropic", "1"), said("anthropic", "2"))
    log.cut(2)
    before = log.view()
    log.retract(1)
    assert log.view().epoch == before.epoch


@each_format
def test_a_call_whose_result_was_erased_keeps_a_result_that_says_so(format):
    log = log_of(format, *a_turn(format, 1))
    log.hollow(3)
    view = log.view()
    strict(format, view.messages)
    assert WITHDRAWN in texts_of(view)
    assert INTERRUPTED not in texts_of(view)
    assert view.open_calls == ()
    assert reasons(view) == ["hollow"]


@each_format
def test_erasing_any_one_entry_leaves_a_valid_view(format):
    for seq in range(1, 11):
        log = log_of(format, *a_turn(format, 1), *called(format, "x", "y", thinking="z"))
        log.add(result(format, "y"))
        log.add(result(format, "x"))
        log.add(user(format, "end"))
        if seq > len(log.entries):
            break
        log.hollow(seq)
        view = log.view()
        strict(format, view.messages)
        assert {entry.seq for entry in log.entries} <= reported(view)


def test_a_corrected_result_takes_the_place_of_a_retracted_one():
    log = log_of("anthropic", user("anthropic", "q"), *called("anthropic", "T1"), result("anthropic", "T1", "wrong"))
    log.retract(3)
    assert WITHDRAWN in texts_of(log.view())
    assert log.view().open_calls == (), "a result was there: nobody has to settle it"
    log.add(result("anthropic", "T1", "right"))
    view = log.view()
    assert "right" in texts_of(view)
    assert view.synthetic == ()


def test_raw_bytes_are_left_out_and_said():
    log = log_of("anthropic", user("anthropic", "q"))
    log.add(b'{"torn', format="raw", refs=())
    view = log.view()
    assert view.seqs == ((1,),)
    assert reasons(view) == ["raw"]


def test_a_message_of_another_format_is_refused_by_name_or_left_out_when_asked():
    log = log_of("anthropic", user("anthropic", "q"))
    log.add({"parts": []}, format="gemini.content", refs=())
    with pytest.raises(ViewInvalid, match=r"entry 2 .*gemini.content.*foreign='omit'") as refused:
        log.view()
    assert refused.value.rule == "foreign-format"
    view = log.view(foreign="omit")
    assert view.seqs == ((1,),)
    assert reasons(view) == ["foreign"]


def test_a_value_that_is_no_message_is_left_out_and_said():
    log = log_of("anthropic", user("anthropic", "q"), {"what": "is this"})
    assert reasons(log.view()) == ["not-a-message"]


# Notes.


@each_format
def test_a_note_is_sent_in_the_very_bytes_that_were_stored(format):
    log = log_of(format, user(format, "q"))
    exact = json.dumps(rules(format).note("数据变了"), ensure_ascii=True, indent=1)
    log.add(b'{"facts": {}, "text": "x", "for": "%s", "message": %s}' % (format.encode(), exact.encode()), kind="note")
    assert log.view().bodies[1] == exact.encode()


def test_a_note_for_another_format_is_told_in_this_one():
    log = log_of("openai.chat", user("openai.chat", "q"))
    log.add({"text": "changed", "for": "anthropic", "message": rules("anthropic").note("changed")}, kind="note")
    assert log.view().messages[1] == rules("openai.chat").note("changed")


def test_a_note_between_call_and_result_waits_for_the_result():
    log = log_of("anthropic", user("anthropic", "q"), *called("anthropic", "1"))
    log.note("changed", "system")
    log.add(result("anthropic", "1"))
    view = log.view()
    strict("anthropic", view.messages)
    assert view.seqs == ((1,), (2,), (4,), (3,))


# Cuts (kinds F and L).


@each_format
def test_a_view_starts_at_the_last_cut_with_its_summary(format):
    log = log_of(format, *a_turn(format, 1), *a_turn(format, 2))
    stored = [entry.body for entry in log.entries]
    summary = rules(format).summary("they counted")
    seq = log.cut(4, summary)
    view = log.view()
    strict(format, view.messages)
    assert view.messages[0] == summary
    assert view.seqs == ((seq,), (5,), (6,), (7,), (8,))
    assert view.cut == seq
    assert [entry.body for entry in log.entries][:8] == stored, "the history stays"


@each_format
def test_five_compactions_leave_every_entry_and_only_the_last_counts(format):
    """codex#44363: compaction rewrote the transcript."""
    log = Log(format)
    for n in range(5):
        for message in a_turn(format, n):
            log.add(message)
        log.cut(len(log.entries), rules(format).summary(f"summary {n}"))
    assert [entry.kind for entry in log.entries].count("message") == 20
    assert log.view().messages == [rules(format).summary("summary 4")]


@each_format
def test_what_came_before_a_cut_is_never_read(format):
    log = Log(format)
    for n in range(500):
        for message in a_turn(format, n):
            log.add(message)
    log.cut(len(log.entries) - 4, rules(format).summary("all that"))
    log.given = 0
    view = log.view()
    assert len(view.messages) == 5
    assert log.given <= 6


def test_a_cut_without_a_summary_only_drops():
    log = log_of("anthropic", *a_turn("anthropic", 1), *a_turn("anthropic", 2))
    log.cut(4)
    assert log.view().seqs == ((5,), (6,), (7,), (8,))


def test_a_summary_may_be_several_messages():
    """codex#41954 and the compact endpoint of OpenAI: users' messages, then one opaque item."""
    log = log_of("openai.responses", *a_turn("openai.responses", 1))
    parts = [user("openai.responses", "question 1"), {"type": "compaction", "encrypted_content": "x"}]
    log.cut(4, parts)
    assert log.view().messages == parts


@each_format
@pytest.mark.parametrize("upto", range(9))
def test_a_cut_anywhere_leaves_whole_units(format, upto):
    """mastra#15274: parallel calls, results in two messages, a cut at every place."""
    log = log_of(format, user(format, "q"), *called(format, "1", "2", "3", "4"))
    for call_id in ("1", "2", "3", "4"):
        log.add(result(format, call_id))
    log.add(said(format, "end"))
    log.cut(min(upto, len(log.entries)), rules(format).summary("before"))
    view = log.view()
    strict(format, view.messages)
    left = {entry.seq for entry in log.entries if entry.kind == "message" and entry.seq > upto}
    assert left <= reported(view)


def test_a_text_only_result_whose_call_was_cut_away_goes_too():
    """semantic-kernel#12708."""
    log = log_of("openai.chat", user("openai.chat", "q"), *called("openai.chat", "123"), result("openai.chat", "123"))
    log.add(user("openai.chat", "next"))
    log.add(said("openai.chat", "end"))
    view = log.view(last_entries=3)
    strict("openai.chat", view.messages)
    assert view.seqs == ((4,), (5,))


def test_a_fork_after_a_cut_sees_what_its_parent_sees():
    """claude-code#40360: the branch brought the old history back."""
    log = Log("anthropic")
    for n in range(25):
        for message in a_turn("anthropic", n):
            log.add(message)
    log.cut(len(log.entries) - 10, rules("anthropic").summary("before"))
    fork = Log("anthropic")
    fork.entries = list(log.entries)
    fork.add(user("anthropic", "elsewhere"))
    parent = log.view()
    assert fork.view(len(log.entries)) == parent
    assert fork.view().bodies[:-1] == parent.bodies
    assert log.view() == parent, "B shows nothing of A, and A nothing of B"


def test_a_cut_that_was_retracted_counts_no_more():
    log = log_of("anthropic", *a_turn("anthropic", 1))
    before = log.view()
    first = log.cut(2, rules("anthropic").summary("one"))
    cut = log.view()
    log.retract(first)
    assert log.view().bodies == before.bodies
    assert len({before.epoch, cut.epoch}) == 2


@pytest.mark.parametrize("body", [{"upto": 99}, {"upto": -1}, {"upto": "1"}, {}, {"upto": 1, "summary": {"x": 1}}])
def test_a_cut_that_cannot_be_read_is_refused_by_name_and_can_be_taken_back(body):
    log = log_of("anthropic", *a_turn("anthropic", 1))
    seq = log.add(body, kind="cut")
    with pytest.raises(ViewInvalid, match=f"entry {seq} .*retract") as refused:
        log.view()
    assert refused.value.rule == "bad-cut"
    log.retract(seq)
    assert len(log.view().messages) == 4


# Windows and budgets.


@each_format
def test_the_newest_turns_begin_with_a_persons_question(format):
    log = Log(format)
    for n in range(4):
        for message in a_turn(format, n):
            log.add(message)
    view = log.view(last_turns=2)
    strict(format, view.messages)
    assert view.messages[0] == user(format, "question 2")
    assert [(o.first, o.last, o.reason) for o in view.omitted] == [(1, 8, "window")]
    assert log.view(last_turns=9).bodies == log.view().bodies


def test_a_window_of_a_long_log_reads_little():
    log = Log("anthropic")
    for n in range(3_000):
        for message in a_turn("anthropic", n):
            log.add(message)
    log.given = 0
    view = log.view(last_turns=3)
    assert len(view.messages) == 12
    assert log.given < 500


def test_notes_before_a_question_belong_to_its_turn():
    log = log_of("anthropic", *a_turn("anthropic", 1))
    log.note("one")
    log.note("two")
    log.add(user("anthropic", "next"))
    assert log.view(last_turns=1).seqs == ((5,), (6,), (7,))


@each_format
def test_a_budget_keeps_whole_units_from_the_newest_back(format):
    log = Log(format)
    for n in range(20):
        for message in a_turn(format, n):
            log.add(message)
    whole = log.view()
    for budget in range(60, whole.estimated_tokens, 37):
        view = log.view(budget_tokens=budget)
        strict(format, view.messages)
        assert view.estimated_tokens <= budget
        shown = view.bodies[begins_with_opening(view) :]
        assert shown == whole.bodies[len(whole.bodies) - len(shown) :]
        assert {entry.seq for entry in log.entries} == reported(view)


def test_a_view_that_leaves_out_its_beginning_never_begins_with_the_assistant():
    """anthropics/anthropic-sdk-typescript#622: some endpoints refuse that; a long turn is cut in the middle."""
    log = log_of("anthropic", user("anthropic", "q"))
    for n in range(9):
        log.add(called("anthropic", f"c{n}")[0])
        log.add(result("anthropic", f"c{n}", "word " * 20))
    for spec in ({"last_entries": 4}, {"budget_tokens": 150}):
        view = log.view(**spec)
        check_beginning(view)
        assert begins_with_opening(view)
        assert view.messages[0]["role"] == "user"
    whole = log.view()
    assert not begins_with_opening(whole)
    log.cut(plan_cut(whole, whole.spec, 150).upto)
    cut = log.view()
    assert begins_with_opening(cut)
    log.add(said("anthropic", "done"))
    assert log.view().bodies[: len(cut.bodies)] == cut.bodies
    log.hollow(1)
    log.retract(20)
    check_beginning(log.view())


@each_format
def test_a_unit_larger_than_the_budget_is_refused_with_its_size(format):
    log = log_of(format, user(format, "q"), *called(format, "1"), result(format, "1", "word " * 5_000))
    with pytest.raises(ViewInvalid, match=r"entries 2 to 3.*tokens.*budget is 100") as refused:
        log.view(budget_tokens=100)
    assert refused.value.rule == "unit-exceeds-budget"


def test_a_window_that_moves_opens_an_epoch_and_one_that_stands_does_not():
    log = log_of("anthropic", *a_turn("anthropic", 1), *a_turn("anthropic", 2))
    one = log.view(last_turns=1)
    log.add(said("anthropic", "more"))
    two = log.view(last_turns=1)
    assert one.epoch == two.epoch
    assert two.bodies[:-1] == one.bodies
    log.add(user("anthropic", "next"))
    assert log.view(last_turns=1).epoch != one.epoch


# Where to cut.


def long_log(format: str, turns: int = 40) -> Log:
    log = Log(format)
    for n in range(turns):
        for message in a_turn(format, n):
            log.add(message)
    return log


@each_format
def test_within_the_budget_nothing_is_cut(format):
    """dotnet/extensions#6890: the summariser dropped messages even when nothing was to be summarised."""
    view = long_log(format).view()
    assert plan_cut(view, view.spec) is None
    assert plan_cut(view, view.spec, view.estimated_tokens) is None


@each_format
@pytest.mark.parametrize("room", [0.0, 0.3, 0.5, 0.9])
def test_a_cut_leaves_room_and_comes_before_a_question(format, room):
    log = long_log(format)
    view = log.view()
    budget = view.estimated_tokens - 1
    cut = plan_cut(view, ViewSpec(format, budget_tokens=budget), room=room)
    assert cut is not None
    assert cut.tokens_after <= budget * (1 - room)
    assert cut.tokens_before == view.estimated_tokens
    log.cut(cut.upto)
    after = log.view()
    assert after.bodies == view.bodies[cut.messages :]
    assert after.estimated_tokens == cut.tokens_after
    assert after.messages[0] in [user(format, f"question {n}") for n in range(40)]


@each_format
def test_a_long_turn_is_cut_between_its_calls(format):
    log = log_of(format, user(format, "q"))
    for n in range(50):
        for message in (*called(format, f"c{n}"), result(format, f"c{n}")):
            log.add(message)
    view = log.view()
    cut = plan_cut(view, view.spec, view.estimated_tokens // 2)
    assert cut is not None
    log.cut(cut.upto, rules(format).summary("so far"))
    strict(format, log.view().messages)


@each_format
def test_a_single_unit_cannot_be_cut(format):
    view = log_of(format, *called(format, "1"), result(format, "1", "word " * 900)).view()
    assert plan_cut(view, view.spec, 10) is None


def test_the_newest_unit_stays_even_when_it_leaves_less_room_than_asked():
    log = log_of("anthropic", *a_turn("anthropic", 1), user("anthropic", "word " * 300))
    view = log.view()
    cut = plan_cut(view, view.spec, view.estimated_tokens - 1, room=0.9)
    assert cut is not None
    assert cut.upto == 4


def test_the_body_of_a_cut_holds_what_a_view_needs():
    view = long_log("anthropic").view()
    cut = plan_cut(view, view.spec, 500)
    log = long_log("anthropic")
    log.add(cut.body(rules("anthropic").summary("x"), observations=["e1"]), kind="cut")
    assert log.view().estimated_tokens < 300
    assert log.entries[-1].json()["tokens_before"] == view.estimated_tokens


def test_room_is_a_share():
    view = long_log("anthropic").view()
    for room in (-0.1, 1, 5):
        with pytest.raises(Invalid, match="room"):
            plan_cut(view, view.spec, 100, room=room)


# Calls that wait for a person.


@each_format
def test_a_view_ends_before_a_call_that_waits_for_a_person(format):
    log = log_of(format, user(format, "q"), *called(format, "ok", "ask"), result(format, "ok"), user(format, "hello?"))
    view = log.view(keep_open=frozenset({"ask"}))
    assert view.seqs == ((1,),)
    assert [call.id for call in view.kept_open] == ["ask"]
    assert view.open_calls == ()
    assert set(reasons(view)) == {"waiting"}
    assert {entry.seq for entry in log.entries} == reported(view)
    log.add(result(format, "ask", "yes"))
    after = log.view(keep_open=frozenset({"ask"}))
    strict(format, after.messages)
    assert len(after.messages) > 3
    assert after.epoch == view.epoch


@each_format
def test_a_call_that_waits_no_longer_holds_anything_back_when_the_model_went_on(format):
    log = log_of(format, user(format, "q"), *called(format, "ask"), user(format, "never mind"), said(format, "fine"))
    view = log.view(keep_open=frozenset({"ask"}))
    strict(format, view.messages)
    assert view.bodies == log.view().bodies
    assert view.kept_open == ()


@each_format
def test_open_calls_are_found_from_the_tail_alone(format):
    log = long_log(format, 300)
    for message in called(format, "x", "y"):
        log.add(message)
    log.add(result(format, "y"))
    log.add(user(format, "hello?"))
    log.given = 0
    assert [call.id for call in open_calls(log, format)] == ["x"]
    assert log.given < 450
    assert open_calls(log, format) == log.view().open_calls
    log.add(result(format, "x"))
    assert open_calls(log, format) == ()


# Specs.


def test_a_spec_is_json_and_back():
    spec = ViewSpec("anthropic", last_turns=3, budget_tokens=1_000, keep_open=frozenset({"b", "a"}), foreign="omit")
    assert ViewSpec.of(codec.decode(codec.encode(spec.value()))) == spec
    assert spec.value()["keep_open"] == ["a", "b"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "gemini"},
        {"last_turns": 0},
        {"last_entries": -1},
        {"budget_tokens": 1.5},
        {"last_turns": True},
        {"foreign": "guess"},
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(Invalid):
        ViewSpec(**{"format": "anthropic", **wrong})


def test_a_spec_of_a_newer_segue_is_refused_by_name():
    with pytest.raises(Invalid, match="pinned"):
        ViewSpec.of({"format": "anthropic", "pinned": [1]})


# Tokens.


def test_estimates_are_of_the_right_size():
    assert 180 <= estimate_tokens("The quick brown fox jumps over the lazy dog. " * 16) <= 240
    assert 180 <= estimate_tokens("把每个地区的订单按周汇总起来。" * 14) <= 250
    assert estimate_tokens("中文".encode()) == estimate_tokens("中文")
    escaped = json.dumps("把每个地区的订单按周汇总起来" * 14)
    assert abs(estimate_tokens(escaped) - estimate_tokens("把每个地区的订单按周汇总起来" * 14)) < 20


def test_an_image_counts_as_one_not_as_its_bytes():
    data = "A" * 400_000
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert 1_500 < estimate_tokens(codec.encode({"role": "user", "content": [block]})) < 2_000
    url = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    assert 1_500 < estimate_tokens(codec.encode(url)) < 2_000


def test_another_counter_can_be_given():
    log = log_of("anthropic", user("anthropic", "q"), said("anthropic", "a"))
    view = build(log, ViewSpec("anthropic"), 2, count=lambda body: 7)
    assert view.estimated_tokens == 14


@each_format
def test_open_calls_of_a_long_log_in_which_nobody_calls_are_found_without_laying_it_out(format, monkeypatch):
    log = Log(format)
    for n in range(3_000):
        log.add(user(format, f"q{n}"))
    monkeypatch.setattr("segue.view._Builder._lay_out", None)
    assert open_calls(log, format) == ()
    monkeypatch.undo()
    first = Log(format)
    first.add(called(format, "c")[0])
    first.entries += [entry._replace(seq=entry.seq + 1) for entry in log.entries]
    assert [call.id for call in open_calls(first, format)] == ["c"]
