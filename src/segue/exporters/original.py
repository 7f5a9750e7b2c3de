"""The file that a session was imported from, byte for byte; what the log holds beside it is not part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from segue import codec
from segue.errors import Invalid
from segue.importers.packs import PACK, PART, Piece, pieces
from segue.model import Entry
from segue.session import Scope, Session

WHOLE = "import.whole"
_KINDS = ("message", PACK, PART)


class Left(NamedTuple):
    """Something that is not in an export: the entry's seq (0: none), why, and what."""

    seq: int
    reason: str
    detail: str = ""


def export_original(session: Session, out: BinaryIO, *, scope: Scope | None = None) -> list[Left]:
    """
    Write what the session was imported from, byte for byte: a file of lines, a document, or a database's records
    (one a line).

    Args:
        session: An imported session.
        out: Where to.
        scope: The owner; needed for the frame of a document that holds several conversations.

    Returns:
        What could not be written, because it was erased. Empty: the bytes are those that were imported.

    Raises:
        Invalid: The session was not imported.
    """
    last = session.by_ref("import.whole", reverse=True, limit=1)
    if last:
        return _whole(session, last[0].entry.id, out, scope)
    left: list[Left] = []
    state = _state(session)
    end: bytes | None = None
    for line, ends in _lines(session, left):
        out.write(line if end is None else end + line)
        end = b"\n" if ends else b""
    if end is None and "tail" not in state:
        raise Invalid(f"session {session.id!r} was not imported from a file; export its messages", where="session")
    if state.get("ends", True) and end is not None:
        out.write(end)
    tail = state.get("tail")
    for entry in session.history(kinds=("import.tail",)) if tail else ():
        if entry.id == tail and entry.body is not None:
            out.write(entry.body)
    return left


def _state(session: Session) -> dict[str, object]:
    """How the file ends: the last word on it that is not older than the last record."""
    hits = session.by_ref("import.file", reverse=True, limit=1)
    if not hits or hits[0].entry.body is None:
        return {}
    state: dict[str, object] = codec.decode(hits[0].entry.body)
    later = session.history(after=hits[0].entry.seq, kinds=_KINDS)
    return {} if any(_is_record(entry) for entry in later) else state


def _is_record(entry: Entry) -> bool:
    return entry.id.startswith(("m.", "k.", "p."))


def _lines(session: Session, left: list[Left]) -> Iterator[tuple[bytes, bool]]:
    """The records, without their line feeds, and whether they have one."""
    packs = {_number(entry): entry.seq for entry in session.history(kinds=(PACK,)) if entry.id.startswith("k.")}
    held: dict[int, list[Entry]] = {}  # messages and parts, by the record that they belong to
    for entry in session.history(kinds=_KINDS):
        if not _is_record(entry):
            continue
        number = _number(entry)
        if entry.kind != PACK:
            held.setdefault(number, []).append(entry)
        elif packs[number] == entry.seq:  # else a longer one has taken its place
            if entry.body is None:
                left.append(Left(entry.seq, "hollow", "records were erased"))
                continue
            for piece in pieces(entry.body):
                yield _record(piece, held.pop(number, []), left), piece.kind.isupper()
                number += 1


def _number(entry: Entry) -> int:
    return int(entry.id.split(".")[1])


def _record(piece: Piece, inner: list[Entry], left: list[Left]) -> bytes:
    """The record, with its message or its parts put back in their place."""
    if piece.kind in "Ll":
        return piece.rest
    kind = PART if piece.kind in "Pp" else "message"
    bodies = []
    for entry in inner:
        if entry.kind == kind:
            bodies.append(entry.body or b"")
            if entry.body is None:
                left.append(Left(entry.seq, "hollow", "its content was erased"))
    if kind == PART:
        return b"".join(bodies)
    return piece.rest[: piece.at] + b"".join(bodies[:1]) + piece.rest[piece.at :]


def whole(session: Session, name: str) -> bytes | None:
    """One version of the document, by the digest that names it; None when a part of it was erased or is not here."""
    pieces: dict[int, bytes] = {}
    count = 0
    for entry in session.history(kinds=(WHOLE,)):
        if entry.id.startswith(f"d.{name}."):
            count += 1
            if entry.body is not None:
                pieces[int(entry.id.rpartition(".")[2])] = entry.body
    return b"".join(pieces[n] for n in sorted(pieces)) if count and len(pieces) == count else None


def _whole(session: Session, last: str, out: BinaryIO, scope: Scope | None) -> list[Left]:
    body = whole(session, last.split(".")[1])
    if body is None:
        return [Left(0, "hollow", "the document was erased")]
    if not session.info.metadata.get("frame"):
        out.write(body)
        return []
    if scope is None:
        raise Invalid("the document's conversations are sessions of their own; give the scope", where="scope")
    left = []
    for part in codec.decode(body)["parts"]:
        if isinstance(part, str):
            out.write(part.encode("latin-1"))
            continue
        key, name = part
        inner = scope.get_key(key)
        found = None if inner is None else whole(inner, name)
        if found is None:
            left.append(Left(0, "erased", f"the conversation {key}"))
        out.write(found or b"null")
    return left
