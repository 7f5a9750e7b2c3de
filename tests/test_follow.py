"""Following a session: every entry once, in order, across threads, loops and processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import segue
import stores
from segue.engine import Watch
from segue.store import Append, Release

WORKER = Path(__file__).with_name("worker.py")
QUIET = timedelta(seconds=0.3)


def user(text):
    return {"role": "user", "content": text}


@pytest.fixture(params=stores.SHARED)
def url(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def session(url):
    with segue.open(url) as db:
        yield db.scope("acme", "lin").create()


def test_a_follower_gets_what_is_there_and_what_comes(session):
    session.append(user("1"), user("2"))
    follower = session.follow(after=1, silence=QUIET)
    assert next(follower).seq == 2
    session.append(user("3"))
    assert [entry.seq for entry in follower] == [3]


def test_a_change_between_the_look_and_the_wait_is_noticed(session):
    session.append(user("1"))
    follower = session.follow(silence=timedelta(seconds=30))
    next(follower)
    appended = threading.Timer(0.05, session.append, [user("2")])
    appended.start()
    assert next(follower).seq == 2
    appended.join()


def test_only_the_kinds_asked_for_come_and_the_rest_is_not_read_again(session):
    session.append({"x": 1}, kind="app.fact", format="json")
    session.append(user("1"))
    assert [entry.seq for entry in session.follow(kinds=["message"], silence=QUIET)] == [2]


def test_a_follower_of_an_erased_session_is_told(session):
    session.append(user("1"))
    follower = session.follow()
    next(follower)
    session.erase()
    with pytest.raises(segue.NotFound):
        next(follower)


def test_followers_in_threads_and_loops_see_what_processes_write_once_and_in_order(url, session):
    writers = []
    for n in range(3):
        options = json.dumps({"session": session.id, "name": f"p{n}", "count": 5, "policy": "enqueue"})
        args = [sys.executable, str(WORKER), "turns", url, options]
        writers.append(subprocess.Popen(args, stdout=subprocess.DEVNULL))
    seen: dict[str, list[int]] = {}

    def blocking():
        seen["thread"] = [entry.seq for entry in itertools.islice(session.follow(), 60)]

    async def looping():
        twin = segue.AsyncSession(session.log.engine, session)
        found = []
        async for entry in twin.follow():
            found.append(entry.seq)
            if len(found) == 60:
                break
        seen["loop"] = found

    threads = [threading.Thread(target=blocking), threading.Thread(target=lambda: asyncio.run(looping()))]
    [thread.start() for thread in threads]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]
    [thread.join(30) for thread in threads]
    assert seen == {"thread": list(range(1, 61)), "loop": list(range(1, 61))}


def test_who_waits_for_a_lease_behind_others_is_woken_when_its_turn_may_have_come():
    with segue.open("memory:") as db:
        session = db.scope().create()
        changes = db.engine.changes
        append, free = Append(session.log.scope, session.id, ()), Release(session.log.scope, session.id, "r", 1)
        woken = []

        async def wait(name, before, for_lease):
            watch = Watch(db.engine, session.id, for_lease=for_lease)
            await watch.await_(30, before)
            woken.append(name)
            watch.close()

        async def main():
            tasks = [
                asyncio.create_task(wait(*one))
                for one in [("follower", 0, False), ("next", 0, True), ("third", 2, True)]
            ]
            await asyncio.sleep(0)
            for op in (append, free, free, free):
                changes.tell(session.id, op)
                for _ in range(10):
                    await asyncio.sleep(0)
                woken.append(type(op).__name__)
            foreign = asyncio.create_task(wait("far behind, told of another process", 50, True))
            await asyncio.sleep(0)
            changes.tell(session.id)
            await asyncio.gather(*tasks, foreign)

        asyncio.run(main())
        assert woken == [
            *("follower", "Append", "next", "Release", "Release", "third", "Release"),
            "far behind, told of another process",
        ]


def test_a_change_between_a_look_and_a_wait_is_not_lost():
    with segue.open("memory:") as db:
        session = db.scope().create()
        watch = Watch(db.engine, session.id, for_lease=True)
        free = Release(session.log.scope, session.id, "r", 1)
        db.engine.changes.tell(session.id, free)
        db.engine.changes.tell(session.id, free)
        watch.wait(30, 1)  # two changes came before the wait: it ends at once
        watch.close()
