"""
simonw/llm: ``logs.db``, with conversations and responses, or (newer) with threads, turns and messages.

The messages are told in the form of OpenAI chat. Rows are kept exactly; a conversation's attachments stay there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from segue import codec
from segue.model import Usage

from .conversation import Conversation, Record, Said, made
from .database import reading, row_bytes, tables
from .records import clean, count, parse, when_us
from .report import FileReport
from .source import Source

NAME = "llm"

_TURN = """
    SELECT * FROM turns WHERE thread_id = ? ORDER BY datetime_utc, id
"""
_CHAIN = """
    WITH RECURSIVE chain(hash, depth) AS (
        SELECT ?, 0 UNION ALL
        SELECT m.parent_hash, depth + 1 FROM chain JOIN messages m ON m.hash = chain.hash
        WHERE m.parent_hash IS NOT NULL AND depth < 1000000
    )
    SELECT m.* FROM chain JOIN messages m ON m.hash = chain.hash ORDER BY depth DESC
"""
_PARTS = "SELECT * FROM parts WHERE message_hash = ? ORDER BY position, id"
_RESPONSES = "SELECT * FROM responses WHERE conversation_id IS ? ORDER BY datetime_utc, id"


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    known = tables(source)
    return "responses" in known and {"conversations", "_llm_migrations"} <= known.keys()


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file."""
    known = tables(source)
    with reading(source) as connection:
        if {"threads", "turns", "messages", "parts"} <= known.keys():
            for row in connection.execute("SELECT * FROM threads ORDER BY datetime_utc, id").fetchall():
                yield _conversation(row, _of_thread(connection, row, report))
        for row in connection.execute("SELECT * FROM conversations ORDER BY id").fetchall():
            yield _conversation(row, _of_responses(connection, row["id"], report))


def _conversation(row: sqlite3.Row, records: Iterator[Record]) -> Conversation:
    title = str(row["name"] or "")[:500]
    return Conversation(f"{NAME}:{str(row['id'])[:100]}", NAME, "openai.chat", records, title=title)


def _of_thread(connection: sqlite3.Connection, thread: sqlite3.Row, report: FileReport) -> Iterator[Record]:
    turns = {row["tip_message_hash"]: row for row in connection.execute(_TURN, (thread["id"],))}
    seen: set[str] = set()
    number = 0
    for message in connection.execute(_CHAIN, (thread["tip_message_hash"],)).fetchall():
        number += 1
        parts = connection.execute(_PARTS, (message["hash"],)).fetchall()
        turn = turns.get(message["hash"])
        seen.add(message["hash"])
        said = tuple(_said(message, parts, turn, report, number))
        yield Record(number, row_bytes("messages", message), said)
        for part in parts:
            number += 1
            yield Record(number, row_bytes("parts", part))
        if turn is not None:
            number += 1
            yield Record(number, row_bytes("turns", turn))
    for tip, turn in turns.items():
        if tip not in seen:
            number += 1
            report.note("left-out", number, f"turn {turn['id']} is not on the thread's path; its row is kept")
            yield Record(number, row_bytes("turns", turn))


def _said(
    message: sqlite3.Row, parts: list[sqlite3.Row], turn: sqlite3.Row | None, report: FileReport, number: int
) -> Iterator[Said]:
    role = str(message["role"])
    us = when_us(turn["datetime_utc"]) if turn is not None else None
    texts = [str(part["text"]) for part in parts if part["type"] == "text" and part["text"]]
    payloads = [(part, _payload(part)) for part in parts if part["type"] != "text"]
    for part, payload in payloads:
        if part["type"] == "tool_result":
            call = str(payload.get("tool_call_id") or payload.get("id") or "")
            text = part["text"] or payload.get("output") or payload.get("result") or ""
            text = text if isinstance(text, str) else codec.encode(clean(text)).decode()
            yield made({"role": "tool", "tool_call_id": call, "content": text}, origin="tool", occurred_us=us)
        elif part["type"] != "tool_call":
            report.note("left-out", number, f"{part['type']}: kept in the original alone")
    calls = [_call(part, payload) for part, payload in payloads if part["type"] == "tool_call"]
    if role not in {"user", "assistant", "system"} or not (texts or calls):
        return
    value: dict[str, Any] = {"role": role, "content": "\n".join(texts) or None}
    if calls:
        value["tool_calls"] = calls
    origin = {"user": "user", "assistant": "model"}.get(role, "system")
    usage = None if turn is None else _usage(turn)
    key = f"llm:{turn['id']}" if turn is not None else ""
    yield made(clean(value), origin=origin, occurred_us=us, usage=usage, usage_key=key if usage else "")


def _payload(part: sqlite3.Row) -> dict[str, Any]:
    found = parse(str(part["payload"] or "{}").encode()).values
    return found[0] if found and isinstance(found[0], dict) else {}


def _call(part: sqlite3.Row, payload: dict[str, Any]) -> dict[str, Any]:
    arguments = payload.get("arguments", {})
    text = arguments if isinstance(arguments, str) else codec.encode(clean(arguments)).decode()
    id = str(payload.get("tool_call_id") or payload.get("id") or f"part_{part['id']}")
    name = str(part["tool_name"] or payload.get("name") or "tool")
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def _usage(row: sqlite3.Row) -> Usage | None:
    given, said = row["input_tokens"], row["output_tokens"]
    if given is None and said is None:
        return None
    found = parse(str(row["token_details"] or "{}").encode()).values
    details = found[0] if found and isinstance(found[0], dict) else {}
    cached = count(details.get("prompt_tokens_details", details.get("input_tokens_details")), "cached_tokens")
    return Usage(given or 0, said or 0, cached)


def _of_responses(connection: sqlite3.Connection, conversation: str, report: FileReport) -> Iterator[Record]:
    """The older tables: a row is a question with its answer."""
    system = None
    for number, row in enumerate(connection.execute(_RESPONSES, (conversation,)).fetchall(), 1):
        us = when_us(row["datetime_utc"])
        said = []
        if row["system"] and row["system"] != system:
            system = row["system"]
            said.append(made(clean({"role": "system", "content": system}), origin="system", occurred_us=us))
        if row["prompt"]:
            said.append(made(clean({"role": "user", "content": row["prompt"]}), origin="user", occurred_us=us))
        if row["response"]:
            columns = row.keys()
            usage = _usage(row) if "input_tokens" in columns else None
            said.append(
                made(clean({"role": "assistant", "content": row["response"]}), origin="model", occurred_us=us,
                     usage=usage, usage_key=f"llm:{row['id']}" if usage else "")
            )  # fmt: skip
        if not said:
            report.note("left-out", number, "a response without text")
        yield Record(number, row_bytes("responses", row), tuple(said))
