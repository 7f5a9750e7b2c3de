"""Many processes on one session: one at a time, nothing lost, nothing of the overtaken."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import segue
import stores

WORKER = Path(__file__).with_name("worker.py")
FULL = stores.FULL


@pytest.fixture(params=stores.SHARED)
def url(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def session(url):
    with segue.open(url) as db:
        yield db.scope("acme", "lin").create()


def start(task, url, session, **options):
    args = [sys.executable, str(WORKER), task, url, json.dumps({"session": session.id, **options})]
    return subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process):
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def stored_turns(session):
    """(name, number) of each stored turn, in order; fails when a turn is torn or interleaved."""
    entries = session.read(kinds=["message"])
    assert [entry.seq for entry in session.read()] == list(range(1, session.refresh().head + 1))
    found = []
    assert len(entries) % 4 == 0
    for at in range(0, len(entries), 4):
        question, call, result, answer = (entry.json()["content"] for entry in entries[at : at + 4])
        name, _, number = question.split()
        assert call[0]["id"] == result[0]["tool_use_id"] == f"toolu_{name}_{number}"
        assert answer == f"{name} answers {number}"
        found.append((name, int(number)))
    return found


@pytest.mark.slow
def test_eight_processes_that_queue_lose_no_turn_and_tear_none(url, session):
    count = 200 if FULL else 12
    workers = [start("turns", url, session, name=f"p{n}", count=count, policy="enqueue") for n in range(8)]
    for worker in workers:
        assert finish(worker)["won"] == list(range(count))
    turns = stored_turns(session)
    assert Counter(turns) == Counter((f"p{n}", number) for n in range(8) for number in range(count))


@pytest.mark.slow
def test_eight_processes_that_are_rejected_leave_exactly_the_winners_turns(url, session):
    count = 200 if FULL else 12
    workers = [start("turns", url, session, name=f"p{n}", count=count, policy="reject") for n in range(8)]
    won = {f"p{n}": finish(worker)["won"] for n, worker in enumerate(workers)}
    expected = Counter((name, number) for name, numbers in won.items() for number in numbers)
    assert Counter(stored_turns(session)) == expected
    assert sum(expected.values()) > 0


@pytest.mark.slow
def test_a_holder_that_was_frozen_and_overtaken_writes_nothing_more(url, session):
    ttl = 30  # not renewed within the test, so the holder is never frozen in the middle of a commit
    for number in range(100 if FULL else 6):
        holder = start("hold", url, session, name=f"h{number}", ttl=ttl)
        fence = json.loads(holder.stdout.readline())["fence"]
        os.kill(holder.pid, signal.SIGSTOP)
        session.log.engine.store.shift_clock(60_000_000)  # past its lease, without waiting
        with session.run() as run:
            assert run.fence > fence
            run.append({"role": "user", "content": f"taker {number}"})
            os.kill(holder.pid, signal.SIGCONT)
            holder.stdin.write("\n")
            assert finish(holder) == {"late": 0}
    late = [entry for entry in session.read(kinds=["message"]) if "late" in entry.json()["content"]]
    assert late == []


@pytest.mark.slow
def test_kill_nine_during_appends_loses_no_acknowledged_batch_and_leaves_no_half(url, session):
    rng = random.Random(8)
    acknowledged: dict[str, dict[int, list[int]]] = {}
    for number in range(200 if FULL else 12):
        name = f"k{number}"
        with start("appends", url, session, name=name, batch=5) as worker:
            first = worker.stdout.readline()
            time.sleep(rng.uniform(0, 0.06))
            worker.kill()
            lines = [first, *worker.stdout.read().splitlines()]
        whole = [json.loads(line) for line in lines if line.strip().endswith("}")]
        acknowledged[name] = {line["number"]: line["seqs"] for line in whole}
    entries = {entry.id: entry for entry in session.read()}
    assert sorted(entry.seq for entry in entries.values()) == list(range(1, session.refresh().head + 1))
    for name, batches in acknowledged.items():
        for number, seqs in batches.items():
            assert [entries[f"{name}-{number}-{n}"].seq for n in range(5)] == seqs
    batches = Counter(entry.id.rpartition("-")[0] for entry in entries.values())
    assert set(batches.values()) == {5}


@pytest.mark.slow
def test_the_lease_of_a_killed_process_is_taken_over_at_once(url, session):
    with start("hold", url, session, name="h", ttl=600) as holder:
        holder.stdout.readline()
        with pytest.raises(segue.Busy):
            session.run()
        holder.kill()
    with session.run() as run:
        run.append({"role": "user", "content": "at once"})
