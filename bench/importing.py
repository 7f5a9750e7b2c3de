"""
How fast a Claude Code transcript is imported, beside parsing it and inserting its lines, in one run.

    python bench/importing.py [transcript.jsonl …]

Without files it makes a transcript of its own. Several files are put together to one, with names of their own.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import apsw

import segue
from segue.importers import import_file

COPIES = 4
RUNS = 7


def made(files: list[str], path: Path) -> None:
    with path.open("wb") as out:
        for copy in range(COPIES):
            for name in files:
                for line in Path(name).read_bytes().splitlines():
                    out.write(renamed(line, b"%d" % copy) + b"\n")
            for turn in range(0 if files else 1_500):
                out.write(record(copy, turn, "user", "why? " * 200))
                out.write(record(copy, turn, "assistant", [{"type": "text", "text": "because " * 500}]))


def renamed(line: bytes, copy: bytes) -> bytes:
    for mark in (b'"uuid":"', b'arentUuid":"', b'"id":"msg_', b'"id":"toolu_', b'"tool_use_id":"toolu_'):
        line = line.replace(mark, mark + copy)
    return line


def record(copy: int, turn: int, role: str, content: object) -> bytes:
    before = f"{copy}-{turn}-user" if role == "assistant" else f"{copy}-{turn - 1}-assistant"
    value = {
        "parentUuid": before if turn or role == "assistant" else None,
        "sessionId": "bench",
        "type": role,
        "message": {"role": role, "content": content},
        "uuid": f"{copy}-{turn}-{role}",
        "timestamp": "2026-05-01T09:00:00.000Z",
        "cwd": "/srv/app",
        "version": "2.1.0",
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def raw(path: Path, folder: Path) -> None:
    con = apsw.Connection(str(folder / "raw.db"))
    con.execute("PRAGMA journal_mode = WAL")
    con.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, body BLOB)")
    with path.open("rb") as file, con:
        for line in file:
            try:
                json.loads(line)
            except ValueError:
                continue
            con.execute("INSERT INTO lines (body) VALUES (?)", (line,))
    con.close()


def imported(path: Path, folder: Path) -> None:
    with segue.open(f"sqlite:///{folder / 'segue.db'}") as db:
        import_file(db.scope(), path)


def seconds(what, path: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        what(path, Path(folder))
        return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transcript.jsonl"
        made(sys.argv[1:], path)
        size = path.stat().st_size / 1e6
        times = [(seconds(raw, path), seconds(imported, path)) for _ in range(RUNS)]
        for base, mine in times:
            print(
                f"{size:.0f} MB: parsing and raw inserts {size / base:.0f} MB/s, "
                f"import {size / mine:.0f} MB/s ({base / mine:.2f}x)"
            )
        ratio = statistics.median(base / mine for base, mine in times)
        print(f"median {ratio:.2f}x, {statistics.median(size / mine for _, mine in times):.0f} MB/s")


if __name__ == "__main__":
    main()
