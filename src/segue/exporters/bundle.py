"""
The Segue bundle: sessions with everything in them, to be kept, moved or read by other programs.

JSON lines, compressed with zstd. The first line says what it is. Then for each session its row, and its entries: the
body as JSON text where it is UTF-8 (``text``), else base64, with its digest. The last line is the manifest: sessions,
entries, and a digest of all lines before it, so that a bundle that was cut off is noticed.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec
import zstandard

from segue import codec
from segue.errors import Corrupt, Exists, IdConflict, Invalid, NotFound
from segue.model import Draft, Entry, Parent, SessionInfo, Usage, to_us
from segue.session import Scope, Session

FORMAT = "segue.bundle"
VERSION = 1
LINE_MAX = 64 * 1024 * 1024
"""Longest line of a bundle that is read, in bytes."""

BATCH, BATCH_BYTES = 500, 4 * 1024 * 1024
ERASED = "bundle.erased"
"""Kind of the entry that stands for one whose content was erased."""


def export_bundle(sessions: Iterable[Session], out: BinaryIO) -> int:
    """
    Write sessions as one bundle. A fork is written with the entries it shares, so that it stands alone.

    Links to parents are kept, also to those that are not in the bundle; parents come before what comes from them.

    Args:
        sessions: Any sessions of one owner.
        out: Where to.

    Returns:
        How many entries were written.

    Guarantees: G4 exact.
    """
    total = hashlib.sha256()
    count = entries = 0
    with zstandard.ZstdCompressor(level=6).stream_writer(out, closefd=False) as packed:
        _put(packed, total, {"format": FORMAT, "version": VERSION})
        for session, info in _parents_first(sessions):
            count += 1
            _put(packed, total, _row(info))
            for entry in session.history(upto=info.head):
                entries += 1
                _put(packed, total, _entry(entry))
        manifest = {"manifest": {"sessions": count, "entries": entries, "sha256": total.hexdigest()}}
        packed.write(codec.encode(manifest) + b"\n")
    return entries


def _parents_first(sessions: Iterable[Session]) -> Iterator[tuple[Session, SessionInfo]]:
    waiting = {session.id: (session, session.refresh()) for session in sessions}
    while waiting:
        path = [next(iter(waiting.values()))]
        while (parent := path[-1][1].parent) is not None and parent.session in waiting:
            path.append(waiting[parent.session])  # ids are given before links, so that there are no circles
        for session, info in reversed(path):
            del waiting[session.id]
            yield session, info


def _put(packed: Any, total: Any, value: dict[str, Any]) -> None:
    line = msgspec.json.encode(value) + b"\n"
    total.update(line)
    packed.write(line)


def _row(info: SessionInfo) -> dict[str, Any]:
    parent = info.parent
    return {
        "session": {
            "id": info.id,
            "key": info.key,
            "format": info.format,
            "title": info.title,
            "tags": list(info.tags),
            "metadata": dict(info.metadata),
            "pinned": info.is_pinned,
            "listed": info.is_listed,
            "head": info.head,
            "base": info.base,
            "created_us": to_us(info.created_at),
            "parent": None if parent is None else {"session": parent.session, "seq": parent.seq, "link": parent.link},
        }
    }


def _entry(entry: Entry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "seq": entry.seq,
        "id": entry.id,
        "kind": entry.kind,
        "format": entry.format,
        "origin": entry.origin,
        "digest": entry.digest.hex(),
        "refs": list(entry.refs),
        "run": entry.run,
        "created_us": entry.created_us,
        "occurred_us": entry.occurred_us,
        "usage": None if entry.usage is None else list(entry.usage),
    }
    if entry.body is not None:
        try:
            value["text"] = entry.body.decode()
        except UnicodeDecodeError:
            value["base64"] = base64.b64encode(entry.body).decode()
    return {"entry": value}


def import_bundle(scope: Scope, file: BinaryIO) -> list[Session]:
    """
    Bring the sessions of a bundle in; twice is once.

    A session keeps its id where that is free, and its link to its parent. A fork whose parent comes in with it shares
    the entries again; any other holds its own. Ids, kinds, bodies, refs and times of the entries are kept;
    ``created_at`` is this store's, and what was stored then is the claimed time where there is none. In the place of
    an entry whose content was erased stands an empty one (kind ``bundle.erased``), so that all others keep their
    numbers.

    Args:
        scope: The owner.
        file: The bundle.

    Returns:
        The sessions, in the order of the bundle.

    Raises:
        Invalid: It is no bundle, of a newer version, cut off, or changed. Sessions before the damage are in.
        Corrupt: A body does not match its digest.
        IdConflict: A session has an entry of the same id with other content. Sessions before it are in.
        Archived: A session has new entries, and is archived here; restore it first.
    """
    return [one.session for one in bring_bundle(scope, file) if one.session is not None]


@dataclass
class Brought:
    """
    One session of a bundle: what came in of it, or would.

    Attributes:
        row: Its row in the bundle.
        session: Where it is in the store; None in a dry run that would make it.
        is_new: It was not there before.
        messages: Messages of it in the bundle.
        entries: Entries that were new (in a dry run: would be).
    """

    row: dict[str, Any]
    session: Session | None
    is_new: bool
    messages: int = 0
    entries: int = 0
    shared: int = 0  # in a dry run: the entries that it would share with a session that comes in, too
    known: dict[str, bytes] = field(default_factory=dict)  # digests of the entries that are there, by their ids


def bring_bundle(scope: Scope, file: BinaryIO, *, is_dry: bool = False) -> list[Brought]:
    """Like ``import_bundle``, with what was new of each session; a dry run compares, and writes nothing."""
    try:
        return _bring(scope, file, is_dry=is_dry)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Invalid(f"this is no whole Segue bundle: {error!r}; export it again", where="file") from error


def _bring(scope: Scope, file: BinaryIO, *, is_dry: bool) -> list[Brought]:
    made: list[Brought] = []
    fresh: dict[str, Brought] = {}  # by the id in the bundle: sessions that were not here before
    batch: list[Draft] = []
    size = 0
    for value in _values(file):
        if "session" in value:
            _store(made, batch, is_dry=is_dry)
            size = 0
            made.append(_session(scope, value["session"], fresh, is_dry=is_dry))
        elif "entry" in value and made:
            draft = _draft(value["entry"])
            if not _is_there(made[-1], draft, value["entry"]["seq"]):
                batch.append(draft)
                size += len(draft.body)
            if len(batch) >= BATCH or size > BATCH_BYTES:
                _store(made, batch, is_dry=is_dry)
                size = 0
    _store(made, batch, is_dry=is_dry)
    return made


def _is_there(one: Brought, draft: Draft, seq: int) -> bool:
    """Whether the session has the entry already: the same one, or that whose content was erased since."""
    one.messages += draft.kind == "message"
    digest = one.known.get(draft.id)
    if digest is not None and digest != draft.digest and draft.kind != ERASED:
        raise IdConflict(draft.id, seq)
    return digest is not None or seq <= one.shared


def _store(made: list[Brought], batch: list[Draft], *, is_dry: bool) -> None:
    if batch:
        session = made[-1].session
        made[-1].entries += len(batch) if is_dry or session is None else session.append(*batch).new
    batch.clear()


def _session(scope: Scope, row: dict[str, Any], fresh: dict[str, Brought], *, is_dry: bool) -> Brought:
    found = _known(scope, row)
    if found is not None:
        return Brought(row, found, is_new=False, known={entry.id: entry.digest for entry in found.history()})
    if is_dry:
        source = _source(row, fresh)
        one = Brought(row, None, is_new=True, shared=0 if source is None else row["parent"]["seq"])
    else:
        try:
            found = _made(scope, row, fresh, id=row["id"], key=row["key"])
        except Exists:  # a session that is not this one, or that was erased, had the id
            found = _made(scope, row, fresh, id=None, key=row["key"] or _spare_key(row))
        one = Brought(row, found, is_new=True)
    fresh[row["id"]] = one
    return one


def _known(scope: Scope, row: dict[str, Any]) -> Session | None:
    """The session, where it came in before or never left."""
    for key in (row["key"], _spare_key(row)):
        found = scope.get_key(key) if key else None
        if found is not None:
            return found
    try:
        found = scope.open(row["id"])
    except NotFound:
        return None
    return found if found.info.key == row["key"] else None


def _spare_key(row: dict[str, Any]) -> str:
    return f"bundle:{row['id']}"[:200]


def _made(
    scope: Scope, row: dict[str, Any], fresh: dict[str, Brought], *, id: str | None, key: str | None
) -> Session:  # fmt: skip
    options = {name: row[name] for name in ("title", "metadata", "pinned", "listed")}
    options |= {"tags": tuple(row["tags"]), "key": key, "id": id}
    link = row.get("parent")
    if link is None:
        return scope.create(format=row["format"], **options)
    source = _source(row, fresh)
    if source is not None and source.session is not None and source.session.refresh().head >= link["seq"]:
        return source.session.fork(link["seq"], **options)
    other = fresh.get(link["session"])
    place = link["session"] if other is None or other.session is None else other.session.id
    return scope.create(format=row["format"], parent=Parent(place, link["seq"], link["link"]), **options)


def _source(row: dict[str, Any], fresh: dict[str, Brought]) -> Brought | None:
    """The session that comes in with this one, and that this one is a fork of and can share entries with."""
    link = row.get("parent")
    if link is None:
        return None
    if link["link"] not in {"fork", "child", "anew", "spill"}:
        raise Invalid(f"a link of the unknown kind {link['link']!r}; export the bundle again", where="file")
    source = fresh.get(link["session"])
    is_fork = source is not None and link["link"] == "fork" and row.get("base") == link["seq"]
    return source if is_fork and source is not None and source.row["format"] == row["format"] else None


def _draft(value: dict[str, Any]) -> Draft:
    body = (
        value["text"].encode() if "text" in value else base64.b64decode(value["base64"]) if "base64" in value else None
    )
    if body is None:
        return Draft(ERASED, "raw", "system", b"", codec.digest(b""), value["id"])
    digest = bytes.fromhex(value["digest"])
    if codec.digest(body) != digest:
        raise Corrupt(
            f"entry {value['seq']} of the bundle does not match its digest; export it again", seq=value["seq"]
        )
    usage = None if value["usage"] is None else Usage(*value["usage"])
    when = value["occurred_us"] if value["occurred_us"] is not None else value["created_us"]
    return Draft(
        value["kind"], value["format"], value["origin"], body, digest, value["id"], tuple(value["refs"]), when, usage
    )  # fmt: skip


def _values(file: BinaryIO) -> Iterator[dict[str, Any]]:
    total = hashlib.sha256()
    is_first = True
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as packed:
            for line in _lines(packed):
                value = codec.decode(line)
                if is_first:
                    _check_head(value)
                    is_first = False
                elif "manifest" in value:
                    _check_end(value["manifest"], total.hexdigest())
                    return
                else:
                    yield value
                total.update(line)
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid(f"this is no whole Segue bundle: {error}; export it again", where="file") from error
    raise Invalid("the bundle is cut off: its manifest is missing; export it again", where="file")


def is_bundle(file: BinaryIO) -> bool:
    """Whether a file is the beginning of a bundle that this Segue reads."""
    try:
        return next(_values(file), None) is not None
    except Invalid:
        return False


def _lines(packed: Any) -> Iterator[bytes]:
    reader = io.BufferedReader(packed)
    while line := reader.readline(LINE_MAX):
        yield line


def _check_head(value: Any) -> None:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise Invalid("this is no Segue bundle", where="file")
    if value.get("version") != VERSION:
        raise Invalid(
            f"the bundle has version {value.get('version')}, this Segue reads {VERSION}; upgrade it", where="file"
        )


def _check_end(manifest: dict[str, Any], digest: str) -> None:
    if manifest["sha256"] != digest:
        raise Invalid("the bundle was changed: its digest does not match; export it again", where="file")
