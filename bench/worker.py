"""
Measures one system in its own environment: ``python -m bench.worker LAYER TASKS-LAYER PLACE IMPORTS``.

Reads one JSON command a line, answers with one JSON object a line. Times are seconds. What is timed is the call of
the layer alone: its objects are made before the clock starts, and results are looked at after it stopped.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bench import text
from bench.layers import Layer, beside, layer_of

CONTEXT = multiprocessing.get_context("forkserver")
GROWTH_MAX = 0.2
"""Most by which a session may grow before another of its length is taken."""
ENOUGH_SECONDS = 1.5
"""A sample ends when it took so long, with one call at least."""
PATIENCE_SECONDS = 60
DISTINCT = 64
"""Turns of different text when many append at once: making text takes the processor from what is measured."""


class Worker:
    """Answers commands for one open layer."""

    def __init__(self, layer: str, tasks: str, place: str) -> None:
        self._names = (layer, tasks)
        self._place = place
        self._layer = layer_of(layer)(place)
        self._sessions: dict[int, list[Any]] = {}
        self._uses: Counter[int] = Counter()
        self._warm: set[int] = set()
        self._numbers = itertools.count(1_000_000)

    async def open(self) -> dict[str, Any]:
        await self._layer.open()
        return {"fork": self._layer.fork is not None, "newest": self._layer.newest is not None}

    async def seed(self, head: int, appends: int) -> dict[str, Any]:
        """Sessions of that length (messages), as many as so many appends need."""
        count = -(-appends // self._uses_of(head))
        began = time.perf_counter()
        self._sessions[head] = [await self._layer.begin(f"h{head}-{n}") for n in range(count)]
        for session in self._sessions[head]:
            turns = [text.turn(next(self._numbers)) for _ in range(-(-head // 4))]
            await self._layer.seed(session, turns)
            found = len(await self._layer.load(session))
            assert found == len(turns) * 4, f"{found} messages of {len(turns) * 4} came back"
        return {"seconds": time.perf_counter() - began}

    def _uses_of(self, head: int) -> int:
        return max(1, int(head * GROWTH_MAX / 4))

    def _session(self, head: int) -> Any:
        """One of that length; it has been used before, as one that goes on has."""
        self._uses[head] += 1
        return self._sessions[head][(self._uses[head] - 1) // self._uses_of(head) % len(self._sessions[head])]

    async def append(self, head: int, count: int, *, how: str = "add") -> dict[str, Any]:
        """Turns, each timed: in one call, or (``turn``) as the layer's runner stores them."""
        spent, store = Spent(), getattr(self._layer, how)
        for _ in spent.enough(count):
            session, items = self._session(head), self._layer.made(text.turn(next(self._numbers)))
            if id(session) not in self._warm:
                await self._layer.last(session, 1)
                self._warm.add(id(session))
            await spent.on(lambda session=session, items=items: store(session, items))
        return spent.told

    async def append_async(self, head: int, count: int) -> dict[str, Any]:
        """The same with the layer's other face."""
        layer = layer_of(self._names[1])(self._place)
        await layer.open()
        session, spent = await layer.begin(f"async{head}"), Spent()
        if not await layer.load(session):
            await layer.seed(session, [text.turn(next(self._numbers)) for _ in range(-(-head // 4))])
        for _ in spent.enough(count):
            items = layer.made(text.turn(next(self._numbers)))
            await spent.on(lambda items=items: layer.add(session, items))
        await layer.close()
        return spent.told

    async def load(self, head: int, count: int) -> dict[str, Any]:
        return await self._repeat(count, lambda: self._layer.load(self._sessions[head][0]))

    async def last(self, head: int, count: int) -> dict[str, Any]:
        return await self._repeat(count, lambda: self._layer.last(self._sessions[head][0], 20))

    async def newest(self, count: int) -> dict[str, Any]:
        return await self._repeat(count, lambda: self._layer.newest(20))

    async def fork(self, head: int, count: int) -> dict[str, Any]:
        session = self._sessions[head][0]
        return await self._repeat(count, lambda: self._layer.fork(session, f"fork{next(self._numbers)}"))

    async def _repeat(self, count: int, call: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        spent = Spent()
        for _ in spent.enough(count):
            await spent.on(call)
        return spent.told

    async def fill(self, sessions: int) -> dict[str, Any]:
        """So many empty sessions."""
        began = time.perf_counter()
        await self._layer.fill(sessions)
        return {"seconds": time.perf_counter() - began}

    async def write(self, turns: int) -> dict[str, Any]:
        """One session of so many turns, each in one call; gives what they are as JSON text, in bytes."""
        session = await self._layer.begin("bytes")
        made = [text.turn(n) for n in range(turns)]
        for turn in made:
            await self._layer.add(session, self._layer.made(turn))
        return {"json_bytes": text.size(made)}

    async def close(self) -> dict[str, Any]:
        await self._layer.close()
        return {}

    # Many at once.

    async def crowd(self, kind: str, workers: int, seconds: float, *, is_one: bool) -> dict[str, Any]:
        """
        So many processes or tasks that store turns for so long, each on a session of its own or all on one.

        On sessions of their own a turn is one call; on one session it is stored as the layer's runner does.
        """
        tag = f"c{next(self._numbers)}"
        names = [tag if is_one else f"{tag}-{n}" for n in range(workers)]
        for name in dict.fromkeys(names):
            await self._layer.begin(name)
        how = "turn" if is_one else "add"
        if kind == "tasks":
            told = await _tasks(layer_of(self._names[1])(self._place), names, how, seconds)
        else:
            told = await asyncio.to_thread(_processes, self._names[0], self._place, names, how, seconds)
        figures = _figures(told)
        if is_one:
            session = await self._layer.begin(names[0])
            figures |= damage(await self._layer.load(session), [turn for one in told for turn in one["done"]])
        return figures


class Spent:
    """What calls took, one after the other: seconds, and seconds of this process's processor time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    async def on(self, call: Callable[[], Awaitable[Any]]) -> None:
        gc.collect(0)
        cpu, began = time.process_time(), time.perf_counter()
        await call()
        self.seconds.append(time.perf_counter() - began)
        self.cpu.append(time.process_time() - cpu)

    def enough(self, count: int) -> Iterator[None]:
        """So often, or until it took long enough."""
        for _ in range(count):
            if sum(self.seconds) > ENOUGH_SECONDS:
                return
            yield

    @property
    def told(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "cpu": self.cpu}


async def _tasks(layer: Layer, names: list[str], how: str, seconds: float) -> list[dict[str, Any]]:
    await layer.open()
    sessions = [await layer.begin(name) for name in names]
    await asyncio.gather(*(beside(layer, layer.last(session, 1)) for session in sessions))
    _warm_text()
    until = time.monotonic() + seconds
    jobs = [_store(layer, session, f"w{n}", how, until) for n, session in enumerate(sessions)]
    told = list(await asyncio.gather(*jobs))
    await layer.close()
    return told


def _warm_text() -> None:
    for n in range(DISTINCT):
        text.turn(n)


def _processes(name: str, place: str, names: list[str], how: str, seconds: float) -> list[dict[str, Any]]:
    pipes, processes = [], []
    for n, session in enumerate(names):
        mine, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_process, args=(theirs, name, place, session, f"w{n}", how), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    try:
        for pipe in pipes:
            _hear(pipe)
        until = time.monotonic() + seconds  # one clock for all processes of a machine
        for pipe in pipes:
            pipe.send(until)
        return [_hear(pipe) for pipe in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _hear(pipe: Any) -> Any:
    if not pipe.poll(PATIENCE_SECONDS):
        raise TimeoutError("a process said nothing")
    return pipe.recv()


def _process(pipe: Any, name: str, place: str, session: str, who: str, how: str) -> None:
    warnings.simplefilter("ignore")

    async def work() -> None:
        layer = layer_of(name)(place)
        await layer.open()
        handle = await layer.begin(session)
        await layer.last(handle, 1)
        _warm_text()
        pipe.send("ready")
        pipe.send(await _store(layer, handle, who, how, pipe.recv()))

    asyncio.run(work())
    pipe.recv()  # until it is killed: nothing of a layer's farewell is measured


async def _store(layer: Layer, session: Any, who: str, how: str, until: float) -> dict[str, Any]:
    done, refused, longest = [], Counter(), 0.0
    for n in itertools.count():
        began = time.monotonic()
        if began > until:
            return {"done": done, "refused": dict(refused), "longest": longest, "over": began - until}
        items = layer.made(text.turn(n, who, like=n % DISTINCT))
        try:
            await beside(layer, getattr(layer, how)(session, items))
            done.append((who, n))
        except Exception as error:  # noqa: BLE001 - whatever a layer raises is its answer
            refused[type(error).__name__] += 1
        longest = max(longest, time.monotonic() - began)
        if layer.blocking == "loop":
            await asyncio.sleep(0)  # the other tasks' turn
    raise AssertionError


def _figures(told: list[dict[str, Any]]) -> dict[str, Any]:
    counts = [len(one["done"]) for one in told]
    refused: Counter[str] = sum((Counter(one["refused"]) for one in told), Counter())
    return {
        "turns": sum(counts),
        "over": max(one["over"] for one in told),
        "refused": sum(refused.values()),
        "refusals": dict(refused),
        "longest": max(one["longest"] for one in told),
        "slowest_of_fastest": min(counts) / max(*counts, 1),
    }


def damage(messages: list[Any], done: list[tuple[str, int]]) -> dict[str, int]:
    """
    What became of turns that were stored on one session.

    Returns:
        lost: acknowledged turns of which nothing is there; torn: turns of which a part is there;
        interleaved: whole turns that do not stand in one piece and in order.
    """
    places: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    marked = [mark for message in messages for mark in text.marks(message)]
    for place, (tag, n, part) in enumerate(marked):
        places[tag, n].append((part, place))
    lost = sum((tag, n) not in places for tag, n in map(tuple, done))
    torn = sum({part for part, _ in found} != {0, 1, 2, 3} for found in places.values())
    pieces = sum(
        {part for part, _ in found} == {0, 1, 2, 3} and [place - found[0][1] for _, place in found] != [0, 1, 2, 3]
        for found in places.values()
    )
    return {"lost": lost, "torn": torn, "interleaved": pieces}


async def serve(worker: Worker, answers: Any) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            answer = await getattr(worker, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    layer, tasks, place, imports = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a layer prints does not mix with the answers
    CONTEXT.set_forkserver_preload(["bench.layers", *imports.split(",")])
    asyncio.run(serve(Worker(layer, tasks or layer, place), answers))


if __name__ == "__main__":
    main()
