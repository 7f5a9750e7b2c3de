"""A session as a person reads it: turns of texts, calls and results, in order, the taken back left out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from segue import codec, convert
from segue.convert import Call, Image, Result, Text, told
from segue.edits import Retracts, hits
from segue.errors import SegueError
from segue.model import Entry
from segue.session import Session

from .original import Left

_KINDS = ("message", "note", "cut", "retract")


class Outcome(NamedTuple):
    """What a call came to: the tool's name (the call's id, where no call is told), texts and pictures."""

    name: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False


class Turn(NamedTuple):
    """
    What one entry says.

    Attributes:
        seq: The entry's number.
        who: user, assistant, system, tool, note or cut; tool also where a provider has results told by the user.
        at: When it is said to have happened, else when it was stored.
        parts: Texts, pictures, calls and what they came to.
    """

    seq: int
    who: str
    at: datetime
    parts: tuple[Text | Image | Call | Outcome, ...]


def turns(session: Session, left: list[Left]) -> Iterator[Turn]:
    """
    The turns of a session, in order, whatever was cut.

    Args:
        session: Any session.
        left: What is not shown is added here.
    """
    retracts = Retracts(hits(session.log, "retract"))
    tools: dict[str, str] = {}
    for entry in session.history(kinds=_KINDS):
        if entry.kind == "retract":
            continue
        if entry.body is None or retracts.by(entry):
            left.append(Left(entry.seq, "hollow" if entry.body is None else "retracted"))
            continue
        turn = _turn(entry, tools, left)
        if turn is not None:
            yield turn


def _turn(entry: Entry, tools: dict[str, str], left: list[Left]) -> Turn | None:
    at = entry.occurred_at or entry.created_at
    assert entry.body is not None
    if entry.kind == "note":
        value = entry.json()
        return Turn(entry.seq, "note", at, (Text(str(value.get("text", ""))),))
    if entry.kind == "cut":
        return Turn(entry.seq, "cut", at, (Text(_summary(entry.json())),))
    try:
        found = told(codec.decode(entry.body), entry.format)
    except (SegueError, ValueError):
        left.append(Left(entry.seq, "foreign", entry.format))
        return None
    tools.update((part.id, part.name) for part in found.parts if isinstance(part, Call))
    left.extend(Left(entry.seq, "no-counterpart", part.what) for part in found.parts if isinstance(part, convert.Left))
    parts = tuple(_named(part, tools) for part in found.parts if not isinstance(part, convert.Left))
    who = "tool" if found.role == "user" and all(isinstance(part, Outcome) for part in parts) else found.role
    return Turn(entry.seq, who, at, parts) if parts else None


def _named(part: Text | Image | Call | Result, tools: dict[str, str]) -> Text | Image | Call | Outcome:
    if isinstance(part, Result):
        return Outcome(tools.get(part.id, part.id), part.parts, part.is_error)
    return part


def _summary(value: Any) -> str:
    summary = value.get("summary") if isinstance(value, dict) else None
    return "" if summary is None else codec.encode(summary).decode()
