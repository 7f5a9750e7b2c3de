"""
Cut connections and server crashes: nothing acknowledged is lost, nothing repeated is there twice, nobody hangs.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

import cutting
import segue
import servers
import stores

FULL = stores.FULL
SEED = 5
WRITERS = 6

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(3_000)]


def user(text):
    return {"role": "user", "content": text}


class Writer(threading.Thread):
    """Appends batches of two until told to stop, each again and again with the same ids until it is acknowledged."""

    def __init__(self, url, session_id, name, *, count=None):
        super().__init__(daemon=True)
        self._url, self._id, self._name, self._count = url, session_id, name, count
        self.acknowledged: list[str] = []
        self.repeats = 0
        self.is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self):
        try:
            db = self._insist(lambda: segue.open(self._url, pool_size=2))
            with db:
                session = self._insist(lambda: db.scope("acme", "lin").open(self._id))
                while not self.is_over.is_set() and len(self.acknowledged) // 2 != self._count:
                    self._append(session, len(self.acknowledged) // 2)
        except BaseException as error:
            self.error = error

    def _append(self, session, number):
        ids = [f"{self._name}-{number}-{n}" for n in range(2)]
        done = self._insist(lambda: session.append(user(ids[0]), user(ids[1]), ids=ids))
        assert done.seqs[1] == done.seqs[0] + 1
        self.acknowledged += ids
        if number % 10 == 3:
            self._run_once(session, number)

    def _run_once(self, session, number):
        """A turn in a run: its lease must never be left behind."""
        run = self._insist(lambda: session.run(policy="enqueue", id=f"{self._name}-run-{number}"), segue.Busy)
        self._insist(run.release)

    def _insist(self, act, *also):
        until = time.monotonic() + 200
        while True:
            try:
                return act()
            except (segue.Unavailable, segue.OutcomeUnknown, segue.Busy, *also):
                self.repeats += 1
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)


def judge(session, writers):
    """What was lost, and what is there twice."""
    entries = session.read()
    stored = Counter(entry.id for entry in entries)
    assert [entry.seq for entry in entries] == list(range(1, session.refresh().head + 1))
    texts = Counter(entry.json()["content"] for entry in entries)
    told = {id for writer in writers for id in writer.acknowledged}
    return {
        "acknowledged": len(told),
        "repeats": sum(writer.repeats for writer in writers),
        "lost": len(told - set(stored)),
        "duplicated": sum(count - 1 for count in texts.values()),
        "stuck": sum(writer.is_alive() or writer.error is not None for writer in writers),
    }


def record(record_property, **figures):
    for name, value in {"seed": SEED, **figures}.items():
        record_property(name, value)
    return figures


@pytest.fixture
def cut(request):
    """A database (of PostgreSQL, or as the parameter says), the URL of it through a proxy, and the proxy."""
    name = getattr(request, "param", "postgres")
    with servers.database(name) as direct:
        place = urlsplit(direct)
        chance = 0.2 if name == "mysql" else 0.05  # where only commits count, there are fewer
        with cutting.proxy(place.hostname, place.port, seed=SEED, chance=chance, speaks=name) as proxy:
            yield direct, direct.replace(f":{place.port}/", f":{proxy.port}/"), proxy


@pytest.mark.parametrize("cut", ["postgres", "mysql", "redis"], indirect=True)
def test_connections_cut_before_and_after_commits_lose_nothing_double_nothing_and_stop_nobody(cut, record_property):
    direct, cutting_url, proxy = cut
    with segue.open(direct) as db:
        session = db.scope("acme", "lin").create()
        writers = [Writer(cutting_url, session.id, f"w{n}", count=300 if FULL else 40) for n in range(WRITERS)]
        proxy.is_on = True
        [writer.start() for writer in writers]
        [writer.join(280) for writer in writers]
        proxy.is_on = False
        assert [writer.error for writer in writers] == [None] * WRITERS
        figures = record(record_property, cases=sum(proxy.cuts.values()), **judge(session, writers))
        assert (figures["lost"], figures["duplicated"], figures["stuck"]) == (0, 0, 0)
        assert min(proxy.cuts["before"], proxy.cuts["after"]) > 3
        with session.run(ttl=timedelta(seconds=30)):  # no lease was left behind
            pass


def test_a_writer_that_repeats_blindly_stores_twice_what_was_cut_after_its_commit(cut, record_property):
    direct, cutting_url, proxy = cut
    with psycopg.connect(direct, autocommit=True) as admin:
        admin.execute("CREATE TABLE log (text text)")
        proxy.is_on, written = True, 0
        while proxy.cuts["after"] < 5:
            while True:
                try:
                    with psycopg.connect(cutting_url, autocommit=True, connect_timeout=10) as conn:
                        conn.execute("INSERT INTO log VALUES (%s)", (str(written),))
                    break
                except psycopg.OperationalError:
                    continue
            written += 1
        proxy.is_on = False
        stored = admin.execute("SELECT count(*) FROM log").fetchone()[0]
        record(record_property, cases=sum(proxy.cuts.values()), duplicated=stored - written)
        assert stored > written


def crash(server, number):
    """Stop the server at once, in one of several ways, and start it again."""
    server.kill(signal.SIGKILL if number % 2 else None)
    until = time.monotonic() + 60
    is_shaken = number % 5 == 4  # once more, while it recovers
    while True:
        second = threading.Timer(0.15, server.kill) if is_shaken else None
        try:
            if second:
                second.start()
            server.start()
            if second:
                second.join()
                server.kill()
                server.start()
            return
        except RuntimeError:  # killed while it started, or children of the killed one still end
            is_shaken = False
            if second:
                second.join()
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize("store", ["postgres", "mysql", "redis"])
def test_a_server_that_crashes_again_and_again_loses_nothing_acknowledged(store, record_property):
    crashes = 50 if FULL else 5
    with servers.private(store) as server:
        with segue.open(server.url) as db:
            session = db.scope("acme", "lin").create()
        writers = [Writer(server.url, session.id, f"w{n}") for n in range(WRITERS)]
        [writer.start() for writer in writers]
        for number in range(crashes):
            told = sum(len(writer.acknowledged) for writer in writers)
            until = time.monotonic() + 120
            while sum(len(writer.acknowledged) for writer in writers) < told + 20:
                assert time.monotonic() < until, "nobody goes on after a crash"
                time.sleep(0.01)
            crash(server, number)
        [writer.is_over.set() for writer in writers]
        [writer.join(240) for writer in writers]
        assert [writer.error for writer in writers] == [None] * WRITERS
        with segue.open(server.url) as db:
            session = db.scope("acme", "lin").open(session.id)
            figures = record(record_property, cases=crashes, **judge(session, writers))
            assert [report for report in db.check(deep=True) if report.level == "damage"] == []
    assert (figures["lost"], figures["duplicated"], figures["stuck"]) == (0, 0, 0)


def test_a_server_that_acknowledges_before_it_writes_loses_what_it_acknowledged(record_property):
    lost = 0
    with servers.private("postgres") as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            conn.execute("CREATE TABLE log (n int)")
        for _ in range(20):
            with psycopg.connect(server.url, autocommit=True) as conn:
                conn.execute("TRUNCATE log")
                conn.execute("SET synchronous_commit = off")
                for n in range(50):
                    conn.execute("INSERT INTO log VALUES (%s)", (n,))
                server.kill(signal.SIGKILL)
            _started(server)
            with psycopg.connect(server.url) as conn:
                lost += 50 - conn.execute("SELECT count(*) FROM log").fetchone()[0]
            if lost:
                break
    record(record_property, cases=50, lost=lost)
    assert lost > 0


def _started(server):
    until = time.monotonic() + 60
    while True:
        try:
            return server.start()
        except RuntimeError:
            assert time.monotonic() < until
            time.sleep(0.05)
