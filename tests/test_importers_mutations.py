"""Random damage to files of all formats: only typed errors, and nothing is lost that a reader of lines can parse."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from contextlib import closing

import pytest

import import_samples as samples
import segue
from import_samples import REAL, original_of
from segue.importers import import_file
from segue.importers.claude_code import recognises
from segue.importers.source import Source

MUTATIONS = 10_000 if os.environ.get("SEGUE_TORTURE") else 300
PER_FILE = 60_000  # of a real file, the first bytes


def cut(random, lines):
    n = random.randrange(len(lines))
    lines[n] = lines[n][: random.randrange(len(lines[n]) + 1)]


def glue(random, lines):
    n = random.randrange(max(1, len(lines) - 1))
    lines[n : n + 2] = [b"".join(lines[n : n + 2])]


def flip(random, lines):
    n = random.randrange(len(lines))
    if lines[n]:
        at = random.randrange(len(lines[n]))
        lines[n] = lines[n][:at] + bytes([random.randrange(256)]) + lines[n][at + 1 :]


def repeat(random, lines):
    lines.insert(random.randrange(len(lines) + 1), random.choice(lines))


def swap(random, lines):
    a, b = (random.randrange(len(lines)) for _ in range(2))
    lines[a], lines[b] = lines[b], lines[a]


def drop(random, lines):
    if len(lines) > 1:
        del lines[random.randrange(len(lines))]


def pad(random, lines):
    lines.insert(random.randrange(len(lines) + 1), b"\0" * random.randrange(1, 200))


MUTATIONS_OF_LINES = (cut, glue, flip, repeat, swap, drop, pad)


def files():
    found = [body for body in samples.FILES.values()]
    if REAL.is_dir():
        tools = ("entire", "agent-sessions/codex", "agent-sessions/gemini", "polylogue/chatgpt", "chatlore")
        paths = [path for tool in tools for path in sorted((REAL / tool).rglob("*.json*"))]
        found += [path.read_bytes()[:PER_FILE] for path in paths]
    return found


def readable(body):
    """What a reader of lines, which stops at nothing, finds: the content of each message."""
    found = Counter()
    for line in body.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        message = value.get("message") if isinstance(value, dict) else None
        if not isinstance(message, dict) or value.get("type") not in ("user", "assistant") or "content" not in message:
            continue
        if message.get("role", "user") in ("user", "assistant"):
            found[json.dumps(message["content"], sort_keys=True)] += 1
    return found


def stored(db):
    found = Counter()
    for info in db.scope().iterate(unlisted=True):
        for entry in db.scope().open(info.id).history(kinds=("message",)):
            found[json.dumps(entry.json().get("content"), sort_keys=True)] += 1
    return found


@pytest.mark.parametrize("part", range(3))
def test_damage_loses_nothing_that_can_be_read(tmp_path, part):
    bodies = files()
    for number in range(part, MUTATIONS, 3):
        seed = random.Random(number)
        lines = seed.choice(bodies).split(b"\n")
        for _ in range(seed.randrange(1, 5)):
            seed.choice(MUTATIONS_OF_LINES)(seed, lines)
        check(tmp_path / f"{number}.jsonl", b"\n".join(lines))


def check(path, body):
    path.write_bytes(body)
    with closing(segue.open("memory:")) as db:
        report = import_file(db.scope(), path)
        assert report.outcome in ("imported", "skipped"), (path.name, report.reason, report.defects[:3])
        if report.outcome == "imported":
            assert original_of(db.scope(), report) == body, path.name
            assert import_file(db.scope(), path).entries == 0, path.name
            for one in report.sessions:
                if one.format in ("anthropic", "openai.chat", "openai.responses"):
                    db.scope().open(one.id).messages()
        if recognises(Source(path)):
            missing = set(readable(body)) - set(stored(db))
            assert not missing, (path.name, missing)
    path.unlink()
