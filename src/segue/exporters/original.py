"""The file that a session was imported from, byte for byte; what the log holds beside it is not part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from segue import codec
from segue.errors import Invalid
from segue.model import Entry
from segue.session import Scope, Session

AROUND, LINE, PART, WHOLE = "import.around", "import.line", "import.part", "import.whole"
_KINDS = ("message", AROUND, LINE, PART)


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
    is_first = True
    for line in _lines(session, left):
        out.write(line if is_first else b"\n" + line)
        is_first = False
    if is_first and "tail" not in state:
        raise Invalid(f"session {session.id!r} was not imported from a file; export its messages", where="session")
    if state.get("ends", True) and not is_first:
        out.write(b"\n")
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
    return entry.id.startswith(("w.", "m.", "a.", "l.", "p."))


def _lines(session: Session, left: list[Left]) -> Iterator[bytes]:
    """The records, without their line feeds."""
    message: Entry | None = None
    parts: list[bytes] = []
    for entry in session.history(kinds=_KINDS):
        if not _is_record(entry):
            continue
        if entry.body is None:
            left.append(Left(entry.seq, "hollow", "its content was erased"))
            message = None if entry.kind == "message" else message
        elif entry.id.startswith("w."):
            yield entry.body
        elif entry.kind == "message":
            message = entry
        elif entry.kind == PART:
            parts.append(entry.body)
        elif entry.kind == LINE:
            yield b"".join([*parts, entry.body])
            parts.clear()
        else:
            yield _joined(entry, message)
    if parts:
        yield b"".join(parts)


def _joined(around: Entry, message: Entry | None) -> bytes:
    """The record with its message put back in its place."""
    assert around.body is not None
    place, _, rest = around.body.partition(b"\n")
    at = int(place)
    inner = b"" if message is None or message.body is None else message.body
    return rest[:at] + inner + rest[at:]


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
