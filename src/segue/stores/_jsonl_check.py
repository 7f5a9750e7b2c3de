"""What ``check`` finds in a folder: its settings, and (deep) every line of it. Nothing is changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from segue.errors import Corrupt
from segue.model import ScopeKey
from segue.store import Report

from ._jsonl_disk import LOCK, Folder, FolderLock, Place
from ._jsonl_entries import Span
from ._jsonl_names import INDEX, LEASE, SESSION, TEMPORARY, lease_file, session_file, torn_files
from ._jsonl_read import Moved, fetch
from ._jsonl_shelf import Indexed, Shelf, indexed_of, scopes_of
from ._jsonl_table import Table
from ._local import network_file_system

NAMED_MAX = 20
"""Most files that one kind of finding names; the rest is counted."""

_AT_A_TIME = 200
_OTHERS = 0o077


class Checker:
    """
    Looks, and changes nothing.

    Args:
        folder: The folder.
        lock: The handle's lock; None where it has none (read only).
    """

    def __init__(self, folder: Folder, lock: FolderLock | None) -> None:
        self._folder = folder
        self._lock = lock
        self._shelf = Shelf()  # of its own: what a handle has read before is no witness

    # Settings.

    def settings(self) -> list[Report]:
        """The file system, the lock, version control, and what lies about."""
        reports = [self._file_system(), self._lock_state(), *self._version_control()]
        odd = _Odd()
        for path, found in _walk(self._folder.top, depth=2):
            odd.look(path, found)
        return reports + odd.reports()

    def _file_system(self) -> Report:
        path = Path(self._folder.path)
        network = network_file_system(path)
        if network:
            return Report("warn", f"{path} is on a network file system ({network}): locks and syncs may not hold there")
        return Report("ok", f"{path} is on {_file_system(path)}; each commit is synced")

    def _lock_state(self) -> Report:
        if self._lock is None:
            return Report("ok", "opened to read only; the lock was not looked at")
        return Report("ok", f"{LOCK} is {'free' if self._lock.is_free() else 'held: a process writes in this moment'}")

    def _version_control(self) -> Iterator[Report]:
        here = Path(self._folder.path)
        for folder in (here, *here.parents):
            if (folder / ".git").exists():
                yield Report("warn", f"{folder} is under git: what is erased here stays in its history")
                return

    # Every line.

    def sessions(self) -> list[Report]:
        """Every line of every session; damage with session and seq."""
        reports: list[Report] = []
        count = 0
        for scope in scopes_of(self._folder):
            with suppress(FileNotFoundError), self._folder.scope(scope) as place:
                found, read = self._scope(place, scope)
                reports += found
                count += read
        return [*reports, Report("ok", f"{count} sessions were read, entry by entry")]

    def _scope(self, place: Place, scope: ScopeKey) -> tuple[list[Report], int]:
        with self._shelf.lock:
            sessions = [table.summary.session for table, _lease in self._shelf.all(place, scope, trust_index=False)]
        reports, needs = [], dict[str, int]()
        tables: dict[str, Table] = {}
        for session in sessions:
            with self._shelf.lock:
                table = self._shelf.table(place, scope, session)
            if table is not None:
                tables[session] = table
                for owner, upto in () if table.summary.is_erased else table.summary.shares:
                    needs[owner] = max(needs.get(owner, 0), upto)
                reports += [_named(each, scope, session) for each in self._table(place, scope, table)]
        for line in indexed_of(place, scope):
            reports += [_named(each, scope, line.header.session) for each in _cut(line, tables)]
        for session, table in tables.items():
            reports += [_named(each, scope, session) for each in _shared(table, tables, needs.get(session, 0))]
        self._shelf.clear()
        return reports, len(tables)

    def _table(self, place: Place, scope: ScopeKey, table: Table) -> Iterator[Report]:
        where = place.shown(session_file(table.summary.session))
        for finding in table.findings:
            yield Report("damage" if finding.is_damage else "warn", f"{where}: {finding.text}", seq=finding.seq)
        if table.torn:
            yield Report("warn", f"{where}: a write left {table.torn} bytes torn at its end; the next sets them aside")
        if not table.summary.is_erased:
            try:
                table.summary.known_row()
            except Corrupt as error:
                yield Report("damage", str(error))
        yield from self._entries(place, table)
        yield from self._lease(place, scope, table)

    def _entries(self, place: Place, table: Table) -> Iterator[Report]:
        summary, entries = table.summary, table.spans()
        seqs = [seq for seq in range(summary.base + 1, summary.head + 1) if seq not in entries.damaged]
        for first in range(0, len(seqs), _AT_A_TIME):
            spans = [entries.span(seq) for seq in seqs[first : first + _AT_A_TIME]]
            if not _corrupt(place, table, spans):
                continue
            for span in spans:
                for error in _corrupt(place, table, [span]):
                    yield Report("damage", str(error), seq=span.seq)

    def _lease(self, place: Place, scope: ScopeKey, table: Table) -> Iterator[Report]:
        file = lease_file(session_file(table.summary.session))
        found = place.stat(file)
        if found is not None:
            side = self._shelf.side(place, scope, table.summary.session, found)
            if not side.is_whole or side.lease is None or side.bad:
                yield Report(
                    "warn", f"{place.shown(file)} is damaged; a lease given out may be judged by an older line"
                )


def _file_system(path: Path) -> str:
    """The type of the file system, where the system tells (Linux)."""
    device = path.stat().st_dev
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return after.split()[0]
    return "a local file system"


def _corrupt(place: Place, table: Table, spans: list[Span]) -> list[Corrupt]:
    try:
        fetch(place, table, spans, session=table.summary.session)
    except Corrupt as error:
        return [error]
    except Moved:
        return []  # written anew in this moment, by a Segue that read what it kept
    return []


def _named(report: Report, scope: ScopeKey, session: str) -> Report:
    return report._replace(scope=scope, session=session)


def _cut(line: Indexed, tables: dict[str, Table]) -> Iterator[Report]:
    """Whether a file holds less than when the index file was written: cut between two lines, it does not tell."""
    session = line.header.session
    table = tables.get(session)
    if table is None:
        yield Report("damage", f"its file, with entries up to {line.head}, is gone")
    elif table.summary.rewrite == line.header.rewrite and table.summary.head < line.head:
        head = table.summary.head
        yield Report("damage", f"its file held entries up to {line.head} and holds them up to {head}", seq=head + 1)


def _shared(table: Table, tables: dict[str, Table], need: int) -> Iterator[Report]:
    """Whether what a session shares is there, and an erased one keeps no more than others share."""
    summary = table.summary
    if summary.is_erased:
        if summary.head > max(need, summary.base):
            yield Report("warn", "an erasure was cut short: entries are left that nobody shares; the next one ends it")
        return
    before = 0
    for owner, upto in summary.shares:
        found = tables.get(owner)
        if found is None or found.summary.head < upto or found.summary.base > before:
            yield Report("damage", f"it shares entries up to {upto} of session {owner!r}, which does not have them")
        before = upto


class _Odd:
    """What lies about in the folder that is not as it should be."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._torn: list[str] = []
        self._left: list[str] = []
        self._links: list[str] = []
        self._others: list[str] = []

    def look(self, path: str, found: os.stat_result) -> None:
        name = path.rpartition("/")[2]
        if stat.S_ISDIR(found.st_mode):
            if found.st_mode & _OTHERS:
                self._open.append(path)
            return
        if not stat.S_ISREG(found.st_mode):
            self._links.append(path)
        elif torn_files([name]):
            self._torn.append(path)
        elif name.startswith(TEMPORARY):
            self._left.append(path)
        elif not name.endswith((SESSION, LEASE)) and name != INDEX:
            self._others.append(path)
        elif found.st_mode & _OTHERS:
            self._open.append(path)

    def reports(self) -> list[Report]:
        kinds = (
            (self._open, "others may read or write it; run: chmod -R go= on the folder"),
            (self._torn, "what a write left torn was set aside; it was never acknowledged. Remove it when you like"),
            (self._left, "a write was cut short; the next erasure removes it"),
            (self._links, "no regular file; it is not followed"),
            (self._others, "not Segue's; it is left alone"),
        )
        reports: list[Report] = []
        for paths, text in kinds:
            reports += [Report("warn", f"{path}: {text}") for path in paths[:NAMED_MAX]]
            if len(paths) > NAMED_MAX:
                reports.append(Report("warn", f"and {len(paths) - NAMED_MAX} more: {text}"))
        return reports


def _walk(place: Place, *, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a directory that Segue may have made, and what else lies there; hidden names left out."""
    yield place.path, os.fstat(place.fd)
    for name in place.names():
        is_ours_hidden = name.startswith(TEMPORARY) or name == INDEX
        if name.startswith(".") and not is_ours_hidden:
            continue
        try:
            found = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(found.st_mode) and depth:
            with place.enter(name) as inside:
                yield from _walk(inside, depth=depth - 1)
        elif depth < 2 or not name.startswith("segue."):
            yield place.shown(name), found
