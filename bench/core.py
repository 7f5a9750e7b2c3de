"""
Segue on SQLite against hand-written SQL that does the same on the same schema, in one run.

    python -m bench.core [--blocks 5] [--json FILE]

Blocks of the two are interleaved, so that a machine whose speed drifts slows both; the figures are
medians over the blocks, the ratios are what to quote.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import secrets
import statistics
import tempfile
import threading
import time
import zlib
from pathlib import Path

import apsw
import msgspec
import zstandard

import segue

TEXT = (
    "8 月华东销售额环比下降 12.4%,主要由退货集中入账造成;按 SKU 拆分后,A17 与 B02 两款贡献了降幅的七成。"
    "The decline is concentrated in two product lines; marketplace orders fell by 9.8 % while direct sales held. "
)


def turn(n):
    """A question, a call, its result and an answer: about 5.6 KB of JSON, half of it Chinese."""
    call = f"toolu_{n:020d}"
    rows = [{"sku": f"A{k:02d}", "orders": 1000 + k * n % 977, "returns": k * 7 % 31} for k in range(40)]
    return [
        {"role": "user", "content": f"{n}: 华东8月销售为什么下降?请按渠道分析。"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": TEXT},
                {"type": "tool_use", "id": call, "name": "query", "input": {"month": 8}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call, "content": json.dumps(rows, ensure_ascii=False)}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": TEXT * 3}]},
    ]


class Raw:
    """The same rows by hand: one connection, one statement after the other, one commit."""

    def __init__(self, path, session_id):
        self.con = apsw.Connection(str(path))
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            self.con.execute(f"PRAGMA {pragma}")
        (self.no,) = self.con.execute("SELECT no FROM sessions WHERE id = ?", (session_id,)).fetchone()
        (self.scope,) = self.con.execute("SELECT scope_no FROM sessions WHERE no = ?", (self.no,)).fetchone()
        labels = {(k, o): no for no, k, o in self.con.execute("SELECT no, kind, origin FROM labels")}
        self.labels = [labels["message", o] for o in ("user", "model", "tool", "model")]
        self.squeeze = zstandard.ZstdCompressor(level=1)

    def turn(self, n, *, commit=True):
        if commit:
            self.con.execute("BEGIN IMMEDIATE")
        (head,) = self.con.execute(
            "SELECT head FROM sessions WHERE scope_no = ? AND no = ?", (self.scope, self.no)
        ).fetchone()
        now = time.time_ns() // 1000
        rows, refs = [], []
        for k, message in enumerate(turn(n), 1):
            body = msgspec.json.encode(message)
            codec, packed = 0, body
            if len(body) >= 512:
                small = self.squeeze.compress(body)
                codec, packed = (1, small) if len(small) < len(body) * 0.9 else (0, body)
            digest = hashlib.sha256(body).digest()
            ref = f"call:toolu_{n:020d}" if k in (2, 3) else None
            if ref:
                refs.append((self.no, ref, head + k, self.scope, now))
            rows.append(
                (
                    self.no << 32 | head + k,
                    self.no,
                    secrets.token_bytes(16),
                    self.labels[k - 1],
                    now,
                    None,
                    None,
                    ref,
                    None,
                    zlib.crc32(digest),
                    digest,
                    codec,
                    packed,
                )
            )
        self.con.executemany(
            "INSERT INTO entries (pos, session_no, id, label, created_us, occurred_us, run, refs, usage,"
            " seal, digest, codec, body) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            rows,
        )
        self.con.executemany("INSERT INTO refs VALUES (?,?,?,?,?)", refs)
        self.con.execute("UPDATE sessions SET head = ?, active_us = ? WHERE no = ?", (head + 4, now, self.no))
        if commit:
            self.con.execute("COMMIT")

    def group(self, ns):
        self.con.execute("BEGIN IMMEDIATE")
        for n in ns:
            self.turn(n, commit=False)
        self.con.execute("COMMIT")

    def last(self, count):
        rows = self.con.execute(
            "SELECT pos, id, label, created_us, occurred_us, run, refs, usage, seal, digest, codec, body FROM entries"
            " WHERE pos > ? AND pos <= ? ORDER BY pos DESC LIMIT ?",
            (self.no << 32, (self.no + 1) << 32, count),
        ).fetchall()
        unpack = zstandard.ZstdDecompressor()
        return [json.loads(unpack.decompress(row[11]) if row[10] else row[11]) for row in rows]


class Bench:
    def __init__(self, folder):
        self.path = Path(folder) / "bench.db"
        self.db = segue.open(f"sqlite:///{self.path}")
        self.me = self.db.scope("acme", "lin")
        self.n = 0
        self.short = self.made(10)
        self.long = self.made(10_000)
        self.raw = Raw(self.path, self.made(4).id)
        self.commits = 0
        inner = self.db.engine.store.commit

        def counted(ops):
            self.commits += 1
            return inner(ops)

        self.db.engine.store.commit = counted

    def made(self, head):
        session = self.me.create()
        messages = []
        while len(messages) < head:
            self.n += 1
            messages += turn(self.n)
        for at in range(0, head, 1000):
            session.append(*messages[at : min(at + 1000, head)])
        return session

    def next(self):
        self.n += 1
        return self.n

    def timed(self, count, work):
        began = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - began) / count

    def append(self, session):
        session.append(*turn(self.next()))

    def appends_async(self, count):
        twin = segue.AsyncSession(self.db.engine, self.short)

        async def main():
            began = time.perf_counter()
            for _ in range(count):
                await twin.append(*turn(self.next()))
            return (time.perf_counter() - began) / count

        return asyncio.run(main())

    def crowd(self, sessions, each):
        barrier = threading.Barrier(len(sessions) + 1)
        numbers = [[self.next() for _ in range(each)] for _ in sessions]

        def work(session, mine):
            barrier.wait()
            for n in mine:
                session.append(*turn(n))

        threads = [threading.Thread(target=work, args=pair) for pair in zip(sessions, numbers, strict=True)]
        for thread in threads:
            thread.start()
        barrier.wait()
        self.commits, began = 0, time.perf_counter()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - began) / (len(sessions) * each), self.commits / (len(sessions) * each)

    def crowd_async(self, sessions, each):
        numbers = [[self.next() for _ in range(each)] for _ in sessions]

        async def work(session, mine):
            for n in mine:
                await session.append(*turn(n))

        async def main():
            twins = [segue.AsyncSession(self.db.engine, session) for session in sessions]
            self.commits, began = 0, time.perf_counter()
            await asyncio.gather(*(work(twin, mine) for twin, mine in zip(twins, numbers, strict=True)))
            return (time.perf_counter() - began) / (len(sessions) * each), self.commits / (len(sessions) * each)

        return asyncio.run(main())


def rounds(bench, blocks):
    """One dictionary of seconds for each block."""
    crowd = [bench.made(4) for _ in range(32)]
    cut = cut_session(bench, 100_000)
    window = bench.made(400)
    for _ in range(blocks):
        small = iter([bench.made(10) for _ in range(60)])
        found = {
            "raw append": bench.timed(200, lambda: bench.raw.turn(bench.next())),
            "append": bench.timed(200, lambda: bench.append(bench.short)),
            "append async": bench.appends_async(200),
            "raw append again": bench.timed(200, lambda: bench.raw.turn(bench.next())),
            "append at 10": statistics.median(bench.timed(1, lambda: bench.append(next(small))) for _ in range(60)),
            "append at 10,000": statistics.median(bench.timed(1, lambda: bench.append(bench.long)) for _ in range(60)),
            "fork at 10": bench.timed(60, lambda: bench.short.fork(10)),
            "fork at 10,000": bench.timed(60, lambda: bench.long.fork(10_000)),
            "raw last 20": bench.timed(200, lambda: bench.raw.last(20)),
            "last 20 of 10,000": bench.timed(200, lambda: [entry.json() for entry in bench.long.read(last=20)]),
            "view of 400": bench.timed(5, window.messages),
            "view of 400 behind a cut at 99,600": bench.timed(5, cut.messages),
            "raw turn in groups of 32": bench.timed(20, lambda: bench.raw.group([bench.next() for _ in range(32)]))
            / 32,
        }
        found["turn of 32 threads"], found["commits a turn, threads"] = bench.crowd(crowd, 40)
        found["turn of 32 tasks"], found["commits a turn, tasks"] = bench.crowd_async(crowd, 40)
        yield found


def cut_session(bench, head):
    session = bench.made(head - 400)
    cut = {"upto": head - 400, "summary": None, "reason": "bench"}
    session.append(cut, kind="cut", format="segue", refs=["cut"])
    messages = []
    while len(messages) < 400:
        messages += turn(bench.next())
    session.append(*messages)
    return session


RATIOS = [
    ("append / raw", "append", "raw append", 1.4),
    ("append async / raw", "append async", "raw append", 1.6),
    ("append at 10,000 / at 10", "append at 10,000", "append at 10", 1.2),
    ("fork at 10,000 / at 10", "fork at 10,000", "fork at 10", 1.2),
    ("last 20 / raw", "last 20 of 10,000", "raw last 20", 1.5),
    ("view behind a cut / short", "view of 400 behind a cut at 99,600", "view of 400", 1.5),
    ("32 threads / raw groups", "turn of 32 threads", "raw turn in groups of 32", 2.0),
    ("32 tasks / raw groups", "turn of 32 tasks", "raw turn in groups of 32", 2.0),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder)
        blocks = []
        for block in rounds(bench, args.blocks):
            blocks.append(block)
            print(f"block {len(blocks)} of {args.blocks}", flush=True)
        bench.db.close()
    medians = {name: statistics.median(block[name] for block in blocks) for name in blocks[0]}
    ratios = {name: statistics.median(b[a] / b[c] for b in blocks) for name, a, c, _ in RATIOS}
    for name, value in medians.items():
        print(f"{name:38} {value:10.4f}" if "commits" in name else f"{name:38} {value * 1e6:10.1f} µs")
    for name, _, _, limit in RATIOS:
        print(f"{name:38} {ratios[name]:10.2f}   (target ≤ {limit})")
    if args.json:
        args.json.write_text(json.dumps({"medians": medians, "ratios": ratios, "blocks": blocks}, indent=1))


if __name__ == "__main__":
    main()
