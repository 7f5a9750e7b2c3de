"""
``make bench``: Segue on each store, hand-written access to the bare engine, and what users would use instead.

    python -m bench.compare [--transcripts FOLDER] [--only ENGINE …] [--quick] [--out FOLDER]

Each system runs in a process and an environment of its own; all of them are measured in turn, round after round, and
each sample stands between two samples of the floor of its engine, so that a machine whose speed drifts moves both.
Writes docs/data/bench.json and bench.svg, and the tables in docs/benchmark.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import segue
from bench import machine, page
from bench.page import NEWEST
from bench.systems import EMBEDDED, PINS, ROOT, SYSTEMS, NotHere, System, place_of, python_of, server_of
from segue.importers import import_file

OUT = ROOT / "docs"
SEED_SECONDS, ANSWER_SECONDS = 600, 120
SLOW_SECONDS, SLOW_SAMPLES = 3.0, 2
"""Of a call that takes so long, so many samples are enough."""


class Sizes(NamedTuple):
    """
    How much is measured.

    Attributes:
        heads: Lengths of the histories, in messages.
        rounds: Most rounds of single calls; fewer when ``calls_seconds`` are over.
        calls: Calls of one sample.
        crowd_rounds: Most rounds of many at once; fewer when ``crowd_seconds`` are over.
        crowd_each_seconds: How long many at once go on.
        sessions: How many there are when the newest are listed.
        turns: Most turns of which the bytes are counted.
        imports: How often each is imported.
        minutes: For all together; what is then still to be measured is left out.
    """

    heads: tuple[int, ...] = (10, 100, 1_000, 10_000)
    rounds: int = 7
    calls: int = 8
    calls_seconds: float = 420
    crowd_rounds: int = 2
    crowd_seconds: float = 560
    crowd_each_seconds: float = 1.5
    processes: int = 8
    tasks: int = 64
    sessions: int = 100_000
    turns: int = 1_000
    imports: int = 3
    minutes: float = 27


QUICK = Sizes((8, 40), 1, 2, 5, 1, 5, 0.2, 2, 4, 200, 20, 1)


class Seat:
    """
    One running worker.

    Attributes:
        can: What the layer offers (``fork``, ``newest``).
        failed: Why it takes part no more.
    """

    def __init__(self, name: str, place: str) -> None:
        system = SYSTEMS[name]
        self.name, self.system, self.place = name, system, place
        self.failed = ""
        command = [python_of(system), "-m", "bench.worker", system.layer, system.tasks, place, system.imports]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._words: list[str] = []
        for stream, take in ((self._process.stdout, self._answers.put), (self._process.stderr, self._words.append)):
            threading.Thread(target=_pour, args=(stream, take), daemon=True).start()
        self.can: dict[str, Any] = {}

    def open(self) -> None:
        """Let the layer connect."""
        self.can = self.ask("open")

    def ask(self, do: str, *, patience: float = ANSWER_SECONDS, **options: Any) -> dict[str, Any]:
        """The worker's answer; empty when it has failed."""
        if self.failed:
            return {}
        try:
            assert self._process.stdin is not None
            print(json.dumps({"do": do, **options}), file=self._process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self._answers.get(timeout=patience))
        except (OSError, ValueError, queue.Empty):
            self.failed = f"no answer to {do!r} in {patience:.0f} s"
            self._process.kill()
            print(f"{self.name}: {self.failed}\n{''.join(self._words[-10:])}", file=sys.stderr, flush=True)
            return {}
        if "error" in answer:
            print(f"{self.name}: {do}: {answer['error']}", file=sys.stderr, flush=True)
            if do in ("open", "seed"):
                self.failed = f"{do}: {answer['error']}"
        return answer

    def close(self) -> None:
        """End it. Idempotent."""
        if self._process.poll() is None:
            self.ask("close")
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=5)
        self._process.kill()
        self._process.wait()


def _pour(stream: Any, take: Any) -> None:
    for line in stream:
        take(line)
    take("")


class Bench:
    """
    One run.

    Args:
        names: The systems to measure.
        sizes: How much.
        folder: For what lives in files.
    """

    def __init__(self, names: list[str], sizes: Sizes, folder: Path) -> None:
        self.sizes, self._folder = sizes, folder
        self.left_out: dict[str, str] = {}
        self.samples: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
        self.crowds: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        self.bytes: dict[str, dict[str, float]] = {}
        self.imports: dict[str, dict[str, float]] = {}
        self.seconds: dict[str, float] = {}
        self.loads: list[float] = []
        self._began = time.monotonic()
        self._servers: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._names = [name for name in names if self._is_here(name)]

    def _is_here(self, name: str) -> bool:
        engine = SYSTEMS[name].engine
        try:
            python_of(SYSTEMS[name])
            if engine not in self._servers:
                self._servers[engine] = self._stack.enter_context(server_of(engine))
        except NotHere as reason:
            self.left_out[name] = str(reason)
        return name not in self.left_out

    def run(self) -> None:
        """All phases."""
        with self._stack:
            with self._phase("imports"):
                self._import()
            with self._phase("bytes"), ThreadPoolExecutor(2) as pool:
                list(pool.map(self._count_bytes, self._names))
            with self._phase(f"{NEWEST} of {self.sizes.sessions:,}"):
                self._newest([name for name in self._names if SYSTEMS[name].layer.startswith(("segue.", "by_hand."))])
            with self._phase("calls, and many at once"), self._seated("main", self._names) as seats:
                self._seed(seats)
                self._calls(seats)
                self._crowd(seats)

    @contextlib.contextmanager
    def _phase(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {what} (load {machine.load()})", flush=True)
        yield
        self.seconds[what] = round(time.monotonic() - began)

    @contextlib.contextmanager
    def _seated(self, label: str, names: list[str]) -> Iterator[list[Seat]]:
        """Workers at fresh places of their own."""
        with contextlib.ExitStack() as stack:
            seats = []
            for name in names:
                system, folder = SYSTEMS[name], self._folder / label / name
                folder.mkdir(parents=True, exist_ok=True)
                place = stack.enter_context(place_of(system, folder, self._servers[system.engine]))
                seat = Seat(name, place)
                stack.callback(seat.close)
                seats.append(seat)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(Seat.open, seats))
            yield seats
            for seat in seats:
                if seat.failed:
                    self.left_out[seat.name] = seat.failed

    def _seed(self, seats: list[Seat]) -> None:
        appends = self.sizes.rounds * (self.sizes.calls + 2)

        def seed(seat: Seat) -> None:
            for head in self.sizes.heads:
                more = 3 if head == self.sizes.heads[-2] else 1  # runner-like turns go there, too
                seat.ask("seed", patience=SEED_SECONDS, head=head, appends=appends * more)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(seed, sorted(seats, key=lambda seat: -seat.system.layer.startswith("adk"))))
        self._log("seeded")

    @property
    def _left_seconds(self) -> float:
        return self._began + self.sizes.minutes * 60 - time.monotonic()

    def _log(self, what: str) -> None:
        self.loads.append(machine.load())
        print(f"{dt.datetime.now(dt.UTC):%H:%M:%S}   {what} (load {self.loads[-1]})", flush=True)

    # One call after the other.

    def _calls(self, seats: list[Seat]) -> None:
        until = time.monotonic() + min(self.sizes.calls_seconds, self._left_seconds * 0.45)
        for number in range(self.sizes.rounds):
            for what, command in self._measures():
                for floor, rest in _by_engine(seats, is_backward=number % 2 == 1):
                    able = [seat for seat in rest if _offers(seat, command["do"]) and not self._is_known(seat, what)]
                    self._sandwich(what, command, floor, able)
            self._log(f"round {number + 1} of {self.sizes.rounds}")
            if time.monotonic() > until:
                break

    def _is_known(self, seat: Seat, what: str) -> bool:
        found = self.samples[seat.name][what]
        return len(found) >= SLOW_SAMPLES and found[-1]["seconds"] > SLOW_SECONDS

    def _measures(self) -> list[tuple[str, dict[str, Any]]]:
        *_, middle, most = self.sizes.heads
        calls, few = self.sizes.calls, max(1, self.sizes.calls // 4)
        appends = [(f"append at {head}", {"do": "append", "head": head, "count": calls}) for head in self.sizes.heads]
        return [
            *appends,
            (f"append, async, at {middle}", {"do": "append_async", "head": middle, "count": calls}),
            (f"turn in steps at {middle}", {"do": "append", "head": middle, "count": calls, "how": "turn"}),
            (f"load {middle}", {"do": "load", "head": middle, "count": few}),
            (f"load {most}", {"do": "load", "head": most, "count": few}),
            (f"last 20 of {most}", {"do": "last", "head": most, "count": calls}),
            (f"fork at {most}", {"do": "fork", "head": most, "count": calls}),
        ]

    def _sandwich(self, what: str, command: dict[str, Any], floor: Seat | None, rest: list[Seat]) -> None:
        """A sample of each, between samples of the floor: its seconds, and its ratio to the floors around it."""
        base = {**command, "do": "append"} if command["do"] == "append_async" else command
        before = _medians(floor, base)
        for seat in rest:
            mine, after = _medians(seat, command), _medians(floor, base)
            if mine:
                around = [each["seconds"] for each in (before, after) if each]
                ratio = {"ratio": mine["seconds"] / statistics.mean(around)} if around else {}
                self.samples[seat.name][what].append({**mine, **ratio})
            if floor is not None and after:
                self.samples[floor.name][what].append({**after, "ratio": 1.0})
            before = after

    # Many at once.

    def _crowd(self, seats: list[Seat]) -> None:
        until = time.monotonic() + min(self.sizes.crowd_seconds, self._left_seconds)
        cases = [
            (f"{count} {kind}, {'one session' if is_one else 'a session each'}", kind, count, is_one)
            for is_one in (False, True)
            for kind, count in (("processes", self.sizes.processes), ("tasks", self.sizes.tasks))
        ]
        for number in range(self.sizes.crowd_rounds):
            for what, kind, count, is_one in cases:
                if number > 0 and time.monotonic() > until:
                    return
                options = {"kind": kind, "workers": count, "seconds": self.sizes.crowd_each_seconds, "is_one": is_one}
                for floor, rest in _by_engine(seats, is_backward=number % 2 == 1):
                    for seat in [floor, *rest, floor] if floor is not None else rest:
                        if self._left_seconds > 0:
                            self._gather(seat, what, options)
                self._log(f"{what}, round {number + 1}")

    def _gather(self, seat: Seat, what: str, options: dict[str, Any]) -> None:
        answer = seat.ask("crowd", **options)
        if "turns" in answer:
            seconds = self.sizes.crowd_each_seconds + max(0.0, answer.pop("over"))
            self.crowds[seat.name][what].append({"per_second": answer["turns"] / seconds, **answer})

    # The list, the bytes, the imports.

    def _newest(self, names: list[str]) -> None:
        with self._seated("newest", names) as seats:
            able = [seat for seat in seats if seat.can.get("newest")]
            with ThreadPoolExecutor(2) as pool:
                filled = list(pool.map(self._fill, able))
            able = [seat for seat, is_full in zip(able, filled, strict=True) if is_full]
            command = {"do": "newest", "count": self.sizes.calls}
            for _ in range(self.sizes.rounds):
                for floor, rest in _by_engine(able):
                    self._sandwich(NEWEST, command, floor, rest)

    def _fill(self, seat: Seat) -> bool:
        count = min(seat.system.sessions, self.sizes.sessions)
        return "seconds" in seat.ask("fill", patience=SEED_SECONDS, sessions=count)

    def _count_bytes(self, name: str) -> None:
        system = SYSTEMS[name]
        turns = min(system.turns, self.sizes.turns)
        with self._seated("bytes", [name]) as (seat,):
            folder = self._folder / "bytes" / name
            before = 0 if system.engine in EMBEDDED else _bytes_at(system, folder, seat.place)
            answer = seat.ask("write", patience=SEED_SECONDS, turns=turns)
            seat.close()
            after = _bytes_at(system, folder, seat.place)
        if "json_bytes" in answer:
            stored, plain = after - before, answer["json_bytes"]
            self.bytes[name] = {"turns": turns, "json": plain, "stored": stored, "ratio": stored / plain}

    def _import(self) -> None:
        found: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for _ in range(self.sizes.imports):
            for name in self._names:
                found[name].append(_import_once(SYSTEMS[name]))
        for name, runs in found.items():
            self.imports[name] = {
                "seconds": statistics.median(seconds for seconds, _ in runs),
                "modules": runs[0][1],
            }


def _by_engine(seats: list[Seat], *, is_backward: bool = False) -> list[tuple[Seat | None, list[Seat]]]:
    """For each engine its floor, and the others."""
    groups: dict[str, tuple[Seat | None, list[Seat]]] = {}
    for seat in reversed(seats) if is_backward else seats:
        floor, rest = groups.get(seat.system.engine, (None, []))
        is_floor = seat.system.layer.startswith("by_hand.") and seat.name.startswith("floor_")
        groups[seat.system.engine] = (seat, rest) if is_floor else (floor, [*rest, seat])
    return list(groups.values())


def _offers(seat: Seat, do: str) -> bool:
    return bool(seat.system.tasks if do == "append_async" else seat.can.get(do, True))


def _medians(seat: Seat | None, command: dict[str, Any]) -> dict[str, float]:
    """Seconds and processor time of one sample; empty when there is none."""
    if seat is None or not _offers(seat, command["do"]):
        return {}
    answer = seat.ask(**command)
    return {what: statistics.median(answer[what]) for what in ("seconds", "cpu") if answer.get(what)}


def _bytes_at(system: System, folder: Path, place: str) -> int:
    """What is stored at the place. Redis: the memory of its keys, as its log is shared by all."""
    if system.engine in EMBEDDED:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if system.engine == "postgres":
        import psycopg

        with psycopg.connect("postgresql://" + place.partition("://")[2], autocommit=True) as con:
            con.execute("CHECKPOINT")
            row = con.execute("SELECT pg_database_size(current_database())").fetchone()
            return int(row[0]) if row else 0
    if system.engine == "mysql":
        import servers

        with contextlib.closing(servers._mysql_connect(place)) as con:  # noqa: SLF001
            cursor = con.cursor()
            cursor.execute(
                "SELECT sum(FILE_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE %s",
                (f"{place.rpartition('/')[2]}/%",),
            )
            return int((cursor.fetchone() or [0])[0] or 0)
    import redis

    with redis.Redis.from_url(place) as client:
        return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1_000))


def _import_once(system: System) -> tuple[float, int]:
    code = (
        "import sys, time; n = len(sys.modules); t = time.perf_counter()\n"
        f"import {system.imports.replace(',', ', ')}\n"
        "print(time.perf_counter() - t, len(sys.modules) - n)"
    )
    done = subprocess.run([python_of(system), "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    seconds, modules = done.stdout.split()[-2:]
    return float(seconds), int(modules)


def transcripts(folder: Path) -> dict[str, Any] | None:
    """Claude Code transcripts of real sessions: bytes in SQLite, once imported, against those of their text."""
    files = sorted(path for path in folder.rglob("*.jsonl") if _is_transcript(path))
    if not files:
        return None
    with tempfile.TemporaryDirectory() as place:
        imported = plain = 0
        with segue.open(f"sqlite:///{place}/real.db") as db:
            for path in files:
                with contextlib.suppress(segue.SegueError):
                    import_file(db.scope(), path)
                    imported += 1
                    plain += path.stat().st_size
        stored = sum(path.stat().st_size for path in Path(place).iterdir())
    return {"files": imported, "refused": len(files) - imported, "json": plain, "stored": stored} if plain else None


def _is_transcript(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(20_000)
    return all(mark in head for mark in (b'"sessionId"', b'"uuid"', b'"type"'))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = sorted({system.engine for system in SYSTEMS.values()})
    parser.add_argument("--only", nargs="*", choices=[*engines, *SYSTEMS], default=engines, metavar="ENGINE|SYSTEM")
    parser.add_argument("--transcripts", type=Path, help="a folder of Claude Code transcripts, to count bytes")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--out", type=Path, default=OUT, help="where benchmark.md and data/ are")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; default: a temporary one")
    args = parser.parse_args(arguments)
    names = [name for name, system in SYSTEMS.items() if {name, system.engine} & set(args.only)]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        about, load, began = machine.describe(Path(folder)), machine.load(), dt.datetime.now(dt.UTC)
        bench = Bench(names, QUICK if args.quick else Sizes(), Path(folder))
        bench.run()
        about["fsync_ms_after"] = round(machine.fsync_seconds(Path(folder)) * 1e3, 3)
    real = transcripts(args.transcripts) if args.transcripts else None
    figures = {
        "date": began.strftime("%Y-%m-%d %H:%M UTC"),
        "minutes": round((dt.datetime.now(dt.UTC) - began).total_seconds() / 60, 1),
        "machine": {**about, "load_before": load, "load_during": bench.loads, "load_after": machine.load()},
        "versions": PINS,
        "sizes": bench.sizes._asdict(),
        "left_out": bench.left_out,
        "phases_seconds": bench.seconds,
        "calls": {name: dict(found) for name, found in bench.samples.items()},
        "crowds": {name: dict(found) for name, found in bench.crowds.items()},
        "bytes": bench.bytes,
        "imports": bench.imports,
        "transcripts": real,
    }
    page.write(figures, args.out)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside; nothing was written"))
    main()
