"""Readings of the SQLite store: each on a connection that sees one moment, and writes nothing."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import apsw

from segue.errors import NotFound
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import READ_MAX

from ._sqlite_rows import ENTRY_COLUMNS, INFO, SEQ_BITS, SEQ_MASK, Moment, damaged, damaged_row, entries_of, info_of
from ._sqlite_work import Names, Part, parts_of

# All SQL is put together from these constants; values are always bound.
_BETWEEN = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE pos > ? AND pos <= ? ORDER BY pos LIMIT ?"  # noqa: S608
_BETWEEN_REVERSE = _BETWEEN.replace("ORDER BY pos", "ORDER BY pos DESC")
_ONE = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE pos = ?"  # noqa: S608
_FIRST_POS = "SELECT pos FROM entries WHERE pos > ? AND pos <= ? LIMIT 1"
_OF_KINDS = "AND label IN (SELECT no FROM labels WHERE kind IN (SELECT value FROM json_each(?))) ORDER BY"
_BETWEEN_KINDS = _BETWEEN.replace("ORDER BY", _OF_KINDS)
_BETWEEN_KINDS_REVERSE = _BETWEEN_REVERSE.replace("ORDER BY", _OF_KINDS)

_HIT_COLUMNS = f"r.session_no, r.seq, {', '.join(f'e.{name}' for name in ENTRY_COLUMNS.split(', '))}"
_BY_SEQ = f"""
    SELECT {_HIT_COLUMNS} FROM refs r LEFT JOIN entries e ON e.pos = (r.session_no << 32) + r.seq
    WHERE r.session_no = ? AND r.ref = ? AND r.seq > ? AND r.seq <= ? AND r.created_us >= ?
    ORDER BY r.seq LIMIT ?
"""  # noqa: S608
_BY_SEQ_REVERSE = _BY_SEQ.replace("ORDER BY r.seq", "ORDER BY r.seq DESC")
_BY_TIME = f"""
    SELECT s.id, {_HIT_COLUMNS} FROM refs r INDEXED BY refs_scope
        CROSS JOIN sessions s ON s.no = r.session_no AND s.state < 3
        LEFT JOIN entries e ON e.pos = (r.session_no << 32) + r.seq
    WHERE r.scope_no = ? AND r.ref = ? AND r.seq > ? AND r.seq <= ? AND r.created_us >= ?
    ORDER BY r.created_us, s.id, r.seq LIMIT ?
"""  # noqa: S608
_BY_TIME_REVERSE = _BY_TIME.replace(
    "ORDER BY r.created_us, s.id, r.seq", "ORDER BY r.created_us DESC, s.id DESC, r.seq DESC"
)

_FIRST_US = -(1 << 63)


class Range(NamedTuple):
    """Which entries a reading wants: after < seq <= upto, at most limit, in which direction."""

    after: int
    upto: int | None
    reverse: bool
    limit: int


class View:
    """One reading under way: a connection within a read transaction, and the names it may use."""

    def __init__(self, con: apsw.Connection, names: Names, moment: Moment) -> None:
        self.con = con
        self.names = names
        self.moment = moment

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        found = self._info(scope, "WHERE s.scope_no = :scope AND s.id = :name AND s.state < 3", session)
        if found is None:
            raise NotFound(session)
        return found

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        return self._info(scope, "WHERE s.scope_no = :scope AND s.key = :name", key)

    def _info(self, scope: ScopeKey, where: str, name: str) -> SessionInfo | None:
        no = self.names.scope_no(self.con, scope)
        if no is None:
            return None
        moment = self.moment
        values = {"boot": moment.boot, "tick": moment.tick, "scope": no, "name": name}
        row = self.con.execute(INFO + where, values).fetchone()
        return None if row is None else info_of(row, scope, moment)

    def parts(self, scope: ScopeKey, session: str) -> list[Part]:
        """Where the session's history lies, newest part first."""
        scope_no = self.names.scope_no(self.con, scope)
        sql = "SELECT no, base, head, origin_no FROM sessions WHERE scope_no = ? AND id = ? AND state < 3"
        found: Any = scope_no and self.con.execute(sql, (scope_no, session)).fetchone()
        if not found:
            raise NotFound(session)
        no, base, head, origin_no = found
        if base is None or head is None:
            raise damaged_row(session, "a column has no value")
        return parts_of(self.con, (no, base, head), origin_no, session)

    # Entries by number.

    def read(self, scope: ScopeKey, session: str, range: Range, kinds: tuple[str, ...] | None) -> list[Entry]:
        parts = self.parts(scope, session)
        if range.upto is None:
            self._check_head(session, parts[0])
        slices = _slices(parts, range)
        rows: list[tuple[Any, ...]] = []
        try:
            for no, after, upto in slices:
                left = range.limit - len(rows)
                if left <= 0:
                    break
                rows += self._slice(session, no, Range(after, upto, range.reverse, left), kinds)
        except (UnicodeDecodeError, apsw.CorruptError):
            self._find_unreadable(session, slices)
            raise
        return entries_of(rows, self.names.labels_of(self.con, [row[2] for row in rows]), session)

    def _check_head(self, session: str, own: Part) -> None:
        """``Corrupt`` when an entry lies behind the head: a damaged head would hide it."""
        no, _after, head = own
        start = no << SEQ_BITS
        behind = self.con.execute(_FIRST_POS, (start + head, start + SEQ_MASK)).get
        if behind is not None:
            raise damaged(session, behind & SEQ_MASK, f"it lies behind the head {head}, which must be wrong")

    def _find_unreadable(self, session: str, slices: list[Part]) -> None:
        """``Corrupt`` for the first entry that cannot be read by itself."""
        for no, after, upto in slices:
            for seq in range(after + 1, upto + 1):
                try:
                    self.con.execute(_ONE, ((no << SEQ_BITS) + seq,)).fetchone()
                except (UnicodeDecodeError, apsw.CorruptError) as error:
                    raise damaged(session, seq, f"it cannot be read ({error})") from error

    def _slice(self, session: str, no: int, range: Range, kinds: tuple[str, ...] | None) -> list[tuple[Any, ...]]:
        """Rows of one part. ``Corrupt`` when one is missing."""
        start = no << SEQ_BITS
        first, last = start + range.after, start + (range.upto or 0)
        if kinds is not None:
            return self._slice_of_kinds(session, range, (first, last), kinds)
        sql = _BETWEEN_REVERSE if range.reverse else _BETWEEN
        rows: list[tuple[Any, ...]] = self.con.execute(sql, (first, last, range.limit)).fetchall()
        count, begin = min(last - first, range.limit), last if range.reverse else first + 1
        if len(rows) != count or rows[0][0] != begin or abs(rows[-1][0] - begin) != count - 1:
            self._report_hole(session, rows, range)
        return rows

    def _slice_of_kinds(
        self, session: str, range: Range, bounds: tuple[int, int], kinds: tuple[str, ...]
    ) -> list[tuple[Any, ...]]:
        first, last = bounds
        sql = _BETWEEN_KINDS_REVERSE if range.reverse else _BETWEEN_KINDS
        rows: list[tuple[Any, ...]] = self.con.execute(sql, (first, last, json.dumps(kinds), range.limit)).fetchall()
        # What the filter passed over must be there, too: else a missing one would look like one of another kind.
        if len(rows) == range.limit:
            first, last = (rows[-1][0] - 1, last) if range.reverse else (first, rows[-1][0])
        count = self.con.execute("SELECT count(*) FROM entries WHERE pos > ? AND pos <= ?", (first, last)).get
        if count != last - first:
            seen = self.con.execute("SELECT pos FROM entries WHERE pos > ? AND pos <= ? ORDER BY pos", (first, last))
            start = Range(first & SEQ_MASK, last & SEQ_MASK, reverse=False, limit=last - first)
            self._report_hole(session, seen.fetchall(), start)
        return rows

    def _report_hole(self, session: str, rows: list[tuple[Any, ...]], range: Range) -> None:
        seqs = iter([row[0] & SEQ_MASK for row in rows])
        expected = range.upto or 0 if range.reverse else range.after + 1
        for seq in seqs:
            if seq != expected:
                break
            expected += -1 if range.reverse else 1
        raise damaged(session, expected, "it is missing")

    # Entries by ref.

    def by_ref_of(self, scope: ScopeKey, ref: str, session: str, range: Range, since_us: int | None) -> list[Hit]:
        """Hits of one session's history, by seq."""
        parts = self.parts(scope, session)
        sql = _BY_SEQ_REVERSE if range.reverse else _BY_SEQ
        rows: list[tuple[Any, ...]] = []
        for no, after, upto in _slices(parts, range):
            left = range.limit - len(rows)
            if left > 0:
                bounds = (no, ref, after, upto, _FIRST_US if since_us is None else since_us, left)
                rows += self.con.execute(sql, bounds).fetchall()
        owners = {no: self._id(no) for no in {row[0] for row in rows}}
        return self._hits([(owners[row[0]], *row) for row in rows])

    def by_ref(self, scope: ScopeKey, ref: str, range: Range, since_us: int | None) -> list[Hit]:
        """Hits of all sessions of the scope, by time."""
        no = self.names.scope_no(self.con, scope)
        if no is None:
            return []
        sql = _BY_TIME_REVERSE if range.reverse else _BY_TIME
        upto = SEQ_MASK if range.upto is None else range.upto
        bounds = (no, ref, range.after, upto, _FIRST_US if since_us is None else since_us, range.limit)
        return self._hits(self.con.execute(sql, bounds).fetchall())

    def _id(self, no: int) -> str:
        found: str = self.con.execute("SELECT id FROM sessions WHERE no = ?", (no,)).get
        return found

    def _hits(self, rows: list[tuple[Any, ...]]) -> list[Hit]:
        for session, _no, seq, pos, *_rest in rows:
            if pos is None:
                raise damaged(session, seq, "it is missing, though a ref leads to it")
        labels = self.names.labels_of(self.con, [row[5] for row in rows])
        return [Hit(row[0], entries_of([row[3:]], labels, row[0])[0]) for row in rows]

    # Scopes.

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        rows: Any = self.con.execute(
            "SELECT tenant, user FROM scopes c WHERE (tenant, user) > (?, ?) "
            "AND EXISTS (SELECT 1 FROM sessions s WHERE s.scope_no = c.no AND s.shelf IS NOT NULL) "
            "ORDER BY tenant, user LIMIT ?",
            (*(after or ("", "")), limit),
        )
        return [ScopeKey(*row) for row in rows.fetchall()]


def _slices(parts: list[Part], range: Range) -> list[Part]:
    """What of the parts lies in the range, in the order of reading."""
    found = [
        (no, max(after, range.after), end if range.upto is None else min(end, range.upto)) for no, after, end in parts
    ]
    full = [part for part in found if part[1] < part[2]]
    return full if range.reverse else full[::-1]


def clip(limit: int) -> int:
    """A reading's limit: never above what the contract gives."""
    return max(0, min(limit, READ_MAX))
