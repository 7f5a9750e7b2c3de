"""
The comparable tests of the torture kit, for one layer: ``python -m bench.rivals.kit LAYER PLACE IMPORTS``; prints JSON.

Runs in that layer's own environment; needs nothing but the standard library and the layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import multiprocessing
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.layers import Missing, layer_of
from bench.text import Turn

CONTEXT = multiprocessing.get_context("forkserver")

WORKERS, TURNS, KILLS, SENDERS, KEYS = 4, 25, 16, 8, 10
PATIENCE_SECONDS = 240

VALUES: dict[str, Any] = {
    "NUL": "a\x00b",
    "half an emoji": "ok \ud83d",
    "emoji, NFC and NFD": "\U0001f600 \u00e9 e\u0301",
    "2^70": 2**70,
    "NaN": math.nan,
    "minus zero": -0.0,
    "order of keys": {"b": 1, "a": 2, "aa": 3, "0": 4},
    "depth 100": json.loads("[" * 100 + "]" * 100),
    "500,000 characters": "é" * 500_000,
    "number of 400 digits": 10**399,
}


class Subject:
    """One session of a layer, by one process, on an event loop of its own."""

    def __init__(self, name: str, place: str, session: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._layer = layer_of(name)(place)
        self._do(self._layer.open())
        self._session = self._do(self._layer.begin(session))

    def _do(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def turn(self, question: str, answer: str) -> None:
        """A question, then its answer, as the layer's runner stores them."""
        self._do(self._layer.turn(self._session, self._layer.made(Turn(question, answer))))

    def once(self, key: str, text: str) -> None:
        """One message under an id of the caller's."""
        self._do(self._layer.once(self._session, key, text))

    def texts(self) -> list[str]:
        """What is stored."""
        return [self._layer.text(message) for message in self._do(self._layer.load(self._session))]

    def put_value(self, value: Any) -> Any:
        """Store a JSON value, and give it as it is read."""
        return self._do(self._layer.put_value(self._session, value))


def _worker(pipe: Any, name: str, place: str, session: str, task: str, options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    subject = Subject(name, place, session)
    pipe.send("ready")
    pipe.recv()
    _TASKS[task](pipe, subject, **options)


def _turns(pipe: Any, subject: Any, *, who: str, count: int) -> None:
    done, refused = [], Counter()
    for number in range(count):
        try:
            subject.turn(f"{who} asks {number}", f"{who} answers {number}")
            done.append(number)
        except Exception as error:  # noqa: BLE001 - what it is called is told
            refused[type(error).__name__] += 1
    pipe.send((done, dict(refused)))


def _until_killed(pipe: Any, subject: Any) -> None:
    for number in range(1_000_000):
        subject.turn(f"asks {number}", f"answers {number}")
        pipe.send(number)


def _once(pipe: Any, subject: Any, *, keys: int) -> None:
    refused: Counter[str] = Counter()
    for key in range(keys):
        try:
            subject.once(f"key-{key}", f"text {key}")
        except Exception as error:  # noqa: BLE001 - whatever a layer raises is its answer
            refused[type(error).__name__] += 1
    pipe.send(dict(refused))


_TASKS: dict[str, Callable[..., None]] = {"turns": _turns, "until_killed": _until_killed, "once": _once}


class Worker:
    """One process with its own handle."""

    def __init__(self, name: str, place: str, session: str, task: str, **options: Any) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        args = (theirs, name, place, session, task, options)
        self._process = CONTEXT.Process(target=_worker, args=args, daemon=True)
        self._process.start()
        theirs.close()

    def hear(self) -> Any:
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise TimeoutError("the process said nothing")
        return self._pipe.recv()

    def go(self) -> None:
        self._pipe.send("go")

    def kill(self) -> list[Any]:
        self._process.kill()
        said = []
        with contextlib.suppress(EOFError, OSError):
            while True:
                said.append(self.hear())
        self._process.join()
        return said


def all_at_once(workers: list[Worker]) -> list[Any]:
    for worker in workers:
        worker.hear()
    for worker in workers:
        worker.go()
    answers = [worker.hear() for worker in workers]
    for worker in workers:
        worker.kill()
    return answers


def one_session(name: str, place: str) -> dict[str, Any]:
    """Test 3: what several processes that advance one session leave."""
    Subject(name, place, "race").turn("first asks", "first answers")
    answers = all_at_once([Worker(name, place, "race", "turns", who=f"p{n}", count=TURNS) for n in range(WORKERS)])
    texts = Subject(name, place, "race").texts()
    told = [f"p{n} asks {number}" for n, (done, _) in enumerate(answers) for number in done]
    torn = sum(
        text in texts and texts[texts.index(text) + 1 : texts.index(text) + 2] != [text.replace("asks", "answers")]
        for text in told
    )
    refused: Counter[str] = sum((Counter(each) for _, each in answers), Counter())
    return {
        "turns": WORKERS * TURNS,
        "acknowledged": len(told),
        "missing": sum(text not in texts for text in told),
        "torn": torn,
        "refused": dict(refused),
    }


def kills(name: str, place: str) -> dict[str, Any]:
    """Test 2: writers killed at random moments, each in a session of its own."""
    chance = random.Random(2)
    lost = told = half = unreadable = 0
    for group in range(0, KILLS, WORKERS):
        workers = [(f"k{n}", Worker(name, place, f"k{n}", "until_killed")) for n in range(group, group + WORKERS)]
        for _, worker in workers:
            worker.hear()
        for _, worker in workers:
            worker.go()
        for session, worker in workers:
            said = [worker.hear()]
            time.sleep(chance.uniform(0.005, 0.5))
            said += worker.kill()
            told += len(said)
            try:
                texts = Subject(name, place, session).texts()
            except Exception:  # noqa: BLE001 - whatever a layer raises is its answer
                unreadable += 1
                continue
            lost += sum(f"answers {number}" not in texts for number in said)
            half += bool(texts) and " asks " in f" {texts[-1]} "
    return {"kills": KILLS, "acknowledged": told, "lost": lost, "unreadable": unreadable, "ends in a question": half}


def once(name: str, place: str) -> dict[str, Any]:
    """Test 12: the same ids by many senders at once."""
    Subject(name, place, "once").turn("first asks", "first answers")
    answers = all_at_once([Worker(name, place, "once", "once", keys=KEYS) for _ in range(SENDERS)])
    stored = Counter(text for text in Subject(name, place, "once").texts() if text.startswith("text "))
    refused: Counter[str] = sum((Counter(each) for each in answers), Counter())
    return {
        "keys": KEYS,
        "senders": SENDERS,
        "stored": stored.total(),
        "twice": stored.total() - len(stored),
        "missing": KEYS - len(stored),
        "refused": dict(refused),
    }


def exact(name: str, place: str) -> dict[str, str]:
    """Test 7: what comes back of a value."""
    found = {}
    for what, value in VALUES.items():
        try:
            back = Subject(name, place, f"exact {list(VALUES).index(what)}").put_value(value)
        except Exception as error:  # noqa: BLE001 - whatever a layer raises is its answer
            found[what] = f"refused ({type(error).__name__})"
            continue
        found[what] = "same" if back is not Missing and json.dumps(back) == json.dumps(value) else "changed"
        if back is Missing:
            found[what] = "gone"
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    name, place, imports = sys.argv[1:]
    CONTEXT.set_forkserver_preload(imports.split(","))
    for label, test in (("exact", exact), ("one_session", one_session), ("kills", kills), ("once", once)):
        began = time.monotonic()
        try:
            figures = test(name, place)
        except Exception as error:  # noqa: BLE001 - whatever a layer raises is its answer
            figures = {"failed": f"{type(error).__name__}: {error}"[:300]}
        seconds = round(time.monotonic() - began)
        print(json.dumps({"test": label, "seconds": seconds, **figures}), flush=True)


if __name__ == "__main__":
    main()
