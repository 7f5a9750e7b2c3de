"""What MongoDB's and its driver's errors mean: one table, by the server's code."""

from __future__ import annotations

from typing import Literal, NamedTuple

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WaitQueueTimeoutError,
)

from segue.errors import Closed, Corrupt, DiskFull, Invalid, Locked, SegueError, Unavailable

DRIVER_ERRORS = (PyMongoError, BSONError, OverflowError)
"""Whatever the driver raises: what it cannot encode is no PyMongoError."""

DUPLICATE = 11000
TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"

STANDALONE = (
    "a standalone mongod has no transactions, which Segue needs; make it a replica set (one member is enough): "
    "start it with --replSet rs0, run rs.initiate() once in mongosh, and use mongodb://host/?replicaSet=rs0"
)


class Meaning(NamedTuple):
    """The error to raise, and its text; ``{said}`` is the server's own sentence."""

    error: type[SegueError]
    text: str


_ELECTION = Meaning(
    Unavailable, "there is no primary at the moment ({said}); an election takes some seconds, call again"
)
_RIGHTS = Meaning(
    Unavailable, "the user of this connection lacks a right ({said}); grant readWrite on the database, or mend the URL"
)
_INDEX = Meaning(
    Unavailable, "an index of that name and another form is there ({said}); drop it, then open again, which makes it"
)
_TOO_LARGE = Meaning(Invalid, "a document would exceed the server's 16 MiB ({said}); it was not stored")
_MEANINGS = {
    13: _RIGHTS,
    18: Meaning(Unavailable, "the server lets this user not in ({said}); check user, password and authSource"),
    20: Meaning(Unavailable, f"{STANDALONE} ({{said}})"),
    24: Meaning(Locked, "another transaction holds the collection ({said}); call again"),
    50: Meaning(Unavailable, "the server took longer than the time limit and stopped ({said}); call again"),
    64: Meaning(Unavailable, "the majority of the replica set does not answer ({said}); are its members up?"),
    85: _INDEX,
    86: _INDEX,
    91: _ELECTION,
    112: Meaning(
        Locked,
        "other transactions hold what this one needs for longer than lock_timeout ({said}); call again. One that a "
        "killed process left open is ended by the server after transactionLifetimeLimitSeconds (60 s)",
    ),
    189: _ELECTION,
    251: Meaning(Unavailable, "the server ended the transaction ({said}); call again"),
    290: Meaning(Unavailable, "the transaction took longer than transactionLifetimeLimitSeconds ({said}); do less"),
    10107: _ELECTION,
    10334: _TOO_LARGE,
    11000: Meaning(
        Corrupt, "an index contradicts the session's row ({said}); run segue verify to see all damage"
    ),
    11600: _ELECTION,
    11602: _ELECTION,
    13388: _ELECTION,
    13435: _ELECTION,
    13436: _ELECTION,
    14031: Meaning(DiskFull, "the server's disk is nearly full ({said}); free some space and call again"),
    17419: _TOO_LARGE,
    17420: _TOO_LARGE,
}  # fmt: skip
_OTHER = Meaning(Unavailable, "the server refused ({said}); nothing was written")
_NO_PLACE = Meaning(
    Unavailable, "cannot reach a primary ({said}); is the server up, and are hosts and replicaSet in the URL right?"
)
_NO_ROOM = Meaning(Unavailable, "all connections were busy ({said}); raise pool_size, or do less at a time")
_VALUE = Meaning(Invalid, "a value cannot be stored ({said})")

_AGAIN = frozenset({24, 112, 239, 246, 251, DUPLICATE})
"""Codes of a meeting with others: lock, write conflict, a snapshot that is gone, an ended transaction, a race."""


def judge(error: Exception) -> Literal["again", "values", "no"]:
    """
    What may be concluded when a transaction fails before its commit; nothing of it was written.

    ``again``: by a meeting with others, or an election. ``values``: it lies in what was to be stored,
    so that other operations of the group would do. ``no``: it would fail again.
    """
    if isinstance(error, PyMongoError) and (error.has_error_label(TRANSIENT) or code_of(error) in _AGAIN):
        return "again"
    if isinstance(error, BSONError | OverflowError | DocumentTooLarge) or _meaning(error) is _TOO_LARGE:
        return "values"
    return "no"


def code_of(error: Exception) -> int | None:
    """The server's code; of a batch of writes, that of the first that failed."""
    if isinstance(error, BulkWriteError):
        failed = (error.details or {}).get("writeErrors") or [{}]
        return failed[0].get("code", error.code)  # type: ignore[no-any-return]
    return error.code if isinstance(error, OperationFailure) else None


def translate(error: Exception, where: str) -> SegueError:
    """The typed error for an error of the driver; ``where`` names the server, without a password."""
    if isinstance(error, InvalidOperation) and "after close" in str(error):
        return Closed("this handle on the store was closed; open another")
    meaning = _meaning(error)
    return meaning.error(f"MongoDB at {where}: {meaning.text.format(said=_said(error))}")


def _meaning(error: Exception) -> Meaning:
    if isinstance(error, DocumentTooLarge):
        return _TOO_LARGE
    code = code_of(error)
    if code is not None:
        return _MEANINGS.get(code, _OTHER)
    if isinstance(error, WaitQueueTimeoutError):
        return _NO_ROOM
    if isinstance(error, ConnectionFailure):
        return _NO_PLACE
    if isinstance(error, BSONError | OverflowError):
        return _VALUE
    if isinstance(error, ConfigurationError):
        return Meaning(Unavailable, "the driver cannot work with this server ({said})")
    return _OTHER


def _said(error: Exception) -> str:
    details = getattr(error, "details", None) or {}
    said = details.get("errmsg") if isinstance(details, dict) else None
    if isinstance(error, BulkWriteError) and details.get("writeErrors"):
        said = details["writeErrors"][0].get("errmsg")
    # A topology's whole description follows behind a comma; what matters stands first.
    return " ".join(str(said or error).split(", Timeout:")[0].split())[:400]
