"""Responses: pairing, reasoning with what follows it, item ids, the provider's own copies."""

from __future__ import annotations

import hashlib
import json

from .mind import decide, tokens
from .refusal import Refusal


def create(server, body, _headers):
    given = body["input"]
    given = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
    before = _before(server, body)
    items = [*before, *given]
    _check(items)
    question, done = _heard(items)
    text, calls = ("Goals: kept.", []) if "Summarise" in (body.get("instructions") or "") else decide(question, done)
    if server.script:
        text, calls = server.script.pop(0), []
    output = _output(server, items, text, calls)
    usage = {
        "input_tokens": tokens(items),
        "input_tokens_details": {"cached_tokens": tokens(items) // 2, "cache_write_tokens": 0},
        "output_tokens": tokens(output),
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": tokens(items) + tokens(output),
    }
    answer = {
        "id": server.new_id("resp"),
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "usage": usage,
        "error": None,
        "incomplete_details": None,
    }
    if body.get("store", True):
        server.responses[answer["id"]] = [*items, *output]
    if body.get("conversation"):
        server.conversations[body["conversation"]] += [*given, *output]
    return answer, list(_events(answer))


def conversation(server, body, _headers):
    id = server.new_id("conv")
    server.conversations[id] = list(body.get("items") or [])
    return {"id": id, "object": "conversation", "created_at": 1, "metadata": {}}, []


def compact(server, body, _headers):
    _check(body["input"])
    kept = [item for item in body["input"] if item.get("role") == "user"][-2:]
    secret = hashlib.sha256(json.dumps(body["input"]).encode()).hexdigest()
    item = {"type": "compaction", "id": server.new_id("cmp"), "encrypted_content": secret}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    answer = {
        "id": server.new_id("resp"),
        "object": "response.compaction",
        "created_at": 1,
        "output": [*kept, item],
        "usage": usage,
    }
    return answer, []


def _before(server, body):
    if body.get("conversation"):
        if body.get("previous_response_id"):
            raise Refusal("Mutually exclusive parameters: 'previous_response_id' and 'conversation'.")
        if body["conversation"] not in server.conversations:
            raise Refusal(f"Conversation with id '{body['conversation']}' not found.", status=404, is_expected=True)
        return server.conversations[body["conversation"]]
    previous = body.get("previous_response_id")
    if previous is None:
        return []
    if previous not in server.responses:
        raise Refusal(
            f"Previous response with id '{previous}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
            is_expected=True,
        )
    return server.responses[previous]


def _heard(items):
    question, done = "", 0
    for item in items:
        if item.get("type", "message") == "message" and item.get("role") == "user":
            content = item["content"]
            question, done = content if isinstance(content, str) else content[0]["text"], 0
        elif item.get("type") == "function_call_output":
            done += 1
    return question, done


def _check(items):
    calls, outputs, ids = {}, {}, set()
    for n, item in enumerate(items):
        kind = item.get("type", "message")
        if item.get("id"):
            if item["id"] in ids:
                raise Refusal(
                    f"Duplicate item found with id {item['id']}. Remove duplicate items from your input and try again."
                )
            ids.add(item["id"])
        if kind == "function_call":
            calls[item["call_id"]] = n
        elif kind == "function_call_output":
            if item["call_id"] not in calls or item["call_id"] in outputs:
                raise Refusal(f"No tool call found for function call output with call_id {item['call_id']}.")
            outputs[item["call_id"]] = n
        elif kind == "reasoning":
            after = items[n + 1] if n + 1 < len(items) else {}
            if after.get("type") not in ("function_call", "reasoning") and after.get("role") != "assistant":
                raise Refusal(
                    f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
                )
            if item.get("encrypted_content") != _bound(item["id"]):
                raise Refusal(f"The encrypted content for item {item['id']} could not be verified.")
    for call in calls:
        if call not in outputs:
            raise Refusal(f"No tool output found for function call {call}.")


def _bound(id):
    return "enc:" + hashlib.sha256(id.encode()).hexdigest()


def _output(server, items, text, calls):
    id = server.new_id("rs")
    output = [{"type": "reasoning", "id": id, "summary": [], "encrypted_content": _bound(id)}]
    for call in calls:
        made = {"type": "function_call", "id": server.new_id("fc"), "call_id": server.new_id("call"), "name": "step"}
        output.append({**made, "arguments": json.dumps(call), "status": "completed"})
    if not calls:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        output.append(
            {
                "type": "message",
                "id": server.new_id("msg"),
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    return output


def _events(answer):
    number = -1

    def event(kind, **more):
        nonlocal number
        number += 1
        return {"type": kind, "sequence_number": number, **more}

    yield event("response.created", response={**answer, "output": [], "status": "in_progress", "usage": None})
    for index, item in enumerate(answer["output"]):
        yield event("response.output_item.added", output_index=index, item=item)
        if item["type"] == "message":
            text = item["content"][0]["text"]
            for at in range(0, len(text), 8):
                place = {"output_index": index, "content_index": 0, "item_id": item["id"], "logprobs": []}
                yield event("response.output_text.delta", delta=text[at : at + 8], **place)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=answer)
