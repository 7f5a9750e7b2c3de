"""
Many processes on one store, cheap enough to be killed by the hundred, and the ledger of what they were told.

The processes are forked from a server that has imported Segue already. Each gets one end of a pipe; what it
sends is an acknowledgement that a client would have got, so the parent knows after a kill what must be there.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import segue
from segue.testing import case, histories
from segue.testing.linear import Call

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["segue", "segue.stores.sqlite", "segue.stores.jsonl", "segue.testing.histories"])
PATIENCE_SECONDS = 240
SCOPE = ("acme", "lin")


class Member:
    """One process. ``work`` is a function of this module; it is given the pipe's end, the session and the options."""

    def __init__(self, work: Callable, url: str, session: str, **options):
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_begin, args=(theirs, work, url, session, options), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self):
        """The next thing it says."""
        assert self._pipe.poll(PATIENCE_SECONDS), "the process said nothing"
        return self._pipe.recv()

    def tell(self, what):
        self._pipe.send(what)

    def rest(self) -> list:
        """All that it says until its end."""
        said = []
        with contextlib.suppress(EOFError, OSError):
            while True:
                said.append(self.hear())
        self._process.join()
        self._pipe.close()
        return said

    def kill(self) -> list:
        """Kill it at once; what it had still said."""
        self._process.kill()
        return self.rest()

    @property
    def exitcode(self):
        return self._process.exitcode


def _begin(pipe, work, url, session, options):
    with segue.open(url) as db:
        work(pipe, db.scope(*SCOPE).open(session), **options)
    pipe.close()


# kill -9


def appender(pipe, session, *, name, batch, behind=0):
    """Append batches until killed, acknowledging each; ``behind``: acknowledge so many before they are stored."""
    waiting = []
    for number in itertools.count():
        waiting.append((number, [{"role": "user", "content": f"{name} {number} {n}"} for n in range(batch)]))
        if behind:
            pipe.send(number)
        if len(waiting) > behind:
            stored, items = waiting.pop(0)
            session.append(*items, ids=[f"{name}-{stored}-{n}" for n in range(batch)])
            if not behind:
                pipe.send(stored)


def kill_writers(url: str, session, *, kills: int, writers: int, seed: int, batch: int = 5, behind: int = 0) -> dict:
    """Keep some writers going, each killed 5 to 500 ms after its first acknowledgement; what was lost by that."""
    acknowledged: dict[str, set[int]] = {}
    names, lock, failures = (f"k{n}" for n in range(kills)), threading.Lock(), []

    def one_after_another():
        try:
            while True:
                with lock:
                    name = next(names, None)
                if name is None:
                    return
                member = Member(appender, url, session.id, name=name, batch=batch, behind=behind)
                first = member.hear()
                time.sleep(random.Random(f"{seed} {name}").uniform(0.005, 0.5))
                acknowledged[name] = {first, *member.kill()}
        except BaseException as error:
            failures.append(error)

    _together([one_after_another] * writers)
    assert failures == []
    return _judge(session, acknowledged, batch)


def _judge(session, acknowledged: dict[str, set[int]], batch: int) -> dict:
    head = session.refresh().head  # a server may still finish what a killed client had asked for
    entries = session.read(upto=head)
    assert [entry.seq for entry in entries] == list(range(1, head + 1))
    times = Counter(entry.id for entry in entries)
    parts = Counter(entry.id.rpartition("-")[0] for entry in entries)
    told = {f"{name}-{number}" for name, numbers in acknowledged.items() for number in numbers}
    return {
        "cases": len(acknowledged),
        "acknowledged": len(told) * batch,
        "lost": sum(parts[each] == 0 for each in told) * batch,
        "duplicated": sum(count - 1 for count in times.values()),
        "torn": sum(count != batch for count in parts.values()),
    }


# One active run


def turns_without_a_run(pipe, session, *, name, count):
    """The control: turns of four messages that nobody keeps apart."""
    for number in range(count):
        for message in turn(name, number):
            session.append(message)
            time.sleep(0.001)


def turn(name, number):
    call = f"toolu_{name}_{number}"
    return [
        {"role": "user", "content": f"{name} asks {number}"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": "look", "input": {"n": number}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": f"{name} {number}"}]},
        {"role": "assistant", "content": f"{name} answers {number}"},
    ]


# Frozen and skewed holders


def skewed(pipe, session, *, rounds, wall_seconds, store_seconds=0):
    """Try to take a live lease, with this process's wall clock (or, the control, the store's own) moved."""
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + wall_seconds
    time.time_ns = lambda: wall_ns() + wall_seconds * 1_000_000_000
    session.log.engine.store.shift_clock(store_seconds * 1_000_000)
    stolen = 0
    for _ in range(rounds):
        try:
            session.run(ttl=timedelta(seconds=30)).release()
            stolen += 1
        except segue.Busy:
            pass
    pipe.send(stolen)


def frozen(pipe, session, *, name, is_fenced):
    """Take the lease, say so, be stopped, and go on afterwards; ``is_fenced`` False is the control."""
    run = session.run(ttl=timedelta(seconds=30))
    pipe.send(run.fence)
    pipe.recv()
    late = 0
    for number in range(10):
        entries = run.drafts([{"role": "user", "content": f"{name} late {number}"}])
        try:
            run.log.append(entries, run=run.id, fence=run.fence if is_fenced else None)
            late += 1
        except (segue.LeaseLost, segue.Busy):
            pass
    pipe.send(late)


# Idempotence


def sender(pipe, session, *, keys, bodies=None, looks_first=False):
    """Append each key once, at the same time as all others; ``looks_first`` is check-then-insert, the control."""
    pipe.send("ready")
    pipe.recv()
    answers = []
    for key in range(keys):
        item = {"role": "user", "content": f"key {key} {bodies or ''}"}
        if looks_first:
            known = {entry.json()["content"]: entry.seq for entry in session.read()}
            answers.append(known.get(item["content"]) or session.append(item).seqs[0])
            continue
        try:
            answers.append(session.append(item, ids=[f"key-{key}"]).seqs[0])
        except segue.IdConflict as conflict:
            answers.append(("conflict", conflict.seq))
    pipe.send(answers)


def send_all(url: str, session, senders: list[dict]) -> list[list]:
    """What each of some senders, let go at the same moment, was answered."""
    members = [Member(sender, url, session.id, **options) for options in senders]
    for member in members:
        assert member.hear() == "ready"
    for member in members:
        member.tell("go")
    answers = [member.hear() for member in members]
    for member in members:
        member.rest()
    return answers


# Live tail


def writer(pipe, session, *, name, count):
    for number in range(count):
        session.append({"n": number}, {"n": number}, kind="app.fact", format="json")
    pipe.send(count * 2)


# Linearizability


class _Reporter:
    """A recorder that tells another process when a call began and when it was answered."""

    def __init__(self, pipe):
        self._pipe = pipe

    def call(self, op, act):
        began = time.monotonic_ns()  # one clock for all processes of a machine
        self._pipe.send((began, op))
        answer = act()
        # Of a refusal only its name is compared.
        said = _Refused(type(answer).__name__) if isinstance(answer, Exception) else answer
        self._pipe.send((time.monotonic_ns(), said))
        return answer


class _Refused(NamedTuple):
    name: str


class _Planted:
    """A store with a bug: it acknowledges what it does not store, or reads an old state."""

    def __init__(self, store, bug, chance):
        self._store, self._bug, self._chance = store, bug, chance

    def commit(self, ops):
        from segue.store import Append, Appended

        if self._bug == "lost" and isinstance(ops[0], Append) and ops[0].fence is None and self._chance.random() < 0.2:
            head = self._store.get(ops[0].scope, ops[0].session).head
            count = len(ops[0].entries)
            return [Appended(head + count, tuple(range(head + 1, head + count + 1)), count)]
        return self._store.commit(ops)

    def read(self, *args, **options):
        entries = self._store.read(*args, **options)
        return entries[:-1] if self._bug == "stale" and self._chance.random() < 0.2 else entries


def linear_client(pipe, session, *, number, operations, bug=None):
    case._ids = itertools.count(number * 1_000_000)
    histories.OPERATIONS = operations
    store, log = session.log.engine.store, session.log
    pipe.send("ready")
    pipe.recv()
    client = histories.Client(_Reporter(pipe), log.scope, log.id, number=number)
    client.work(_Planted(store, bug, client._chance) if bug else store)


def history_of(url: str, session, *, clients: int, operations: int, kills: int, seed: int, bug=None) -> list[Call]:
    """The calls of some processes, of which some are killed in the middle."""
    chance = random.Random(seed)
    members = [
        Member(linear_client, url, session.id, number=seed * 100 + n, operations=operations, bug=bug)
        for n in range(clients)
    ]
    for member in members:
        assert member.hear() == "ready"
    for member in members:
        member.tell("go")
    said: list[list] = [[] for _ in members]
    # A member is killed when it has said a number of things; its last call may then have no answer.
    ends = [chance.randrange(2, operations) if n < kills else None for n in range(clients)]

    def listen(n):
        with contextlib.suppress(EOFError, OSError):
            while ends[n] is None or len(said[n]) < ends[n]:
                said[n].append(members[n].hear())
        said[n] += members[n].kill() if ends[n] is not None else members[n].rest()

    _together([lambda n=n: listen(n) for n in range(clients)])
    return [call for one in said for call in _calls(one)]


def _calls(said: list) -> list[Call]:
    calls = []
    for at in range(0, len(said), 2):
        began, op = said[at]
        ended, answer = said[at + 1] if at + 1 < len(said) else (None, None)
        if isinstance(answer, _Refused):
            answer = type(answer.name, (Exception,), {})()
        calls.append(Call(began, ended, op, answer))
    return calls


def _together(acts: list[Callable]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
