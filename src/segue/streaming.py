"""
What a model says, piece by piece: only what is complete becomes history.

An accumulator takes the events of one answer, as dicts or as the official clients' objects, and gives the
pieces that people may watch. ``answer`` is there once the provider has said that the answer is complete.
A stream that ends before that leaves ``partial``: the blocks that were finished, and the text that was not.

The one hard invariant: nothing that the provider has not finished is ever given out as an answer.

Repeated events change nothing where the provider numbers them, or has finished the block they belong to.
Events that cannot follow each other raise ``StreamBroken``. Counts that shrink are not believed: within one
answer they can only grow, so the highest stands.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .answers import usage_of
from .codec import decode
from .errors import NotDone
from .model import Usage

DELTAS_MAX = 100_000
"""Most pieces of one answer that are kept for people who come late."""


class StreamBroken(NotDone):
    """
    The provider's stream ended early, or cannot be understood. Ask again; the finished blocks are kept aside.

    Attributes:
        detail: The provider's own words, where there are any.
    """

    def __init__(self, why: str, detail: Any = None) -> None:
        super().__init__(
            f"the stream of the answer is broken ({why}); nothing of it is history: send the question again"
        )
        self.detail = detail


class Delta(NamedTuple):
    """
    A piece of an answer, for people who watch.

    Attributes:
        kind: ``text``, ``thinking``, ``arguments`` (of a call) or ``call`` (a call begins; the text is its name).
        text: What came.
        block: Number of the block or item that it belongs to.
    """

    kind: str
    text: str
    block: int = 0


@dataclass(frozen=True)
class Answer:
    """
    One complete answer of a model.

    Attributes:
        messages: As the log keeps them, in the format's shape: one message, or the items of a response.
        usage: Its tokens, or None when the provider did not say.
        id: The provider's id of the answer; empty when there is none.
        model: The model that made it.
        stop: Why it ended, in the provider's word.
    """

    messages: list[Any]
    usage: Usage | None = None
    id: str = ""
    model: str = ""
    stop: str = ""


class Partial(NamedTuple):
    """What is left of an answer that never ended: finished blocks, unfinished text, what was counted so far."""

    blocks: list[Any]
    text: str
    usage: Usage | None
    id: str


class Accumulator(Protocol):
    """What collects one answer."""

    @property
    def answer(self) -> Answer | None:
        """The answer; None until the provider has ended it."""

    @property
    def partial(self) -> Partial:
        """What there is so far."""

    def add(self, event: Any) -> list[Delta]:
        """
        Take one event.

        Raises:
            StreamBroken: It cannot follow what came before, or says that the provider failed.
        """


def plain(event: Any) -> dict[str, Any]:
    """An event as a dict: an object of an official client, or one already."""
    to_dict = getattr(event, "to_dict", None)
    value = to_dict(warnings=False) if callable(to_dict) else event
    if not isinstance(value, Mapping):
        raise StreamBroken(f"{type(event).__name__} is no event")
    return dict(value)


def highest(before: Mapping[str, Any], now: Any) -> dict[str, Any]:
    """Counts of one answer taken together: what is absent or null keeps its value, and none can shrink."""
    counts = dict(before)
    for name, value in (now if isinstance(now, Mapping) else {}).items():
        old = counts.get(name)
        if isinstance(value, Mapping):
            counts[name] = highest(old if isinstance(old, Mapping) else {}, value)
        elif value is not None and not (isinstance(value, int) and isinstance(old, int) and value < old):
            counts[name] = value
    return counts


# Anthropic


@dataclass
class _Block:
    value: dict[str, Any]
    arguments: list[str] = field(default_factory=list)


_GROWS = {"text_delta": "text", "thinking_delta": "thinking"}


class AnthropicStream:
    """Collects the events of one message of the Messages API."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._open: dict[int, _Block] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._counts: dict[str, Any] = {}
        self._is_over = False
        self._handlers = {
            "message_start": self._start,
            "content_block_start": self._begin,
            "content_block_delta": self._grow,
            "content_block_stop": self._end,
            "message_delta": self._change,
            "message_stop": self._stop,
        }

    @property
    def answer(self) -> Answer | None:
        """The answer; None before ``message_stop``."""
        if not self._is_over or self._message is None:
            return None
        return anthropic_answer({**self._message, "content": self._finished(), "usage": self._counts})

    @property
    def partial(self) -> Partial:
        """Finished blocks, and the text of the block that was not."""
        text = "".join(str(block.value.get("text", "")) for block in self._open.values())
        return Partial(self._finished(), text, usage_of(self._counts), (self._message or {}).get("id") or "")

    def _finished(self) -> list[Any]:
        return [self._done[index] for index in sorted(self._done)]

    def add(self, event: Any) -> list[Delta]:
        """Take one event; see ``Accumulator.add``."""
        event = plain(event)
        kind = event.get("type")
        if kind == "error":
            raise StreamBroken("the provider reports an error", event.get("error"))
        handle = self._handlers.get(str(kind))
        if handle is None or self._is_over:  # pings, and events of a newer API; what is over stays as it is
            return []
        if kind != "message_start" and self._message is None:
            raise StreamBroken(f"{kind} came before message_start")
        return handle(event)

    def _start(self, event: dict[str, Any]) -> list[Delta]:
        message = event["message"]
        if self._message is not None and self._message.get("id") != message.get("id"):
            raise StreamBroken("a second message began in it")
        if self._message is None:
            self._message = {key: value for key, value in message.items() if key not in ("content", "usage")}
        self._counts = highest(self._counts, message.get("usage"))
        return []

    def _begin(self, event: dict[str, Any]) -> list[Delta]:
        index = event["index"]
        if index in self._done:
            return []
        block = dict(event["content_block"])
        self._open[index] = _Block(block)
        if block.get("type") == "fallback" and self._message is not None:
            self._message["model"] = (block.get("to") or {}).get("model", self._message.get("model"))
        return [Delta("call", str(block.get("name", "")), index)] if block.get("type") == "tool_use" else []

    def _grow(self, event: dict[str, Any]) -> list[Delta]:
        index, delta = event["index"], event["delta"]
        if index in self._done:
            return []
        block = self._open.get(index)
        if block is None:
            raise StreamBroken(f"a piece of block {index} came before its start")
        kind = delta.get("type")
        if kind in _GROWS:
            name = _GROWS[kind]
            block.value[name] = block.value.get(name, "") + delta[name]
            return [Delta(name, delta[name], index)]
        if kind == "input_json_delta":
            block.arguments.append(delta["partial_json"])
            return [Delta("arguments", delta["partial_json"], index)] if delta["partial_json"] else []
        if kind == "citations_delta":
            block.value["citations"] = [*(block.value.get("citations") or []), delta["citation"]]
        elif kind == "signature_delta":
            block.value["signature"] = delta["signature"]
        elif kind == "compaction_delta":
            block.value.update({key: value for key, value in delta.items() if key != "type"})
        else:
            raise StreamBroken(f"a piece of the unknown kind {kind!r} came; upgrade segue")
        return []

    def _end(self, event: dict[str, Any]) -> list[Delta]:
        index = event["index"]
        if index in self._done:
            return []
        block = self._open.pop(index, None)
        if block is None:
            raise StreamBroken(f"block {index} ended before its start")
        if block.arguments and (text := "".join(block.arguments)):
            try:
                block.value["input"] = decode(text.encode())
            except ValueError:
                raise StreamBroken(f"the arguments of block {index} are no JSON") from None
        self._done[index] = block.value
        return []

    def _change(self, event: dict[str, Any]) -> list[Delta]:
        message = self._message or {}
        for name, value in event.get("delta", {}).items():
            if value is not None:
                message[name] = value
        if "input_transformations" in event:
            message["input_transformations"] = event["input_transformations"]
        self._counts = highest(self._counts, event.get("usage"))
        return []

    def _stop(self, _: dict[str, Any]) -> list[Delta]:
        if self._open:
            raise StreamBroken("it ended inside a block")
        self._is_over = True
        return []


def anthropic_answer(message: Mapping[str, Any]) -> Answer:
    """A whole ``Message``."""
    return Answer(
        [{"role": message.get("role", "assistant"), "content": message["content"]}],
        usage_of(message.get("usage")),
        message.get("id") or "",
        message.get("model") or "",
        message.get("stop_reason") or "",
    )


# OpenAI Chat


class ChatStream:
    """Collects the chunks of one chat completion (its first choice)."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._counts: dict[str, Any] = {}
        self._id = self._model = self._stop = ""

    @property
    def answer(self) -> Answer | None:
        """The answer; None before a ``finish_reason`` came."""
        if not self._stop:
            return None
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return Answer([message], usage_of(self._counts), self._id, self._model, self._stop)

    @property
    def partial(self) -> Partial:
        """The text so far; this API has no blocks that end."""
        return Partial([], self._message["content"] or "", usage_of(self._counts), self._id)

    def add(self, event: Any) -> list[Delta]:
        """Take one chunk; see ``Accumulator.add``."""
        chunk = plain(event)
        if chunk.get("error"):
            raise StreamBroken("the provider reports an error", chunk["error"])
        self._id = self._id or chunk.get("id") or ""
        if chunk.get("id") and chunk["id"] != self._id:
            raise StreamBroken("a second answer began in it")
        self._model = chunk.get("model") or self._model
        self._counts = highest(self._counts, chunk.get("usage"))
        found: list[Delta] = []
        for choice in chunk.get("choices") or []:
            if choice.get("index", 0) == 0 and not self._stop:
                found += self._grow(choice.get("delta") or {})
                self._stop = choice.get("finish_reason") or ""
        return found

    def _grow(self, delta: dict[str, Any]) -> list[Delta]:
        found: list[Delta] = []
        for name, value in delta.items():
            if name == "tool_calls":
                for piece in value or []:
                    found += self._call(piece)
            elif name != "role" and isinstance(value, str):
                self._message[name] = (self._message.get(name) or "") + value
                if value:
                    found.append(Delta("text" if name in ("content", "refusal") else "thinking", value))
            elif name != "role" and value is not None:
                self._message[name] = value
        return found

    def _call(self, piece: dict[str, Any]) -> list[Delta]:
        index = piece.get("index", 0)
        is_new = index not in self._calls
        if is_new and not piece.get("id"):
            raise StreamBroken(f"a piece of call {index} came before its start")
        call = self._calls.setdefault(index, {"id": piece.get("id"), "type": piece.get("type") or "function"})
        for name in ("function", "custom"):
            if piece.get(name):
                inner = call.setdefault(name, {"name": "", "arguments" if name == "function" else "input": ""})
                for key, value in piece[name].items():
                    inner[key] = (inner.get(key) or "") + (value or "")
        text = (piece.get("function") or piece.get("custom") or {}).get("arguments") or ""
        begun = (
            [Delta("call", (call.get("function") or call.get("custom") or {}).get("name", ""), index)] if is_new else []
        )
        return begun + ([Delta("arguments", text, index)] if text else [])


def chat_answer(completion: Mapping[str, Any]) -> Answer:
    """A whole ``ChatCompletion``: its first choice."""
    choices = completion.get("choices")
    if not choices:
        raise StreamBroken("the completion has no choice", completion.get("error"))
    return Answer(
        [choices[0]["message"]],
        usage_of(completion.get("usage")),
        completion.get("id") or "",
        completion.get("model") or "",
        choices[0].get("finish_reason") or "",
    )


# OpenAI Responses


_TEXTS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "thinking",
    "response.reasoning_summary_text.delta": "thinking",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}


class ResponsesStream:
    """
    Collects the events of one response.

    Attributes:
        cursor: The highest ``sequence_number`` seen: ``starting_after`` of a reconnect.
    """

    def __init__(self) -> None:
        self.cursor = -1
        self._id = ""
        self._items: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, str] = {}
        self._whole: dict[str, Any] | None = None

    @property
    def answer(self) -> Answer | None:
        """The answer; None before the response was completed (or ended incomplete)."""
        if self._whole is None:
            return None
        items = self._whole.get("output") or [self._items[index] for index in sorted(self._items)]
        return responses_answer({**self._whole, "output": items})

    @property
    def partial(self) -> Partial:
        """Finished items, and the text of those that were not."""
        text = "".join(self._texts[index] for index in sorted(self._texts) if index not in self._items)
        return Partial([self._items[index] for index in sorted(self._items)], text, None, self._id)

    def add(self, event: Any) -> list[Delta]:
        """Take one event; see ``Accumulator.add``. One that came before is passed over."""
        event = plain(event)
        number = event.get("sequence_number")
        is_late = isinstance(number, int) and number <= self.cursor
        self.cursor = max(self.cursor, number) if isinstance(number, int) else self.cursor
        kind = str(event.get("type"))
        index = event.get("output_index", 0)
        if kind == "error":
            raise StreamBroken("the provider reports an error", {k: event.get(k) for k in ("code", "message")})
        if isinstance(event.get("response"), Mapping):
            self._take(kind, event["response"])
        elif kind == "response.output_item.done":  # whole, so it does not matter when it comes
            self._items.setdefault(index, event["item"])
        elif kind in _TEXTS and not is_late and index not in self._items:
            if _TEXTS[kind] == "text":
                self._texts[index] = self._texts.get(index, "") + event["delta"]
            return [Delta(_TEXTS[kind], event["delta"], index)]
        elif kind == "response.output_item.added" and not is_late and event["item"].get("type") == "function_call":
            return [Delta("call", event["item"].get("name", ""), index)]
        return []

    def _take(self, kind: str, response: Mapping[str, Any]) -> None:
        if self._id and response.get("id") != self._id:
            raise StreamBroken("a second response began in it")
        self._id = response.get("id") or ""
        if kind == "response.failed":
            raise StreamBroken("the response failed", response.get("error"))
        if kind in ("response.completed", "response.incomplete", "response.cancelled"):
            self._whole = dict(response)


def responses_answer(response: Mapping[str, Any]) -> Answer:
    """A whole ``Response``."""
    if response.get("status") == "failed":
        raise StreamBroken("the response failed", response.get("error"))
    reason = (response.get("incomplete_details") or {}).get("reason") or ""
    return Answer(
        list(response["output"]),
        usage_of(response.get("usage")),
        response.get("id") or "",
        response.get("model") or "",
        reason or ("" if response.get("status") == "completed" else response.get("status") or ""),
    )


# Watching


class Deltas:
    """
    The pieces of the answer under way, for any number of people who watch, early or late, from any thread.

    Each follower gets every piece of the answer from its beginning, once and in order, and ends with it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: list[Delta] = []
        self._is_over = False

    def begin(self) -> None:
        """A new answer: what was kept of the last one goes."""
        with self._changed:
            self._pieces = []
            self._is_over = False

    def put(self, delta: Delta) -> None:
        """A piece came. Beyond 100,000 pieces only the newest followers' own reading goes on from the stored answer."""
        with self._changed:
            if len(self._pieces) < DELTAS_MAX:
                self._pieces.append(delta)
            self._changed.notify_all()

    def end(self) -> None:
        """The answer is over, complete or not."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def follow(self) -> Iterator[Delta]:
        """Every piece of the answer under way (or of the last one), then each new one until it is over."""
        at = 0
        with self._changed:
            pieces = self._pieces
        while True:
            with self._changed:
                while at == len(pieces) and pieces is self._pieces and not self._is_over:
                    self._changed.wait()
                new = pieces[at:]
                is_over = pieces is not self._pieces or self._is_over
            yield from new
            at += len(new)
            if is_over and at == len(pieces):
                return
