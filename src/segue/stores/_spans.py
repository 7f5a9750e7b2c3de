"""What a reading asks for and must find, and where a list goes on: the same in all SQL servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import NamedTuple

from segue.errors import Corrupt, Invalid
from segue.model import Entry, ScopeKey


class Span(NamedTuple):
    """What a reading asks for."""

    session: str
    after: int
    upto: int
    reverse: bool
    limit: int

    def first_missing(self, entries: Sequence[Entry], head: int) -> int | None:
        """The first seq that should be among the entries and is not; all of them are numbered without gaps."""
        last = min(self.upto, head)
        count = max(0, min(self.limit, last - self.after))
        wanted = range(last, last - count, -1) if self.reverse else range(self.after + 1, self.after + 1 + count)
        for seq, entry in zip(wanted, entries, strict=False):
            if entry.seq != seq:
                return seq
        return wanted[len(entries)] if len(entries) < count else None


def lost(session: str, seq: int) -> Corrupt:
    """The error for an entry that should be there and is not."""
    return Corrupt(
        f"session {session!r}, entry {seq} is missing; restore it from a backup, or run segue verify to see all damage",
        session=session,
        seq=seq,
    )


def write_cursor(scope: ScopeKey, order: str, place_us: int, session: str) -> str:
    """A cursor behind the session at that place of the list in that order."""
    return base64.urlsafe_b64encode(json.dumps([*scope, order, place_us, session]).encode()).decode()


def read_cursor(cursor: str, scope: ScopeKey, order: str) -> tuple[int, str]:
    """
    The place that a cursor stands for.

    Raises:
        Invalid: It is of another list.
    """
    try:
        tenant, user, name, us, session = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError) as error:
        raise Invalid("this is no cursor of this store; begin again without one", where="cursor") from error
    if (tenant, user, name) != (*scope, order) or not isinstance(us, int) or not isinstance(session, str):
        raise Invalid("this cursor belongs to another list; begin again without one", where="cursor")
    return us, session
