"""
OpenAI Chat Completions: one entry holds one message, ``{"role": …, "content": …}``.

What the provider asks for, and what a view does about it:

- Tool messages stand right behind the assistant message that made the calls, one for each call.
  Results that came later, or after a text, are put there; texts that came between follow.
- An empty list of calls is refused: it is left out, and so are nulls for calls. An assistant
  message needs content, a refusal, audio or calls; one with nothing is left out.
- The older ``function_call`` with its ``function`` message has no ids; it is paired by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from segue import codec
from segue.errors import ViewInvalid

from .parts import INTERRUPTED, Call, Intake, Item, Message, Omission, Round, Shape

_PEOPLE = frozenset({"user", "system", "developer"})

_EMPTY = Shape("other", is_empty=True)
_QUESTION = Shape("other", is_question=True, is_plain=True)
_INSTRUCTION = Shape("other", is_plain=True)
_SAID = Shape("model", is_plain=True)
_SAID_DIRTY = Shape("model", is_clean=False)


class OpenAIChat:
    """The rules of OpenAI Chat Completions, and of the many servers that speak it."""

    name = "openai.chat"
    marks: tuple[str, ...] = ()
    binds = False

    def shape(self, value: Any) -> Shape | None:
        """What a message is, or None when the value is no message of this format."""
        if type(value) is not dict:
            return None
        role, content = value.get("role"), value.get("content")
        if type(role) is not str or not (content is None or type(content) is str or _is_parts(content)):
            return None
        if role == "assistant":
            return _shape_of_assistant(value, content)
        if role in _PEOPLE:
            if not content:
                return _EMPTY
            return _QUESTION if role == "user" else _INSTRUCTION
        if role == "tool":
            call_id = value.get("tool_call_id")
            return Shape("answer", results=(call_id,)) if type(call_id) is str and content is not None else None
        if role == "function" and type(value.get("name")) is str:
            return Shape("answer", results=(f"function:{value['name']}",))
        return None

    def role(self, value: Any) -> str:
        """The role that the message has for the provider; empty when it is no message."""
        return str(value["role"]) if self.shape(value) is not None else ""

    def calls(self, value: Any) -> tuple[Call, ...]:
        """Calls in it that somebody must still answer."""
        shape = self.shape(value)
        return () if shape is None else shape.calls

    def results(self, value: Any) -> tuple[str, ...]:
        """Ids of the calls that it answers."""
        shape = self.shape(value)
        return () if shape is None else shape.results

    def refs(self, value: Any) -> tuple[str, ...]:
        """Refs for the log: ``call:<id>`` for calls and results."""
        shape = self.shape(value)
        return () if shape is None else shape.refs

    def is_question(self, value: Any) -> bool:
        """True when a person starts a turn with it."""
        shape = self.shape(value)
        return shape is not None and shape.is_question

    def is_reasoning(self, value: Any) -> bool:  # noqa: ARG002 - the format keeps no reasoning apart
        """Never: this format has no reasoning that is bound to what follows."""
        return False

    def unbound(self, body: bytes, value: Any) -> tuple[bytes, Any] | None:  # noqa: ARG002
        """Nothing is to be taken out."""
        return None

    def settlement(self, call: Call, text: str = INTERRUPTED) -> dict[str, Any]:
        """A result for a call that has none."""
        if call.kind == "function_call":
            return {"role": "function", "name": call.name, "content": text}
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def note(self, text: str, carrier: str | None = None) -> dict[str, Any]:
        """
        A message in which Segue speaks.

        Args:
            text: What it says.
            carrier: ``system`` (default; what most servers know), ``developer``, or ``user-text``.
        """
        role = {"developer": "developer", "user-text": "user"}.get(carrier or "system", "system")
        return {"role": role, "content": text}

    def summary(self, text: str) -> dict[str, Any]:
        """A message that stands for the history; in the user's role, as what it tells is no instruction."""
        return {"role": "user", "content": text}

    def opening(self, first: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Nothing: messages may begin with whatever is left."""
        return None

    def intake(self, was_reasoning: Callable[[], bool]) -> Intake:  # noqa: ARG002
        """What looks at each message of one view before it is laid out: here nothing."""
        return Intake()

    def render(self, rounds: list[Round], omitted: list[Omission]) -> list[Message]:
        """The messages of one exchange: each assistant message with the results of its calls behind it."""
        messages = []
        for part in rounds:
            for item in part.model:
                said = _said(item, omitted)
                if said is None:
                    continue
                messages.append(said)
                if item.shape.calls:
                    messages.extend(self._answers(part, item))
        return messages

    def _answers(self, part: Round, item: Item) -> list[Message]:
        ids = {call.id for index, call in enumerate(item.shape.calls) if index not in item.dropped_calls}
        given = [Message(a.body, a.value, (a.seq,)) for a in part.answers if a.accepted[0] in ids]
        values = [self.settlement(call, text) for call, text in part.missing if call.id in ids]
        return given + [Message(codec.encode(value), value, (), is_synthetic=True) for value in values]

    def render_other(self, item: Item) -> Message | None:
        """The message as it is."""
        return Message(item.body, item.value, (item.seq,)) if item.shape.side == "other" else None

    def check(self, messages: list[Any], *, may_be_open: frozenset[str] = frozenset()) -> None:
        """
        Refuse messages that the provider would refuse.

        Args:
            messages: What would be sent.
            may_be_open: Ids of calls that may lack a result, at the end.

        Raises:
            ViewInvalid: ``rule`` and ``where`` say which rule is broken and by what.
        """
        is_open: dict[str, str] = {}
        answered: set[str] = set()
        for index, message in enumerate(messages):
            where = f"messages[{index}]"
            shape = self.shape(message)
            if shape is None:
                _refuse("message-shape", where, "is no message of this format")
            elif shape.is_empty:
                _refuse("empty-message", where, "has no content")
            elif not shape.is_clean:
                _refuse("empty-calls", where, "has an empty list of calls; leave the field out")
            elif shape.side == "answer":
                _take_result(where, shape.results[0], is_open, answered)
            else:
                _end_results(where, is_open)
                answered.clear()
                for call in shape.calls:
                    if call.id in is_open:
                        _refuse("duplicate-call", where, f"makes the call {call.id!r} twice")
                    is_open[call.id] = where
        _end_results("the end", {key: at for key, at in is_open.items() if key not in may_be_open})


def _is_parts(content: Any) -> bool:
    return type(content) is list and all(type(part) is dict and type(part.get("type")) is str for part in content)


def _shape_of_assistant(value: dict[str, Any], content: Any) -> Shape | None:
    calls: tuple[Call, ...] = ()
    is_clean = True
    if "tool_calls" in value:
        made = value["tool_calls"]
        if made:
            found = _calls(made)
            if found is None:
                return None
            calls = found
        else:
            is_clean = False
    if "function_call" in value:
        made = value["function_call"]
        if type(made) is dict and type(made.get("name")) is str:
            calls = (*calls, Call(f"function:{made['name']}", made["name"], "function_call"))
        else:
            is_clean = False
    if calls:
        return Shape("model", calls, is_clean=is_clean)
    if not (content or value.get("refusal") or value.get("audio")):
        return _EMPTY
    return _SAID if is_clean else _SAID_DIRTY


def _calls(made: Any) -> tuple[Call, ...] | None:
    if type(made) is not list:
        return None
    calls = []
    for call in made:
        if type(call) is not dict or type(call.get("id")) is not str or not call["id"]:
            return None
        kind = call.get("type", "function")
        inner = call.get(kind) if type(kind) is str else None
        name = inner.get("name") if type(inner) is dict else ""
        calls.append(Call(call["id"], str(name or ""), str(kind)))
    return tuple(calls)


def _said(item: Item, omitted: list[Omission]) -> Message | None:
    if item.shape.is_clean and not item.dropped_calls:
        return Message(item.body, item.value, (item.seq,))
    value = dict(item.value)
    if item.dropped_calls:
        made = enumerate(value.get("tool_calls") or ())
        value["tool_calls"] = [call for index, call in made if index not in item.dropped_calls]
        if len(item.value.get("tool_calls") or ()) in item.dropped_calls:  # the older kind comes last
            del value["function_call"]
    for key in ("tool_calls", "function_call"):
        if not value.get(key):
            value.pop(key, None)
    if not any(value.get(key) for key in ("content", "refusal", "audio", "tool_calls", "function_call")):
        omitted.append(Omission(item.seq, item.seq, "empty", "nothing of it may be sent"))
        return None
    return Message(codec.encode(value), value, (item.seq,))


def _take_result(where: str, call_id: str, is_open: dict[str, str], answered: set[str]) -> None:
    if call_id in answered:
        _refuse("duplicate-result", where, f"is a second result of {call_id!r}")
    if is_open.pop(call_id, None) is None:
        _refuse("result-without-call", where, f"answers {call_id!r}, which the message before it did not call")
    answered.add(call_id)


def _end_results(where: str, is_open: dict[str, str]) -> None:
    if is_open:
        call_id, asked = next(iter(is_open.items()))
        _refuse("call-without-result", asked, f"makes the call {call_id!r}, which has no result before {where}")


def _refuse(rule: str, where: str, what: str) -> NoReturn:
    raise ViewInvalid(f"{where} {what}; the provider would refuse the request", rule=rule, where=where)
