"""
Claude.ai exports: ``conversations.json``, or one conversation of it.

A conversation is a tree where it has ``parent_message_uuid``; the newest message is the tip. Calls and results stand in
one message there, and without ids in older exports: they are parted, and get ids from their places. Thinking has no
signature there, so it stays in the original alone. Text of attachments is given with the message they came with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .conversation import Conversation, Record, Said, made
from .frame import talks_of
from .records import clean, when_us
from .report import FileReport
from .source import Source
from .tree import Tree

NAME = "claude-ai"


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    document = source.only
    if isinstance(document, list):
        return any(_is_conversation(one) for one in document[:20])
    return _is_conversation(document)


def _is_conversation(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list)


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file."""
    if isinstance(source.only, list):
        yield from talks_of(source, report, NAME, lambda value, body, n: _talk(source, report, value, body, n))
        return
    value = source.only
    yield _conversation(source, report, value, source.whole(), 1)


def _talk(source: Source, report: FileReport, value: Any, body: bytes, number: int) -> Conversation | None:
    if not _is_conversation(value):
        report.note("not-a-conversation", number)
        if not isinstance(value, dict) or "uuid" not in value:
            return None
        value = {**value, "chat_messages": []}
    return _conversation(source, report, value, body, number)


def _conversation(source: Source, report: FileReport, value: dict[str, Any], body: bytes, n: int) -> Conversation:
    id = value.get("uuid")
    is_name = isinstance(id, str) and 0 < len(id) <= 100 and id.isprintable()
    messages = value["chat_messages"]
    is_tree = any(isinstance(one, dict) and one.get("parent_message_uuid") for one in messages)
    talk = Conversation(
        f"{NAME}:{id}" if is_name else source.key(NAME, str(n)), NAME, "anthropic", (),
        title=value["name"][:500] if isinstance(value.get("name"), str) else "",
        tree=Tree() if is_tree else None, whole=body,
    )  # fmt: skip
    talk.records = _records(messages, report)
    return talk


def _records(messages: list[Any], report: FileReport) -> Iterator[Record]:
    names = {one.get("uuid") for one in messages if isinstance(one, dict) and isinstance(one.get("uuid"), str)}
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            report.note("not-a-record", number)
            continue
        name, parent = message.get("uuid"), message.get("parent_message_uuid")
        is_root = isinstance(parent, str) and parent not in names and parent.startswith("00000000-0000-4000-8000")
        yield Record(
            number, None, tuple(_said(message, report, number)),
            node=name if isinstance(name, str) else "",
            parent=None if is_root else parent if isinstance(parent, str) else "",
        )  # fmt: skip


def _said(message: dict[str, Any], report: FileReport, number: int) -> Iterator[Said]:
    role = {"human": "user", "assistant": "assistant"}.get(str(message.get("sender")))
    us = when_us(message.get("created_at"))
    if role is None:
        report.note("unknown-record", number, f"sender {str(message.get('sender'))[:40]}")
        return
    turns: list[tuple[str, list[Any]]] = []
    for turn_role, block in _blocks(message, role, report, number):
        if not turns or turns[-1][0] != turn_role:
            turns.append((turn_role, []))
        turns[-1][1].append(block)
    for turn_role, blocks in turns:
        origin = "model" if turn_role == "assistant" else "user" if role == "user" else "tool"
        yield made(clean({"role": turn_role, "content": blocks}), origin=origin, occurred_us=us)


def _blocks(message: dict[str, Any], role: str, report: FileReport, number: int) -> Iterator[tuple[str, Any]]:
    """The blocks of a message, each with the role that Anthropic gives it."""
    content = message.get("content")
    has_text = False
    last_call = ""
    for n, block in enumerate(content if isinstance(content, list) else []):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            if block["text"].strip():
                has_text = True
                yield role, {"type": "text", "text": block["text"]}
        elif kind == "tool_use" and role == "assistant":
            last_call = _id(block.get("id"), f"call_{number}_{n}")
            given = block.get("input")
            name = str(block.get("name") or "tool")
            yield (
                role,
                {"type": "tool_use", "id": last_call, "name": name, "input": given if isinstance(given, dict) else {}},
            )
        elif kind == "tool_result":
            yield "user", _result(block, _id(block.get("tool_use_id"), last_call))
        elif kind is not None:
            report.note("left-out", number, f"{str(kind)[:60]}: kept in the original alone")
    if not has_text and isinstance(message.get("text"), str) and message["text"].strip():
        yield role, {"type": "text", "text": message["text"]}
    yield from ((role, block) for block in _attached(message))


def _id(given: Any, otherwise: str) -> str:
    return given if isinstance(given, str) and given else otherwise


def _result(block: dict[str, Any], call: str) -> dict[str, Any]:
    inner = block.get("content")
    if isinstance(inner, list):
        inner = [
            {"type": "text", "text": part["text"]}
            for part in inner
            if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"].strip()
        ]
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call, "content": inner or ""}
    return {**result, "is_error": True} if block.get("is_error") is True else result


def _attached(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("attachments", "files"):
        given = message.get(name)
        for one in given if isinstance(given, list) else []:
            if isinstance(one, dict):
                inner = one.get("extracted_content")
                title = (
                    f"[{'attachment' if name == 'attachments' else 'file'}: {one.get('file_name') or 'without a name'}]"
                )
                yield {"type": "text", "text": f"{title}\n{inner}" if isinstance(inner, str) and inner else title}
