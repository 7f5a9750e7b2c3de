"""Batches in which an entry id comes more than once: told apart here, so that SQL sees each id once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from segue.errors import Archived, HeadMoved, IdConflict, NotDone, NotFound
from segue.model import Draft
from segue.store import Append, Appended, Create, Op, Result, Take

Finish: TypeAlias = Callable[[Result | NotDone], Result | NotDone]


def without_repeats(op: Append | Take | Create) -> tuple[Op | NotDone, Finish | None]:
    """The operation with each entry once (or its refusal), and what makes its answer that of the whole."""
    first: dict[str, int] = {}
    kept: list[Draft] = []
    places: list[int] = []
    for draft in op.entries:
        place = first.setdefault(draft.id, len(kept))
        if place == len(kept):
            kept.append(draft)
        elif kept[place].digest != draft.digest:
            return _conflict(op, kept, place)
        places.append(place)

    def finish(answer: Result | NotDone) -> Result | NotDone:
        if isinstance(answer, Appended):
            return answer._replace(seqs=tuple(answer.seqs[place] for place in places))
        return answer

    return replace(op, entries=tuple(kept)), finish


def _conflict(op: Append | Take | Create, kept: Sequence[Draft], place: int) -> tuple[Op | NotDone, Finish | None]:
    """
    An id comes twice with different content: refused, unless something before it is.

    Asked by an append that cannot be done, since no head is -1.
    """
    draft = kept[place]
    if isinstance(op, Create):
        return IdConflict(draft.id, (op.parent.seq if op.parent else 0) + place + 1), None
    earlier: tuple[type[NotDone], ...] = (
        (NotFound, IdConflict) if isinstance(op, Append) else (NotFound, Archived, IdConflict)
    )

    def finish(answer: Result | NotDone) -> Result | NotDone:
        if isinstance(answer, earlier):
            return answer
        if isinstance(answer, Appended):  # all before it was known already
            return IdConflict(draft.id, answer.seqs[place])
        head = answer.actual if isinstance(answer, HeadMoved) else 0
        return IdConflict(draft.id, head + place + 1)

    entries = tuple(known._replace(kind="note") for known in kept)
    return Append(op.scope, op.session, entries, expect=-1), finish
