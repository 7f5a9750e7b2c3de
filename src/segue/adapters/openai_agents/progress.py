"""What each run of the SDK has read and stored, so that its writes rest on what it has read."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable
from typing import Any, TypeVar

from segue.errors import Conflict, HeadMoved
from segue.model import Usage

T = TypeVar("T")


class TurnLost(HeadMoved):
    """
    Another run advanced the session while this one was under way; what this one had stored is taken back.

    Attributes:
        session_id: The SDK's id of the session.
        taken_back: How many items of this run were retracted.
    """

    def __init__(self, session_id: str, *, expected: int, actual: int, taken_back: int) -> None:
        Conflict.__init__(
            self,
            f"another run advanced session {session_id!r} (head {expected}, now {actual}) while this one was under "
            f"way; its {taken_back} items were taken back: run it again, or run in "
            "`async with session.turn(policy='enqueue')`, which waits for its turn",
        )
        self.session_id = session_id
        self.expected = expected
        self.actual = actual
        self.taken_back = taken_back


class Progress:
    """
    One run's place in the session.

    Attributes:
        expected: The head that the run has read, or made by its last write; None: it has read nothing.
        seqs: What it has stored.
        spent: The tokens it had used at its last write.
        lost: Why it must write no more, or None.
    """

    def __init__(self, spent: Usage) -> None:
        self.expected: int | None = None
        self.seqs: list[int] = []
        self.spent = spent
        self.lost: TurnLost | None = None

    def read(self, head: int) -> None:
        """The run has read the session up to a head: it starts, or starts again, from there."""
        self.expected = head
        self.seqs = []
        self.lost = None

    def stored(self, seqs: tuple[int, ...], head: int) -> None:
        """The run has written, and nobody else in between."""
        self.seqs += seqs
        if self.expected is not None:
            self.expected = head

    def spend(self, now: Usage) -> Usage | None:
        """The tokens used since the last write, or None."""
        since = Usage(*(max(0, b - a) for a, b in zip(self.spent, now, strict=True)))
        self.spent = now
        return since if any(since) else None


class Runs:
    """The progress of the runs that use one session object, as long as their contexts live."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, Progress] = weakref.WeakKeyDictionary()

    def of(self, wrapper: Any) -> Progress | None:
        """The progress of the run with this context; None without a context (a call outside of a run)."""
        if wrapper is None:
            return None
        found = self._of.get(wrapper)
        if found is None:
            found = self._of[wrapper] = Progress(usage_of(wrapper))
        return found


def usage_of(wrapper: Any) -> Usage:
    """The tokens of a run so far, as the SDK counts them."""
    usage = getattr(wrapper, "usage", None)
    went_in, came_out = (getattr(usage, name, None) for name in ("input_tokens_details", "output_tokens_details"))
    return Usage(
        input=_count(usage, "input_tokens"),
        output=_count(usage, "output_tokens"),
        cache_read=_count(went_in, "cached_tokens"),
        cache_write=_count(went_in, "cache_write_tokens"),
        reasoning=_count(came_out, "reasoning_tokens"),
    )


def _count(counts: Any, name: str) -> int:
    value = getattr(counts, name, 0)
    return value if isinstance(value, int) and value >= 0 else 0


async def settled(work: Awaitable[T]) -> T:
    """Wait for a write's outcome however often the waiting is cancelled; then go on being cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller is told
        raise cancelled
    return task.result()
