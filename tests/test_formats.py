"""What Segue knows of each format: one message at a time, and the provider's rules for all of them together."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given as each
from hypothesis import settings
from hypothesis import strategies as st

from segue import codec
from segue.errors import ViewInvalid
from segue.formats import INTERRUPTED, Call, call_ref, known_formats, rules
from segue.model import check_name
from view_logs import FORMATS, Log, called, reported, result, said, strict, user

A = rules("anthropic")
R = rules("openai.responses")
C = rules("openai.chat")

THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
USE = {"type": "tool_use", "id": "T1", "name": "look", "input": {}}
GIVEN = {"type": "tool_result", "tool_use_id": "T1", "content": "ok"}
TEXT = {"type": "text", "text": "hello"}
SEARCH = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}
COMPACTION = {"type": "compaction", "content": "before", "encrypted_content": "x", "signature": "y"}


def u(*blocks):
    return {"role": "user", "content": list(blocks)}


def a(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def use(call_id):
    return {**USE, "id": call_id}


def given(call_id):
    return {**GIVEN, "tool_use_id": call_id}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
MARK = {"cache_control": {"type": "ephemeral"}}

ANTHROPIC_GOOD = {
    "plain": [u(TEXT), a(TEXT), u(TEXT)],
    "text as a string": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
    "a call and its result": [u(TEXT), a(TEXT, USE), u(GIVEN)],
    "results before text": [u(TEXT), a(USE), u(GIVEN, TEXT)],
    "parallel calls, results in another order": [u(TEXT), a(use("1"), use("2")), u(given("2"), given("1"))],
    "one id in two turns": [u(TEXT), a(USE), u(GIVEN), a(USE), u(GIVEN)],
    "thinking before a call": [u(TEXT), a(THINKING, USE), u(GIVEN)],
    "thinking at the end of a message whose turn goes on": [u(TEXT), a(THINKING), a(TEXT)],
    "redacted thinking": [u(TEXT), a({"type": "redacted_thinking", "data": "xx"}, TEXT)],
    "an image in the question and in a result": [u(IMAGE, TEXT), a(USE), u({**GIVEN, "content": [IMAGE, TEXT]})],
    "a server tool": [u(TEXT), a(SEARCH, FOUND, TEXT), u(TEXT)],
    "a server tool that ends in the next message": [u(TEXT), a(SEARCH), a(FOUND, TEXT), u(TEXT)],
    "a paused turn": [u(TEXT), a(TEXT, SEARCH)],
    "a call made by a server tool": [u(TEXT), a(SEARCH, USE), u(GIVEN), a(FOUND, TEXT)],
    "a system message": [u(TEXT), {"role": "system", "content": [TEXT], "clear_at": "next_user_message"}, u(TEXT)],
    "a system message with settings alone": [u(TEXT), {"role": "system", "output_config": {"effort": "low"}}],
    "a compaction block first": [a(COMPACTION), u(TEXT)],
    "a failed compaction anywhere": [u(TEXT), a({**COMPACTION, "content": None}, TEXT)],
    "four cache marks": [u({**TEXT, **MARK}, {**TEXT, **MARK}), a(TEXT), u({**TEXT, **MARK}, {**TEXT, **MARK})],
    "an empty result": [u(TEXT), a(USE), u({"type": "tool_result", "tool_use_id": "T1"})],
    "nothing at all": [],
}

ANTHROPIC_BAD = {
    "call-without-result": [
        [u(TEXT), a(USE)],
        [u(TEXT), a(USE), u(TEXT)],
        [u(TEXT), a(use("1"), use("2")), u(given("1"))],
        [u(TEXT), a(use("1"), use("2")), u(given("1")), u(given("2"))],
        [u(TEXT), a(USE), {"role": "system", "content": "wait"}, u(GIVEN)],
        [u(TEXT), a(USE), {"role": "user", "content": "go on"}, u(GIVEN)],
        [u(TEXT), a(USE), u(TEXT, GIVEN)][:2],
    ],
    "result-without-call": [
        [u(GIVEN)],
        [u(TEXT), a(TEXT), u(GIVEN)],
        [u(TEXT), a(USE), u(GIVEN), a(TEXT), u(GIVEN)],
        [u(TEXT), a(GIVEN)],
    ],
    "duplicate-result": [[u(TEXT), a(use("1"), use("2")), u(given("1"), given("1"), given("2"))]],
    "duplicate-call": [[u(TEXT), a(USE, USE), u(GIVEN)], [u(TEXT), a(SEARCH, SEARCH, FOUND)]],
    "result-after-text": [[u(TEXT), a(USE), u(TEXT, GIVEN)]],
    "empty-text": [
        [u({"type": "text", "text": ""})],
        [{"role": "user", "content": ""}],
        [u(TEXT), a({"type": "text", "text": " \n"})],
        [u(TEXT), a(USE), u({**GIVEN, "content": [{"type": "text", "text": ""}]})],
        [{"role": "system", "content": "  "}],
    ],
    "empty-message": [[u()], [u(TEXT), a()], [{"role": "system", "content": []}]],
    "cache-mark-on-empty-text": [[u({"type": "text", "text": "", **MARK})]],
    "too-many-cache-marks": [[u(*[{**TEXT, **MARK}] * 5)]],
    "trailing-thinking": [[u(TEXT), a(TEXT, THINKING)], [u(TEXT), a(THINKING), u(TEXT)]],
    "server-result-without-call": [[u(TEXT), a(FOUND)]],
    "unfinished-call": [[u(TEXT), a(SEARCH), u(TEXT)], [u(TEXT), a(SEARCH, USE), u(GIVEN, TEXT)]],
    "compaction-not-first": [[u(TEXT), a(COMPACTION)], [a(TEXT, COMPACTION)]],
    "unknown-field": [[{"role": "user", "content": "hi", k: "x"}] for k in ("id", "clear_at")],
    "message-shape": [["hi"], [{"role": "tool", "content": "x"}], [{"role": "user", "content": 5}], [u({"text": "x"})]],
    "too-many-messages": [[{"role": "user", "content": "x"}] * 100_001],
}

REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
ASKED = {"role": "user", "content": "hi"}
PROGRAM = {"type": "program", "id": "p1", "call_id": "pc", "code": "1", "fingerprint": "f"}
ENDED = {"type": "program_output", "id": "p2", "call_id": "pc", "result": "1", "status": "completed"}
COMPACTED = {"type": "compaction", "encrypted_content": "x"}
APPROVAL = {"type": "mcp_approval_request", "id": "ap1", "arguments": "{}", "name": "n", "server_label": "s"}
APPROVED = {"type": "mcp_approval_response", "approval_request_id": "ap1", "approve": True}

RESPONSES_GOOD = {
    "plain": [ASKED, SAID],
    "a call and its output": [ASKED, CALL, OUTPUT],
    "an output later on": [ASKED, CALL, ASKED, OUTPUT],
    "reasoning, call, output": [ASKED, REASONING, CALL, OUTPUT],
    "reasoning of which only the encrypted content is known": [
        {"type": "reasoning", "encrypted_content": "x", "summary": []},
        SAID,
    ],
    "reasoning, message": [ASKED, REASONING, SAID],
    "two pieces of reasoning": [REASONING, {**REASONING, "id": "rs_2"}, SAID],
    "a program under way": [ASKED, PROGRAM, {**CALL, "caller": {"type": "program", "caller_id": "pc"}}, OUTPUT],
    "a program that ended": [ASKED, PROGRAM, ENDED, SAID, ASKED],
    "an approval that is waited for": [ASKED, APPROVAL],
    "an approval given": [ASKED, APPROVAL, APPROVED],
    "an asynchronous call": [ASKED, {**CALL, "async": True}, SAID],
    "a trigger at the end": [ASKED, SAID, {"type": "compaction_trigger"}],
    "compaction after the users' messages": [ASKED, COMPACTED, ASKED],
    "an unknown item": [ASKED, {"type": "something_new", "x": 1}, SAID],
    "settings": [{"type": "additional_tools", "role": "developer", "tools": []}, ASKED],
    "other calls": [
        {"type": "shell_call", "call_id": "s", "action": {"commands": []}},
        {"type": "shell_call_output", "call_id": "s", "output": []},
        {"type": "custom_tool_call", "call_id": "t", "name": "n", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "t", "output": "y"},
        {"type": "local_shell_call", "id": "l1", "call_id": "l", "action": {}, "status": "completed"},
        {"type": "local_shell_call_output", "id": "l", "output": "y"},
    ],
}  # fmt: skip

RESPONSES_BAD = {
    "call-without-result": [[ASKED, CALL], [PROGRAM, CALL], [{"type": "shell_call", "call_id": "s", "action": {}}]],
    "result-without-call": [[OUTPUT], [OUTPUT, CALL], [ENDED], [APPROVED]],
    "duplicate-result": [[CALL, OUTPUT, OUTPUT]],
    "duplicate-call": [[CALL, CALL, OUTPUT]],
    "reasoning-without-item": [[ASKED, REASONING], [REASONING, ASKED, SAID], [CALL, REASONING, OUTPUT]],
    "reasoning-without-id": [[{"type": "reasoning", "summary": []}, SAID]],
    "duplicate-item-id": [[{**SAID, "id": "m1"}, {**SAID, "id": "m1"}]],
    "missing-item-id": [[{"type": "web_search_call", "status": "completed"}]],
    "trigger-not-last": [[{"type": "compaction_trigger"}, ASKED]],
    "unfinished-call": [[PROGRAM, ASKED]],
    "empty-message": [[{"role": "user", "content": ""}], [{**SAID, "content": []}]],
    "message-shape": [[5], [{"x": 1}], [{"type": "message", "role": "user"}], [{"type": "function_call", "name": "n"}]],
}  # fmt: skip

CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look"}}],
}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "ok"}

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
OLD_CALL = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}

CHAT_GOOD = {
    "plain": [{"role": "system", "content": "be brief"}, ASKED, {"role": "assistant", "content": "ho"}],
    "a call and its result": [ASKED, CALLING, TOLD],
    "one id in two turns": [ASKED, CALLING, TOLD, CALLING, TOLD],
    "a refusal": [ASKED, {"role": "assistant", "content": None, "refusal": "no"}],
    "an image": [{"role": "user", "content": [PICTURE]}],
    "the older kind of call": [ASKED, OLD_CALL, {"role": "function", "name": "f", "content": "1"}],
}

CHAT_BAD = {
    "call-without-result": [[ASKED, CALLING], [ASKED, CALLING, ASKED, TOLD], [CALLING, CALLING, TOLD, TOLD]],
    "result-without-call": [[TOLD], [CALLING, TOLD, ASKED, TOLD]],
    "duplicate-result": [[CALLING, TOLD, TOLD]],
    "duplicate-call": [[{**CALLING, "tool_calls": CALLING["tool_calls"] * 2}, TOLD]],
    "empty-calls": [[ASKED, {"role": "assistant", "content": "x", "tool_calls": []}]],
    "empty-message": [[ASKED, {"role": "assistant", "content": ""}], [{"role": "user", "content": []}]],
    "message-shape": [["x"], [{"role": "robot", "content": "x"}], [{"role": "tool", "content": "x"}]],
}

_GOOD = {"anthropic": ANTHROPIC_GOOD, "openai.responses": RESPONSES_GOOD, "openai.chat": CHAT_GOOD}
_BAD = {"anthropic": ANTHROPIC_BAD, "openai.responses": RESPONSES_BAD, "openai.chat": CHAT_BAD}
GOOD = [(f, name, messages) for f, table in _GOOD.items() for name, messages in table.items()]
BAD = [(f, rule, m) for f, table in _BAD.items() for rule, cases in table.items() for m in cases]


@pytest.mark.parametrize(("format", "name", "messages"), GOOD, ids=[f"{f}: {n}" for f, n, _ in GOOD])
def test_what_the_provider_takes_passes_the_check(format, name, messages):
    rules(format).check(messages)


@pytest.mark.parametrize(("format", "rule", "messages"), BAD, ids=[f"{f}: {r} {n}" for n, (f, r, _) in enumerate(BAD)])
def test_each_rule_of_the_provider_refuses_what_breaks_it_and_names_the_place(format, rule, messages):
    with pytest.raises(ViewInvalid) as refused:
        rules(format).check(messages)
    assert refused.value.rule == rule
    assert refused.value.where or rule == "too-many-messages"
    assert "messages[" in str(refused.value) or "input[" in str(refused.value) or rule == "too-many-messages"


def test_a_call_that_may_wait_is_allowed_at_the_end():
    for format in FORMATS:
        messages = [user(format, "hi"), *called(format, "c1")]
        rules(format).check(messages, may_be_open=frozenset({"c1"}))
        with pytest.raises(ViewInvalid):
            rules(format).check(messages, may_be_open=frozenset({"other"}))


def test_each_format_tells_calls_results_and_questions_apart():
    for format in FORMATS:
        known = rules(format)
        call = called(format, "c1")[-1]
        answer = result(format, "c1")
        assert [c.id for c in known.calls(call)] == ["c1"]
        assert [c.name for c in known.calls(call)] == ["look"]
        assert known.results(answer) == ("c1",)
        assert known.refs(call) == known.refs(answer) == ("call:c1",)
        assert known.is_question(user(format, "hi"))
        assert not known.is_question(answer)
        assert not known.is_question(said(format, "hi"))
        assert known.role(user(format, "hi")) == "user"
        assert known.role(said(format, "hi")) == "assistant"


def test_a_result_with_text_beside_it_does_not_start_a_turn():
    assert not A.is_question(u(GIVEN, TEXT))
    assert A.is_question(u(IMAGE))


def test_reasoning_that_must_stay_with_what_follows_is_recognised():
    assert A.is_reasoning(a(THINKING))
    assert not A.is_reasoning(a(THINKING, USE))
    assert R.is_reasoning(REASONING)
    assert not R.is_reasoning(CALL)
    assert not C.is_reasoning({"role": "assistant", "content": "x", "reasoning_content": "y"})


def test_server_tools_answered_in_the_same_message_are_no_open_calls():
    assert A.calls(a(SEARCH, FOUND)) == ()
    assert [c.owner for c in A.calls(a(SEARCH, USE))] == ["server", "client"]
    assert A.results(a(FOUND)) == ("srv1",)


def test_a_compaction_block_is_found_by_its_ref_and_a_failed_one_is_none():
    assert A.refs(a(COMPACTION)) == ("compaction",)
    assert A.refs(a({**COMPACTION, "content": None})) == ()


@pytest.mark.parametrize("format", known_formats())
@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, 1.5, "x", [], [1], {}),
        *({"role": None}, {"role": "user"}, {"role": ["x"], "content": "x"}, {"type": 5}, {"type": ["message"]}),
        {"role": "user", "content": [None]},
        {"role": "assistant", "content": [[]]},
        {"role": "assistant", "content": [{"type": "tool_use"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": 5}]},
        {"type": "function_call", "call_id": 5},
        {"role": "assistant", "tool_calls": [5]},
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "function_call": 5},
        {"role": "tool", "tool_call_id": {}},
        {"type": "reasoning"},
    ],
)
def test_no_json_value_makes_a_format_stumble(format, value):
    known = rules(format)
    ids = (*[call.id for call in known.calls(value)], *known.results(value))
    assert known.refs(value) == tuple(call_ref(call_id) for call_id in ids)
    assert known.role(value) in ("", "user", "assistant")
    assert known.is_question(value) in (True, False)
    assert known.is_reasoning(value) in (True, False)


_WORDS = st.sampled_from(
    [
        *("role", "content", "type", "text", "user", "assistant", "tool", "id", "call_id", "name", "input", "caller"),
        *("tool_use", "tool_result", "tool_use_id", "tool_calls", "function", "function_call", "function_call_output"),
        *("reasoning", "message", "thinking", "server_tool_use", "web_search_tool_result", "program"),
        *("program_output", "compaction", "cache_control"),
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=6),
    max_leaves=20,
)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=100, deadline=None)
@each(values=st.lists(_JSON, max_size=5))
def test_anything_that_is_json_gives_a_valid_view_or_is_reported(format, values):
    log = Log(format)
    for value in values:
        log.add(value)
    view = log.view()
    strict(format, view.messages)
    assert {e.seq for e in log.entries} <= reported(view)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=100, deadline=None)
@each(values=st.lists(_JSON, max_size=3))
def test_a_check_of_anything_says_yes_or_why_not(format, values):
    try:
        rules(format).check(values)
    except ViewInvalid as refused:
        assert refused.rule
        assert refused.where


def test_settlements_are_valid_results_of_every_kind_of_call():
    kinds = {
        "function_call": CALL,
        "custom_tool_call": {"type": "custom_tool_call", "call_id": "c1", "name": "n", "input": ""},
        "shell_call": {"type": "shell_call", "call_id": "c1", "action": {"commands": []}},
        "apply_patch_call": {"type": "apply_patch_call", "call_id": "c1", "operation": {}, "status": "completed"},
        "computer_call": {"type": "computer_call", "id": "x1", "call_id": "c1", "pending_safety_checks": []},
        "local_shell_call": {"type": "local_shell_call", "id": "x2", "call_id": "c1", "action": {}},
        "tool_search_call": {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {}},
    }
    for kind, item in kinds.items():
        (call,) = R.calls(item)
        assert call.kind == kind
        R.check([ASKED, item, R.settlement(call)])
    for known, call in ((A, a(USE)), (C, CALLING), (C, OLD_CALL)):
        known.check([ASKED, call, known.settlement(known.calls(call)[0])])


def test_a_settlement_says_that_the_outcome_is_unknown_and_is_an_error_where_the_format_has_one():
    block = A.settlement(Call("T1"))["content"][0]
    assert block["is_error"] is True
    assert block["content"] == INTERRUPTED
    for word in ("Interrupted", "unknown", "Check", "repeat"):
        assert word in INTERRUPTED
    assert A.settlement(Call("T1"), "denied by Lin")["content"][0]["content"] == "denied by Lin"


def test_a_result_of_a_toolset_member_names_its_family():
    (call,) = A.calls(a({**USE, "toolset_name": "browser"}))
    assert A.settlement(call)["content"][0]["toolset_name"] == "browser"


def test_notes_have_the_carrier_that_was_asked_for():
    assert A.note("x")["role"] == "user"
    assert A.note("x", "system")["role"] == "system"
    assert R.note("x")["role"] == "developer"
    assert C.note("x")["role"] == "system"
    assert C.note("x", "developer")["role"] == "developer"
    assert R.note("x", "user-text")["role"] == "user"
    for format in FORMATS:
        for carrier in (None, "system", "developer", "user-text"):
            rules(format).check([user(format, "hi"), rules(format).note("x", carrier), user(format, "ho")])


def test_a_summary_is_a_message_in_the_users_role():
    for format in FORMATS:
        assert rules(format).role(rules(format).summary("before")) == "user"


def test_ids_that_cannot_be_a_ref_are_hashed_and_still_match():
    for odd in ("x" * 400, "a\nb", "", "会" * 100):
        assert check_name(call_ref(odd), "ref") == call_ref(odd)
        assert call_ref(odd).startswith("call:#")
    assert call_ref("会话") == "call:会话"


def test_looking_at_a_message_never_changes_it():
    for format, _, messages in GOOD:
        before = copy.deepcopy(messages)
        for message in messages:
            rules(format).refs(message)
        rules(format).check(messages)
        assert messages == before
        codec.encode(messages)


def test_an_unknown_format_has_no_rules():
    assert rules("gemini.content") is None
    assert known_formats() == ("anthropic", "openai.chat", "openai.responses")
