"""
simonw/llm: ``logs.db``, with conversations and responses, or (newer) with threads, turns and messages.

The messages are told in the form of OpenAI chat. Rows are kept exactly: those of a conversation with it, all others
(attachments, fragments, tools, turns that no thread leads to) in hidden sessions, one a table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from segue.model import Usage

from .conversation import Conversation, Record, Said, made
from .database import key_of, raw_of, reading, row_bytes, tables
from .records import as_text, clean, count, parse, when_us
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
_HOMELESS = """
    SELECT DISTINCT conversation_id AS id, NULL AS name FROM responses
    WHERE conversation_id IS NULL OR conversation_id NOT IN (SELECT id FROM conversations) ORDER BY 1
"""
_OTHERS = (
    "attachments", "conversations", "fragment_aliases", "fragments", "messages", "part_attachments", "part_fragments",
    "parts", "prompt_attachments", "prompt_fragments", "schemas", "system_fragments", "threads", "tool_calls",
    "tool_instances", "tool_instantiations", "tool_responses", "tool_results", "tool_results_attachments", "tools",
    "turn_fragments", "turn_tools", "turns",
)  # fmt: skip
"""Tables whose rows are kept; what is made from them for searching is not."""

_ROWS = {table: f"SELECT * FROM {table} ORDER BY rowid" for table in _OTHERS}  # noqa: S608 - names of our own
_OF_RESPONSE = {
    "tool_calls": "SELECT * FROM tool_calls WHERE response_id = ? ORDER BY id",
    "tool_results": "SELECT * FROM tool_results WHERE response_id = ? ORDER BY id",
}
_NAMES = {"messages": "hash", "parts": "id", "turns": "id"}


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    known = tables(source)
    return "responses" in known and {"conversations", "_llm_migrations"} <= known.keys()


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file, then the rows that belong to none."""
    known = tables(source)
    with reading(source) as connection:
        reader = _Reader(connection, known, report)
        if {"threads", "turns", "messages", "parts"} <= known.keys():
            for row in connection.execute("SELECT * FROM threads ORDER BY datetime_utc, id").fetchall():
                yield _conversation(source, row, reader.of_thread(row))
        rows = connection.execute("SELECT * FROM conversations ORDER BY id").fetchall()
        for row in [*rows, *connection.execute(_HOMELESS).fetchall()]:
            yield _conversation(source, row, reader.of_responses(row["id"]))
        for table in _OTHERS:
            records = reader.others(table) if table in known else []
            if records:
                yield Conversation(source.key(NAME, table), NAME, "segue", records, metadata={"frame": True})


def _conversation(source: Source, row: sqlite3.Row, records: Iterator[Record]) -> Conversation:
    title = clean(str(row["name"] or ""))[:500]
    return Conversation(key_of(source, NAME, str(row["id"] or "")), NAME, "openai.chat", records, title=title)


class _Reader:
    def __init__(self, connection: sqlite3.Connection, known: dict[str, set[str]], report: FileReport) -> None:
        self.connection = connection
        self.known = known
        self.report = report
        self.held: dict[str, set[Any]] = {table: set() for table in _NAMES}  # rows that a conversation holds

    def of_thread(self, thread: sqlite3.Row) -> Iterator[Record]:
        turns = {row["tip_message_hash"]: row for row in self.connection.execute(_TURN, (thread["id"],))}
        number = 0
        for message in self.connection.execute(_CHAIN, (thread["tip_message_hash"],)).fetchall():
            number += 1
            parts = self.connection.execute(_PARTS, (message["hash"],)).fetchall()
            turn = turns.get(message["hash"])
            said = tuple(_said(message, parts, turn, self.report, number))
            yield Record(number, row_bytes("messages", message), said)
            self.held["messages"].add(message["hash"])
            for part in parts:
                number += 1
                yield Record(number, row_bytes("parts", part))
                self.held["parts"].add(part["id"])
            if turn is not None:
                number += 1
                is_told = any(one.usage is not None for one in said)
                yield Record(number, row_bytes("turns", turn), **({} if is_told else _spent(turn)))
                self.held["turns"].add(turn["id"])

    def of_responses(self, conversation: str | None) -> Iterator[Record]:
        """The older tables: a row is a question with its answer."""
        system = None
        rows = self.connection.execute(_RESPONSES, (conversation,)).fetchall()
        for number, row in enumerate(rows, 1):
            said = list(self._asked(row, is_new=bool(row["system"]) and row["system"] != system))
            system = row["system"] or system
            calls = [_old_call(call) for call in self._of_response("tool_calls", row["id"])]
            spent = _spent(row) if "input_tokens" in row.keys() else {}  # noqa: SIM118 - a Row iterates its values
            if row["response"] or calls:
                value: dict[str, Any] = {"role": "assistant", "content": as_text(row["response"]) or None}
                value |= {"tool_calls": calls} if calls else {}
                us = when_us(row["datetime_utc"])
                said.append(made(clean(value), origin="model", occurred_us=us, **spent))
                spent = {}
            if not said:
                self.report.note("left-out", number, "a response without text")
            yield Record(number, row_bytes("responses", row), tuple(said), **spent)

    def _asked(self, row: sqlite3.Row, *, is_new: bool) -> Iterator[Said]:
        us = when_us(row["datetime_utc"])
        if is_new:
            yield made(clean({"role": "system", "content": as_text(row["system"])}), origin="system", occurred_us=us)
        for result in self._of_response("tool_results", row["id"]):
            value = {
                "role": "tool",
                "tool_call_id": str(result["tool_call_id"] or ""),
                "content": as_text(result["output"]),
            }
            yield made(clean(value), origin="tool", occurred_us=us)
        if row["prompt"]:
            yield made(clean({"role": "user", "content": as_text(row["prompt"])}), origin="user", occurred_us=us)

    def _of_response(self, table: str, response: str) -> list[sqlite3.Row]:
        if not {"response_id", "tool_call_id"} <= self.known.get(table, set()):
            return []
        return [row for row in self.connection.execute(_OF_RESPONSE[table], (response,)) if row["tool_call_id"]]

    def others(self, table: str) -> list[Record]:
        """The rows of a table that no conversation holds."""
        name, held = _NAMES.get(table), self.held.get(table, set())
        rows = [row for row in self.connection.execute(_ROWS[table]) if name is None or row[name] not in held]
        told = [_spent(row) if table == "turns" else {} for row in rows]
        return [
            Record(n, row_bytes(table, row), **more) for n, (row, more) in enumerate(zip(rows, told, strict=True), 1)
        ]


def _spent(row: sqlite3.Row) -> dict[str, Any]:
    usage = _usage(row)
    return {} if usage is None else {"usage": usage, "usage_key": f"llm:{row['id']}"}


def _old_call(row: sqlite3.Row) -> dict[str, Any]:
    function = {"name": str(row["name"] or "tool"), "arguments": str(row["arguments"] or "{}")}
    return {"id": str(row["tool_call_id"]), "type": "function", "function": function}


def _said(
    message: sqlite3.Row, parts: list[sqlite3.Row], turn: sqlite3.Row | None, report: FileReport, number: int
) -> Iterator[Said]:
    role = str(message["role"])
    us = when_us(turn["datetime_utc"]) if turn is not None else None
    texts = [as_text(part["text"]) for part in parts if part["type"] == "text" and part["text"]]
    payloads = [(part, _payload(part)) for part in parts if part["type"] != "text"]
    for part, payload in payloads:
        if part["type"] == "tool_result":
            call = str(payload.get("tool_call_id") or payload.get("id") or "")
            text = part["text"] or payload.get("output") or payload.get("result") or ""
            yield made({"role": "tool", "tool_call_id": call, "content": as_text(text)}, origin="tool", occurred_us=us)
        elif part["type"] != "tool_call":
            report.note("left-out", number, f"{part['type']}: kept in the original alone")
    calls = [_call(part, payload) for part, payload in payloads if part["type"] == "tool_call"]
    if role not in {"user", "assistant", "system"} or not (texts or calls):
        return
    value: dict[str, Any] = {"role": role, "content": "\n".join(texts) or None}
    if calls:
        value["tool_calls"] = calls
    origin = {"user": "user", "assistant": "model"}.get(role, "system")
    yield made(clean(value), origin=origin, occurred_us=us, **({} if turn is None else _spent(turn)))


def _payload(part: sqlite3.Row) -> dict[str, Any]:
    found = parse(raw_of(part["payload"]) or b"{}").values
    return found[0] if found and isinstance(found[0], dict) else {}


def _call(part: sqlite3.Row, payload: dict[str, Any]) -> dict[str, Any]:
    arguments = payload.get("arguments", {})
    text = as_text(arguments)
    id = str(payload.get("tool_call_id") or payload.get("id") or f"part_{part['id']}")
    name = str(part["tool_name"] or payload.get("name") or "tool")
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def _usage(row: sqlite3.Row) -> Usage | None:
    given, said = row["input_tokens"], row["output_tokens"]
    if given is None and said is None:
        return None
    found = parse(raw_of(row["token_details"]) or b"{}").values
    details = found[0] if found and isinstance(found[0], dict) else {}
    cached = count(details.get("prompt_tokens_details", details.get("input_tokens_details")), "cached_tokens")
    thought = details.get("completion_tokens_details", details.get("output_tokens_details"))
    return Usage(given or 0, said or 0, cached, 0, 0, count(thought, "reasoning_tokens"))
