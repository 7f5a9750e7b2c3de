"""
Documents that hold several conversations: each is kept in its own session, in its own bytes.

What stands between them (brackets, commas, white space) is kept in a hidden session, the frame, with the names of
what goes where, so that the file can be put together again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from .conversation import Conversation
from .records import objects, value_of
from .report import FileReport
from .source import Source, printable

_raws = msgspec.json.Decoder(list[msgspec.Raw])


def elements(document: bytes) -> Iterator[tuple[int, bytes]]:
    """Place and bytes of every element of a JSON array; of a damaged one, of those that can be read."""
    start = document.find(b"[") + 1
    try:
        found = [bytes(raw) for raw in _raws.decode(document)]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        yield from objects(document, start)
        return
    at = start
    for body in found:
        at = document.index(body, at)
        yield at, body
        at += len(body)


class Frame:
    """What stands between the conversations of a document, as it is read."""

    def __init__(self, source: Source, tool: str, report: FileReport) -> None:
        self.source = source
        self.tool = tool
        self.report = report
        self.parts: list[Any] = []

    def gap(self, between: bytes) -> None:
        """Bytes that belong to no conversation."""
        if between:
            self.parts.append(between.decode("latin-1"))

    def took(self, body: bytes) -> None:
        """The conversation that was handed out just now was written: note where."""
        if self.report.sessions:
            key = self.report.sessions[-1].key
            self.parts.append([key, hashlib.sha256(body).hexdigest()[:40]])
        else:
            self.gap(body)

    def conversation(self) -> Conversation:
        """The hidden session that keeps the frame."""
        return Conversation(
            self.source.key(self.tool, "frame"), self.tool, "segue", (), title=printable(self.source.path.name)[:200],
            metadata={"frame": True}, whole=msgspec.json.encode({"parts": self.parts}),
        )  # fmt: skip


def talks_of(source: Source, report: FileReport, tool: str, make: Any) -> Iterator[Conversation]:
    """
    One conversation for every element of a document that is an array, and its frame.

    Args:
        source: The file.
        report: Where defects are told.
        tool: Name of the importer.
        make: Makes a conversation of an element's value, bytes and number; None where it holds none.
    """
    document = source.whole()
    frame = Frame(source, tool, report)
    end = 0
    for number, (at, body) in enumerate(elements(document), 1):
        frame.gap(document[end:at])
        end = at + len(body)
        talk = make(value_of(body), body, number)
        if talk is None:
            frame.gap(body)
            continue
        yield talk
        frame.took(body)
    frame.gap(document[end:])
    yield frame.conversation()
