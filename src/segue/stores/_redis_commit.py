"""
How operations become calls: one for each scope, all of a round together, and no guess about a cut connection.

A call does its operations in order. What it says of each is final. A call that is not known to have been done is
repeated only where ids make that safe.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from segue.errors import Corrupt, Invalid, NotDone, OutcomeUnknown, SegueError, Unavailable
from segue.model import ScopeKey
from segue.store import Append, Create, Fork, Op

from ._redis_calls import Answer, Call, check, is_repeatable, size, target
from ._redis_errors import judge, translate
from ._redis_keys import Keys, Lineage, Table
from ._redis_link import Link
from ._redis_wire import Reply
from ._redis_wires import Command

CALL_MAX = 100
"""Most operations of one call: nobody else is served meanwhile."""

CALL_MAX_BYTES = 8 * 1024 * 1024
"""Most bytes of bodies in one call, unless one operation alone has more."""

TURNS_MAX = 4
"""How often a call is sent that the server puts off."""

PATIENCE_SECONDS = 5.0
"""How long a cut connection is followed up, so that its operations can be told done or not done."""

_PARTS = ("write_1_rows", "write_2_append", "write_3_lease", "write_4_sessions", "write_5_erase", "write_6_all")
_APPEND = ("write_1_rows", "write_2_append", "write_6_all")
"""Enough for appends alone: what a script defines, it defines at every call."""
_Item = tuple[int, Op]


class Script:
    """A script and the number that the server knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self._number = sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def command(self, keys: Sequence[bytes], args: Sequence[Any], *, is_new: bool) -> Command:
        """A call of it; ``is_new`` sends the text along, for a server that does not know it."""
        name, what = (b"EVAL", self.text) if is_new else (b"EVALSHA", self._number)
        return Command(keys[0], (name, what, len(keys), *keys, *args))


@cache
def script(*names: str) -> Script:
    """The script that some files make together."""
    folder = files(__package__).joinpath("_redis")
    return Script("\n".join(folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names))


@dataclass(slots=True)
class _Work:
    """What is still to be done in one scope."""

    todo: deque[_Item]
    moment: str | None = None
    is_new: bool = False
    is_unknown: bool = False
    turns: int = 0
    error: SegueError | None = None


@dataclass(slots=True)
class _Sent:
    """One call under way."""

    items: list[_Item]
    calls: list[Call]
    command: Command


@dataclass(slots=True)
class _Commit:
    """One commit: the answers so far, and when its patience ends."""

    shift_us: int
    answers: dict[int, Answer] = field(default_factory=dict)
    has_unrepeatable: bool = False
    until: float = 0.0


class Committer:
    """
    Carries out operations on a link.

    Args:
        keys: Names of the keys.
        lineage: What forks share.
        channel: Where changes are published; empty: nowhere.
        sender: What they are signed with.
    """

    def __init__(self, link: Link, keys: Keys, lineage: Lineage, *, channel: str, sender: str) -> None:
        self.link = link
        self.sender = sender
        self._keys = keys
        self._lineage = lineage
        self._channel = channel
        self._registered: set[ScopeKey] = set()
        self._lock = threading.Lock()

    def commit(self, ops: Sequence[Op], shift_us: int) -> list[Answer]:
        """See ``segue.store.Store.commit``."""
        commit = _Commit(shift_us, until=time.monotonic() + PATIENCE_SECONDS)
        works: dict[ScopeKey, _Work] = {}
        for place, op in enumerate(ops):
            try:
                check(op)
            except Invalid as error:
                commit.answers[place] = error
            else:
                works.setdefault(target(op)[0], _Work(deque())).todo.append((place, op))
        self._register(works)
        while any(work.todo and work.error is None for work in works.values()):
            self._round(commit, works)
        return self._concluded(commit, works, ops)

    def _register(self, works: dict[ScopeKey, _Work]) -> None:
        """Write down the owners of new sessions, before these are made: a scope's own keys lie elsewhere."""
        new = [
            scope
            for scope, work in works.items()
            if scope not in self._registered and any(isinstance(op, Create | Fork) for _, op in work.todo)
        ]
        if not new:
            return
        members = [part for scope in new for part in (0, "\0".join(scope).encode())]
        for turn in range(TURNS_MAX):
            (reply,) = self.link.run([Command(self._keys.scopes, (b"ZADD", self._keys.scopes, *members))])
            if not isinstance(reply, Exception):
                break
            if judge(reply) in ("no", "unsent") or turn + 1 == TURNS_MAX:
                raise translate(reply, self.link.where) from reply
            self.link.refresh()
            _pause(turn)
        with self._lock:
            self._registered.update(new)

    def _round(self, commit: _Commit, works: dict[ScopeKey, _Work]) -> None:
        """One call for each scope that still has something to do."""
        sent: dict[ScopeKey, _Sent] = {}
        for scope, work in works.items():
            if work.error is None and (made := self._next(commit, scope, work)):
                sent[scope] = made
        if not sent:
            return
        replies = self.link.run([each.command for each in sent.values()])
        is_put_off = False
        for (scope, each), reply in zip(sent.items(), replies, strict=True):
            if isinstance(reply, Exception):
                is_put_off |= self._failed(commit, works[scope], each, reply)
            else:
                self._answered(commit, works[scope], each, reply)
        if is_put_off:
            self.link.refresh()
            _pause(max(work.turns for work in works.values()))

    def _next(self, commit: _Commit, scope: ScopeKey, work: _Work) -> _Sent | None:
        """The next operations of a scope as one call: as many as may go together, none of them begun yet."""
        table = Table(self._keys, scope)
        items: list[_Item] = []
        calls: list[Call] = []
        total = 0
        while work.todo and len(items) < CALL_MAX:
            place, op = work.todo[0]
            total += size(op)
            if items and (total > CALL_MAX_BYTES or is_repeatable(op) != is_repeatable(items[0][1])):
                break
            work.todo.popleft()
            try:
                calls.append(Call(op, table, self._lineage))
            except Invalid as error:
                commit.answers[place] = error
            else:
                items.append((place, op))
        if not items:
            return None
        args: list[Any] = [
            work.moment or commit.shift_us,
            self._channel,
            self.sender,
            *(arg for call in calls for arg in call.args),
        ]
        parts = _APPEND if all(isinstance(op, Append) for _, op in items) else _PARTS
        return _Sent(items, calls, script(*parts).command(table.all, args, is_new=work.is_new))

    def _answered(self, commit: _Commit, work: _Work, sent: _Sent, reply: Reply) -> None:
        now_us, *answers = reply
        work.is_new = work.is_unknown = False
        work.moment = None
        for n, answer in enumerate(answers):
            place, op = sent.items[n]
            if answer[0] == b"need":
                sent.calls[n].learn(answer[1], op)
                work.moment = f"={int(now_us)}"  # one commit, one moment
                work.todo.extendleft(reversed(sent.items[n:]))
            elif answer[0] == b"broken":
                commit.answers[place] = self._broken(commit, sent.calls[n], answer)
                work.todo.extendleft(reversed(sent.items[n + 1 :]))
            else:
                result = sent.calls[n].settle(answer, int(now_us))
                commit.answers[place] = result
                commit.has_unrepeatable |= not (is_repeatable(op) or isinstance(result, NotDone))

    def _broken(self, commit: _Commit, call: Call, answer: Sequence[Reply]) -> Answer:
        said, seq = answer[1].decode(errors="replace"), int(answer[2]) if len(answer) > 2 else None
        text = f"session {call.session!r} is damaged ({said}); restore it from a backup, or run segue verify to see all"
        if commit.has_unrepeatable:
            # What was done must not be done twice; who asks again, alone, is told of the damage.
            return Unavailable(f"{text}. This was not done; other operations of the commit were")
        raise Corrupt(text, session=call.session, seq=seq)

    def _failed(self, commit: _Commit, work: _Work, sent: _Sent, error: Exception) -> bool:
        """What becomes of a call that has no answer; True when it is to be sent again after a pause."""
        verdict = judge(error)
        work.is_new |= verdict == "script"
        work.is_unknown |= verdict == "cut"
        work.turns += verdict in ("script", "again")
        is_final = verdict == "no" or work.turns > TURNS_MAX or time.monotonic() > commit.until
        is_final |= verdict == "cut" and not is_repeatable(sent.items[0][1])
        is_final |= verdict == "unsent" and not work.is_unknown
        if is_final:
            work.error = _outcome(translate(error, self.link.where), is_unknown=work.is_unknown)
            return False
        work.todo.extendleft(reversed(sent.items))
        return verdict != "script"

    def _concluded(self, commit: _Commit, works: dict[ScopeKey, _Work], ops: Sequence[Op]) -> list[Answer]:
        errors = [work.error for work in works.values() if work.error is not None]
        for error in errors:
            if not isinstance(error, NotDone) or not commit.answers:
                raise error
        if errors:
            commit.answers |= {n: errors[0] for n in range(len(ops)) if n not in commit.answers}  # type: ignore[misc]
        return [commit.answers[place] for place in range(len(ops))]


def _outcome(failure: SegueError, *, is_unknown: bool) -> SegueError:
    if not is_unknown:
        return failure
    return OutcomeUnknown(
        f"{failure} - the connection was lost while this was under way, so it may or may not have been stored; "
        "call again with the same ids"
    )


def _pause(turn: int) -> None:
    time.sleep(random.uniform(0.01, 0.04) * 2 ** min(turn, 6))  # noqa: S311 - no secret
