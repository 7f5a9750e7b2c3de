"""
One transaction: rows are locked and read in one message, decided upon here, and written in as few as they fit in.

Locks are taken in the order of the key, so that no two of us wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from pymysql.connections import Connection

from segue.errors import IdConflict, NotFound
from segue.model import Draft, ScopeKey

from ._mysql_pool import Answers, run
from ._mysql_rows import COLUMNS, ENTRY_COLUMNS, LEAN, Row, Values, entry_values, pack

Place: TypeAlias = tuple[ScopeKey, str]
"""A session: its owner and its id."""

NOW_US = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""The server's clock when a statement begins."""

WAITING = f"(SELECT COUNT(*) FROM tickets t WHERE t.segment = s.segment AND t.lapses_us > {NOW_US} + %s)"  # noqa: S608
"""How many runs wait for a session; the value is the shift of the clock."""

VALUE_MAX_BYTES = 24
"""Most bytes that a number, or the frame of a text, takes in a message."""

MESSAGE_MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of a message to the server, unless one row alone has more."""

# All SQL is put together from constants; what a caller gives is always a value.

_SESSIONS = "FROM sessions s FORCE INDEX (PRIMARY)"
_LOCKED = "ORDER BY s.tenant, s.user_id, s.id FOR UPDATE"
_TICKET = "t.segment, t.run, t.place, t.lapses_us"
_WITH_TICKETS = "STRAIGHT_JOIN tickets t ON t.segment = s.segment"


class Part(NamedTuple):
    """Entries low < seq <= upto of one segment."""

    segment: int
    low: int
    upto: int


class Statement(NamedTuple):
    """Fixed text, and its values."""

    text: str
    values: Sequence[Any]

    @property
    def size(self) -> int:
        """Most bytes that it takes in a message."""
        return len(self.text) + size_of(self.values)


def size_of(values: Iterable[Any]) -> int:
    """Most bytes that values take in a message, where each byte of a text takes two."""
    return sum(2 * len(value) + VALUE_MAX_BYTES if isinstance(value, bytes) else VALUE_MAX_BYTES for value in values)


class Work:
    """
    What operations see and change, under locks.

    Attributes:
        now: The time, by the server's clock, once the locks were there.
        is_careful: Ids of entries are looked up before they are taken for new.
        wrote: Whether there is anything to commit.
    """

    def __init__(self, conn: Connection[Any], *, shift_us: int, is_careful: bool) -> None:
        self.conn = conn
        self.now = 0
        self.is_careful = is_careful
        self.wrote = False
        self._shift_us = shift_us
        self._is_whole = False
        self._rows: dict[Place, Row] = {}
        self._tickets: dict[int, dict[str, tuple[int, int]]] = {}  # segment → run → place, when it lapses
        self._queues: set[int] = set()  # segments whose tickets changed
        self._known: dict[int, dict[str, tuple[int, bytes]]] = {}  # segment → entry id → seq, digest
        self._seen: dict[int, set[str]] = {}  # segment → ids that were looked up
        self._parts: dict[int, list[Part]] = {}  # segment of a fork → what it shares, oldest first
        self._entries: list[Values] = []
        self._refs: list[Values] = []
        self._spans: list[Values] = []

    # Locking and reading.

    def lock(self, places: Iterable[Place], *, whole: bool, queues: bool) -> None:
        """
        Lock these sessions' rows, as far as there are such.

        Args:
            places: The sessions.
            whole: Read titles and the like too.
            queues: Read who waits for them, too; else that is asked for when it matters.
        """
        self._is_whole = whole
        columns = COLUMNS if whole else LEAN
        condition, values = _any_of(sorted({(scope, id) for scope, id in places}))
        tickets = f"SELECT {_TICKET} {_SESSIONS} {_WITH_TICKETS} WHERE {condition} ORDER BY t.segment, t.place"
        _, rows, ((self.now,),), *more = run(
            self.conn,
            [
                "BEGIN",
                f"SELECT {', '.join(columns)} {_SESSIONS} WHERE {condition} {_LOCKED}",
                f"SELECT {NOW_US}",
                *([tickets] if queues else []),
            ],
            (*values, *values) if queues else values,
        )
        self.now += self._shift_us
        for found in rows:
            row = Row(*found)
            self._rows[ScopeKey(row.tenant.decode(), row.user_id.decode()), row.id.decode()] = row
            if queues:
                self._tickets[row.segment] = {}
        for segment, name, *ticket in more[0] if queues else ():
            self._tickets[segment][name.decode()] = tuple(ticket)

    def complete(self, row: Row) -> None:
        """Read what was left out of a row."""
        if self._is_whole or row.is_new:
            return
        rest = COLUMNS[len(LEAN) :]
        found = self.rows(f"SELECT {', '.join(rest)} FROM sessions WHERE segment = %s", row.segment)  # noqa: S608
        for name, value in zip(rest, found[0], strict=True):
            setattr(row, name, value)

    def find(self, scope: ScopeKey, session: str) -> Row | None:
        """The row, a tombstone's too, or None."""
        return self._rows.get((scope, session))

    def row(self, scope: ScopeKey, session: str) -> Row:
        """The row of a living session, or ``NotFound``."""
        row = self._rows.get((scope, session))
        if row is None or row.erased_us is not None:
            raise NotFound(session)
        return row

    def rows(self, statement: str, *values: Any) -> tuple[tuple[Any, ...], ...]:
        """What a reading finds, within the transaction."""
        return run(self.conn, [statement], values)[0]

    def change(self, statement: str, *values: Any) -> int:
        """Change something at once; how many rows it were."""
        self.wrote = True
        answers = Answers(self.conn)
        answers.send([statement], values)
        return answers.counts[0]

    # What a history holds.

    def parts(self, row: Row) -> list[Part]:
        """What a session shares with those it was forked from, oldest first."""
        if not row.base:
            return []
        self._read_parts([row])
        return self._parts[row.segment]

    def _read_parts(self, rows: Iterable[Row]) -> None:
        wanted = [row.segment for row in rows if row.base and row.segment not in self._parts]
        if wanted:
            marks = ", ".join(["%s"] * len(wanted))
            found = self.rows(
                f"SELECT child, segment, low, upto FROM spans WHERE child IN ({marks}) ORDER BY child, low",  # noqa: S608
                *wanted,
            )
            self._parts |= {segment: [] for segment in wanted}
            for child, *part in found:
                self._parts[child].append(Part(*part))

    def look(self, asked: Iterable[tuple[Row, Sequence[Draft]]]) -> None:
        """Find out which entries are known to their histories already; inherited ones count."""
        wanted: list[tuple[Row, list[str]]] = []
        for row, entries in asked:
            seen = self._seen.setdefault(row.segment, set())
            ids = [id for id in dict.fromkeys(draft.id for draft in entries) if id not in seen]
            seen.update(ids)
            if ids:
                wanted.append((row, ids))
        self._read_parts(row for row, _ in wanted)
        statements = []
        for row, ids in wanted:
            own = [] if row.is_new else [Part(row.segment, row.base, row.head)]
            statements += [_known_in(row.segment, part, ids) for part in (*self._parts.get(row.segment, ()), *own)]
        if statements:
            found = self.rows(
                " UNION ALL ".join(statement.text for statement in statements),
                *(value for statement in statements for value in statement.values),
            )
            for segment, seq, id, digest in found:
                self._known.setdefault(segment, {}).setdefault(id.decode(), (seq, digest))

    def sift(self, row: Row, entries: Sequence[Draft]) -> tuple[list[Draft], tuple[int, ...]]:
        """
        The entries that are new to a history, as far as that was looked up, and the seq of every one.

        Raises:
            IdConflict: A known id comes with other content.
        """
        known = self._known.get(row.segment, {})
        mine: dict[str, tuple[int, bytes]] = {}
        new: list[Draft] = []
        seqs: list[int] = []
        for draft in entries:
            seq, digest = known.get(draft.id) or mine.get(draft.id) or (0, b"")
            if not seq:
                new.append(draft)
                seq = row.head + len(new)
                mine[draft.id] = (seq, draft.digest)
            elif digest != draft.digest:
                raise IdConflict(draft.id, seq)
            seqs.append(seq)
        return new, tuple(seqs)

    def sift_new(self, row: Row, entries: Sequence[Draft], shared: Sequence[Part]) -> list[Draft]:
        """The same for a session that is still to be made, and shares these parts of a history."""
        self._parts[row.segment] = list(shared)
        if shared:
            self.look([(row, entries)])
        return self.sift(row, entries)[0]

    # The queue of a session.

    def waiting(self, row: Row) -> list[str]:
        """Runs whose place in the queue has not lapsed, first come first."""
        return [run for run, (_, lapses) in self._queue(row).items() if lapses > self.now]

    def _queue(self, row: Row) -> dict[str, tuple[int, int]]:
        if row.segment not in self._tickets:
            found = self.rows(
                "SELECT run, place, lapses_us FROM tickets WHERE segment = %s ORDER BY place", row.segment
            )
            self._tickets[row.segment] = {name.decode(): (place, lapses) for name, place, lapses in found}
        return self._tickets[row.segment]

    def enqueue(self, row: Row, run: str, lapses_us: int) -> None:
        """Keep a run's place in the queue, or give it the last; places that lapsed go."""
        tickets = self._queue(row)
        last = max((place for place, _ in tickets.values()), default=0)
        living = {name: tickets[name] for name in self.waiting(row)}
        place = living[run][0] if run in living else last + 1
        self._tickets[row.segment] = living | {run: (place, lapses_us)}
        self._queues.add(row.segment)

    def dequeue(self, row: Row, run: str) -> None:
        """Give up a run's place."""
        if self._queue(row).pop(run, None) is not None:
            self._queues.add(row.segment)

    # What is to be written.

    def make(self, place: Place, row: Row, shared: Sequence[Part]) -> None:
        """A new session, which shares these parts of a history."""
        self._rows[place] = row
        self._tickets[row.segment] = {}
        self._spans += [(row.segment, *part) for part in shared]

    def add(self, row: Row, new: Sequence[Draft], run: str | None) -> None:
        """Entries, whose ids are taken for new, behind the head."""
        known, packed = self._known.setdefault(row.segment, {}), pack(run)
        for seq, draft in enumerate(new, row.head + 1):
            known[draft.id] = (seq, draft.digest)
            self._entries.append(entry_values(row.segment, seq, draft, packed, self.now))
            self._refs += [
                (row.segment, ref.encode(), seq, self.now, row.tenant, row.user_id, row.id)
                for ref in dict.fromkeys(draft.refs)
            ]

    def flush(self, most_bytes: int) -> list[list[Statement]]:
        """What is to be written, as messages of at most so many bytes (unless one row has more)."""
        most = min(most_bytes, MESSAGE_MAX_BYTES)
        messages: list[list[Statement]] = []
        room = 0
        for statement in self._statements(most // 2):
            if statement.size > room or not messages:
                messages.append([])
                room = most
            messages[-1].append(statement)
            room -= statement.size
        self.wrote = self.wrote or bool(messages)
        return messages

    def _statements(self, most: int) -> Iterator[Statement]:
        made = [tuple(getattr(row, name) for name in COLUMNS) for row in self._in_order() if row.is_new]
        yield from _inserts("sessions", COLUMNS, made, most)
        yield from _inserts("spans", ("child", "segment", "low", "upto"), self._spans, most)
        yield from _inserts("entries", ("segment", *ENTRY_COLUMNS), self._entries, most)
        yield from _inserts(
            "refs", ("segment", "ref", "seq", "created_us", "tenant", "user_id", "session"), self._refs, most
        )
        for row in self._in_order():
            if row.changed and not row.is_new:
                names = sorted(row.changed)
                changes = ", ".join(f"{name} = %s" for name in names)
                values = (*(getattr(row, name) for name in names), row.tenant, row.user_id, row.id)
                yield Statement(
                    f"UPDATE sessions SET {changes} WHERE tenant = %s AND user_id = %s AND id = %s",  # noqa: S608
                    values,
                )
        for segment in sorted(self._queues):
            yield Statement("DELETE FROM tickets WHERE segment = %s", (segment,))
            tickets = [(segment, run.encode(), *ticket) for run, ticket in self._tickets[segment].items()]
            yield from _inserts("tickets", ("segment", "run", "place", "lapses_us"), tickets, most)

    def _in_order(self) -> list[Row]:
        return sorted(self._rows.values(), key=lambda row: (row.tenant, row.user_id, row.id))


def _any_of(places: Sequence[Place]) -> tuple[str, list[bytes]]:
    """A condition for the rows of these sessions, as ranges of the primary key."""
    conditions: list[str] = []
    values: list[bytes] = []
    for scope, mine in groupby(places, key=lambda place: place[0]):
        ids = [id.encode() for _, id in mine]
        conditions.append(f"s.tenant = %s AND s.user_id = %s AND s.id IN ({', '.join(['%s'] * len(ids))})")
        values += (scope.tenant.encode(), scope.user.encode(), *ids)
    return "(" + " OR ".join(conditions) + ")", values


def _known_in(segment: int, part: Part, ids: Sequence[str]) -> Statement:
    marks = ", ".join(["%s"] * len(ids))
    return Statement(
        "(SELECT %s, e.seq, e.id, e.digest FROM entries e FORCE INDEX (entries_id) "  # noqa: S608
        f"WHERE e.segment = %s AND e.id IN ({marks}) AND e.seq > %s AND e.seq <= %s)",
        (segment, part.segment, *(id.encode() for id in ids), part.low, part.upto),
    )


def _inserts(table: str, columns: Sequence[str], rows: Sequence[Values], most: int) -> Iterator[Statement]:
    """Rows in statements of at most so many bytes, unless one row has more."""
    head = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "  # noqa: S608
    mark = f"({', '.join(['%s'] * len(columns))})"
    chunk: list[Values] = []
    size = 0
    for row in rows:
        mine = size_of(row) + len(mark)
        if chunk and size + mine > most:
            yield _insert(head, mark, chunk)
            chunk, size = [], 0
        chunk.append(row)
        size += mine
    if chunk:
        yield _insert(head, mark, chunk)


def _insert(head: str, mark: str, rows: Sequence[Values]) -> Statement:
    return Statement(head + ", ".join([mark] * len(rows)), [value for row in rows for value in row])
