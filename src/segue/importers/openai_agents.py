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
from .database import reading, tables
from .records import clean, count, parse, when_us
from .report import FileReport
from .source import Source
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
    SELECT user_turn_number, input_tokens, output_tokens, input_tokens_details, output_tokens_details
    FROM turn_usage WHERE session_id = ? AND branch_id = ? ORDER BY user_turn_number
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
                talk = Conversation(_key(source, id), NAME, "openai.responses", (), metadata={"session": id[:200]})
                talk.records = _records(rows, talk, report)
                if branch != "main":
                    talk.metadata["branch"] = branch[:200]
                if "turn_usage" in known:
                    spent = list(connection.execute(_USAGE, (id, branch)))
                    talk.records = _with_usage(talk.records, spent, f"{talk.key}/{branch}")
                yield talk


def _key(source: Source, id: str) -> str:
    return f"{NAME}:{id}" if 0 < len(id) <= 100 and id.isprintable() else source.key(NAME, "")


def _records(rows: Any, talk: Conversation, report: FileReport) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        raw = row["message_data"]
        raw = raw.encode() if isinstance(raw, str) else bytes(raw or b"")
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


def _with_usage(records: Any, spent: list[Any], key: str) -> Iterator[Record]:
    """The tokens of the turns, told with the records that begin them."""
    turn = 0
    by_turn = {row["user_turn_number"]: row for row in spent}
    for record in records:
        is_question = bool(record.said) and record.said[0].origin == "user"
        turn += is_question
        row = by_turn.get(turn) if is_question else None
        if row is None:
            yield record
            continue
        said = record.said[0]._replace(usage=_usage(row), usage_key=f"{key}/{turn}")
        yield record._replace(said=(said, *record.said[1:]))


def _usage(row: Any) -> Usage:
    details = [parse((row[name] or "{}").encode()).values for name in ("input_tokens_details", "output_tokens_details")]
    given, said = (found[0] if found else {} for found in details)
    return Usage(
        row["input_tokens"] or 0, row["output_tokens"] or 0, count(given, "cached_tokens"),
        count(given, "cache_write_tokens"), 0, count(said, "reasoning_tokens"),
    )  # fmt: skip


def _state(source: Source, report: FileReport) -> Conversation:
    document = source.only
    talk = Conversation(source.key(NAME), NAME, "openai.responses", (), whole=source.whole())
    talk.title = f"run state {document.get('$schemaVersion')}"[:200]
    talk.records = _state_records(document, report)
    return talk


def _state_records(document: dict[str, Any], report: FileReport) -> Iterator[Record]:
    given = document.get("original_input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) and given else []
    items += given if isinstance(given, list) else []
    generated = document.get("generated_items")
    for item in generated if isinstance(generated, list) else []:
        raw = item.get("raw_item") if isinstance(item, dict) else None
        items.append(raw if isinstance(raw, dict) else item)
    context = document.get("context")
    told = context.get("usage") if isinstance(context, dict) else None
    usage = None
    if isinstance(told, dict) and (count(told, "input_tokens") or count(told, "output_tokens")):
        usage = Usage(count(told, "input_tokens"), count(told, "output_tokens"))
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            report.note("not-a-record", number)
            continue
        yield Record(number, None, (made(clean(item), origin=origin_of(item), usage=usage if number == 1 else None),))


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
