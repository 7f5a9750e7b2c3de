"""
Codex CLI: rollouts, one record a line, of all versions known.

A message is the ``payload`` of a ``response_item`` record (or the record itself, in old files), in its own bytes
where the provider takes them so. A ``compacted`` record is a cut, and what it puts in place of the history follows.
Tokens are the steps of the running totals; a fork repeats those of its parent, which are recognised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from segue.model import Usage

from .conversation import Conversation, Record, Said, made
from .records import Line, as_text, clean, count, parse, value_of, when_us
from .report import FileReport
from .source import Source
from .writing import check

NAME = "codex"

ITEMS = frozenset(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "web_search_call",
        "image_generation_call",
        "tool_search_call",
        "tool_search_output",
        "compaction",
    ]
)
"""Types of payloads that are items of the provider."""

_KNOWN = frozenset(
    [
        "session_meta",
        "turn_context",
        "world_state",
        "event_msg",
        "response_item",
        "compacted",
        "inter_agent_communication_metadata",
    ]
)
_OWN = frozenset({"internal_chat_message_metadata_passthrough", "metadata", "timestamp"})
"""Fields that the CLI adds for itself, which the provider would refuse."""

_OLD_CALLS = {"tool_call", "function_call"}
_OLD_RESULTS = {"tool_result", "function_result"}


class _Line(msgspec.Struct):
    type: Any = None
    timestamp: Any = None
    payload: msgspec.Raw = msgspec.Raw()


_line = msgspec.json.Decoder(_Line)


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    values = [value for value in source.sample if isinstance(value, dict)]
    if any(value.get("type") in _KNOWN and isinstance(value.get("payload"), dict) for value in values):
        return True
    is_old = bool(values) and "id" in values[0] and "instructions" in values[0] and "timestamp" in values[0]
    return is_old or any(_is_flat(value) for value in values)


def _is_flat(value: dict[str, Any]) -> bool:
    """A record of the oldest files: a message with a time on it and the model's name."""
    has_time = "timestamp" in value or "created_at" in value
    return has_time and value.get("role") in {"user", "assistant"} and "model" in value and "uuid" not in value


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The one conversation of the file."""
    yield _Reader(source, report).talk


class _Reader:
    def __init__(self, source: Source, report: FileReport) -> None:
        self.source = source
        self.report = report
        metas = [meta for meta in map(_meta, source.sample) if meta]
        meta = metas[0] if metas else {}
        self.id = _text(meta.get("id"))
        self.root = _root(self.id, metas)
        self.total = Usage()
        self.prompt = self.name = ""
        self.calls = 0
        key = f"codex:{self.id}"[:150] if self.id and self.id.isprintable() else source.key(NAME)
        facts = {name: meta[name][:500] for name in ("cwd", "cli_version") if isinstance(meta.get(name), str)}
        parent = _parent(meta)
        self.talk = Conversation(
            key, NAME, "openai.responses", self._records(), metadata=facts, parent=f"codex:{parent}" if parent else None
        )

    def _records(self) -> Iterator[Record]:
        for line in self.source.lines():
            self.talk.ends = line.ends
            yield from self._of_line(line)
        self.talk.title = self.name or self.prompt

    def _of_line(self, line: Line) -> Iterator[Record]:
        if line.is_part:
            self.report.note("too-large", line.number, "a line that is too long to be read")
            yield Record(line.number, line.raw, is_part=True)
            return
        found = parse(line.raw)
        values = [value for value in found.values if isinstance(value, dict)]
        if found.defect == "broken" and not values and not line.ends:
            self.report.note("torn", line.number, "the file ends within a record")
            self.talk.tail, self.talk.ends = line.raw, True
            return
        if found.defect or len(values) < len(found.values):
            self.report.note(found.defect or "not-a-record", line.number)
        if len(values) == 1 and not found.defect:
            yield self._record(line, values[0])
            return
        said = [one for value in values for one in self._said(value, None, line.number)]
        yield Record(line.number, line.raw, tuple(said))

    def _record(self, line: Line, value: dict[str, Any]) -> Record:
        said = tuple(self._said(value, line.raw, line.number))
        usage, key = self._tokens(value)
        return Record(
            line.number, line.raw, said, cuts=value.get("type") == "compacted", usage=usage, usage_key=key
        )  # fmt: skip

    # Messages

    def _said(self, value: dict[str, Any], raw: bytes | None, number: int) -> Iterator[Said]:
        kind, payload = value.get("type"), value.get("payload")
        us = when_us(value.get("timestamp") or value.get("created_at"))
        if kind == "compacted" and isinstance(payload, dict):
            yield from self._compacted(payload, us, number)
        elif kind == "response_item" and isinstance(payload, dict):
            yield from self._item(payload, raw, us, number)
        elif isinstance(payload, dict):
            self._event(kind, payload, number)
        elif "role" in value or kind in ITEMS | _OLD_CALLS | _OLD_RESULTS:
            item = self._flat(value)
            if item is not None:
                yield from self._item(item, raw if item is value else None, us, number)
        elif not ("id" in value and "instructions" in value) and kind not in {"error", None}:
            self.report.note("unknown-record", number, str(kind)[:80])

    def _item(self, item: dict[str, Any], raw: bytes | None, us: int | None, number: int) -> Iterator[Said]:
        kind = item.get("type", "message" if "role" in item else None)
        if kind not in ITEMS:
            self.report.note("unknown-record", number, f"response_item {str(kind)[:60]}")
            return
        origin = _origin(item, kind)
        if origin == "user" and not self.prompt:
            self.prompt = _prompt(item)
        mended = self._mended(item, kind, number)
        if mended is item and raw is not None:
            body = raw if "payload" not in _fields(raw) else _payload(raw)
            if check(body, item):
                yield Said(body, item, raw.find(body), origin, us)
                return
        yield made(clean(mended), origin=origin, occurred_us=us)

    def _mended(self, item: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        """The item as the provider takes it; the same object when nothing had to be done."""
        if not _OWN.isdisjoint(item):
            item = {key: value for key, value in item.items() if key not in _OWN}
        if kind == "function_call" and not isinstance(item.get("arguments"), str):
            given = item.get("arguments")
            if given is None:
                self.report.note("call-without-arguments", number, str(item.get("name"))[:80])
            item = {**item, "arguments": as_text({} if given is None else given)}
        if kind in {"function_call_output", "custom_tool_call_output"} and isinstance(item.get("output"), dict):
            output = item["output"]
            is_part = isinstance(output.get("type"), str)
            item = {**item, "output": [_part(output)] if is_part else as_text(output)}
        return item

    def _compacted(self, payload: dict[str, Any], us: int | None, number: int) -> Iterator[Said]:
        history = payload.get("replacement_history")
        if isinstance(history, list) and history:
            for item in history:
                if isinstance(item, dict):
                    yield from self._item(item, None, us, number)
        elif isinstance(payload.get("message"), str) and payload["message"]:
            text = [{"type": "input_text", "text": payload["message"]}]
            yield made(clean({"type": "message", "role": "user", "content": text}), origin="system", occurred_us=us)

    def _flat(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """The item of an old record: as it is, or put together from its own words."""
        kind = value.get("type")
        function = value.get("function")
        name = value.get("name") or (function.get("name") if isinstance(function, dict) else None)
        if kind in _OLD_CALLS and "call_id" not in value:
            self.calls += 1
            return {
                "type": "function_call", "call_id": f"call_{self.calls}", "name": str(name or "tool"),
                "arguments": as_text(value.get("arguments", {})),
            }  # fmt: skip
        if kind in _OLD_RESULTS:
            result = as_text(value.get("result", value.get("output", "")))
            return {"type": "function_call_output", "call_id": f"call_{self.calls}", "output": result}
        if kind in ITEMS:
            return value
        text = value.get("content", value.get("message"))
        if value.get("role") in {"user", "assistant", "system", "developer"} and isinstance(text, str | list) and text:
            return {"type": "message", "role": value["role"], "content": text}
        return None

    def _event(self, kind: Any, payload: dict[str, Any], number: int) -> None:
        if kind not in _KNOWN:
            self.report.note("unknown-record", number, str(kind)[:80])
        elif payload.get("type") == "thread_name_updated" and isinstance(payload.get("thread_name"), str):
            self.name = payload["thread_name"]
        elif payload.get("type") == "user_message" and isinstance(payload.get("message"), str) and not self.prompt:
            self.prompt = " ".join(payload["message"].split())[:200]

    # Tokens

    def _tokens(self, value: dict[str, Any]) -> tuple[Usage | None, str]:
        payload = value.get("payload")
        if value.get("type") != "event_msg" or not isinstance(payload, dict):
            return None, ""
        stamp = f"{value.get('timestamp')}"
        if payload.get("type") == "turn.completed" and isinstance(payload.get("usage"), dict):
            return _usage(payload["usage"]), f"codex:{self.id}:{stamp}"
        info = payload.get("info")
        if payload.get("type") != "token_count" or not isinstance(info, dict):
            return None, ""
        if not isinstance(info.get("total_token_usage"), dict):
            last = info.get("last_token_usage")
            return (_usage(last), f"codex:{self.id}:{stamp}") if isinstance(last, dict) else (None, "")
        now, before = _usage(info["total_token_usage"]), self.total
        self.total = now
        if now == before:
            return None, ""
        totals = "/".join(map(str, now))
        if any(a < b for a, b in zip(now, before, strict=True)):
            before = Usage()  # it began to count anew
        step = Usage(*(a - b for a, b in zip(now, before, strict=True)))
        return step, f"codex:{self.root or stamp}:{totals}"


def _usage(told: dict[str, Any]) -> Usage:
    return Usage(
        count(told, "input_tokens"),
        count(told, "output_tokens"),
        count(told, "cached_input_tokens"),
        count(told, "cache_write_input_tokens"),
        0,
        count(told, "reasoning_output_tokens"),
    )


def _meta(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    payload = value.get("payload")
    if value.get("type") == "session_meta" and isinstance(payload, dict):
        return payload
    return value if "instructions" in value and "id" in value else {}


def _root(id: str, metas: list[dict[str, Any]]) -> str:
    """The first session of a chain of forks: a fork repeats what its parents told of themselves."""
    parents = {_text(meta.get("id")): _text(meta.get("forked_from_id")) for meta in metas}
    while parents.get(id):
        id = parents.pop(id)
    return id


def _parent(meta: dict[str, Any]) -> str:
    found = _text(meta.get("parent_thread_id"))
    source = meta.get("source")
    if not found and isinstance(source, dict):
        agent = source.get("subagent")
        spawn = agent.get("thread_spawn") if isinstance(agent, dict) else None
        found = _text(spawn.get("parent_thread_id")) if isinstance(spawn, dict) else ""
    return found[:100] if found.isprintable() else ""


def _origin(item: dict[str, Any], kind: str) -> str:
    if kind == "message":
        return {"user": "user", "assistant": "model"}.get(str(item.get("role")), "system")
    return "tool" if kind.endswith("_output") else "model"


def _prompt(item: dict[str, Any]) -> str:
    content = item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    told = " ".join(" ".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)).split())
    return "" if told.startswith(("<", "# AGENTS.md")) else told[:200]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if value is not None}


def _payload(raw: bytes) -> bytes:
    try:
        return bytes(_line.decode(raw).payload)
    except (msgspec.MsgspecError, ValueError):  # a line that was mended
        return raw


def _fields(raw: bytes) -> Any:
    value = value_of(raw)  # it may be a line that was mended
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
