"""What is special to the SQLite store. What it shares with all stores is in the contract's suite."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from power import Disk
from segue import codec
from segue.errors import (
    Closed,
    Corrupt,
    DiskFull,
    Invalid,
    Locked,
    NotDone,
    NotFound,
    ReadOnly,
    TooNew,
    Unavailable,
)
from segue.model import Draft, ScopeKey, Usage, new_id
from segue.store import Append, Create, Erase, Filter, Fork, Hollow, Take, Update
from segue.stores import _local, _sqlite_file
from segue.stores._pack import PACK_MIN_BYTES, PLAIN, ZSTD, pack, unpack
from segue.stores._sqlite_page import _ACTIVE, _DUE
from segue.stores.sqlite import SQLiteStore

ME = ScopeKey("tenant", "user")
CANARY = "canary-7c1f0a"


def draft(
    text: str = "hello", *, id: str | None = None, refs: tuple[str, ...] = (), usage: Usage | None = None
) -> Draft:
    body = codec.encode({"role": "user", "content": text})
    return Draft("message", "anthropic", "user", body, codec.digest(body), id or new_id(), refs, None, usage)


def do(store: SQLiteStore, *ops):
    results = store.commit(ops)
    for result in results:
        if isinstance(result, NotDone):
            raise result
    return results[-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
def store(path: Path):
    store = SQLiteStore(path)
    yield store
    store.close()


@pytest.fixture
def log(store: SQLiteStore) -> str:
    """A session with five entries."""
    do(store, Create(ME, "s", entries=tuple(draft(f"text {n}" * 200, refs=(f"r:{n}", "all")) for n in range(1, 6))))
    return "s"


@contextmanager
def raw(path: Path):
    """The file behind the store's back."""
    con = apsw.Connection(str(path))
    try:
        yield con
    finally:
        con.close()


NOBODY = 65_534


def needs_root() -> None:
    if os.getuid() != 0:
        pytest.skip("only root may mount a small or read-only disk")


@contextmanager
def mounted(folder: Path, options: str):
    needs_root()
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a disk here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


# Where and how the file is made.


@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_the_owner_can_read_the_files_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = SQLiteStore(tmp_path / "x.db")
        do(store, Create(ME, "s"))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"x.db": 0o600, "x.db-wal": 0o600, "x.db-shm": 0o600}
    store.close()


def test_a_closed_store_leaves_one_file(path, store):
    do(store, Create(ME, "s"))
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["x.db"]


def test_wider_modes_are_reported_and_kept(path, store):
    path.chmod(0o644)
    warnings = [report.text for report in store.check(deep=False) if report.level == "warn"]
    assert len(warnings) == 1
    assert "chmod 600" in warnings[0]


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(Unavailable, match="does not exist"):
        SQLiteStore(tmp_path / "no" / "x.db")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_a_store_without_a_file_is_refused(name):
    with pytest.raises(Invalid, match="memory:"):
        SQLiteStore(name)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(Invalid, match="folder"):
        SQLiteStore(tmp_path)


def test_a_text_file_is_no_database_and_stays_as_it_is(path):
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(Corrupt, match="no SQLite database"):
        SQLiteStore(path)
    assert path.read_text().startswith("these are my notes")


def test_another_programs_database_is_refused_and_stays_as_it_is(path):
    with raw(path) as con:
        con.execute("CREATE TABLE recipes (name)")
    before = path.read_bytes()
    with pytest.raises(Invalid, match="another program"):
        SQLiteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("moment", ["application_id", "user_version", "sqlite_schema"])
def test_a_file_that_another_makes_ours_while_it_is_looked_at_is_no_other_programs(path, monkeypatch, moment):
    def looked_at(file, con):
        con.exec_trace = lambda _cursor, sql, _values: make_first() if moment in sql else True
        check(file, con)
        con.exec_trace = None

    def make_first():
        with suppress(Locked):  # it may have to wait, which it need not here
            SQLiteStore(path, busy_timeout=timedelta(0)).close()
        return True

    check = _sqlite_file.File._check_identity
    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_file.File, "_check_identity", lambda file, con: (patch.undo(), looked_at(file, con)))
        store = SQLiteStore(path)
    do(store, Create(ME, "s"))
    store.close()


def test_a_newer_format_is_refused_by_number(path, store):
    store.close()
    with raw(path) as con:
        con.pragma("user_version", 99)
    with pytest.raises(TooNew) as caught:
        SQLiteStore(path)
    assert (caught.value.found, caught.value.known) == (99, 1)


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2"])
def test_an_sqlite_that_damages_databases_is_refused_by_name(path, monkeypatch, version):
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(Unavailable, match=re.escape(version)):
        SQLiteStore(path)
    assert not path.exists()


def test_the_first_sound_sqlite_is_accepted():
    _sqlite_file.check_library("3.51.3")
    _sqlite_file.check_library("3.54.1")


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /net/lin rw - nfs4 server:/export rw
31 30 0:41 / /net/lin/local\\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/c rw - 9p drvfs rw
"""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/net/lin/work", "nfs4"),
        ("/net/lin/local disk/a", None),
        ("/net/lindy", None),
        ("/mnt/c", "9p"),
        ("/", None),
    ],
)
def test_a_network_file_system_is_told_from_a_local_one(folder, found):
    assert _local.network_file_system(Path(folder), MOUNTS) == found


def test_a_network_file_system_is_refused(path, monkeypatch):
    monkeypatch.setattr(_sqlite_file, "network_file_system", lambda _folder: "nfs4")
    with pytest.raises(Unavailable, match="nfs4"):
        SQLiteStore(path)
    assert not path.exists()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_with_two_names_is_refused_by_both(path, store, log, read_only):
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (other, path):
        with pytest.raises(Unavailable, match=r"2 names \(hard links\).*backup"):
            SQLiteStore(name, read_only=read_only)
    do(store, Append(ME, log, (draft("more"),)))  # who has it open is alone with it, and goes on
    store.close()
    assert {each.name for each in path.parent.iterdir()} == {"x.db", "other.db"}
    other.unlink()
    again = SQLiteStore(path, read_only=read_only)
    assert again.get(ME, log).head == 6
    again.close()


def test_a_symbolic_link_and_its_target_share_one_log(path, store, log):
    link = path.with_name("link.db")
    link.symlink_to(path)
    other = SQLiteStore(link)
    do(other, Append(ME, log, (draft("more"),)))
    assert other._file.log_bytes() == store._file.log_bytes() > 0
    assert store.get(ME, log).head == 6
    other.close()


OPEN_TWENTY = """
import sys
import tempfile
from segue.stores.sqlite import SQLiteStore
from segue.store import Create
from segue.model import ScopeKey
sys.stdin.readline()
for n in range(20):
    store = SQLiteStore(f"{sys.argv[1]}/{n}.db")
    (made,) = store.commit([Create(ScopeKey("t", "u"), sys.argv[2])])
    assert made.id == sys.argv[2], made
    store.close()
"""


def test_eight_processes_make_the_same_database_at_once_and_it_is_made_once(tmp_path):
    command = [sys.executable, "-c", OPEN_TWENTY, str(tmp_path)]
    processes = [subprocess.Popen([*command, f"s{n}"], stdin=subprocess.PIPE, text=True) for n in range(8)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.close()
    assert [process.wait(120) for process in processes] == [0] * 8
    for n in range(20):
        store = SQLiteStore(tmp_path / f"{n}.db")
        assert len(store.page(ME._replace(tenant="t", user="u"), Filter(), None, 100).sessions) == 8
        store.close()
        with raw(tmp_path / f"{n}.db") as con:
            assert con.execute("SELECT count(*) FROM migrations").get == 1


# What a commit costs.


def test_a_commit_syncs_once_however_many_operations_it_has(path):
    disk = Disk()
    store = SQLiteStore(path, vfs=disk.vfs)
    do(store, Create(ME, "a"), Create(ME, "b"))
    do(store, Append(ME, "a", (draft(),)))
    before = disk.syncs()
    do(store, *(Append(ME, "ab"[n % 2], (draft(), draft())) for n in range(50)), Take(ME, "a", "run", 1_000))
    assert disk.syncs() - before == 1
    store.close()


def test_a_commit_of_refusals_writes_nothing(path):
    disk = Disk()
    store = SQLiteStore(path, vfs=disk.vfs)
    do(store, Create(ME, "a"))
    before = len(disk.log)
    refused = store.commit([Append(ME, "no", (draft(),)), Append(ME, "a", (draft(),), expect=7), Create(ME, "a", "k")])
    assert all(isinstance(result, NotDone) for result in refused)
    assert len(disk.log) == before
    store.close()


def written(disk: Disk, store: SQLiteStore, session: str) -> int:
    """Bytes that an append writes."""
    before = len(disk.log)
    do(store, Append(ME, session, (draft("x" * 300), draft("y" * 300))))
    return sum(len(change.data) for change in disk.log[before:])


def test_an_append_costs_the_same_in_a_long_session_and_among_many(path):
    disk = Disk()
    store = SQLiteStore(path, vfs=disk.vfs)
    do(store, *(Create(ME, f"s{n}") for n in range(500)))
    short = sorted(written(disk, store, "s7") for _ in range(9))[4]
    for _ in range(5):
        do(store, *(Append(ME, "s9", tuple(draft("z" * 300) for _ in range(100))) for _ in range(10)))
    long = sorted(written(disk, store, "s9") for _ in range(9))[4]
    assert long <= short * 1.3
    store.close()


def test_the_log_stays_short(path, store):
    do(store, Create(ME, "s"))
    for _ in range(60):
        do(store, Append(ME, "s", tuple(draft(new_id() * 60) for _ in range(50))))
    assert store._file.log_bytes() < 12 * 1024 * 1024


def plans(store: SQLiteStore, filter: Filter) -> str:
    """How SQLite answers a list."""
    con = store._file.connect()
    told: list[str] = []
    con.exec_trace = lambda _cursor, sql, values: told.append((sql, values)) or True
    store._file._idle[:] = [con]
    store.page(ME, filter, None, 20)
    con.exec_trace = None
    (sql, values) = next(each for each in told if "profiles" in each[0])
    return " | ".join(row[3] for row in con.execute(f"EXPLAIN QUERY PLAN {sql}", values))


@pytest.mark.parametrize(
    ("filter", "index"),
    [
        (Filter(), "sessions_active"),
        (Filter(status=("idle",)), "sessions_active"),
        (Filter(due_us=1), "sessions_due"),
        (Filter(archived_us=1), "sessions_archived"),
    ],
)
def test_a_list_reads_an_index_in_its_order(store, filter, index):
    do(store, Create(ME, "s"))
    plan = plans(store, filter)
    assert index in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize(
    ("filter", "index"),
    [
        (Filter(parent="p"), "sessions_parent"),
        (Filter(key_prefix="k"), "sessions_key"),
        (Filter(tag="t"), "SEARCH tags USING PRIMARY KEY"),
    ],
)
def test_a_list_of_few_looks_them_up(store, filter, index):
    do(store, Create(ME, "s"))
    assert index in plans(store, filter)
    assert "SCAN" not in plans(store, filter)


def test_a_tag_of_many_sessions_is_listed_in_order(store, monkeypatch):
    monkeypatch.setattr("segue.stores._sqlite_page.FEW", 3)
    do(store, *(Create(ME, f"s{n}", tags=("t",)) for n in range(9)), Create(ME, "other"))
    assert "sessions_active" in plans(store, Filter(tag="t"))
    assert len(store.page(ME, Filter(tag="t"), None, 20).sessions) == 9


def test_cursors_hold_for_their_own_list_only(store):
    do(store, *(Create(ME, f"s{n}", expires_us=5) for n in range(3)), Create(ScopeKey("o", "o"), "s1"))
    cursor = store.page(ME, Filter(), None, 1).cursor
    assert cursor
    for scope, filter, text in (
        (ScopeKey("o", "o"), Filter(), cursor),
        (ME, Filter(due_us=9), cursor),
        (ME, Filter(), cursor[:-6] + "AAAA=="),
        (ME, Filter(), "x" + cursor[1:]),
        (ME, Filter(), ""),
        (ME, Filter(), "é"),
    ):
        with pytest.raises(Invalid, match="cursor"):
            store.page(scope, filter, text, 1)
    assert _ACTIVE.name != _DUE.name


# Disks that fail.


def test_a_full_disk_is_typed_and_loses_nothing(store):
    do(store, Create(ME, "s", entries=(draft("first"),)))
    pages = store._work.con.pragma("page_count")
    store._work.con.pragma("max_page_count", pages)
    with pytest.raises(DiskFull, match="free some"):
        store.commit([Append(ME, "s", tuple(draft(new_id() * 500) for _ in range(100)))])
    assert len(store.read(ME, "s")) == 1
    store._work.con.pragma("max_page_count", 1_000_000)
    assert do(store, Append(ME, "s", (draft("second"),))).head == 2


def test_a_really_full_disk_is_typed_loses_nothing_and_works_again_when_space_is_free(tmp_path):
    with mounted(tmp_path / "small", "size=1m") as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(400_000))
        store = SQLiteStore(folder / "x.db")
        do(store, Create(ME, "s"))
        stored = 0
        with pytest.raises(DiskFull):
            for _ in range(200):
                do(store, Append(ME, "s", (draft(os.urandom(6_000).hex()),)))
                stored += 1
        assert stored > 5
        assert len(store.read(ME, "s")) == stored
        ballast.unlink()
        assert do(store, Append(ME, "s", (draft("after"),))).head == stored + 1
        assert [report for report in store.check(deep=True) if report.level == "damage"] == []
        store.close()


def test_a_full_disk_says_so_at_the_opening(tmp_path):
    with mounted(tmp_path / "small", "size=64k") as folder:
        (folder / "ballast").write_bytes(bytes(60_000))
        with pytest.raises(DiskFull):
            SQLiteStore(folder / "x.db")


def test_a_read_only_disk_says_so_and_can_be_read_on_request(tmp_path):
    with mounted(tmp_path / "disk", "size=4m") as folder:
        store = SQLiteStore(folder / "x.db")
        do(store, Create(ME, "s", entries=(draft("kept"),)))
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(ReadOnly):
            do(SQLiteStore(folder / "x.db"), Append(ME, "s", (draft(),)))
        with pytest.raises(ReadOnly):
            SQLiteStore(folder / "new.db")
        reader = SQLiteStore(folder / "x.db", read_only=True)
        assert len(reader.read(ME, "s")) == 1
        with pytest.raises(ReadOnly, match="read_only"):
            reader.commit([Append(ME, "s", (draft(),))])
        reader.close()


@pytest.fixture
def anyones():
    """A folder that anyone may enter, and only root may write in."""
    needs_root()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_store_in_a_folder_without_writes_is_sound_and_told_so(anyones):
    path = anyones / "x.db"
    store = SQLiteStore(path)
    do(store, Create(ME, "s", entries=(draft("kept"),)))
    store.close()
    path.chmod(0o644)

    def verify() -> None:
        os.setuid(NOBODY)
        reader = SQLiteStore(path, read_only=True)
        reports = reader.check(deep=True)
        assert [report.text for report in reports if report.level == "damage" or "journal_mode" in report.text] == [
            "journal_mode is wal"
        ], reports
        reader.close()

    assert in_child(verify) == 0


def test_a_store_that_this_user_may_not_read_is_told_as_that(anyones):
    SQLiteStore(anyones / "x.db").close()

    def read() -> None:
        os.setuid(NOBODY)
        with pytest.raises(ReadOnly, match="this user may not use it"):
            SQLiteStore(anyones / "x.db", read_only=True)

    assert in_child(read) == 0


def test_a_read_only_handle_reads_what_others_write(path, store, log):
    reader = SQLiteStore(path, read_only=True)
    assert len(reader.read(ME, log)) == 5
    do(store, Append(ME, log, (draft(),)))
    assert len(reader.read(ME, log)) == 6
    with pytest.raises(ReadOnly):
        reader.commit([Append(ME, log, (draft(),))])
    reader.close()


def test_a_read_only_handle_makes_no_file(path):
    with pytest.raises(Unavailable, match="does not exist"):
        SQLiteStore(path, read_only=True)
    assert not path.exists()


def test_a_commit_behind_another_program_waits_and_then_is_locked(path, log):
    store = SQLiteStore(path, busy_timeout=timedelta(milliseconds=30))
    with raw(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Locked, match="another program"):
            store.commit([Append(ME, log, (draft(),))])
        assert len(store.read(ME, log)) == 5  # readings go on
        other.execute("ROLLBACK")
    assert do(store, Append(ME, log, (draft(),))).head == 6
    store.close()


def test_a_file_that_was_deleted_or_replaced_takes_no_more_commits(path, store, log):
    kept = path.with_name("kept.db")
    path.rename(kept)
    for _ in ("moved", "replaced"):
        with pytest.raises(Unavailable, match="moved, deleted or replaced"):
            store.commit([Append(ME, log, (draft(),))])
        path.write_bytes(b"")
    path.unlink()
    kept.rename(path)
    assert do(store, Append(ME, log, (draft(),))).head == 6


# Damage.


@pytest.mark.parametrize(
    "change",
    [
        "body = x'00'",
        "body = substr(body, 1, length(body) - 1)",
        "codec = 7",
        "codec = 0",
        "digest = x'00'",
        "label = label + 1",
        "created_us = created_us + 1",
        "occurred_us = 1",
        "run = 'r'",
        "refs = 'other'",
        "usage = '1,1,1,1,1,1'",
        "id = x'00112233445566778899aabbccddeeff'",
        "seal = seal + 1",
    ],
)
def test_a_change_of_anything_in_an_entry_is_reported_with_its_place(path, store, log, change):
    with raw(path) as con:
        con.execute(f"UPDATE entries SET {change} WHERE pos & 0xffffffff = 3")
    with pytest.raises(Corrupt) as caught:
        store.read(ME, log)
    assert (caught.value.session, caught.value.seq) == (log, 3)
    assert [entry.seq for entry in store.read(ME, log, after=3)] == [4, 5]
    assert [entry.seq for entry in store.read(ME, log, upto=2)] == [1, 2]
    assert (ME, log, 3) in [report[2:] for report in store.check(deep=True) if report.level == "damage"]
    assert do(store, Append(ME, log, (draft(),))).head == 6


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kinds", [None, ("message",), ("note",)])
@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_missing_entry_is_reported_with_its_place(path, store, log, seq, kinds, reverse):
    with raw(path) as con:
        con.execute("DELETE FROM entries WHERE pos & 0xffffffff = ?", (seq,))
    with pytest.raises(Corrupt) as caught:
        store.read(ME, log, kinds=kinds, reverse=reverse)
    assert (caught.value.session, caught.value.seq) == (log, seq)


def test_a_missing_entry_is_reported_by_its_ref_and_by_the_check(path, store, log):
    with raw(path) as con:
        con.execute("DELETE FROM entries WHERE pos & 0xffffffff = 4")
    for session in (None, log):
        with pytest.raises(Corrupt) as caught:
            store.by_ref(ME, "all", session=session)
        assert (caught.value.session, caught.value.seq) == (log, 4)
    assert [report.seq for report in store.check(deep=True) if report.level == "damage"] == [4]


def test_an_entry_behind_the_head_stops_appends_and_is_not_overwritten(path, store, log):
    with raw(path) as con:
        con.execute("UPDATE sessions SET head = 4")
    with pytest.raises(Corrupt) as caught:
        store.commit([Append(ME, log, (draft(),))])
    assert (caught.value.session, caught.value.seq) == (log, 5)
    assert any(report.seq == 5 for report in store.check(deep=True) if report.level == "damage")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sessions SET head = 9",
        "UPDATE sessions SET base = 2",
        "UPDATE sessions SET shelf = 2",
        "UPDATE sessions SET due_us = 5",
        "UPDATE sessions SET usage = '1,1,1,1,1,1'",
        "UPDATE sessions SET scope_no = 77",
        "UPDATE profiles SET tags = 'x'",
        "UPDATE profiles SET title = 'x'",
        "UPDATE profiles SET config = x'00'",
        "UPDATE profiles SET metadata = '{'",
        "DELETE FROM profiles",
        "DELETE FROM refs WHERE seq = 2",
        "UPDATE refs SET created_us = 5 WHERE seq = 2",
        "INSERT INTO refs VALUES (1, 'more', 2, 1, 5)",
        "INSERT INTO refs VALUES (99, 'more', 2, 1, 5)",
        "INSERT INTO tags VALUES (1, 'more', 1)",
        "UPDATE migrations SET digest = x'00'",
        "DELETE FROM entries WHERE pos & 0xffffffff = 5",
    ],
)
def test_a_deep_check_finds_what_contradicts_itself(path, store, log, change):
    with raw(path) as con:
        con.execute(f"PRAGMA foreign_keys = OFF; {change}")
    assert [report for report in store.check(deep=True) if report.level == "damage"]


@pytest.mark.parametrize("change", ["title = 'x'", "tags = '[1]'", "metadata = '{}'", "config = x'00'", "format = 'x'"])
def test_a_change_of_what_describes_a_session_is_reported(path, store, change):
    do(store, Create(ME, "s", title="t", tags=("a",), metadata={"k": 1}, config=b"{}"))
    with raw(path) as con:
        con.execute(f"UPDATE profiles SET {change}")
    for use in (lambda: store.get(ME, "s"), lambda: store.commit([Update(ME, "s", {"title": "new"})])):
        with pytest.raises(Corrupt) as caught:
            use()
        assert caught.value.session == "s"


@pytest.mark.parametrize("change", ["head = 3", "base = 1", "origin_no = 99"])
def test_a_row_that_would_hide_a_part_of_its_log_is_reported(path, store, log, change):
    do(store, Fork(Create(ME, "f"), log, 3), Append(ME, "f", (draft(), draft())))
    with raw(path) as con:
        con.execute(f"PRAGMA foreign_keys = OFF; UPDATE sessions SET {change} WHERE id = 'f'")
    with pytest.raises(Corrupt) as caught:
        store.read(ME, "f")
    assert caught.value.session == "f"


def test_a_text_that_is_none_is_reported_with_its_place(path, store, log):
    with raw(path) as con:
        con.execute("UPDATE entries SET refs = CAST(x'ff41' AS TEXT) WHERE pos & 0xffffffff = 3")
    with pytest.raises(Corrupt) as caught:
        store.read(ME, log)
    assert (caught.value.session, caught.value.seq) == (log, 3)
    assert any(report.seq == 3 for report in store.check(deep=True) if report.level == "damage")


def test_a_damaged_page_leaves_the_rest_readable_and_raises_nothing_in_the_check(path, store):
    for n in range(30):
        do(store, Create(ME, f"s{n}", entries=tuple(draft(f"{n}-{i} " + new_id() * 30) for i in range(20))))
    store.close()
    with raw(path) as con:
        page = con.execute(
            "SELECT pageno FROM dbstat WHERE name = 'entries' AND pagetype = 'leaf' LIMIT 1 OFFSET 9"
        ).get
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = os.urandom(4096)
    path.write_bytes(data)
    store = SQLiteStore(path)
    readable = sum(_reads(store, f"s{n}") for n in range(30))
    assert 25 <= readable < 30
    damage = [report for report in store.check(deep=True) if report.level == "damage"]
    assert any(report.seq for report in damage)
    assert do(store, Append(ME, "s29", (draft(),))).head == 21
    store.close()


def _reads(store: SQLiteStore, session: str) -> bool:
    try:
        store.read(ME, session)
    except Corrupt:
        return False
    return True


def test_a_sound_file_with_everything_in_it_has_no_damage(store, log):
    do(
        store,
        Fork(Create(ME, "f"), log, 3),
        Append(ME, "f", (draft(usage=Usage(1, 2)),)),
        Fork(Create(ME, "g"), "f", 4),
    )
    do(store, Hollow(ME, log, (2,)), Erase(ME, log), Erase(ME, "f"), Update(ME, "g", {"tags": ("a", "b")}))
    do(store, Create(ME, "h", idle_us=5), Update(ME, "h", {"state": "archived"}), Take(ME, "g", "run", 5))
    assert [report for report in store.check(deep=True) if report.level != "ok"] == []


# Erasure.


def everything(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


def canary(n: int) -> str:
    return f"{CANARY}-{n}"


@pytest.fixture
def secret(store: SQLiteStore) -> str:
    """A session that has the canary in every place that holds content."""
    do(
        store,
        Create(
            ME,
            "secret",
            key=canary(1),
            title=canary(2),
            tags=(canary(3),),
            metadata={"k": canary(4)},
            config=codec.encode(canary(5)),
            entries=(draft(canary(6), refs=(canary(7),)), draft(canary(8) * 400)),
        ),
        Append(ME, "secret", (draft(canary(9), id=canary(10)),)),
    )
    return "secret"


def test_an_erased_session_leaves_nothing_in_any_file(path, store, secret):
    assert CANARY.encode() in everything(path)
    do(store, Erase(ME, secret))
    assert CANARY.encode() not in everything(path)


def test_a_hollowed_entry_leaves_nothing_in_any_file(path, store):
    do(store, Create(ME, "s", entries=(draft(CANARY, refs=(CANARY,)),)))
    do(store, Append(ME, "s", (draft("x"),)))
    do(store, Hollow(ME, "s", (1,)))
    assert CANARY.encode() not in everything(path)


def test_content_that_a_reader_keeps_in_the_log_is_reported_and_goes_with_the_next_chance(path, store, secret):
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchall()
        do(store, Erase(ME, secret))
        assert any("erased content" in report.text for report in store.check(deep=False))
    store._scrub_at = 0.0
    do(store, Create(ME, "next"))
    assert CANARY.encode() not in everything(path)
    assert [report for report in store.check(deep=False) if report.level != "ok"] == []


def test_content_that_a_killed_process_left_in_the_log_goes_at_the_next_opening(path, store, secret, monkeypatch):
    monkeypatch.setattr(SQLiteStore, "_empty_log", lambda *_: False)
    do(store, Erase(ME, secret))
    monkeypatch.undo()
    store._drop_writer()
    store._file.close_readers(1)
    store._file.lend_again()
    assert CANARY.encode() in everything(path)
    SQLiteStore(path).close()
    assert CANARY.encode() not in everything(path)


def test_a_tombstone_holds_the_id_and_no_content(path, store, secret):
    do(store, Erase(ME, secret))
    with raw(path) as con:
        row = dict(
            zip((c[1] for c in con.execute("PRAGMA table_info(sessions)")), con.execute("SELECT * FROM sessions").get)
        )
    kept = {name for name, value in row.items() if value not in (None, 0)}
    assert kept == {"no", "scope_no", "id", "state", "version", "created_us", "active_us", "erased_us"}


def test_what_no_fork_needs_goes_in_the_whole_line_of_ancestors(path, store, log):
    do(store, Fork(Create(ME, "f"), log, 3), Append(ME, "f", (draft(),)), Fork(Create(ME, "g"), "f", 4))
    do(store, Fork(Create(ME, "h"), "g", 2))  # hangs on the first session, not on those between
    assert do(store, Erase(ME, log)) == (2, 3)
    assert do(store, Erase(ME, "f")) == (0, 1)
    assert do(store, Erase(ME, "g")) == (2, 0)  # f's entry 4, and the first session's entry 3
    assert len(store.read(ME, "h")) == 2
    assert do(store, Erase(ME, "h")) == (2, 0)
    with raw(path) as con:
        assert con.execute("SELECT count(*) FROM entries").get == 0
        assert con.execute("SELECT count(*) FROM refs").get == 0


# Backups.


def test_a_backup_has_everything_that_was_committed_and_is_private(path, store, log, tmp_path):
    (tmp_path / "backups").mkdir()
    made = store.backup(tmp_path / "backups")
    assert made == tmp_path / "backups" / "x.db"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    copy = SQLiteStore(made)
    assert copy.read(ME, log) == store.read(ME, log)
    assert [report for report in copy.check(deep=True) if report.level != "ok"] == []
    copy.close()


def test_a_backup_overwrites_nothing(path, store, log):
    with pytest.raises(Invalid, match="exists"):
        store.backup(path)
    assert len(store.read(ME, log)) == 5


def test_a_backup_that_fails_leaves_nothing_behind(store, log, tmp_path):
    with mounted(tmp_path / "small", "size=16k") as folder:
        with pytest.raises(Unavailable):
            store.backup(folder / "copy.db")
        assert list(folder.iterdir()) == []
    with pytest.raises(Unavailable):
        store.backup(tmp_path / "no" / "copy.db")


# Forked processes.


def in_child(work) -> int:
    """Run it in a forked process; its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_parent_and_child_both_append_after_a_fork(path, store, log):
    store.read(ME, log)
    assert in_child(lambda: do(store, Append(ME, log, (draft("child"),)))) == 0
    assert do(store, Append(ME, log, (draft("parent"),))).head == 7


def test_what_a_child_writes_survives_that_its_parent_closes_the_file(path, store, log):
    do(store, Append(ME, log, (draft(),)))
    ready, closed = os.pipe(), os.pipe()

    def child() -> None:
        do(store, Append(ME, log, (draft("before"),)))
        os.write(ready[1], b".")
        os.read(closed[0], 1)
        do(store, Append(ME, log, (draft("after"),)))

    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)  # as if killed: nothing is closed
    os.read(ready[0], 1)
    store.close()
    os.write(closed[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    again = SQLiteStore(path)
    assert again.get(ME, log).head == 8
    again.close()
    for end in (*ready, *closed):
        os.close(end)


def test_a_fork_in_the_midst_of_commits_and_readings_harms_nobody(path, store, log):
    stop = threading.Event()
    errors: list[BaseException] = []
    counts = {"a": 0, "b": 0}

    def work(name: str) -> None:
        try:
            while not stop.is_set():
                do(store, Append(ME, log, (draft(name),)))
                counts[name] += 1
                store.read(ME, log, reverse=True, limit=3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in counts]
    for thread in threads:
        thread.start()
    children = [in_child(lambda: do(store, Append(ME, log, (draft("child"),)))) for _ in range(10)]
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert children == [0] * 10
    assert store.get(ME, log).head == 5 + 10 + sum(counts.values())


def test_a_process_forked_past_python_is_refused_by_name(store, log, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    for use in (lambda: store.read(ME, log), lambda: store.commit([Append(ME, log, (draft(),))])):
        with pytest.raises(Unavailable, match="forked"):
            use()


def test_a_closed_store_stays_closed_after_a_fork(store):
    store.close()
    assert in_child(lambda: pytest.raises(Closed, store.get, ME, "s")) == 0


# The lease's clock.


def test_a_lease_does_not_heed_the_wall_clock(store, log, monkeypatch):
    do(store, Take(ME, log, "one", 60_000_000))
    wall = store._clock.wall_us
    for jump in (3_600_000_000, -3_600_000_000):
        monkeypatch.setattr(store._clock, "wall_us", lambda jump=jump: wall() + jump)
        assert store.get(ME, log).lease.run == "one"
        (refused,) = store.commit([Take(ME, log, "two", 60_000_000)])
        assert isinstance(refused, NotDone)


def test_a_lease_of_an_earlier_boot_has_expired_and_a_pause_has_not(path, store, log):
    do(store, Create(ME, "p"), Take(ME, log, "one", 60_000_000), Take(ME, "p", "run", 60_000_000))
    with raw(path) as con:
        con.execute("UPDATE sessions SET lease_boot = 'earlier'")
        con.execute("UPDATE sessions SET lease_state = 2 WHERE id = 'p'")
    assert store.get(ME, log).lease is None
    assert store.get(ME, "p").lease.state == "paused"
    assert do(store, Take(ME, log, "two", 60_000_000)).fence == 2


def test_without_a_boot_id_the_wall_clock_judges(path, monkeypatch):
    monkeypatch.setattr(_local, "_BOOT_ID", Path("/nonexistent"))
    store = SQLiteStore(path)
    do(store, Create(ME, "s"), Take(ME, "s", "one", 60_000_000))
    assert store.get(ME, "s").lease.run == "one"
    store.shift_clock(60_000_001)
    assert store.get(ME, "s").lease is None
    store.close()


# Bodies.


@pytest.mark.parametrize("size", [0, 1, PACK_MIN_BYTES - 1, PACK_MIN_BYTES, 100_000])
def test_a_packed_body_comes_back(size):
    for body in (b"a" * size, os.urandom(size)):
        assert unpack(*pack(body)) == body


def test_a_body_is_compressed_only_when_it_pays():
    assert pack(b"a" * (PACK_MIN_BYTES - 1))[0] == PLAIN
    assert pack(os.urandom(PACK_MIN_BYTES * 4))[0] == PLAIN
    assert pack(b"a" * PACK_MIN_BYTES)[0] == ZSTD


def test_a_bomb_is_damage():
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(5 * 1024 * 1024))
    for packed in (bomb, bomb[:-4], b"", b"junk"):
        with pytest.raises(Corrupt):
            unpack(ZSTD, packed)


def test_ids_are_compared_as_they_were_given(store):
    ids = [
        "00112233445566778899aabbccddeeff",
        "00112233445566778899AABBCCDDEEFF",
        " 0112233445566778899aabbccddeef ",
        "é",
    ]
    do(store, Create(ME, "s", entries=tuple(draft(id=id) for id in ids)))
    assert [entry.id for entry in store.read(ME, "s")] == ids


def test_numbers_that_were_rolled_back_are_forgotten(path, store):
    store.commit([Create(ScopeKey("new", "scope"), "s")])
    other = SQLiteStore(path)
    with pytest.raises(ZeroDivisionError):
        store.commit([Create(ScopeKey("a", "a"), "s"), Append(ScopeKey("a", "a"), "s", Boom())])
    do(other, Create(ScopeKey("b", "b"), "theirs"))
    do(store, Create(ScopeKey("a", "a"), "mine"))
    with pytest.raises(NotFound):
        store.get(ScopeKey("a", "a"), "theirs")
    assert [info.id for info in store.page(ScopeKey("a", "a"), Filter(), None, 9).sessions] == ["mine"]
    other.close()


class Boom:
    def __bool__(self):
        raise ZeroDivisionError

    def __iter__(self):
        raise ZeroDivisionError
