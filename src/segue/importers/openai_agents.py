"""
OpenAI Agents SDK: session databases (``SQLiteSession``, ``AdvancedSQLiteSession``), items and run states.

A row's ``message_data`` is an item, in its own bytes. Branches of an advanced session become forks. A run state is read
for the items of its input and what was generated; it is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from segue.model import Usage

from .conversation import Conversation, Record, Said, made
from .database import key_of, raw_of, reading, tables
from .records import clean, parse, when_us
from .report import FileReport
from .source import Source
from .tokens import of_responses
from .writing import check

NAME = "openai-agents"

_MESSAGES = """
    SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id
"""
_BRANCH = """
    SELECT m.id AS id, m.message_data AS message_data, m.created_at AS created_at
    FROM message_structure s JOIN agent_messages m ON m.id = s.message_id
    WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number, s.id
"""
_BRANCHES = """
    SELECT branch_id FROM message_structure WHERE session_id = ?
    GROUP BY branch_id ORDER BY branch_id <> 'main', min(id)
"""
_USAGE = """
    SELECT u.user_turn_number, u.input_tokens, u.output_tokens, u.input_tokens_details, u.output_tokens_details,
        s.created_at FROM turn_usage u LEFT JOIN agent_sessions s ON s.session_id = u.session_id
    WHERE u.session_id = ? AND u.branch_id = ? ORDER BY u.user_turn_number
"""


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    if source.is_sqlite:
        return {"session_id", "message_data"} <= tables(source).get("agent_messages", set())
    document = source.only
    return isinstance(document, dict) and "$schemaVersion" in document and "generated_items" in document


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file."""
    if not source.is_sqlite:
        yield _state(source, report)
        return
    known = tables(source)
    with reading(source) as connection:
        ids = [row[0] for row in connection.execute("SELECT DISTINCT session_id FROM agent_messages ORDER BY 1")]
        for id in ids:
            branches = ["main"]
            if "message_structure" in known:
                branches = [row[0] for row in connection.execute(_BRANCHES, (id,))] or ["main"]
            for branch in branches:
                query, args = (_BRANCH, (id, branch)) if "message_structure" in known else (_MESSAGES, (id,))
                rows = connection.execute(query, args)
                talk = Conversation(
                    key_of(source, NAME, id), NAME, "openai.responses", (), metadata={"session": clean(id[:200])}
                )
                talk.records = _records(rows, talk, report)
                if branch != "main":
                    talk.metadata["branch"] = clean(branch[:200])
                if "turn_usage" in known:
                    for row in connection.execute(_USAGE, (id, branch)).fetchall():
                        name = f"{talk.key}/{branch}/{row['user_turn_number']}/{row['created_at']}"
                        talk.spent[name] = talk.spent.get(name, Usage()) + _usage(row)
                yield talk


def _records(rows: Any, talk: Conversation, report: FileReport) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        raw = raw_of(row["message_data"])
        found = parse(raw)
        if found.defect or len(found.values) != 1 or not isinstance(found.values[0], dict):
            report.note(found.defect or "not-a-record", number, f"row {row['id']}")
            yield Record(number, raw)
            continue
        value = found.values[0]
        us = when_us(row["created_at"])
        if not talk.title and value.get("role") == "user":
            talk.title = first_text(value)
        exact = check(raw, value)
        said = (
            Said(raw, value, 0, origin_of(value), us) if exact else made(value, origin=origin_of(value), occurred_us=us)
        )
        yield Record(number, raw, (said,))


def _usage(row: Any) -> Usage:
    told = dict(zip(row.keys(), row, strict=True))
    for name in ("input_tokens_details", "output_tokens_details"):
        told[name] = next(iter(parse(raw_of(told[name])).values), None)
    return of_responses(told)


def _state(source: Source, report: FileReport) -> Conversation:
    document = source.only
    talk = Conversation(source.key(NAME), NAME, "openai.responses", (), whole=source.whole())
    talk.title = f"run state {document.get('$schemaVersion')}"[:200]
    talk.records = _state_records(document, report)
    talk.spent = _state_usage(document, talk.key)
    return talk


def _state_usage(document: dict[str, Any], key: str) -> dict[str, Usage]:
    """
    Tokens of the run so far: those of each response by its id, so that a later state of the run counts what is new,
    and the rest of the total.
    """
    context = document.get("context")
    told = context.get("usage") if isinstance(context, dict) else None
    total = of_responses(told) if isinstance(told, dict) else Usage()
    spent: dict[str, Usage] = {}
    responses = document.get("model_responses")
    for response in responses if isinstance(responses, list) else []:
        id = response.get("response_id") if isinstance(response, dict) else None
        if isinstance(id, str) and id and isinstance(response.get("usage"), dict):
            spent[f"openai:{id}"] = of_responses(response["usage"])
    known = sum(spent.values(), Usage())
    spent[f"{key}/rest"] = Usage(*(max(0, a - b) for a, b in zip(total, known, strict=True)))
    return spent


def _state_records(document: dict[str, Any], report: FileReport) -> Iterator[Record]:
    given = document.get("original_input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) and given else []
    items += given if isinstance(given, list) else []
    generated = document.get("generated_items")
    for item in generated if isinstance(generated, list) else []:
        raw = item.get("raw_item") if isinstance(item, dict) else None
        items.append(raw if isinstance(raw, dict) else item)
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            report.note("not-a-record", number)
            continue
        yield Record(number, None, (made(clean(item), origin=origin_of(item)),))


def origin_of(item: dict[str, Any]) -> str:
    """Who an item comes from."""
    kind = str(item.get("type", "message"))
    if kind == "message":
        return {"user": "user", "assistant": "model"}.get(str(item.get("role")), "system")
    return "tool" if kind.endswith("_output") else "model"


def first_text(item: dict[str, Any]) -> str:
    """The beginning of a message's text, for a title."""
    content = item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return " ".join(" ".join(texts).split())[:200]
