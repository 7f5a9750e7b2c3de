# ruff: noqa: E501
"""Chat completions: every call has its tool message behind it."""

from __future__ import annotations

import json

from .mind import decide, tokens
from .refusal import Refusal


def completions(server, body, _headers):
    given = body["messages"]
    _check(given)
    question = next((m["content"] for m in reversed(given) if m["role"] == "user"), "")
    at = max((n for n, m in enumerate(given) if m["role"] == "user"), default=0)
    text, calls = decide(question, sum(m["role"] == "tool" for m in given[at:]))
    if server.script:
        text, calls = server.script.pop(0), []
    message = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {
                "id": server.new_id("call"),
                "type": "function",
                "function": {"name": "step", "arguments": json.dumps(call)},
            }
            for call in calls
        ]
    usage = {
        "prompt_tokens": tokens(given),
        "completion_tokens": tokens(message),
        "total_tokens": tokens(given) + tokens(message),
        "prompt_tokens_details": {"cached_tokens": tokens(given) // 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    stop = "tool_calls" if calls else "stop"
    base = {"id": server.new_id("chatcmpl"), "created": 1, "model": body["model"]}
    choice = {"index": 0, "message": message, "finish_reason": stop, "logprobs": None}
    answer = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    return answer, [*_events({**base, "object": "chat.completion.chunk"}, message, stop, usage), "[DONE]"]


def _events(base, message, stop, usage):
    def chunk(delta, finish=None):
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}

    yield chunk({"role": "assistant", "content": ""})
    for at in range(0, len(message["content"]), 5):
        yield chunk({"content": message["content"][at : at + 5]})
    for index, call in enumerate(message.get("tool_calls", ())):
        function = {"name": "step", "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
        text = call["function"]["arguments"]
        for at in range(0, len(text), 5):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": text[at : at + 5]}}]})
    yield chunk({}, stop)
    yield {**base, "choices": [], "usage": usage}


def _check(given):
    is_open = []
    for n, message in enumerate(given):
        if message["role"] == "tool":
            if message["tool_call_id"] not in is_open:
                raise Refusal(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
                    param=f"messages.[{n}].role",
                )
            is_open.remove(message["tool_call_id"])
            continue
        _closed(is_open)
        if "tool_calls" in message and not message["tool_calls"]:
            raise Refusal(f"Invalid 'messages[{n}].tool_calls': empty array.")
        is_open = [call["id"] for call in message.get("tool_calls", ())]
    _closed(is_open)


def _closed(is_open):
    if is_open:
        raise Refusal(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
            f"The following tool_call_ids did not have response messages: {', '.join(is_open)}",
        )
