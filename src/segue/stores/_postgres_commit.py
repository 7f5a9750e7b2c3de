"""
How operations become transactions: few commits, no half ones, and no guess about a cut connection.

Operations that concern one session each go into one transaction, in one round trip, sorted by session
so that no two of us wait for each other in a circle. What rolls a transaction back for the sake of one
operation is no reason to refuse all: then each has a transaction of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import Format as WireFormat

from segue.errors import Invalid, NotDone, OutcomeUnknown, SegueError, Unavailable
from segue.model import ScopeKey
from segue.store import Append, Create, Erase, Fork, Op, Take, Update

from ._postgres_calls import Answer, Call, Calls
from ._postgres_errors import is_about_values, judge, translate
from ._postgres_pool import Connection, Pool
from ._postgres_repeats import Finish, Refused, without_repeats
from ._postgres_wire import BATCH_MAX_BYTES, Row

TURNS_MAX = 4
"""How often operations are sent that others keep rolling back."""

PATIENCE_SECONDS = 5.0
"""How long a cut connection is followed up, so that its operations can be told done or not done."""

STATEMENT_MAX_BYTES = 32 * 1024 * 1024
"""Most bytes of bodies in one statement, unless one append alone has more."""

_Answers: TypeAlias = dict[int, Answer]
_Op: TypeAlias = Op | Refused
_Ops: TypeAlias = Sequence[tuple[int, _Op]]


class _OneByOneError(Exception):
    """The transaction was rolled back for a reason that may be one operation's alone."""


@dataclass(slots=True)
class _Attempt:
    """How far an attempt has come: once ``may_be_done``, a cut leaves the outcome open."""

    may_be_done: bool = False


@dataclass(frozen=True, slots=True)
class Committer:
    """Carries out operations on the connections of a pool."""

    pool: Pool
    calls: Calls
    has_row_security: bool

    def commit(self, ops: Sequence[Op], shift_us: int) -> list[Answer]:
        """See ``segue.store.Store.commit``."""
        answers: _Answers = {}
        finishes: dict[int, Finish] = {}
        todo: list[tuple[int, _Op]] = []
        for place, asked in enumerate(ops):
            op, finish = _prepared(asked)
            if isinstance(op, NotDone):
                answers[place] = op
            else:
                todo.append((place, op))
            if finish is not None:
                finishes[place] = finish
        self._commit(todo, shift_us, answers)
        for place, finish in finishes.items():
            answers[place] = finish(answers[place])
        return [answers[place] for place in range(len(ops))]

    def _commit(self, todo: _Ops, shift_us: int, answers: _Answers) -> None:
        """Answer all; ``Unavailable`` is raised when it is true of all, else it is the answer of some."""
        for group in _groups(todo, by_scope=self.has_row_security):
            try:
                answers |= self._group(group, shift_us)
            except Unavailable as error:
                if not answers:
                    raise
                answers |= {place: error for place, _ in todo if place not in answers}
                return

    def _group(self, group: _Ops, shift_us: int) -> _Answers:
        answers: _Answers = {}
        calls: list[Call] = []
        for run in _runs(group):
            try:
                calls.append(self.calls.make([place for place, _ in run], [op for _, op in run], shift_us))
            except Invalid as error:  # of metadata, which only calls of one operation have
                answers |= {place: error for place, _ in run}
        if not calls:
            return answers
        scope = _target(group[0][1])[0] if self.has_row_security else None
        try:
            return answers | self._persist(calls, scope, is_alone=len(group) == 1)
        except _OneByOneError:
            return answers | self._one_by_one([(place, op) for place, op in group if place not in answers], shift_us)

    def _one_by_one(self, group: _Ops, shift_us: int) -> _Answers:
        answers: _Answers = {}
        locked: dict[tuple[ScopeKey, str], Unavailable] = {}
        for place, op in group:
            session = _target(op)
            if session in locked:  # its lock was waited for; whoever stands behind need not wait again
                answers[place] = locked[session]
                continue
            try:
                answers |= self._group([(place, op)], shift_us)
            except Invalid as error:
                answers[place] = error
            except Unavailable as error:
                answers[place] = locked[session] = error
        if locked and all(isinstance(answer, Unavailable) for answer in answers.values()):
            raise next(iter(locked.values()))
        return answers

    def _persist(self, calls: Sequence[Call], scope: ScopeKey | None, *, is_alone: bool) -> _Answers:
        """
        Carry the calls out in one transaction, again and again where that is safe.

        After a cut, only calls that are known again by their ids are sent a second time.
        """
        is_repeatable = all(call.is_repeatable for call in calls)
        is_unknown = False
        turns = 0
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            attempt = _Attempt()
            try:
                return self._attempt(calls, scope, attempt, is_repeatable=is_repeatable)
            except psycopg.Error as error:
                turns += 1
                verdict = judge(error)
                failure = translate(error, self.pool.target.where)
                is_unknown |= verdict == "cut" and attempt.may_be_done
                if verdict == "cut":
                    self.pool.drop_idle()
                elif not is_alone and not is_unknown and (verdict == "again" or is_about_values(error)):
                    raise _OneByOneError from error
                is_final = verdict == "no" or turns >= TURNS_MAX or (is_unknown and not is_repeatable)
            except SegueError as error:  # no connection was to be had; nothing was sent
                failure = error
                is_final = not is_unknown
            if is_final or time.monotonic() > until:
                raise _concluded(failure, is_unknown=is_unknown)
            time.sleep(random.uniform(0.01, 0.04) * 2**turns)  # noqa: S311 - no secret

    def _attempt(
        self, calls: Sequence[Call], scope: ScopeKey | None, attempt: _Attempt, *, is_repeatable: bool
    ) -> _Answers:
        with self.pool.connection() as conn:
            if len(calls) == 1 and is_repeatable and scope is None:
                attempt.may_be_done = True  # one statement is a transaction by itself: it commits as it ends
                rows = [_send(conn, calls[0].statement, calls[0].args).fetchall()]
            else:
                rows = self._transact(conn, calls, scope, attempt, is_repeatable=is_repeatable)
        answers: _Answers = {}
        for call, found in zip(calls, rows, strict=True):
            answers |= zip(call.places, call.settle(found), strict=True)
        return answers

    def _transact(
        self,
        conn: Connection,
        calls: Sequence[Call],
        scope: ScopeKey | None,
        attempt: _Attempt,
        *,
        is_repeatable: bool,
    ) -> list[list[Row]]:
        with conn.pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
            conn.execute(b"BEGIN")
            if not self.pool.target.is_direct:
                conn.execute(
                    b"SELECT set_config('statement_timeout', %s, true)", (str(self.pool.target.limits.statement_ms),)
                )
            if scope is not None:
                enter(conn, scope)
            cursors = [_send(conn, call.statement, call.args) for call in calls]
            if is_repeatable:
                attempt.may_be_done = True
                conn.execute(b"COMMIT")
        if not is_repeatable:
            # Apart from what came before, so that a cut before this is known to have changed nothing.
            attempt.may_be_done = True
            conn.execute(b"COMMIT")
        return [cursor.fetchall() for cursor in cursors]


def enter(conn: Connection, scope: ScopeKey | None) -> None:
    """Let row-level security show this scope's rows, or (None) all of them to look at, until the transaction ends."""
    if scope is None:
        conn.execute(b"SELECT set_config('segue.upkeep', 'on', true)")
    else:
        conn.execute(b"SELECT set_config('segue.tenant', %s, true), set_config('segue.user', %s, true)", tuple(scope))


def _send(conn: Connection, statement: bytes, args: tuple[Any, ...]) -> psycopg.RawCursor[Row]:
    cursor = psycopg.RawCursor(conn)
    cursor.format = WireFormat.BINARY
    return cursor.execute(statement, args)


def _concluded(failure: SegueError, *, is_unknown: bool) -> SegueError:
    if not is_unknown:
        return failure
    return OutcomeUnknown(
        f"{failure} - the connection was lost at the commit, so this may or may not have been stored; "
        "call again with the same ids"
    )


def _prepared(op: Op) -> tuple[_Op | NotDone, Finish | None]:
    made = op.create if isinstance(op, Fork) else op
    if not isinstance(made, Append | Take | Create) or not made.entries:
        return op, None
    if sum(len(draft.body) for draft in made.entries) > BATCH_MAX_BYTES:
        return Invalid(f"the bodies of this append have over {BATCH_MAX_BYTES:,} bytes; append them in parts"), None
    if any("\n" in ref for draft in made.entries for ref in draft.refs):
        return Invalid("a ref holds a line break; use names without control characters", where="refs"), None
    if isinstance(op, Append | Take) and len({draft.id for draft in op.entries}) < len(op.entries):
        return without_repeats(op)
    return op, None


def _target(op: _Op) -> tuple[ScopeKey, str]:
    """The session that an operation writes to."""
    if isinstance(op, Fork):
        op = op.create
    return op.scope, op.id if isinstance(op, Create) else op.session


def _groups(todo: _Ops, *, by_scope: bool) -> Iterator[_Ops]:
    """
    What shares a transaction: neighbours that concern one session each.

    An operation that waits for a key or for several sessions is alone, so that no two of us, each
    holding what the other waits for, stand still. Under row-level security a transaction sees one scope.
    """
    group: list[tuple[int, _Op]] = []
    for place, op in todo:
        is_wide = _is_wide(op)
        if group and (is_wide or (by_scope and _target(op)[0] != _target(group[0][1])[0])):
            yield group
            group = []
        if is_wide:
            yield [(place, op)]
        else:
            group.append((place, op))
    if group:
        yield group


def _runs(group: _Ops) -> Iterator[_Ops]:
    """What shares a call: neighbouring appends, after sorting by session."""
    run: list[tuple[int, _Op]] = []
    size = 0
    for place, op in sorted(group, key=_by_session):
        if not isinstance(op, Append):
            if run:
                yield run
            yield [(place, op)]
            run, size = [], 0
            continue
        mine = sum(len(draft.body) for draft in op.entries)
        if run and size + mine > STATEMENT_MAX_BYTES:
            yield run
            run, size = [], 0
        run.append((place, op))
        size += mine
    if run:
        yield run


def _by_session(item: tuple[int, _Op]) -> tuple[ScopeKey, str]:
    return _target(item[1])


def _is_wide(op: _Op) -> bool:
    """True when it concerns more than one session, by a key or by what they share."""
    if isinstance(op, Create):
        return op.key is not None
    if isinstance(op, Update):
        return "key" in op.changes
    return isinstance(op, Fork | Erase)
