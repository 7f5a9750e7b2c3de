"""What errors of MySQL and MariaDB mean: one table, by their number."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pymysql

from segue.errors import Corrupt, DiskFull, Invalid, Locked, ReadOnly, SegueError, Unavailable


class Meaning(NamedTuple):
    """The error to raise, and its text; ``{said}`` is the server's own sentence."""

    error: type[SegueError]
    text: str


_CONNECT = Meaning(Unavailable, "cannot connect ({said}); is the server up, and are host and port in the URL right?")
_LOST = Meaning(Unavailable, "the connection was lost ({said}); is the server up? call again")
_LOGIN = Meaning(
    Unavailable,
    "the server lets this user not in ({said}); check user and password in the URL (percent-encoded) or MYSQL_PWD",
)
_RIGHT = Meaning(
    Unavailable, "the user of this connection lacks a right ({said}); grant it, see docs/decisions/0021-mysql.md"
)
_SCHEMA = Meaning(
    Unavailable,
    "the tables are not as they should be ({said}); run: segue migrate URL --apply, or open with migrate=True",
)
_HELD = Meaning(Locked, "another transaction holds the row longer than lock_timeout ({said}); call again")
_STOPPED = Meaning(Unavailable, "the server stopped the statement ({said}), perhaps at statement_timeout; call again")
_READ_ONLY = Meaning(ReadOnly, "the server takes no writes ({said}): a replica, or read_only is on; use the primary")
_FULL = Meaning(DiskFull, "the server's disk is full ({said}); free some space and call again")
_DAMAGED = Meaning(
    Corrupt, "the server found damaged data ({said}); look at its log, restore a backup; segue verify lists the damage"
)
_CROWDED = Meaning(Unavailable, "the server has no connection left ({said}); lower pool_size or raise max_connections")
_PACKET = Meaning(Invalid, "the server takes no message of that size ({said}); raise its max_allowed_packet")
_OTHER = Meaning(Unavailable, "the server refused ({said}); nothing was written")

_MEANINGS = {
    **dict.fromkeys((2002, 2003, 2005), _CONNECT),
    **dict.fromkeys((2006, 2013, 2055, 1053, 1077, 1927, 4031), _LOST),
    **dict.fromkeys((1045, 1698, 1862, 3118), _LOGIN),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), _RIGHT),
    1049: Meaning(Unavailable, "no such database ({said}); create it with CREATE DATABASE, or mend the URL"),
    **dict.fromkeys((1040, 1203, 1226), _CROWDED),
    **dict.fromkeys((1146, 1054), _SCHEMA),
    **dict.fromkeys((1205, 1213, 1020, 3572), _HELD),
    1062: Meaning(Locked, "others write the same rows again and again ({said}); call again"),
    **dict.fromkeys((1317, 1969, 3024), _STOPPED),
    **dict.fromkeys((1290, 1792, 1836, 3989), _READ_ONLY),
    **dict.fromkeys((1021, 1114, 3), _FULL),
    **dict.fromkeys((1034, 1194, 1712, 1877), _DAMAGED),
    1047: Meaning(Unavailable, "the cluster's node is not ready ({said}); call again, or use another node"),
    1153: _PACKET,
    **dict.fromkeys(
        (1048, 1264, 1265, 1366, 1406, 4025, 3819),
        Meaning(Invalid, "the server refused a value ({said}); it was not stored"),
    ),
}

_AGAIN = frozenset({1205, 1213, 1020, 1062, 3572})
_CUT = frozenset({0, 2002, 2003, 2006, 2013, 2014, 2055, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031})
_VALUES = frozenset({1048, 1153, 1264, 1265, 1366, 1406, 3819, 4025})

TAKEN = 1062
"""A row of that key is there already."""

LOCK_WAIT = 1205
"""A row was held too long."""


def number_of(error: pymysql.MySQLError) -> int | None:
    """The error's number; None: the driver's own word."""
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None


def judge(error: pymysql.MySQLError, *, is_at_commit: bool = False) -> Literal["again", "cut", "no"]:
    """
    What may be concluded from an error while operations were under way.

    ``again``: all of it is rolled back by a meeting with others; it may go better the next time.
    ``cut``: nobody knows whether it was committed. ``no``: all is rolled back, and would be again.
    With ``is_at_commit`` it was the commit itself that the server answered with the error.
    """
    number = number_of(error)
    if number in _AGAIN:
        return "again"
    if number in _CUT or number is None or is_at_commit:
        return "cut"
    return "no"


def is_about_values(error: pymysql.MySQLError) -> bool:
    """True when it lies in what was to be stored, so that other operations of the batch would do."""
    return number_of(error) in _VALUES


def translate(error: pymysql.MySQLError, where: str) -> SegueError:
    """The typed error for an error of the driver; ``where`` names the server, without a password."""
    said = " ".join(str(error.args[-1] if error.args else error).split()) or "no answer"
    meaning = _MEANINGS.get(number_of(error) or 2006, _OTHER)
    return meaning.error(f"MySQL at {where}: {meaning.text.format(said=said)}")
