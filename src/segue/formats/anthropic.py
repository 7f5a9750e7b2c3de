"""
Anthropic Messages: one entry holds one message, ``{"role": "user" | "assistant" | "system", "content": …}``.

What the provider asks for, and what a view does about it:

- All results of one assistant turn stand in the one user message after it, before any text. Results
  that were appended as they came are joined into it; their blocks keep their exact bytes. The
  invariant: a joined message only ever holds results of calls that were open, and no view for a
  model call is made while one is open. So a join never changes a message that was handed out, and
  a text that comes after the last result stays a message of its own (the provider joins neighbours
  of one role itself). Texts that came between the results follow them.
- Blocks of one assistant turn that were stored as several entries are joined only where the first
  could not end a view: it has open calls, or ends in thinking.
- A call id may come once in a turn. Whether it may come again in a later one is not known; ids that
  providers make are distinct, and those of an import are kept as they are.
- Nothing empty (text of white space only is refused too), no thinking at the end of a turn.
- ``cache_control`` belongs to a request, not to history: it is left out, as the provider's own
  client does, else old marks would fill the four places. So are fields that only a response has
  (``id``, ``usage``, ``stop_reason``): a response may be stored whole.
- Some endpoints refuse messages that begin with the assistant (anthropics/anthropic-sdk-typescript#622).
  Where a view leaves out what came before, a short message of the user stands for it then.
- A compaction block stands for all before it, and comes first. One without content is a failed
  compaction: it means nothing and is kept.
- The provider's own tools answer inside assistant messages, perhaps in a later one. An unfinished
  one is kept while the turn can go on, and left out (with the calls it made) once it cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from segue import codec
from segue.errors import ViewInvalid

from .parts import INTERRUPTED, Call, Intake, Item, Message, Omission, Owner, Round, Shape

MESSAGES_MAX = 100_000
"""Most messages of one request."""

CACHE_MARKS_MAX = 4
"""Most ``cache_control`` marks of one request."""

EARLIER = "[Earlier messages of this conversation are not shown.]"
"""The user's message that stands for all that was left out, where the rest begins with the assistant."""

_THINKING = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
_FIELDS = frozenset({"role", "content"})
_SYSTEM_FIELDS = _FIELDS | {"clear_at", "output_config"}
_HOLDS_BLOCKS = ("content", "source", "tool", "definition", "tool_references")

_EMPTY = Shape("other", is_empty=True)
_QUESTION = Shape("other", is_question=True, is_plain=True)
_SYSTEM = Shape("other", is_plain=True)
_SAID = Shape("model", is_plain=True)


class _RawMessage(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"null")


_raw_message = msgspec.json.Decoder(_RawMessage)
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])

_Block = tuple[bytes, Any]  # exact bytes, value


class Anthropic:
    """The rules of the Anthropic Messages API."""

    name = "anthropic"
    marks = ("compaction",)
    binds = True

    def shape(self, value: Any) -> Shape | None:
        """What a message is, or None when the value is no message of this format."""
        if type(value) is not dict:
            return None
        role, content = value.get("role"), value.get("content")
        if type(role) is not str:
            return None
        if type(content) is str:
            return _shape_of_text(value, role, content)
        if type(content) is not list:
            is_setting = role == "system" and content is None and value.get("output_config")
            return _SYSTEM if is_setting else None
        if role == "user":
            return _shape_of_user(value, content)
        if role == "assistant":
            return _shape_of_assistant(value, content)
        return _shape_of_system(value, content) if role == "system" else None

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
        return () if shape is None else shape.answers

    def refs(self, value: Any) -> tuple[str, ...]:
        """Refs for the log: ``call:<id>`` for calls and results, ``compaction`` for what stands for all before."""
        shape = self.shape(value)
        return () if shape is None else shape.refs

    def is_question(self, value: Any) -> bool:
        """True when a person starts a turn with it."""
        shape = self.shape(value)
        return shape is not None and shape.is_question

    def is_reasoning(self, value: Any) -> bool:
        """True when it ends in thinking, so that it may only be sent together with what follows."""
        shape = self.shape(value)
        return shape is not None and shape.needs_next

    def unbound(self, body: bytes, value: Any) -> tuple[bytes, Any] | None:
        """The message without its thinking, which is bound to all that stood before it; None when there is none."""
        content = value.get("content") if type(value) is dict else None
        if type(content) is not list or not any(_is_thinking(block) for block in content):
            return None
        raws = _raw_list.decode(_raw_message.decode(body).content)
        kept = [(bytes(raw), block) for raw, block in zip(raws, content, strict=True) if not _is_thinking(block)]
        message = _message(value, kept, ())
        return message.body, message.value

    def settlement(self, call: Call, text: str = INTERRUPTED) -> dict[str, Any]:
        """A result for a call that has none: an error, with this text."""
        block = {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}
        if call.family is not None:
            block["toolset_name"] = call.family
        return {"role": "user", "content": [block]}

    def note(self, text: str, carrier: str | None = None) -> dict[str, Any]:
        """
        A message in which Segue speaks.

        Args:
            text: What it says.
            carrier: ``user-text`` (default; any model), or ``system`` (a system message among the
                messages, which the provider must have switched on).
        """
        if carrier == "system":
            return {"role": "system", "content": [{"type": "text", "text": text}]}
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def summary(self, text: str) -> dict[str, Any]:
        """A message that stands for the history; in the user's role, as what it tells is no instruction."""
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def opening(self, first: Any) -> dict[str, Any] | None:
        """A user's message, unless there is one already, or a compaction block, which must be first of all."""
        if first["role"] == "user" or _stands_for_all(first["content"]):
            return None
        return {"role": "user", "content": [{"type": "text", "text": EARLIER}]}

    def intake(self, was_reasoning: Callable[[], bool]) -> Intake:  # noqa: ARG002
        """What looks at each message of one view before it is laid out: here nothing."""
        return Intake()

    def render(self, rounds: list[Round], omitted: list[Omission]) -> list[Message]:
        """The messages of one exchange: what the assistant said, the results, and so on."""
        messages = []
        for part in rounds:
            said = _join_model(part.model, omitted)
            if said is not None:
                messages.append(said)
            given = self._join_answers(part)
            if given is not None:
                messages.append(given)
        return messages

    def render_other(self, item: Item) -> Message | None:
        """The message, without what may not be sent; results in it are those of no open call."""
        if item.shape.side == "other" and item.shape.is_clean:
            return Message(item.body, item.value, (item.seq,))
        blocks = [pair for pair in _blocks(item) if pair[1].get("type") != "tool_result"]
        return _message(item.value, blocks, (item.seq,)) if blocks else None

    def _join_answers(self, part: Round) -> Message | None:
        answers = [item for item in part.answers if item.accepted or item.shape.has_rest]
        if len(answers) == 1 and not part.missing:
            item = answers[0]
            if item.shape.is_clean and len(item.accepted) == len(item.shape.results):
                return Message(item.body, item.value, (item.seq,))
        results: list[_Block] = []
        rest: list[_Block] = []
        for item in answers:
            wanted = set(item.accepted)
            for pair in _blocks(item):
                if pair[1].get("type") != "tool_result":
                    rest.append(pair)
                elif pair[1]["tool_use_id"] in wanted:
                    wanted.discard(pair[1]["tool_use_id"])
                    results.append(pair)
        for call, text in part.missing:
            block = self.settlement(call, text)["content"][0]
            results.append((codec.encode(block), block))
        if not results and not rest:
            return None
        seqs = tuple(item.seq for item in answers)
        message = _message({"role": "user"}, results + rest, seqs)
        return message._replace(is_synthetic=bool(part.missing))

    def check(self, messages: list[Any], *, may_be_open: frozenset[str] = frozenset()) -> None:
        """
        Refuse messages that the provider would refuse.

        Args:
            messages: What would be sent, at most 100,000.
            may_be_open: Ids of calls that may lack a result, in the last turn.

        Raises:
            ViewInvalid: ``rule`` and ``where`` say which rule is broken and by what.
        """
        _Check(may_be_open).run(messages)


def _shape_of_text(value: dict[str, Any], role: str, content: str) -> Shape | None:
    if role not in {"user", "assistant", "system"}:
        return None
    if not content or content.isspace():
        return _EMPTY
    shape = _QUESTION if role == "user" else _SAID if role == "assistant" else _SYSTEM
    return shape if _has_own_fields(value) else shape._replace(is_clean=False, is_plain=False)


def _has_own_fields(value: dict[str, Any]) -> bool:
    return len(value) == 2 or (value["role"] == "system" and value.keys() <= _SYSTEM_FIELDS)


def _is_thinking(block: Any) -> bool:
    return type(block) is dict and block.get("type") in _THINKING


def _is_blank(block: dict[str, Any]) -> bool:
    text = block.get("text")
    return type(text) is str and (not text or text.isspace())


def _shape_of_user(value: dict[str, Any], content: list[Any]) -> Shape | None:
    results: list[str] = []
    rest = 0
    is_broken = False
    is_clean = _has_own_fields(value)
    for block in content:
        kind = block.get("type") if type(block) is dict else None
        if kind == "tool_result":
            call_id = block.get("tool_use_id")
            if type(call_id) is not str:
                is_broken, is_clean = True, False
                continue
            results.append(call_id)
            is_clean = is_clean and not rest and _is_clean_result(block)
        elif kind == "text" and _is_blank(block):
            is_clean = False
        elif type(kind) is not str or kind in {"tool_use", *_THINKING}:
            return None
        else:
            rest += 1
            is_clean = is_clean and "cache_control" not in block
    if results:
        return Shape("answer", results=tuple(results), is_clean=is_clean, has_rest=rest > 0, is_broken=is_broken)
    if is_broken:
        return Shape("other", is_question=rest > 0, is_clean=False, is_empty=not rest, is_broken=True)
    if not rest:
        return _EMPTY
    return _QUESTION if is_clean else _QUESTION._replace(is_clean=False, is_plain=False)


def _is_clean_result(block: dict[str, Any]) -> bool:
    if "cache_control" in block:
        return False
    inner = block.get("content")
    if type(inner) is not list:
        return True
    return not any(
        type(part) is dict and ("cache_control" in part or (part.get("type") == "text" and _is_blank(part)))
        for part in inner
    )


def _stands_for_all(content: Any) -> bool:
    blocks = content if type(content) is list else []
    return any(block.get("type") == "compaction" and block.get("content") for block in blocks)


def _shape_of_system(value: dict[str, Any], content: list[Any]) -> Shape | None:
    if not all(type(block) is dict and type(block.get("type")) is str for block in content):
        return None
    if not any(block["type"] != "text" or not _is_blank(block) for block in content) and not value.get("output_config"):
        return _EMPTY
    is_clean = _has_own_fields(value) and not any("cache_control" in block or _is_blank(block) for block in content)
    return _SYSTEM if is_clean else _SYSTEM._replace(is_clean=False, is_plain=False)


def _shape_of_assistant(value: dict[str, Any], content: list[Any]) -> Shape | None:
    calls: list[Call] = []
    server_results: list[str] = []
    is_clean = _has_own_fields(value)
    last = ""
    compacts = is_broken = False
    for block in content:
        kind = block.get("type") if type(block) is dict else None
        if type(kind) is not str or kind == "tool_result":
            return None
        if kind == "text":
            if _is_blank(block):
                is_clean = False
                continue
        elif kind == "tool_use" or kind in _SERVER_CALLS:
            call = _call(block, kind)
            if call is None:
                is_broken, is_clean = True, False
                continue
            calls.append(call)
        elif kind.endswith("_tool_result"):
            _take_server_result(block, calls, server_results)
        elif kind == "compaction":
            compacts = compacts or bool(block.get("content"))
        last = kind
        is_clean = is_clean and "cache_control" not in block
    if not last:
        return _EMPTY._replace(is_broken=is_broken)
    if not (calls or server_results or compacts) and is_clean and last not in _THINKING:
        return _SAID
    return Shape(
        "model",
        tuple(calls),
        server_results=tuple(server_results),
        needs_next=last in _THINKING,
        is_clean=is_clean,
        compacts=compacts,
        is_broken=is_broken,
    )


def _call(block: dict[str, Any], kind: str) -> Call | None:
    call_id, name = block.get("id"), block.get("name")
    if type(call_id) is not str or not call_id or type(block.get("input")) is not dict:
        return None
    caller = block.get("caller")
    parent = caller.get("tool_id") if type(caller) is dict else None
    owner: Owner = "client" if kind == "tool_use" else "server"
    return Call(call_id, str(name or ""), kind, owner, parent, block.get("toolset_name"))


def _take_server_result(block: dict[str, Any], calls: list[Call], server_results: list[str]) -> None:
    call_id = block.get("tool_use_id")
    for index, call in enumerate(calls):
        if call.id == call_id and call.owner == "server":
            del calls[index]
            return
    server_results.append(str(call_id))


def _blocks(item: Item) -> list[_Block]:
    """The blocks of a message that may be sent: exact bytes where nothing had to be taken out."""
    content = item.value.get("content")
    raw = bytes(_raw_message.decode(item.body).content)
    if type(content) is str:
        text = {"type": "text", "text": content}
        return [(b'{"type":"text","text":' + raw + b"}", text)] if content.strip() else []
    if content is None:
        return []
    pairs = []
    for exact, block in zip(_raw_list.decode(raw), content, strict=True):
        if (block["type"] == "text" and _is_blank(block)) or _is_broken(block):
            continue
        kept = _without_marks(block)
        pairs.append((bytes(exact), block) if kept == block else (codec.encode(kept), kept))
    return pairs


def _is_broken(block: dict[str, Any]) -> bool:
    kind = block["type"]
    if kind == "tool_result":
        return type(block.get("tool_use_id")) is not str
    return (kind == "tool_use" or kind in _SERVER_CALLS) and _call(block, kind) is None


def _without_marks(value: Any) -> Any:
    """A copy without cache marks and empty texts, followed only into what holds blocks, never into a call's input."""
    if type(value) is list:
        return [_without_marks(part) for part in value if not _is_blank_text(part)]
    if type(value) is not dict:
        return value
    return {
        key: _without_marks(inner) if key in _HOLDS_BLOCKS else inner
        for key, inner in value.items()
        if key != "cache_control"
    }


def _is_blank_text(part: Any) -> bool:
    return type(part) is dict and part.get("type") == "text" and _is_blank(part)


def _message(head: dict[str, Any], blocks: list[_Block], seqs: tuple[int, ...]) -> Message:
    """A message of these blocks, with the head's other fields that the provider knows."""
    known = ("clear_at", "output_config") if head["role"] == "system" else ()
    fields = {key: head[key] for key in known if key in head}
    more = b"".join(b"," + codec.encode(key) + b":" + codec.encode(value) for key, value in fields.items())
    content = b",".join(exact for exact, _ in blocks)
    body = b'{"role":' + codec.encode(head["role"]) + b',"content":[' + content + b"]" + more + b"}"
    return Message(body, {"role": head["role"], "content": [block for _, block in blocks], **fields}, seqs)


def _join_model(items: list[Item], omitted: list[Omission]) -> Message | None:
    """One assistant message of all that was said in one go."""
    if len(items) == 1:
        item = items[0]
        if item.shape.is_clean and not (item.shape.needs_next or item.dropped_calls or item.dropped_ids):
            return Message(item.body, item.value, (item.seq,))
    blocks: list[tuple[int, _Block]] = []
    for item in items:
        blocks.extend((item.seq, pair) for pair in _kept_blocks(item))
    while blocks and blocks[-1][1][1]["type"] in _THINKING:
        seq, _ = blocks.pop()
        omitted.append(Omission(seq, seq, "reasoning-without-item", "thinking at the end of a turn"))
    if not blocks:
        return None
    seqs = dict.fromkeys(item.seq for item in items)
    return _message({"role": "assistant"}, [pair for _, pair in blocks], tuple(seqs))


def _kept_blocks(item: Item) -> list[_Block]:
    if not (item.dropped_calls or item.dropped_ids):
        return _blocks(item)
    kept = []
    waiting = [(call.id, index in item.dropped_calls) for index, call in enumerate(item.shape.calls)]
    for pair in _blocks(item):
        block = pair[1]
        kind = block["type"]
        if (kind == "tool_use" or kind in _SERVER_CALLS) and waiting and waiting[0][0] == block["id"]:
            if waiting.pop(0)[1]:
                continue
        elif kind.endswith("_tool_result") and str(block.get("tool_use_id")) in item.dropped_ids:
            continue
        kept.append(pair)
    return kept


class _Check:
    """One pass over the messages, turn by turn: neighbours of one role are one turn for the provider."""

    def __init__(self, may_be_open: frozenset[str]) -> None:
        self.may_be_open = may_be_open
        self.marks = 0
        self.open: dict[str, str] = {}  # calls of the last assistant turn, and where
        self.server: dict[str, str] = {}
        self.role = ""
        self.last_block = ""
        self.index = 0

    def run(self, messages: list[Any]) -> None:
        if len(messages) > MESSAGES_MAX:
            raise ViewInvalid(
                f"{len(messages):,} messages, the provider takes {MESSAGES_MAX:,}; make a cut", rule="too-many-messages"
            )
        for self.index, message in enumerate(messages):
            self._message(message)
        self._end_assistant()
        for call_id, where in self.open.items():
            if call_id not in self.may_be_open:
                _refuse("call-without-result", where, f"makes the call {call_id!r}, which has no result")

    def _where(self, number: int = -1) -> str:
        """The message that is looked at, or one of its blocks; said only when something is wrong."""
        block = "" if number < 0 else f".content[{number}]"
        return f"messages[{self.index}]{block}"

    def _message(self, message: Any) -> None:
        role = message.get("role") if type(message) is dict else None
        if role not in ("user", "assistant", "system"):
            _refuse("message-shape", self._where(), "is no message with the role user, assistant or system")
        unknown = message.keys() - (_SYSTEM_FIELDS if role == "system" else _FIELDS)
        if unknown:
            what = f"has fields that a {role} message does not have: {sorted(unknown)}"
            _refuse("unknown-field", self._where(), what)
        if role != self.role:
            if self.role == "assistant":
                self._end_assistant()
            elif role == "assistant":
                self._end_results()
            self.role = role
        content = message.get("content")
        if role == "user":
            self._user(content)
        elif role == "assistant":
            self._assistant(content)
        else:
            self._system(content, may_be_missing=bool(message.get("output_config")))

    def _end_assistant(self) -> None:
        if self.role == "assistant" and self.last_block in _THINKING:
            _refuse("trailing-thinking", self._where(), "is where an assistant turn ends in thinking")

    def _end_results(self) -> None:
        """The message that must hold the results is over."""
        for call_id, asked in self.open.items():
            what = f"makes the call {call_id!r}, which has no result in the message after it ({self._where()})"
            _refuse("call-without-result", asked, what)

    def _user(self, content: Any) -> None:
        if type(content) is str:
            self._text(content)
            self._moves_on()
            return
        has_rest = False
        answered: set[str] = set()
        for number, block in enumerate(self._blocks(content)):
            if block["type"] == "tool_result":
                self._result(number, block.get("tool_use_id"), answered, after_text=has_rest)
                self._nested(number, block)
            else:
                self._block(number, block)
                has_rest = True
        if has_rest or self.open:
            self._moves_on()

    def _result(self, number: int, call_id: Any, answered: set[str], *, after_text: bool) -> None:
        if type(call_id) is not str:
            _refuse("message-shape", self._where(number), "is a result that names no call")
        if call_id in answered:
            _refuse("duplicate-result", self._where(number), f"is a second result of {call_id!r}")
        if self.open.pop(call_id, None) is None:
            what = f"answers {call_id!r}, which the turn before it did not call"
            _refuse("result-without-call", self._where(number), what)
        if after_text:
            _refuse("result-after-text", self._where(number), "is a result after other content; results come first")
        answered.add(call_id)

    def _moves_on(self) -> None:
        """A message that is more than results: all calls before it must have been answered by now."""
        self._end_results()
        for call_id, asked in self.server.items():
            what = f"is the provider's own call {call_id!r}, which has no result before {self._where()}"
            _refuse("unfinished-call", asked, what)

    def _assistant(self, content: Any) -> None:
        if type(content) is str:
            self._text(content)
            self.last_block = "text"
            return
        for number, block in enumerate(self._blocks(content)):
            kind = block["type"]
            if kind == "tool_use":
                self._call(number, block.get("id"), self.open)
            elif kind in _SERVER_CALLS:
                self._call(number, block.get("id"), self.server)
            elif kind == "tool_result":
                _refuse("result-without-call", self._where(number), "is a result in an assistant message")
            elif kind.endswith("_tool_result"):
                if self.server.pop(str(block.get("tool_use_id")), None) is None:
                    what = f"answers {block.get('tool_use_id')!r}, which was never called"
                    _refuse("server-result-without-call", self._where(number), what)
            elif kind == "compaction" and block.get("content") and (self.index or number):
                _refuse("compaction-not-first", self._where(number), "is a compaction block; it must come first of all")
            self._block(number, block)
            self.last_block = kind

    def _call(self, number: int, call_id: Any, asked: dict[str, str]) -> None:
        if type(call_id) is not str or not call_id:
            _refuse("message-shape", self._where(number), "is a call without an id")
        if call_id in self.open or call_id in self.server:
            _refuse("duplicate-call", self._where(number), f"makes the call {call_id!r} a second time")
        asked[call_id] = self._where(number)

    def _system(self, content: Any, *, may_be_missing: bool) -> None:
        self._end_results()
        if type(content) is str:
            self._text(content)
        elif content or not may_be_missing:
            for number, block in enumerate(self._blocks(content)):
                self._block(number, block)

    def _blocks(self, content: Any) -> list[dict[str, Any]]:
        if type(content) is not list:
            _refuse("message-shape", self._where(), "has content that is neither a text nor a list of blocks")
        if not content:
            _refuse("empty-message", self._where(), "has no content")
        for block in content:
            if type(block) is not dict or type(block.get("type")) is not str:
                _refuse("message-shape", self._where(), "has content that is no block")
        return content

    def _block(self, number: int, block: dict[str, Any]) -> None:
        if "cache_control" in block:
            self._mark(number, block)
        if block["type"] == "text":
            self._text(block.get("text"), number)

    def _text(self, text: Any, number: int = -1) -> None:
        if type(text) is not str:
            _refuse("message-shape", self._where(number), "is a text block without a text")
        if not text or text.isspace():
            _refuse("empty-text", self._where(number), "is an empty text")

    def _mark(self, number: int, block: dict[str, Any]) -> None:
        if block["type"] == "text" and _is_blank(block):
            _refuse("cache-mark-on-empty-text", self._where(number), "has a cache mark on an empty text")
        self.marks += block["cache_control"] is not None
        if self.marks > CACHE_MARKS_MAX:
            what = f"has cache mark number {self.marks}; {CACHE_MARKS_MAX} are allowed"
            _refuse("too-many-cache-marks", self._where(number), what)

    def _nested(self, number: int, block: dict[str, Any]) -> None:
        if "cache_control" in block:
            self._mark(number, block)
        inner = block.get("content")
        if type(inner) is list:
            for part in inner:
                if type(part) is dict and type(part.get("type")) is str:
                    self._block(number, part)


def _refuse(rule: str, where: str, what: str) -> NoReturn:
    raise ViewInvalid(f"{where} {what}; the provider would refuse the request", rule=rule, where=where)
