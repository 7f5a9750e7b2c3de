"""The statements that only read."""

from __future__ import annotations

from psycopg import sql

from segue.model import Hit

from ._postgres_wire import ENTRY_COLUMNS, SESSION_COLUMNS, Row, unpack_entry
from ._spans import lost

QUERIES = {
    "info": "SELECT o.now_us, o.waiting, {session} FROM {schema}.info($1, $2, $3, $4, $5) AS o",
    "read": "SELECT {columns} FROM {schema}.read($1, $2, $3, $4, $5, $6, $7, $8)",
    "parts": "SELECT segment, low, upto FROM {schema}.parts($1, $2, $3)",
    "part": """
        SELECT {columns} FROM {schema}.entries WHERE segment = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4""",
    "part_reverse": """
        SELECT {columns} FROM {schema}.entries WHERE segment = $1 AND seq > $2 AND seq <= $3
        ORDER BY seq DESC LIMIT $4""",
    "by_ref_of": "SELECT o.owner, o.seq, {entry} FROM {schema}.by_ref_of($1, $2, $3, $4, $5, $6, $7, $8, $9) AS o",
    "by_ref_in": "SELECT o.owner, o.seq, {entry} FROM {schema}.by_ref_in($1, $2, $3, $4, $5, $6, $7, $8) AS o",
    "now_us": "SELECT {schema}.now_us($1)",
    # From each scope straight to the next one, however many sessions it has.
    "scopes": """
        WITH RECURSIVE w AS (
            (SELECT tenant, user_id FROM {schema}.sessions
             WHERE erased_us IS NULL AND (tenant, user_id) > ($1, $2) ORDER BY tenant, user_id LIMIT 1)
            UNION ALL
            SELECT n.tenant, n.user_id FROM w, LATERAL (
                SELECT s.tenant, s.user_id FROM {schema}.sessions s
                WHERE s.erased_us IS NULL AND (s.tenant, s.user_id) > (w.tenant, w.user_id)
                ORDER BY s.tenant, s.user_id LIMIT 1) n
        ) SELECT tenant, user_id FROM w LIMIT $3""",
}
"""By name; their values by number."""


def query(schema: str, name: str) -> bytes:
    """The text of one of QUERIES for a schema."""
    return (
        sql.SQL(QUERIES[name])
        .format(
            schema=sql.Identifier(schema),
            columns=sql.SQL(", ").join(map(sql.Identifier, ENTRY_COLUMNS)),
            entry=sql.SQL(", ").join(sql.SQL("(o.entry).{}").format(sql.Identifier(name)) for name in ENTRY_COLUMNS),
            session=sql.SQL(", ").join(
                sql.SQL("(o.session).{}").format(sql.Identifier(name)) for name in SESSION_COLUMNS
            ),
        )
        .as_bytes()
    )


def hit(row: Row) -> Hit:
    """A row of by_ref_of or by_ref_in; ``Corrupt`` when the entry is missing or damaged."""
    owner, seq = row[:2]
    if row[2] is None:
        raise lost(owner, seq)
    return Hit(owner, unpack_entry(row[2:]).verify(owner))
