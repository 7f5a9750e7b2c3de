"""
Full disks of many sizes and disks that take no writes: typed errors, nothing acknowledged lost, nothing torn shown.

The disks are real ones in memory, which only root may mount; elsewhere these tests are left out, and the stores'
own tests (limits of a file's size, failing calls) remain.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

import psycopg
import pytest

import segue
import servers
import stores

FULL = stores.FULL
SIZES = [64 * n for n in (range(1, 65) if FULL else (1, 2, 4, 9, 24, 64))]
"""KiB."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]


@contextlib.contextmanager
def disk(folder, kib):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=0700", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def url_on(store, folder):
    return f"sqlite:///{folder}/x.db" if store == "sqlite" else f"jsonl:{folder}/folder"


class Segue:
    """A session on a disk, as the test needs it: append a text, read all texts."""

    def __init__(self, store, folder):
        self._db = segue.open(url_on(store, folder))
        self._session = self._db.scope().open_key("s")
        self._fillers = 0

    def append(self, text):
        self._session.append({"role": "user", "content": text})

    def texts(self):
        return [entry.json()["content"] for entry in self._session.read()]

    def close(self):
        damage = [report for report in self._db.check(deep=True) if report.level == "damage"]
        self._db.close()
        return damage


class NaiveLines:
    """The control: lines appended to a file, without a look at how much of them the disk took."""

    def __init__(self, _store, folder):
        self._path = folder / "lines"
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append(self, text):
        try:
            os.write(self._file, f"{text}\n".encode())
        except OSError as error:
            raise segue.DiskFull(str(error)) from error

    def texts(self):
        return self._path.read_text().splitlines()

    def close(self):
        os.close(self._file)
        return []


def fill(make, store, folder, kib) -> dict:
    """Append until the disk is full, free some, and go on; what is there then that was not told, or not there."""
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(kib * 300))
    acknowledged, refused, lost, torn = [], 0, 0, 0
    log = None
    for number in range(2_000):
        text = f"{number} " + os.urandom(1_500 if number % 3 else 20).hex()
        try:
            log = log or make(store, folder)
            log.append(text)
            acknowledged.append(text)
        except (segue.DiskFull, segue.OutcomeUnknown):
            refused += 1
            if log is not None:
                lost += len(set(acknowledged) - set(log.texts()))
            if refused == 3 and ballast.exists():
                ballast.unlink()
            if refused >= 6:
                break
    assert refused
    if log is not None:
        found = log.texts()
        lost += len(set(acknowledged) - set(found))
        torn += sum(text not in acknowledged and len(text.split(" ")[-1]) not in (40, 3_000) for text in found)
        torn += len(log.close())
    return {"acknowledged": len(acknowledged), "lost": lost, "torn": torn}


def fill_all(make, store, tmp_path, sizes) -> dict:
    total = {"cases": len(sizes), "acknowledged": 0, "lost": 0, "torn": 0}
    for kib in sizes:
        with disk(tmp_path / f"disk-{kib}", kib) as folder:
            for name, value in fill(make, store, folder, kib).items():
                total[name] += value
    return total


@pytest.mark.parametrize("store", stores.EMBEDDED)
def test_full_disks_of_all_sizes_lose_nothing_and_show_nothing_torn(store, tmp_path, record_property):
    total = fill_all(Segue, store, tmp_path, SIZES)
    for name, value in total.items():
        record_property(name, value)
    assert (total["lost"], total["torn"]) == (0, 0)
    assert total["acknowledged"] > 100


def test_lines_written_without_a_look_at_what_was_taken_are_lost_or_torn(tmp_path, record_property):
    total = fill_all(NaiveLines, "lines", tmp_path, SIZES[:4])
    for name, value in total.items():
        record_property(name, value)
    assert total["lost"] + total["torn"] > 0


@pytest.mark.parametrize("store", stores.EMBEDDED)
def test_a_disk_that_takes_no_writes_is_told_by_name_and_loses_nothing(store, tmp_path):
    with disk(tmp_path / "disk", 4_096) as folder:
        log = Segue(store, folder)
        log.append("kept")
        log.close()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(segue.ReadOnly), segue.open(url_on(store, folder)) as db:
            db.scope().get_key("s").append({"role": "user", "content": "x"})
        with segue.open(url_on(store, folder), read_only=True) as db:
            assert [entry.json()["content"] for entry in db.scope().get_key("s").read()] == ["kept"]
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        log = Segue(store, folder)
        log.append("works again")
        assert log.texts() == ["kept", "works again"]
        assert log.close() == []


@pytest.mark.server
def test_a_server_whose_disk_is_full_says_so_loses_nothing_and_works_again(record_property):
    acknowledged = []
    with servers.private("postgres") as server, disk(server.folder / "space", 24_000) as folder:
        servers._own(folder)
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            admin.execute("CREATE DATABASE tight TABLESPACE small TEMPLATE template0")
            url = server.url.rpartition("/")[0] + "/tight"
            with segue.open(url) as db:
                session = db.scope().create()
                with pytest.raises(segue.DiskFull):
                    for number in range(5_000):
                        text = f"{number} " + os.urandom(6_000).hex()
                        session.append({"role": "user", "content": text})
                        acknowledged.append(text)
                stored = [entry.json()["content"] for entry in session.read()]
                assert stored == acknowledged
                subprocess.run(["mount", "-o", "remount,size=40000k", str(folder)], check=True)
                assert session.append({"role": "user", "content": "works again"}).head == len(acknowledged) + 1
                assert [report for report in db.check(deep=True) if report.level == "damage"] == []
            admin.execute("DROP DATABASE tight WITH (FORCE)")
            admin.execute("DROP TABLESPACE small")
    for name, value in {"cases": 1, "acknowledged": len(acknowledged), "lost": 0, "torn": 0}.items():
        record_property(name, value)
    assert len(acknowledged) > 100
