"""What an importer hands to the writer: conversations, made of records, in which messages were found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segue import codec
from segue.errors import Invalid
from segue.model import Usage

from .tree import Tree


class Said(NamedTuple):
    """
    A message found in a record.

    Attributes:
        body: Its JSON: a part of the record's own bytes where that is possible. Empty: no entry can hold it.
        value: The same, decoded.
        at: Where ``body`` begins in the record; None when it was made from it.
        origin: user, model, tool or system.
        occurred_us: When it is said to have happened.
        usage: Tokens of its model call, as told by this record.
        usage_key: What names the model call: records of one call, and copies of them, are counted once.
    """

    body: bytes
    value: Any
    at: int | None = None
    origin: str = "user"
    occurred_us: int | None = None
    usage: Usage | None = None
    usage_key: str = ""


class Record(NamedTuple):
    """
    One record of a file.

    Attributes:
        number: Its place in the file, from 1.
        raw: Its bytes; None for a message whose record is kept elsewhere (``Conversation.whole``).
        said: The messages in it.
        node: Its name in the tree of the conversation; empty: none.
        parent: The name of what it follows; "" says: the record before it; None says: nothing, it is a beginning.
        group: Records of one message have the same.
        cuts: A summary stands for all before it.
        is_part: It is a part of a record that is too long to be one entry.
        usage: Tokens told apart from messages (with ``usage_key``).
        format: Whose JSON its messages are; empty: the conversation's.
    """

    number: int
    raw: bytes | None
    said: tuple[Said, ...] = ()
    node: str = ""
    parent: str | None = ""
    group: str = ""
    cuts: bool = False
    is_part: bool = False
    usage: Usage | None = None
    usage_key: str = ""
    format: str = ""


@dataclass
class Conversation:
    """
    One conversation of a file, as a stream of records.

    Attributes:
        key: What names it in the scope; the same conversation of a grown file has the same.
        tool: Name of the importer.
        format: Whose JSON its messages are.
        records: Its records, in order; read once.
        title: May be set while the records are read.
        metadata: Facts about it, at most 16 KiB.
        parent: Key of the conversation that it is a sub-agent's of.
        tree: Given where the records form a tree.
        whole: Bytes of its one document, where it is not made of records; kept in one piece. May be set late.
        tail: Bytes behind the last record that are no record (torn); may be set while the records are read.
        ends: Whether the last record ends with a line feed; may be set while the records are read.
        spent: Tokens that the file tells apart from its records, by what names the model call or the turn; these may
            grow from import to import, and what is new is added. May be set while the records are read.
        later: Called when all was written, for conversations found inside this one.
    """

    key: str
    tool: str
    format: str
    records: Iterable[Record]
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    tree: Tree | None = None
    whole: bytes | None = None
    tail: bytes = b""
    ends: bool = True
    spent: dict[str, Usage] = field(default_factory=dict)
    later: Callable[[], Iterable[Conversation]] | None = None


def made(value: Any, **about: Any) -> Said:
    """A message that an importer made, encoded; without a body where no entry can hold it (nested too deep, say)."""
    try:
        return Said(b"" if value is None else codec.encode(value), value, None, **about)
    except Invalid:
        return Said(b"", value, None, **about)
