"""
Segue on MySQL or MariaDB against hand-written PyMySQL that does the same on the same tables, in one run.

    python -m bench.mysql mysql://root@127.0.0.1:3306/scratch [--blocks 5] [--json FILE]

Makes its tables in that database, which should be an empty one. Blocks of the two are interleaved, so
that a machine whose speed drifts slows both; the ratios are what to quote. The hand-written side is one
connection, one transaction a turn: lock the row, insert four entries and their refs, move the head, commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import statistics
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pymysql

import segue
from bench.core import Bench, turn
from segue.model import ScopeKey
from segue.store import Create

COLUMNS = "seq, id, kind, format, origin, body, digest, refs, run, created_us, occurred_us, tokens"


class Raw:
    """The same rows by hand."""

    def __init__(self, url, session_id):
        parts = urlsplit(url)
        self.con = pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=parts.path[1:],
            charset="utf8mb4",
        )
        self.cur = self.con.cursor()
        self.key = (b"acme", b"lin", session_id.encode())
        self.cur.execute("SELECT segment FROM sessions WHERE tenant = %s AND user_id = %s AND id = %s", self.key)
        (self.segment,) = self.cur.fetchone()
        self.con.commit()

    def turn(self, n):
        self.con.begin()
        self.cur.execute(
            "SELECT head FROM sessions WHERE tenant = %s AND user_id = %s AND id = %s FOR UPDATE", self.key
        )
        (head,) = self.cur.fetchone()
        now = time.time_ns() // 1000
        rows, refs = [], []
        for k, message in enumerate(turn(n), 1):
            body = msgspec.json.encode(message)
            ref = f"call:toolu_{n:020d}".encode() if k in (2, 3) else None
            if ref:
                refs.append((self.segment, ref, head + k, now, *self.key))
            origin = ("user", "model", "tool", "model")[k - 1]
            id, digest = secrets.token_hex(16), hashlib.sha256(body).digest()
            rows.append(
                (self.segment, head + k, id, "message", "anthropic", origin, body, digest, ref, None, now, None, None)
            )
        marks = ", ".join(["%s"] * 13)
        self.cur.executemany(f"INSERT INTO entries (segment, {COLUMNS}) VALUES ({marks})", rows)
        self.cur.executemany(
            "INSERT INTO refs (segment, ref, seq, created_us, tenant, user_id, session) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)",
            refs,
        )
        self.cur.execute(
            "UPDATE sessions SET head = %s, active_us = %s WHERE tenant = %s AND user_id = %s AND id = %s",
            (head + 4, now, *self.key),
        )
        self.con.commit()

    def last(self, count):
        self.cur.execute(
            f"SELECT {COLUMNS} FROM entries WHERE segment = %s ORDER BY seq DESC LIMIT %s", (self.segment, count)
        )
        rows = self.cur.fetchall()
        self.con.commit()
        return [json.loads(row[5]) for row in rows]


class MySQLBench(Bench):
    def __init__(self, url):
        self.db = segue.open(url)
        self.me = self.db.scope("acme", "lin")
        self.n = 0
        self.short = self.made(10)
        self.long = self.made(10_000)
        self.raw = Raw(url, self.made(4).id)
        self.raw_long = Raw(url, self.made(10_000).id)

    def many(self):
        """A list of a scope with 100,000 sessions."""
        crowded = self.db.scope("acme", "crowd")
        if next(crowded.iterate(), None) is None:
            scope = ScopeKey("acme", "crowd")
            for start in range(0, 100_000, 1_000):
                self.db.engine.store.commit([Create(scope, f"s{n:06}") for n in range(start, start + 1_000)])
        return crowded


def rounds(bench, blocks):
    """One dictionary of seconds for each block."""
    crowded = bench.many()
    for _ in range(blocks):
        small = iter([bench.made(10) for _ in range(60)])
        found = {
            "raw append": bench.timed(100, lambda: bench.raw.turn(bench.next())),
            "append": bench.timed(100, lambda: bench.append(bench.short)),
            "raw append again": bench.timed(100, lambda: bench.raw.turn(bench.next())),
        }
        at_10, at_10_000 = [], []
        for _ in range(60):
            one = next(small)
            at_10.append(bench.timed(1, lambda one=one: bench.append(one)))
            at_10_000.append(bench.timed(1, lambda: bench.append(bench.long)))
        found |= {
            "append at 10": statistics.median(at_10),
            "append at 10,000": statistics.median(at_10_000),
            "fork at 10": statistics.median(bench.timed(1, lambda: bench.short.fork(10)) for _ in range(60)),
            "fork at 10,000": statistics.median(bench.timed(1, lambda: bench.long.fork(10_000)) for _ in range(60)),
            "raw last 20": bench.timed(100, lambda: bench.raw_long.last(20)),
            "last 20 of 10,000": bench.timed(100, lambda: [entry.json() for entry in bench.long.read(last=20)]),
            "list 20 of 100,000": statistics.median(bench.timed(1, lambda: crowded.list(limit=20)) for _ in range(60)),
        }
        found["raw append"] = (found["raw append"] + found.pop("raw append again")) / 2
        yield found


RATIOS = [
    ("append / raw", "append", "raw append", 1.4),
    ("append at 10,000 / at 10", "append at 10,000", "append at 10", 1.2),
    ("last 20 / raw", "last 20 of 10,000", "raw last 20", 1.5),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bench = MySQLBench(args.url)
    blocks = []
    for block in rounds(bench, args.blocks):
        blocks.append(block)
        print(f"block {len(blocks)} of {args.blocks}", flush=True)
    bench.db.close()
    medians = {name: statistics.median(block[name] for block in blocks) for name in blocks[0]}
    ratios = {name: statistics.median(b[a] / b[c] for b in blocks) for name, a, c, _ in RATIOS}
    for name, value in medians.items():
        print(f"{name:38} {value * 1e6:10.1f} µs")
    for name, _, _, limit in RATIOS:
        print(f"{name:38} {ratios[name]:10.2f}   (target ≤ {limit})")
    if args.json:
        args.json.write_text(json.dumps({"medians": medians, "ratios": ratios, "blocks": blocks}, indent=1))


if __name__ == "__main__":
    main()
