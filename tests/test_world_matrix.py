"""
The whole matrix against real parts: each probe, each outcome, each way of coming back, note and mask.

One test holds one probe and one way; within it the world goes through all that may befall it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import segue
import stores
import worlds
from segue.guard import calling, reads, using
from segue.ledger import Observation
from segue.probes import DataVersion
from segue.world import Sources
from stores import FULL

DAY = timedelta(hours=25)
PAYLOAD = "what it says"
CRASHING = ("file", "git", "http", "sqlite", "duckdb", "postgres")
DRIFTED = {"changed", "gone", "denied"}
ALL = [
    *worlds.WORLDS,
    *worlds.MORE,
    *(pytest.param(name, marks=pytest.mark.server) for name in worlds.POSTGRES),
]


@pytest.fixture
def db(tmp_path):
    with segue.open(f"sqlite:///{tmp_path}/sessions.db") as opened:
        yield opened


@pytest.fixture
def me(db):
    return db.scope(user="lin")


@pytest.fixture
def world(request, tmp_path):
    folder = tmp_path / "world"
    folder.mkdir()
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):  # nobody may come as far as the world's folder
        if os.geteuid() == 0:
            above.chmod(0o755)
    with worlds.world_named(request.param, folder) as made:
        yield made


@pytest.fixture
def sources(world):
    made = Sources()
    made.register(world.source, world.probe)
    return made


def question(text="How much?"):
    return {"role": "user", "content": text}


def call(id):
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "look", "input": {}}]}


def result(id, text):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}


def read(session, world, sources, **options):
    """A turn in which a tool reads the source."""
    with session.run() as run, using(run, sources), calling("c1"):
        run.append(question(), call("c1"))
        run.append(result("c1", reads(world.source, name="look", **options)(lambda: PAYLOAD)()))
        run.append({"role": "assistant", "content": "so much"})
    return session


CRASH = """
import json, os, signal, sys
import segue
from segue.ledger import Observation
from segue.probes import DataVersion
url, session, seen, messages = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
db = segue.open(url)
run = db.scope(user="lin").open(session).run()
run.append(*messages[:2])
run.observe(Observation.from_body(seen))
run.append(*messages[2:])
with run.effect("publish", source="elsewhere:1"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def crash(session, world, sources, url, **options):
    """A process that reads the source, makes another call, begins to act, and is killed in the middle of it."""
    version = sources.find(world.source).read(world.source, principal="lin", seen=None)
    seen = Observation(world.source, version, tool="look", arguments={}, call="c1", **options)
    messages = [question(), call("c1"), result("c1", PAYLOAD), call("c2")]
    died = subprocess.run(
        [sys.executable, "-c", CRASH, url, session.id, json.dumps(seen.body()), json.dumps(messages)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    return session


class Ways:
    """Sessions that have read the source, by the way of coming back to it."""

    def __init__(self, me, world, sources, url=""):
        self.me, self.world, self.sources, self.url = me, world, sources, url
        self.sibling = None
        self.may_crash = not isinstance(world.probe, DataVersion)  # its numbers mean something in one process only

    def made(self, way, **options):
        if way == "crash" and self.may_crash:
            return crash(self.me.create(), self.world, self.sources, self.url, **options)
        session = read(self.me.create(), self.world, self.sources, **options)
        if way in ("resume", "crash"):
            return session
        self.sibling = session.fork()
        return session.fork()

    def change(self, way):
        if way != "sibling":
            self.world.change()
            return
        with self.sibling.run() as run, run.effect("restate", source=self.world.source):
            self.world.change()


def found(me, session, sources, stale):
    """What a resume says, and whether it would mask the reading; nothing is written."""
    back = me.resume(session, sources=sources, stale=stale)
    masked = 0 if back.mask is None else len(back.mask.results)
    assert masked == (stale == "mask" and bool(DRIFTED & set(back.briefing.counts)))
    return dict(back.briefing.counts)


def everywhere(me, sessions, sources, expected):
    for stale, session in sessions.items():
        assert found(me, session, sources, stale) == expected, stale


def cells():
    """Every probe by every way; each crash kills three processes, so by default only some probes see one."""
    for world in ALL:
        name, marks = getattr(world, "values", (world,))[0], getattr(world, "marks", ())
        for way in ("resume", "fork", "sibling", "crash"):
            if way != "crash" or FULL or name in CRASHING:
                yield pytest.param(name, way, marks=marks)


@pytest.mark.parametrize(("world", "way"), list(cells()), indirect=["world"])
def test_each_probe_tells_each_outcome_by_each_way_of_coming_back(db, me, world, sources, way, tmp_path):
    ways = Ways(me, world, sources, f"sqlite:///{tmp_path}/sessions.db")
    sessions = {stale: ways.made(way) for stale in ("note", "mask")}
    short = ways.made(way, max_age=timedelta(hours=1))
    db.engine.store.shift_clock(DAY // timedelta(microseconds=1))

    everywhere(me, sessions, sources, {"current": 1})
    assert found(me, short, sources, "note") == {"current": 1}  # old, and proven current
    everywhere(me, sessions, Sources(), {"unverifiable": 1})  # nobody says how to look
    assert found(me, short, Sources(), "mask") == {"expired": 1}
    if world.cut_off is not None:
        with world.cut_off():
            everywhere(me, sessions, sources, {"unverifiable": 1})
            assert found(me, short, sources, "mask") == {"expired": 1}
    if world.deny is not None:
        with world.deny():
            everywhere(me, sessions, sources, {"denied": 1})
    everywhere(me, sessions, sources, {"current": 1})
    ways.change(way)
    everywhere(me, sessions, sources, {"changed": 1})
    if way == "sibling":
        briefing = me.resume(sessions["note"], sources=sources).briefing
        assert [(f.effect.name, f.effect.phase) for f in briefing.others] == [("restate", "completed")]
    if way == "crash" and ways.may_crash:
        assert [e.name for e in me.resume(sessions["note"], sources=sources).briefing.unknown] == ["publish"]
    told(me, sessions, sources)
    if world.remove is not None:
        world.remove()
        assert found(me, sessions["note"], sources, "note") == {"gone": 1}


def told(me, sessions, sources):
    """Go on: the note is told in both, the payload is gone from one view, and from no log."""
    for stale, session in sessions.items():
        with me.resume(session, sources=sources, stale=stale).run() as run:
            run.append(question("And now?"))
            shown = json.dumps(run.messages())
        assert (PAYLOAD in shown) is (stale == "note")
        assert ("superseded since" in shown) is (stale == "mask")
        (note,) = session.read(kinds=("note",))
        assert "Changed: " in note.json()["text"]
        assert any(PAYLOAD.encode() in (entry.body or b"") for entry in session.history())
        assert me.resume(session, sources=sources, stale=stale).briefing.news == ()  # once


@pytest.mark.parametrize("world", ["call"], indirect=True)
@pytest.mark.parametrize("store", ["memory", "sqlite", "jsonl", pytest.param("postgres", marks=pytest.mark.server)])
def test_on_every_store_it_is_the_same(store, world, sources, tmp_path):
    with stores.url_of(store, tmp_path) as url, segue.open(url) as db:
        me = db.scope(user="lin")
        parent = read(me.create(), world, sources)
        sessions = {"note": parent, "mask": parent.fork()}
        early = parent.fork(1)
        everywhere(me, sessions, sources, {"current": 1})
        with parent.fork().run() as run, run.effect("restate", source=world.source):
            world.change()
        everywhere(me, sessions, sources, {"changed": 1})
        assert found(me, early, sources, "note") == {}
        assert [f.effect.name for f in me.resume(parent, sources=sources).briefing.others] == ["restate"]
        told(me, sessions, sources)
        assert Path(url).name


@pytest.mark.parametrize("world", ["file", "folder", "git-path", "http"], indirect=True)
def test_what_is_written_again_with_the_same_content_raises_no_alarm(me, world, sources, tmp_path):
    """Times that move without a change of content: the false alarms of guards that go by mtime."""
    session = read(me.create(), world, sources)
    for path in (tmp_path / "world").rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            content = path.read_bytes()
            path.write_bytes(content)
            os.utime(path, (2_000_000_000, 2_000_000_000))
    assert found(me, session, sources, "mask") == {"current": 1}
