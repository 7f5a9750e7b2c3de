# ruff: noqa: E501
"""The Messages API: pairing, thinking bound to its prefix, a cache that counts."""

from __future__ import annotations

import hashlib
import json

from .mind import decide, tokens
from .refusal import Refusal

LOOKBACK = 20  # blocks before a mark in which the cache looks for something it holds


def bare(value):
    """Without cache marks, which are no part of what is said; the input of a call is left alone."""
    if isinstance(value, list):
        return [bare(one) for one in value]
    if isinstance(value, dict):
        return {k: (v if k == "input" else bare(v)) for k, v in value.items() if k != "cache_control"}
    return value


def digest(*parts):
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()


def messages(server, body, _headers):
    given = body.get("messages") or []
    for name in ("model", "max_tokens"):
        if name not in body:
            raise Refusal(f"{name}: Field required")
    if not given or given[0]["role"] != "user":
        raise Refusal('messages: first message must use the "user" role')
    marks = _check_marks(body)
    _check_pairs(given)
    head = digest(body["model"], bare(body.get("system")), bare(body.get("tools")))
    chain = _check_thinking(given, head, body.get("thinking"))
    usage = _cached(server, body, marks, head)
    content, stop = _say(server, given, body, chain)
    usage["output_tokens"] = tokens(content)
    answer = {
        "id": server.new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }
    return answer, list(_events(answer))


def _blocks(message):
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _check_marks(body):
    found = json.dumps(body).count('"cache_control"')
    if found > 4:
        raise Refusal(f"A maximum of 4 blocks with cache_control may be provided. Found {found}.")
    return found


def _check_pairs(given):
    is_open = []
    for n, message in enumerate(given):
        blocks = _blocks(message)
        if not blocks:
            raise Refusal(f"messages.{n}: all messages must have non-empty content")
        for m, block in enumerate(blocks):
            if block["type"] == "text" and not block["text"].strip():
                if "cache_control" in block:
                    raise Refusal(f"messages.{n}.content.{m}.text: cache_control cannot be set for empty text blocks")
                raise Refusal("messages: text content blocks must be non-empty")
        if message["role"] == "assistant":
            if is_open:
                _unanswered(n - 1, is_open)
            if blocks[-1]["type"] in ("thinking", "redacted_thinking"):
                raise Refusal(f"messages.{n}: The final block in an assistant message cannot be `thinking`.")
            is_open = [block["id"] for block in blocks if block["type"] == "tool_use"]
            continue
        seen_other = False
        for m, block in enumerate(blocks):
            if block["type"] != "tool_result":
                seen_other = True
                continue
            if block["tool_use_id"] not in is_open or seen_other:
                raise Refusal(
                    f"messages.{n}.content.{m}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in the "
                    "previous message."
                )
            is_open.remove(block["tool_use_id"])
        if is_open:
            _unanswered(n - 1, is_open)
    if is_open:
        _unanswered(len(given) - 1, is_open)
    if given[-1]["role"] == "assistant":
        raise Refusal(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def _unanswered(n, ids):
    raise Refusal(
        f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(ids)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _check_thinking(given, chain, _setting):
    """Each thinking block is signed with all that stood before it; gives the digest of everything."""
    for n, message in enumerate(given):
        for m, block in enumerate(_blocks(message)):
            if block["type"] == "thinking" and block["signature"] != signature(chain, block["thinking"]):
                raise Refusal(
                    f"messages.{n}.content.{m}: Invalid `signature` in `thinking` block. The block is bound to a different "
                    "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
                    '"drop_block".'
                )
        chain = digest(chain, message["role"], bare(message["content"]))
    return chain


def signature(chain, thinking):
    return "sig:" + digest(chain, thinking)


def _cached(server, body, marks, head):
    """Usage of the input: what the cache held is read, what is marked now is written."""
    if not marks:
        return {
            "input_tokens": tokens(bare(body["messages"])),
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        }
    places, chain, size = [], head, tokens([bare(body.get("system")), bare(body.get("tools"))])
    fixed = [*(body.get("tools") or []), *(body.get("system") or [])]
    places.append((chain, size, any("cache_control" in block for block in fixed if isinstance(block, dict))))
    for message in body["messages"]:
        for block in _blocks(message):
            form = "text" if isinstance(message["content"], str) else "blocks"
            chain, size = digest(chain, message["role"], form, bare(block)), size + tokens(bare(block))
            places.append((chain, size, "cache_control" in block))
    read = 0
    for n, (_, _, is_mark) in enumerate(places):
        if is_mark:
            for at in range(n, max(-1, n - LOOKBACK - 1), -1):
                if places[at][0] in server.prefixes:
                    read = max(read, places[at][1])
                    break
    written = max((size for _, size, is_mark in places if is_mark), default=0)
    server.prefixes.update(chain for chain, _, is_mark in places if is_mark)
    return {
        "input_tokens": places[-1][1] - max(written, read),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": max(0, written - read),
    }


def _say(server, given, body, chain):
    done = 0
    question = ""
    for message in reversed(given):
        texts = [b["text"] for b in _blocks(message) if b["type"] == "text"] if message["role"] == "user" else []
        if texts:
            question = texts[-1]
            break
        done += sum(block["type"] == "tool_result" for block in _blocks(message))
    if body["system"] if "system" in body and "Summarise" in json.dumps(body.get("system")) else None:
        text, calls = "Goals: kept.", []
    else:
        text, calls = decide(question, done)
    if server.script:
        text, calls = server.script.pop(0), []
    content = []
    if body.get("thinking"):
        thought = f"I think about {question[:20]} {done}"
        content.append({"type": "thinking", "thinking": thought, "signature": signature(chain, thought)})
    content.append({"type": "text", "text": text})
    content += [{"type": "tool_use", "id": server.new_id("toolu"), "name": "step", "input": call} for call in calls]
    return content, "tool_use" if calls else "end_turn"


def _events(answer):
    usage = answer["usage"]
    yield {
        "type": "message_start",
        "message": {**answer, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}},
    }
    yield {"type": "ping"}
    for index, block in enumerate(answer["content"]):
        kind = block["type"]
        start = {
            "text": {**block, "text": ""},
            "thinking": {**block, "thinking": "", "signature": ""},
            "tool_use": {**block, "input": {}},
        }
        yield {"type": "content_block_start", "index": index, "content_block": start[kind]}
        if kind == "tool_use":
            whole, name, key = json.dumps(block["input"]), "input_json_delta", "partial_json"
        else:
            whole, name, key = block[kind], f"{kind}_delta", kind
        for at in range(0, len(whole), 40):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": name, key: whole[at : at + 40]}}
        if kind == "thinking":
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": answer["stop_reason"], "stop_sequence": None},
        "usage": usage,
    }
    yield {"type": "message_stop"}
