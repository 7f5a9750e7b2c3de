"""Files that are not imported, by name: what they seem to be, and what would be needed."""

from __future__ import annotations

from typing import Any

from .database import tables
from .source import Source

_SEGUE = frozenset({"migrations", "scopes", "labels", "sessions", "entries", "refs"})
"""Tables that every release of Segue has in its SQLite store."""


def name_of(source: Source) -> str:
    """Why the file is not imported."""
    if not source.size:
        return "it is empty"
    if source.is_sqlite:
        known = tables(source)
        if not known:
            return "an SQLite database that is damaged, locked, or without tables"
        if known.keys() >= _SEGUE:
            return "a store of Segue's own; bring its sessions over with `segue copy --from FILE --to STORE`"
        return f"an SQLite database of an unknown kind (tables {', '.join(sorted(known)[:6])})"
    if source.is_sqlite_side:
        return "a file that SQLite keeps beside a database; import the database"
    start = source.start
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive; unpack it and import what is in it"
    if start.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return "a compressed file; unpack it and import what is in it"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "text in UTF-16; convert it to UTF-8 first"
    value = source.document if source.document is not None else next(iter(source.sample), None)
    is_json = start.lstrip(b"\xef\xbb\xbf \t\r\n\0")[:1] in {b"{", b"["}
    if value is None and is_json and source.is_text:
        return "JSON that is cut off or damaged, so that no record can be read; get the whole file"
    if value is None or not is_json:
        is_text = b"\0" not in start and source.is_text
        return "text that holds no JSON records (markdown, YAML?)" if is_text else "bytes of an unknown kind"
    return _named(value, source.sample)


_MARKS: tuple[tuple[str, frozenset[str]], ...] = (
    ("a record of HTTP exchanges with a provider; no conversation of its own", frozenset({"request", "response"})),
    ("a record of HTTP exchanges with a provider; no conversation of its own", frozenset({"interactions"})),
    ("recorded responses of a model, without what was asked", frozenset({"method", "response"})),
    ("an evaluation log", frozenset({"eval", "samples"})),
    ("an index of conversations, without their messages", frozenset({"conversations", "schemaVersion"})),
    ("dialogues for training in the form of ShareGPT", frozenset({"conversations"})),
    ("tasks of a benchmark, without a conversation", frozenset({"question"})),
    ("a state of an OpenAI Agents run of an unknown version", frozenset({"$schemaVersion"})),
    ("facts about a sub-agent of Claude Code; its transcript is imported", frozenset({"agentType"})),
    ("traces of a program (OpenTelemetry)", frozenset({"resourceSpans"})),
)
"""What a file is that has these fields, where it is no session."""

_TOOLS: tuple[tuple[str, frozenset[str]], ...] = (
    ("GitHub Copilot CLI", frozenset({"type", "data", "id", "parentId"})),
    ("Factory Droid", frozenset({"type", "id", "sessionTitle"})),
    ("pi or OpenClaw", frozenset({"type", "version", "id", "cwd", "timestamp"})),
    ("Kimi CLI", frozenset({"type", "protocol_version"})),
    ("Muse Code", frozenset({"record_type", "stream", "sequence"})),
    ("Antigravity", frozenset({"step_index", "source"})),
    ("opencode", frozenset({"id", "sessionID"})),
    ("opencode", frozenset({"id", "projectID"})),
    ("Strands", frozenset({"message_id", "redact_message"})),
    ("Strands", frozenset({"agent_id", "conversation_manager_state"})),
    ("Google AI Studio", frozenset({"chunkedPrompt"})),
    ("Cursor", frozenset({"role", "message"})),
)
"""Whose session a file is that has these fields."""


def _named(value: Any, sample: list[Any]) -> str:
    first = value[0] if isinstance(value, list) and value else value
    values = [one for one in [first, *sample] if isinstance(one, dict)]
    for meaning, fields in _MARKS:
        if any(fields <= one.keys() for one in values):
            return f"{meaning} (fields {_fields(values[0])})"
    for tool, fields in _TOOLS:
        if values and fields <= values[0].keys():
            return f"a session of {tool}; there is no importer for it (fields {_fields(values[0])})"
    if any(isinstance(one.get("message"), dict) and "parts" in one["message"] for one in values):
        return f"a session of Qwen Code or a relative; there is no importer for it (fields {_fields(values[0])})"
    if values:
        return f"JSON of an unknown kind (fields {_fields(values[0])})"
    return (
        f"JSON of an unknown kind (a list of {type(first).__name__})"
        if isinstance(value, list)
        else "JSON without records"
    )


def _fields(value: dict[str, Any]) -> str:
    return ", ".join(str(key)[:30] for key in list(value)[:6])
