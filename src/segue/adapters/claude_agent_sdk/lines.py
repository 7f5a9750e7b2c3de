"""
Transcript lines to entries and back: every line comes back equal, its keys in their order.

A line is kept as JSON (kind ``claude.line``). What Segue's door refuses but Python's JSON can write
(half of an emoji, NaN, nesting over 128) is kept as that text, raw. What is over the size of one
entry is kept in parts (kind ``claude.part``), which count only when the line that names them is there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import segue
from segue import codec
from segue.errors import Corrupt, Invalid
from segue.model import Draft, Entry, Usage, new_id

from .place import FORMAT

LINE = "claude.line"
"""Kind of a transcript line."""

PART = "claude.part"
"""Kind of a part of a line that is over the size of one entry."""

MISMATCH = "claude.mismatch"
"""Kind of a line whose uuid is known with other content: kept, but not part of the transcript."""

KINDS = (LINE, PART)
PARTS_FORMAT = "claude.parts"

FOLD = "claude.fold"
"""Ref of the lines that can change the summary: the fold of these alone equals the fold of all."""

ROOT = "claude.root"
"""Ref of the lines that begin a conversation."""

_PART_BYTES = codec.BODY_MAX_BYTES
_TITLES = frozenset({"customTitle", "aiTitle", "lastPrompt", "summary"})
_MISSING = object()
_log = logging.getLogger("segue.claude")


@dataclass(frozen=True, slots=True)
class Batch:
    """
    The lines of one append, ready to be stored.

    Attributes:
        drafts: The entries, in order.
        is_linked: Whether they continue a conversation (some have a ``parentUuid``).
        parents: What the first linked line names as coming before it.
        root: Entry id of the line that begins a conversation, if one does.
        title: The title that they set, if they do.
        prompt: The first thing a person says in them.
    """

    drafts: tuple[Draft, ...]
    is_linked: bool = False
    parents: tuple[str, ...] = ()
    root: str | None = None
    title: str | None = None
    prompt: str = ""


def encode(entries: Sequence[Mapping[str, Any]], *, is_main: bool = True, spent: Spent | None = None) -> Batch:
    """
    Make the entries of an append, or refuse all of them.

    Args:
        entries: Transcript lines; a line that has the uuid of an earlier one is left out (other
            content: kept as a mismatch).
        is_main: Whether they belong to a main transcript.
        spent: What the lines before them have told of tokens.

    Raises:
        Invalid: A line is no JSON value.
    """
    if not all(isinstance(entry, dict) for entry in entries):
        raise Invalid("a transcript line is an object; nothing of the append was stored", where="entries")
    marks = _fold_marks(entries) if is_main else frozenset()
    known: dict[str, bytes] = {}
    drafts: list[Draft] = []
    spent = spent or Spent()
    for n, entry in enumerate(entries):
        refs = (FOLD,) if n in marks else ()
        if is_main and is_root(entry):
            refs = (*refs, ROOT)
        made = _drafts(entry, refs, spent.add(entry), where=f"entries[{n}]")
        line = made[-1]
        if line.id in known:
            if known[line.id] != line.digest:
                drafts += [*made[:-1], mismatch(line)]
            continue
        known[line.id] = line.digest
        drafts += made
    linked = [entry for entry in entries if "parentUuid" in entry] if is_main else []
    return Batch(
        tuple(drafts),
        is_linked=bool(linked),
        parents=_parents(linked[0]) if linked else (),
        root=next((draft.id for draft in drafts if ROOT in draft.refs), None),
        title=next((e["customTitle"] for e in reversed(entries) if _is_text(e.get("customTitle"))), None),
        prompt=next((text for text in map(_prompt, entries) if text), "") if is_main else "",
    )


def _prompt(entry: Mapping[str, Any]) -> str:
    """What a person says in the line; empty when it is a command's output, or none of a person."""
    if entry.get("type") != "user" or entry.get("isMeta") or entry.get("isCompactSummary") or _origin(entry) != "user":
        return ""
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    texts = [content] if isinstance(content, str) else [block.get("text") for block in _blocks(entry)]
    told = " ".join(" ".join(text.split()) for text in texts if isinstance(text, str)).strip()
    return "" if told.startswith(("<", "[Request interrupted")) else told[:200]


def line_id(uuid: object) -> str:
    """The entry id of a line: made from its uuid, so that it is stored once; a fresh one without."""
    if not isinstance(uuid, str):
        return new_id()
    if uuid.isprintable() and 0 < len(uuid) <= 200 and uuid.isascii():
        return f"u:{uuid}"
    return f"u#{hashlib.sha256(uuid.encode('utf-8', 'surrogatepass')).hexdigest()}"


def mismatch(line: Draft) -> Draft:
    """A line whose uuid is taken by other content, as what it is: once, and outside the transcript."""
    return line._replace(kind=MISMATCH, id=f"m:{line.digest.hex()}", refs=(), usage=None)


def is_root(entry: Mapping[str, Any]) -> bool:
    """Whether the line begins a conversation: a user's message that nothing comes before."""
    return (
        entry.get("type") == "user"
        and entry.get("parentUuid", _MISSING) is None
        and not entry.get("isSidechain")
        and not entry.get("isCompactSummary")
    )


def _parents(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(line_id(entry[name]) for name in ("parentUuid", "logicalParentUuid") if _is_text(entry.get(name)))


def _drafts(entry: Mapping[str, Any], refs: tuple[str, ...], usage: Usage | None, *, where: str) -> list[Draft]:
    options: dict[str, Any] = {
        "origin": _origin(entry),
        "refs": refs,
        "usage": usage,
        "occurred_at": _moment(entry.get("timestamp")),
    }
    id = line_id(entry.get("uuid"))
    try:
        return [segue.draft(entry, kind=LINE, format=FORMAT, id=id, **options)]
    except Invalid:
        body = _text(entry, where)
    if len(body) <= _PART_BYTES:
        return [segue.draft(body, kind=LINE, format="raw", id=id, **options)]
    name = hashlib.sha256(body + id.encode()).hexdigest()[:32]
    cuts = range(0, len(body), _PART_BYTES)
    parts = [
        segue.draft(
            body[cut : cut + _PART_BYTES], kind=PART, format="raw", id=f"p:{name}:{n}", origin=options["origin"]
        )
        for n, cut in enumerate(cuts)
    ]
    whole = {"parts": name, "count": len(parts), "bytes": len(body)}
    return [*parts, segue.draft(whole, kind=LINE, format=PARTS_FORMAT, id=id, **options)]


def _text(entry: Mapping[str, Any], where: str) -> bytes:
    """The line as Python's own JSON writes it, in ASCII: what its door refuses, it gives back."""
    try:
        body = json.dumps(entry, separators=(",", ":")).encode()
        same = json.dumps(json.loads(body), separators=(",", ":")).encode() == body
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{where} is no JSON value: {error}; nothing of the append was stored", where=where) from error
    if not same:
        raise Invalid(f"{where} would not come back as it is; nothing of the append was stored", where=where)
    return body


def _origin(entry: Mapping[str, Any]) -> str:
    kind = entry.get("type")
    if kind == "assistant":
        return "model"
    if kind != "user":
        return "system"
    return "tool" if any(block.get("type") == "tool_result" for block in _blocks(entry)) else "user"


def _blocks(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _parsed(stamp: object) -> datetime | None:
    return _read_stamp(stamp) if isinstance(stamp, str) else None


@functools.lru_cache(maxsize=256)  # the lines of a batch share stamps, and each is looked at twice
def _read_stamp(stamp: str) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp)
    except ValueError:
        return None


def _moment(stamp: object) -> datetime | None:
    moment = _parsed(stamp)
    return moment if moment is not None and moment.tzinfo is not None and 1900 <= moment.year <= 9000 else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _fold_marks(entries: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """
    Which lines of a batch the summary needs, whatever was stored before.

    The SDK's fold keeps the first cwd, timestamp and sidechain flag, the first real prompt, and the
    last of each title, tag and branch.
    """
    marks = {0} if entries else set()
    cwd = stamp = branch = -1
    for n, entry in enumerate(entries):
        if cwd < 0 and _is_text(entry.get("cwd")):
            cwd = n
        if stamp < 0 and _parsed(entry.get("timestamp")) is not None:
            stamp = n
        if isinstance(entry.get("gitBranch"), str):
            branch = n
        kind = entry.get("type")
        if kind == "tag" or not _TITLES.isdisjoint(entry) or (kind == "user" and _origin(entry) == "user"):
            marks.add(n)
    return frozenset(marks | {n for n in (cwd, stamp, branch) if n >= 0})


class Spent:
    """Tokens of the lines of a writer: a message that is several lines is counted once."""

    def __init__(self) -> None:
        self._last: tuple[str, Usage] = ("", Usage())

    def add(self, entry: Mapping[str, Any]) -> Usage | None:
        """What the line adds to the totals: what its message told beyond its earlier lines."""
        message = entry.get("message")
        if entry.get("type") != "assistant" or not isinstance(message, dict):
            return None
        usage, name = _usage(message.get("usage")), message.get("id")
        if usage is None or not isinstance(name, str):
            return usage
        if self._last[0] != name:
            self._last = (name, usage)
            return usage
        before = self._last[1]
        told = Usage(*(max(a, b) for a, b in zip(usage, before, strict=True)))
        self._last = (name, told)
        more = Usage(*(a - b for a, b in zip(told, before, strict=True)))
        return more if any(more) else None


def _usage(told: object) -> Usage | None:
    if not isinstance(told, dict):
        return None
    long = told.get("cache_creation")
    read, write = _count(told, "cache_read_input_tokens"), _count(told, "cache_creation_input_tokens")
    return Usage(
        input=_count(told, "input_tokens") + read + write,
        output=_count(told, "output_tokens"),
        cache_read=read,
        cache_write=write,
        cache_write_long=min(write, _count(long, "ephemeral_1h_input_tokens")) if isinstance(long, dict) else 0,
    )


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    return value if type(value) is int and 0 <= value < 2**40 else 0


def decode(entries: Iterable[Entry], *, session: str) -> list[dict[str, Any]]:
    """
    The transcript lines of a stretch of the log, in order.

    Args:
        entries: Entries of KINDS. Hollow ones (their content was erased) are left out.
        session: How an error names the session.

    Raises:
        Corrupt: A part of a line is missing.
    """
    parts: dict[str, bytes | None] = {}
    found: list[dict[str, Any]] = []
    load = codec.decode
    for entry in entries:
        body = entry.body
        if body is None and entry.kind == PART:
            parts[entry.id] = None
        elif body is None:
            _log.info("session %s: the content of line %d was erased; it is left out", session, entry.seq)
        elif entry.format == FORMAT:
            found.append(load(body))
        elif entry.kind == PART:
            parts[entry.id] = body
        elif entry.format == PARTS_FORMAT:
            found += _joined(entry, parts, session)
        elif (line := _raw(body)) is not None:
            found.append(line)
    return found


def _raw(body: bytes) -> dict[str, Any] | None:
    """A raw line's value; None for one that is no JSON (a torn line of an import): it stays in the log."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _joined(entry: Entry, parts: dict[str, bytes | None], session: str) -> list[dict[str, Any]]:
    """The line that is kept in parts; none when one of them was erased."""
    whole = entry.json()
    try:
        bodies = [parts.pop(f"p:{whole['parts']}:{n}") for n in range(whole["count"])]
    except KeyError as error:
        raise Corrupt(
            f"session {session!r}, entry {entry.seq}: a part of the line is missing; restore it from a backup",
            session=session,
            seq=entry.seq,
        ) from error
    kept = [body for body in bodies if body is not None]
    return [json.loads(b"".join(kept))] if len(kept) == len(bodies) else []


def whole(session: segue.Session, entry: Entry) -> list[dict[str, Any]]:
    """The line of one entry, with its parts looked up; empty when it was erased."""
    if entry.format != PARTS_FORMAT:
        return decode([entry], session=session.id)
    near = max(0, entry.seq - entry.json()["count"] - 1)  # the parts come before it, unless others wrote between them
    try:
        return decode(session.read(after=near, upto=entry.seq, kinds=KINDS), session=session.id)[-1:]
    except Corrupt:
        return decode(session.read(upto=entry.seq, kinds=KINDS), session=session.id)[-1:]
