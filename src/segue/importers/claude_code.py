"""
Claude Code: transcripts of the CLI (one record a line), and its web sessions (one document of ``loglines``).

A message is the record's ``message``, in its own bytes. Records of sub-agents that stand in the main file are kept
there; their messages become a session of their own, a child. A compaction is a cut. Branches that were given up are
marked as taken back. Tokens are those of the message's last record, once for each message id and request id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from segue import codec
from segue.session import Scope

from .conversation import Conversation, Record, Said, made
from .records import Line, clean, parse, when_us
from .report import FileReport
from .source import Source, printable
from .tokens import of_anthropic
from .tree import Tree
from .writing import PIECE, check

NAME = "claude-code"

KNOWN = frozenset(
    [
        "user",
        "assistant",
        "system",
        "summary",
        "progress",
        "attachment",
        "file-history-snapshot",
        "queue-operation",
        "pr-link",
        "permission-mode",
        "mode",
        "agent-name",
        "custom-title",
        "ai-title",
        "last-prompt",
        "frame-link",
        "started",
        "result",
        "relocated",
        "worktree-state",
        "bridge-session",
        "atis-latch",
        "tag",
    ]
)
"""Types of records whose meaning is known. Others are kept and counted."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MISSING = object()
_MESSAGE_KEY = b'"message":'


class _Line(msgspec.Struct, rename="camel"):
    """What is needed of a record; nothing else of it is decoded."""

    type: Any = None
    uuid: Any = None
    parent_uuid: Any = _MISSING
    logical_parent_uuid: Any = None
    is_sidechain: Any = False
    is_meta: Any = False
    is_compact_summary: Any = False
    session_id: Any = None
    agent_id: Any = None
    timestamp: Any = None
    request_id: Any = None
    subtype: Any = None
    summary: Any = None
    custom_title: Any = None
    ai_title: Any = None
    cwd: Any = None
    message: msgspec.Raw = msgspec.Raw()


class _Long(msgspec.Struct):
    """What is needed of a message that is too long to be an entry."""

    role: Any = None
    id: Any = None
    usage: Any = None


_line = msgspec.json.Decoder(_Line)
_long = msgspec.json.Decoder(_Long)


def recognises(source: Source) -> bool:
    """Whether the file is one of this tool."""
    if source.document is not None:
        return _has_loglines(source.document)
    if len(source.sample) == 1 and _has_loglines(source.sample[0]):
        return True
    return any(_is_record(value) for value in source.sample) and not any(_is_other(value) for value in source.sample)


def _has_loglines(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("loglines"), list)


def _is_record(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind, message = value.get("type"), value.get("message")
    if isinstance(message, dict) and kind in {"user", "assistant"}:
        return "content" in message or "usage" in message or (not message and len(value) <= 3)
    if isinstance(message, dict) and kind is None and "sessionId" in value:
        return "usage" in message
    if kind == "summary":
        return "leafUuid" in value
    if kind == "file-history-snapshot":
        return "snapshot" in value
    return kind in KNOWN and "sessionId" in value and ("uuid" in value or kind not in {"user", "assistant", "system"})


def _is_other(value: Any) -> bool:
    """A relative of the format, with other messages (Qwen Code), or other records (Antigravity, Droid)."""
    if not isinstance(value, dict):
        return False
    message = value.get("message")
    return (isinstance(message, dict) and "parts" in message) or "systemPayload" in value or "provenance" in value


def read(source: Source, report: FileReport) -> Iterator[Conversation]:
    """The conversations of the file: the main one, then those of its sub-agents."""
    yield from _Reader(source, report).conversations()


def import_transcript(scope: Scope, path: str | PathLike[str], *, is_dry: bool = False) -> FileReport:
    """
    Import one local transcript with the transcripts of its sub-agents beside it; twice is once.

    Args:
        scope: The owner of the sessions.
        path: The ``.jsonl`` file.
        is_dry: Write nothing, only say what would be done.

    Returns:
        The report of the file; sessions of sub-agents are among its sessions.
    """
    from .intake import import_file

    path = Path(path)
    report = import_file(scope, path, is_dry=is_dry)
    for child in sorted(path.with_suffix("").glob("subagents/*.jsonl")):
        more = import_file(scope, child, is_dry=is_dry)
        report.sessions += more.sessions
        for defect in more.defects:
            report.note(defect.kind, defect.record, f"{child.name}: {defect.detail}")
    return report


class _Reader:
    def __init__(self, source: Source, report: FileReport) -> None:
        self.source = source
        self.report = report
        self.is_agent = self._is_agent()
        self.sessions: set[str] = set()
        self.session = ""
        self.agents: dict[str, list[Record]] = {}
        self.agent_of: dict[str, str] = {}
        self.uuids: dict[str, int] = {}
        self.prompt = ""
        self.titles: dict[str, str] = {}
        self.has_cwd = False

    def conversations(self) -> Iterator[Conversation]:
        key, parent = self._key()
        talk = self.talk = Conversation(key, NAME, "anthropic", (), parent=parent, tree=Tree())
        talk.later = self._children
        document = self.source.only
        if _has_loglines(document):
            talk.whole = self.source.whole()
            talk.records = self._loglines(document["loglines"])
        else:
            talk.records = self._lines()
        yield talk

    def _is_agent(self) -> bool:
        if "subagents" in self.source.path.parts[-3:-1] or self.source.path.name.startswith("agent-"):
            return True
        flags = [v.get("isSidechain") for v in self.source.sample if isinstance(v, dict) and "message" in v]
        return bool(flags) and all(flag is True for flag in flags)

    def _key(self) -> tuple[str, str | None]:
        """The key of the file's session, and of the one it belongs to."""
        values = [value for value in self.source.sample if isinstance(value, dict)]
        found = [str(v["sessionId"]) for v in values if isinstance(v.get("sessionId"), str) and v["sessionId"]]
        stem = printable(self.source.path.stem)
        session = stem if _UUID.fullmatch(stem) else found[0] if found else ""
        if not session:
            return self.source.key(NAME), None
        agents = [str(v["agentId"]) for v in values if isinstance(v.get("agentId"), str) and v["agentId"]]
        if not self.is_agent:
            return _key(session), None
        agent = agents[0] if agents else stem
        main = self.source.path.parent.parent.name
        main = main if _UUID.fullmatch(main) else found[0] if found else session
        return _key(f"{main}/{agent}"), _key(main)

    # Records

    def _lines(self) -> Iterator[Record]:
        for line in self.source.lines():
            self.talk.ends = line.ends
            record = self._of_line(line)
            if record is not None:
                yield record
        self._end()

    def _of_line(self, line: Line) -> Record | None:
        raw = line.raw
        if line.is_part:
            self.report.note("too-large", line.number, "a line that is too long to be read")
            return Record(line.number, raw, is_part=True)
        try:
            head = _line.decode(raw)
            said = self._said(raw, head, line.number)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._damaged(line)
        return self._record(raw, head, said, line.number)

    def _damaged(self, line: Line) -> Record | None:
        """What can be read of a line that is no record; None: it is the torn end of the file."""
        found = parse(line.raw)
        values = [value for value in found.values if isinstance(value, dict)]
        if found.defect == "broken" and not values and not line.ends:
            self.report.note("torn", line.number, "the file ends within a record")
            self.talk.tail = line.raw
            self.talk.ends = True
            return None
        if found.defect or (found.values and not values):
            self.report.note(found.defect or "not-a-record", line.number)
        said: list[Said] = []
        head = None
        for value in values:
            head = _head(value)
            message = value.get("message")
            if isinstance(message, dict) and not head.is_sidechain:
                said += self._made(message, head)
        if head is None:
            return Record(line.number, line.raw)
        return self._record(line.raw, head, tuple(said), line.number)

    def _loglines(self, values: list[Any]) -> Iterator[Record]:
        for n, value in enumerate(values, 1):
            if not isinstance(value, dict):
                self.report.note("not-a-record", n)
                continue
            head = _head(value)
            message = value.get("message")
            said = tuple(self._made(message, head)) if isinstance(message, dict) else ()
            yield self._record(None, head, said, n)
        self._end()

    def _record(self, raw: bytes | None, head: _Line, said: tuple[Said, ...], number: int) -> Record:
        uuid, parent = _text(head.uuid), self._parent(head)
        self._facts(head, number)
        cuts = head.subtype == "compact_boundary"
        if not said:
            return Record(number, raw, (), uuid, parent, "", cuts)
        group = str(said[0].value.get("id") or "") if head.type == "assistant" else ""
        if uuid:
            mark = hash(said[0].body)
            known = self.uuids.get(uuid)
            if known is None:
                self.uuids[uuid] = mark
            elif known == mark:
                said = ()  # the same record a second time (told by the tree)
        record = Record(number, raw, said, uuid, parent, group, cuts)
        if said and head.is_sidechain is True and not self.is_agent:
            self._aside(head, record)
            return record._replace(said=(), group="", cuts=False)
        return record

    def _parent(self, head: _Line) -> str | None:
        parent = head.parent_uuid
        if isinstance(parent, str) and parent:
            return parent
        if _text(head.logical_parent_uuid):
            return str(head.logical_parent_uuid)
        is_root = head.parent_uuid is None and head.type == "user" and not head.is_meta and not head.is_compact_summary
        return None if is_root else ""

    def _facts(self, head: _Line, number: int) -> None:
        kind = head.type
        session = head.session_id
        if session != self.session and isinstance(session, str):
            if session not in self.sessions and self.sessions:
                self.report.note("other-session", number, session[:80])
            self.sessions.add(session)
            self.session = session
        if kind not in KNOWN and not (kind is None and len(head.message)):
            self.report.note("unknown-record", number, str(kind)[:80])
        if head.custom_title is not None or head.ai_title is not None:
            self.titles.update({"custom": _text(head.custom_title)} if head.custom_title else {})
            self.titles.update({"ai": _text(head.ai_title)} if head.ai_title else {})
        if not self.has_cwd and isinstance(head.cwd, str):
            self.has_cwd = True
            self.talk.metadata["cwd"] = head.cwd[:1000]

    # Messages

    def _said(self, raw: bytes, head: _Line, number: int) -> tuple[Said, ...]:
        body = bytes(head.message)
        if not body or head.type not in {"user", "assistant", None}:
            return ()
        if len(body) > PIECE:
            found = _long.decode(body)
            return (self._with_facts(body, {"role": found.role, "id": found.id, "usage": found.usage}, None, head),)
        message = codec.decode(body)
        if not isinstance(message, dict):
            return ()
        whole = self._whole_message(message, head)
        if whole is message and check(body, message):
            return (self._with_facts(body, message, _place(raw, body), head),)
        if whole is message:
            self.report.note("not-exact", number, "JSON that readers take differently; shown as it was read")
        return tuple(self._made(message, head))

    def _whole_message(self, message: dict[str, Any], head: _Line) -> dict[str, Any]:
        """The message with its role, which older records leave out."""
        return message if "role" in message else {"role": head.type, **message}

    def _made(self, message: dict[str, Any], head: _Line) -> Iterator[Said]:
        whole = clean(self._whole_message(message, head))
        if whole is None:
            self.report.note("not-shown", 0, "a message that is nested too deep")
            return
        if whole.get("role") not in {"user", "assistant"}:
            return
        if "content" not in whole:
            if "usage" not in whole:
                return
            whole["content"] = []
        yield self._with_facts(made(whole).body, whole, None, head)

    def _with_facts(self, body: bytes, message: dict[str, Any], at: int | None, head: _Line) -> Said:
        us, role = when_us(head.timestamp), message.get("role")
        if role == "assistant":
            usage = of_anthropic(message.get("usage"))
            id = None if usage is None else _text(message.get("id")) or _text(head.request_id) or _text(head.uuid)
            return Said(body, message, at, "model", us, usage, f"claude:{id}" if id else "")
        content = message.get("content")
        if isinstance(content, list) and _has_result(content):
            return Said(body, message, at, "tool", us)
        if role != "user":
            return Said(body, message, at, "system", us)
        if not self.prompt and not head.is_meta and not head.is_compact_summary:
            self.prompt = _prompt(content)
        return Said(body, message, at, "user", us)

    # Sub-agents, titles

    def _aside(self, head: _Line, record: Record) -> None:
        name = _text(head.agent_id) or self.agent_of.get(_text(head.parent_uuid)) or record.node or f"{record.number}"
        if record.node:
            self.agent_of[record.node] = name
        self.agents.setdefault(name, []).append(record._replace(raw=None))

    def _children(self) -> Iterator[Conversation]:
        for name, records in self.agents.items():
            yield Conversation(
                f"{self.talk.key[:150]}/{name[:80]}", NAME, "anthropic", records, title=_first(records),
                parent=self.talk.key, tree=Tree(), metadata={"inside": self.talk.key},
            )  # fmt: skip

    def _end(self) -> None:
        self.talk.title = self.titles.get("custom") or self.titles.get("ai") or self.prompt


def _key(name: str) -> str:
    key = f"claude-code:{name}"
    if len(key.encode("utf-8", "replace")) <= 150 and key.isprintable():
        return key
    return f"claude-code#{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()}"


def _head(value: dict[str, Any]) -> _Line:
    names = zip(_Line.__struct_fields__, _Line.__struct_encode_fields__, strict=True)
    return _Line(**{name: value[key] for name, key in names if key in value and key != "message"})


def _has_result(content: list[Any]) -> bool:
    return any(isinstance(block, dict) and block.get("type") == "tool_result" for block in content)


def _place(raw: bytes, body: bytes) -> int:
    """Where the message stands in the record: most often behind the first such key."""
    at = raw.find(_MESSAGE_KEY) + len(_MESSAGE_KEY)
    return at if raw.startswith(body, at) else raw.find(body)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _prompt(content: Any) -> str:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [str(b.get("text")) for b in blocks if isinstance(b, dict) and b.get("type") == "text"]
    told = " ".join(" ".join(texts).split())
    return "" if told.startswith(("<", "[Request interrupted")) else told[:200]


def _first(records: list[Record]) -> str:
    prompts = (_prompt(said.value.get("content")) for record in records for said in record.said)
    return next((prompt for prompt in prompts if prompt), "")
