"""How a command ends: exit codes, and what is said when it fails."""

from __future__ import annotations

from typing import Any

from segue.errors import (
    Archived,
    Busy,
    Closed,
    ConfigDrift,
    Conflict,
    Corrupt,
    Invalid,
    LeaseLost,
    MissingExtra,
    NotFound,
    OutcomeUnknown,
    SegueError,
    StaleRead,
    TooNew,
    Unavailable,
    Unsupported,
    ViewInvalid,
)

DONE, FINDING, USAGE, NOT_FOUND, REFUSED, NO_STORE, UNKNOWN = range(7)
BUG, INTERRUPTED, PIPE = 70, 130, 141

EXIT_CODES = {
    DONE: "done",
    FINDING: "the answer is bad: damage, a history without a valid view, a finding of doctor, or you said no",
    USAGE: "wrong usage: an unknown option, a value that is refused, an id that fits several sessions",
    NOT_FOUND: "no such session in this scope",
    REFUSED: "not now: a run is active, somebody was faster, or the session is archived",
    NO_STORE: "the store is not there, cannot work now, needs another version or extra; or the output takes nothing",
    UNKNOWN: "the outcome is unknown: it may or may not have been done; look, then run it again",
    BUG: "a mistake of segue itself; --debug shows where",
    INTERRUPTED: "interrupted by Ctrl-C",
    PIPE: "the reader of the output went away",
}
"""Every exit code and what it means."""

_CODES: tuple[tuple[type[SegueError] | tuple[type[SegueError], ...], int], ...] = (
    (NotFound, NOT_FOUND),
    ((Corrupt, ViewInvalid), FINDING),
    (OutcomeUnknown, UNKNOWN),
    ((Conflict, Busy, LeaseLost, Archived, ConfigDrift, StaleRead), REFUSED),
    ((Unavailable, TooNew, MissingExtra, Unsupported, Closed), NO_STORE),
)


class Ambiguous(Invalid):
    """
    Several sessions fit what was given. Give more characters.

    Attributes:
        candidates: Ids of the sessions that fit, newest activity first, at most 10.
    """

    def __init__(self, given: str, candidates: tuple[str, ...], *, total: int) -> None:
        listed = ", ".join(candidates) + (" and more" if total > len(candidates) else "")
        super().__init__(f"{given!r} fits {total} sessions: {listed}; give more characters", where="session")
        self.candidates = candidates


class NoStore(Unavailable):
    """There is no store at this place. The command never makes one."""


def exit_code(error: SegueError) -> int:
    """The exit code that tells of this error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), USAGE)


def message(error: SegueError, *, scope: str) -> str:
    """What is said of the error, in words of the command line: the fact, then the next step."""
    if isinstance(error, NotFound):
        if error.session == "latest":
            return (
                f"no session of {scope} can be latest; see 'segue ls --all', or name the owner with --tenant and --user"
            )
        return f"no such session of {scope}: {error.session!r}; 'segue ls --all' shows those that are there"
    if isinstance(error, Archived):
        return f"session {error.session!r} is archived; make it usable again with: segue restore {error.session}"
    if isinstance(error, Busy):
        return f"run {error.run!r} is active on it; it ends by itself, or when its lease expires: try again then"
    return str(error)


def as_value(error: SegueError, *, scope: str) -> dict[str, Any]:
    """The error for programs."""
    value: dict[str, Any] = {
        "error": type(error).__name__,
        "message": message(error, scope=scope),
        "exit_code": exit_code(error),
    }
    if isinstance(error, Ambiguous):
        value["candidates"] = list(error.candidates)
    return value
