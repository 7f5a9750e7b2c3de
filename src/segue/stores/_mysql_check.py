"""What ``check`` looks at: the server's settings (doctor), and every session and entry (verify)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pymysql.connections import Connection

from segue.errors import Corrupt, Unavailable
from segue.model import ScopeKey, Usage
from segue.store import Report

from ._mysql_pool import Pool, run
from ._mysql_rows import COLUMNS, Row, info_of, pack_tokens, unpack_tokens
from ._mysql_schema import Schema, steps

PAGE = 200
"""Sessions looked at in one query."""

CHUNK = 1_000
"""Entries looked at in one query."""

LISTED_MAX = 20
"""Most damaged entries of one session that are named one by one."""


class Settings(NamedTuple):
    """The server's variables that matter here."""

    found: dict[str, str]

    @property
    def is_durable(self) -> bool:
        """Whether what is acknowledged survives a power loss."""
        has_log = self.found.get("log_bin", "OFF") == "ON"
        return self.found["innodb_flush_log_at_trx_commit"] == "1" and (
            not has_log or self.found.get("sync_binlog") == "1"
        )


_NAMES = (
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "sql_mode",
    "character_set_client",
    "max_allowed_packet",
    "max_connections",
    "read_only",
    "innodb_lock_wait_timeout",
    "max_statement_time",
    "max_execution_time",
    "version",
)


def read_settings(conn: Connection[Any], where: str) -> Settings:
    """
    The server's settings, as of this connection.

    Raises:
        Unavailable: This store cannot work with one of them.
    """
    marks = ", ".join(["%s"] * len(_NAMES))
    found: dict[str, str] = dict(run(conn, [f"SHOW SESSION VARIABLES WHERE Variable_name IN ({marks})"], _NAMES)[0])
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        raise Unavailable(
            f"MySQL at {where}: with binlog_format = STATEMENT the server writes no log of transactions as this store "
            "makes them (READ COMMITTED); set binlog_format = ROW"
        )
    if "innodb_flush_log_at_trx_commit" not in found:
        raise Unavailable(f"MySQL at {where}: the server has no InnoDB; switch it on")
    return Settings(found)


def settings(conn: Connection[Any], schema: Schema, pool: Pool) -> list[Report]:
    """What the server promises, by its settings."""
    found = read_settings(conn, schema.where).found
    name = "MariaDB" if pool.target.is_mariadb else "MySQL"
    reports = [
        Report(
            "ok",
            f"{name} {found['version']} at {schema.where}, migration {schema.version(conn)} of {steps()[-1].version}",
        )
    ]
    reports += _durability(found)
    reports += _server(found, pool)
    reports += [
        Report("warn", f"migration {step.version} ({step.name}) was another when it was applied; reinstall segue")
        for step in schema.altered(conn)
    ]
    return reports


def _durability(found: dict[str, str]) -> Iterator[Report]:
    yield _judged(
        found,
        "innodb_flush_log_at_trx_commit",
        "1",
        "what was acknowledged can be lost in a crash or a power loss, so 'durable' is not declared; set it to 1",
    )
    if found.get("log_bin") == "ON":
        why = (
            "a power loss can undo what was acknowledged and is not in the binary log yet, so 'durable' is not declared"
        )
        yield _judged(found, "sync_binlog", "1", f"{why}; set it to 1")
    else:
        yield Report("ok", "log_bin = OFF")
    is_torn = found.get("innodb_doublewrite", "ON") in ("OFF", "0", "DETECT_ONLY")
    yield Report(
        "warn" if is_torn else "ok",
        f"innodb_doublewrite = {found.get('innodb_doublewrite')}"
        + (": a power loss can tear pages; set it ON" if is_torn else ""),
    )


def _judged(found: dict[str, str], name: str, wanted: str, why: str) -> Report:
    value = found.get(name)
    return Report("ok", f"{name} = {value}") if value == wanted else Report("warn", f"{name} = {value}: {why}")


def _server(found: dict[str, str], pool: Pool) -> Iterator[Report]:
    is_strict = "STRICT_ALL_TABLES" in found["sql_mode"] and "NO_BACKSLASH_ESCAPES" not in found["sql_mode"]
    yield Report("ok" if is_strict else "warn", f"sql_mode of this connection: {found['sql_mode']}")
    charset = found["character_set_client"]
    yield Report("ok" if charset == "utf8mb4" else "warn", f"character_set_client = {charset}")
    if found.get("read_only", "OFF") != "OFF":
        yield Report("warn", f"read_only = {found['read_only']}: this server takes no writes (a replica?)")
    seconds = found.get("max_statement_time") or str(int(found.get("max_execution_time", "0")) // 1000)
    yield Report(
        "ok",
        f"READ COMMITTED under row locks; innodb_lock_wait_timeout {found['innodb_lock_wait_timeout']} s, "
        f"statements at most {float(seconds):g} s; others' commits are polled, not told",
    )
    packet = int(found["max_allowed_packet"])
    is_small = packet < 16 * 1024 * 1024
    yield Report(
        "warn" if is_small else "ok",
        f"max_allowed_packet = {packet:,}" + (": large entries are refused; set it to 16M or more" if is_small else ""),
    )
    most = int(found["max_connections"])
    yield Report(
        "warn" if pool.size > most // 2 else "ok", f"pool_size {pool.size} of the server's max_connections {most}"
    )


# Damage. Each statement sees one moment and judges by that alone, since the store is in use meanwhile.


_LIST = f"""
    SELECT (SELECT COALESCE(MAX(p.upto), s.base) FROM spans p WHERE p.segment = s.segment),
        (SELECT COUNT(*) FROM entries e WHERE e.segment = s.segment),
        (SELECT MIN(seq) FROM entries e WHERE e.segment = s.segment),
        (SELECT MAX(seq) FROM entries e WHERE e.segment = s.segment),
        {", ".join(f"s.{name}" for name in COLUMNS)}
    FROM sessions s FORCE INDEX (PRIMARY)
    WHERE s.tenant >= %s AND (s.tenant > %s OR s.user_id > %s OR (s.user_id = %s AND s.id > %s))
    ORDER BY s.tenant, s.user_id, s.id LIMIT %s
"""  # noqa: S608
_ENTRIES = """
    SELECT e.seq, e.refs, e.tokens, e.body IS NOT NULL AND UNHEX(SHA2(e.body, 256)) <> e.digest FROM entries e
    WHERE e.segment = %s AND e.seq > %s ORDER BY e.seq LIMIT %s
"""
_SPANS = """
    SELECT p.low, p.upto, o.id, (
        SELECT COUNT(*) FROM entries e WHERE e.segment = p.segment AND e.seq > p.low AND e.seq <= p.upto
    ) FROM spans p LEFT JOIN sessions o ON o.segment = p.segment WHERE p.child = %s ORDER BY p.low
"""
_STRAYS = """
    SELECT e.segment FROM (SELECT DISTINCT segment FROM entries) e LEFT JOIN sessions s ON s.segment = e.segment
    WHERE s.segment IS NULL ORDER BY e.segment LIMIT %s
"""
_STILL = "SELECT version, head, erased_us IS NULL, tokens FROM sessions WHERE segment = %s"


class _Found(NamedTuple):
    """A session as the check sees it."""

    row: Row
    needed: int
    present: int
    lowest: int | None
    highest: int | None

    @property
    def last(self) -> int:
        """The last of its own entries that must be there: of an erased session, what forks still take."""
        return self.row.head if self.row.erased_us is None else self.needed

    def report(self, what: str, seq: int | None = None) -> Report:
        """A finding about it."""
        row = self.row
        tenant, user, name = (part.decode("utf-8", "replace") for part in (row.tenant, row.user_id, row.id))
        place = f"session {name!r}" + ("" if seq is None else f", entry {seq}")
        return Report("damage", f"{place}: {what}", ScopeKey(tenant, user), name, seq)


def damage(conn: Connection[Any]) -> list[Report]:
    """Every session and every entry, as far as it is not what it should be."""
    return list(chain(_sessions(conn), _strays(conn)))


def _sessions(conn: Connection[Any]) -> Iterator[Report]:
    place, count = (b"", b"", b""), 0
    while rows := run(conn, [_LIST], (place[0], place[0], place[1], place[1], place[2], PAGE))[0]:
        for row in rows:
            found = _Found(Row(*row[4:]), *row[:4])
            place = (found.row.tenant, found.row.user_id, found.row.id)
            yield from _session(conn, found)
        count += len(rows)
    yield Report("ok", f"{count} sessions were read, entry by entry")


def _strays(conn: Connection[Any]) -> Iterator[Report]:
    for (segment,) in run(conn, [_STRAYS], (LISTED_MAX,))[0]:
        yield Report("damage", f"segment {segment} has entries and no session")


def _session(conn: Connection[Any], found: _Found) -> Iterator[Report]:
    row = found.row
    if row.erased_us is None:
        try:
            info_of(row, ScopeKey("", ""), now_us=0, waiting=0)
        except Corrupt as error:
            yield found.report(str(error))
            return
        if row.lease_run is not None and row.fence < 1:
            yield found.report(f"run {row.lease_run.decode()!r} holds a lease that was never given out")
    yield from _entries(conn, found)
    if row.erased_us is None:
        yield from _shared(conn, found)


def _entries(conn: Connection[Any], found: _Found) -> Iterator[Report]:
    """Its own entries, one by one: numbers, digests, refs, totals."""
    row = found.row
    indexed: dict[int, set[bytes]] = {}
    for seq, ref in run(conn, ["SELECT seq, ref FROM refs WHERE segment = %s"], (row.segment,))[0]:
        indexed.setdefault(seq, set()).add(ref)
    findings: list[Report] = []
    total, expected, place = Usage(), row.base + 1, 0
    while rows := run(conn, [_ENTRIES], (row.segment, place, CHUNK))[0]:
        for seq, refs, tokens, is_changed in rows:
            gaps = _between(expected, min(seq, found.last + 1))
            findings += [found.report("the entry is missing", gap) for gap in gaps]
            expected = seq + 1
            if is_changed:
                findings.append(found.report("the stored body does not match its digest", seq))
            if indexed.pop(seq, set()) != (set(refs.split(b"\n")) if refs else set()) and seq <= found.last:
                findings.append(found.report("its refs and the index of refs differ", seq))
            total += unpack_tokens(tokens) if tokens else Usage()
        place = rows[-1][0]
    findings += [found.report("the entry is missing", gap) for gap in _between(expected, found.last + 1)]
    if found.highest is not None and found.highest > found.last:
        gone = row.erased_us is not None
        what = "an erased session keeps entries that nobody shares" if gone else "there is an entry beyond the head"
        findings.append(found.report(what, found.highest))
    findings += [found.report("the index of refs has one of no entry", seq) for seq in sorted(indexed)[:LISTED_MAX]]
    if row.erased_us is None and pack_tokens(total) != row.tokens:
        findings.append(found.report(f"the token totals are {row.tokens.decode()}, the entries have {tuple(total)}"))
    if findings and _is_still(conn, found):
        yield from findings


def _between(first: int, behind: int) -> Sequence[int]:
    return range(first, behind)[:LISTED_MAX]


def _is_still(conn: Connection[Any], found: _Found) -> bool:
    """Whether the session is as it was; else what was found came about while it was read."""
    row = found.row
    now = run(conn, [_STILL], (row.segment,))[0]
    return now == ((row.version, row.head, int(row.erased_us is None), row.tokens),)


def _shared(conn: Connection[Any], found: _Found) -> Iterator[Report]:
    """A fork's history must reach from 1 to its base."""
    end = 0
    for low, upto, owner, count in run(conn, [_SPANS], (found.row.segment,))[0]:
        name = None if owner is None else owner.decode()
        if low != end or owner is None:
            yield found.report(f"what it shares of {name!r} begins at {low + 1}, not at {end + 1}")
        if count != upto - low:
            yield found.report(f"of entries {low + 1} to {upto}, shared with {name!r}, {count} are there")
        end = upto
    if end != found.row.base:
        yield found.report(f"its shared history ends at {end}, not at {found.row.base}")
