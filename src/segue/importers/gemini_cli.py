"""
Gemini CLI: chats, as one document or one record a line.

The messages are told in Anthropic's form: a tool's result, which the file keeps with its call, becomes a message of
its own. Thoughts (they carry no signature), notices and errors stay in the original alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from segue.model import Usage

from .conversation import Conversation, Record, Said, made
from .records import as_text, clean, count, parse, when_us
from .report import FileReport
from .source import Source

NAME = "gemini-cli"

_ASIDE = frozenset({"info", "error", "warning"})


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    document = source.only
    if isinstance(document, dict) and "messages" in document:
        messages = document.get("messages")
        if (
            "sessionId" not in document
            or not isinstance(messages, list)
            or not ({"projectHash", "startTime"} & document.keys())
        ):
            return False
        whole = messages[:-1] if source.is_damaged else messages  # the last one may have been cut off
        return all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in whole)
    first = source.sample[0] if source.sample else None
    return isinstance(first, dict) and "sessionId" in first and "projectHash" in first and "messages" not in first


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The one conversation of the file."""
    document = source.only
    header = document if document is not None else source.sample[0]
    session = header.get("sessionId")
    is_name = isinstance(session, str) and 0 < len(session) <= 100 and session.isprintable()
    key = f"{NAME}:{session}" if is_name else source.key(NAME)
    reader = _Reader(report, key)
    if isinstance(document, dict) and "messages" in document:
        talk = Conversation(key, NAME, "anthropic", (), whole=source.whole())
        talk.records = reader.of_document(talk, document["messages"])
    else:
        talk = Conversation(key, NAME, "anthropic", ())
        talk.records = reader.of_lines(talk, source)
    yield talk


class _Reader:
    def __init__(self, report: FileReport, key: str) -> None:
        self.report = report
        self.key = key
        self.seen: dict[str, Any] = {}

    def of_document(self, talk: Conversation, messages: list[Any]) -> Iterator[Record]:
        for n, message in enumerate(messages, 1):
            yield Record(n, None, tuple(self._said(talk, message, n)))

    def of_lines(self, talk: Conversation, source: Source) -> Iterator[Record]:
        for line in source.lines():
            talk.ends = line.ends
            found = parse(line.raw) if not line.is_part else None
            if found is None:
                yield Record(line.number, line.raw, is_part=True)
                continue
            if found.defect == "broken" and not found.values and not line.ends:
                self.report.note("torn", line.number, "the file ends within a record")
                talk.tail, talk.ends = line.raw, True
                return
            if found.defect:
                self.report.note(found.defect, line.number)
            said = [one for value in found.values for one in self._said(talk, value, line.number)]
            yield Record(line.number, line.raw, tuple(said))

    def _said(self, talk: Conversation, message: Any, number: int) -> Iterator[Said]:
        if not isinstance(message, dict):
            self.report.note("not-a-record", number)
            return
        kind = message.get("type")
        if kind is None and ("sessionId" in message or any(str(key).startswith("$") for key in message)):
            return
        name = message.get("id")
        if isinstance(name, str) and name:
            if name in self.seen:
                self.report.note("duplicate-id", number, name[:80])
                if self.seen[name] == message:
                    return
            self.seen[name] = message
        if kind == "user":
            yield from self._user(talk, message)
        elif kind in {"gemini", "model", "assistant"}:
            yield from self._model(message, number)
        elif kind not in _ASIDE:
            self.report.note("unknown-record", number, str(kind)[:80])

    def _user(self, talk: Conversation, message: dict[str, Any]) -> Iterator[Said]:
        content = [block for block in map(_block, _parts(message.get("content"))) if block is not None]
        if not content:
            return
        if not talk.title and content[0]["type"] == "text":
            talk.title = " ".join(content[0]["text"].split())[:200]
        value = {"role": "user", "content": content}
        yield made(clean(value), origin="user", occurred_us=when_us(message.get("timestamp")))

    def _model(self, message: dict[str, Any], number: int) -> Iterator[Said]:
        us = when_us(message.get("timestamp"))
        blocks = [block for block in map(_block, _parts(message.get("content"))) if block is not None]
        results = []
        calls = message.get("toolCalls")
        for n, call in enumerate(calls if isinstance(calls, list) else []):
            if not isinstance(call, dict):
                continue
            given = call.get("id")
            id = given if isinstance(given, str) and given else f"call_{number}_{n}"
            args = call.get("args")
            blocks.append(
                {"type": "tool_use", "id": id, "name": str(call.get("name") or "tool"),
                 "input": args if isinstance(args, dict) else {}}
            )  # fmt: skip
            if call.get("result") is not None or call.get("status") in {"error", "cancelled"}:
                results.append(_result(id, call))
        usage = tokens(message.get("tokens"))
        if blocks or usage is not None:
            name = message.get("id")
            is_unique = isinstance(name, str) and len(name) > 8
            yield made(
                clean({"role": "assistant", "content": blocks}), origin="model", occurred_us=us, usage=usage,
                usage_key=f"gemini:{name}" if is_unique else f"{self.key}/{name or number}",
            )  # fmt: skip
        if results:
            yield made(clean({"role": "user", "content": results}), origin="tool", occurred_us=us)


def tokens(told: Any) -> Usage | None:
    """
    Tokens as the CLI tells them.

    Thoughts are told beside the output, and what tools gave to the prompt beside the input: here they are parts of it.
    """
    if not isinstance(told, dict):
        return None
    thoughts = count(told, "thoughts")
    return Usage(
        count(told, "input") + count(told, "tool"),
        count(told, "output") + thoughts,
        count(told, "cached"),
        0,
        0,
        thoughts,
    )


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [content] if content else []


def _block(part: Any) -> dict[str, Any] | None:
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if isinstance(text, str):
        return {"type": "text", "text": text} if text.strip() else None
    data = part.get("inlineData") if isinstance(part, dict) else None
    if isinstance(data, dict) and isinstance(data.get("data"), str) and str(data.get("mimeType")).startswith("image/"):
        source = {"type": "base64", "media_type": data["mimeType"], "data": data["data"]}
        return {"type": "image", "source": source}
    return {"type": "text", "text": as_text(part)} if part else None


def _result(id: str, call: dict[str, Any]) -> dict[str, Any]:
    texts = []
    result = call.get("result")
    for part in result if isinstance(result, list) else [result]:
        response = part.get("functionResponse") if isinstance(part, dict) else None
        inner = response.get("response") if isinstance(response, dict) else part
        if isinstance(inner, dict) and isinstance(inner.get("output"), str):
            inner = inner["output"]
        if inner is not None:
            texts.append(as_text(inner))
    block = {"type": "tool_result", "tool_use_id": id, "content": "\n".join(texts)}
    return {**block, "is_error": True} if call.get("status") in {"error", "cancelled"} else block
