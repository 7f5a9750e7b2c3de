"""
Damage: bits flipped, files cut off, blocks zeroed, rows edited. Whatever it hits is reported, or reads as it was.

Every entry is read on its own after each damage. It must be what was stored, or ``Corrupt``; one that cannot be
found must be in the findings of the deep check. A different answer, or a silent gap, is a failure.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import apsw
import psycopg
import pytest

import segue
import servers
import stores
from segue.errors import SegueError
from segue.model import Entry

FULL = stores.FULL
SEED = 9
FLIPS, TRUNCATIONS, BLOCKS = (1_000, 200, 200) if FULL else (60, 15, 15)
BLOCK = 512

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]


@pytest.fixture
def place(tmp_path):
    """In memory where that is to be had: thousands of small stores are made."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def fill(url: str) -> dict:
    """A few sessions of all kinds; each of their entries, by owner, session and seq."""
    chance = random.Random(SEED)
    with segue.open(url) as db:
        for user in ("lin", "wang"):
            scope = db.scope("acme", user)
            for n in range(3):
                session = scope.create(id=f"s{n}", key=f"key {n}", title=f"title {n}", tags=("a", "b"))
                for size in (30, 300, 3_000, 12_000 * (n == 0)):
                    text = chance.randbytes(size // 2).hex()
                    with session.run() as run:
                        run.append({"role": "user", "content": text}, {"role": "assistant", "content": text[:50]})
                session.append({"source": text[:9]}, kind="observation", format="segue", refs=("source:x",))
            scope.open("s1").fork(3, id="fork").append({"role": "user", "content": "forked"})
        return shown(db)


def shown(db) -> dict:
    found = {}
    for user in ("lin", "wang"):
        for id in ("s0", "s1", "s2", "fork"):
            for entry in db.scope("acme", user).open(id).read():
                found[user, id, entry.seq] = entry
    return found


class Verdict:
    """What came of many damages."""

    def __init__(self):
        self.cases = self.reported = self.wrong = self.silent = self.crashes = self.unhurt = self.at_seams = 0
        self.first: list[str] = []

    def figures(self):
        return {
            "cases": self.cases, "reported": self.reported, "unhurt": self.unhurt,
            "wrong": self.wrong, "silent": self.silent, "at seams": self.at_seams,
            "crashes": self.crashes, "seed": SEED,
        }  # fmt: skip

    def judge(self, url: str, before: dict, what: str, *, is_whole: bool = False) -> None:
        """Read everything there. ``is_whole``: what was damaged looks like a store that had got no further."""
        self.cases += 1
        try:
            with segue.open(url) as db:
                lost = [place for place, entry in before.items() if not self._is_as_it_was(db, place, entry, what)]
                findings = [report for report in db.check(deep=True) if is_about_damage(report)]
        except SegueError:
            self.reported += 1  # it does not even open, and says so
            return
        except Exception as error:
            self.crashes += 1
            self.first.append(f"{what}: {error!r}")
            return
        self.reported += bool(findings)
        self.unhurt += not findings and not lost
        if lost and not findings and is_whole:
            self.at_seams += 1
        elif lost and not findings:
            self.silent += 1
            self.first.append(f"{what}: {lost} are lost, and the check finds nothing")

    def _is_as_it_was(self, db, place, entry, what) -> bool:
        user, id, seq = place
        try:
            found = db.scope("acme", user).open(id).read(after=seq - 1, upto=seq)
        except (segue.Corrupt, segue.NotFound):
            return False
        if found and found != [entry]:
            self.wrong += 1
            self.first.append(f"{what}: {place} reads {found}")
        return bool(found)


def is_about_damage(report) -> bool:
    """Damage, or the torn end of a session's file, which is told as what a power loss may leave."""
    return report.level == "damage" or (report.level == "warn" and report.session is not None and "torn" in report.text)


def damages(kind: str, count: int, sizes: dict[Path, int]):
    """Where to do what: (file, offset)."""
    chance = random.Random(f"{SEED} {kind}")
    files = sorted(sizes)
    for _ in range(count):
        file = chance.choices(files, [sizes[file] for file in files])[0]
        yield file, chance.randrange(sizes[file]), chance.randrange(8)


def do_damage(kind: str, file: Path, at: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    if kind == "flip":
        data[at] ^= 1 << bit
    elif kind == "cut":
        del data[at:]
    else:
        at -= at % BLOCK
        data[at : at + BLOCK] = bytes(len(data[at : at + BLOCK]))
    file.write_bytes(data)


def torture(store: str, place: Path, rounds: list[tuple[str, int]]) -> Verdict:
    sound, victim = place / "sound", place / "victim"
    sound.mkdir()
    make = {"sqlite": "sqlite:///{}/x.db", "jsonl": "jsonl:{}/folder"}[store].format
    before = fill(make(sound))
    # What is only a help to find things is rebuilt without a word, and the leases' files hold no entries.
    sizes = {
        file.relative_to(sound): file.stat().st_size
        for file in sound.rglob("*")
        if file.is_file() and file.suffix in (".db", ".jsonl") and not file.name.startswith(".")
    }
    verdict = Verdict()
    for kind, count in rounds:
        for file, at, bit in damages(kind, count, sizes):
            shutil.copytree(sound, victim)
            do_damage(kind, victim / file, at, bit)
            # Lines that were cut off whole are missed by nobody: nothing in a file says how long it once was.
            is_whole = kind == "cut" and store == "jsonl" and (victim / file).read_bytes().endswith(b"\n")
            verdict.judge(make(victim), before, f"{kind} {file} {at}.{bit}", is_whole=is_whole)
            shutil.rmtree(victim)
    return verdict


@pytest.mark.parametrize("kind", ["flip", "cut", "block"])
@pytest.mark.parametrize("store", stores.EMBEDDED)
def test_every_change_of_a_living_entry_is_reported(store, kind, place, record_property):
    count = {"flip": FLIPS, "cut": TRUNCATIONS, "block": BLOCKS}[kind]
    verdict = torture(store, place, [(kind, count)])
    for name, value in verdict.figures().items():
        record_property(name, value)
    assert (verdict.wrong, verdict.silent, verdict.crashes) == (0, 0, 0), verdict.first[:5]
    assert verdict.reported > 0


def test_a_table_of_sessions_that_leads_nowhere_is_reported_and_the_check_ends(place):
    """A lost block of it gives numbers in circles; each of its bytes in turn, other wrong ones."""
    sound, victim = place / "x.db", place / "victim" / "x.db"
    before = fill(f"sqlite:///{sound}")
    with closing(apsw.Connection(str(sound))) as con:
        root = con.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sessions'").get
        size = con.execute("PRAGMA page_size").get
    page = range((root - 1) * size, root * size)
    rounds = [("block", at) for at in page[::BLOCK]] + [("flip", at) for at in page[:: 1 if FULL else 40]]
    verdict = Verdict()
    for kind, at in rounds:
        victim.parent.mkdir()
        shutil.copy(sound, victim)
        do_damage(kind, victim, at, at % 8)
        verdict.judge(f"sqlite:///{victim}", before, f"{kind} {at}")
        shutil.rmtree(victim.parent)
    assert (verdict.wrong, verdict.silent, verdict.crashes) == (0, 0, 0), verdict.first[:5]
    assert verdict.reported > len(page[::BLOCK]) // 2


@pytest.mark.parametrize("store", stores.EMBEDDED)
def test_a_store_that_compares_no_digests_is_noticed(store, place, record_property, monkeypatch):
    from segue.stores import _sqlite_rows

    monkeypatch.setattr(Entry, "verify", lambda self, _session: self)
    monkeypatch.setattr(_sqlite_rows, "seal", lambda *_: 0)
    if store == "jsonl":
        blind_jsonl(monkeypatch)
    verdict = torture(store, place, [("flip", 80)])
    for name, value in verdict.figures().items():
        record_property(name, value)
    assert verdict.wrong > 0


def blind_jsonl(monkeypatch):
    from segue.stores import _jsonl_lines

    monkeypatch.setattr(_jsonl_lines, "zlib", SimpleNamespace(crc32=lambda *_: 0))


@pytest.mark.server
def test_every_edited_row_of_postgres_is_reported(record_property):
    edits = 1_000 if FULL else 40
    chance = random.Random(SEED)
    with servers.database() as url, psycopg.connect(url, autocommit=True) as admin:
        before = fill(url)
        rows = admin.execute("SELECT ctid, segment, seq, octet_length(body) FROM segue.entries").fetchall()
        verdict = Verdict()
        with segue.open(url) as db:
            for number in range(edits):
                _, segment, seq, size = chance.choice(rows)
                undo = edit(admin, chance, number, segment, seq, size)
                verdict.cases += 1
                lost = [key for key, entry in before.items() if not verdict._is_as_it_was(db, key, entry, "edit")]
                findings = [report for report in db.check(deep=True) if report.level == "damage" and report.seq]
                told = {(report.scope.user, report.session, report.seq) for report in findings}
                verdict.reported += bool(told)
                verdict.silent += not lost or not told or not told & set(lost)
                undo()
            assert [report for report in db.check(deep=True) if report.level == "damage"] == []
            assert shown(db) == before
    for name, value in verdict.figures().items():
        record_property(name, value)
    assert (verdict.wrong, verdict.silent) == (0, 0)


def edit(admin, chance, number, segment, seq, size):
    """One byte of a body or a digest, or a whole row; how to undo it."""
    here = (segment, seq)
    if number % 10 == 9:
        admin.execute("CREATE TEMP TABLE kept AS SELECT * FROM segue.entries WHERE segment = %s AND seq = %s", here)
        admin.execute("DELETE FROM segue.entries WHERE segment = %s AND seq = %s", here)

        def undo():
            admin.execute("INSERT INTO segue.entries SELECT * FROM kept")
            admin.execute("DROP TABLE kept")

        return undo
    column, at = ("digest", chance.randrange(32)) if number % 10 == 8 else ("body", chance.randrange(size))
    flip = f"UPDATE segue.entries SET {column} = set_byte({column}, %s, get_byte({column}, %s) # %s) "
    args = (at, at, 1 << chance.randrange(8), *here)
    admin.execute(flip + "WHERE segment = %s AND seq = %s", args)
    return lambda: admin.execute(flip + "WHERE segment = %s AND seq = %s", args)
