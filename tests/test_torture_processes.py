"""
What many processes do to one session: kill -9, turns, frozen and skewed holders, senders that repeat, followers.

Each test gives its figures to the report (``record_property``) that ``make torture`` makes a table of, and each
has a control: the same test on something broken, which must fail.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from datetime import timedelta

import pytest

import fleet
import segue
import stores
from fleet import Member

FULL = stores.FULL
SEED = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]


@pytest.fixture(params=stores.SHARED)
def url(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def session(url):
    with segue.open(url) as db:
        yield db.scope(*fleet.SCOPE).create()


@pytest.fixture
def report(record_property):
    def record(**figures):
        for name, value in {"seed": SEED, **figures}.items():
            record_property(name, value)
        return figures

    return record


# 2: kill -9


def test_writers_killed_at_any_moment_lose_nothing_acknowledged(url, session, report):
    figures = report(**fleet.kill_writers(url, session, kills=200 if FULL else 20, writers=8, seed=SEED))
    assert (figures["lost"], figures["duplicated"], figures["torn"]) == (0, 0, 0)


def test_the_test_of_killed_writers_notices_one_that_acknowledges_before_it_stores(url, session, report):
    figures = report(**fleet.kill_writers(url, session, kills=8, writers=4, seed=SEED, behind=3))
    assert figures["lost"] > 0


# 3: one active run


def test_without_runs_turns_are_torn_apart(url, session, report):
    members = [Member(fleet.turns_without_a_run, url, session.id, name=f"p{n}", count=12) for n in range(4)]
    for member in members:
        member.rest()
    questions = [entry.json()["content"] for entry in session.read()]
    whole = sum(
        isinstance(asked, str)
        and " asks " in asked
        and questions[at + 3 : at + 4] == [asked.replace("asks", "answers")]
        for at, asked in enumerate(questions)
    )
    report(cases=48, torn=48 - whole)
    assert whole < 48


# 4: frozen and skewed holders


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_frozen_holder_writes_nothing_once_overtaken_and_without_the_fence_it_would(url, session, report, is_fenced):
    late = 0
    rounds = (100 if FULL else 6) if is_fenced else 3
    for number in range(rounds):
        holder = Member(fleet.frozen, url, session.id, name=f"h{number}", is_fenced=is_fenced)
        fence = holder.hear()
        os.kill(holder._process.pid, signal.SIGSTOP)
        session.log.engine.store.shift_clock(60_000_000)  # past its lease, without waiting
        with session.run() as run:
            assert run.fence > fence
        os.kill(holder._process.pid, signal.SIGCONT)
        holder.tell("go on")
        late += holder.hear()
        holder.rest()
    report(cases=rounds, late=late)
    assert late == (0 if is_fenced else rounds * 10)


@pytest.mark.parametrize("seconds", [60, -3_600])
def test_a_process_whose_wall_clock_is_wrong_steals_no_live_lease(url, session, report, seconds):
    rounds = 100 if FULL else 10
    with session.run(ttl=timedelta(seconds=30)):
        thief = Member(fleet.skewed, url, session.id, rounds=rounds, wall_seconds=seconds)
        stolen = thief.hear()
        thief.rest()
    report(cases=rounds, stolen=stolen)
    assert stolen == 0


def test_the_test_of_wrong_clocks_notices_a_store_that_believes_its_clients(url, session, report):
    with session.run(ttl=timedelta(seconds=30)):
        thief = Member(fleet.skewed, url, session.id, rounds=1, wall_seconds=0, store_seconds=60)
        stolen = thief.hear()
        thief.rest()
    report(cases=1, stolen=stolen)
    assert stolen == 1


# 12: idempotence


def test_a_hundred_keys_from_sixteen_senders_are_a_hundred_entries(url, session, report):
    keys = 100 if FULL else 10
    answers = fleet.send_all(url, session, [{"keys": keys}] * 16)
    stored = [entry.id for entry in session.read()]
    report(cases=keys * 16, stored=len(stored), duplicated=len(stored) - keys, lost=keys - len(set(stored)))
    assert sorted(stored) == sorted(f"key-{n}" for n in range(keys))
    assert all(answer == answers[0] for answer in answers)
    assert [stored[seq - 1] for seq in answers[0]] == [f"key-{n}" for n in range(keys)]


def test_a_key_with_another_body_is_a_conflict_that_names_the_place(url, session):
    one, two = fleet.send_all(url, session, [{"keys": 10, "bodies": "one"}, {"keys": 10, "bodies": "two"}])
    for first, second in zip(one, two, strict=True):
        refused, stored = (first, second) if isinstance(first, tuple) else (second, first)
        assert refused == ("conflict", stored)
    assert session.refresh().head == 10


def test_a_key_may_be_used_again_in_another_session_and_never_in_an_erased_one(session):
    item = {"role": "user", "content": "x"}
    session.append(item, ids=["key"])
    fork = session.fork()
    assert fork.append(item, ids=["key"]).new == 0  # inherited: the same entry
    other = session.fork(0)
    assert other.append(item, ids=["key"]).new == 1
    session.erase()
    with pytest.raises(segue.NotFound):
        session.append(item, ids=["key"])


def test_senders_that_look_before_they_insert_store_too_much(url, session, report):
    fleet.send_all(url, session, [{"keys": 10, "looks_first": True}] * 8)
    stored = session.refresh().head
    report(cases=80, stored=stored, duplicated=stored - 10)
    assert stored > 10


# 22: live tail


class Follower:
    """Follows a session with its own handle, and is cut off some times; ``resumes`` tells where it goes on."""

    def __init__(self, url, session_id, *, cuts, until, seed, resumes):
        self._url, self._id, self._until, self._resumes = url, session_id, until, resumes
        self._chance = random.Random(seed)
        self._cuts = cuts
        self.seen: list[int] = []

    def __call__(self):
        after = 0
        while after < self._until:
            with segue.open(self._url) as db:
                session = db.scope(*fleet.SCOPE).open(self._id)
                after = self._resumes(session, self.seen)
                self._some(session, after)
                after = self.seen[-1] if self.seen else 0

    def _some(self, session, after):
        enough = self._chance.randrange(1, max(2, self._until // 4)) if self._cuts else None
        self._cuts = max(0, self._cuts - 1)
        for count, entry in enumerate(session.follow(after=after, silence=timedelta(seconds=60)), 1):
            self.seen.append(entry.seq)
            if count == enough or entry.seq >= self._until:
                return


def follow_all(url, session, *, writers, count, followers, cuts, resumes):
    until = writers * count * 2
    tails = [
        Follower(url, session.id, cuts=cuts, until=until, seed=SEED + n, resumes=resumes) for n in range(followers)
    ]
    threads = [threading.Thread(target=tail) for tail in tails]
    [thread.start() for thread in threads]
    members = [Member(fleet.writer, url, session.id, name=f"w{n}", count=count) for n in range(writers)]
    assert [member.rest() for member in members] == [[count * 2]] * writers
    [thread.join(fleet.PATIENCE_SECONDS) for thread in threads]
    wanted = Counter(range(1, until + 1))
    return {
        "cases": followers * until,
        "disconnects": followers * cuts,
        "lost": sum((wanted - Counter(tail.seen)).total() for tail in tails),
        "duplicated": sum((Counter(tail.seen) - wanted).total() for tail in tails),
        "disordered": sum(tail.seen != sorted(tail.seen) for tail in tails),
    }


def test_followers_that_are_cut_off_again_and_again_get_every_entry_once_in_order(url, session, report):
    size = {"writers": 16, "count": 20, "followers": 20, "cuts": 5}
    size = size if FULL else {"writers": 4, "count": 10, "followers": 5, "cuts": 2}
    figures = report(**follow_all(url, session, **size, resumes=lambda _, seen: seen[-1] if seen else 0))
    assert (figures["lost"], figures["duplicated"], figures["disordered"]) == (0, 0, 0)


def test_a_follower_that_goes_on_at_the_head_has_gaps(url, session, report):
    session.append({"n": 0}, {"n": 0}, kind="app.fact", format="json")
    figures = report(
        **follow_all(
            url, session, writers=2, count=15, followers=2, cuts=2,
            resumes=lambda handle, seen: max(handle.refresh().head - 1, 0) if seen else 0,
        )
    )  # fmt: skip
    assert figures["lost"] > 0
