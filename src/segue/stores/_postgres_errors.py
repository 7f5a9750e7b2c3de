"""What PostgreSQL's errors mean: one table, by SQLSTATE."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import psycopg

from segue.errors import Corrupt, DiskFull, Invalid, Locked, ReadOnly, SegueError, Unavailable


class Meaning(NamedTuple):
    """The error to raise, and its text; ``{said}`` is the server's own sentence."""

    error: type[SegueError]
    text: str


_MIGRATE = "run: segue migrate --apply (as the owner of the schema), or open with migrate=True"

# By SQLSTATE, else by its first two characters (its class).
_MEANINGS = {
    "08": Meaning(Unavailable, "cannot connect ({said}); is the server up, and are host and port in the URL right?"),
    "08001": Meaning(Unavailable, "cannot connect ({said}); is the server up, and are host and port in the URL right?"),
    "22": Meaning(Invalid, "the server refused a value ({said}); it was not stored"),
    "25006": Meaning(
        ReadOnly,
        "the server takes no writes ({said}): a replica, or default_transaction_read_only is on; "
        "connect to the primary, or add target_session_attrs=read-write and all hosts to the URL",
    ),
    "26": Meaning(
        Unavailable, "a pooler lost a prepared statement ({said}); open with pooled=True, or use the server's own port"
    ),
    "28000": Meaning(
        Unavailable, "the server lets this user not in ({said}); check the user in the URL and pg_hba.conf"
    ),
    "28P01": Meaning(
        Unavailable, "wrong password ({said}); check the one in the URL (percent-encoded), PGPASSWORD or ~/.pgpass"
    ),
    "3D000": Meaning(Unavailable, "no such database ({said}); create it with createdb, or mend the URL"),
    "3F000": Meaning(Unavailable, f"the schema is missing ({{said}}); {_MIGRATE}"),
    "40": Meaning(Locked, "others hold the rows too long ({said}); call again"),
    "42501": Meaning(
        Unavailable, "the user of this connection lacks a right ({said}); grant it, see docs/decisions/0003-postgres.md"
    ),
    "42P01": Meaning(Unavailable, f"a table is missing ({{said}}); {_MIGRATE}"),
    "42703": Meaning(Unavailable, f"a column is missing ({{said}}); {_MIGRATE}"),
    "42883": Meaning(Unavailable, f"a function is missing ({{said}}); {_MIGRATE}"),
    "53": Meaning(Unavailable, "the server is short of resources ({said}); call again later"),
    "53100": Meaning(DiskFull, "the server's disk is full ({said}); free some space and call again"),
    "53300": Meaning(
        Unavailable,
        "the server has no connection left ({said}); lower pool_size, raise max_connections, or use pgbouncer",
    ),
    "54": Meaning(Invalid, "a value is over one of the server's limits ({said}); it was not stored"),
    "55P03": Meaning(Locked, "another transaction holds the row longer than lock_timeout ({said}); call again"),
    "57014": Meaning(Unavailable, "the server took longer than statement_timeout and stopped ({said}); call again"),
    "57P03": Meaning(Unavailable, "the server is starting up or shutting down ({said}); call again in a moment"),
    "58": Meaning(Unavailable, "the server has trouble with its disk ({said}); look at its log"),
    "XX001": Meaning(
        Corrupt, "the server found damaged data ({said}); restore a backup, segue verify lists the damage"
    ),
    "XX002": Meaning(Corrupt, "the server found a damaged index ({said}); run REINDEX, then segue verify"),
}
_OTHER = Meaning(Unavailable, "the server refused ({said}); nothing was written")

# While connecting, the driver hands on the server's sentence without its SQLSTATE.
_SAYINGS = (
    (r"password authentication failed|no password supplied|SASL authentication failed", "28P01"),
    (r'database "[^"]*" does not exist|no such database', "3D000"),
    (
        r'role "[^"]*" does not exist|pg_hba\.conf|no such user|not permitted to log in|permission denied for database',
        "28000",
    ),
    (r"too many (clients|connections)|remaining connection slots|no more connections allowed", "53300"),
    (r"starting up|shutting down|in recovery mode|not yet accepting|not accepting connections", "57P03"),
    (r"session is (not )?read-only|server is (not )?in hot standby", "25006"),
)

_AGAIN = frozenset({"40001", "40P01", "55P03", "23505", "57P03"})
_CUT = frozenset({"57P01", "57P02", "57P05", "40003"})


def judge(error: psycopg.Error) -> Literal["again", "cut", "no"]:
    """
    What may be concluded from an error while operations were under way.

    ``again``: all of it was rolled back by a meeting with others; it may go better the next time.
    ``cut``: nobody knows whether it was committed. ``no``: all was rolled back, and would be again.
    """
    state = error.sqlstate
    if state is None:
        return "cut" if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else "no"
    if state in _CUT or state.startswith("08"):
        return "cut"
    return "again" if state in _AGAIN else "no"


def is_about_values(error: psycopg.Error) -> bool:
    """True when it lies in what was to be stored, so that other operations of the batch would do."""
    state = error.sqlstate or ""
    return state[:2] in ("22", "23", "54") or isinstance(error, psycopg.DataError)


def translate(error: psycopg.Error, where: str) -> SegueError:
    """The typed error for an error of the driver; ``where`` names the server, without a password."""
    said = " ".join(str(error.diag.message_primary or error).split())
    state = error.sqlstate or _state_of(said)
    if state is None and isinstance(error, psycopg.DataError):
        state = "22000"
    meaning = _MEANINGS.get(state or "08001") or _MEANINGS.get((state or "")[:2], _OTHER)
    return meaning.error(f"PostgreSQL at {where}: {meaning.text.format(said=said)}")


def _state_of(said: str) -> str | None:
    return next((state for pattern, state in _SAYINGS if re.search(pattern, said)), None)
