"""What Redis's errors mean: one table, by the first word of what the server says."""

from __future__ import annotations

from typing import Literal, NamedTuple

import redis

from segue.errors import Corrupt, DiskFull, ReadOnly, SegueError, Unavailable

Verdict = Literal["again", "cut", "script", "unsent", "no"]


class NotSentError(Exception):
    """
    A command that was not sent, since no connection was to be had.

    Attributes:
        error: Why.
    """

    def __init__(self, error: SegueError) -> None:
        super().__init__(str(error))
        self.error = error


class Meaning(NamedTuple):
    """The error to raise, and its text; ``{said}`` is the server's own sentence."""

    error: type[SegueError]
    text: str
    verdict: Verdict = "no"


_CONNECT = Meaning(
    Unavailable, "cannot connect ({said}); is the server up, and are host and port in the URL right?", "cut"
)
_MEANINGS = {
    "BUSY": Meaning(Unavailable, "another script runs too long ({said}); call again, or run SCRIPT KILL", "again"),
    "CLUSTERDOWN": Meaning(
        Unavailable, "a part of the cluster is down ({said}); call again when CLUSTER INFO says ok", "again"
    ),
    "CROSSSLOT": Meaning(
        Unavailable, "keys lie in several slots ({said}); this is a defect of Segue, please report it"
    ),
    "LOADING": Meaning(Unavailable, "the server is still loading its data ({said}); call again in a moment", "again"),
    "MASTERDOWN": Meaning(Unavailable, "the replica has lost its primary ({said}); connect to the primary", "again"),
    "MISCONF": Meaning(
        DiskFull, "the server cannot write to its disk and takes no writes ({said}); free some space, look at its log"
    ),
    "MOVED": Meaning(Unavailable, "the slots of the cluster move ({said}); call again in a moment", "again"),
    "ASK": Meaning(Unavailable, "the slots of the cluster move ({said}); call again in a moment", "again"),
    "NOAUTH": Meaning(
        Unavailable, "the server wants a password ({said}); put it, percent-encoded, into redis://user:password@host"
    ),
    "NOPERM": Meaning(
        Unavailable, "the user of this connection lacks a right ({said}); grant it, see docs/decisions/0022-redis.md"
    ),
    "NOREPLICAS": Meaning(
        Unavailable, "too few replicas are there ({said}); mend them, or lower min-replicas-to-write", "again"
    ),
    "NOSCRIPT": Meaning(Unavailable, "the server keeps forgetting the scripts ({said}); call again", "script"),
    "OOM": Meaning(
        DiskFull, "the server is at its maxmemory ({said}); raise it, or erase sessions (segue sweep), and call again"
    ),
    "READONLY": Meaning(
        ReadOnly, "the server takes no writes ({said}): it is a replica; connect to the primary", "again"
    ),
    "TRYAGAIN": Meaning(Unavailable, "the slots of the cluster move ({said}); call again in a moment", "again"),
    "WRONGPASS": Meaning(Unavailable, "wrong user or password ({said}); check the ones in the URL (percent-encoded)"),
    "WRONGTYPE": Meaning(Corrupt, "a key holds what Segue never put there ({said}); run segue verify"),
}
_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (redis.exceptions.MovedError, "MOVED"),
    (redis.exceptions.AskError, "ASK"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.SlotNotCoveredError, "CLUSTERDOWN"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.NoScriptError, "NOSCRIPT"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.AuthenticationError, "WRONGPASS"),
)
_OTHER = Meaning(Unavailable, "the server refused ({said}); nothing was written")


def judge(error: Exception) -> Verdict:
    """
    What may be concluded from an error while operations were under way.

    ``again``: nothing was done; it may go better the next time. ``cut``: nobody knows. ``script``: the server does
    not know the script, nothing was done. ``unsent``: no connection. ``no``: nothing was done, and would not be the
    next time.
    """
    if isinstance(error, NotSentError):
        return "unsent"
    return _meaning(error).verdict


def translate(error: Exception, where: str) -> SegueError:
    """The typed error for an error of the driver; ``where`` names the server, without a password."""
    if isinstance(error, NotSentError):
        return error.error
    said = " ".join(str(error).split()) or type(error).__name__
    meaning = _meaning(error)
    return meaning.error(f"Redis at {where}: {meaning.text.format(said=said)}")


def _meaning(error: Exception) -> Meaning:
    for kind, code in _BY_TYPE:
        if isinstance(error, kind):
            return _MEANINGS[code]
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return _CONNECT
    # Some errors reach us with their first word, others without.
    said = str(error)
    code = said.partition(" ")[0].lstrip("-")
    return _MEANINGS.get(code, _OTHER)
