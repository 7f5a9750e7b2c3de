"""Random histories: those of many threads must have an order that explains them, those of one must be the model's."""

from __future__ import annotations

import random

from segue.model import Draft, Lease, ScopeKey, from_us
from segue.store import Append, Release, Store, Take

from .case import HOUR, draft, ids_of
from .linear import Log, Read, Recorder, do, explain, step
from .model import histories
from .races import RaceCase

THREADS = 4
OPERATIONS = 60
KINDS = ("append", "append", "expect", "again", "read", "read", "take", "fenced", "release")


class HistoryTests(RaceCase):
    def test_appends_readings_and_leases_of_4_threads_have_an_order_that_explains_them(self) -> None:
        session, recorder = self.create(), Recorder()
        clients = [Client(recorder, self.me, session, number=number) for number in range(THREADS)]
        self.race([client.work for client in clients])
        verdict = explain(recorder.history, step, Log())
        assert len(recorder.history) == THREADS * OPERATIONS
        assert verdict.is_linearizable, verdict.stuck

    def test_random_histories_say_and_show_what_the_model_in_memory_does(self) -> None:
        self.start_afresh()
        histories(self)
        assert [report for report in self.b.check(deep=True) if report.level == "damage"] == []


class Client:
    """One that appends, reads, takes and gives back at random, and knows only its own answers."""

    def __init__(self, recorder: Recorder, scope: ScopeKey, session: str, *, number: int) -> None:
        self._recorder, self._scope, self._session, self._number = recorder, scope, session, number
        self._chance = random.Random(number)  # noqa: S311 - the same choices each time; their timing differs
        self._lease = Lease("nobody", 1, "running", from_us(0))
        self._sent: tuple[Draft, ...] = (draft(),)
        self._seen = 0

    def work(self, store: Store) -> None:
        """All operations, one after the other."""
        for turn in range(OPERATIONS):
            kind = self._chance.choice(KINDS)
            if kind == "read":
                ids = self._recorder.call(Read(), lambda: ids_of(store.read(self._scope, self._session)))
                self._seen = len(ids)
            else:
                self._ask(store, self._op(kind, turn))

    def _ask(self, store: Store, op: Append | Take | Release) -> None:
        answer = self._recorder.call(op, lambda: do(store, op))
        self._lease = answer if isinstance(answer, Lease) else self._lease

    def _op(self, kind: str, turn: int) -> Append | Take | Release:
        scope, session, lease = self._scope, self._session, self._lease
        if kind not in ("again", "take", "release"):
            self._sent = (draft(), draft()) if kind == "append" else (draft(),)
        match kind:
            case "expect":
                return Append(scope, session, self._sent, expect=self._seen)
            case "fenced":
                return Append(scope, session, self._sent, lease.run, lease.fence)
            case "take":
                return Take(scope, session, f"run-{self._number}-{turn}", HOUR)
            case "release":
                return Release(scope, session, lease.run, lease.fence)
            case _:
                return Append(scope, session, self._sent)
