"""Batches in which an entry id comes more than once: told apart here, so that SQL sees each id once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from segue.errors import NotDone
from segue.model import Draft, ScopeKey
from segue.store import Append, Appended, Op, Result, Take

Finish: TypeAlias = Callable[[Result | NotDone], Result | NotDone]


class Distinct(NamedTuple):
    """
    A batch with each entry once.

    Attributes:
        entries: Those that come first.
        places: For each entry of the whole batch, which of ``entries`` it is.
        twice: Which of ``entries`` comes again with other content; the batch is cut off before that. None: none.
    """

    entries: tuple[Draft, ...]
    places: tuple[int, ...]
    twice: int | None = None


def distinct(entries: Sequence[Draft]) -> Distinct:
    """Tell the entries of a batch apart."""
    first: dict[str, int] = {}
    kept: list[Draft] = []
    places: list[int] = []
    for draft in entries:
        place = first.setdefault(draft.id, len(kept))
        if place == len(kept):
            kept.append(draft)
        elif kept[place].digest != draft.digest:
            return Distinct(tuple(kept), tuple(places), place)
        places.append(place)
    return Distinct(tuple(kept), tuple(places))


@dataclass(frozen=True, slots=True)
class Refused:
    """An append or take of an id twice with different content, of which only the reason is to be found out."""

    op: Append | Take
    entries: tuple[Draft, ...]
    twice: int

    @property
    def scope(self) -> ScopeKey:
        """The owner of the session."""
        return self.op.scope

    @property
    def session(self) -> str:
        """The session that it was to write to."""
        return self.op.session


def without_repeats(op: Append | Take) -> tuple[Op | Refused, Finish | None]:
    """An operation with each entry once, and what makes its answer that of the whole."""
    entries, places, twice = distinct(op.entries)
    if twice is not None:
        return Refused(op, entries, twice), None

    def finish(answer: Result | NotDone) -> Result | NotDone:
        if isinstance(answer, Appended):
            return answer._replace(seqs=tuple(answer.seqs[place] for place in places))
        return answer

    return replace(op, entries=entries), finish
