"""One transaction of the SQLite store under way: what all operations read and write with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import apsw

from segue.errors import NotFound
from segue.model import ScopeKey, SessionInfo

from ._sqlite_rows import INFO, ROW_OF, Label, Moment, Row, damaged, info_of, row_of

CACHE_MAX = 10_000
"""Most scopes, and most labels, that a handle remembers."""

Part = tuple[int, int, int]
"""Entries of a history: those of session number n with after < seq <= upto."""

ANCESTORS = """
    WITH RECURSIVE up (no, base, origin_no, scope_no, upto) AS (
        SELECT no, base, origin_no, scope_no, ?2 FROM sessions WHERE no = ?1
        UNION ALL
        SELECT s.no, s.base, s.origin_no, s.scope_no, up.base FROM up
            JOIN sessions s ON s.no = up.origin_no AND s.scope_no = up.scope_no AND s.base < up.base
    )
    SELECT no, base, upto FROM up
"""

_SCOPE_NO = "SELECT no FROM scopes WHERE tenant = ? AND user = ?"
_LABEL_NO = "SELECT no FROM labels WHERE kind = ? AND format = ? AND origin = ?"
_LABELS = "SELECT no, kind, format, origin FROM labels WHERE no IN (SELECT value FROM json_each(?))"


def parts_of(con: apsw.Connection, own: Part, origin_no: int | None, session: str) -> list[Part]:
    """
    Where a session's history lies, newest part first.

    Raises:
        Corrupt: It does not reach back to the first entry.
    """
    parts: list[Any] = [own]
    if origin_no is not None:
        parts = con.execute(ANCESTORS, (own[0], own[2])).fetchall()
    if parts[-1][1] != 0:
        raise damaged(session, parts[-1][1], "the session that owns it cannot be found")
    return parts


class Names:
    """
    Numbers of scopes and labels that are committed, and so hold for ever, in every process.

    The writer keeps what it has just made apart until its transaction is committed: a number that was
    rolled back may go to somebody else.
    """

    def __init__(self) -> None:
        self.scopes: dict[ScopeKey, int] = {}
        self.labels: dict[int, Label] = {}
        self.label_nos: dict[Label, int] = {}

    def add_scope(self, scope: ScopeKey, no: int) -> None:
        if len(self.scopes) >= CACHE_MAX:
            self.scopes.clear()
        self.scopes[scope] = no

    def add_label(self, no: int, label: Label) -> None:
        if len(self.labels) < CACHE_MAX:
            self.labels[no] = label
            self.label_nos[label] = no

    def scope_no(self, con: apsw.Connection, scope: ScopeKey) -> int | None:
        """A committed scope's number, read from a connection that sees only what is committed; None: there is none."""
        no = self.scopes.get(scope)
        if no is None:
            no = con.execute(_SCOPE_NO, scope).get
            if no is not None:
                self.add_scope(scope, no)
        return no

    def labels_of(self, con: apsw.Connection, numbers: Iterable[int]) -> dict[int, Label]:
        """Labels with at least these numbers, as far as there are such."""
        unknown = [no for no in set(numbers) if no not in self.labels]
        if not unknown:
            return self.labels
        found: list[tuple[Any, ...]] = con.execute(_LABELS, (json.dumps(unknown),)).fetchall()
        new: dict[int, Label] = {no: (kind, format, origin) for no, kind, format, origin in found}
        for no, label in new.items():
            self.add_label(no, label)
        return self.labels | new


class Work:
    """
    One transaction under way.

    Attributes:
        con: The connection that writes.
        moment: When the operations are judged.
        wrote: Whether there is anything to commit.
        hides: Whether content was erased, so that it must go from the log, too.
    """

    def __init__(self, con: apsw.Connection, names: Names) -> None:
        self.con = con
        self.moment = Moment(0, "", 0)
        self.wrote = False
        self.hides = False
        self._names = names
        self._scopes: dict[ScopeKey, int] = {}
        self._labels: dict[Label, int] = {}

    def begin(self, moment: Moment) -> None:
        """Start anew, at that moment."""
        self.moment = moment
        self.wrote = self.hides = False

    def end(self, *, committed: bool) -> None:
        """Publish the numbers that were made, or forget them."""
        if committed:
            for scope, no in self._scopes.items():
                self._names.add_scope(scope, no)
            for label, no in self._labels.items():
                self._names.add_label(no, label)
        self._scopes.clear()
        self._labels.clear()

    def touch(self) -> None:
        """Make this a transaction that writes, and so one whose commit syncs the log."""
        if not self.wrote:
            self.con.pragma("user_version", self.con.pragma("user_version"))
            self.wrote = True

    # Finding things.

    def row(self, scope: ScopeKey, session: str) -> Row:
        """The session's row, or ``NotFound``."""
        no = self.scope_no(scope)
        found = None if no is None else self.con.execute(ROW_OF, (no, session)).fetchone()
        if found is None:
            raise NotFound(session)
        return row_of(found, session)

    def info(self, scope: ScopeKey, no: int) -> SessionInfo:
        """The session's row as everybody sees it."""
        moment = self.moment
        values = {"boot": moment.boot, "tick": moment.tick, "no": no}
        found: Any = self.con.execute(INFO + "WHERE s.no = :no", values).fetchone()
        return info_of(found, scope, moment)

    def parts(self, row: Row) -> list[Part]:
        """Where the session's history lies, newest part first."""
        return parts_of(self.con, (row.no, row.base, row.head), row.origin_no, row.id)

    def is_running(self, row: Row) -> bool:
        """Whether a run is active on the session."""
        return self.moment.is_running(row.lease_state, row.lease_boot, row.lease_tick_us)

    def waiting(self, row: Row) -> list[str]:
        """Runs whose place in the queue has not lapsed, first come first."""
        found = self.con.execute(
            "SELECT run FROM queue WHERE session_no = ? AND boot = ? AND lapses_tick_us > ? ORDER BY ticket",
            (row.no, self.moment.boot, self.moment.tick),
        )
        return [run for (run,) in found]

    # Numbers of names.

    def scope_no(self, scope: ScopeKey) -> int | None:
        """The scope's number, or None: there is none yet."""
        no = self._names.scopes.get(scope) or self._scopes.get(scope)
        if no is None:
            no = self.con.execute(_SCOPE_NO, scope).get
            if no is not None:
                self._scopes[scope] = no
        return no

    def make_scope(self, scope: ScopeKey) -> int:
        no: int = self.con.execute("INSERT INTO scopes (tenant, user) VALUES (?, ?) RETURNING no", scope).get
        self._scopes[scope] = no
        return no

    def label_no(self, label: Label) -> int:
        """The label's number; it is made when there is none yet."""
        no = self._names.label_nos.get(label) or self._labels.get(label)
        if no is None:
            no = self.con.execute(_LABEL_NO, label).get
            if no is None:
                insert = "INSERT INTO labels (kind, format, origin) VALUES (?, ?, ?) RETURNING no"
                no = self.con.execute(insert, label).get
            self._labels[label] = no
        return no
