"""
ChatGPT exports: ``conversations.json``, one conversation of it, or what a browser keeps of one.

A conversation is a tree. Its messages are told in the form of OpenAI chat, parents before children, by their times and
never by the order in the file; what is not on the path to ``current_node`` is marked as taken back. Calls have no ids
there: they get the name of their node. Thoughts stay in the original alone; pictures are only pointers there, and
stand as text.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import Any

from segue import codec

from .conversation import Conversation, Record, Said, made
from .frame import talks_of
from .records import as_text, clean, when_us
from .report import FileReport
from .source import Source
from .tree import Tree

NAME = "chatgpt"

_SILENT = frozenset({"thoughts", "reasoning_recap"})
_HIDDEN = frozenset({"user_editable_context", "model_editable_context"})


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    document = source.only
    if isinstance(document, list):
        return any(_is_conversation(one) for one in document[:20])
    return _payload(document) is not None


def _is_conversation(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("mapping"), dict):
        return False
    return all(isinstance(node, dict) and "message" in node for node in list(value["mapping"].values())[:5])


def _payload(document: Any) -> dict[str, Any] | None:
    if _is_conversation(document):
        return document  # type: ignore[no-any-return]
    if isinstance(document, dict) and _is_conversation(document.get("raw_provider_payload")):
        return document["raw_provider_payload"]  # type: ignore[no-any-return]
    return None


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file."""
    if isinstance(source.only, list):
        yield from talks_of(source, report, NAME, lambda value, body, n: _talk(source, report, value, body, n))
        return
    payload = _payload(source.only)
    assert payload is not None
    yield _conversation(source, report, payload, source.whole(), 1)


def _talk(source: Source, report: FileReport, value: Any, body: bytes, number: int) -> Conversation | None:
    if not _is_conversation(value):
        report.note("not-a-conversation", number)
        return None
    return _conversation(source, report, value, body, number)


def _conversation(source: Source, report: FileReport, value: dict[str, Any], body: bytes, n: int) -> Conversation:
    id = value.get("conversation_id") or value.get("id")
    is_name = isinstance(id, str) and len(id) <= 100 and id.isprintable()
    mapping = {name: node for name, node in value["mapping"].items() if isinstance(node, dict)}
    tip = value.get("current_node")
    talk = Conversation(
        f"{NAME}:{id}" if is_name else source.key(NAME, str(n)), NAME, "openai.chat", (),
        title=value["title"][:500] if isinstance(value.get("title"), str) else "",
        tree=Tree(tip if isinstance(tip, str) else ""), whole=body,
    )  # fmt: skip
    talk.records = _Reader(mapping, report).records()
    return talk


class _Reader:
    def __init__(self, mapping: dict[str, Any], report: FileReport) -> None:
        self.mapping = mapping
        self.report = report
        self.call_of: dict[str, str] = {}  # by the node of a tool's message: the node of the call

    def records(self) -> Iterator[Record]:
        for number, name in enumerate(in_order(self.mapping), 1):
            node = self.mapping[name]
            parent = node.get("parent")
            message = node.get("message")
            said = tuple(self._said(name, parent, message, number)) if isinstance(message, dict) else ()
            yield Record(number, None, said, node=name, parent=parent if isinstance(parent, str) else None)

    def _said(self, name: str, parent: Any, message: dict[str, Any], number: int) -> Iterator[Said]:
        author, content = message.get("author"), message.get("content")
        role = author.get("role") if isinstance(author, dict) else None
        kind = content.get("content_type") if isinstance(content, dict) else None
        if not isinstance(content, dict) or role not in {"user", "assistant", "system", "tool"}:
            self.report.note("unknown-record", number, f"role {str(role)[:40]}")
            return
        if kind in _SILENT:
            self._pass_on(name, parent)
            self.report.note("left-out", number, f"{kind}: kept in the original alone")
            return
        text = _text(content)
        us = when_us(message.get("create_time"))
        if role == "tool":
            call = self.call_of.get(str(parent), str(parent))
            self.call_of[name] = call
            value = {"role": "tool", "tool_call_id": call, "content": text}
            yield made(clean(value), origin="tool", occurred_us=us)
            return
        if not text.strip():
            return
        recipient = message.get("recipient")
        if role == "assistant" and isinstance(recipient, str) and recipient not in {"all", ""}:
            yield made(clean(_call(name, recipient, text)), origin="model", occurred_us=us)
            return
        role = "system" if kind in _HIDDEN else role
        origin = {"user": "user", "assistant": "model"}.get(role, "system")
        yield made(clean({"role": role, "content": text}), origin=origin, occurred_us=us)

    def _pass_on(self, name: str, parent: Any) -> None:
        if str(parent) in self.call_of:
            self.call_of[name] = self.call_of[str(parent)]


def _call(name: str, recipient: str, text: str) -> dict[str, Any]:
    try:
        is_object = isinstance(codec.decode(text.encode("utf-8", "replace")), dict)
    except ValueError:
        is_object = False
    arguments = text if is_object else as_text({"text": text})
    tool = re.sub(r"[^a-zA-Z0-9_-]", "_", recipient)[:64]
    call = {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _text(content: dict[str, Any]) -> str:
    if isinstance(content.get("parts"), list):
        return "\n".join(filter(None, map(_part, content["parts"])))
    fields = [content.get(name) for name in ("text", "result", "user_profile", "user_instructions")]
    return "\n\n".join(field for field in fields if isinstance(field, str) and field)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    text = part.get("text")
    if isinstance(text, str):
        return text
    return f"[{part.get('content_type', 'part')} {part.get('asset_pointer') or part.get('name') or ''}]".replace(
        " ]", "]"
    )


def in_order(mapping: dict[str, Any]) -> list[str]:
    """
    Names of all nodes, parents before their children, else by time, then by name: whatever the order in the file.

    Near-linear, for trees of any shape. Nodes in a circle come last.
    """
    children: dict[str, list[str]] = {}
    ready: list[tuple[float, str]] = []
    for name, node in mapping.items():
        parent = node.get("parent")
        if isinstance(parent, str) and parent in mapping and parent != name:
            children.setdefault(parent, []).append(name)
        else:
            ready.append((_time(node, 0.0), name))
    heapq.heapify(ready)
    found: list[str] = []
    while ready:
        time, name = heapq.heappop(ready)
        found.append(name)
        for child in children.get(name, ()):
            heapq.heappush(ready, (_time(mapping[child], time), child))
    done = set(found)
    return found + sorted(name for name in mapping if name not in done)


def _time(node: dict[str, Any], before: float) -> float:
    message = node.get("message")
    time = message.get("create_time") if isinstance(message, dict) else None
    return max(before, float(time)) if isinstance(time, int | float) and time == time else before  # noqa: PLR0124
