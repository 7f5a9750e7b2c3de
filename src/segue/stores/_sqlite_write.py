"""Operations that make sessions, change them and add entries, within one transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from segue.errors import (
    Archived,
    Busy,
    Corrupt,
    Exists,
    HeadMoved,
    IdConflict,
    Invalid,
    LeaseLost,
    NotFound,
    VersionMoved,
)
from segue.model import Draft, Parent, ScopeKey, SessionInfo, Usage
from segue.store import Append, Appended, Create, Fork, Update

from ._sqlite_rows import (
    ACTIVE,
    ARCHIVED,
    COMPLETED,
    ENTRY_INSERT,
    INFO,
    ROW_OF,
    RUNNING,
    SEQ_BITS,
    STATES,
    Label,
    Moment,
    Row,
    due_us,
    entry_values,
    info_of,
    metadata_text,
    shelf_of,
    squeeze,
    tags_text,
    usage_text,
)

CACHE_MAX = 10_000
"""Most scopes, and most labels, that a handle remembers."""

Part = tuple[int, int, int]
"""Entries of a history: those of session number n with after < seq <= upto."""

ANCESTORS = """
    WITH RECURSIVE up (no, base, origin_no, upto) AS (
        SELECT no, base, origin_no, ?2 FROM sessions WHERE no = ?1
        UNION ALL
        SELECT s.no, s.base, s.origin_no, up.base FROM sessions s JOIN up ON s.no = up.origin_no
    )
    SELECT no, base, upto FROM up
"""

_SESSION_INSERT = """
    INSERT INTO sessions (scope_no, id, key, state, shelf, is_pinned, is_listed, version, head, base, origin_no, fence,
        parent_id, parent_seq, parent_link, idle_us, expires_us, due_us, created_us, active_us)
    VALUES (?, ?, ?, 0, ?, ?, ?, 1, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Every column that an update may touch; indexes of what did not change are cheap beside the commit.
_SESSION_UPDATE = """
    UPDATE sessions SET key = ?, state = ?, shelf = ?, is_pinned = ?, is_listed = ?, version = ?,
        idle_us = ?, expires_us = ?, due_us = ?, archived_us = iif(?, archived_us, ?)
    WHERE no = ?
"""


class Names:
    """
    Numbers of scopes and labels that are committed, and so hold for ever, in every process.

    The writer keeps what it has just made apart until its transaction is committed: a number that was
    rolled back may go to somebody else.
    """

    def __init__(self) -> None:
        self.scopes: dict[ScopeKey, int] = {}
        self.labels: dict[int, Label] = {}
        self.numbers: dict[Label, int] = {}

    def add_label(self, no: int, label: Label) -> None:
        if len(self.labels) >= CACHE_MAX:
            self.labels.clear()
            self.numbers.clear()
        self.labels[no] = label
        self.numbers[label] = no

    def add_scope(self, scope: ScopeKey, no: int) -> None:
        if len(self.scopes) >= CACHE_MAX:
            self.scopes.clear()
        self.scopes[scope] = no

    def scope_no(self, con: apsw.Connection, scope: ScopeKey) -> int | None:
        """A committed scope's number, read from a connection that sees only what is committed; None: there is none."""
        no = self.scopes.get(scope)
        if no is None:
            no = con.execute("SELECT no FROM scopes WHERE tenant = ? AND user = ?", scope).get
            if no is not None:
                self.add_scope(scope, no)
        return no

    def read_labels(self, con: apsw.Connection) -> None:
        """Learn the labels that are new since."""
        rows: list[tuple[Any, ...]] = con.execute("SELECT no, kind, format, origin FROM labels").fetchall()
        for no, kind, format, origin in rows:
            self.add_label(no, (kind, format, origin))


class Work:
    """One transaction under way: what the operations read and write with."""

    def __init__(self, con: apsw.Connection, names: Names) -> None:
        self.con = con
        self.moment = Moment(0, "", 0)
        self.wrote = False
        self.hides = False  # content was erased: the log must be emptied, too
        self._names = names
        self._scopes: dict[ScopeKey, int] = {}
        self._labels: dict[Label, int] = {}

    def begin(self, moment: Moment) -> None:
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
        return Row._make(found)

    def scope_no(self, scope: ScopeKey) -> int | None:
        no = self._names.scopes.get(scope) or self._scopes.get(scope)
        if no is None:
            no = self.con.execute("SELECT no FROM scopes WHERE tenant = ? AND user = ?", scope).get
            if no is not None:
                self._scopes[scope] = no
        return no

    def info(self, scope: ScopeKey, no: int) -> SessionInfo:
        moment = self.moment
        values = {"boot": moment.boot, "tick": moment.tick, "no": no}
        found: Any = self.con.execute(INFO + "WHERE s.no = :no", values).fetchone()
        return info_of(found, scope, moment)

    def parts(self, row: Row) -> list[Part]:
        """Where the session's history lies, newest part first."""
        if row.origin_no is None:
            return [(row.no, row.base, row.head)]
        found: list[Any] = self.con.execute(ANCESTORS, (row.no, row.head)).fetchall()
        return found

    def is_running(self, row: Row) -> bool:
        return self.moment.is_running(row.lease_state, row.lease_boot, row.lease_tick_us)

    def waiting(self, row: Row) -> list[str]:
        """Runs whose place in the queue has not lapsed, first come first."""
        found = self.con.execute(
            "SELECT run FROM queue WHERE session_no = ? AND boot = ? AND lapses_tick_us > ? ORDER BY ticket",
            (row.no, self.moment.boot, self.moment.tick),
        )
        return [run for (run,) in found]

    # Making and changing sessions.

    def create(self, op: Create) -> SessionInfo:
        found = self._again(op)
        if found is not None:
            return found
        return self._make(op, 0, None)

    def fork(self, op: Fork) -> SessionInfo:
        create = op.create
        parent = create.parent or Parent(op.source, op.at)
        found = self._again(create, parent)
        if found is not None:
            return found
        source = self.row(create.scope, op.source)
        if not 0 <= op.at <= source.head:
            raise Invalid(f"cannot fork at {op.at}: the session ends at {source.head}", where="at")
        return self._make(create, op.at, self._owner(source, op.at), parent)

    def update(self, op: Update) -> SessionInfo:
        row = self.row(op.scope, op.session)
        if op.expect is not None and op.expect != row.version:
            raise VersionMoved(op.expect, row.version)
        ends = due_us(row)
        if op.if_due_us is not None and (ends is None or ends > op.if_due_us):
            raise VersionMoved(op.expect or row.version, row.version)
        changes = op.changes
        state = STATES.index(changes["state"]) if "state" in changes else row.state
        if state == ARCHIVED != row.state and self.is_running(row):
            raise Busy(row.lease_run or "", message=f"run {row.lease_run!r} is active; end it, then archive")
        scope_no = self.scope_no(op.scope) or 0
        key = changes.get("key", row.key)
        if key is not None and key != row.key:
            self._check_key(scope_no, key)
        self._change(row, op, key, state)
        self._change_profile(row.no, scope_no, op)
        return self.info(op.scope, row.no)

    def _change(self, row: Row, op: Update, key: str | None, state: int) -> None:
        changes = op.changes
        after = row._replace(
            state=state,
            is_pinned=int(changes.get("is_pinned", row.is_pinned)),
            is_listed=int(changes.get("is_listed", row.is_listed)),
            idle_us=changes.get("idle_us", row.idle_us),
            expires_us=changes.get("expires_us", row.expires_us),
        )
        archived_us = self.moment.now if state == ARCHIVED else None
        self.wrote = True
        self.con.execute(
            _SESSION_UPDATE,
            (
                key, state, shelf_of(state, after.is_listed), after.is_pinned, after.is_listed, row.version + 1,
                after.idle_us, after.expires_us, due_us(after), state == row.state, archived_us, row.no,
            ),
        )  # fmt: skip

    def _change_profile(self, no: int, scope_no: int, op: Update) -> None:
        changes = op.changes
        if "title" in changes:
            self.con.execute("UPDATE profiles SET title = ? WHERE session_no = ?", (changes["title"], no))
        if "config" in changes:
            self.con.execute("UPDATE profiles SET config = ? WHERE session_no = ?", (changes["config"], no))
        if "metadata" in changes:
            text = metadata_text(changes["metadata"])
            self.con.execute("UPDATE profiles SET metadata = ? WHERE session_no = ?", (text, no))
        if "tags" in changes:
            text = tags_text(changes["tags"])
            self.con.execute("UPDATE profiles SET tags = ? WHERE session_no = ?", (text, no))
            self.con.execute("DELETE FROM tags WHERE session_no = ?", (no,))
            self._add_tags(no, scope_no, changes["tags"])

    def _add_tags(self, no: int, scope_no: int, tags: Sequence[str]) -> None:
        self.con.executemany("INSERT INTO tags VALUES (?, ?, ?)", ((scope_no, tag, no) for tag in sorted(set(tags))))

    def _again(self, op: Create, parent: Parent | None = None) -> SessionInfo | None:
        """The session that this very operation made before, None when the id is free, else ``Exists``."""
        scope_no = self.scope_no(op.scope)
        sql = "SELECT no, state, key, parent_id, parent_seq, parent_link FROM sessions WHERE scope_no = ? AND id = ?"
        found: Any = scope_no and self.con.execute(sql, (scope_no, op.id)).fetchone()
        if not found:
            return None
        no, state, key, *link = found
        parent = parent or op.parent
        if state < 3 and key == op.key and tuple(link) == _link(parent):
            return self.info(op.scope, no)
        raise Exists(f"the id {op.id!r} is taken; choose another", session=op.id if state < 3 else None)

    def _check_key(self, scope_no: int | None, key: str) -> None:
        taken = self.con.execute("SELECT id FROM sessions WHERE scope_no = ? AND key = ?", (scope_no, key)).get
        if taken is not None:
            raise Exists(f"the key {key!r} belongs to session {taken!r}; open that", session=taken)

    def _make(self, op: Create, base: int, origin_no: int | None, parent: Parent | None = None) -> SessionInfo:
        scope_no = self.scope_no(op.scope)
        if op.key is not None:
            self._check_key(scope_no, op.key)
        now = self.moment.now
        self.wrote = True
        if scope_no is None:
            scope_no = self.con.execute("INSERT INTO scopes (tenant, user) VALUES (?, ?) RETURNING no", op.scope).get
            self._scopes[op.scope] = scope_no
        ends = None if op.is_pinned else _earlier(op.idle_us and now + op.idle_us, op.expires_us)
        link = _link(parent or op.parent)
        self.con.execute(
            _SESSION_INSERT,
            (
                scope_no, op.id, op.key, shelf_of(ACTIVE, op.is_listed), int(op.is_pinned), int(op.is_listed),
                base, base, origin_no, *link, op.idle_us, op.expires_us, ends, now, now,
            ),
        )  # fmt: skip
        no = self.con.last_insert_rowid()
        self.con.execute(
            "INSERT INTO profiles VALUES (?, ?, ?, ?, ?, ?)",
            (no, op.format, op.title, tags_text(op.tags), metadata_text(op.metadata), op.config),
        )
        if op.tags:
            self._add_tags(no, scope_no, op.tags)
        if op.entries:
            row = self.row(op.scope, op.id)
            new, _seqs = self.sift(row, op.entries)
            self.add(row, scope_no, new, None)
        return self.info(op.scope, no)

    def _owner(self, row: Row, at: int) -> int | None:
        """The number of the session whose own entry ``at`` is; None for 0."""
        return next((no for no, after, _upto in self.parts(row) if at > after), None) if at else None

    # Appending.

    def append(self, op: Append) -> Appended:
        row = self.row(op.scope, op.session)
        scope_no = self.scope_no(op.scope) or 0
        entries = op.entries
        # Nearly always everything is new and may be added: then the unique index is the only look-up of ids.
        if (
            row.origin_no is None
            and entries
            and self._refusal(row, op, entries) is None
            and self._try_add(row, scope_no, entries, op.run)
        ):
            head = row.head + len(entries)
            return Appended(head, tuple(range(row.head + 1, head + 1)), len(entries))
        new, seqs = self.sift(row, entries)
        if not new:
            return Appended(row.head, seqs, 0)
        refusal = self._refusal(row, op, new)
        if refusal is not None:
            raise refusal
        return Appended(self.add(row, scope_no, new, op.run), seqs, len(new))

    def _refusal(self, row: Row, op: Append, new: Sequence[Draft]) -> Exception | None:
        if row.state == ARCHIVED:
            return Archived(row.id)
        if op.fence is not None:
            if (row.fence, row.lease_run, row.lease_state) != (op.fence, op.run, RUNNING):
                return LeaseLost(op.run or "", op.fence, row.fence)
        elif self.is_running(row) and any(draft.kind == "message" for draft in new):
            return Busy(row.lease_run or "", waiting=len(self.waiting(row)))
        if op.expect is not None and op.expect != row.head:
            return HeadMoved(op.expect, row.head)
        return None

    def sift(self, row: Row, entries: Sequence[Draft]) -> tuple[list[Draft], tuple[int, ...]]:
        """
        The entries that are new, and the seq of every one.

        Raises:
            IdConflict: A known id comes with other content.
        """
        known = dict(self._known(row, entries))
        new: list[Draft] = []
        seqs: list[int] = []
        for draft in entries:
            seq, digest = known.get(draft.id, (0, b""))
            if not seq:
                new.append(draft)
                seq = row.head + len(new)
                known[draft.id] = (seq, draft.digest)
            elif digest != draft.digest:
                raise IdConflict(draft.id, seq)
            seqs.append(seq)
        return new, tuple(seqs)

    def _known(self, row: Row, entries: Sequence[Draft]) -> Iterator[tuple[str, tuple[int, bytes]]]:
        """Of the ids, those that the history has, with seq and digest."""
        for no, _after, upto in self.parts(row):
            end = (no << SEQ_BITS) + upto
            for draft in entries:
                found = self.con.execute(
                    "SELECT pos, digest FROM entries WHERE session_no = ? AND id = ?", (no, squeeze(draft.id))
                ).fetchone()
                if found is not None and found[0] <= end:
                    yield draft.id, (found[0] - (no << SEQ_BITS), found[1])

    def add(self, row: Row, scope_no: int, new: Sequence[Draft], run: str | None) -> int:
        """Write entries behind the head and move it. Their ids are known to be new. The new head."""
        if not self._try_add(row, scope_no, new, run):
            raise Corrupt(
                f"session {row.id!r}: the index of entry ids contradicts itself; run segue verify to see all damage",
                session=row.id,
            )
        return row.head + len(new)

    def _try_add(self, row: Row, scope_no: int, new: Sequence[Draft], run: str | None) -> bool:
        """The same; False, and nothing is written, when an id was known after all."""
        con = self.con
        first = (row.no << SEQ_BITS) + row.head + 1
        values = self._values(new, first, run)
        written = con.total_changes()
        self.wrote = True
        try:
            con.executemany(ENTRY_INSERT, values)
        except apsw.ConstraintError as error:
            raise Corrupt(
                f"session {row.id!r} ends at {row.head}, and yet has an entry behind that; "
                "run segue verify to see all damage",
                session=row.id,
                seq=row.head + 1,
            ) from error
        if con.total_changes() - written != len(new):
            con.execute("DELETE FROM entries WHERE pos BETWEEN ? AND ?", (first, first + len(new) - 1))
            return False
        now = self.moment.now
        refs = [
            (row.no, ref, seq, scope_no, now)
            for seq, draft in enumerate(new, row.head + 1)
            for ref in dict.fromkeys(draft.refs)
        ]
        if refs:
            con.executemany("INSERT INTO refs VALUES (?, ?, ?, ?, ?)", refs)
        self._advance(row, new)
        return True

    def _values(self, new: Sequence[Draft], first: int, run: str | None) -> list[tuple[Any, ...]]:
        now = self.moment.now
        packed_run = None if run is None else squeeze(run)
        numbers = self._names.numbers
        return [
            entry_values(
                draft, pos=pos, label=numbers.get(draft[:3]) or self._label(draft[:3]), created_us=now, run=packed_run
            )
            for pos, draft in enumerate(new, first)
        ]

    def _label(self, label: Label) -> int:
        no = self._labels.get(label)
        if no is None:
            no = self.con.execute("SELECT no FROM labels WHERE kind = ? AND format = ? AND origin = ?", label).get
        if no is None:
            insert = "INSERT INTO labels (kind, format, origin) VALUES (?, ?, ?) RETURNING no"
            no = self.con.execute(insert, label).get
        self._labels[label] = no
        return no

    def _advance(self, row: Row, new: Sequence[Draft]) -> None:
        usage = row.usage
        for draft in new:
            if draft.usage is not None:
                usage = _add_usage(usage, draft.usage)
        self.con.execute(
            "UPDATE sessions SET head = ?, active_us = ?, usage = ? WHERE no = ?",
            (row.head + len(new), self.moment.now, usage, row.no),
        )
        if row.idle_us is not None:
            ends = due_us(row._replace(active_us=self.moment.now))
            self.con.execute("UPDATE sessions SET due_us = ? WHERE no = ?", (ends, row.no))
        if row.state == COMPLETED and any(draft.kind == "message" for draft in new):
            self.wake(row)

    def wake(self, row: Row) -> None:
        """A completed session that goes on is active again."""
        if row.state == COMPLETED:
            self.con.execute("UPDATE sessions SET state = 0, version = ? WHERE no = ?", (row.version + 1, row.no))


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((end for end in (one, other) if end is not None), default=None)


def _add_usage(total: str | None, usage: Usage) -> str:
    before = (0,) * len(usage) if total is None else map(int, total.split(","))
    return usage_text([one + more for one, more in zip(before, usage, strict=True)])


def _link(parent: Parent | None) -> tuple[str | None, int | None, str | None]:
    return (None, None, None) if parent is None else (parent.session, parent.seq, parent.link)
