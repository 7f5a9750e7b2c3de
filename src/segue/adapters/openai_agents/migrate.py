"""Sessions that the SDK's own classes have kept, taken over into Segue. The originals are only read."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import segue
from segue import codec
from segue.errors import Invalid, NotFound
from segue.model import Draft
from segue.store import BATCH_MAX

from . import history
from .session import SegueSession, key_of

ALL = 2_147_483_647
"""The limit under which the SDK's classes give all they have, whatever their settings."""

MAIN = "main"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_SESSIONS = "SELECT DISTINCT session_id FROM agent_messages ORDER BY session_id"
_ROWS = "SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id"
_BRANCHES = "SELECT branch_id, MIN(id) FROM message_structure WHERE session_id = ? GROUP BY branch_id ORDER BY 2"
_BRANCH_ROWS = (
    "SELECT m.id, m.message_data, m.created_at FROM agent_messages m JOIN message_structure s ON s.message_id = m.id "
    "WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number, s.id"
)


class Migrated(NamedTuple):
    """
    What a migration did.

    Attributes:
        sessions: Ids of the sessions taken over, branches as ``<session>@<branch>``.
        items: How many items were stored (what was stored by an earlier migration is not stored twice).
        damaged: Rows that are no JSON, kept as raw entries, as (session id, row).
        skipped: What was not taken over, as (session id, why).
    """

    sessions: tuple[str, ...]
    items: int
    damaged: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]


class _Row(NamedTuple):
    id: int
    data: str | bytes
    created_at: str | None


async def migrate_session(source: Any, target: SegueSession) -> int:
    """
    Copy one session of any class of the SDK (Redis, MongoDB, SQLAlchemy, Encrypted, Dapr …).

    Args:
        source: The SDK's session, opened as its program opens it (an EncryptedSession with its key).
        target: Where to; what an interrupted migration has stored is not stored twice.

    Returns:
        How many items were stored.
    """
    items = await source.get_items(limit=ALL)
    stored = await target.stored()
    new = 0
    for start in range(0, len(items), BATCH_MAX):
        part = [_draft(item, _item_id(n, item)) for n, item in enumerate(items[start : start + BATCH_MAX], start)]
        new += (await stored.append(*part)).new
    return new


def migrate_file(
    path: str | Path,
    scope: segue.Scope,
    *,
    messages_table: str = "agent_messages",
    progress: Callable[[str], None] | None = None,
) -> Migrated:
    """
    Take over all sessions of a file of SQLiteSession, AsyncSQLiteSession, AdvancedSQLiteSession or SQLAlchemySession.

    Branches of AdvancedSQLiteSession become forks: they share what they have in common with the main branch.
    Sessions with encrypted items are left out, and said so: use ``migrate_session`` with the EncryptedSession.
    It may be run again, also while the old program still writes: only what is new is stored.

    Args:
        path: The SQLite file; it is opened for reading only.
        scope: Whose sessions they become.
        messages_table: The SDK's table, if your program named it.
        progress: Called with one line a session.

    Raises:
        NotFound: There is no such file.
        Invalid: It holds no sessions of the SDK.
    """
    if not Path(path).exists():
        raise NotFound(str(path))
    with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as file:
        return _File(file, scope, messages_table, progress).migrate()


class _File:
    """One file on its way."""

    def __init__(
        self,
        file: sqlite3.Connection,
        scope: segue.Scope,
        table: str,
        progress: Callable[[str], None] | None,
    ) -> None:
        if not _IDENTIFIER.fullmatch(table):
            raise Invalid(f"{table!r} is no name of a table", where="messages_table")
        self.file = file
        self.scope = scope
        self.table = table
        self.progress = progress or (lambda _: None)
        self.done: list[str] = []
        self.new = 0
        self.damaged: list[tuple[str, int]] = []
        self.skipped: list[tuple[str, str]] = []

    def migrate(self) -> Migrated:
        tables = {name for (name,) in self.file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if self.table not in tables:
            raise Invalid(f"the file has no table {self.table!r}: it holds no sessions of the SDK", where="path")
        for (session_id,) in self._ask(_SESSIONS):
            rows = [_Row(*row) for row in self._ask(_ROWS, session_id)]
            if any(_is_encrypted(row) for row in rows):
                self.skipped.append((session_id, "its items are encrypted; use migrate_session with its key"))
                self.progress(f"{session_id}: encrypted, left out")
            elif "message_structure" in tables:
                self._branches(session_id, rows)
            else:
                self._take(session_id, rows)
        return Migrated(tuple(self.done), self.new, tuple(self.damaged), tuple(self.skipped))

    def _ask(self, sql: str, *values: str) -> Iterator[tuple[Any, ...]]:
        return iter(self.file.execute(sql.replace("agent_messages", self.table), values).fetchall())

    def _branches(self, session_id: str, rows: list[_Row]) -> None:
        """The main branch is the session; each other one is a fork where it leaves the main one."""
        branches = [name for name, _ in self._ask(_BRANCHES, session_id)]
        structured = {name: [_Row(*row) for row in self._ask(_BRANCH_ROWS, session_id, name)] for name in branches}
        main = structured.get(MAIN) or rows
        parent = self._take(session_id, main)
        for name in branches:
            if name != MAIN:
                self._fork(parent, f"{session_id}@{name}", main, structured[name])
        known = {row.id for branch in structured.values() for row in branch} | {row.id for row in main}
        loose = [row.id for row in rows if row.id not in known]
        if loose:
            self.skipped.append((session_id, f"rows {loose[:10]} belong to no branch"))

    def _fork(self, parent: segue.Session, session_id: str, main: list[_Row], rows: list[_Row]) -> None:
        same = next((n for n, (a, b) in enumerate(zip(main, rows, strict=False)) if a.id != b.id), None)
        same = min(len(main), len(rows)) if same is None else same
        key = key_of(session_id)
        made = self.scope.get_key(key)
        if made is None:
            seqs = parent.append(*(self._entry(session_id, row) for row in main[:same])).seqs if same else ()
            made = parent.fork(seqs[-1] if seqs else 0, key=key, title=session_id.partition("@")[2][:100])
        self._store(made, session_id, rows[same:])

    def _take(self, session_id: str, rows: list[_Row]) -> segue.Session:
        made = self.scope.open_key(key_of(session_id), format=history.FORMAT)
        self._store(made, session_id, rows)
        return made

    def _store(self, into: segue.Session, session_id: str, rows: list[_Row]) -> None:
        for start in range(0, len(rows), BATCH_MAX):
            entries = [self._entry(session_id, row) for row in rows[start : start + BATCH_MAX]]
            self.new += into.append(*entries).new
        self.done.append(session_id)
        self.progress(f"{session_id}: {len(rows)} items")

    def _entry(self, session_id: str, row: _Row) -> Draft:
        raw = row.data.encode("utf-8", "surrogatepass") if isinstance(row.data, str) else bytes(row.data)
        id = f"agents-sqlite-{row.id}"
        try:
            return _draft(raw, id, occurred_at=_time(row.created_at))
        except Invalid:
            if (session_id, row.id) not in self.damaged:
                self.damaged.append((session_id, row.id))
            return segue.draft(raw, format="raw", origin="import", id=id, occurred_at=_time(row.created_at))


def _draft(item: Any, id: str, *, occurred_at: datetime | None = None) -> Draft:
    return segue.draft(item, format=history.FORMAT, origin="import", id=id, occurred_at=occurred_at)


def _item_id(place: int, item: Any) -> str:
    return f"agents-{place}-{hashlib.sha256(codec.encode(item)).hexdigest()[:16]}"


def _is_encrypted(row: _Row) -> bool:
    head = row.data[:16] if isinstance(row.data, str) else bytes(row.data[:16]).decode("utf-8", "replace")
    return '"__enc__"' in head


def _time(text: str | None) -> datetime | None:
    """What the SDK's tables hold: UTC, without a zone."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
