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
from fakes.mongodb import replica_set
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


NOTHING = migrations.Migrations(has_schema=False, steps=())


@pytest.mark.parametrize("url", ["memory:", "jsonl:folder"])
def test_a_store_without_a_schema_has_nothing_to_do(alone, url):
    segue.open(url).close()
    assert migrations.plan(url) == migrations.apply(url) == NOTHING
    with pytest.raises(segue.Unsupported):
        migrations.apply(url, schema="x")
    with pytest.raises(segue.Unsupported):
        migrations.apply("sqlite:///a.db", app_user="x")


def test_a_store_without_a_schema_that_is_not_there_is_told_and_not_made(alone, cli, tmp_path):
    (tmp_path / "text").write_text("no store")
    closed = f"redis://127.0.0.1:{servers.free_port()}/0"
    for url, error in (
        ("jsonl:folder", segue.Unavailable),
        ("jsonl:text", segue.NotDone),
        (closed, segue.Unavailable),
    ):
        for word, call in (("--plan", migrations.plan), ("--apply", migrations.apply)):
            with pytest.raises(error):
                call(url)
            ran = cli("migrate", url, word)
            assert (ran.code != 0, "nothing to do" in ran.out + ran.err) == (True, False), url
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_mongodb_has_nothing_to_do_once_it_is_there(cli):
    with replica_set() as server:
        for word, call in (("--plan", migrations.plan), ("--apply", migrations.apply)):
            with pytest.raises(segue.Unavailable):
                call(server.url)
            assert cli("migrate", server.url, word).code == 5
        ran = cli("ls", "--store", server.url)
        assert (ran.code, "no store there" in ran.err) == (5, True)
        segue.open(server.url).close()
        assert migrations.plan(server.url) == migrations.apply(server.url) == NOTHING
        for word in ("--plan", "--apply"):
            ran = cli("migrate", server.url, word)
            assert (ran.code, "nothing to do" in ran.out) == (0, True)
        assert cli("ls", "--store", server.url).code == 0
        assert server.unheard == []


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


@pytest.mark.server
def test_what_is_switched_on_is_said_though_no_migration_was_pending(cli):
    with servers.database() as url:
        servers.role(url, "segue_app")
        migrations.apply(url)
        ran = cli("migrate", url, "--apply")
        assert (ran.code, ran.out) == (0, "up to date: nothing to do\n")
        ran = cli("migrate", url, "--apply", "--row-security", "--app-user", "segue_app")
        assert (ran.code, "nothing to do" in ran.out) == (0, False)
        assert "row-level security is switched on" in ran.out
        assert "segue_app may work with the tables" in ran.out
        (line,) = cli("migrate", url, "--apply", "--row-security", "--json").lines
        assert (line["number"], line["name"], line["state"]) == (None, "row-security", "applied")
        with psycopg.connect(url) as conn:
            query = "SELECT relrowsecurity AND relforcerowsecurity FROM pg_class WHERE oid = 'segue.sessions'::regclass"
            assert conn.execute(query).fetchone() == (True,)


@pytest.mark.server
@pytest.mark.parametrize("name", ["postgres", "mysql"])
def test_no_command_but_import_and_the_target_of_copy_makes_tables(cli, name):
    with servers.database(name) as url:
        lacking = migrations.plan(url)
        for words in (["ls"], ["doctor"], ["verify"], ["sweep"], ["title", "x", "y"], ["copy", "--to", "b.db"]):
            ran = cli(*words, "--store", url)
            assert (ran.code, "no store at" in ran.out + ran.err, "segue migrate --apply" in ran.out + ran.err) == (
                (5, True, True)
            ), words
            assert migrations.plan(url) == lacking, words
        segue.open("sqlite:///a.db").close()
        assert cli("copy", "--from", "a.db", "--to", url).code == 0
        assert migrations.plan(url).steps == ()
        assert cli("ls", "--store", url).code == 0
        assert cli("sweep", "--store", url).code == 0
