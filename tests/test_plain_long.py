"""Long conversations across processes, and processes that are killed, against strict stand-ins."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import segue
import stores

FULL = stores.FULL
FORMATS = ["anthropic", "openai.chat", "openai.responses"]
HERE = Path(__file__).parent


@contextlib.contextmanager
def provider():
    """A stand-in in a process of its own; at the end nothing may have been refused."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fakes"], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        yield url
        with urllib.request.urlopen(url) as answer:
            assert json.load(answer)["refused"] == []
    finally:
        process.communicate("")


def work(store, server, folder, format, *words):
    """Run the worker; what it printed."""
    environment = {**os.environ, "SEGUE_DIGESTS": str(folder), "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, HERE / "plain_worker.py", store, server, format, "talk", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.timeout(3_000)
def test_a_long_conversation_is_taken_up_in_new_processes_without_one_refusal(tmp_path, format):
    turns = 500 if FULL else 12
    store = f"sqlite:///{tmp_path}/store.db"
    with provider() as server:
        work(store, server, tmp_path, format, "turns", 0, turns, 5)
    with segue.open(store) as db:
        session = db.scope("acme", "lin").get_key("talk")
        questions = [e for e in session.read(kinds=("message",)) if e.origin == "user"]
        cuts = len(session.by_ref("cut"))
        assert len(questions) == turns
        assert cuts <= turns / 8  # a cut leaves room, so that it is rare
    print(format, f"{turns} turns, {cuts} cuts, refused: 0; each view of an epoch a prefix of the next")


KILLED = [("sqlite", format) for format in FORMATS] + [("jsonl", format) for format in FORMATS if FULL]
KILLED += [] if FULL else [("jsonl", "anthropic")]


@pytest.mark.parametrize(("store", "format"), KILLED)
@pytest.mark.timeout(3_000)
def test_a_turn_killed_at_random_points_is_taken_up_and_no_tool_runs_twice(tmp_path, format, store):
    times = (340 if FULL else 12) // (1 if store == "sqlite" else 4)  # 1,020 over the three formats on SQLite
    with provider() as server, stores.url_of(store, tmp_path) as url:
        out = work(url, server, tmp_path, format, "kill", 7, times, 0.6)
    assert json.loads(out)["killed"] >= times
    print(store, format, out.strip(), "refused: 0")
