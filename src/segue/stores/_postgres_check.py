"""What ``check`` looks at: the server's settings (doctor), and every session and entry (verify)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from segue.model import ScopeKey
from segue.store import Report

from ._postgres_errors import translate
from ._postgres_pool import Connection, Pool
from ._postgres_schema import Schema, steps

PAGE = 200
"""Sessions looked at in one query."""

LISTED_MAX = 20
"""Most damaged entries of one session that are named one by one."""

_SETTINGS = {
    "fsync": ("on", "a power loss can destroy the database; set fsync = on"),
    "full_page_writes": ("on", "a power loss can tear pages; set full_page_writes = on"),
    "autovacuum": ("on", "tables grow without end and erased content stays on disk; set autovacuum = on"),
}


def settings(conn: Connection, schema: Schema, pool: Pool) -> list[Report]:
    """What the server promises, by its settings."""
    names = (*_SETTINGS, "synchronous_commit", "synchronous_standby_names", "data_checksums", "max_connections")
    rows = conn.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(names),)).fetchall()
    found: dict[str, str] = dict(rows)
    reports = [_version(conn, schema)]
    for name, (wanted, why) in _SETTINGS.items():
        is_good = found[name] == wanted
        reports.append(Report("ok" if is_good else "warn", f"{name} = {found[name]}" + ("" if is_good else f": {why}")))
    reports.append(_synchronous(found))
    reports += _server(conn, pool, found)
    reports += [
        Report("warn", f"migration {step.version} ({step.name}) was another when it was applied; reinstall segue")
        for step in schema.altered(conn)
    ]
    return reports


def _version(conn: Connection, schema: Schema) -> Report:
    major = conn.info.server_version // 10_000
    return Report(
        "ok", f"PostgreSQL {major} at {schema.where}, migration {schema.version(conn)} of {steps()[-1].version}"
    )


def _synchronous(found: dict[str, str]) -> Report:
    value = found["synchronous_commit"]
    if value == "off":
        return Report(
            "warn", "synchronous_commit = off: what was acknowledged can be lost in a crash; set it on for this user"
        )
    if found["synchronous_standby_names"] and value == "local":
        return Report("warn", "synchronous_commit = local: a failover can lose what was acknowledged; set it on")
    return Report("ok", f"synchronous_commit = {value}")


def _server(conn: Connection, pool: Pool, found: dict[str, str]) -> Iterator[Report]:
    row = conn.execute(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), "
        "current_setting('lock_timeout'), current_setting('statement_timeout')"
    ).fetchone()
    is_replica, read_only, lock, statement = row or (False, "off", "", "")
    if is_replica or read_only == "on":
        yield Report("warn", "this server takes no writes (a replica, or default_transaction_read_only is on)")
    checksums = found["data_checksums"]
    yield Report(
        "ok", f"data_checksums = {checksums}" + (" (verify finds damage all the same)" if checksums != "on" else "")
    )
    way = "directly" if pool.target.is_direct else "through a pooler (others' commits are polled, not told)"
    yield Report("ok", f"connected {way}; lock_timeout {lock}, statement_timeout {statement}")
    most = int(found["max_connections"])
    level = "warn" if pool.size > most // 2 else "ok"
    yield Report(level, f"pool_size {pool.size} of the server's max_connections {most}")  # type: ignore[arg-type]


# Damage.


class _Session(NamedTuple):
    tenant: str
    user: str
    id: str
    segment: int
    base: int
    head: int
    is_erased: bool
    needed: int
    present: int
    lowest: int | None
    highest: int | None
    fence: int
    lease_run: str | None

    @property
    def scope(self) -> ScopeKey:
        return ScopeKey(self.tenant, self.user)

    @property
    def last(self) -> int:
        """The last of its own entries that must be there: of an erased session, what forks still take."""
        return self.needed if self.is_erased else self.head


_LIST = """
    SELECT s.tenant, s.user_id, s.id, s.segment, s.base, s.head, s.erased_us IS NOT NULL,
        COALESCE((SELECT max(p.upto) FROM {0}.spans p WHERE p.segment = s.segment), s.base),
        e.count, e.lowest, e.highest, s.fence, s.lease_run
    FROM (
        SELECT * FROM {0}.sessions WHERE (tenant, user_id, id) > (%s, %s, %s) ORDER BY tenant, user_id, id LIMIT %s
    ) s CROSS JOIN LATERAL (
        SELECT count(*) AS count, min(seq) AS lowest, max(seq) AS highest
        FROM {0}.entries e WHERE e.segment = s.segment
    ) e ORDER BY s.tenant, s.user_id, s.id
"""
_GAPS = """
    SELECT n FROM generate_series(%s::bigint, %s::bigint) AS n
    WHERE NOT EXISTS (SELECT FROM {0}.entries e WHERE e.segment = %s AND e.seq = n) LIMIT %s
"""
_CHANGED = """
    SELECT seq FROM {0}.entries WHERE segment = %s AND body IS NOT NULL AND sha256(body) <> digest ORDER BY seq LIMIT %s
"""
_REFS = """
    SELECT e.seq FROM {0}.entries e WHERE e.segment = %s AND EXISTS (
        SELECT unnest(e.refs) EXCEPT SELECT r.ref FROM {0}.refs r WHERE r.segment = e.segment AND r.seq = e.seq
    )
    UNION
    SELECT r.seq FROM {0}.refs r WHERE r.segment = %s AND NOT EXISTS (
        SELECT FROM {0}.entries e WHERE e.segment = r.segment AND e.seq = r.seq AND r.ref = ANY (e.refs)
    ) ORDER BY 1 LIMIT %s
"""
_USAGE = """
    SELECT s.usage, t.usage FROM {0}.sessions s CROSS JOIN LATERAL (
        SELECT COALESCE(array_agg(total ORDER BY n), '{{0,0,0,0,0,0}}'::bigint[]) AS usage FROM (
            SELECT n, sum(value)::bigint AS total
            FROM {0}.entries e, unnest(e.usage) WITH ORDINALITY AS u(value, n) WHERE e.segment = s.segment GROUP BY n
        ) u
    ) t WHERE s.segment = %s AND s.erased_us IS NULL AND s.usage <> t.usage
"""
_SPANS = """
    SELECT s.base, p.low, p.upto, o.id, (
        SELECT count(*) FROM {0}.entries e WHERE e.segment = p.segment AND e.seq > p.low AND e.seq <= p.upto
    ) FROM {0}.sessions s LEFT JOIN {0}.spans p ON p.child = s.segment
    LEFT JOIN {0}.sessions o ON o.segment = p.segment
    WHERE s.segment = %s AND s.erased_us IS NULL AND (s.base > 0 OR p.child IS NOT NULL) ORDER BY p.low
"""
_STRAYS = """
    WITH RECURSIVE w AS (
        (SELECT segment FROM {0}.entries ORDER BY segment LIMIT 1)
        UNION ALL
        SELECT (SELECT e.segment FROM {0}.entries e WHERE e.segment > w.segment ORDER BY e.segment LIMIT 1)
        FROM w WHERE w.segment IS NOT NULL
    )
    SELECT w.segment FROM w WHERE w.segment IS NOT NULL
        AND NOT EXISTS (SELECT FROM {0}.sessions s WHERE s.segment = w.segment) LIMIT %s
"""


def damage(conn: Connection, schema: Schema) -> list[Report]:
    """Every session and every entry, as far as it is not what it should be."""
    return list(_Verifier(conn, schema).reports())


class _Verifier:
    """Each statement sees one moment and judges by that alone, since the store is in use meanwhile."""

    def __init__(self, conn: Connection, schema: Schema) -> None:
        self._conn = conn
        self._schema = schema

    def reports(self) -> Iterator[Report]:
        place, count = ("", "", ""), 0
        while sessions := [_Session(*row) for row in self._rows(_LIST, *place, PAGE)]:
            for session in sessions:
                try:
                    yield from list(self._session(session))
                except psycopg.Error as error:
                    if not (error.sqlstate or "").startswith("XX"):
                        raise
                    # The server itself cannot read it; the others may be whole.
                    yield Report("damage", str(translate(error, self._schema.where)), session.scope, session.id)
            place = (sessions[-1].tenant, sessions[-1].user, sessions[-1].id)
            count += len(sessions)
        for (segment,) in self._rows(_STRAYS, LISTED_MAX):
            yield Report("damage", f"segment {segment} has entries and no session")
        yield Report("ok", f"{count} sessions were read, entry by entry")

    def _session(self, session: _Session) -> Iterator[Report]:
        yield from self._gaps(session)
        for (seq,) in self._rows(_CHANGED, session.segment, LISTED_MAX):
            yield self._found(session, "the stored body does not match its digest", seq)
        for (seq,) in self._rows(_REFS, session.segment, session.segment, LISTED_MAX):
            yield self._found(session, "its refs and the index of refs differ", seq)
        yield from self._shared(session)
        for kept, summed in self._rows(_USAGE, session.segment):
            yield self._found(session, f"the token totals are {kept}, the entries have {summed}")
        if session.lease_run is not None and session.fence < 1:
            yield self._found(session, f"run {session.lease_run!r} holds a lease that was never given out")

    def _gaps(self, session: _Session) -> Iterator[Report]:
        wanted = session.last - session.base
        if session.present != wanted or (
            wanted and (session.lowest, session.highest) != (session.base + 1, session.last)
        ):
            for (seq,) in self._rows(_GAPS, session.base + 1, session.last, session.segment, LISTED_MAX):
                yield self._found(session, "the entry is missing", seq)
            if session.highest is not None and session.highest > session.last:
                what = "an erased session keeps entries that nobody shares" if session.is_erased else "beyond the head"
                yield self._found(session, what, session.highest)

    def _shared(self, session: _Session) -> Iterator[Report]:
        """A fork's history must reach from 1 to its base."""
        rows = self._rows(_SPANS, session.segment)
        base, end = (rows[0][0] if rows else 0), 0
        for _, low, upto, owner, count in rows:
            if low is None:
                break
            if low != end or owner is None:
                yield self._found(session, f"what it shares of {owner!r} begins at {low + 1}, not at {end + 1}")
            if count != upto - low:
                yield self._found(session, f"of entries {low + 1} to {upto}, shared with {owner!r}, {count} are there")
            end = upto
        if end != base:
            yield self._found(session, f"its shared history ends at {end}, not at {base}")

    def _found(self, session: _Session, what: str, seq: int | None = None) -> Report:
        place = f"session {session.id!r}" + ("" if seq is None else f", entry {seq}")
        return Report("damage", f"{place}: {what}", session.scope, session.id, seq)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        text = sql.SQL(query).format(sql.Identifier(self._schema.name))
        with self._conn.transaction():
            self._conn.execute("SET LOCAL statement_timeout = 0")  # a long log takes its time
            return self._conn.execute(text, values).fetchall()
