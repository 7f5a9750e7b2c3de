"""
A message of one format told in another: Anthropic, OpenAI Responses, OpenAI chat.

Texts, pictures, calls and their results have counterparts. What has none is named and left out: thinking (it is signed
for its own provider), the provider's own tools, files that only the provider holds. Ids and names of tools that the
other side would refuse are replaced, the same by the same, so that calls keep their results.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import codec
from .errors import Invalid, ViewInvalid

FORMATS = ("anthropic", "openai.chat", "openai.responses")
"""The formats between which messages are converted."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID_MAX = {"anthropic": 64, "openai.chat": 40, "openai.responses": 64}
_DATA = re.compile(r"data:(image/[\w.+-]+);base64,(.*)", re.DOTALL)


class Converted(NamedTuple):
    """
    What became of one message.

    Attributes:
        messages: In the target's form, in order; none when nothing has a counterpart.
        left: What was left out, in words.
    """

    messages: tuple[dict[str, Any], ...]
    left: tuple[str, ...]


class Text(NamedTuple):
    """A text."""

    text: str


class Image(NamedTuple):
    """A picture, by its address: ``https:`` or ``data:``."""

    url: str


class Call(NamedTuple):
    """A call of a tool; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


class Result(NamedTuple):
    """The result of a call: texts and pictures."""

    id: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False


class Left(NamedTuple):
    """Something that has no counterpart."""

    what: str


Part = Text | Image | Call | Result | Left


class Told(NamedTuple):
    """A message in no format: who speaks (user, assistant, system, tool) and what it holds."""

    role: str
    parts: tuple[Part, ...]


def convert(value: Any, source: str, target: str) -> Converted:
    """
    Tell a message in another format.

    Args:
        value: A message of the format ``source``, decoded.
        source: Whose it is.
        target: Whose it is to be.

    Returns:
        The messages of the target's form, and what was left out.

    Raises:
        Invalid: A format is not one of ``FORMATS``.
    """
    if source not in _READ or target not in _WRITE:
        raise Invalid(f"no conversion from {source!r} to {target!r}; known are {', '.join(FORMATS)}", where="format")
    if source == target:
        return Converted((value,), ())
    if not isinstance(value, dict):
        return Converted((), ("no message",))
    found = _READ[source](value)
    left = [part.what for part in found.parts if isinstance(part, Left)]
    kept = tuple(part for part in found.parts if not isinstance(part, Left))
    messages = _WRITE[target](found._replace(parts=kept), left)
    return Converted(tuple(messages), tuple(left))


def told(value: Any, source: str) -> Told:
    """
    What a message holds, in no format; what is none of texts, pictures, calls and results is ``Left``.

    Raises:
        Invalid: The format is not one of ``FORMATS``.
    """
    if source not in _READ:
        raise Invalid(
            f"messages of the format {source!r} cannot be read; known are {', '.join(FORMATS)}", where="format"
        )
    return _READ[source](value) if isinstance(value, dict) else Told("", ())


def convert_all(values: Iterable[Any], source: str, target: str) -> Converted:
    """
    Tell a list of messages in another format, one by one; calls and results keep their ids.

    The list is not laid out anew: for messages that a provider accepts as they are, ask a session for its view.
    """
    messages: list[dict[str, Any]] = []
    left: list[str] = []
    for value in values:
        done = convert(value, source, target)
        messages += done.messages
        left += done.left
    return Converted(tuple(messages), tuple(left))


# Reading


def _read_anthropic(value: dict[str, Any]) -> Told:
    content = value.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [_anthropic_part(block) for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    return Told(str(value.get("role")), tuple(parts))


def _anthropic_part(block: dict[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(block["text"])
    if kind == "image":
        return _anthropic_image(block)
    if kind == "tool_use" and isinstance(block.get("input"), dict):
        return Call(str(block.get("id")), str(block.get("name")), _text_of(block["input"]))
    if kind == "tool_result":
        inner = block.get("content")
        parts = (
            [{"type": "text", "text": inner}] if isinstance(inner, str) else inner if isinstance(inner, list) else []
        )
        told = [_anthropic_part(part) if isinstance(part, dict) else Left("a part of a result") for part in parts]
        return Result(str(block.get("tool_use_id")), _shown(told), block.get("is_error") is True)
    if kind == "document":
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
            return Text(source["data"])
    return Left(str(kind))


def _anthropic_image(block: dict[str, Any]) -> Part:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "base64":
        return Image(f"data:{source.get('media_type')};base64,{source.get('data')}")
    if isinstance(source, dict) and source.get("type") == "url" and isinstance(source.get("url"), str):
        return Image(source["url"])
    return Left("image that only the provider holds")


def _read_chat(value: dict[str, Any]) -> Told:
    role = str(value.get("role"))
    parts = _chat_parts(value.get("content"))
    if role in {"tool", "function"}:
        id = value.get("tool_call_id") if role == "tool" else f"function:{value.get('name')}"
        return Told("tool", (Result(str(id), _shown(parts)), *(part for part in parts if isinstance(part, Left))))
    if isinstance(value.get("refusal"), str):
        parts.append(Text(value["refusal"]))
    if value.get("audio"):
        parts.append(Left("audio"))
    calls = value.get("tool_calls")
    parts += [_chat_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    old = value.get("function_call")
    if isinstance(old, dict):
        parts.append(Call(f"function:{old.get('name')}", str(old.get("name")), str(old.get("arguments") or "{}")))
    return Told("system" if role == "developer" else role, tuple(parts))


def _chat_parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[Part] = []
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        image = part.get("image_url") if kind == "image_url" else None
        url = image.get("url") if isinstance(image, dict) else image
        if kind in {"text", "refusal"} and isinstance(part.get(kind), str):
            found.append(Text(part[kind]))
        elif isinstance(url, str):
            found.append(Image(url))
        else:
            found.append(Left(str(kind)))
    return found


def _chat_call(call: dict[str, Any]) -> Part:
    function = call.get("function")
    if isinstance(function, dict):
        return Call(str(call.get("id")), str(function.get("name")), str(function.get("arguments") or "{}"))
    custom = call.get("custom")
    if isinstance(custom, dict):
        return Call(str(call.get("id")), str(custom.get("name")), _text_of({"input": custom.get("input")}))
    return Left(f"call of the kind {call.get('type')}")


def _read_responses(value: dict[str, Any]) -> Told:
    kind = value.get("type", "message")
    if kind == "message":
        role = str(value.get("role"))
        return Told("system" if role == "developer" else role, tuple(_responses_parts(value.get("content"))))
    if kind in {"function_call", "custom_tool_call", "local_shell_call"}:
        return Told("assistant", (_responses_call(value, kind),))
    if kind in {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}:
        id = value.get("call_id") or value.get("id")
        parts = _responses_parts(value.get("output"))
        return Told("tool", (Result(str(id), _shown(parts)), *(part for part in parts if isinstance(part, Left))))
    return Told("assistant", (Left(str(kind)),))


def _responses_call(value: dict[str, Any], kind: str) -> Call:
    id = str(value.get("call_id"))
    if kind == "function_call":
        return Call(id, str(value.get("name")), str(value.get("arguments") or "{}"))
    if kind == "custom_tool_call":
        return Call(id, str(value.get("name")), _text_of({"input": value.get("input")}))
    return Call(id, "local_shell", _text_of(value.get("action") or {}))


def _responses_parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[Part] = []
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if kind in {"input_text", "output_text", "text", "refusal", "summary_text"} and isinstance(text, str):
            found.append(Text(text))
        elif kind in {"input_image", "computer_screenshot"} and isinstance(part.get("image_url"), str):
            found.append(Image(part["image_url"]))
        else:
            found.append(Left(str(kind)))
    return found


def _shown(parts: Iterable[Part]) -> tuple[Text | Image, ...]:
    return tuple(part for part in parts if isinstance(part, Text | Image))


# Writing


def _write_anthropic(told: Told, left: list[str]) -> list[dict[str, Any]]:
    blocks = [block for part in told.parts for block in _anthropic_blocks(part, left)]
    role = {"tool": "user", "assistant": "assistant", "system": "system"}.get(told.role, "user")
    return [{"role": role, "content": blocks}] if blocks else []


def _anthropic_blocks(part: Part, left: list[str]) -> list[dict[str, Any]]:
    if isinstance(part, Text):
        return [{"type": "text", "text": part.text}] if part.text.strip() else []
    if isinstance(part, Image):
        data = _DATA.fullmatch(part.url)
        if data is not None:
            return [{"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}]
        if part.url.startswith(("https:", "http:")):
            return [{"type": "image", "source": {"type": "url", "url": part.url}}]
        left.append("image that only the provider holds")
        return []
    if isinstance(part, Call):
        id, name = call_id(part.id, "anthropic"), tool_name(part.name)
        return [{"type": "tool_use", "id": id, "name": name, "input": _object(part.arguments)}]
    if isinstance(part, Result):
        inner = [block for one in part.parts for block in _anthropic_blocks(one, left)]
        is_text = len(inner) == 1 and inner[0]["type"] == "text"
        content: Any = inner[0]["text"] if is_text else inner or ""
        block = {"type": "tool_result", "tool_use_id": call_id(part.id, "anthropic"), "content": content}
        return [{**block, "is_error": True} if part.is_error else block]
    return []


def _write_chat(told: Told, left: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for part in told.parts:
        if isinstance(part, Result):
            _note_error(part, left)
            left.extend("image in a result" for one in part.parts if isinstance(one, Image))
            text = "\n".join(one.text for one in part.parts if isinstance(one, Text))
            messages.append({"role": "tool", "tool_call_id": call_id(part.id, "openai.chat"), "content": text})
    calls = [_chat_tool_call(part) for part in told.parts if isinstance(part, Call)]
    content = _chat_content(told, left)
    if calls:
        messages.append({"role": "assistant", "content": content, "tool_calls": calls})
    elif content is not None and told.role in {"user", "assistant", "system"}:
        messages.append({"role": told.role, "content": content})
    elif content is not None:
        messages.append({"role": "user", "content": content})
    return messages


def _chat_tool_call(part: Call) -> dict[str, Any]:
    function = {"name": tool_name(part.name), "arguments": part.arguments}
    return {"id": call_id(part.id, "openai.chat"), "type": "function", "function": function}


def _chat_content(told: Told, left: list[str]) -> Any:
    parts: list[dict[str, Any]] = []
    for part in told.parts:
        if isinstance(part, Text) and part.text:
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Image) and told.role == "user":
            parts.append({"type": "image_url", "image_url": {"url": part.url}})
        elif isinstance(part, Image):
            left.append("image that a person did not send")
    if not parts:
        return None
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _write_responses(told: Told, left: list[str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    kind = "output_text" if told.role == "assistant" else "input_text"
    role = {"tool": "user", "system": "developer"}.get(told.role, told.role)
    content: list[dict[str, Any]] = []

    def close() -> None:
        if content:
            items.append({"type": "message", "role": role, "content": list(content)})
            content.clear()

    for part in told.parts:
        if isinstance(part, Text) and part.text:
            content.append({"type": kind, "text": part.text})
        elif isinstance(part, Image) and told.role != "assistant":
            content.append({"type": "input_image", "image_url": part.url, "detail": "auto"})
        elif isinstance(part, Image):
            left.append("image that a person did not send")
        elif isinstance(part, Call | Result):
            close()
            items.append(_responses_item(part, left))
    close()
    return items


def _responses_item(part: Call | Result, left: list[str]) -> dict[str, Any]:
    id = call_id(part.id, "openai.responses")
    if isinstance(part, Call):
        return {"type": "function_call", "call_id": id, "name": tool_name(part.name), "arguments": part.arguments}
    _note_error(part, left)
    output: Any = "\n".join(one.text for one in part.parts if isinstance(one, Text))
    if any(isinstance(one, Image) for one in part.parts):
        output = [
            {"type": "input_text", "text": one.text}
            if isinstance(one, Text)
            else {"type": "input_image", "image_url": one.url, "detail": "auto"}
            for one in part.parts
        ]
    return {"type": "function_call_output", "call_id": id, "output": output}


def _note_error(part: Result, left: list[str]) -> None:
    if part.is_error:
        left.append("the mark of a result that it is an error")


# Ids and arguments


def call_id(id: str, target: str) -> str:
    """The id of a call as the target takes it: the same where it fits, else one that is made of it."""
    if _ID.fullmatch(id) and len(id) <= _ID_MAX[target]:
        return id
    return f"call_{hashlib.sha256(id.encode('utf-8', 'replace')).hexdigest()[:32]}"


def tool_name(name: str) -> str:
    """The name of a tool as all providers take it."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "tool"


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object(arguments: str) -> dict[str, Any]:
    """The arguments as an object; text that is none is kept under its own name."""
    try:
        value = codec.decode(arguments.encode())
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


_READ: dict[str, Callable[[dict[str, Any]], Told]] = {
    "anthropic": _read_anthropic,
    "openai.chat": _read_chat,
    "openai.responses": _read_responses,
}
_WRITE: dict[str, Callable[[Told, list[str]], list[dict[str, Any]]]] = {
    "anthropic": _write_anthropic,
    "openai.chat": _write_chat,
    "openai.responses": _write_responses,
}


def refuse_unknown(format: str, where: str) -> None:
    """
    Refuse a message of a format that cannot be told in another.

    Raises:
        ViewInvalid: ``foreign-format``.
    """
    if format not in _READ:
        raise ViewInvalid(
            f"{where} is a message of the format {format!r}, which cannot be converted; "
            "leave it out with foreign='omit'",
            rule="foreign-format",
            where=where,
        )
