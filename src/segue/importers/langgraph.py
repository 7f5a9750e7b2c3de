"""
LangGraph: checkpoints of its ``SqliteSaver``.

Every row (checkpoint, write) is kept exactly. Messages are read out of the checkpoints' ``messages`` channel without
importing or calling anything: an object is taken for its fields, whatever class it names. They are told in the form of
OpenAI chat. Each path from a root to a leaf is a session; the longest is first, the others are forks of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from segue.model import Usage

from .conversation import Conversation, Record, Said, made
from .database import key_of, raw_of, reading, row_bytes, tables
from .records import as_text, clean, count, parse, when_us
from .report import FileReport
from .source import Source

NAME = "langgraph"

_THREADS = "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY 1, 2"
_LINKS = """
    SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints
    WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id
"""
_CHECKPOINT = "SELECT * FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
_WRITES = """
    SELECT * FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx
"""
_STRAYS = """
    SELECT * FROM writes w WHERE NOT EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns
            AND c.checkpoint_id = w.checkpoint_id
    ) ORDER BY thread_id, checkpoint_ns, checkpoint_id, task_id, idx
"""
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "HumanMessageChunk": "user",
          "AIMessageChunk": "assistant", "developer": "developer"}  # fmt: skip


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    return {"thread_id", "checkpoint_id", "checkpoint"} <= tables(source).get("checkpoints", set())


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file."""
    has_writes = "writes" in tables(source)
    with reading(source) as connection:
        for thread, ns in connection.execute(_THREADS).fetchall():
            key = key_of(source, NAME, f"{thread}/{ns}" if ns else str(thread))
            facts = {"thread_id": clean(str(thread)[:200]), "checkpoint_ns": clean(str(ns)[:200])}
            links = connection.execute(_LINKS, (thread, ns)).fetchall()
            for path in paths(links):
                talk = Conversation(
                    key,
                    NAME,
                    "openai.chat",
                    (),
                    metadata=facts,
                    parent=key_of(source, NAME, str(thread)) if ns else None,
                )
                talk.records = _Reader(connection, (thread, ns), talk, report, has_writes=has_writes).records(path)
                yield talk
        if has_writes:
            strays = connection.execute(_STRAYS).fetchall()
            records = [Record(n, row_bytes("writes", row)) for n, row in enumerate(strays, 1)]
            if records:
                report.note(
                    "stray-writes", 0, f"{len(records)} writes belong to no checkpoint; kept in a hidden session"
                )
                yield Conversation(source.key(NAME, "writes"), NAME, "segue", records, metadata={"frame": True})


def paths(links: list[Any]) -> list[list[str]]:
    """
    Paths from a root to each leaf, longest first, then by the leaf's id.

    Checkpoints in a circle have neither: what no other path holds is a path from its newest one.
    """
    parents = {row[0]: row[1] for row in links}
    inner = {parent for parent in parents.values() if parent}
    found = [_path(parents, leaf) for leaf in parents if leaf not in inner]
    held = {name for path in found for name in path}
    for name in sorted(parents.keys() - held, reverse=True):
        if name not in held:
            found.append(_path(parents, name))
            held.update(found[-1])
    return sorted(found, key=lambda path: (-len(path), path[-1]))


def _path(parents: dict[str, Any], leaf: str) -> list[str]:
    path: dict[str, None] = {}
    at: str | None = leaf
    while at is not None and at in parents and at not in path:
        path[at] = None
        at = parents[at]
    return list(path)[::-1]


class _Reader:
    def __init__(
        self, connection: sqlite3.Connection, where: tuple[str, str], talk: Conversation, report: FileReport,
        *, has_writes: bool,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.where = where
        self.talk = talk
        self.report = report
        self.has_writes = has_writes
        self.seen: set[str] = set()

    def records(self, path: list[str]) -> Iterator[Record]:
        number = 0
        for checkpoint in path:
            row = self.connection.execute(_CHECKPOINT, (*self.where, checkpoint)).fetchone()
            number += 1
            yield Record(number, row_bytes("checkpoints", row), tuple(self._said(row, number)))
            if self.has_writes:
                for write in self.connection.execute(_WRITES, (*self.where, checkpoint)).fetchall():
                    number += 1
                    yield Record(number, row_bytes("writes", write))

    def _said(self, row: sqlite3.Row, number: int) -> Iterator[Said]:
        value = decoded(row["type"], row["checkpoint"])
        if not isinstance(value, dict):
            self.report.note("opaque", number, f"a checkpoint of type {str(row['type'])[:40]} is kept, not read")
            return
        us = when_us(value.get("ts"))
        channels = value.get("channel_values")
        messages = channels.get("messages") if isinstance(channels, dict) else None
        for n, one in enumerate(messages if isinstance(messages, list) else []):
            message = _fields(one)
            name = str(message.get("id") or f"#{n}")
            if name in self.seen or not message:
                continue
            self.seen.add(name)
            yield from self._message(message, name, us, number)

    def _message(self, message: dict[str, Any], name: str, us: int | None, number: int) -> Iterator[Said]:
        role = _ROLES.get(str(message.get("type") or message.get("role")), str(message.get("role") or ""))
        content = message.get("content")
        if role not in {"user", "assistant", "system", "tool", "developer"}:
            self.report.note("unknown-record", number, f"a message of type {str(message.get('type'))[:40]}")
            return
        value: dict[str, Any] = {"role": role, "content": _content(content)}
        calls = message.get("tool_calls")
        if role == "assistant" and isinstance(calls, list) and calls:
            value["tool_calls"] = [_call(call, n) for n, call in enumerate(calls) if isinstance(call, dict)]
            value["content"] = value["content"] or None
        if role == "tool":
            value["tool_call_id"] = str(message.get("tool_call_id") or "")
        if role == "user" and not self.talk.title and isinstance(value["content"], str):
            self.talk.title = " ".join(value["content"].split())[:200]
        usage = _usage(message.get("usage_metadata"))
        call = name if message.get("id") else f"{self.talk.key}/{name}"
        origin = {"user": "user", "assistant": "model", "tool": "tool"}.get(role, "system")
        yield made(
            clean(value), origin=origin, occurred_us=us, usage=usage, usage_key=f"langgraph:{call}" if usage else ""
        )


def decoded(kind: Any, blob: Any) -> Any:
    """A value out of a blob of type ``msgpack`` or ``json``; None for any other (pickles are never read)."""
    try:
        if kind == "msgpack":
            return msgspec.msgpack.decode(blob, ext_hook=_extension, strict=False)
        if kind == "json":
            found = parse(raw_of(blob)).values
            return found[0] if found else None
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
        return None
    return None


def _extension(code: int, data: memoryview) -> Any:
    """An object as plain values: ``[module, class, fields or arguments, …]``; nothing is imported or called."""
    try:
        inner = msgspec.msgpack.decode(bytes(data), ext_hook=_extension, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {"extension": code}
    if isinstance(inner, list) and len(inner) >= 3 and all(isinstance(part, str) for part in inner[:2]):
        return {"class": f"{inner[0]}.{inner[1]}", "fields": inner[2]}
    return {"extension": code, "value": inner}


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a message, however it was written."""
    if not isinstance(value, dict):
        return {}
    inner = value.get("fields", value.get("kwargs"))
    return inner if isinstance(inner, dict) else value


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, dict) and part.get("type") in {"text", "image_url"}:
            parts.append(_plain(part))
    return parts or ""


def _call(call: dict[str, Any], n: int) -> dict[str, Any]:
    args = call.get("args", {})
    text = args if isinstance(args, str) else as_text(_plain(args))
    id = str(call.get("id") or f"call_{n}")
    return {"id": id, "type": "function", "function": {"name": str(call.get("name") or "tool"), "arguments": text}}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _usage(told: Any) -> Usage | None:
    if not isinstance(told, dict):
        return None
    given, said = told.get("input_token_details"), told.get("output_token_details")
    return Usage(
        count(told, "input_tokens"), count(told, "output_tokens"), count(given, "cache_read"),
        count(given, "cache_creation"), 0, count(said, "reasoning"),
    )  # fmt: skip
