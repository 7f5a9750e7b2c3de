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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

import msgspec
import zstandard

from segue import attributes, codec
from segue.errors import Corrupt, Exists, HeadMoved, IdConflict, Invalid, NotFound
from segue.log import drafts
from segue.model import Draft, Entry, Parent, SessionInfo, Usage, check_count, check_name, check_names, to_us
from segue.session import Scope, Session
from segue.store import Hollow

FORMAT = "segue.bundle"
VERSION = 1
LINE_MAX = 64 * 1024 * 1024
"""Longest line of a bundle that is read, in bytes."""

BATCH, BATCH_BYTES = 500, 4 * 1024 * 1024
ERASED = "bundle.erased"
"""Kind of the entry that stood for one whose content was erased, in what Segue brought in before."""

_NOWHERE = 1 << 40  # an expected head that no session has
_SPARE_MAX = 180  # bytes of an id that a key is made of; a key of 255 holds more, such as where a fork begins


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
        path = [waiting.pop(next(iter(waiting)))]  # what is on the path is not waiting: links may be a circle
        while (parent := path[-1][1].parent) is not None and parent.session in waiting:
            path.append(waiting.pop(parent.session))
        yield from reversed(path)


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
            "state": info.state,
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

    A session is known by its id, or by its key and its first entry; a key alone makes two sessions not one. What is
    there is compared, and what is missing added behind it. Where it went on otherwise here, the rest of the bundle's
    comes into a fork at the last entry that both have, so that what names entries by number (cuts, retractions, masks)
    names the same ones. A session keeps its id and its key where these are free, and its link to its parent. A fork
    shares again what its parent has here, in this bundle or from before.

    All of an entry is kept but ``created_at``, which is this store's: what was stored then is the claimed time where
    there is none. An entry whose content was erased in the bundle or here is empty here.

    Args:
        scope: The owner.
        file: The bundle.

    Returns:
        The sessions, in the order of the bundle.

    Raises:
        Invalid: It is no bundle, of a newer version, cut off, or changed; the line is named. Sessions before the
            damage are in.
        Corrupt: A body does not match its digest.
        IdConflict: A session has an entry of the same id with other content. Sessions before it are in.
        Archived: A session has new entries, and is archived here; restore it first.
        HeadMoved: A session went on here meanwhile; import the bundle again.
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
    session: Session | None = None
    is_new: bool = False
    messages: int = 0
    entries: int = 0


def bring_bundle(scope: Scope, file: BinaryIO, *, is_dry: bool = False) -> list[Brought]:
    """Like ``import_bundle``, with what was new of each session; a dry run compares, and writes nothing."""
    arrived: dict[str, Brought] = {}
    made: list[Brought] = []
    now: _Arrival | None = None
    for number, value in _values(file):
        with _naming(file, number):
            if "session" in value:
                if now is not None:
                    now.finish()
                now = _Arrival(scope, value["session"], arrived, is_dry=is_dry)
                made.append(now.one)
            elif "entry" in value:
                if now is None:
                    raise Invalid("an entry of no session; export the bundle again", where="entry")
                now.put(_item(value["entry"]))
    if now is not None:
        now.finish()
    return made


@contextmanager
def _naming(file: BinaryIO, number: int) -> Iterator[None]:
    """Errors in what a line says name the file and the line."""
    where, place = f"line {number}", _place(file, number)
    try:
        yield
    except Corrupt as error:
        raise Corrupt(f"{place}: {error}", session=error.session, seq=error.seq) from error
    except Invalid as error:
        raise Invalid(f"{place}: {error}", where=where) from error
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Invalid(f"{place}: this is no whole Segue bundle: {error!r}; export it again", where=where) from error


def _place(file: BinaryIO, number: int) -> str:
    name = getattr(file, "name", None)
    return f"{PurePath(name).name}, line {number}" if isinstance(name, str) else f"line {number}"


class _Item(NamedTuple):
    """One entry of a bundle, checked."""

    seq: int
    draft: Draft
    run: str | None
    is_hollow: bool


class _Arrival:
    """
    One session of a bundle on its way in.

    Up to ``upto`` its entries are compared with those of a session that is here (``trunk``): with itself, or, as long
    as it is not here (``one.session`` is None), with the one that it is a fork of. What follows is new.
    """

    def __init__(self, scope: Scope, row: dict[str, Any], arrived: dict[str, Brought], *, is_dry: bool) -> None:
        self.scope = scope
        self.row = _checked(row)
        self.is_dry = is_dry
        self.one = Brought(row)
        self.parent = None if row.get("parent") is None else arrived.get(row["parent"]["session"])
        self.trunk: Session | None = None
        self.upto = 0
        self.at = 0  # entries of the bundle that are here
        self.key = ""  # of a session that is not the one of this id, or not any more
        self.is_begun = False
        self.batch: list[_Item] = []
        self.size = 0
        arrived[row["id"]] = self.one

    def put(self, item: _Item) -> None:
        """The next entry."""
        if item.seq != self.at + len(self.batch) + 1:
            raise Invalid(f"entry {item.seq} stands where another must; export the bundle again", where="seq")
        self.one.messages += item.draft.kind == "message" and not item.is_hollow
        self.batch.append(item)
        self.size += len(item.draft.body)
        if len(self.batch) >= BATCH or self.size > BATCH_BYTES:
            self._flush()

    def finish(self) -> None:
        """That was all of it."""
        self._flush()
        if self.is_dry:
            return
        session = self.one.session or self._make()
        state, info = self.row.get("state", "active"), session.refresh()
        is_ours = info.version == 1 and info.head == self.at and info.lease is None  # nobody has touched it here
        if state != "active" and info.state == "active" and is_ours:
            session.end() if state == "completed" else session.archive()

    def _flush(self) -> None:
        items, self.batch, self.size = self.batch, [], 0
        if not self.is_begun:
            self._begin(items)
        while items and self.at < self.upto:
            same = self._same(items)
            self.at += same
            del items[:same]
            if not same:
                self._part(items[0])
        if items:
            self._write(items)

    # Where it is, or comes from

    def _begin(self, items: list[_Item]) -> None:
        self.is_begun = True
        self.trunk = self.one.session = self._own(items)
        if self.trunk is not None:
            self.upto = self.trunk.info.head
            return
        self.one.is_new = True
        link = self.row.get("parent")
        if link is None or link["link"] != "fork":
            return
        self.trunk = self._parent(link["session"])
        if self.trunk is not None and self.trunk.refresh().format != self.row["format"]:
            self.trunk = None
        elif self.is_dry and self.parent is not None:
            self.upto = link["seq"]
        elif self.trunk is not None:
            self.upto = min(link["seq"], self.trunk.info.head)

    def _own(self, items: list[_Item]) -> Session | None:
        """The session, where it came in before or never left."""
        found = self._here(self.row["id"])
        if found is None and self.row["key"] and items:
            found = self.scope.get_key(self.row["key"])
            first = [] if found is None else found.read(upto=1)
            if not first or not _is_same(items[0], first[0]):
                return None  # two sessions may have the same key
        return found

    def _parent(self, id: str) -> Session | None:
        return self._here(id) if self.parent is None else self.parent.session

    def _here(self, id: str) -> Session | None:
        try:
            return self.scope.open(id)
        except NotFound:
            return self.scope.get_key(_spare_key(id))

    # What of it is there

    def _same(self, items: list[_Item]) -> int:
        """How many of the entries are the next ones of the trunk."""
        wanted = items[: self.upto - self.at]
        is_own = self.one.session is not None
        there = [] if self.trunk is None else self._stored(self.trunk, wanted)
        for n, (item, entry) in enumerate(zip(wanted, there, strict=False)):
            if not _is_same(item, entry):
                if is_own and item.draft.id == entry.id:
                    raise IdConflict(entry.id, entry.seq)
                return n
        # In a dry run the parent is still to get what comes in with it.
        return len(wanted) if self.is_dry and not is_own else len(there)

    def _stored(self, trunk: Session, items: list[_Item]) -> list[Entry]:
        try:
            return trunk.read(after=self.at, upto=items[-1].seq)
        except Corrupt:
            hollow = [item for item in items if item.is_hollow and item.seq > trunk.info.base]
            if not hollow:
                raise
        # An import that was killed between storing a hollow entry and hollowing it left one that has another digest.
        for item in hollow:
            with suppress(HeadMoved, IdConflict):
                if trunk.log.append((item.draft,), expect=_NOWHERE).seqs == (item.seq,):
                    _empty(trunk, [item])
        return trunk.read(after=self.at, upto=items[-1].seq)

    def _part(self, item: _Item) -> None:
        """The trunk goes on with another entry: what follows belongs into a fork, which may be here already."""
        if self.one.session is not None:
            text = f"{self.key}~{self.at}.{item.draft.id}".encode()
            self.key = f"{_spare_key(self.row['id'])}~{self.at}.{hashlib.sha256(text).hexdigest()[:24]}"
            found = self.scope.get_key(self.key)
            if found is not None:
                self.trunk = self.one.session = found
                self.upto = found.info.head
                return
            self.one.session, self.one.is_new = None, True
        self.upto = self.at

    # What is new of it

    def _write(self, items: list[_Item]) -> None:
        if self.is_dry:
            self.one.entries += len(items)
            self.at += len(items)
            return
        session = self.one.session or self._make()
        for run, group in groupby(items, lambda item: item.run):
            these = list(group)
            done = session.log.append(tuple([item.draft for item in these]), run=run, expect=self.at)
            if done.seqs != tuple([item.seq for item in these]):
                raise Invalid(f"an id of the entries from {these[0].seq} is there twice; export it again", where="id")
            _empty(session, [item for item in these if item.is_hollow])
            self.one.entries += done.new
            self.at = these[-1].seq

    def _make(self) -> Session:
        row = self.row
        ways: list[tuple[str | None, str | None]] = [(row["id"], row["key"])]
        if row["key"]:  # another session may have the key
            ways.append((row["id"], None))
        # A session that was erased may have had the id. It is known by the key and the first entry then.
        ways += [(None, row["key"])] * bool(row["key"] and row["head"]) + [(None, _spare_key(row["id"]))]
        for id, key in [(None, self.key)] if self.key else ways:
            try:
                self.one.session = self._made(id, key)
            except Exists as error:
                refused = error
            else:
                return self.one.session
        raise refused

    def _made(self, id: str | None, key: str | None) -> Session:
        row = self.row
        options = {name: row[name] for name in ("title", "metadata", "pinned", "listed")}
        options |= {"tags": tuple(row["tags"]), "key": key, "id": id}
        if self.at and self.trunk is not None:
            return self.trunk.fork(self.at, idle=None, expires_at=None, **options)
        link = row.get("parent")
        if link is None:
            return self.scope.create(format=row["format"], **options)
        place = self._parent(link["session"])
        parent = Parent(link["session"] if place is None else place.id, link["seq"], link["link"])
        return self.scope.create(format=row["format"], parent=parent, **options)


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a session: what is looked at before a session is made of it."""
    check_name(row["id"], "id")
    check_count(row["head"], "head")
    if row["key"] is not None:
        check_name(row["key"], "key")
    if row.get("state", "active") not in {"active", "completed", "archived"}:
        raise Invalid(f"a session of the unknown state {row['state']!r}; export the bundle again", where="state")
    attributes.checked({name: row[name] for name in ("title", "metadata", "pinned", "listed", "tags")})
    check_name(row["format"], "format")
    link = row.get("parent")
    if link is not None:
        check_name(link["session"], "parent")
        check_count(link["seq"], "parent")
        if link["link"] not in {"fork", "child", "anew", "spill"}:
            raise Invalid(f"a link of the unknown kind {link['link']!r}; export the bundle again", where="parent")
    return row


def _spare_key(id: str) -> str:
    """The key of a session that could not keep its id."""
    is_short = len(id.encode()) <= _SPARE_MAX
    return f"bundle:{id}" if is_short else f"bundle:#{hashlib.sha256(id.encode()).hexdigest()}"


def _is_same(item: _Item, entry: Entry) -> bool:
    """Whether it is this entry, or what an older Segue put in its place when its content was erased."""
    draft = item.draft
    return draft.id == entry.id and (draft.digest == entry.digest or ERASED in (draft.kind, entry.kind))


def _empty(session: Session, items: list[_Item]) -> None:
    """Erase at once what stands for content that was erased before it was exported."""
    if items:
        log = session.log
        log.engine.do(Hollow(log.scope, log.id, tuple([item.seq for item in items])))


def _item(value: dict[str, Any]) -> _Item:
    """The entry of a line; one whose content was erased has other content, which is erased when it is stored."""
    seq = check_count(value["seq"], "seq")
    digest = bytes.fromhex(value["digest"])
    body, is_hollow = b"", False
    if "text" in value:
        body = value["text"].encode()
    elif "base64" in value:
        body = base64.b64decode(value["base64"])
    else:
        body, is_hollow = b"" if value["format"] == "raw" else b"{}", True
    if len(digest) != len(codec.digest(b"")):
        raise Invalid(f"the digest of entry {seq} is none; export the bundle again", where="digest")
    if not is_hollow and codec.digest(body) != digest:
        raise Corrupt(f"entry {seq} of the bundle does not match its digest; export it again", seq=seq)
    usage = None if value["usage"] is None else Usage(*value["usage"])
    when = value["occurred_us"] if value["occurred_us"] is not None else value["created_us"]
    run = None if value["run"] is None else check_name(value["run"], "run")
    (draft,) = drafts(
        [
            Draft(
                value["kind"], value["format"], value["origin"], body, codec.digest(body), value["id"],
                check_names(value["refs"], "refs"), when, usage,
            )
        ],
        None,
    )  # fmt: skip
    return _Item(seq, draft._replace(digest=digest), run, is_hollow)


def _values(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """What the lines say, with their numbers, but for the first and the last."""
    total = hashlib.sha256()
    number = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as packed:
            for number, line in enumerate(_lines(packed), 1):
                value = codec.decode(line)
                if number == 1:
                    _check_head(value)
                elif "manifest" in value:
                    _check_end(value["manifest"], total.hexdigest())
                    return
                else:
                    yield number, value
                total.update(line)
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        place = _place(file, max(number, 1))
        raise Invalid(f"{place}: this is no whole Segue bundle: {error}; export it again", where="file") from error
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
