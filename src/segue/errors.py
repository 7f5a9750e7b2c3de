"""
Every error that Segue raises, by what the caller may conclude from it.

    SegueError
    ├── NotDone                 nothing was written; the message names the next step
    │   ├── Invalid             refused at the door: a value, a body, an argument
    │   │   └── ViewInvalid     the messages would break a rule of the model's provider
    │   ├── NotFound            no such session (unknown, foreign and erased are one error)
    │   ├── Archived            the session is archived; restore it first
    │   ├── Conflict            somebody else was faster; read and decide again
    │   │   ├── Exists          the id or key is taken
    │   │   ├── IdConflict      an entry id is known with other content
    │   │   ├── HeadMoved       entries were appended since the head was read
    │   │   └── VersionMoved    the session's attributes changed since they were read
    │   ├── LeaseLost           a newer run holds the session; this run must stop
    │   ├── Busy                another run is active on the session
    │   │   └── QueueTimeout    the wait for the session's turn ran out
    │   ├── ConfigDrift         the agent's configuration is not the pinned one
    │   ├── StaleRead           the reading that a write rests on no longer holds
    │   │   └── Contended       refused so too often: a person must decide
    │   ├── MaskRefused         stale readings cannot be masked without breaking a rule of the provider
    │   ├── Unsupported         this store does not declare the capability
    │   ├── MissingExtra        an optional dependency is not installed
    │   ├── TooNew              the data was written by a newer Segue
    │   ├── Closed              the database handle was closed
    │   └── Unavailable         the store cannot work now
    │       ├── Locked          another program holds the file or row too long
    │       ├── ReadOnly        the file, disk or server takes no writes
    │       └── DiskFull        no space is left
    ├── OutcomeUnknown          it may have been written; retry with the same ids
    └── Corrupt                 stored data is damaged; stop and look
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class SegueError(Exception):
    """Base of all errors of Segue; catch a branch of the tree rather than this."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An error crosses to another process as it is, whatever its constructor takes.
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[SegueError], args: tuple[Any, ...]) -> SegueError:
    return kind.__new__(kind, *args)


class NotDone(SegueError):
    """Nothing was written. Mend the cause and call again."""


class Invalid(NotDone):
    """
    A value was refused before anything was written.

    Attributes:
        where: What was refused: an argument's name, or a path in a body such as ``entries[2].body``.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class ViewInvalid(Invalid):
    """
    The messages break a rule of the provider, which would refuse them.

    Attributes:
        rule: Short name of the broken rule, such as ``call-without-result``.
    """

    def __init__(self, message: str, *, rule: str, where: str = "") -> None:
        super().__init__(message, where=where)
        self.rule = rule


class NotFound(NotDone):
    """There is no such session in this scope. Unknown, foreign and erased ids are not told apart."""

    def __init__(self, session: str) -> None:
        super().__init__(f"no such session: {session!r}; list() shows the sessions of this scope")
        self.session = session


class Archived(NotDone):
    """The session is archived (or past its lifetime); ``restore()`` makes it usable again."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} is archived; restore() it first")
        self.session = session


class Conflict(NotDone):
    """Somebody else was faster. Read again, then decide again."""


class Exists(Conflict):
    """
    The id or key is taken.

    Attributes:
        session: The id of the session that has it, where that session is the caller's own.
    """

    def __init__(self, message: str, *, session: str | None = None) -> None:
        super().__init__(message)
        self.session = session


class IdConflict(Conflict):
    """An entry with this id is already stored with other content. Use a new id."""

    def __init__(self, entry_id: str, seq: int) -> None:
        super().__init__(
            f"entry id {entry_id!r} is already stored as seq {seq} with other content; use a new id for new content"
        )
        self.entry_id = entry_id
        self.seq = seq


class HeadMoved(Conflict):
    """Entries were appended since the head was read. Read them, then decide again."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"expected head {expected}, the session is at {actual}; read the new entries and decide again")
        self.expected = expected
        self.actual = actual


class VersionMoved(Conflict):
    """The session's attributes were changed since they were read. Read them again."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"expected version {expected}, the session has {actual}; read it again and decide again")
        self.expected = expected
        self.actual = actual


class LeaseLost(NotDone):
    """A newer run holds the session, or this one expired and was taken over. This run must stop."""

    def __init__(self, run: str, fence: int, current: int) -> None:
        super().__init__(
            f"run {run!r} (fence {fence}) no longer holds the session (fence {current}); "
            "stop, and start a new run to go on"
        )
        self.run = run
        self.fence = fence
        self.current = current


class Busy(NotDone):
    """
    Another run is active on the session.

    Attributes:
        run: The id of the run that holds it.
        waiting: How many runs wait before the caller's (0 where none waits).
    """

    def __init__(self, run: str, *, waiting: int = 0, message: str | None = None) -> None:
        super().__init__(
            message or f"run {run!r} is active on this session; wait for it, or use policy='enqueue' or 'interrupt'"
        )
        self.run = run
        self.waiting = waiting


class QueueTimeout(Busy):
    """The session did not become free within the time limit; the place in the queue was given up."""


class ConfigDrift(NotDone):
    """
    The agent's configuration differs from the one pinned to the session, and the policy is ``ask``.

    Attributes:
        changes: What differs, in words, one sentence each.
    """

    def __init__(self, changes: tuple[str, ...]) -> None:
        super().__init__(
            "the agent's configuration changed since this session was pinned to it: "
            + "; ".join(changes)
            + ". Resume with config='pin' to keep the old one or config='adopt' to take the new one"
        )
        self.changes = changes


class StaleRead(NotDone):
    """
    The world moved since it was read; the write was not made.

    Attributes:
        source: The source that was to be written, or that the write rests on.
        seen: The version the session has seen (None: never read).
        current: The version that holds now.
        also: The same of further sources that the write rests on.
    """

    def __init__(self, source: str, seen: Any, current: Any, *, also: Sequence[StaleRead] = ()) -> None:
        was = "this session never read it" if seen is None else f"this session has seen version {seen}"
        first = f"{source}: {was}, now it is {current}; read it again, then write"
        super().__init__("\n".join([first, *map(str, also)]))
        self.source = source
        self.seen = seen
        self.current = current
        self.also = tuple(also)


class Contended(StaleRead):
    """The source keeps changing under this run: retrying was refused too often. Let a person decide."""


class MaskRefused(NotDone):
    """
    Stale readings cannot be replaced in the view; the note about them is told all the same.

    Attributes:
        reason: ``signed-thinking`` (thinking or reasoning after them is bound to what stands before it: the
            provider would refuse or drop it) or ``format`` (Segue does not know how results look there).
        seq: The entry that stands in the way, or 0.
    """

    def __init__(self, message: str, *, reason: str, seq: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.seq = seq


class Unsupported(NotDone):
    """The store does not declare the capability that the call needs."""

    def __init__(self, capability: str, store: str) -> None:
        super().__init__(f"the {store} store does not support {capability!r}; see docs/stores.md for one that does")
        self.capability = capability
        self.store = store


class MissingExtra(NotDone):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed; run: pip install 'segue[{extra}]'")
        self.extra = extra
        self.module = module


class TooNew(NotDone):
    """The data was written by a newer Segue. Upgrade this one; nothing was touched."""

    def __init__(self, found: int, known: int, where: str) -> None:
        super().__init__(
            f"{where} has format {found}, this version of Segue knows up to {known}; "
            "run: pip install --upgrade segue (nothing was changed)"
        )
        self.found = found
        self.known = known


class Closed(NotDone):
    """The handle was closed. Open the store again."""


class Unavailable(NotDone):
    """The store cannot work now; nothing was written. The message says why and what to do."""


class Locked(Unavailable):
    """Another program holds the file or the row for too long."""


class ReadOnly(Unavailable):
    """The file, the disk or the server takes no writes."""


class DiskFull(Unavailable):
    """No space is left; free some and call again."""


class OutcomeUnknown(SegueError):
    """
    The connection or the disk failed at the commit: the operation may or may not have been done.

    Call again with the same ids: what was stored is recognised, what was not is stored.
    """


class Corrupt(SegueError):
    """
    Stored data is damaged. The rest stays readable; ``segue verify`` lists all damage.

    Attributes:
        session: The session's id, where known.
        seq: The entry's number, where known.
    """

    def __init__(self, message: str, *, session: str | None = None, seq: int | None = None) -> None:
        super().__init__(message)
        self.session = session
        self.seq = seq
