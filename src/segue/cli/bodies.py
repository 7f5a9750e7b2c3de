"""
What a message says, whoever's JSON it is: text, calls, results and the rest, for people to read.

Reads the shapes of Anthropic Messages, OpenAI Responses and OpenAI Chat by their keys. What it does not
know it shows as compact JSON: nothing is left out, and no stored value can make it fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class Text(NamedTuple):
    """Words of a user or the model."""

    text: str


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: Any
    id: str


class Result(NamedTuple):
    """What a tool answered."""

    call: str
    text: str
    is_error: bool


class Hidden(NamedTuple):
    """Text that is shown only when asked for: the model's thinking."""

    label: str
    text: str


class Other(NamedTuple):
    """Something that has no text: an image, a document, a block of an unknown kind."""

    label: str


Part = Text | Call | Result | Hidden | Other

_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})


def parts(value: Any) -> list[Part]:
    """All parts of a message or item, in order."""
    if not isinstance(value, dict):
        return [Text(value) if isinstance(value, str) else Other(compact(value))]
    if "role" not in value:
        return list(_block(value))
    found = list(_answered(value) if value["role"] in ("tool", "function") else _content(value.get("content")))
    found += [Text(value["refusal"])] if isinstance(value.get("refusal"), str) and value["refusal"] else []
    for call in _list(value.get("tool_calls")):
        found += _block(call)
    return found


def role(value: Any) -> str:
    """Who speaks, in Segue's words: user, model, tool or system."""
    given = value.get("role") if isinstance(value, dict) else None
    names = {"assistant": "model", "developer": "system", "function": "tool"}
    return names.get(given, given) if isinstance(given, str) else ""


def langchain(value: Any) -> tuple[str, dict[str, Any]] | None:
    """Who speaks and what, of a message that a LangGraph thread holds; None for any other value."""
    if not isinstance(value, dict) or value.get("$") != "message" or not value.get("id"):
        return None  # without an id it is what a step wrote; the thread has it again, with one
    name, content = _word(value.get("class")), value.get("content")
    if name.startswith("Tool"):
        return "tool", {"role": "tool", "tool_call_id": value.get("tool_call_id"), "content": content}
    speaker = "user" if name.startswith("Human") else "model" if name.startswith("AI") else "system"
    calls = [
        {"id": one.get("id"), "type": "function", "function": {"name": one.get("name"), "arguments": one.get("args")}}
        for one in _list(value.get("tool_calls"))
        if isinstance(one, dict)
    ]
    return speaker, {"role": speaker, "content": content, **({"tool_calls": calls} if calls else {})}


def compact(value: Any) -> str:
    """A value as one line of JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    except (TypeError, ValueError, RecursionError):
        return str(value)


def call_text(call: Call) -> str:
    """``query(sql: "SELECT …", limit: 20)``: a call on one line."""
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return f"{call.name}({arguments})"
    if isinstance(arguments, dict):
        return f"{call.name}({', '.join(f'{name}: {compact(value)}' for name, value in arguments.items())})"
    return f"{call.name}({'' if arguments is None else compact(arguments)})"


def size(count: int) -> str:
    """Bytes for people: ``34 kB``."""
    return f"{count:,} B" if count < 1_000 else f"{count / 1_000:,.0f} kB"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content)
    elif isinstance(content, list):
        for block in content:
            yield from _block(block)
    elif content is not None:
        yield Other(compact(content))


def _answered(value: dict[str, Any]) -> Iterator[Part]:
    yield Result(_word(value.get("tool_call_id")), _flat(value.get("content")), is_error=False)


def _block(block: Any) -> Iterator[Part]:
    """The parts of one content block or item."""
    if not isinstance(block, dict):
        yield Text(block) if isinstance(block, str) else Other(compact(block))
        return
    kind = _word(block.get("type"))
    if kind in _TEXTS and isinstance(block.get("text"), str):
        yield Text(block["text"])
    elif kind == "refusal" and isinstance(block.get("refusal"), str):
        yield Text(block["refusal"])
    elif kind == "message":
        yield from _content(block.get("content"))
    elif kind in ("thinking", "reasoning", "redacted_thinking"):
        yield Hidden(kind.replace("_", " "), _thoughts(block))
    elif kind.endswith(("_result", "_output")):
        yield _result(block)
    elif kind.endswith(("_use", "_call")) or isinstance(block.get("function"), dict):
        yield from _call(block, kind)
    else:
        yield Other(_label(block, kind))


def _call(block: dict[str, Any], kind: str) -> Iterator[Part]:
    inside = block["function"] if isinstance(block.get("function"), dict) else block
    keys = ("input", "arguments", "action", "queries", "code", "operation")
    name = _word(inside.get("name")) or kind
    yield Call(name, next((inside[key] for key in keys if key in inside), None), _id(block))
    output, error = block.get("output"), block.get("error")
    if output is not None or error is not None:  # a call that holds its own result
        yield Result(_id(block), _flat(output or error), is_error=error is not None)


def _result(block: dict[str, Any]) -> Result:
    found = next((block[key] for key in ("content", "output") if key in block), None)
    call = _word(block.get("tool_use_id")) or _word(block.get("call_id"))
    return Result(call, _flat(found), is_error=block.get("is_error") is True)


def _id(block: dict[str, Any]) -> str:
    return _word(block.get("call_id")) or _word(block.get("id"))


def _thoughts(block: dict[str, Any]) -> str:
    if isinstance(block.get("thinking"), str):
        return str(block["thinking"])
    spoken = _list(block.get("summary")) + _list(block.get("content"))
    return "\n".join(one["text"] for one in spoken if isinstance(one, dict) and isinstance(one.get("text"), str))


def _flat(content: Any) -> str:
    """A result as text: its text blocks, the rest as labels or compact JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_said(part) for block in content for part in _block(block))
    return "" if content is None else compact(content)


def _said(part: Part) -> str:
    if isinstance(part, Call):
        return call_text(part)
    return f"[{part.label}]" if isinstance(part, (Hidden, Other)) else part.text


def _label(block: dict[str, Any], kind: str) -> str:
    """``image image/png, 34 kB`` for data; compact JSON for the unknown."""
    source = block.get("source") if isinstance(block.get("source"), dict) else block
    assert isinstance(source, dict)
    for key in ("data", "image_url", "file_data", "url", "file_id"):
        data = source.get(key)
        if isinstance(data, dict):
            data = data.get("url")
        if kind and isinstance(data, str):
            about = _word(source.get("media_type")) or _word(block.get("filename"))
            told = data if len(data) < 200 and not data.startswith("data:") else size(len(data) * 3 // 4)
            return f"{kind} {about + ', ' if about else ''}{told}"
    return compact(block)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
