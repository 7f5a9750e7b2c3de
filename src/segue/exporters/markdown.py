"""A session as Markdown, for people."""

from __future__ import annotations

import re
from datetime import UTC
from typing import BinaryIO

from segue.convert import Call, Image, Text
from segue.session import Session

from .original import Left
from .reading import Outcome, Turn, turns

RESULT_MAX = 20_000
"""Most characters of one result; the rest is counted."""

_NAMES = {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Tool", "note": "Note", "cut": "Cut"}


def export_markdown(session: Session, out: BinaryIO) -> list[Left]:
    """
    Write the session as Markdown: texts as they are, calls and results in fences.

    Pictures inside the messages are only named. Text of the session is not escaped, it is meant to be read.

    Args:
        session: Any session.
        out: Where to, in UTF-8.

    Returns:
        What of the log is not in it, and why.
    """
    left: list[Left] = []
    title = " ".join(session.info.title.split()) or session.id
    out.write(f"# {title}\n".encode())
    out.writelines(_section(turn, left).encode("utf-8", "replace") for turn in turns(session, left))
    return left


def _section(turn: Turn, left: list[Left]) -> str:
    when = turn.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    parts = [f"\n## {_NAMES.get(turn.who, turn.who)} · {when}\n"]
    for part in turn.parts:
        if isinstance(part, Text):
            parts.append(part.text.strip() + "\n")
        elif isinstance(part, Image):
            parts.append(_image(part))
        elif isinstance(part, Call):
            parts.append(f"**→ {_line(part.name)}**\n\n{fence(part.arguments, 'json')}")
        else:
            parts.append(_result(turn.seq, part, left))
    return "\n".join(parts)


def _result(seq: int, result: Outcome, left: list[Left]) -> str:
    text = "\n".join(part.text for part in result.parts if isinstance(part, Text))
    if len(text) > RESULT_MAX:
        left.append(Left(seq, "cut", f"{len(text) - RESULT_MAX:,} characters of a result"))
        text = f"{text[:RESULT_MAX]}\n… {len(text) - RESULT_MAX:,} characters more"
    images = [_image(part) for part in result.parts if isinstance(part, Image)]
    head = f"**← {_line(result.name)}{': error' if result.is_error else ''}**"
    return "\n".join([f"{head}\n", fence(text), *images])


def _line(name: str) -> str:
    """A tool's name on one line, so that no fence can begin in it."""
    return " ".join(name.split())


def _image(image: Image) -> str:
    kind = image.url.split(";")[0] if image.url.startswith("data:") else image.url
    return f"*picture: {kind}*\n"


def fence(text: str, language: str = "") -> str:
    """The text in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    ticks = "`" * (longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}\n"
