"""
The Claude Agent SDK's store against what it is made of: parsing the lines, and the raw append.

    python bench/claude_store.py [transcript.jsonl …]

Without transcripts it makes lines of the CLI's shape. Times are wall-clock medians; on a busy machine look
at the CPU times beside them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

import segue
from segue.adapters.claude_agent_sdk import SegueSessionStore
from segue.adapters.claude_agent_sdk.lines import Spent, encode
from segue.model import from_us

LINES = 10_000
BATCH = 20
KEY = {"project_key": "-srv-app", "session_id": "11111111-1111-4111-8111-111111111111"}
WORDS = [
    "the",
    "sales",
    "of",
    "August",
    "fell",
    "in",
    "East",
    "China",
    "by",
    "nine",
    "percent",
    "since",
    "fewer",
    "orders",
    "came",
    "select",
    "sum",
    "from",
    "where",
]


def made_line(n):
    rng = random.Random(n)
    text = " ".join(rng.choices(WORDS, k=rng.choice([20, 60, 400])))
    blocks = [
        {"type": "text", "text": text},
        {"type": "tool_use", "id": f"toolu_{n}", "name": "Read", "input": {"n": n}},
    ]
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3, "service_tier": "standard"}
    return {
        "parentUuid": str(uuid.UUID(int=n)), "isSidechain": False, "userType": "external", "cwd": "/srv/app",
        "sessionId": KEY["session_id"], "version": "2.1.332", "gitBranch": "main", "type": "assistant",
        "message": {"id": f"msg_{n}", "type": "message", "role": "assistant", "content": blocks, "usage": usage},
        "uuid": str(uuid.UUID(int=n + 1)), "timestamp": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip


def read_lines(paths):
    for path in itertools.cycle(paths):
        for text in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            yield {**line, "uuid": str(uuid.uuid4())} if "uuid" in line else line


class Clock:
    def __init__(self):
        self.wall, self.cpu = [], []

    def __enter__(self):
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_):
        self.wall.append(time.perf_counter() - self._began[0])
        self.cpu.append(time.process_time() - self._began[1])

    def against(self, other, name):
        pairs = [
            (statistics.median(a), statistics.median(b)) for a, b in ((self.wall, other.wall), (self.cpu, other.cpu))
        ]
        (wall, wall0), (cpu, cpu0) = [(a * 1e3, b * 1e3) for a, b in pairs]
        print(f"{name}: {wall:.2f} ms against {wall0:.2f} ms, {wall / wall0:.2f}x (CPU {cpu / cpu0:.2f}x)")


async def load(store, lines):
    texts = [json.dumps(line, separators=(",", ":")).encode() for line in lines]
    parse, whole = Clock(), Clock()
    for _ in range(7):
        with parse:
            parsed = [json.loads(text) for text in texts]
        with whole:
            loaded = await store.load(KEY)
        assert loaded == parsed
        del parsed, loaded
    whole.against(parse, f"load of {len(lines):,} lines ({sum(map(len, texts)) / 1e6:.0f} MB)")


def told(line):
    """What the adapter keeps beside a line."""
    (entry,) = encode([line], spent=Spent()).drafts
    occurred_at = None if entry.occurred_us is None else from_us(entry.occurred_us)
    names = ("kind", "format", "origin", "id", "refs", "usage")
    return {**{name: getattr(entry, name) for name in names}, "occurred_at": occurred_at}


async def append(store):
    bare, raw, through = Clock(), Clock(), Clock()
    session = store.scope.create(format="claude.line")
    for n in range(200):
        first = LINES + 3 * n * BATCH
        one, two, three = ([made_line(first + k * BATCH + i) for i in range(BATCH)] for k in (0, 1, 2))
        beside = [told(line) for line in two]
        with bare:
            session.append(*one, kind="claude.line", ids=[line["uuid"] for line in one])
        with raw:
            session.append(*(segue.draft(line, **more) for line, more in zip(two, beside, strict=True)))
        with through:
            await store.append(KEY, three)
    through.against(raw, f"append of {BATCH} lines, to an append of the same entries")
    through.against(bare, f"append of {BATCH} lines, to one of entries without times and tokens")


async def main(paths):
    lines = list(itertools.islice(read_lines(paths) if paths else map(made_line, itertools.count()), LINES))
    with tempfile.TemporaryDirectory() as folder, SegueSessionStore(f"sqlite:///{folder}/a.db", spool=folder) as store:
        await store.append(KEY, lines)
        await load(store, lines)
        await append(store)


asyncio.run(main(sys.argv[1:]))
