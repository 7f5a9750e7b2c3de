"""
The models: Anthropic's, OpenAI's, or a scripted stand-in where there is no key. One loop drives them all.

A model says how its provider writes questions, calls and results; the session keeps exactly that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from segue import MissingExtra

ANSWER_MAX_TOKENS = 4_000


class Call(NamedTuple):
    """A tool call of the model."""

    id: str
    name: str
    arguments: dict[str, Any]


class Result(NamedTuple):
    """What came of a call."""

    call: Call
    text: str
    is_error: bool = False


class Reply(NamedTuple):
    """What a model answered: the client's answer, for the session to keep, and what is in it."""

    answer: Any
    text: str
    calls: list[Call]


class Model(Protocol):
    """What the loop needs of a model."""

    name: str
    format: str

    def definitions(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The tools as the provider wants them described."""

    def question(self, text: str) -> dict[str, Any]:
        """A user's question as a message."""

    def results(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        """The results of one reply's calls as messages."""

    def reply(self, instructions: str, tools: Sequence[dict[str, Any]], messages: list[Any]) -> Reply:
        """Ask the model."""


def choose() -> Model:
    """The model of whichever key is set; without one, the stand-in. ``SEGUE_EXAMPLE_MODEL`` names another model."""
    name = os.environ.get("SEGUE_EXAMPLE_MODEL")
    if os.environ.get("ANTHROPIC_API_KEY"):
        return Anthropic(name or "claude-sonnet-5-5")
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAI(name or "gpt-5.4")
    from .stand_in import StandIn

    return StandIn()


class AnthropicForm:
    """How Anthropic writes a conversation."""

    format = "anthropic"

    def definitions(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in tools
        ]

    def question(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def results(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        blocks = [
            {"type": "tool_result", "tool_use_id": result.call.id, "content": result.text}
            | ({"is_error": True} if result.is_error else {})
            for result in results
        ]
        return [{"role": "user", "content": blocks}]

    def read(self, content: list[dict[str, Any]]) -> tuple[str, list[Call]]:
        """Text and calls of an assistant's content."""
        text = "\n".join(block["text"] for block in content if block["type"] == "text")
        calls = [Call(block["id"], block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
        return text, calls


class Anthropic(AnthropicForm):
    """Claude, through the official client."""

    def __init__(self, name: str) -> None:
        try:
            import anthropic
        except ImportError:
            raise MissingExtra("anthropic", "anthropic") from None
        self.name = name
        self._client = anthropic.Anthropic()

    def reply(self, instructions: str, tools: Sequence[dict[str, Any]], messages: list[Any]) -> Reply:
        answer = self._client.messages.create(
            model=self.name,
            max_tokens=ANSWER_MAX_TOKENS,
            system=instructions,
            tools=tools,  # type: ignore[arg-type]
            messages=messages,
        )
        return Reply(answer, *self.read([block.to_dict() for block in answer.content]))


class OpenAI:
    """GPT, through the official client's Responses interface; the provider keeps nothing, the session does."""

    format = "openai.responses"

    def __init__(self, name: str) -> None:
        try:
            import openai
        except ImportError:
            raise MissingExtra("openai", "openai") from None
        self.name = name
        self._client = openai.OpenAI()

    def definitions(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"type": "function", **tool, "strict": False} for tool in tools]

    def question(self, text: str) -> dict[str, Any]:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def results(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        return [{"type": "function_call_output", "call_id": r.call.id, "output": r.text} for r in results]

    def reply(self, instructions: str, tools: Sequence[dict[str, Any]], messages: list[Any]) -> Reply:
        answer = self._client.responses.create(
            model=self.name,
            instructions=instructions,
            tools=tools,  # type: ignore[arg-type]
            input=messages,
            max_output_tokens=ANSWER_MAX_TOKENS,
            store=False,
        )
        calls = [
            Call(item.call_id, item.name, _arguments(item.arguments))
            for item in answer.output
            if item.type == "function_call"
        ]
        return Reply(answer, answer.output_text, calls)


def _arguments(text: str) -> dict[str, Any]:
    """A model may write what is no JSON object: the tool then refuses the unknown argument, and the model sees it."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"unreadable": str(text)}
