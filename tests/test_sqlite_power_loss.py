"""
The SQLite store after a power loss at any moment (guarantees G1, G2, G3 and G9).

``SEGUE_TORTURE=1`` makes 10 times as many disks, a larger number that many times 4,000.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from power import Change, Disk, Durable
from segue import codec
from segue.errors import NotDone, OutcomeUnknown
from segue.model import Draft, Parent, ScopeKey
from segue.store import Append, Create, Erase, Filter, Fork, Hollow, Take, Update
from segue.stores import _sqlite_file, sqlite
from segue.stores._sqlite_work import Work
from segue.stores.sqlite import SQLiteStore

ME = ScopeKey("tenant", "user")
STATES = 400 if "SEGUE_TORTURE" not in os.environ else 4_000 * int(os.environ["SEGUE_TORTURE"])
EVERYTHING = Filter(status=("running", "idle", "paused", "completed", "archived"), include_unlisted=True)
SEED = 20


def draft(id: str, size: int = 40) -> Draft:
    body = codec.encode({"role": "user", "content": random.Random(id).randbytes(size // 2).hex()})
    return Draft("message", "anthropic", "user", body, codec.digest(body), id, ("all", f"ref:{id}"))


def content(store: SQLiteStore) -> dict[str, object]:
    """All that the store shows, with every checksum proved."""
    found: dict[str, object] = {}
    for info in store.page(ME, EVERYTHING, None, 1_000).sessions:
        found[info.id] = (info, store.read(ME, info.id), store.by_ref(ME, "all", session=info.id))
    return found


def plain(shown: dict[str, object]) -> dict[str, object]:
    """The same without times, which differ between two attempts."""
    return {id: (info.head, info.title, [(e.id, e.body) for e in log]) for id, (info, log, _hits) in shown.items()}


def steps() -> list[list[object]]:
    """Commits of all kinds, small and large, that depend on each other."""
    made: list[list[object]] = []
    for n in range(12):
        a, b = f"a{n}", f"b{n}"
        made.append([Create(ME, a, key=f"key-{n}", tags=("x",), entries=(draft(f"{a}-first"),)), Create(ME, b)])
        made.append([Append(ME, a, tuple(draft(f"{a}-{i}", 1_200) for i in range(4)))])
        made.append([Append(ME, b, (draft(f"{b}-1", 9_000),)), Append(ME, a, (draft(f"{a}-9"),))])
        made.append([Take(ME, a, "run", 3_600_000_000), Fork(Create(ME, f"f{n}", parent=Parent(a, 3)), a, 3)])
        made.append([Append(ME, a, (draft(f"{a}-r"),), run="run", fence=1), Update(ME, a, {"title": "t" * 50})])
        made.append([Append(ME, f"f{n}", tuple(draft(f"f{n}-{i}") for i in range(3)))])
        made.append([Hollow(ME, a, (2,))])
        if n % 3 == 1:
            made.append([Erase(ME, f"a{n - 1}"), Erase(ME, b)])
        if n % 3 == 2:
            made.append([Erase(ME, f"f{n - 2}")])
    return made


def record(folder: Path, failing: float = 0.0) -> tuple[Disk, list[dict[str, object]]]:
    """
    Do all steps on a recording disk, each until it is acknowledged.

    Returns:
        The disk, and what the store showed after each step.
    """
    folder.mkdir()
    disk, chance = Disk(), random.Random(SEED)
    store = SQLiteStore(folder / "x.db", vfs=disk.vfs)
    disk.fail_sync = lambda _file: chance.random() < failing
    shown = [content(store)]
    for ops in steps():
        for result in insist(store, ops):
            assert not isinstance(result, NotDone), result
        disk.ack()
        shown.append(content(store))
    disk.fail_sync = lambda _file: False
    store.close()
    return disk, shown


def insist(store: SQLiteStore, ops: list[object]) -> list[object]:
    while True:
        try:
            return store.commit(ops)
        except OutcomeUnknown:
            continue


def judge(disk: Disk, shown: list[dict[str, object]], folder: Path, count: int, look=lambda shown: shown) -> list[str]:
    """What is wrong with the disks that a power loss leaves behind, one line each."""
    wrong = []
    expected = [look(each) for each in shown]
    for n, crash in enumerate(disk.crashes(count, SEED)):
        place = folder / str(n)
        place.mkdir()
        crash.write(place)
        try:
            store = SQLiteStore(place / "x.db")
            found = look(content(store))
            damage = [report for report in store.check(deep=n % 20 == 0) if report.level == "damage"]
            store.close()
            # One commit may have been under way: it is there whole, or not at all.
            if found not in expected[crash.acks : crash.acks + 2]:
                wrong.append(f"disk {n}, after {crash.acks} acks: something is missing, or half there")
            if damage:
                wrong.append(f"disk {n}: {damage}")
        except Exception as error:
            wrong.append(f"disk {n}, after {crash.acks} acks: {error!r}")
        shutil.rmtree(place)
    return wrong


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Path]:
    """A folder for thousands of disks: in memory where that is to be had."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the log goes into the database file many times in a short history."""
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 25)


@pytest.mark.usefixtures("short_log")
def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(disks):
    disk, shown = record(disks / "rec")
    assert judge(disk, shown, disks, STATES) == []


@pytest.mark.usefixtures("short_log")
def test_nothing_acknowledged_is_lost_where_syncs_fail_too(disks):
    disk, shown = record(disks / "rec", failing=0.2)
    assert sum(change.what == "lost" for change in disk.log) > 10
    assert judge(disk, shown, disks, STATES // 2, plain) == []


def test_the_test_notices_a_store_that_does_not_sync_its_commits(disks, monkeypatch):
    weaker = _sqlite_file._SETTINGS.replace("synchronous = FULL", "synchronous = NORMAL")
    assert weaker != _sqlite_file._SETTINGS
    monkeypatch.setattr(_sqlite_file, "_SETTINGS", weaker)
    disk, shown = record(disks / "rec")
    assert len(judge(disk, shown, disks, 100)) > 30


def killed_before_the_sync(folder: Path, ops: list[object]) -> Disk:
    """
    A store whose process was killed when it had written a commit and not yet synced it.

    The folder holds what the next process reads; the disk's record, what would survive a power loss.
    """
    disk = Disk()
    (folder / "first").mkdir()
    store = SQLiteStore(folder / "first" / "x.db", vfs=disk.vfs)
    store.commit([Create(ME, "a")])
    store.commit([Append(ME, "a", (draft("one"),))])
    before = len(disk.log)
    store.commit(ops)
    last = max(n for n, change in enumerate(disk.log) if change.what == "sync")
    assert last >= before
    del disk.log[last:]
    (folder / "next").mkdir()
    seen = Durable()
    for change in disk.log:
        seen.add(change)
    for name in list(seen.files):
        seen.add(Change("sync", name))  # a killed process loses nothing that it has written
        (folder / "next" / name).write_bytes(seen.files[name])
    store.close()
    del disk.log[last:]
    return disk


def after_power_loss(disk: Disk, folder: Path) -> SQLiteStore:
    """The store on a disk that has only what was synced."""
    durable = Durable()
    for change in disk.log:
        durable.add(change)
    folder.mkdir()
    for name, data in durable.files.items():
        (folder / name).write_bytes(data)
    return SQLiteStore(folder / "x.db")


RETRY = [Append(ME, "a", (draft("two"),))]


def test_a_retry_of_what_a_killed_process_wrote_is_acknowledged_only_when_it_is_on_the_disk(tmp_path):
    disk = killed_before_the_sync(tmp_path, RETRY)
    store = SQLiteStore(tmp_path / "next" / "x.db", vfs=disk.vfs)
    (appended,) = store.commit(RETRY)
    assert (appended.head, appended.new) == (2, 0)  # it was there, and was read back
    assert [entry.id for entry in after_power_loss(disk, tmp_path / "lost").read(ME, "a")] == ["one", "two"]


def test_the_same_while_another_reading_keeps_the_log_from_being_emptied(tmp_path):
    disk = killed_before_the_sync(tmp_path, RETRY)
    reader = SQLiteStore(tmp_path / "next" / "x.db", read_only=True)
    con = reader._file.connect()
    con.execute("BEGIN")
    con.execute("SELECT count(*) FROM entries").fetchall()
    store = SQLiteStore(tmp_path / "next" / "x.db", vfs=disk.vfs)
    (appended,) = store.commit(RETRY)
    assert (appended.head, appended.new) == (2, 0)
    assert [entry.id for entry in after_power_loss(disk, tmp_path / "lost").read(ME, "a")] == ["one", "two"]


def test_the_test_notices_a_store_that_trusts_what_it_reads_back(tmp_path, monkeypatch):
    monkeypatch.setattr(SQLiteStore, "_empty_log", lambda *_: False)
    monkeypatch.setattr(Work, "touch", lambda *_: None)
    disk = killed_before_the_sync(tmp_path, RETRY)
    SQLiteStore(tmp_path / "next" / "x.db", vfs=disk.vfs).commit(RETRY)
    assert [entry.id for entry in after_power_loss(disk, tmp_path / "lost").read(ME, "a")] == ["one"]


def failing_once(store: SQLiteStore, disk: Disk) -> None:
    """An append whose sync fails: the outcome is unknown."""
    disk.fail_sync = lambda _file: True
    with pytest.raises(OutcomeUnknown):
        store.commit(RETRY)
    disk.fail_sync = lambda _file: False


@pytest.mark.parametrize("others", ["alone", "with a reader"])
def test_after_a_failed_sync_a_retry_is_acknowledged_only_when_it_is_on_the_disk(tmp_path, others):
    disk = Disk()
    store = SQLiteStore(tmp_path / "x.db", vfs=disk.vfs)
    store.commit([Create(ME, "a"), Append(ME, "a", (draft("one"),))])
    if others == "with a reader":
        store.get(ME, "a")  # its connection stays open, and with it what is known of the log
    failing_once(store, disk)
    (appended,) = store.commit(RETRY)
    assert appended.head == 2
    assert [entry.id for entry in after_power_loss(disk, tmp_path / "lost").read(ME, "a")] == ["one", "two"]
    store.close()


def test_while_the_disk_keeps_failing_nothing_is_acknowledged(tmp_path):
    disk = Disk()
    store = SQLiteStore(tmp_path / "x.db", vfs=disk.vfs)
    store.commit([Create(ME, "a"), Append(ME, "a", (draft("one"),))])
    disk.fail_sync = lambda _file: True
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            store.commit(RETRY)
    assert [entry.id for entry in store.read(ME, "a")][:1] == ["one"]
    disk.fail_sync = lambda _file: False
    store.commit(RETRY)
    assert [entry.id for entry in after_power_loss(disk, tmp_path / "lost").read(ME, "a")] == ["one", "two"]
    store.close()
