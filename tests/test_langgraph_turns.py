"""Turns on a thread: LangGraph's four double-texting policies, on threads and across processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import segue
import stores

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage

from langgraph_lab import at, chat, say, texts
from segue.adapters.langgraph import SegueSaver, ThreadMoved

TURNS = 25 if stores.FULL else 8


@pytest.fixture
def db():
    with segue.open("memory:") as db:
        yield db


class Held:
    """A chat whose answer to "slow" waits until it is let go."""

    def __init__(self, saver):
        self.inside, self.go = threading.Event(), threading.Event()
        self.saver, self.error, self.answer = saver, None, None
        self.graph = chat(saver, self._hold)

    def _hold(self, state):
        if state["messages"][-1].content == "slow":
            self.inside.set()
            assert self.go.wait(30)

    def start(self):
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.inside.wait(30)

    def _run(self):
        try:
            with self.saver.turn("t") as turn:
                self.answer = say(self.graph, "slow", config=turn.config)
        except segue.SegueError as error:
            self.error = error

    def end(self):
        self.go.set()
        self.thread.join()


@pytest.fixture
def held(db):
    made = Held(SegueSaver(db.scope()))
    say(made.graph, "hello")
    made.start()
    yield made
    made.end()


HELLO = ["hello", "re:hello"]


def test_reject_refuses_while_a_turn_is_active(held):
    with pytest.raises(segue.Busy), held.saver.turn("t", policy="reject"):
        pass
    held.end()
    assert texts(held.graph) == [*HELLO, "slow", "re:slow"]


def test_a_run_without_a_turn_is_refused_while_one_is_active(held):
    with pytest.raises(segue.Busy, match="turn"):
        say(held.graph, "bare")
    with pytest.raises(segue.Busy):
        held.saver.put_writes(
            at("t", "", held.graph.get_state(at()).config["configurable"]["checkpoint_id"]), [("x", 1)], "k"
        )
    held.end()
    assert texts(held.graph) == [*HELLO, "slow", "re:slow"]


def test_interrupt_keeps_the_finished_steps_and_fences_the_run_off(held):
    with held.saver.turn("t", policy="interrupt") as turn:
        assert say(held.graph, "fast", config=turn.config) == [*HELLO, "slow", "fast", "re:fast"]
    held.end()
    assert isinstance(held.error, segue.LeaseLost)
    assert texts(held.graph) == [*HELLO, "slow", "fast", "re:fast"]


def test_rollback_takes_the_runs_checkpoints_back_for_good(held):
    with held.saver.turn("t", policy="rollback") as turn:
        assert say(held.graph, "fast", config=turn.config) == [*HELLO, "fast", "re:fast"]
    held.end()
    assert isinstance(held.error, segue.LeaseLost)
    assert texts(held.graph) == [*HELLO, "fast", "re:fast"]
    assert not any(b'"slow"' in (entry.body or b"") for entry in held.saver.session("t").read())


def test_a_cancelled_run_that_returns_late_steals_no_head(held):
    with held.saver.turn("t", policy="interrupt") as turn:
        say(held.graph, "fast", config=turn.config)
    held.end()  # swallowed its cancellation, and goes on only now
    with held.saver.turn("t") as turn:
        assert say(held.graph, "next", config=turn.config)[-4:] == ["fast", "re:fast", "next", "re:next"]


def test_enqueue_waits_its_turn(held):
    out = []

    def second():
        with held.saver.turn("t", policy="enqueue", wait=None) as turn:
            out.append(say(held.graph, "second", config=turn.config))

    thread = threading.Thread(target=second)
    thread.start()
    held.end()
    thread.join()
    assert out == [[*HELLO, "slow", "re:slow", "second", "re:second"]]


def test_the_config_of_a_turn_that_is_over_writes_nothing(db):
    saver = SegueSaver(db.scope())
    with saver.turn("t") as turn:
        config = turn.config
    with pytest.raises(segue.LeaseLost):
        say(chat(saver), "late", config=config)
    assert saver.get_tuple(at()) is None


def test_in_a_turn_a_plain_config_is_fenced_too(db):
    saver = SegueSaver(db.scope())
    g = chat(saver)
    with saver.turn("t") as turn:
        say(g, "one")
        run = turn.run.id
    runs = {entry.run for entry in saver.session("t").read(kinds=["langgraph.checkpoint"])}
    assert runs == {run}


def test_an_async_turn_holds_for_what_is_awaited_in_it(db):
    saver = SegueSaver(db.scope())
    g = chat(saver)

    async def turn(text):
        async with saver.aturn("t", policy="enqueue", wait=None):
            await g.ainvoke({"messages": [HumanMessage(text)]}, at())

    async def all():
        await asyncio.gather(*(turn(f"m{n}") for n in range(6)))

    asyncio.run(all())
    assert len(texts(g)) == 12


def test_the_turn_key_stays_out_of_the_metadata(db):
    saver = SegueSaver(db.scope())
    with saver.turn("t") as turn:
        say(chat(saver), "one", config=turn.config)
    assert not [key for key in saver.get_tuple(at()).metadata if key.startswith("__")]


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_four_workers_in_a_queue_keep_every_turn(name, tmp_path):
    with stores.url_of(name, tmp_path) as url, segue.open(url) as db:
        saver = SegueSaver(db.scope())
        g = chat(saver)

        def work(worker):
            for n in range(TURNS):
                with saver.turn("t", policy="enqueue", wait=None) as turn:
                    say(g, f"{worker}-{n}", config=turn.config)

        _together(work)
        assert len(texts(g)) == 2 * 4 * TURNS
        assert len(set(texts(g))) == 2 * 4 * TURNS


def test_four_workers_that_are_rejected_keep_exactly_the_winners(db):
    saver = SegueSaver(db.scope())
    g, won, lost = chat(saver), [], []

    def work(worker):
        for n in range(TURNS):
            text = f"{worker}-{n}"
            try:
                with saver.turn("t", policy="reject") as turn:
                    say(g, text, config=turn.config)
                won.append(text)
            except segue.Busy:
                lost.append(text)

    _together(work)
    assert len(won) + len(lost) == 4 * TURNS
    assert [text for text in texts(g) if not text.startswith("re:")] == won


def test_without_turns_exactly_the_acknowledged_runs_are_there(db):
    saver = SegueSaver(db.scope())
    g, won = chat(saver), []

    def work(worker):
        for n in range(TURNS):
            try:
                say(g, f"{worker}-{n}")
                won.append(f"{worker}-{n}")
            except ThreadMoved:
                pass

    _together(work)
    assert won
    assert set(won) <= set(texts(g))


def _together(work):
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WORKER = """
    import json, sys
    sys.path.insert(0, sys.argv[4])
    import segue
    from langgraph_lab import chat, say
    from segue.adapters.langgraph import SegueSaver, ThreadMoved

    url, policy, worker = sys.argv[1:4]
    won = []
    with segue.open(url) as db:
        saver = SegueSaver(db.scope())
        g = chat(saver)
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(int(sys.argv[5])):
            try:
                with saver.turn("t", policy=policy, wait=None) as turn:
                    say(g, f"{worker}-{n}", config=turn.config)
                won.append(f"{worker}-{n}")
            except segue.Busy:
                pass
    print(json.dumps(won), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["enqueue", "reject"])
@pytest.mark.parametrize("name", stores.SHARED if stores.FULL else ["sqlite"])
def test_four_processes_keep_every_turn_that_was_acknowledged(name, policy, tmp_path):
    with stores.url_of(name, tmp_path) as url:
        segue.open(url).close()
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", textwrap.dedent(WORKER), url, policy]
        workers = [
            subprocess.Popen(
                [*command, f"w{n}", here, str(TURNS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for n in range(4)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        won = [text for worker in workers for text in json.loads(worker.communicate(timeout=280)[0].splitlines()[-1])]
        with segue.open(url) as db:
            kept = texts(chat(SegueSaver(db.scope())))
    assert sorted(text for text in kept if not text.startswith("re:")) == sorted(won)
    assert len(kept) == 2 * len(won)
    assert len(won) == 4 * TURNS if policy == "enqueue" else won
