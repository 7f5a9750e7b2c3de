"""
The OpenAI client, with Segue as its history: chat completions, and responses.

    with session.run() as run:
        chat = run.openai(OpenAI(), model="gpt-5.2", tools=[query_sales])     # a session of either format
        print(chat.send("Why did sales fall in August?").text)

The session's format says which API: ``openai.chat`` or ``openai.responses``. Segue's own copy is the history.
With ``state="previous_response_id"`` or ``"conversation"`` the provider's copy is used while it is known to hold
the same, and Segue's when it is not: it is gone (30 days), the history was cut, or a crash left it unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from segue import codec
from segue.compaction import Compaction, Material
from segue.errors import Invalid
from segue.formats import Call
from segue.log import Log, draft
from segue.run import Run
from segue.streaming import Answer, ChatStream, ResponsesStream, chat_answer, responses_answer
from segue.view import View

from .chat import ROUNDS_MAX, AsyncChat, Chat, root_of
from .tools import Tool, Toolbox, repeatable, tool

__all__ = ["AsyncChat", "Chat", "Tool", "chat", "compactor", "repeatable", "summariser", "tool"]

KEPT = timedelta(days=30)
"""How long the provider keeps a response."""

STATE = "openai.state"
"""Kind and ref of the entries that say what the provider's copy holds."""

State = Literal["manual", "previous_response_id", "conversation"]


def chat(
    run: Any,
    client: Any,
    *,
    model: str,
    tools: Sequence[Any] = (),
    instructions: str | None = None,
    state: State = "manual",
    rounds_max: int = ROUNDS_MAX,
    compaction: Compaction | None = None,
    **options: Any,
) -> Any:
    """
    A conversation through the OpenAI client, kept in the run's session. Also ``run.openai(client, …)``.

    Args:
        run: A run of a session of the format ``openai.chat`` or ``openai.responses``; of the async face for an
            ``AsyncOpenAI``.
        client: ``openai.OpenAI`` or ``AsyncOpenAI``; any server that speaks the same.
        model: The model's id.
        tools: Functions, ``Tool``s, or definitions of the provider's own tools.
        instructions: The system prompt; keep it the same for the whole session.
        state: Whose copy is sent (responses only): ``manual`` (Segue's), ``previous_response_id``, ``conversation``.
        rounds_max: Most answers in one turn.
        compaction: When to cut the history, at the start of a turn.
        options: Handed to the client's ``create`` (``reasoning``, ``temperature``, ``extra_headers``, …).

    Returns:
        ``Chat``, or ``AsyncChat`` for an async run.

    Raises:
        Invalid: The session has another format.
    """
    sync: Run = getattr(run, "sync", run)
    format = sync.log.info().format
    dialect: _Completions | _Responses
    if format == "openai.chat" and state == "manual":
        dialect = _Completions(client, model, Toolbox(tools), instructions, options)
    elif format == "openai.responses":
        dialect = _Responses((client, model, Toolbox(tools), instructions), options, state=state, log=sync.log)
    else:
        raise Invalid(
            f"a session of the format {format!r} with state={state!r} cannot be sent through the OpenAI client; "
            "create it with format='openai.responses' or 'openai.chat'",
            where="format",
        )
    face = Chat if sync is run else AsyncChat
    return face(sync, dialect, tools, rounds_max=rounds_max, compaction=compaction)


def summariser(client: Any, *, model: str, **options: Any) -> Callable[[Material], Any]:
    """A ``Compaction.summarise`` that asks an OpenAI model (Responses API), with Segue's own prompt."""
    request = {"model": model, "store": False, **options}

    def ask(material: Material) -> Any:
        found = client.responses.create(instructions=material.prompt, input=material.text, **request)
        return _text(found) if not hasattr(found, "__await__") else _later(found, _text)

    return ask


def compactor(client: Any, *, model: str, **options: Any) -> Callable[[Material], Any]:
    """
    A ``Compaction.summarise`` that has the provider compact (``/responses/compact``): its items are kept verbatim.

    For sessions of the format ``openai.responses``. Later reasoning stays valid.
    """

    def ask(material: Material) -> Any:
        found = client.responses.compact(model=model, input=material.messages, **options)
        return _items(found) if not hasattr(found, "__await__") else _later(found, _items)

    return ask


async def _later(found: Any, then: Callable[[Any], Any]) -> Any:
    return then(await found)


def _text(response: Any) -> str:
    if response.status != "completed":
        raise Invalid(f"the summary ended {response.status!r}")
    return str(response.output_text)


def _items(response: Any) -> list[Any]:
    return list(response.to_dict(warnings=False)["output"])  # it may hold items that its types do not expect


class _Base:
    """What both APIs share."""

    format = ""

    def __init__(self, client: Any, model: str, tools: Toolbox, instructions: str | None) -> None:
        self._client = client
        self._fixed: dict[str, Any] = {"model": model, "tools": [self._definition(one) for one in tools.given]}
        self._instructions = instructions
        self._key: str | None = None

    def _definition(self, one: Tool | Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def prefix(self) -> dict[str, Any]:
        """Model, tools and instructions."""
        return {**self._fixed, "instructions": self._instructions}

    def _cache_key(self, log: Log) -> str:
        """The same for all forks of a conversation, as they share their beginning."""
        if self._key is None:
            self._key = "segue:" + hashlib.sha256(root_of(log).encode()).hexdigest()[:32]
        return self._key

    def settled(self, answer: Answer, view: View, log: Log) -> list[Any]:  # noqa: ARG002
        """Nothing more to store."""
        return []

    def recovers(self, error: Exception, log: Log) -> list[Any] | None:  # noqa: ARG002
        """No error means that the same may be asked in another way."""
        return None

    def is_paused(self, stop: str) -> bool:  # noqa: ARG002
        """Never."""
        return False


class _Completions(_Base):
    """The Chat Completions API, for one chat."""

    format = "openai.chat"

    def __init__(
        self, client: Any, model: str, tools: Toolbox, instructions: str | None, options: Mapping[str, Any]
    ) -> None:
        super().__init__(client, model, tools, instructions)
        self._options = dict(options)

    def _definition(self, one: Tool | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(one, Tool):
            function = {"name": one.name, "description": one.description, "parameters": dict(one.schema)}
            return {"type": "function", "function": function}
        return dict(one)

    def question(self, content: Any) -> Any:
        """A user's message."""
        return {"role": "user", "content": content}

    def result(self, call: Call, text: str, *, is_error: bool) -> Any:  # noqa: ARG002 - the format has no mark for it
        """A tool's message."""
        if call.kind == "function_call":
            return {"role": "function", "name": call.name, "content": text}
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def arguments(self, message: Any, call: str) -> Any:
        """The call's arguments."""
        made = next(one for one in message["tool_calls"] if one.get("id") == call)
        inner = made.get("function")
        return codec.decode((inner["arguments"] or "{}").encode()) if inner else {"input": made["custom"]["input"]}

    def text(self, message: Any) -> str:
        """Its text, or its refusal."""
        content = message.get("content") or message.get("refusal") or ""
        return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)

    def opener(self, view: View, log: Log, *, is_streamed: bool) -> Callable[[], Any]:
        """``client.chat.completions.create`` with the view."""
        first = [{"role": "developer", "content": self._instructions}] if self._instructions else []
        request = {**self._options, "model": self._fixed["model"], "messages": [*first, *view.messages]}
        request.setdefault("prompt_cache_key", self._cache_key(log))
        if self._fixed["tools"]:
            request["tools"] = self._fixed["tools"]
        if is_streamed:
            request.update(stream=True, stream_options={"include_usage": True})
        return lambda: self._client.chat.completions.create(**request)

    def accumulator(self) -> ChatStream:
        """For chunks."""
        return ChatStream()

    def answer(self, value: Mapping[str, Any]) -> Answer:
        """A whole completion."""
        return chat_answer(value)

    def is_cut_off(self, stop: str) -> bool:
        """The limit of tokens, or the filter."""
        return stop in ("length", "content_filter")


class _Responses(_Base):
    """The Responses API, for one chat."""

    format = "openai.responses"

    def __init__(
        self,
        base: tuple[Any, str, Toolbox, str | None],
        options: Mapping[str, Any],
        *,
        state: State,
        log: Log,
    ) -> None:
        if state not in ("manual", "previous_response_id", "conversation"):
            raise Invalid(f"state {state!r} is none of manual, previous_response_id, conversation", where="state")
        super().__init__(*base)
        self._options = dict(options)
        self._state = state
        self._sent: str | None = None  # the conversation that the request went to
        self._before = log.info().head  # what stood here before: of an unfinished turn nobody knows what arrived

    def _definition(self, one: Tool | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(one, Tool):
            named = {"name": one.name, "description": one.description}
            return {"type": "function", **named, "parameters": dict(one.schema), "strict": False}
        return dict(one)

    def question(self, content: Any) -> Any:
        """A user's message."""
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        return {"type": "message", "role": "user", "content": parts}

    def result(self, call: Call, text: str, *, is_error: bool) -> Any:  # noqa: ARG002 - the format has no mark for it
        """The output of the call."""
        kind = "custom_tool_call_output" if call.kind == "custom_tool_call" else "function_call_output"
        return {"type": kind, "call_id": call.id, "output": text}

    def arguments(self, message: Any, call: str) -> Any:  # noqa: ARG002 - one item is one call
        """The call's arguments."""
        if "input" in message:
            return {"input": message["input"]}
        return codec.decode((message["arguments"] or "{}").encode())

    def text(self, message: Any) -> str:
        """The text of a message item."""
        content = message.get("content")
        if message.get("type", "message") != "message" or not content:
            return ""
        if isinstance(content, str):
            return content
        return "".join(part.get("text") or part.get("refusal") or "" for part in content)

    def opener(self, view: View, log: Log, *, is_streamed: bool) -> Callable[[], Any]:
        """``client.responses.create`` with the view, or with what the provider's copy does not hold yet."""
        request = {**self._options, "model": self._fixed["model"], "input": list(view.messages)}
        request.setdefault("prompt_cache_key", self._cache_key(log))
        if self._instructions:
            request["instructions"] = self._instructions
        if self._fixed["tools"]:
            request["tools"] = self._fixed["tools"]
        if is_streamed:
            request["stream"] = True
        known = self._known(view, log)
        if self._state == "previous_response_id" and known is not None:
            request["previous_response_id"] = known["response"]
            request["input"] = _after(view, known["upto"])
        elif self._state == "conversation":
            return self._in_conversation(request, known, view)
        elif self._state == "manual":
            request.setdefault("store", False)
        return lambda: self._client.responses.create(**request)

    def _in_conversation(self, request: dict[str, Any], known: Any, view: View) -> Callable[[], Any]:
        if known is not None:
            request["input"] = _after(view, known["upto"])
            request["conversation"] = self._sent = known["conversation"]
            return lambda: self._client.responses.create(**request)

        def ask() -> Any:
            made = self._client.conversations.create()
            return self._ask_new(made, request) if not hasattr(made, "__await__") else self._ask_later(made, request)

        return ask

    def _ask_new(self, made: Any, request: dict[str, Any]) -> Any:
        self._sent = made.id
        return self._client.responses.create(**request, conversation=made.id)

    async def _ask_later(self, made: Any, request: dict[str, Any]) -> Any:
        return await self._ask_new(await made, request)

    def _known(self, view: View, log: Log) -> Any:
        """What the provider's copy holds, when it is known to hold the beginning of this very view."""
        if self._state == "manual":
            return None
        last = log.last(STATE)
        value = None if last is None or last.body is None else last.json()
        if value is None or value.get("epoch") != view.epoch or value.get("mode") != self._state:
            return None
        value["upto"] = last.seq if last is not None else 0  # it was stored together with what it tells of
        if self._state == "previous_response_id":
            return value if log.engine.store.now_us() < value["expires_us"] else None
        # A conversation grows by itself when a response completes: after a crash it may hold more than we know.
        was_answered = not log.read(after=value["upto"], upto=self._before, kinds=("message",), limit=1)
        return value if was_answered else None

    def settled(self, answer: Answer, view: View, log: Log) -> list[Any]:
        """What the provider's copy holds from now on."""
        if self._state == "manual" or not answer.id:
            return []
        body = {
            "mode": self._state,
            "response": answer.id,
            "conversation": self._sent,
            "epoch": view.epoch,
            "expires_us": log.engine.store.now_us() + KEPT // timedelta(microseconds=1),
        }
        return [draft(body, kind=STATE, format="segue", origin="system", refs=(STATE,))]

    def recovers(self, error: Exception, log: Log) -> list[Any] | None:
        """The provider's copy is gone: note it, and send Segue's own."""
        code = getattr(error, "code", None)
        gone = code in ("previous_response_not_found", "conversation_not_found")
        if self._state == "manual" or not (gone or getattr(error, "status_code", None) == 404):
            return None
        if log.last(STATE) is None:
            return None
        body = {"mode": None, "why": f"{type(error).__name__}: {error}"[:1_000]}
        return [draft(body, kind=STATE, format="segue", origin="system", refs=(STATE,))]

    def accumulator(self) -> ResponsesStream:
        """For stream events."""
        return ResponsesStream()

    def answer(self, value: Mapping[str, Any]) -> Answer:
        """A whole response."""
        return responses_answer(value)

    def is_cut_off(self, stop: str) -> bool:
        """The limit of tokens, or the filter."""
        return stop in ("max_output_tokens", "content_filter", "incomplete")


def _after(view: View, upto: int) -> list[Any]:
    """The messages of a view that came after a seq."""
    pairs = zip(view.messages, view.seqs, strict=True)
    return [message for message, seqs in pairs if not seqs or min(seqs) > upto]
