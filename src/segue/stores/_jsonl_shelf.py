"""
What a handle knows of the folder's sessions, kept up with what other processes write.

Nothing here is a truth: each table is compared with its file (inode, size, times) whenever it is asked
for, and read on or read anew where the file went on. The index file of a scope saves reading all files
when a folder is opened; what does not fit its files any more is ignored.
"""

from __future__ import annotations

import os
import stat
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import msgspec

from segue.errors import Corrupt, NotFound
from segue.model import ScopeKey, Usage

from ._jsonl_disk import Folder, Place, mapped
from ._jsonl_lines import Header, LeaseLine, Row, lines_of, seed_of
from ._jsonl_names import INDEX, LEASE, SESSION, file_of, is_long, lease_file, name_of, session_file
from ._jsonl_summary import Summary
from ._jsonl_table import Sign, Table, sign_of

ENTRIES_MAX = 2_000_000
"""Most entries whose places a handle keeps in memory, over all sessions."""

INDEX_MAX_BYTES = 256 << 20
"""Largest index file that is read."""

_HEADER_MAX_BYTES = 1 << 20


class Indexed(msgspec.Struct, array_like=True):
    """A session in the index file."""

    sign: Sign
    header: Header
    row: Row | None
    lease: LeaseLine
    head: int
    active_us: int
    usage: tuple[int, ...]


_decode_index = msgspec.json.Decoder(list[Indexed]).decode


class SideLease(NamedTuple):
    """What the file beside a session's says of its lease."""

    sign: Sign
    lease: LeaseLine | None
    is_whole: bool  # ends with a whole line, so another may follow
    bad: int  # lines that are damaged


class Known:
    """What is known of one scope."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}  # by session
        self.sides: dict[str, SideLease] = {}  # by session
        self.sessions: dict[str, str] = {}  # by file, where its name does not tell
        self.is_indexed = False
        self.changed = 0  # sessions written since the index file was


class Shelf:
    """
    Tables of all scopes. Every method is called with ``lock`` held.

    Attributes:
        lock: Guards all that is known.
        in_flight: Sessions that this handle writes to in this moment, with the size before: what lies
            behind it is not durable yet, so it is not shown.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.in_flight: dict[tuple[ScopeKey, str], int] = {}
        self._known: dict[ScopeKey, Known] = {}
        self._entries = 0

    def known(self, scope: ScopeKey) -> Known:
        """What is known of a scope."""
        return self._known.setdefault(scope, Known())

    def clear(self) -> None:
        """Know nothing any more."""
        self.lock = threading.RLock()
        self.in_flight.clear()
        self._known.clear()
        self._entries = 0

    def changed_scopes(self) -> list[tuple[ScopeKey, Known]]:
        """Scopes in which this handle wrote since their index file was written."""
        return [(scope, known) for scope, known in self._known.items() if known.changed]

    # One session.

    def table(self, place: Place, scope: ScopeKey, session: str, *, full: bool = True) -> Table | None:
        """
        The table of a session's file as it is now; None when there is no file.

        Args:
            place: The scope's directory.
            scope: Whose it is.
            session: Its id.
            full: With the places of its entries; else the summary will do.
        """
        file = session_file(session)
        found = place.stat(file)
        if found is None:
            self.forget(scope, session)
            return None
        return self._refreshed(place, scope, session, found=found, full=full)

    def living(self, place: Place, scope: ScopeKey, session: str, *, full: bool = True) -> Table:
        """The table of a session that is there and not erased; ``NotFound`` else."""
        table = self.table(place, scope, session, full=full)
        if table is None or not table.is_there or table.summary.is_erased:
            raise NotFound(session)
        return table

    def lease(self, place: Place, scope: ScopeKey, table: Table) -> LeaseLine:
        """The newest lease of a session: of its own file, or of the one beside it."""
        session = table.summary.session
        file = lease_file(session_file(session))
        return self._newest(place, scope, table, place.stat(file))

    def forget(self, scope: ScopeKey, session: str) -> None:
        """Know nothing of a session any more."""
        known = self.known(scope)
        table = known.tables.pop(session, None)
        known.sides.pop(session, None)
        if table is not None and table.entries is not None:
            self._entries -= len(table.entries)

    def _refreshed(self, place: Place, scope: ScopeKey, session: str, *, found: os.stat_result, full: bool) -> Table:
        table = self.known(scope).tables.get(session)
        limit = self.in_flight.get((scope, session))
        is_enough = table is not None and (table.entries is not None or not full)
        if table is not None and is_enough and (limit is not None or table.sign == sign_of(found)):
            return table
        return self._read(place, scope, session, limit=limit)

    def _read(self, place: Place, scope: ScopeKey, session: str, *, limit: int | None) -> Table:
        known, file = self.known(scope), session_file(session)
        before = table = known.tables.get(session)
        had = len(table.entries) if table and table.entries is not None else 0
        with place.reading(file) as opened, mapped(place.shown(file)):
            if table is None or table.entries is None or not table.read(opened, limit):
                table = Table(scope, session)
                table.read(opened, limit)
                if before is not None:
                    table.compare(before)
        self._entries += len(table.spans()) - had
        if self._entries > ENTRIES_MAX:
            self._drop_entries(table)
        known.tables[session] = table
        return table

    def _drop_entries(self, but: Table) -> None:
        for known in self._known.values():
            known.tables = {session: table for session, table in known.tables.items() if not table.entries}
        self._entries = len(but.spans())

    def _newest(self, place: Place, scope: ScopeKey, table: Table, found: os.stat_result | None) -> LeaseLine:
        mine = table.summary.lease
        if found is None:
            return mine
        beside = self.side(place, scope, table.summary.session, found).lease
        return mine if beside is None or beside.rev <= mine.rev else beside

    def side(self, place: Place, scope: ScopeKey, session: str, found: os.stat_result) -> SideLease:
        """What the file beside a session's says of its lease: its last whole line counts."""
        sides = self.known(scope).sides
        side = sides.get(session)
        if side is None or side.sign != sign_of(found):
            data = place.read(lease_file(session_file(session))) or b""
            side = sides[session] = _side_of(data, sign_of(found), seed_of(*scope, session))
        return side

    # A whole scope.

    def all(self, place: Place, scope: ScopeKey, *, trust_index: bool = True) -> Iterator[tuple[Table, LeaseLine]]:
        """Summaries of all sessions of a scope, erased and damaged ones too, each with its newest lease."""
        known = self.known(scope)
        files, sides = _scanned(place)
        if not known.is_indexed and trust_index:
            self._load_index(place, scope, files)
        sessions = {file: session for file in files if (session := self._session_of(place, known, file)) is not None}
        for session in known.tables.keys() - set(sessions.values()):
            self.forget(scope, session)
        for file, session in sessions.items():
            found = files[file]
            try:
                table = self._refreshed(place, scope, session, found=found, full=False)
            except FileNotFoundError:
                continue  # erased by another process in this moment
            if table.is_there:
                yield table, self._newest(place, scope, table, sides.get(lease_file(file)))

    def _session_of(self, place: Place, known: Known, file: str) -> str | None:
        stem = file.removesuffix(SESSION)
        if not is_long(stem):
            return name_of(stem)
        if file not in known.sessions:
            header = header_of(place, file)
            if header is None or session_file(header.session) != file:
                return None
            known.sessions[file] = header.session
        return known.sessions[file]

    # The index file.

    def _load_index(self, place: Place, scope: ScopeKey, files: dict[str, os.stat_result]) -> None:
        known = self.known(scope)
        known.is_indexed = True
        for line in indexed_of(place, scope):
            session = line.header.session
            stat = files.get(session_file(session))
            if session not in known.tables and stat and sign_of(stat) == line.sign:
                known.tables[session] = _table_of(scope, line)

    def index_of(self, place: Place, scope: ScopeKey) -> bytes:
        """What the scope's index file should hold: all sessions whose files are whole."""
        lines = [_indexed(table) for table, _lease in self.all(place, scope) if _is_whole(table)]
        data = msgspec.json.encode(lines)
        return b"%08x\n%b\n" % (zlib.crc32(data), data)


def indexed_of(place: Place, scope: ScopeKey) -> list[Indexed]:
    """What a scope's index file holds; nothing when it is missing, damaged, or another scope's."""
    with suppress(Corrupt, msgspec.MsgspecError):
        found = place.stat(INDEX)
        if found is not None and found.st_size <= INDEX_MAX_BYTES:
            crc, _, data = (place.read(INDEX) or b"").removesuffix(b"\n").partition(b"\n")
            if crc == b"%08x" % zlib.crc32(data):
                return [line for line in _decode_index(data) if (line.header.tenant, line.header.user) == scope]
    return []


def _scanned(place: Place) -> tuple[dict[str, os.stat_result], dict[str, os.stat_result]]:
    """Session files and lease files of a directory, with what they are like. No links, no directories."""
    files: dict[str, os.stat_result] = {}
    sides: dict[str, os.stat_result] = {}
    with mapped(place.path), os.scandir(place.fd) as entries:
        for entry in entries:
            if entry.name.endswith((SESSION, LEASE)):
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        (files if entry.name.endswith(SESSION) else sides)[entry.name] = found
    return files, sides


def header_of(place: Place, file: str) -> Header | None:
    """The first line of a session's file; None when it is none."""
    try:
        with place.reading(file) as opened, mapped(place.shown(file)):
            data = os.pread(opened, _HEADER_MAX_BYTES, 0)
    except FileNotFoundError:
        return None
    line = next(lines_of(data, offset=0, seed=0), None)
    return line.head if line and isinstance(line.head, Header) else None


def scopes_of(folder: Folder) -> list[ScopeKey]:
    """The scopes that have a directory, in byte order."""
    found: list[ScopeKey] = []
    for tenant_file in _directories(folder.top):
        with suppress(FileNotFoundError), folder.top.enter(tenant_file) as tenant:
            for user_file in _directories(tenant):
                with suppress(FileNotFoundError), tenant.enter(user_file) as place:
                    scope = _scope_of(place, tenant_file, user_file)
                    found += [scope] if scope else []
    return sorted(found)


def _directories(place: Place) -> list[str]:
    with mapped(place.path), os.scandir(place.fd) as entries:
        return [each.name for each in entries if each.is_dir(follow_symlinks=False) and not each.name.startswith(".")]


def _scope_of(place: Place, tenant_file: str, user_file: str) -> ScopeKey | None:
    """Whose a directory is; None when it is another program's. A name too long for a file is in a session's."""
    tenant, user = name_of(tenant_file), name_of(user_file)
    if tenant is not None and user is not None:
        return ScopeKey(tenant, user)
    for name in place.names() if is_long(tenant_file) or is_long(user_file) else ():
        header = header_of(place, name) if name.endswith(SESSION) else None
        if header and (file_of(header.tenant), file_of(header.user)) == (tenant_file, user_file):
            return ScopeKey(header.tenant, header.user)
    return None


def _side_of(data: bytes, sign: Sign, seed: int) -> SideLease:
    lines = list(lines_of(data, offset=0, seed=seed))
    good = [line.head for line in lines if isinstance(line.head, LeaseLine)]
    newest = max(good, key=lambda head: head.rev, default=None)
    return SideLease(sign, newest, data.endswith(b"\n"), len(lines) - len(good))


def _is_whole(table: Table) -> bool:
    return not table.findings and not table.torn and table.missing_feed is None and table.sign is not None


def _indexed(table: Table) -> Indexed:
    summary = table.summary
    if table.sign is None or summary.header is None:
        raise AssertionError("only whole files are in the index")
    return Indexed(
        sign=table.sign,
        header=msgspec.structs.replace(summary.header, row=None),
        row=summary.row,
        lease=summary.lease,
        head=summary.head,
        active_us=summary.active_us,
        usage=tuple(summary.usage),
    )


def _table_of(scope: ScopeKey, line: Indexed) -> Table:
    summary = replace(
        Summary.begun(line.header),
        row=line.row,
        lease=line.lease,
        head=line.head,
        active_us=line.active_us,
        usage=Usage(*line.usage),
    )
    return Table.summarised(scope, summary, line.sign)
