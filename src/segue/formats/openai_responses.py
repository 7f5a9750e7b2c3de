"""
OpenAI Responses: one entry holds one item of ``input`` or ``output``.

What the provider asks for, and what a view does about it:

- Every call has exactly one output with its ``call_id``, and the reverse. Outputs are put behind
  the items that the model produced in one go.
- Reasoning is directly followed by the item it led to, and has an ``id`` or ``encrypted_content``.
  Reasoning that lost its item is left out. An item that lost its reasoning is sent without its
  ``id``: the id is what the provider would look the missing reasoning up by.
- No item id twice. Item ids are not unique in real logs: the second item with an id is left out when
  it is the same item, else it is sent without its id. The Agents SDK's ``__fake_id__`` is never sent.
- Fields that the Agents SDK adds for itself (``provider_data`` and the like) are not sent.
- ``compaction_trigger`` must be last, so it belongs to a request and not to history: it is left out.
- A ``compaction`` item stays where it is, and so does what is before it: whether that may go depends
  on how the item came about. A cut entry says that it may.
- Calls that need no answer at once stay open: asynchronous ones and requests for approval [inferred
  from the types; not measured]. A ``program`` is the provider's: it ends in a later response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from segue import codec
from segue.errors import ViewInvalid

from .parts import INTERRUPTED, LOSES_ID, Call, Intake, Item, Message, Omission, Owner, Round, Shape

FAKE_ID = "__fake_id__"

_PRIVATE = frozenset({"provider_data", "created_by", "_agents_tool_description", "_agents_tool_title"})

_CALLS = frozenset(
    {"function_call", "custom_tool_call", "shell_call", "apply_patch_call", "computer_call", "local_shell_call"}
)
_OUTPUTS = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "computer_call_output",
        "local_shell_call_output",
    }
)
_SETTINGS = frozenset({"additional_tools", "configuration_update"})
_NEEDS_ID = frozenset(
    {
        "file_search_call",
        "web_search_call",
        "computer_call",
        "code_interpreter_call",
        "image_generation_call",
        "local_shell_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_call",
        "item_reference",
        "program",
        "program_output",
    }
)
_BLANK_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

_EMPTY = Shape("other", is_empty=True)
_QUESTION = Shape("other", is_question=True, is_plain=True)
_INSTRUCTION = Shape("other", is_plain=True)
_SAID = Shape("model", is_plain=True)
_REASONING = Shape("model", needs_next=True)


class OpenAIResponses:
    """The rules of the OpenAI Responses API."""

    name = "openai.responses"
    marks: tuple[str, ...] = ()
    binds = False  # reasoning with another prefix is dropped by the provider, which says so

    def shape(self, value: Any) -> Shape | None:
        """What an item is, or None when the value is no item of this format."""
        if type(value) is not dict:
            return None
        shape = self._shape(value)
        if shape is None or _PRIVATE.isdisjoint(value):
            return shape
        return shape._replace(is_clean=False, is_plain=False)

    def _shape(self, value: dict[str, Any]) -> Shape | None:
        kind = value.get("type", "message" if "role" in value else None)
        if kind == "message":
            return _shape_of_message(value)
        if type(kind) is not str:
            return None
        if kind == "reasoning":
            return _REASONING
        if kind in _CALLS or kind in {"program", "mcp_approval_request", "tool_search_call"}:
            return _shape_of_call(value, kind)
        if kind in _OUTPUTS or kind in {"program_output", "mcp_approval_response", "tool_search_output"}:
            return _shape_of_output(value, kind)
        return _INSTRUCTION if kind in _SETTINGS or kind == "compaction_trigger" else _SAID

    def role(self, value: Any) -> str:
        """``user``, ``system``, ``developer`` …, ``assistant`` for what the model made, ``tool`` for outputs."""
        shape = self.shape(value)
        if shape is None:
            return ""
        side = {"model": "assistant", "answer": "tool", "other": "developer"}[shape.side]
        return str(value.get("role", side))

    def calls(self, value: Any) -> tuple[Call, ...]:
        """Calls in it that somebody must still answer."""
        shape = self.shape(value)
        return () if shape is None else shape.calls

    def results(self, value: Any) -> tuple[str, ...]:
        """Ids of the calls that it answers."""
        shape = self.shape(value)
        return () if shape is None else shape.answers

    def refs(self, value: Any) -> tuple[str, ...]:
        """Refs for the log: ``call:<id>`` for calls and results."""
        shape = self.shape(value)
        return () if shape is None else shape.refs

    def is_question(self, value: Any) -> bool:
        """True when a person starts a turn with it."""
        shape = self.shape(value)
        return shape is not None and shape.is_question

    def is_reasoning(self, value: Any) -> bool:
        """True for reasoning, which may only be sent together with the item that follows."""
        shape = self.shape(value)
        return shape is not None and shape.needs_next

    def unbound(self, body: bytes, value: Any) -> tuple[bytes, Any] | None:  # noqa: ARG002
        """Nothing is to be taken out."""
        return None

    def settlement(self, call: Call, text: str = INTERRUPTED) -> dict[str, Any]:
        """
        An output for a call that has none, with this text.

        A computer call can only be answered by a screenshot: it gets a blank one, marked incomplete.
        """
        if call.kind == "custom_tool_call":
            return {"type": "custom_tool_call_output", "call_id": call.id, "output": text}
        if call.kind == "shell_call":
            lines = [{"stdout": "", "stderr": text, "outcome": {"type": "timeout"}}]
            return {"type": "shell_call_output", "call_id": call.id, "output": lines, "status": "incomplete"}
        if call.kind == "apply_patch_call":
            return {"type": "apply_patch_call_output", "call_id": call.id, "status": "failed", "output": text}
        if call.kind == "computer_call":
            screen = {"type": "computer_screenshot", "image_url": _BLANK_IMAGE}
            return {"type": "computer_call_output", "call_id": call.id, "output": screen, "status": "incomplete"}
        if call.kind == "local_shell_call":
            return {"type": "local_shell_call_output", "id": call.id, "output": text, "status": "incomplete"}
        if call.kind == "tool_search_call":
            return {"type": "tool_search_output", "call_id": call.id, "tools": [], "status": "incomplete"}
        return {"type": "function_call_output", "call_id": call.id, "output": text}

    def note(self, text: str, carrier: str | None = None) -> dict[str, Any]:
        """
        A message in which Segue speaks.

        Args:
            text: What it says.
            carrier: ``developer`` (default), ``system``, or ``user-text``.
        """
        role = {"system": "system", "user-text": "user"}.get(carrier or "developer", "developer")
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    def summary(self, text: str) -> dict[str, Any]:
        """A message that stands for the history; in the user's role, as what it tells is no instruction."""
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def opening(self, first: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Nothing: messages may begin with whatever is left."""
        return None

    def intake(self, was_reasoning: Callable[[], bool]) -> Intake:
        """What looks at each item of one view before it is laid out."""
        return _Intake(was_reasoning)

    def render(self, rounds: list[Round], omitted: list[Omission]) -> list[Message]:
        """The items of one exchange: what the model made, in order, then the outputs."""
        messages: list[Message] = []
        for part in rounds:
            messages.extend(_item(item) for item in _with_reasoning(part.model, omitted))
            messages.extend(_item(item) for item in part.answers if item.accepted)
            values = [self.settlement(call, text) for call, text in part.missing]
            messages.extend(Message(codec.encode(value), value, (), is_synthetic=True) for value in values)
        return messages

    def render_other(self, item: Item) -> Message | None:
        """The item as it is."""
        return _item(item)

    def check(self, messages: list[Any], *, may_be_open: frozenset[str] = frozenset()) -> None:
        """
        Refuse items that the provider would refuse.

        Args:
            messages: The items that would be sent as ``input``.
            may_be_open: Ids of calls that may lack an output.

        Raises:
            ViewInvalid: ``rule`` and ``where`` say which rule is broken and by what.
        """
        _Check(may_be_open).run(self, messages)


def _shape_of_message(value: dict[str, Any]) -> Shape | None:
    role, content = value.get("role"), value.get("content")
    if type(role) is not str or (type(content) is not str and not _is_parts(content)):
        return None
    if not content:
        return _EMPTY
    if role == "assistant":
        return _SAID
    return _QUESTION if role == "user" else _INSTRUCTION


def _is_parts(content: Any) -> bool:
    return type(content) is list and all(type(part) is dict and type(part.get("type")) is str for part in content)


def _shape_of_call(value: dict[str, Any], kind: str) -> Shape | None:
    if kind == "tool_search_call" and (value.get("execution") == "server" or value.get("call_id") is None):
        return _SAID  # the provider searches and answers by itself
    call_id = value.get("id") if kind == "mcp_approval_request" else value.get("call_id")
    if type(call_id) is not str or not call_id:
        return None
    owner: Owner = "client"
    if kind == "program":
        owner = "server"
    elif kind == "mcp_approval_request" or value.get("async") is True:
        owner = "later"
    caller = value.get("caller")
    parent = caller.get("caller_id") if type(caller) is dict else None
    name = value.get("name")
    return Shape("model", (Call(call_id, name if type(name) is str else "", kind, owner, parent),))


def _shape_of_output(value: dict[str, Any], kind: str) -> Shape | None:
    if kind == "tool_search_output" and (value.get("execution") == "server" or value.get("call_id") is None):
        return _SAID
    key = "approval_request_id" if kind == "mcp_approval_response" else "call_id"
    call_id = value.get(key)
    if kind == "local_shell_call_output" and type(call_id) is not str:
        call_id = value.get("id")  # its types have no call_id: the id is the call's
    if type(call_id) is not str or not call_id:
        return None
    if kind == "program_output":
        return Shape("model", server_results=(call_id,))
    return Shape("answer", results=(call_id,))


def _with_reasoning(items: list[Item], omitted: list[Omission]) -> list[Item]:
    """The items that may be sent: none that was dropped, and no reasoning without the item it led to."""
    kept: list[Item] = []
    for item in reversed(items):
        if item.dropped_calls or item.dropped_ids:
            continue
        if item.shape.needs_next and not (kept and _follows(items, item, kept[-1])):
            omitted.append(Omission(item.seq, item.seq, "reasoning-without-item", "nothing that it led to is here"))
            continue
        kept.append(item)
    kept.reverse()
    return kept


def _follows(items: list[Item], reasoning: Item, after: Item) -> bool:
    return items.index(after) == items.index(reasoning) + 1


def _item(item: Item) -> Message:
    if item.shape.is_clean and not item.loses_id:
        return Message(item.body, item.value, (item.seq,))
    gone = _PRIVATE | {"id"} if item.loses_id else _PRIVATE
    value = {key: inner for key, inner in item.value.items() if key not in gone}
    return Message(codec.encode(value), value, (item.seq,))


class _Intake(Intake):
    """Ids that are taken, or that stand for something lost."""

    def __init__(self, was_reasoning: Callable[[], bool]) -> None:
        self.by_id: dict[str, list[Any]] = {}
        self.lost_reasoning = False
        self.was_reasoning: Callable[[], bool] | None = was_reasoning  # asked once, and only where it matters

    def admit(self, value: Any, shape: Shape) -> str | None:
        """None: let it pass. LOSES_ID: send it without its id. Else the reason why it cannot be sent at all."""
        kind = value.get("type", "message")
        if kind == "compaction_trigger":
            return "request-only"
        lost, self.lost_reasoning = self.lost_reasoning, False
        asks, self.was_reasoning = self.was_reasoning, None
        item_id = value.get("id")
        has_id = item_id is not None and kind != "local_shell_call_output"
        verdict = self._admit_id(value, item_id, kind) if has_id else None
        if shape.needs_next:
            return self._admit_reasoning(value, verdict)
        if verdict is not None or not has_id or shape.side != "model":
            return verdict
        if lost or (asks is not None and asks()):
            return "reasoning-without-item" if kind in _NEEDS_ID else LOSES_ID
        return None

    def _admit_id(self, value: Any, item_id: Any, kind: str) -> str | None:
        if type(item_id) is not str or item_id == FAKE_ID:
            return LOSES_ID
        seen = self.by_id.setdefault(item_id, [])
        if (kind in _NEEDS_ID and seen) or value in seen:
            return "duplicate-item"
        seen.append(value)
        return None if len(seen) == 1 else LOSES_ID

    def _admit_reasoning(self, value: Any, verdict: str | None) -> str | None:
        if verdict in {None, LOSES_ID}:
            if value.get("encrypted_content") or (value.get("id") and verdict is None):
                return verdict
            verdict = "reasoning-without-item"
        self.lost_reasoning = True
        return verdict

    def note(self) -> None:
        """A note stands here: what follows does not follow reasoning."""
        self.lost_reasoning, self.was_reasoning = False, None

    def gap(self, *, was_reasoning: bool) -> None:
        """An item was erased or retracted here."""
        self.lost_reasoning = self.lost_reasoning or was_reasoning


class _Check:
    def __init__(self, may_be_open: frozenset[str]) -> None:
        self.may_be_open = may_be_open
        self.ids: set[str] = set()
        self.open: dict[str, tuple[str, Call]] = {}
        self.answered: set[str] = set()
        self.reasoning = ""  # where reasoning stands that waits for its item

    def run(self, rules: OpenAIResponses, items: list[Any]) -> None:
        for index, item in enumerate(items):
            where = f"input[{index}]"
            shape = rules.shape(item)
            if shape is None:
                _refuse("message-shape", where, "is no item of this format")
            elif shape.is_empty:
                _refuse("empty-message", where, "has no content")
            else:
                self._item(where, item, shape, is_last=index == len(items) - 1)
        if self.reasoning:
            _refuse("reasoning-without-item", self.reasoning, "is reasoning without the item that it led to")
        for call_id, (where, call) in self.open.items():
            if call.owner == "client" and call_id not in self.may_be_open:
                _refuse("call-without-result", where, f"makes the call {call_id!r}, which has no output")

    def _item(self, where: str, item: dict[str, Any], shape: Shape, *, is_last: bool) -> None:
        kind = item.get("type", "message")
        if kind == "compaction_trigger" and not is_last:
            _refuse("trigger-not-last", where, "is a compaction_trigger, which must be the last item")
        self._id(where, item, kind)
        if self.reasoning and shape.side != "model":
            _refuse("reasoning-without-item", self.reasoning, f"is reasoning, and {where} is not the item it led to")
        self.reasoning = where if shape.needs_next else ""
        if shape.is_question:
            self._no_unfinished(where)
        for call in shape.calls:
            if call.id in self.open:
                _refuse("duplicate-call", where, f"makes the call {call.id!r} a second time")
            self.open[call.id] = (where, call)
        for call_id in (*shape.results, *shape.server_results):
            if self.open.pop(call_id, None) is None:
                rule = "duplicate-result" if call_id in self.answered else "result-without-call"
                _refuse(rule, where, f"answers {call_id!r}, which is not an open call")
            self.answered.add(call_id)

    def _no_unfinished(self, where: str) -> None:
        for call_id, (asked, call) in self.open.items():
            if call.owner == "server":
                _refuse("unfinished-call", asked, f"is the provider's call {call_id!r}, not ended before {where}")

    def _id(self, where: str, item: dict[str, Any], kind: str) -> None:
        item_id = item.get("id")
        if kind == "reasoning" and not (item_id or item.get("encrypted_content")):
            _refuse("reasoning-without-id", where, "is reasoning with neither an id nor encrypted content")
        if item_id is None:
            if kind in _NEEDS_ID:
                _refuse("missing-item-id", where, f"is a {kind} without an id")
            return
        if kind == "local_shell_call_output":
            return
        if type(item_id) is not str:
            _refuse("message-shape", where, "has an id that is no string")
        if item_id in self.ids:
            _refuse("duplicate-item-id", where, f"has the id {item_id!r}, which another item has already")
        self.ids.add(item_id)


def _refuse(rule: str, where: str, what: str) -> NoReturn:
    raise ViewInvalid(f"{where} {what}; the provider would refuse the request", rule=rule, where=where)
