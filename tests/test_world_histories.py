"""
Random histories of a real world: files and a database that others change, sessions that read, write and fork.

Compared with a model that knows nothing of probes: no false alarm on what did not change, no change
missed that the declared version can show, and every write permitted or refused as it should be.
"""

from __future__ import annotations

import itertools
import random
import sqlite3

import pytest

import segue
from segue.errors import StaleRead
from segue.guard import reads, using, writes
from segue.ledger import Version
from segue.probes import Rows, Watermark, file_version, replace_file
from segue.world import Sources
from stores import FULL

HISTORIES = 1_000 if FULL else 150
FILES = ("file:a", "file:b")
STAMPED, WHOLE = "db:stamped", "db:whole"
SOURCES = (*FILES, STAMPED, WHOLE)


class World:
    """Two files and a table. ``truth`` is what the declared version of a source can show; None: it is gone."""

    def __init__(self, folder):
        self.folder = folder
        self.files = dict.fromkeys(FILES, "0")
        self.rows = {1: (10, 1), 2: (20, 2)}  # id: amount, stamp
        self.clock = itertools.count(3)
        self.database = sqlite3.connect(folder / "t.db", isolation_level=None, check_same_thread=False)
        self.database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, amount INTEGER, stamp INTEGER)")
        for id, row in self.rows.items():
            self.database.execute("INSERT INTO t VALUES (?, ?, ?)", [id, *row])
        for name in FILES:
            self.path(name).write_text("0")
        self.sources = Sources(roots=[folder])
        self.sources.register(STAMPED, Watermark(self.connect, "t", "stamp"))
        self.sources.register(WHOLE, Rows(self.connect, "SELECT id, amount, stamp FROM t ORDER BY id"))

    def connect(self):
        return sqlite3.connect(self.folder / "t.db", isolation_level=None)

    def path(self, name):
        return self.folder / name.removeprefix("file:")

    def truth(self, source):
        if source in FILES:
            return self.files[source]
        if source == STAMPED:
            return max((stamp for _, stamp in self.rows.values()), default="none")
        return tuple(sorted(self.rows.items()))

    # What may befall it.

    def edit(self, dice):
        name = dice.choice(FILES)
        self.put(name, str(dice.randint(0, 2)))  # often what it was before

    def put(self, name, text):
        self.files[name] = text
        self.path(name).write_text(text)

    def remove(self, dice):
        name = dice.choice(FILES)
        self.files[name] = None
        self.path(name).unlink(missing_ok=True)

    def row(self, id, amount, stamp):
        self.rows[id] = (amount, stamp)
        self.database.execute("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", [id, amount, stamp])

    def update(self, dice):
        self.row(dice.randint(1, 4), dice.randint(0, 99), next(self.clock))

    def backfill(self, dice):
        """Not stamped: the watermark cannot show it, the rows can."""
        id = dice.choice(list(self.rows) or [1])
        self.row(id, dice.randint(0, 2), self.rows.get(id, (0, 0))[1])

    def delete(self, dice):
        id = dice.randint(1, 4)
        self.rows.pop(id, None)
        self.database.execute("DELETE FROM t WHERE id = ?", [id])


class Player:
    """A session, and what the model says it knows: of each reading, and of each source last."""

    def __init__(self, session, readings=(), known=()):
        self.session = session
        self.readings = dict(readings)
        self.known = dict(known)


class History:
    def __init__(self, me, world, dice):
        self.me, self.world, self.dice = me, world, dice
        self.players = [Player(me.create())]

    def step(self):
        act = self.dice.choice(
            ["read", "read", "read", "edit", "edit", "remove", "update", "backfill", "delete", "write", "write", "fork"]
        )
        player = self.dice.choice(self.players)
        if act == "read":
            self.read(player)
        elif act == "write":
            self.write(player)
        elif act == "fork" and len(self.players) < 4:
            self.players.append(Player(player.session.fork(), player.readings, player.known))
        elif act != "fork":
            getattr(self.world, act)(self.dice)

    def read(self, player):
        source, how = self.dice.choice(SOURCES), self.dice.randint(1, 2)
        truth = self.world.truth(source)
        if truth is None:
            return
        look = reads(source, name="look")(lambda how: "what it says")
        with player.session.run() as run, using(run, self.world.sources):
            look(how)
        player.readings[source, how] = player.known[source] = truth

    def write(self, player):
        name, text = self.dice.choice(FILES), f"w{self.dice.random()}"
        path, held = self.world.path(name), self.world.files[name]
        put = writes(name, precondition="expect", version=lambda version: version)(
            lambda text, expect=None: replace_file(path, text, expect)
        )
        is_permitted = player.known.get(name) == held  # both None: to make what was never there
        with player.session.run() as run, using(run, self.world.sources):
            try:
                put(text)
            except StaleRead:
                assert not is_permitted
                return
        assert is_permitted, (player.known.get(name), held)
        self.world.files[name] = player.known[name] = text
        for key, seen in player.readings.items():
            if key[0] == name and seen == held:
                player.readings[key] = text

    def check(self):
        for player in self.players:
            stale = self.dice.choice(["note", "mask"])
            briefing = self.me.resume(player.session, sources=self.world.sources, stale=stale).briefing
            expected = dict.fromkeys(["current", "changed", "gone"], 0)
            for (source, _), seen in player.readings.items():
                now = self.world.truth(source)
                expected["gone" if now is None else "current" if now == seen else "changed"] += 1
            assert briefing.counts == {outcome: n for outcome, n in expected.items() if n}
            for finding in briefing.findings:
                key = (finding.observation.source, finding.observation.arguments["how"])
                assert player.readings[key] != self.world.truth(key[0])


def play(seed, folder):
    folder.mkdir()
    with segue.open("memory:") as db:
        world = World(folder)
        try:
            history = History(db.scope(user="lin"), world, random.Random(seed))
            for _ in range(history.dice.randint(5, 20)):
                history.step()
            history.check()
        finally:
            world.database.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_random_histories_of_a_real_world_raise_no_false_alarm_and_miss_no_visible_change(part, tmp_path):
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        play(seed, tmp_path / str(seed))


def test_the_model_would_notice_a_probe_that_misses_a_change(tmp_path, monkeypatch):
    """Planted: files are compared by their size. Some history must show it."""

    def by_size(self, source, *, principal=None, seen=None):
        path = tmp_path / "planted" / source.removeprefix("file:")
        return Version("sha256", str(path.stat().st_size)) if path.exists() else segue.world.Gone()

    monkeypatch.setattr(segue.probes.File, "read", by_size)
    with segue.open("memory:") as db:
        (tmp_path / "planted").mkdir()
        world = World(tmp_path / "planted")
        history = History(db.scope(user="lin"), world, random.Random(1))
        (player,) = history.players
        while not player.readings.keys() & {("file:a", 1), ("file:a", 2)}:
            history.read(player)
        world.put("file:a", "1")
        with pytest.raises(AssertionError):
            history.check()
        world.database.close()
    assert file_version(tmp_path / "planted" / "a").kind == "sha256"
