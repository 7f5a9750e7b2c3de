"""The linearizability checker accepts what can be explained and finds what was planted."""

from __future__ import annotations

import random
import threading

import pytest

from segue.errors import Busy, HeadMoved
from segue.model import Lease, ScopeKey, from_us
from segue.store import Append, Appended, Release, Take
from segue.testing import draft
from segue.testing.linear import Call, Log, Read, Recorder, explain, step

ME = ScopeKey("t", "u")


def append(*ids, **fields):
    return Append(ME, "s", tuple(draft(id=id) for id in ids), **fields)


def take(run):
    return Take(ME, "s", run, 1)


def lease(run, fence):
    return Lease(run, fence, "running", from_us(0))


def is_linearizable(*calls):
    return explain([Call(*call) for call in calls], step, Log()).is_linearizable


def test_an_empty_history_is_explained():
    assert is_linearizable()


def test_calls_one_after_the_other_are_explained():
    assert is_linearizable((0, 1, append("a"), Appended(1, (1,), 1)), (2, 3, Read(), ["a"]))


def test_calls_at_the_same_time_may_be_explained_in_either_order():
    for seen in ((), ("a",)):
        assert is_linearizable((0, 3, append("a"), Appended(1, (1,), 1)), (1, 2, Read(), list(seen)))


def test_a_lost_append_is_found():
    assert not is_linearizable((0, 1, append("a"), Appended(1, (1,), 1)), (2, 3, Read(), []))


def test_a_stale_reading_is_found():
    assert not is_linearizable(
        (0, 1, append("a"), Appended(1, (1,), 1)),
        (2, 3, append("b"), Appended(2, (2,), 1)),
        (4, 5, Read(), ["a"]),
    )


def test_readings_that_go_back_in_time_are_found():
    assert not is_linearizable((0, 9, append("a"), Appended(1, (1,), 1)), (1, 2, Read(), ["a"]), (3, 4, Read(), []))


def test_two_that_got_the_same_place_are_found():
    assert not is_linearizable((0, 3, append("a"), Appended(1, (1,), 1)), (1, 2, append("b"), Appended(1, (1,), 1)))


def test_a_duplicate_of_a_retry_is_found():
    assert not is_linearizable((0, 1, append("a"), Appended(1, (1,), 1)), (2, 3, append("a"), Appended(2, (2,), 1)))


def test_two_that_hold_the_lease_at_once_are_found():
    assert not is_linearizable((0, 3, take("r1"), lease("r1", 1)), (1, 2, take("r2"), lease("r2", 2)))


def test_a_reused_fence_is_found():
    assert not is_linearizable(
        (0, 1, take("r1"), lease("r1", 1)),
        (2, 3, Release(ME, "s", "r1", 1), None),
        (4, 5, take("r2"), lease("r2", 1)),
    )


def test_a_write_of_an_overtaken_run_is_found():
    assert not is_linearizable(
        (0, 1, take("r1"), lease("r1", 1)),
        (2, 3, Release(ME, "s", "r1", 1), None),
        (4, 5, append("a", run="r1", fence=1), Appended(1, (1,), 1)),
    )


def test_a_refusal_without_reason_is_found():
    assert not is_linearizable((0, 1, append("a", expect=0), HeadMoved(0, 1)))
    assert not is_linearizable((0, 1, take("r1"), Busy("r2")))


def test_a_torn_batch_is_found():
    assert not is_linearizable((0, 3, append("a", "b"), Appended(2, (1, 2), 2)), (1, 2, Read(), ["a"]))


def test_a_call_whose_outcome_is_unknown_may_be_done_late_or_never():
    for seen in ((), ("a",)):
        assert is_linearizable((0, None, append("a")), (1, 2, Read(), []), (3, 4, Read(), list(seen)))


def test_a_call_whose_outcome_is_unknown_is_not_undone():
    assert not is_linearizable((0, None, append("a")), (1, 2, Read(), ["a"]), (3, 4, Read(), []))


def test_a_verdict_says_where_it_got_stuck():
    history = [Call(0, 1, append("a"), Appended(1, (1,), 1)), Call(2, 3, Read(), [])]
    explained, blocked = explain(history, step, Log()).stuck
    assert (explained, blocked) == ((history[0],), (history[1],))


def test_the_recorder_notes_a_raised_error_as_an_unknown_outcome():
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        recorder.call(append("a"), lambda: 1 / 0)
    assert recorder.history[0].ended is None


class PlantedLog:
    """A log that is linearizable unless a bug is planted."""

    def __init__(self, bug):
        self.ids, self.lock, self.bug = [], threading.Lock(), bug
        self.chance = random.Random(3)

    def append(self, op):
        with self.lock:
            if self.bug == "lost" and self.chance.random() < 0.05:
                return Appended(len(self.ids) + 1, (len(self.ids) + 1,), 1)
            self.ids.append(op.entries[0].id)
            return Appended(len(self.ids), (len(self.ids),), 1)

    def read(self):
        with self.lock:
            late = self.bug == "stale" and self.chance.random() < 0.05
            return list(self.ids[:-3] if late else self.ids)


@pytest.mark.parametrize(("bug", "verdict"), [(None, True), ("lost", False), ("stale", False)])
def test_bugs_planted_in_a_log_of_four_threads_are_found(bug, verdict):
    log, recorder = PlantedLog(bug), Recorder()

    def client(number):
        for turn in range(60):
            op = append(f"{number}-{turn}")
            recorder.call(op, lambda op=op: log.append(op))
            recorder.call(Read(), log.read)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert explain(recorder.history, step, Log()).is_linearizable is verdict
