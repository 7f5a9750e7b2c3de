"""Data of every version opens with this one; a store that was killed while it was made or migrated opens, too."""

from __future__ import annotations

import json
import shutil
import stat

import psycopg
import pytest

import fleet
import segue
import servers
import stores
import upgrading

FULL = stores.FULL
VERSIONS = sorted(path.name for path in upgrading.KEPT.iterdir() if path.is_dir())

pytestmark = [pytest.mark.timeout(1_200)]


@pytest.fixture(params=VERSIONS)
def kept(request, tmp_path):
    """A copy, with the modes that version control does not keep."""
    copy = tmp_path / "kept"
    shutil.copytree(upgrading.KEPT / request.param, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


@pytest.mark.parametrize("store", stores.EMBEDDED)
def test_what_an_earlier_version_wrote_is_shown_as_it_was(kept, store):
    url = f"sqlite:///{kept}/segue.db" if store == "sqlite" else f"jsonl:{kept}/folder"
    expected = json.loads((kept / "shown.json").read_text())[store]
    assert upgrading.shown(url) == expected
    with segue.open(url) as db:
        assert [report for report in db.check(deep=True) if report.level == "damage"] == []
        session = db.scope("acme", "王").open("first")
        assert session.append({"role": "user", "content": "goes on"}).head == 6
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700


@pytest.mark.server
def test_what_an_earlier_version_wrote_into_postgres_is_shown_as_it_was(kept):
    expected = json.loads((kept / "shown.json").read_text())["postgres"]
    with servers.database() as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute((kept / "postgres.sql").read_text().encode())
        assert upgrading.shown(url) == expected
        with segue.open(url) as db:
            assert [report for report in db.check(deep=True) if report.level == "damage"] == []
            assert db.scope("acme", "王").open("first").append({"role": "user", "content": "goes on"}).head == 6


# Killed in the middle


def run(work, *args) -> int:
    process = fleet.CONTEXT.Process(target=work, args=args)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("store", stores.SHARED)
def test_a_store_whose_making_was_killed_at_any_statement_opens(store, tmp_path, record_property):
    every, statement, kills = (1 if FULL else 12 if store == "postgres" else 4), 1, 0
    while True:
        (tmp_path / str(statement)).mkdir()
        with stores.url_of(store, tmp_path / str(statement)) as url:
            code = run(upgrading.killed_at, url, store, statement)
            with segue.open(url) as db:
                assert [report for report in db.check(deep=True) if report.level == "damage"] == []
                session = db.scope().open_key("works")
                assert session.append({"role": "user", "content": "x"}).head == 1
        if code == 7:  # it was never killed: there are no more statements
            break
        assert code == -9
        kills, statement = kills + 1, statement + every
    record_property("cases", kills)
    record_property("lost", 0)
    assert kills > 2


def migrate_killed(path, sound, statement, *, in_one):
    """What is shown after a migration that was killed and then done again; None: it was not killed any more."""
    shutil.copy(sound, path)
    code = run(upgrading.migrated_and_killed, str(path), statement, in_one)
    ours, theirs = fleet.CONTEXT.Pipe()
    process = fleet.CONTEXT.Process(target=upgrading.migrated, args=(str(path), theirs))
    process.start()
    theirs.close()
    shown = ours.recv()
    process.join()
    return None if code == 7 else shown


@pytest.mark.slow
def test_a_migration_killed_at_any_statement_is_done_by_the_next_and_changes_nothing(tmp_path, record_property):
    sound, kills = tmp_path / "sound.db", 0
    upgrading.fill(f"sqlite:///{sound}")
    expected = upgrading.shown(f"sqlite:///{sound}")
    for statement in range(1, 500, 1 if FULL else 3):
        shown = migrate_killed(tmp_path / f"{statement}.db", sound, statement, in_one=True)
        if shown is None:
            break
        assert shown == expected
        kills += 1
    record_property("cases", kills)
    record_property("lost", 0)
    assert kills > 5


@pytest.mark.slow
def test_the_test_notices_a_migration_that_is_not_in_one_transaction(tmp_path):
    sound = tmp_path / "sound.db"
    upgrading.fill(f"sqlite:///{sound}")
    expected = upgrading.shown(f"sqlite:///{sound}")
    found = [migrate_killed(tmp_path / f"{n}.db", sound, n, in_one=False) for n in range(10, 40, 3)]
    assert any(shown not in (None, expected) for shown in found)


def test_an_older_version_refuses_a_newer_file_by_name_and_leaves_it_alone(tmp_path):
    path = tmp_path / "new.db"
    upgrading.fill(f"sqlite:///{path}")
    ours, theirs = fleet.CONTEXT.Pipe()
    assert run(upgrading.migrated, str(path), theirs) == 0
    theirs.close()
    ours.recv()
    before = path.read_bytes()
    with pytest.raises(segue.TooNew) as caught:
        segue.open(f"sqlite:///{path}")
    assert (caught.value.found, caught.value.known) == (2, 1)
    assert path.read_bytes() == before


@pytest.mark.server
def test_an_older_version_refuses_a_newer_schema_by_name_and_leaves_it_alone():
    with servers.database() as url:
        segue.open(url).close()
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("INSERT INTO segue.migrations (version, name, digest) VALUES (9999, 'later', 'x')")
        with pytest.raises(segue.TooNew):
            segue.open(url)
