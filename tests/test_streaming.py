"""Accumulators: only what is complete is an answer; what repeats changes nothing; what cannot follow is an error."""

from __future__ import annotations

import threading

import pytest

from segue.model import Usage
from segue.streaming import AnthropicStream, ChatStream, Delta, Deltas, ResponsesStream, StreamBroken


def anthropic_events(**usage):
    start = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": {**start, "usage": {"input_tokens": 10, "output_tokens": 1}}}
    yield {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    }
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s1"}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s2"}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "你"}}
    yield {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "好"}}
    yield {"type": "content_block_stop", "index": 1}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    yield {"type": "content_block_start", "index": 2, "content_block": call}
    for piece in ("", '{"a": ', "1}"):
        yield {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": piece}}
    yield {"type": "content_block_stop", "index": 2}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9, **usage}}
    yield {"type": "message_stop"}


def collected(stream, events):
    for event in events:
        stream.add(event)
    return stream


def test_a_message_is_whole_after_its_last_event_and_not_before():
    stream = AnthropicStream()
    for event in anthropic_events():
        assert stream.answer is None
        stream.add(event)
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s2"},
        {"type": "text", "text": "你好"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
    ]
    assert stream.answer.messages == [{"role": "assistant", "content": content}]
    assert (stream.answer.usage, stream.answer.stop) == (Usage(input=10, output=9), "tool_use")


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_broken_message_keeps_its_finished_blocks_and_the_text_under_way(cut):
    stream = collected(AnthropicStream(), list(anthropic_events())[:cut])
    assert stream.answer is None
    kinds = [block["type"] for block in stream.partial.blocks]
    assert kinds == ["thinking", "text", "tool_use"][: (cut >= 6) + (cut >= 10) + (cut >= 15)]
    assert stream.partial.text == {8: "你", 9: "你好"}.get(cut, "")


def test_counts_that_shrink_are_not_believed_and_absent_ones_stay():
    stream = collected(AnthropicStream(), anthropic_events(input_tokens=3, cache_read_input_tokens=None))
    assert stream.answer.usage == Usage(input=10, output=9)


@pytest.mark.parametrize("order", [(0, 2), (1, 0), (0, 5), (0, 1, 7), (0, 1, 16)])
def test_events_that_cannot_follow_are_an_error(order):
    events = list(anthropic_events())
    with pytest.raises(StreamBroken):
        collected(AnthropicStream(), [events[n] for n in order])


def test_a_finished_block_that_comes_again_changes_nothing():
    events = list(anthropic_events())
    stream = collected(AnthropicStream(), [*events[:10], *events[1:]])
    assert stream.answer == collected(AnthropicStream(), events).answer


def test_arguments_that_are_no_json_are_an_error():
    events = [e for e in anthropic_events() if e.get("delta", {}).get("partial_json") != "1}"]
    with pytest.raises(StreamBroken):
        collected(AnthropicStream(), events)


def test_what_a_newer_api_sends_is_passed_over_or_refused_by_name():
    stream = AnthropicStream()
    stream.add({"type": "from_2030"})
    events = list(anthropic_events())[:2]
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "odor_delta"}}
    with pytest.raises(StreamBroken, match="odor_delta"):
        collected(stream, [*events, delta])


def chunk(delta, finish=None, **more):
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def test_a_completion_is_whole_with_its_finish_reason():
    calls = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "he"}),
        chunk({"content": "llo"}),
        chunk(
            {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}]}
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    ]
    stream = collected(ChatStream(), calls)
    assert stream.answer is None
    assert stream.partial.text == "hello"
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    collected(stream, [chunk({}, "tool_calls"), {"id": "c1", "choices": [], "usage": usage}])
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert stream.answer.messages == [{"role": "assistant", "content": "hello", "tool_calls": [call]}]
    assert stream.answer.usage == Usage(input=5, output=2)


@pytest.mark.parametrize(
    "chunks",
    [
        [{"error": {"message": "down"}}],
        [chunk({"content": "a"}), {**chunk({"content": "b"}), "id": "c2"}],
        [chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]})],
    ],
)
def test_chunks_that_make_no_sense_are_an_error(chunks):
    with pytest.raises(StreamBroken):
        collected(ChatStream(), chunks)


ITEM = {"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


def responses_events():
    base = {"id": "r1", "model": "m", "status": "in_progress", "output": []}
    yield {"type": "response.created", "sequence_number": 0, "response": base}
    yield {"type": "response.output_text.delta", "sequence_number": 1, "output_index": 0, "delta": "h"}
    yield {"type": "response.output_text.delta", "sequence_number": 2, "output_index": 0, "delta": "i"}
    yield {"type": "response.output_item.done", "sequence_number": 3, "output_index": 0, "item": ITEM}
    whole = {**base, "status": "completed", "output": [ITEM]}
    yield {"type": "response.completed", "sequence_number": 4, "response": whole}


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3, 4), (0, 0, 1, 1, 2, 3, 3, 4, 4), (0, 1, 3, 2, 4), (0, 1, 2, 0, 1, 2, 3, 4)]
)
def test_numbered_events_that_repeat_or_come_late_change_nothing(order):
    events = list(responses_events())
    stream = collected(ResponsesStream(), [events[n] for n in order])
    assert stream.answer.messages == [ITEM]
    assert stream.cursor == 4


def test_a_reconnect_goes_on_after_the_cursor_and_gives_each_piece_once():
    events = list(responses_events())
    stream = ResponsesStream()
    seen = [d.text for e in events[:2] for d in stream.add(e)]
    again = [e for e in events if e["sequence_number"] > stream.cursor]
    seen += [d.text for e in again for d in stream.add(e)]
    assert ("".join(seen), stream.answer.messages) == ("hi", [ITEM])


def test_a_failed_response_is_an_error_and_its_items_are_kept_aside():
    stream = collected(ResponsesStream(), list(responses_events())[:4])
    failed = {"id": "r1", "status": "failed", "error": {"code": "server_error"}, "output": []}
    with pytest.raises(StreamBroken):
        stream.add({"type": "response.failed", "sequence_number": 9, "response": failed})
    assert stream.partial.blocks == [ITEM]


def test_followers_early_late_and_second_get_every_piece_once():
    deltas = Deltas()
    deltas.begin()
    got: list[list[str]] = [[], []]
    early = threading.Thread(target=lambda: got[0].extend(d.text for d in deltas.follow()))
    early.start()
    for n in range(5):
        deltas.put(Delta("text", str(n)))
    late = threading.Thread(target=lambda: got[1].extend(d.text for d in deltas.follow()))
    late.start()
    deltas.put(Delta("text", "5"))
    deltas.end()
    early.join(10)
    late.join(10)
    assert got == [list("012345"), list("012345")]
    assert [d.text for d in deltas.follow()] == list("012345")
