"""
Lists of messages, of Anthropic, OpenAI chat or OpenAI Responses: JSON or JSON lines, one conversation or many.

A file is one list; an object with a list in it (``messages`` and the like); a list of these; lines that are messages;
or lines that are objects with a list in them. So are the tutorial's session files, whose lists hold bare content blocks
among the messages, and the rows of its table, whose list is JSON in a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from segue.model import Usage
from segue.session import Scope

from .conversation import Conversation, Record, Said, made
from .frame import Frame, talks_of
from .records import Parsed, as_json, as_text, clean, parse, when_us
from .report import FileReport
from .source import Source
from .tokens import of_anthropic, of_chat, of_responses
from .writing import Writer, check

NAME = "messages"

LISTS = ("messages", "traj", "trajectory", "history", "items", "input", "output", "conversation")
"""Names under which an object may hold its list of messages, in the order in which they are looked for."""

NAMES = ("session_id", "conversation_id", "thread_id", "id", "task_id", "uuid")
"""Names under which it may hold its own."""

_ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "function"})
_ITEMS = frozenset(
    [
        "function_call",
        "function_call_output",
        "reasoning",
        "custom_tool_call",
        "custom_tool_call_output",
        "web_search_call",
        "file_search_call",
        "computer_call",
        "computer_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_call",
        "code_interpreter_call",
        "image_generation_call",
    ]
)
_BLOCKS = {"text": "assistant", "tool_use": "assistant", "tool_result": "user", "image": "user"}
_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file"})
_STRANGE = frozenset({"tool-call", "tool-result", "tool-approval-request"})  # another SDK's parts


def recognises(source: Source) -> bool:
    """Whether the file is one of these."""
    if source.is_sqlite:
        return False
    if source.document is not None:
        return _is_talk(source.document) or (
            isinstance(source.document, list) and any(_is_talk(one) for one in source.document[:20])
        )
    values = [value for value in source.sample if isinstance(value, dict | list)]
    if _are_talks(values):
        return True
    has_role = any(isinstance(value, dict) and ("role" in value or value.get("type") in _ITEMS) for value in values)
    return has_role and sum(_is_message(value) for value in values) * 2 > len(values)


def _are_talks(values: list[Any]) -> bool:
    return bool(values) and sum(_is_talk(value) for value in values) * 2 > len(values)


def _is_talk(value: Any) -> bool:
    """A list of messages, or an object that holds one."""
    found = _list(value)
    if found is None or not found:
        return (
            found == [] and isinstance(value, dict) and any(name in value for name in NAMES[:3]) and "messages" in value
        )
    if not any(isinstance(one, dict) and ("role" in one or one.get("type") in _ITEMS) for one in found):
        return False
    return sum(_is_message(one) for one in found) * 2 > len(found) and not any(map(_is_strange, found))


def _is_strange(value: Any) -> bool:
    content = value.get("content") if isinstance(value, dict) else None
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") in _STRANGE for part in content
    )


def _list(value: Any) -> list[Any] | None:
    if isinstance(value, list):
        return value
    found: list[Any] | None = None
    for name in LISTS if isinstance(value, dict) else ():
        inner = value.get(name)
        if isinstance(inner, str) and inner.lstrip().startswith("["):
            inner = next(iter(parse(inner.encode("utf-8", "replace")).values), None)
        if isinstance(inner, list):
            if any(map(_is_message, inner[:20])):
                return inner
            found = inner if found is None else found
    return found


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind, role = value.get("type"), value.get("role")
    if kind in _ITEMS:
        return "call_id" in value or kind not in {"function_call", "function_call_output"}
    if role in _ROLES:
        content = value.get("content", _ITEMS)
        return (
            isinstance(content, str | list)
            or bool(value.get("tool_calls"))
            or (content is None and role == "assistant")
        )
    if role is None and kind == "text":
        return isinstance(value.get("text"), str)
    if role is None and kind == "tool_use":
        return "id" in value and "input" in value
    return role is None and kind == "tool_result" and "tool_use_id" in value


def format_of(found: list[Any]) -> str:
    """Whose messages a list holds."""
    values = [value for value in found if isinstance(value, dict)]
    parts = {
        part.get("type")
        for value in values
        for part in (value["content"] if isinstance(value.get("content"), list) else [])
        if isinstance(part, dict)
    }
    if any(value.get("type") in _ITEMS for value in values) or parts & _PARTS:
        return "openai.responses"
    if parts & {"tool_use", "tool_result", "thinking", "redacted_thinking"} or any(
        v.get("type") in _BLOCKS for v in values
    ):
        return "anthropic"
    is_chat = any(v.get("role") in {"system", "tool", "developer", "function"} or v.get("tool_calls") for v in values)
    return "openai.chat" if is_chat or "image_url" in parts else "anthropic"


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file."""
    document = source.document
    only = source.only
    if document is None and isinstance(only, dict) and _is_talk(only) and any(name in only for name in NAMES[:3]):
        document = only  # one conversation that has a name of its own
    if document is None:
        is_many = _are_talks(source.sample)
        yield from _many_lines(source, report) if is_many else _one_of_lines(source, report)
    elif _is_talk(document):
        yield _talk(source, document, source.whole(), 0, report)
    else:
        yield from talks_of(source, report, NAME, lambda value, body, n: _one(source, value, body, n, report))


def import_rows(scope: Scope, rows: Iterable[Mapping[str, Any]], *, is_dry: bool = False) -> FileReport:
    """
    Import rows of a table of sessions, as a driver gives them: ``session_id``, ``messages`` (JSON text or a list),
    and what else there is; twice is once.

    Args:
        scope: The owner of the sessions.
        rows: The rows; times and bytes in them are kept as text.
        is_dry: Write nothing.

    Returns:
        A report, as of a file.
    """
    report = FileReport("rows", NAME)
    for number, row in enumerate(rows, 1):
        value = {str(key): _plain(one) for key, one in row.items()}
        body = as_json(value)
        if not _is_talk(value):
            report.note("not-a-conversation", number)
            continue
        name = _name(value) or f"row {number}"
        talk = _conversation(f"{NAME}:{name}", value, body, report)
        report.sessions.append(Writer(scope, talk, report, is_dry=is_dry).run())
    report.outcome = "imported" if report.entries else "unchanged" if report.sessions else "skipped"
    return report


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)


def _one(source: Source, value: Any, body: bytes, number: int, report: FileReport) -> Conversation | None:
    if not _is_talk(value):
        report.note("not-a-conversation", number)
        return None
    return _talk(source, value, body, number, report)


def _talk(source: Source, value: Any, body: bytes, number: int, report: FileReport) -> Conversation:
    name = _name(value)
    is_own = bool(name) and len(name) >= 8 and isinstance(value, dict) and any(n in value for n in NAMES[:3])
    place = name if name and name != "0" else str(number)
    key = f"{NAME}:{name}" if is_own else source.key(NAME, f"{number}.{place}" if number else "")
    return _conversation(key, value, body, report)


def _name(value: Any) -> str:
    for key in NAMES if isinstance(value, dict) else ():
        name = value.get(key)
        if isinstance(name, str | int) and 0 < len(str(name)) <= 100 and str(name).isprintable():
            return str(name)
    return ""


def _conversation(key: str, value: Any, body: bytes, report: FileReport) -> Conversation:
    found = _list(value) or []
    title = value.get("title") if isinstance(value, dict) else None
    talk = Conversation(
        key, NAME, format_of(found), (), whole=body, title=title[:500] if isinstance(title, str) else ""
    )
    outer = value.get("updated_at") if isinstance(value, dict) else None
    given = value.get("response") if isinstance(value, dict) else None
    answer = _answer(given) if isinstance(given, dict) else []
    if answer:
        usage, name = _usage(given)
        if usage is not None:
            talk.spent[name or f"{key}/response"] = usage
    talk.records = _records([*found, *answer], talk, report, when_us(outer))
    return talk


def _answer(response: dict[str, Any]) -> list[Any]:
    """What the model answered, in a log of one exchange: a request's messages with the provider's response."""
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        if not isinstance(message, dict):
            return []
        return [{name: one for name, one in message.items() if one is not None or name == "content"}]
    if response.get("role") == "assistant" and isinstance(response.get("content"), list):
        return [{"role": "assistant", "content": response["content"]}]
    output = response.get("output")
    return output if isinstance(output, list) else []


def _records(found: list[Any], talk: Conversation, report: FileReport, last_us: int | None) -> Iterator[Record]:
    for number, value in enumerate(found, 1):
        if not _is_message(value):
            report.note("not-a-message", number)
            continue
        us = last_us if number == len(found) else None
        yield Record(number, None, tuple(_made(value, talk, report, number, us)))


def _many_lines(source: Source, report: FileReport) -> Iterator[Conversation]:
    """Every line is a conversation of its own."""
    frame = Frame(source, NAME, report)
    for line in source.lines():
        end = b"\n" if line.ends else b""
        found = parse(line.raw) if not line.is_part else Parsed([], "too-large")
        if found.defect or len(found.values) != 1 or not _is_talk(found.values[0]):
            if line.raw.strip():
                report.note(found.defect or "not-a-conversation", line.number)
            frame.gap(line.raw + end)
            continue
        yield _talk(source, found.values[0], line.raw, line.number, report)
        frame.took(line.raw)
        frame.gap(end)
    yield frame.conversation()


def _one_of_lines(source: Source, report: FileReport) -> Iterator[Conversation]:
    """Every line is a message of one conversation."""
    talk = Conversation(source.key(NAME), NAME, format_of(source.sample), ())

    def records() -> Iterator[Record]:
        for line in source.lines():
            talk.ends = line.ends
            found = parse(line.raw) if not line.is_part else Parsed([], "too-large")
            values = found.values
            if found.defect == "broken" and not values and not line.ends:
                report.note("torn", line.number, "the file ends within a record")
                talk.tail, talk.ends = line.raw, True
                return
            if found.defect:
                report.note(found.defect, line.number)
            said: list[Said] = []
            for value in values:
                if not _is_message(value):
                    report.note("not-a-message", line.number)
                    continue
                exact = len(values) == 1 and not found.defect
                said += _made(value, talk, report, line.number, None, raw=line.raw if exact else None)
            yield Record(line.number, line.raw, tuple(said), is_part=line.is_part)

    talk.records = records()
    yield talk


def _made(
    value: dict[str, Any], talk: Conversation, report: FileReport, number: int, last_us: int | None,
    *, raw: bytes | None = None,
) -> Iterator[Said]:  # fmt: skip
    told = _message(value, talk.format, report, number)
    us = when_us(value.get("timestamp") or value.get("created_at")) or last_us
    origin = _origin(told)
    if origin == "user" and not talk.title:
        talk.title = _first_text(told)
    usage, key = _usage(value)
    if told is value and raw is not None and check(raw, value):
        yield Said(raw, value, 0, origin, us, usage, key)
    else:
        yield made(clean(told), origin=origin, occurred_us=us, usage=usage, usage_key=key)


def _message(value: dict[str, Any], format: str, report: FileReport, number: int) -> dict[str, Any]:
    """The message as its format has it: the same object where nothing had to be done."""
    if value.get("role") is None and format == "anthropic" and value.get("type") in _BLOCKS:
        report.note("bare-block", number, f"a {value['type']} where a message belongs")
        return {"role": _BLOCKS[value["type"]], "content": [value]}
    content = value.get("content")
    if isinstance(content, list) and any(isinstance(part, dict) and "value" in part for part in content):
        value = {**value, "content": [part for part in map(_part, content) if part is not None]}
    if format == "openai.chat" and isinstance(value.get("tool_calls"), list):
        value = _with_calls(value)
    if format == "openai.chat" and value.get("role") == "tool" and not isinstance(value.get("tool_call_id"), str):
        report.note("result-without-id", number)
    return value


def _part(part: Any) -> Any:
    """A content part that says ``value`` for its text (training data)."""
    if isinstance(part, dict) and isinstance(part.get("value"), str):
        return {"type": "text", "text": part["value"]} if part.get("type") in {"text", None} else None
    return part


def _with_calls(value: dict[str, Any]) -> dict[str, Any]:
    """Calls whose arguments are text, as the provider takes them."""
    calls = []
    for call in value["tool_calls"]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and not isinstance(function.get("arguments", ""), str):
            text = as_text(function["arguments"])
            calls.append({"type": "function", **call, "function": {**function, "arguments": text}})
        else:
            calls.append(call)
    return value if calls == value["tool_calls"] else {**value, "tool_calls": calls}


def _origin(value: dict[str, Any]) -> str:
    role, content = value.get("role"), value.get("content")
    if role in {"tool", "function"} or str(value.get("type", "")).endswith("_output"):
        return "tool"
    if isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content):
        return "tool"
    return "user" if role == "user" else "system" if role in {"system", "developer"} else "model"


def _first_text(value: dict[str, Any]) -> str:
    content = value.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return " ".join(" ".join(texts).split())[:200]


def _usage(value: Any) -> tuple[Usage | None, str]:
    """Tokens, where a whole response was kept as a message; and what names the response."""
    told = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(told, dict):
        return None, ""
    id = value.get("id")
    name = id if isinstance(id, str) and id else ""
    if "prompt_tokens" in told or "completion_tokens" in told:
        return of_chat(told), f"openai:{name}" if name else ""
    if "output_tokens" not in told:
        return None, ""
    if "input_tokens_details" in told or "output_tokens_details" in told:
        return of_responses(told), f"openai:{name}" if name else ""
    return of_anthropic(told), f"claude:{name}" if name else ""
