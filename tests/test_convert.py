"""A message told in another format: what fits is there, what does not is named, and calls keep their results."""

from __future__ import annotations

from contextlib import closing

import pytest

import segue
from segue import ViewSpec
from segue.convert import FORMATS, convert, convert_all
from segue.errors import Invalid, ViewInvalid
from segue.formats import rules

PIXEL = "iVBORw0KGgo="
USER = {
    "anthropic": {
        "role": "user",
        "content": [
            {"type": "text", "text": "看"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        ],
    },
    "openai.chat": {
        "role": "user",
        "content": [
            {"type": "text", "text": "看"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ],
    },
    "openai.responses": {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "看"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
        ],
    },
}
CALL = {
    "anthropic": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "sql", "input": {"q": "1"}}]}
    ],
    "openai.chat": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "sql", "arguments": '{"q":"1"}'}}],
        }
    ],
    "openai.responses": [{"type": "function_call", "call_id": "t1", "name": "sql", "arguments": '{"q":"1"}'}],
}
RESULT = {
    "anthropic": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}],
    "openai.chat": [{"role": "tool", "tool_call_id": "t1", "content": "ok"}],
    "openai.responses": [{"type": "function_call_output", "call_id": "t1", "output": "ok"}],
}
PAIRS = [(a, b) for a in FORMATS for b in FORMATS]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_texts_pictures_calls_and_results_have_counterparts(source, target):
    assert convert(USER[source], source, target) == ((USER[target],), ())
    assert convert_all(CALL[source], source, target) == (tuple(CALL[target]), ())
    assert convert_all(RESULT[source], source, target) == (tuple(RESULT[target]), ())


@pytest.mark.parametrize("target", ["openai.chat", "openai.responses"])
def test_signed_thinking_and_the_providers_own_blocks_are_left_out_and_named(target):
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "text", "text": "so"},
    ]
    done = convert({"role": "assistant", "content": blocks}, "anthropic", target)
    assert done.left == ("thinking", "server_tool_use")
    assert len(done.messages) == 1
    assert "so" in str(done.messages)
    assert "hm" not in str(done.messages)


def test_a_picture_in_a_result_is_told_where_it_fits_and_named_where_not():
    block = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": USER["anthropic"]["content"]}
    message = {"role": "user", "content": [block]}
    chat = convert(message, "anthropic", "openai.chat")
    assert chat.left == ("the mark of a result that it is an error", "image in a result")
    responses = convert(message, "anthropic", "openai.responses")
    assert responses.messages[0]["output"][1]["image_url"].startswith("data:image/png")


def test_ids_and_names_that_the_other_side_refuses_are_replaced_the_same_by_the_same():
    call = {"type": "function_call", "call_id": "a b|" * 30, "name": "多 tool", "arguments": "not json"}
    output = {"type": "function_call_output", "call_id": "a b|" * 30, "output": "x"}
    made, given = (convert(item, "openai.responses", "anthropic").messages[0]["content"][0] for item in (call, output))
    assert made["id"] == given["tool_use_id"]
    assert made["name"] == "__tool"
    assert made["input"] == {"arguments": "not json"}


def test_no_value_raises():
    values = [None, 1, "x", [], {}, {"role": 1, "content": 2}, {"role": "user", "content": [1, {}, {"type": 3}]}]
    values += [
        {"role": "assistant", "tool_calls": [1, {}]},
        {"type": "function_call"},
        {"type": "message", "content": {}},
    ]
    for value in values:
        for source, target in PAIRS:
            convert(value, source, target)


def test_unknown_formats_are_refused():
    with pytest.raises(Invalid, match="no conversion"):
        convert({}, "anthropic", "gemini")


def told(*messages):
    db = segue.open("memory:")
    session = db.scope().create()
    for format, message in messages:
        session.append(message, format=format)
    return closing(db), session


@pytest.mark.parametrize("target", FORMATS)
def test_a_view_of_a_mixed_history_is_valid_in_every_format(target):
    history = [(f, m) for f in FORMATS for m in (USER[f], *CALL[f], *RESULT[f])]
    history.append(("openai.chat", CALL["openai.chat"][0]))
    db, session = told(*history)
    with db:
        view = session.view(ViewSpec(target, foreign="convert"))
        rules(target).check(view.messages)
        assert set(range(1, 11)) == {seq for seqs in view.seqs for seq in seqs}
        assert len(view.synthetic) == 1  # the last call has no result
        again = session.view(ViewSpec(target, foreign="convert"))
        assert again.json() == view.json()


def test_what_has_no_counterpart_is_reported_by_the_view():
    thinking = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    db, session = told(("anthropic", USER["anthropic"]), ("anthropic", thinking))
    with db:
        view = session.view(ViewSpec("openai.chat", foreign="convert"))
        assert [(one.first, one.reason, one.detail) for one in view.omitted] == [(2, "no-counterpart", "thinking")]


def test_without_being_asked_nothing_is_converted():
    db, session = told(("openai.chat", USER["openai.chat"]))
    with db, pytest.raises(ViewInvalid, match="foreign='convert'"):
        session.view(ViewSpec("anthropic"))


def test_views_grow_by_their_ends():
    db, session = told(("anthropic", USER["anthropic"]))
    with db:
        before = session.view(ViewSpec("openai.responses", foreign="convert")).json()
        session.append(CALL["anthropic"][0], RESULT["anthropic"][0])
        after = session.view(ViewSpec("openai.responses", foreign="convert")).json()
        assert after.startswith(before[:-1])


def test_a_cuts_summary_is_told_in_the_views_format():
    db, session = told(("anthropic", USER["anthropic"]))
    with db:
        summary = {"role": "user", "content": [{"type": "text", "text": "so far"}]}
        session.append({"upto": 1, "summary": summary, "reason": "x"}, kind="cut", format="segue", refs=("cut",))
        view = session.view(ViewSpec("openai.chat", foreign="convert"))
        assert view.messages == [{"role": "user", "content": "so far"}]
