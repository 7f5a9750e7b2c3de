"""
How operations become transactions: few commits, no half ones, and no guess about a cut connection.

Operations that concern one session each share a transaction, whose rows are locked sorted by session.
What rolls a transaction back for the sake of one operation is no reason to refuse all: then each has a
transaction of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

import pymysql
from pymysql.connections import Connection

from segue import codec
from segue.errors import Corrupt, Invalid, NotDone, OutcomeUnknown, SegueError, Unavailable
from segue.store import Append, Create, Erase, Fork, Hollow, Op, Release, Renew, Result, Take, Update

from ._mysql_append import append, must_look, release, renew, take
from ._mysql_errors import LOCK_WAIT, TAKEN, is_about_values, judge, number_of, translate
from ._mysql_pool import Answers, Pool
from ._mysql_rows import entry_values, pack_tags, pack_title
from ._mysql_sessions import create, erase, fork, hollow, touched_by_erase, update
from ._mysql_work import Place, Statement, Work, size_of

TURNS_MAX = 6
"""How often operations are sent that others keep rolling back."""

PATIENCE_SECONDS = 5.0
"""How long a cut connection is followed up, so that its operations can be told done or not done."""

FRAME_BYTES = 4096
"""What a message may have besides one row: its statement, and a margin."""

Answer: TypeAlias = Result | NotDone
_Answers: TypeAlias = dict[int, Answer]
_Ops: TypeAlias = Sequence[tuple[int, Op]]

_REPEATABLE = (Append, Create, Fork, Take, Renew, Release)


class _OneByOneError(Exception):
    """The transaction was rolled back for a reason that may be one operation's alone."""


@dataclass(slots=True)
class _Attempt:
    """
    How far an attempt has come.

    Attributes:
        is_careful: Ids are looked up before they are taken for new.
        may_be_done: From now on a cut leaves the outcome open.
        is_at_commit: It was the commit that the server answered with an error.
        failed: The statement that it answered so.
    """

    is_careful: bool
    may_be_done: bool = False
    is_at_commit: bool = False
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Committer:
    """Carries out operations on the connections of a pool."""

    pool: Pool

    def commit(self, ops: Sequence[Op], shift_us: int) -> list[Answer]:
        """See ``segue.store.Store.commit``."""
        answers: _Answers = {}
        todo: list[tuple[int, Op]] = []
        for place, op in enumerate(ops):
            refusal = _too_large(op, self.pool.target.packet_max_bytes)
            if refusal is None:
                todo.append((place, op))
            else:
                answers[place] = refusal
        for group in _groups(todo):
            try:
                answers |= self._group(group, shift_us)
            except Unavailable as error:  # raised when it is true of all, else it is the answer of some
                if not answers:
                    raise
                answers |= {place: error for place in range(len(ops)) if place not in answers}
                break
        return [answers[place] for place in range(len(ops))]

    def _group(self, group: _Ops, shift_us: int) -> _Answers:
        try:
            return self._persist(group, shift_us)
        except _OneByOneError:
            return self._one_by_one(group, shift_us)
        except Invalid as error:  # of one operation alone, else it would have been tried one by one
            return {place: error for place, _ in group}

    def _one_by_one(self, group: _Ops, shift_us: int) -> _Answers:
        answers: _Answers = {}
        locked: dict[Place, Unavailable] = {}
        for place, op in group:
            session = _target(op)
            if session in locked:  # its lock was waited for; whoever stands behind need not wait again
                answers[place] = locked[session]
                continue
            try:
                answers |= self._persist([(place, op)], shift_us)
            except Invalid as error:
                answers[place] = error
            except Unavailable as error:
                answers[place] = locked[session] = error
        if locked and all(isinstance(answer, Unavailable) for answer in answers.values()):
            raise next(iter(locked.values()))
        return answers

    def _persist(self, group: _Ops, shift_us: int) -> _Answers:
        """
        Carry operations out in one transaction, again and again where that is safe.

        After a cut, only those that are known again by their ids are sent a second time.
        """
        is_repeatable = all(isinstance(op, _REPEATABLE) for _, op in group)
        is_unknown = is_careful = False
        turns = 0
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            attempt = _Attempt(is_careful)
            try:
                return self._attempt(group, shift_us, attempt, is_repeatable=is_repeatable)
            except pymysql.MySQLError as error:
                turns += 1
                verdict = judge(error, is_at_commit=attempt.is_at_commit)
                failure = self._meaning(error, group, attempt)
                is_unknown |= verdict == "cut" and attempt.may_be_done
                is_careful = True
                if verdict == "cut":
                    self.pool.drop_idle()
                elif len(group) > 1 and not is_unknown and (number_of(error) == LOCK_WAIT or is_about_values(error)):
                    raise _OneByOneError from error
                is_final = (
                    verdict == "no"
                    or turns >= TURNS_MAX
                    or (is_unknown and not is_repeatable)
                    or (number_of(error) == LOCK_WAIT and not is_unknown)
                )
            except SegueError as error:  # no connection was to be had; nothing was sent
                failure = error
                is_final = not is_unknown
            if is_final or time.monotonic() > until:
                raise _concluded(failure, is_unknown=is_unknown)
            time.sleep(random.uniform(0.002, 0.008) * 2**turns)  # noqa: S311 - no secret

    def _meaning(self, error: pymysql.MySQLError, group: _Ops, attempt: _Attempt) -> SegueError:
        is_entry = attempt.failed.startswith("INSERT INTO entries") and "PRIMARY" in str(error)
        if number_of(error) == TAKEN and attempt.is_careful and is_entry:
            names = ", ".join(sorted({_target(op)[1] for _, op in group}))
            return Corrupt(f"an entry lies behind the head of a session of {names}; run segue verify to see all damage")
        return translate(error, self.pool.target.where)

    def _attempt(self, group: _Ops, shift_us: int, attempt: _Attempt, *, is_repeatable: bool) -> _Answers:
        with self.pool.connection() as conn, _rolled_back_on_error(conn):
            work = Work(conn, shift_us=shift_us, is_careful=attempt.is_careful)
            _lock(work, [op for _, op in group])
            answers = {place: _answered(work, op) for place, op in group}
            messages = work.flush(self.pool.target.packet_max_bytes - FRAME_BYTES)
            if not work.wrote:
                conn.rollback()
                return answers
            if not (messages and is_repeatable):
                # The commit apart from what comes before, so that a cut before this is known to have changed nothing.
                messages.append([])
            for message in messages[:-1]:
                _send(conn, message, attempt)
            attempt.may_be_done = True
            _send(conn, messages[-1], attempt, commits=True)
        return answers


def _lock(work: Work, ops: Sequence[Op]) -> None:
    places = [place for op in ops for place in _places(work, op)]
    work.lock(
        places,
        whole=any(isinstance(op, Update) for op in ops),
        queues=any(isinstance(op, Update | Take) for op in ops),
    )
    asked = []
    for op in ops:
        row = work.find(op.scope, op.session) if isinstance(op, Append) else None
        if isinstance(op, Append) and row is not None and row.erased_us is None and must_look(work, row, op):
            asked.append((row, op.entries))
    work.look(asked)


def _places(work: Work, op: Op) -> list[Place]:
    """The sessions whose rows an operation needs locked."""
    if isinstance(op, Fork):
        return [_target(op), (op.create.scope, op.source)]
    return touched_by_erase(work, op) if isinstance(op, Erase) else [_target(op)]


def _answered(work: Work, op: Op) -> Answer:
    try:
        return _do(work, op)
    except NotDone as refusal:
        return refusal


def _do(work: Work, op: Op) -> Result:
    match op:
        case Append():
            return append(work, op)
        case Take():
            return take(work, op)
        case Renew():
            return renew(work, op)
        case Release():
            release(work, op)
            return None
        case Create():
            return create(work, op)
        case Fork():
            return fork(work, op)
        case Update():
            return update(work, op)
        case Hollow():
            return hollow(work, op)
        case Erase():
            return erase(work, op)
        case _:
            assert_never(op)


def _send(conn: Connection[Any], message: Sequence[Statement], attempt: _Attempt, *, commits: bool = False) -> None:
    """Send statements, and maybe the commit behind them in the same message."""
    texts = [statement.text for statement in message] + (["COMMIT"] if commits else [])
    answers = Answers(conn)
    try:
        answers.send(texts, [value for statement in message for value in statement.values])
    except pymysql.MySQLError:
        attempt.failed = texts[len(answers.rows)]
        attempt.is_at_commit = attempt.failed == "COMMIT"
        raise


@contextmanager
def _rolled_back_on_error(conn: Connection[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if conn.open:
            with suppress(pymysql.MySQLError):
                conn.rollback()
        raise


def _concluded(failure: SegueError, *, is_unknown: bool) -> SegueError:
    if not is_unknown:
        return failure
    return OutcomeUnknown(
        f"{failure} - the connection was lost at the commit, so this may or may not have been stored; "
        "call again with the same ids"
    )


def _too_large(op: Op, most_bytes: int) -> Invalid | None:
    """Why an operation cannot be sent: one of its rows has more bytes than a message may have."""
    made = op.create if isinstance(op, Fork) else op
    if not isinstance(made, Append | Take | Create | Update):
        return None
    rows = [] if isinstance(made, Update) else [entry_values(0, 0, draft, b"", 0) for draft in made.entries]
    largest = max((size_of(row) for row in rows if row[6]), default=0)
    try:
        largest = max(largest, _attributes_size(made))
    except Invalid as error:
        return error
    if largest + FRAME_BYTES <= most_bytes:
        return None
    return Invalid(
        f"an entry (or a session's attributes) takes {largest:,} bytes on its way to the server, whose "
        f"max_allowed_packet is {most_bytes:,}; store less, or raise max_allowed_packet"
    )


def _attributes_size(op: Append | Take | Create | Update) -> int:
    given: Mapping[str, Any]
    if isinstance(op, Create):
        given = {"title": op.title, "tags": op.tags, "metadata": op.metadata, "config": op.config}
    elif isinstance(op, Update):
        given = op.changes
    else:
        return 0
    metadata = codec.encode(dict(given.get("metadata", {})), where="metadata")
    title, tags = pack_title(given.get("title", "")), pack_tags(given.get("tags", ()))
    return size_of((title, tags, metadata, given.get("config"))) + FRAME_BYTES


def _target(op: Op) -> Place:
    """The session that an operation writes to."""
    if isinstance(op, Fork):
        op = op.create
    return op.scope, op.id if isinstance(op, Create) else op.session


def _groups(todo: _Ops) -> Iterator[_Ops]:
    """
    What shares a transaction: neighbours that concern one session each.

    An operation that waits for a key or for several sessions is alone, so that no two of us, each
    holding what the other waits for, stand still; and one that changes entries in place, at once.
    """
    group: list[tuple[int, Op]] = []
    for place, op in todo:
        is_alone = _is_alone(op)
        if group and is_alone:
            yield group
            group = []
        if is_alone:
            yield [(place, op)]
        else:
            group.append((place, op))
    if group:
        yield group


def _is_alone(op: Op) -> bool:
    if isinstance(op, Create):
        return op.key is not None
    if isinstance(op, Update):
        return "key" in op.changes
    return isinstance(op, Fork | Erase | Hollow)
