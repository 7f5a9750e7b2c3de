"""The deep check: reads every row of the file and says what contradicts itself. Nothing stops it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import apsw

from segue.errors import Corrupt, SegueError
from segue.model import Entry, ScopeKey, Usage
from segue.store import Report

from ._sqlite_file import File
from ._sqlite_rows import (
    ENTRY_COLUMNS,
    ERASED,
    INFO,
    SEQ_BITS,
    SEQ_MASK,
    Label,
    Moment,
    Row,
    damaged,
    due_us,
    entries_of,
    info_of,
    row_of,
    shelf_of,
    usage_text,
)

FINDINGS_MAX = 1_000
"""Most findings of SQLite's own check that are reported."""

CHUNK = 500
"""Entries read at a time."""

TRIED_MAX = 10_000
"""Most numbers of sessions that are tried one after the other where the table gives no next one."""

_SESSION = f"""
    SELECT c.tenant, c.user, s.shelf, s.due_us, s.erased_us, s.parent_id, s.archived_us,
        {", ".join(f"s.{name}" for name in Row._fields)}
    FROM sessions s LEFT JOIN scopes c ON c.no = s.scope_no WHERE s.no = ?
"""  # noqa: S608
_SLICE = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE pos > ? AND pos <= ? ORDER BY pos LIMIT ?"  # noqa: S608
_ONE = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE pos = ?"  # noqa: S608

_ORPHANS = {
    "entries": "SELECT DISTINCT session_no FROM entries WHERE session_no NOT IN (SELECT no FROM sessions)",
    "refs": "SELECT DISTINCT session_no FROM refs WHERE session_no NOT IN (SELECT no FROM sessions)",
}

_Seen = set[tuple[str, int, int]]  # ref, seq, created_us


class Found(NamedTuple):
    """A session's row as the check sees it."""

    scope: ScopeKey | None
    shelf: int | None
    due_us: int | None
    erased_us: int | None
    parent_id: str | None
    archived_us: int | None
    row: Row

    def damage(self, text: str, seq: int | None = None) -> Report:
        return Report("damage", f"session {self.row.id!r}: {text}", self.scope, self.row.id, seq)


def verify(file: File, moment: Moment) -> Iterator[Report]:
    """
    All damage in the file.

    Each session is read as of one moment, and the log may be emptied between two of them: writers go on.
    """
    yield from _structure(file)
    checked = 0
    try:
        for no in _numbers(file):
            checked += 1
            try:
                yield from file.read(partial(_session_reports, no, moment))
            except SegueError as error:
                yield Report("damage", f"session number {no}: {error}")
    except Corrupt as error:
        yield Report("damage", str(error))
    yield Report("ok", f"{checked} sessions were read, entry by entry")


def _structure(file: File) -> Iterator[Report]:
    """What SQLite itself finds, and rows that belong to nobody."""
    try:
        rows, orphans = file.read(_own_check)
    except SegueError as error:
        yield Report("damage", str(error))
        return
    for row in rows:
        if row != ("ok",):
            yield Report("damage", f"the file's structure: {', '.join(map(str, row))}")
    for name, numbers in orphans.items():
        for (no,) in numbers:
            yield Report("damage", f"there are {name} of a session number {no} that does not exist")


def _own_check(con: apsw.Connection) -> tuple[list[Any], dict[str, list[Any]]]:
    rows: list[Any] = con.execute(f"PRAGMA integrity_check({FINDINGS_MAX})").fetchall()
    rows += con.execute("PRAGMA foreign_key_check").fetchall()
    return rows, {name: con.execute(sql).fetchall() for name, sql in _ORPHANS.items()}


def _after(no: int, con: apsw.Connection) -> list[Any]:
    return con.execute("SELECT no FROM sessions WHERE no > ? ORDER BY no LIMIT ?", (no, CHUNK)).fetchall()


def _numbers(file: File) -> Iterator[int]:
    """
    Numbers of all sessions, tombstones too; past a damaged part of the table as far as SQLite finds the way.

    Where it finds none (the structure's own check has reported that), numbers are tried one by one. A damaged
    table also gives numbers that were asked to be left behind.
    """
    no = tried = 0
    while tried < TRIED_MAX:
        try:
            rows: list[Any] | None = file.read(partial(_after, no))
        except SegueError:
            rows = None
        ahead = sorted({number for (number,) in rows or () if number > no})
        yield from ahead
        if ahead:
            no, tried = ahead[-1], 0
        elif rows == [] or no >= _last(file):
            return
        else:
            no, tried = no + 1, tried + 1
    raise Corrupt(f"sessions after number {no} cannot be reached; restore the file from a backup")


def _last(file: File) -> int:
    try:
        found: int = file.read(lambda con: con.execute("SELECT coalesce(max(no), 0) FROM sessions").get)
    except SegueError:
        return 0
    return found


def _session_reports(no: int, moment: Moment, con: apsw.Connection) -> list[Report]:
    return list(_session(con, no, moment))


def _session(con: apsw.Connection, no: int, moment: Moment) -> Iterator[Report]:
    values: Any = con.execute(_SESSION, (no,)).fetchone()
    if values is None:
        return
    tenant, user, *rest = values
    scope = None if tenant is None else ScopeKey(tenant, user)
    row = Row._make(rest[5:])
    try:
        row_of(row, row.id)
    except Corrupt as error:
        yield Report("damage", str(error), scope, row.id)
        return
    found = Found._make((scope, *rest[:5], row))
    if found.scope is None:
        yield found.damage("its owner is missing")
    if found.row.state == ERASED:
        yield from _tombstone(con, found)
    else:
        yield from _attributes(con, found, moment)
    yield from _base(con, found)
    yield from _entries(con, found)


def _tombstone(con: apsw.Connection, found: Found) -> Iterator[Report]:
    row = found.row
    left = (found.shelf, found.due_us, found.parent_id, found.archived_us, row.key, row.lease_run, row.usage)
    profile = con.execute("SELECT count(*) FROM profiles WHERE session_no = ?", (row.no,)).get
    tags = con.execute("SELECT count(*) FROM tags WHERE session_no = ?", (row.no,)).get
    if found.erased_us is None or profile or tags or any(value is not None for value in left):
        yield found.damage("it was erased, and yet content of its row is left")


def _attributes(con: apsw.Connection, found: Found, moment: Moment) -> Iterator[Report]:
    row = found.row
    values = {"boot": moment.boot, "tick": moment.tick, "no": row.no}
    profile: Any = con.execute(INFO + "WHERE s.no = :no", values).fetchone()
    if profile is None:
        yield found.damage("its title, tags and metadata are missing")
        return
    try:
        info = info_of(profile, found.scope or ScopeKey("", ""), moment)
    except Corrupt as error:
        yield found.damage(str(error))
        return
    tags = con.execute("SELECT tag FROM tags WHERE session_no = ? ORDER BY tag", (row.no,)).fetchall()
    if tuple(tag for (tag,) in tags) != info.tags:
        yield found.damage("the index of its tags does not match them")
    if (found.shelf, found.due_us) != (shelf_of(row.state, row.is_listed), due_us(row)):
        yield found.damage("the lists do not match its state")


def _base(con: apsw.Connection, found: Found) -> Iterator[Report]:
    row = found.row
    if row.head < row.base:
        yield found.damage(f"its head {row.head} lies before its base {row.base}")
    if row.origin_no is None:
        if row.base:
            yield found.damage(f"the session that owns entry {row.base} is not named")
        return
    origin: Any = con.execute("SELECT base, head FROM sessions WHERE no = ?", (row.origin_no,)).fetchone()
    if origin is None or not origin[0] < row.base <= origin[1]:
        yield found.damage(f"the session it was forked from has no entry {row.base}", row.base)


def _entries(con: apsw.Connection, found: Found) -> Iterator[Report]:
    row = found.row
    rows: list[Any] = con.execute("SELECT no, kind, format, origin FROM labels").fetchall()
    labels: dict[int, Label] = {no: (kind, format, origin) for no, kind, format, origin in rows}
    seen: _Seen = set()
    used: Usage | None = None
    sound = True
    for seq, entry in _walk(con, row):
        good = _judge(entry, labels, row.id, seq)
        if isinstance(good, Corrupt):
            sound = False
            yield Report("damage", str(good), found.scope, row.id, seq)
            continue
        seen.update((ref, seq, good.created_us) for ref in good.refs)
        used = _sum(used, good)
    yield from _behind(con, found)
    if sound:
        yield from _indexes(con, found, seen, used)


def _judge(entry: Any, labels: dict[int, Label], session: str, seq: int) -> Entry | Corrupt:
    if entry is None:
        return damaged(session, seq, "it is missing")
    if isinstance(entry, Corrupt):
        return entry
    try:
        return entries_of([entry], labels, session)[0]
    except Corrupt as error:
        return error


def _walk(con: apsw.Connection, row: Row) -> Iterator[tuple[int, Any]]:
    """Every seq that the session owns, with its row, None where it is missing, or why it cannot be read."""
    start, seq = row.no << SEQ_BITS, row.base
    while seq < row.head:
        upto = min(seq + CHUNK, row.head)
        try:
            rows: list[Any] = con.execute(_SLICE, (start + seq, start + upto, CHUNK)).fetchall()
            there: dict[int, Any] = {entry[0] & SEQ_MASK: entry for entry in rows}
        except (apsw.CorruptError, apsw.IOError, UnicodeDecodeError):
            there = {each: _alone(con, row, each) for each in range(seq + 1, upto + 1)}
        for each in range(seq + 1, upto + 1):
            yield each, there.get(each)
        seq = upto


def _alone(con: apsw.Connection, row: Row, seq: int) -> Any:
    try:
        return con.execute(_ONE, ((row.no << SEQ_BITS) + seq,)).fetchone()
    except (apsw.CorruptError, apsw.IOError, UnicodeDecodeError) as error:
        return damaged(row.id, seq, f"it cannot be read ({error})")


def _sum(used: Usage | None, entry: Entry) -> Usage | None:
    if entry.usage is None:
        return used
    return entry.usage if used is None else used + entry.usage


def _behind(con: apsw.Connection, found: Found) -> Iterator[Report]:
    """Entries outside of what the row says."""
    row = found.row
    start = row.no << SEQ_BITS
    for first, last in ((start, start + row.base), (start + row.head, start + SEQ_MASK)):
        stray: list[Any] = con.execute(
            "SELECT pos FROM entries WHERE pos > ? AND pos <= ? ORDER BY pos LIMIT 10", (first, last)
        ).fetchall()
        for (pos,) in stray:
            seq = pos & SEQ_MASK
            yield found.damage(f"entry {seq} is not between its base {row.base} and its head {row.head}", seq)


def _indexes(con: apsw.Connection, found: Found, seen: _Seen, used: Usage | None) -> Iterator[Report]:
    """Whether what was derived from the entries matches them."""
    row = found.row
    refs: list[Any] = con.execute("SELECT ref, seq, created_us FROM refs WHERE session_no = ?", (row.no,)).fetchall()
    for _ref, seq, _us in sorted(seen.symmetric_difference(refs), key=lambda one: one[1])[:10]:
        yield found.damage(f"the index of refs does not match entry {seq}", seq)
    if row.state != ERASED and row.usage != (None if used is None else usage_text(used)):
        yield found.damage("its token totals are not the sum of its entries'")
