"""
What the stand-in hears: it refuses what the vendor refuses, and reads the rest as exchanges.

It knows nothing but the messages it is given, as a model does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .model import Call

_NOTE = re.compile(r"\[(会话恢复|Session resumed)")
_STAMP = re.compile(r"^\[(?:读取于|observed) [^·]* · (?P<source>[^·\]]+?)(?: · [^\]]*)?\]$", re.MULTILINE)


class Refused(ValueError):
    """The vendor would answer this request with status 400."""


def check(messages: list[dict[str, Any]]) -> None:
    """
    Refuse a history that the vendor would refuse.

    Raises:
        Refused: A call without its result in the next message, or a result without its call; results
            that do not come first; empty text or content; two calls of one id; a history that begins
            or ends with the assistant.
    """
    if not messages:
        raise Refused("messages: at least one message is required")
    merged = _merged(messages)
    if merged[0][0] != "user":
        raise Refused("messages.0: the first message must be the user's")
    if merged[-1][0] == "assistant":
        raise Refused("the conversation ends with the assistant; prefilling is not supported")
    called: list[str] = []
    for number, (role, blocks) in enumerate(merged):
        _check_texts(number, blocks)
        _check_answers(number, role, blocks, called)
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(called)) < len(called):
            raise Refused(f"messages.{number}: `tool_use` ids must be unique")
    if called:
        raise Refused(f"messages.{len(merged) - 1}: `tool_use` without `tool_result`: {', '.join(called)}")


def _merged(messages: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Consecutive messages of one role count as one, as the vendor has it."""
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in ("user", "assistant", "system"):
            raise Refused(f"messages.{number}: unknown role {role!r}")
        blocks = _blocks(message)
        if not blocks:
            raise Refused(f"messages.{number}: content must not be empty")
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        else:
            merged.append((role, blocks))
    return merged


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _check_texts(number: int, blocks: list[dict[str, Any]]) -> None:
    if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
        raise Refused(f"messages.{number}: text content blocks must be non-empty")


def _check_answers(number: int, role: str, blocks: list[dict[str, Any]], called: list[str]) -> None:
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if answered and role != "user":
        raise Refused(f"messages.{number}: `tool_result` belongs into a user message")
    for result in answered:
        if result not in called:
            raise Refused(f"messages.{number}: unexpected `tool_result` for {result}: nobody called it just before")
    missing = [call for call in called if answered.count(call) != 1]
    if missing:
        raise Refused(f"messages.{number}: not exactly one `tool_result` for `tool_use` {', '.join(missing)}")
    if any(block["type"] == "tool_result" for block in blocks[len(answered) :]):
        raise Refused(f"messages.{number}: `tool_result` blocks must come first")


@dataclass
class Done:
    """A call and what came of it."""

    call: Call
    text: str
    is_error: bool

    @property
    def sources(self) -> list[str]:
        """What it read of the world, by the stamps on the result."""
        return [found["source"] for found in _STAMP.finditer(self.text)]

    @property
    def value(self) -> dict[str, Any]:
        """The data in the result: its first line."""
        value = json.loads(self.text.partition("\n")[0])
        return value if isinstance(value, dict) else {}


@dataclass
class Exchange:
    """One question, what was noted before it, what was done for it, and the answer."""

    question: str = ""
    notes: list[str] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    answer: str = ""

    def did(self, call: Call) -> bool:
        """True when this exchange has made the same call successfully."""
        return any(_same(one.call, call) and not one.is_error for one in self.done)

    def stale_sources(self, known: set[str]) -> list[str]:
        """Sources that a note of this exchange names as no longer holding."""
        lines = [line for note in self.notes for line in note.splitlines() if line.startswith("- ")]
        return sorted(source for source in known if any(names(line, source) for line in lines))


def names(text: str, source: str) -> bool:
    """True when the text speaks of this source, and not only of one whose name is longer."""
    return re.search(re.escape(source) + r"(?=[\s，,；;:]|$)", text) is not None


def _same(one: Call, other: Call) -> bool:
    return (one.name, one.arguments) == (other.name, other.arguments)


def hear(messages: list[dict[str, Any]]) -> list[Exchange]:
    """The conversation as exchanges, the one to answer last."""
    talk = [Exchange()]
    calls: dict[str, Call] = {}
    for message in messages:
        for block in _blocks(message):
            if block["type"] == "tool_use":
                calls[block["id"]] = Call(block["id"], block["name"], block["input"])
            elif block["type"] == "tool_result":
                talk[-1].done.append(_done(calls[block["tool_use_id"]], block))
            elif block["type"] == "text" and message["role"] == "assistant":
                talk[-1].answer = block["text"]
            elif block["type"] == "text":
                _say(talk, block["text"])
    return talk


def _done(call: Call, block: dict[str, Any]) -> Done:
    content = block.get("content", "")
    text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    return Done(call, text, bool(block.get("is_error")))


def _say(talk: list[Exchange], text: str) -> None:
    if talk[-1].answer or talk[-1].done:
        talk.append(Exchange())
    if _NOTE.search(text):
        talk[-1].notes.append(text)
    else:
        talk[-1].question = text


def readings(talk: list[Exchange], source: str) -> Iterator[Call]:
    """The distinct calls of the conversation that read a source, first made first."""
    seen: list[Call] = []
    for one in (done for exchange in talk for done in exchange.done):
        if source in one.sources and not any(_same(one.call, call) for call in seen):
            seen.append(one.call)
            yield one.call
