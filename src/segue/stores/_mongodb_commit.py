"""
How operations become transactions: few commits, no half ones, and no guess about a commit that was not answered.

Neighbouring operations share a transaction. What others roll back is done again as a whole; when that
does not help, each operation has a transaction of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pymongo.errors import PyMongoError

from segue.errors import Invalid, NotDone, OutcomeUnknown, SegueError, Unavailable
from segue.model import ScopeKey
from segue.store import Append, Create, Fork, Op, Result, Take

from ._mongodb_door import check_op
from ._mongodb_errors import DRIVER_ERRORS, DUPLICATE, TRANSIENT, UNKNOWN_COMMIT, code_of, judge, translate
from ._mongodb_link import Link, Session
from ._mongodb_ops import do
from ._mongodb_work import Clock, Work

GROUP_MAX = 64
"""Most operations of one transaction."""

GROUP_MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of bodies in one transaction, unless one operation alone has more."""

BATCH_MAX_BYTES = 64 * 1024 * 1024
"""Most bytes of bodies in one operation."""

TURNS_MAX = 4
"""How often a group is done again that others keep rolling back, before each of it is done by itself."""

Answer: TypeAlias = Result | NotDone
_Answers: TypeAlias = dict[int, Answer]
_Ops: TypeAlias = Sequence[tuple[int, Op]]


class _OneByOneError(Exception):
    """The transaction was rolled back for a reason that may be one operation's alone."""


@dataclass(frozen=True, slots=True)
class Committer:
    """Carries out operations; waits for others, and for the answer to a commit, as long as ``patience_seconds``."""

    link: Link
    clock: Clock
    patience_seconds: float

    def commit(self, ops: Sequence[Op]) -> list[Answer]:
        """See ``segue.store.Store.commit``."""
        answers: _Answers = {}
        todo: list[tuple[int, Op]] = []
        for place, op in enumerate(ops):
            try:
                _check(op)
            except Invalid as refusal:
                answers[place] = refusal
            else:
                todo.append((place, op))
        self._commit(todo, answers)
        return [answers[place] for place in range(len(ops))]

    def _commit(self, todo: _Ops, answers: _Answers) -> None:
        """Answer all; ``Unavailable`` is raised when it is true of all, else it is the answer of some."""
        for group in _groups(todo):
            try:
                answers |= self._group(group)
            except Unavailable as error:
                if not answers:
                    raise
                answers |= {place: error for place, _ in todo if place not in answers}
                return

    def _group(self, group: _Ops) -> _Answers:
        try:
            return self._persist(group)
        except _OneByOneError:
            return self._one_by_one(group)

    def _one_by_one(self, group: _Ops) -> _Answers:
        answers: _Answers = {}
        held: dict[tuple[ScopeKey, str], Unavailable] = {}
        for place, op in group:
            session = _target(op)
            if session in held:  # it was waited for; whoever stands behind need not wait again
                answers[place] = held[session]
                continue
            try:
                answers |= self._group([(place, op)])
            except Invalid as error:
                answers[place] = error
            except Unavailable as error:
                answers[place] = held[session] = error
        if held and all(isinstance(answer, Unavailable) for answer in answers.values()):
            raise next(iter(held.values()))
        return answers

    def _persist(self, group: _Ops) -> _Answers:
        """Carry the group out in one transaction, as a whole again and again while others are in the way."""
        until = time.monotonic() + self.patience_seconds
        for turn in range(1_000_000):
            try:
                return self._attempt(group)
            except DRIVER_ERRORS as error:
                verdict = judge(error)
                if len(group) > 1 and (verdict == "values" or (verdict == "again" and turn + 1 >= TURNS_MAX)):
                    raise _OneByOneError from error
                is_lasting = code_of(error) == DUPLICATE and turn + 1 >= TURNS_MAX
                if verdict != "again" or is_lasting or time.monotonic() > until:
                    failure = translate(error, self.link.where)
                    if isinstance(failure, Invalid):
                        return {place: failure for place, _ in group}
                    raise failure from error
            _pause(turn)
        raise AssertionError

    def _attempt(self, group: _Ops) -> _Answers:
        with self.link.transaction() as session:
            work = Work(self.link, session, self.clock)
            answers = {place: _try(work, op) for place, op in group}
            self._finish(session)
        return answers

    def _finish(self, session: Session) -> None:
        """
        Commit, and ask again until the server says whether it did.

        The server remembers a transaction's outcome by its number, so that asking again never does it twice.
        """
        until = time.monotonic() + self.patience_seconds
        for turn in range(1_000_000):
            try:
                session.commit_transaction()
            except DRIVER_ERRORS as error:
                if _has_label(error, TRANSIENT):
                    raise  # certain: it was rolled back
                if not _has_label(error, UNKNOWN_COMMIT) or time.monotonic() > until:
                    raise _unknown(error, self.link.where) from error
            else:
                return
            _pause(turn)


def _try(work: Work, op: Op) -> Answer:
    try:
        return do(work, op)
    except Unavailable:
        raise
    except NotDone as refusal:
        return refusal


def _has_label(error: Exception, label: str) -> bool:
    return isinstance(error, PyMongoError) and error.has_error_label(label)


def _unknown(error: Exception, where: str) -> SegueError:
    return OutcomeUnknown(
        f"{translate(error, where)} - the commit was not answered, so this may or may not have been stored; "
        "call again with the same ids"
    )


def _pause(turn: int) -> None:
    time.sleep(random.uniform(0, 0.004) * 2 ** min(turn, 5))  # noqa: S311 - no secret


def _check(op: Op) -> None:
    check_op(op)
    size = _size(op)
    if size > BATCH_MAX_BYTES:
        raise Invalid(f"the bodies of this append have over {BATCH_MAX_BYTES:,} bytes; append them in parts")


def _size(op: Op) -> int:
    made = op.create if isinstance(op, Fork) else op
    return sum(len(draft.body) for draft in made.entries) if isinstance(made, Append | Take | Create) else 0


def _target(op: Op) -> tuple[ScopeKey, str]:
    """The session that an operation writes to."""
    if isinstance(op, Fork):
        op = op.create
    return op.scope, op.id if isinstance(op, Create) else op.session


def _groups(todo: _Ops) -> Iterator[_Ops]:
    """What shares a transaction, in the order given."""
    group: list[tuple[int, Op]] = []
    size = 0
    for place, op in todo:
        mine = _size(op)
        if group and (len(group) >= GROUP_MAX or size + mine > GROUP_MAX_BYTES):
            yield group
            group, size = [], 0
        group.append((place, op))
        size += mine
    if group:
        yield group
