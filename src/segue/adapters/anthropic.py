"""
The Anthropic client, with Segue as its history.

    with session.run() as run:
        chat = run.anthropic(Anthropic(), model="claude-sonnet-4-5", tools=[query_sales])
        print(chat.send("Why did sales fall in August?").text)

Cache marks belong to requests and are never stored: one behind the system prompt and tools, one at the end of
the messages, and one at the end of what the request before held, so that a long turn still finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segue.compaction import Compaction, Material
from segue.errors import Invalid
from segue.formats import Call
from segue.log import Log
from segue.run import Run
from segue.streaming import Answer, AnthropicStream, anthropic_answer
from segue.view import View

from .chat import ROUNDS_MAX, AsyncChat, Chat
from .tools import Tool, Toolbox, repeatable, tool

__all__ = ["AsyncChat", "Chat", "Tool", "chat", "repeatable", "summariser", "tool"]

MAX_TOKENS = 8_192
"""Most tokens of one answer, unless told otherwise."""

_MARK = {"type": "ephemeral"}
_MARKABLE = frozenset({"text", "image", "document", "tool_use", "tool_result", "search_result"})


def chat(
    run: Any,
    client: Any,
    *,
    model: str,
    tools: Sequence[Any] = (),
    system: Any = None,
    max_tokens: int = MAX_TOKENS,
    cache: str | None = "5m",
    rounds_max: int = ROUNDS_MAX,
    compaction: Compaction | None = None,
    **options: Any,
) -> Any:
    """
    A conversation through the Anthropic client, kept in the run's session. Also ``run.anthropic(client, …)``.

    Args:
        run: A run of a session of the format ``anthropic``; of the async face for an ``AsyncAnthropic``.
        client: ``anthropic.Anthropic`` or ``AsyncAnthropic`` (or one of its relatives for clouds).
        model: The model's id.
        tools: Functions, ``Tool``s, or definitions of the provider's own tools.
        system: The system prompt, text or blocks; keep it the same for the whole session.
        max_tokens: Most tokens of one answer.
        cache: How long the provider's cache is to keep the prefix: ``5m``, ``1h``, or None for no marks.
        rounds_max: Most answers in one turn.
        compaction: When to cut the history, at the start of a turn.
        options: Handed to ``client.messages.create`` (``thinking``, ``temperature``, ``extra_headers``, …).

    Returns:
        ``Chat``, or ``AsyncChat`` for an async run.
    """
    dialect = _Messages(
        client, Toolbox(tools), model=model, system=system, cache=cache, options={"max_tokens": max_tokens, **options}
    )
    sync: Run = getattr(run, "sync", run)
    face = Chat if sync is run else AsyncChat
    return face(sync, dialect, tools, rounds_max=rounds_max, compaction=compaction)


def summariser(client: Any, *, model: str, max_tokens: int = 4_096, **options: Any) -> Callable[[Material], Any]:
    """A ``Compaction.summarise`` that asks an Anthropic model, with Segue's own prompt."""
    request = {"model": model, "max_tokens": max_tokens, **options}

    def ask(material: Material) -> Any:
        message = {"role": "user", "content": material.text}
        found = client.messages.create(system=material.prompt, messages=[message], **request)
        return _text(found) if not hasattr(found, "__await__") else _later(found)

    return ask


async def _later(found: Any) -> str:
    return _text(await found)


def _text(message: Any) -> str:
    """The text of a summary; one that ran into its limit is none."""
    if message.stop_reason not in ("end_turn", "stop_sequence"):
        raise Invalid(f"the summary ended with {message.stop_reason!r}")
    return "".join(block.text for block in message.content if block.type == "text")


class _Messages:
    """The Messages API, for one chat."""

    format = "anthropic"

    def __init__(
        self,
        client: Any,
        tools: Toolbox,
        *,
        model: str,
        system: Any,
        cache: str | None,
        options: Mapping[str, Any],
    ) -> None:
        if cache not in ("5m", "1h", None):
            raise Invalid(f"cache must be '5m', '1h' or None, it is {cache!r}", where="cache")
        self._client = client
        self._mark = None if cache is None else _MARK if cache == "5m" else {**_MARK, "ttl": cache}
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
        self._fixed: dict[str, Any] = {
            "model": model,
            "tools": [_definition(one) for one in tools.given],
            "system": blocks or [],
        }
        self._options = dict(options)

    def prefix(self) -> dict[str, Any]:
        """Model, tools and system prompt."""
        return dict(self._fixed)

    def question(self, content: Any) -> Any:
        """A user's message; always blocks, as a text and a block of text are different bytes to a cache."""
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return {"role": "user", "content": blocks}

    def result(self, call: Call, text: str, *, is_error: bool) -> Any:
        """A user's message with the result."""
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id}
        block["content"] = [{"type": "text", "text": text if text.strip() else "(nothing)"}]
        if is_error:
            block["is_error"] = True
        if call.family is not None:
            block["toolset_name"] = call.family
        return {"role": "user", "content": [block]}

    def arguments(self, message: Any, call: str) -> Any:
        """The call's input."""
        return next(block.get("input") for block in message["content"] if block.get("id") == call)

    def text(self, message: Any) -> str:
        """Its text blocks."""
        content = message["content"]
        if isinstance(content, str):
            return content
        return "".join(block["text"] for block in content if block.get("type") == "text")

    def opener(self, view: View, log: Log, *, is_streamed: bool) -> Callable[[], Any]:  # noqa: ARG002
        """``client.messages.create`` with the view."""
        request: dict[str, Any] = {**self._options, "model": self._fixed["model"], "messages": self._marked(view)}
        marks = {} if self._mark is None else {"cache_control": self._mark}
        for name in ("system", "tools"):
            blocks = self._fixed[name]
            is_last = name == "system" or not self._fixed["system"]
            if blocks:
                request[name] = [*blocks[:-1], {**blocks[-1], **marks}] if is_last else blocks
        if is_streamed:
            request["stream"] = True
        return lambda: self._client.messages.create(**request)

    def _marked(self, view: View) -> list[Any]:
        """The messages, the last of them marked, and the last one before the newest answer."""
        messages = list(view.messages)
        if self._mark is None:
            return messages
        ends = [len(messages) - 1]
        answers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        if answers and answers[-1]:
            ends.append(answers[-1] - 1)
        for index in ends:
            content = messages[index]["content"] if index >= 0 else None
            if isinstance(content, list) and content and content[-1].get("type") in _MARKABLE:
                marked = [*content[:-1], {**content[-1], "cache_control": self._mark}]
                messages[index] = {**messages[index], "content": marked}
        return messages

    def accumulator(self) -> AnthropicStream:
        """For raw stream events."""
        return AnthropicStream()

    def answer(self, value: Mapping[str, Any]) -> Answer:
        """A whole message."""
        return anthropic_answer(value)

    def settled(self, answer: Answer, view: View, log: Log) -> list[Any]:  # noqa: ARG002
        """Nothing more to store."""
        return []

    def recovers(self, error: Exception, log: Log) -> list[Any] | None:  # noqa: ARG002
        """No error of this API means that the same question may be asked in another way."""
        return None

    def is_paused(self, stop: str) -> bool:
        """``pause_turn``: send it back as it is."""
        return stop == "pause_turn"

    def is_cut_off(self, stop: str) -> bool:
        """The limit of tokens, or the window's end."""
        return stop in ("max_tokens", "model_context_window_exceeded")


def _definition(one: Tool | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(one, Tool):
        return {"name": one.name, "description": one.description, "input_schema": dict(one.schema)}
    return dict(one)
