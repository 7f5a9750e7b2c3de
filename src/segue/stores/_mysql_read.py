"""
The readings: one session's log, and entries by ref.

A log is read in one statement where the session is no fork, so that it is seen as of one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymysql.connections import Connection

from segue.errors import NotFound
from segue.model import Entry, Hit, ScopeKey

from ._mysql_pool import run
from ._mysql_rows import ENTRY_COLUMNS, entries_of, entry_of
from ._mysql_work import Part
from ._spans import Span, lost

# All SQL is put together from constants; what a caller gives is always a value.

_ENTRY = ", ".join(f"e.{name}" for name in ENTRY_COLUMNS)
_OF_SESSION = "s.tenant = %s AND s.user_id = %s AND s.id = %s AND s.erased_us IS NULL"
_HEADER = f"SELECT s.segment, s.base, s.head FROM sessions s WHERE {_OF_SESSION}"  # noqa: S608
_PARTS = f"""
    SELECT p.segment, p.low, p.upto, o.id FROM sessions s JOIN spans p ON p.child = s.segment
    JOIN sessions o ON o.segment = p.segment WHERE {_OF_SESSION} ORDER BY p.low
"""  # noqa: S608
_OWN = f"""
    SELECT {_ENTRY} FROM sessions s STRAIGHT_JOIN entries e FORCE INDEX (PRIMARY) ON e.segment = s.segment
    WHERE {_OF_SESSION} AND e.seq > %s AND e.seq <= %s
"""  # noqa: S608
_PART = f"SELECT {_ENTRY} FROM entries e FORCE INDEX (PRIMARY) WHERE e.segment = %s AND e.seq > %s AND e.seq <= %s"  # noqa: S608
_REFS = f"""
    SELECT r.seq, {_ENTRY} FROM refs r FORCE INDEX (PRIMARY)
    LEFT JOIN entries e ON e.segment = r.segment AND e.seq = r.seq
    WHERE r.segment = %s AND r.ref = %s AND r.seq > %s AND r.seq <= %s AND r.created_us >= %s
"""  # noqa: S608
_REFS_IN = f"""
    SELECT r.session, r.seq, {_ENTRY} FROM refs r FORCE INDEX (refs_time)
    STRAIGHT_JOIN sessions s ON s.segment = r.segment
    LEFT JOIN entries e ON e.segment = r.segment AND e.seq = r.seq
    WHERE r.tenant = %s AND r.user_id = %s AND r.ref = %s AND r.created_us >= %s
        AND r.seq > %s AND r.seq <= %s AND s.erased_us IS NULL
"""  # noqa: S608
_BY_TIME = " ORDER BY r.created_us, r.session, r.seq LIMIT %s"
_BY_TIME_REVERSE = " ORDER BY r.created_us DESC, r.session DESC, r.seq DESC LIMIT %s"
_EVER = -(1 << 63)


def _by(column: str, span: Span) -> str:
    return f" ORDER BY {column}{' DESC' if span.reverse else ''} LIMIT %s"


def _of_kinds(kinds: tuple[str, ...] | None) -> tuple[str, list[bytes]]:
    if kinds is None:
        return "", []
    return f" AND e.kind IN ({', '.join(['%s'] * len(kinds)) or 'NULL'})", [kind.encode() for kind in kinds]


def read(conn: Connection[Any], scope: ScopeKey, span: Span, kinds: tuple[str, ...] | None) -> list[Entry]:
    """See ``segue.store.Store.read``."""
    names = _names(scope, span.session)
    condition, values = _of_kinds(kinds)
    rows: Sequence[tuple[Any, ...]]
    header, rows = run(
        conn,
        [_HEADER, _OWN + condition + _by("e.seq", span)],
        (*names, *names, span.after, span.upto, *values, max(span.limit, 0)),
    )
    if not header:
        raise NotFound(span.session)
    ((_, base, head),) = header
    if base > span.after:
        rows = _with_inherited(conn, names, span, condition, values)
    # What was appended between the two statements comes too early.
    entries = entries_of([row for row in rows if row[0] <= head], span.session)
    if kinds is None and (missing := span.first_missing(entries, head)):
        raise lost(span.session, missing)
    return entries


def _with_inherited(
    conn: Connection[Any], names: Sequence[bytes], span: Span, condition: str, values: Sequence[bytes]
) -> list[tuple[Any, ...]]:
    """Rows of all parts of a fork's history."""
    parts = [Part(*part[:3]) for part in _parts_of(conn, names, span.session)]
    rows: list[tuple[Any, ...]] = []
    for part in reversed(parts) if span.reverse else parts:
        low, upto, still = max(part.low, span.after), min(part.upto, span.upto), span.limit - len(rows)
        if low < upto and still > 0:
            text = _PART + condition + _by("e.seq", span)
            rows += run(conn, [text], (part.segment, low, upto, *values, still))[0]
    return rows


def _parts_of(conn: Connection[Any], names: Sequence[bytes], session: str) -> list[tuple[int, int, int, bytes]]:
    """Of which segments a session's log is made, oldest first, each with the id of the session that owns it."""
    header, shared = run(conn, [_HEADER, _PARTS], (*names, *names))
    if not header:
        raise NotFound(session)
    segment, base, head = header[0]
    return [*shared, (segment, base, head, session.encode())]


def by_ref_of(conn: Connection[Any], scope: ScopeKey, ref: str, span: Span, since_us: int | None) -> list[Hit]:
    """Hits of one session's history, by seq."""
    parts = _parts_of(conn, _names(scope, span.session), span.session)
    hits: list[Hit] = []
    for segment, low, upto, owner in reversed(parts) if span.reverse else parts:
        first, last, still = max(low, span.after), min(upto, span.upto), span.limit - len(hits)
        if first < last and still > 0:
            bounds = (segment, ref.encode(), first, last, _EVER if since_us is None else since_us, still)
            hits += [_hit(owner, *row) for row in run(conn, [_REFS + _by("r.seq", span)], bounds)[0]]
    return hits


def by_ref_in(conn: Connection[Any], scope: ScopeKey, ref: str, span: Span, since_us: int | None) -> list[Hit]:
    """Hits of all living sessions of a scope, by time."""
    bounds = (_EVER if since_us is None else since_us, span.after, span.upto, max(span.limit, 0))
    text = _REFS_IN + (_BY_TIME_REVERSE if span.reverse else _BY_TIME)
    return [_hit(*row) for row in run(conn, [text], (*map(str.encode, scope), ref.encode(), *bounds))[0]]


def _hit(owner: bytes, seq: int, *entry: Any) -> Hit:
    name = owner.decode()
    if entry[0] is None:
        raise lost(name, seq)
    return Hit(name, entry_of(entry, name))


def _names(scope: ScopeKey, session: str) -> tuple[bytes, bytes, bytes]:
    return scope.tenant.encode(), scope.user.encode(), session.encode()
