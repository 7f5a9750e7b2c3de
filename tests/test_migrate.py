# ruff: noqa: F401, F811 - pytest finds fixtures by their names
"""Migrations are planned without a change, and applied once; a store without a schema has nothing to do."""

from __future__ import annotations

import psycopg
import pytest

import segue
import servers
import stores
import upgrading
from cli_runs import alone, cli
from segue import migrations
from segue.stores import _sqlite_file, _sqlite_migrate

# Every store that has tables: one that joins stores.SHARED joins here, if its module has ``plan`` and ``apply``.
WITH_SCHEMA = [one for one in stores.SHARED if getattr(one, "values", (one,))[0] not in ("jsonl", "redis", "mongodb")]


@pytest.fixture(params=WITH_SCHEMA)
def url(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def second(monkeypatch):
    """Gives the SQLite store a second migration, when it is called."""
    for module, name in ((_sqlite_migrate, "migrations"), (_sqlite_migrate, "FORMAT"), (_sqlite_file, "FORMAT")):
        monkeypatch.setattr(module, name, getattr(module, name))
    return upgrading.second_step


def test_what_a_new_store_lacks_is_planned_without_a_change_and_applied_once(url):
    first = migrations.plan(url)
    assert (first.has_schema, [step.number for step in first.steps]) == (True, list(range(1, len(first.steps) + 1)))
    assert all(step.sql.strip() and step.name for step in first.steps)
    assert migrations.plan(url) == migrations.apply(url) == first
    assert migrations.plan(url).steps == migrations.apply(url).steps == ()
    with segue.open(url) as db:
        assert db.scope().create().append({"role": "user", "content": "x"}).head == 1
    assert migrations.plan(url).steps == ()


def test_a_file_is_not_made_by_a_plan(tmp_path):
    assert len(migrations.plan(f"sqlite:///{tmp_path}/new.db").steps) >= 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_an_earlier_version_is_told_what_it_lacks_and_keeps_what_it_has(tmp_path, second):
    url, path = f"sqlite:///{tmp_path}/a.db", tmp_path / "a.db"
    upgrading.fill(url)
    before, shown = path.read_bytes(), upgrading.shown(url)
    second()
    (step,) = migrations.plan(url).steps
    assert (step.number, step.name, "CREATE TABLE extra_0" in step.sql) == (2, "extra", True)
    assert path.read_bytes() == before
    assert migrations.apply(url).steps == (step,)
    assert migrations.plan(url).steps == ()
    assert upgrading.shown(url) == shown


def test_another_programs_database_and_a_newer_one_are_refused(tmp_path, second, monkeypatch):
    import apsw

    with apsw.Connection(str(tmp_path / "other.db")) as con:
        con.execute("CREATE TABLE theirs (a)")
    con.close()
    url = f"sqlite:///{tmp_path}/newer.db"
    with monkeypatch.context() as later:
        for module, name in ((_sqlite_migrate, "migrations"), (_sqlite_migrate, "FORMAT"), (_sqlite_file, "FORMAT")):
            later.setattr(module, name, getattr(module, name))
        second()
        segue.open(url).close()
    for call in (migrations.plan, migrations.apply):
        with pytest.raises(segue.Invalid):
            call(f"sqlite:///{tmp_path}/other.db")
        with pytest.raises(segue.TooNew):
            call(url)


@pytest.mark.parametrize("url", ["memory:", "jsonl:folder"])
def test_a_store_without_a_schema_has_nothing_to_do(alone, tmp_path, url):
    assert migrations.plan(url) == migrations.apply(url) == migrations.Migrations(has_schema=False, steps=())
    with pytest.raises(segue.Unsupported):
        migrations.apply(url, schema="x")
    with pytest.raises(segue.Unsupported):
        migrations.apply("sqlite:///a.db", app_user="x")
    assert list(tmp_path.iterdir()) == []


# The command


def test_the_command_shows_the_sql_and_then_applies_it(cli, second):
    upgrading.fill("sqlite:///a.db")
    assert "up to date" in cli("migrate", "a.db", "--plan").out
    second()
    ran = cli("migrate", "a.db", "--plan")
    assert (ran.code, "-- 0002 extra: pending" in ran.out, "CREATE TABLE extra_0" in ran.out) == (0, True, True)
    (line,) = cli("migrate", "--store", "a.db", "--plan", "--json").lines
    assert (line["number"], line["state"]) == (2, "pending")
    (line,) = cli("migrate", "a.db", "--apply", "--json").lines
    assert (line["number"], line["state"]) == (2, "applied")
    assert "nothing to do" in cli("migrate", "a.db", "--apply").out


def test_the_command_refuses_what_makes_no_sense(cli, tmp_path):
    assert cli("migrate", "none.db", "--plan").code == 5
    segue.open("sqlite:///a.db").close()
    assert cli("migrate", "a.db").code == 2
    assert cli("migrate", "a.db", "--plan", "--apply").code == 2
    assert cli("migrate", "a.db", "--plan", "--app-user", "x").code == 2
    assert cli("migrate", "a.db", "--apply", "--row-security").code == 5
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.server
def test_an_owner_migrates_and_a_user_without_rights_works(cli):
    with servers.database() as url:
        user = servers.as_user(url, servers.role(url, "segue_app"))
        assert f"{len(migrations.plan(url).steps)} migrations pending" in cli("migrate", url, "--plan").out
        assert cli("ls", "--store", user).code == 5
        assert cli("migrate", url, "--apply", "--row-security", "--app-user", "segue_app").code == 0
        with segue.open(user, migrate=False, row_security=True) as db:
            assert db.scope().create().append({"role": "user", "content": "x"}).head == 1
        assert cli("ls", "--store", user).code == 0
