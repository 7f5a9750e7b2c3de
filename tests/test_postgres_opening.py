"""Opening a PostgreSQL store: what can be wrong, and what the message says; migrations; row-level security."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

import segue
import servers
from segue.errors import Corrupt, DiskFull, Invalid, Locked, NotFound, ReadOnly, SegueError, TooNew, Unavailable
from segue.model import ScopeKey
from segue.store import Create, Filter
from segue.stores import _postgres_schema
from segue.stores._postgres_errors import translate
from segue.stores._postgres_schema import check_server, steps
from segue.stores._steps import Step
from segue.stores.postgres import PostgresStore, apply, plan

pytestmark = pytest.mark.server

ME = ScopeKey("acme", "lin")
SECRET = "hush@hush"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with servers.database() as url:
        yield url


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    """A schema of the test's own, not made yet."""
    return f"s_{zlib.crc32(request.node.name.encode()):x}"


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


# URLs, and what the server says to them.


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "dbname=segue",
        "http://localhost/segue",
        f"postgresql://lin:{SECRET}@localhost/segue",
        f"postgresql://lin:{SECRET}@/x?port=99@99",
        f"postgresql://lin@localhost:{SECRET}/segue",
        f"postgresql://lin@localhost/segue?{SECRET}=1",
    ],
)
def test_what_is_no_url_is_refused_without_repeating_it(bad: str) -> None:
    with pytest.raises(Invalid, match="percent-encoded") as caught:
        PostgresStore(bad)
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(caught.value.__context__)


@pytest.mark.parametrize("name", ["Segue", "pg_x", "1x", "a b", 'x"; DROP TABLE y; --', "", "x" * 49, "schéma"])
def test_what_is_no_name_of_a_schema_is_refused(url: str, name: str) -> None:
    with pytest.raises(Invalid, match="is no name for the schema"):
        PostgresStore(url, schema=name)


def test_a_password_is_shown_nowhere(url: str) -> None:
    servers.role(url, "keeper", f"LOGIN SUPERUSER PASSWORD '{SECRET}'")
    store = PostgresStore(servers.as_user(url, "keeper", SECRET))
    assert "hush" not in repr(store) + repr(store._target) + str(store.check(deep=False))
    store.close()


def test_a_wrong_password_is_named(url: str) -> None:
    servers.role(url, "keeper", f"LOGIN SUPERUSER PASSWORD '{SECRET}'")
    with pytest.raises(Unavailable, match="wrong password .*PGPASSWORD or ~/.pgpass") as caught:
        PostgresStore(servers.as_user(url, "keeper", "wrong-hush"))
    assert "hush" not in str(caught.value)


def test_a_server_that_is_not_there_is_named() -> None:
    port = servers.free_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}/x: cannot connect .*is the server up"):
        PostgresStore(f"postgresql://127.0.0.1:{port}/x")


def test_a_database_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(Unavailable, match="no such database .*createdb"):
        PostgresStore(f"{url}_not")


def test_a_user_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(Unavailable, match="lets this user not in"):
        PostgresStore(servers.as_user(url, "nobody_of_that_name"))


def test_a_user_who_may_make_no_schema_is_told_so(url: str, schema: str) -> None:
    with pytest.raises(Unavailable, match="lacks a right .*permission denied for database"):
        PostgresStore(servers.as_user(url, servers.role(url, "segue_app")), schema=schema)


def test_a_user_who_may_not_write_is_told_so(url: str, admin: psycopg.Connection, schema: str) -> None:
    user = servers.role(url, "segue_reader")
    apply(url, schema=schema, app_user=user)
    admin.execute(f"REVOKE INSERT ON {schema}.sessions FROM {user}")
    store = PostgresStore(servers.as_user(url, user), schema=schema, migrate=False)
    with pytest.raises(Unavailable, match="lacks a right .*permission denied for table sessions"):
        store.commit([Create(ME, "s")])
    store.close()


def test_too_many_connections_are_named(url: str) -> None:
    user = servers.role(url, "segue_few", "LOGIN CONNECTION LIMIT 0")
    with pytest.raises(Unavailable, match="no connection left .*lower pool_size"):
        PostgresStore(servers.as_user(url, user))


def test_a_session_that_may_only_read_is_told_so_and_can_read(url: str, schema: str) -> None:
    apply(url, schema=schema)
    store = PostgresStore(f"{url}?options=-c%20default_transaction_read_only%3Don", schema=schema)
    with pytest.raises(ReadOnly, match="takes no writes .*connect to the primary"):
        store.commit([Create(ME, "s")])
    with pytest.raises(NotFound):
        store.get(ME, "s")
    assert any("takes no writes" in report.text for report in store.check(deep=False) if report.level == "warn")
    store.close()


@pytest.mark.slow
def test_a_replica_is_told_by_name_and_can_be_read() -> None:
    with servers.private("postgres") as server:
        with segue.open(server.url) as db:
            db.scope().create(id="s")
        server.kill(signal.SIGINT)
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        store = PostgresStore(server.url)
        assert store.get(ScopeKey("default", "local"), "s").id == "s"
        with pytest.raises(ReadOnly, match="a replica"):
            store.commit([Create(ME, "t")])
        store.close()
        with pytest.raises(ReadOnly):
            PostgresStore(server.url, schema="other")


def test_a_server_that_is_too_old_is_refused_by_name() -> None:
    info = SimpleNamespace(server_version=120_017, parameter_status=lambda name: "UTF8")
    with pytest.raises(Unavailable, match="has version 12; Segue needs 13"):
        check_server(SimpleNamespace(info=info), "host:5432/db")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_an_encoding_that_would_change_names_is_refused_and_one_that_keeps_bytes_is_not(
    url: str, admin: psycopg.Connection, encoding: str
) -> None:
    name = f"segue_{encoding.lower()}"
    admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    there = f"{url.rpartition('/')[0]}/{name}"
    try:
        if encoding == "LATIN1":
            with pytest.raises(Unavailable, match="encoding LATIN1"):
                PostgresStore(there)
        else:
            store = PostgresStore(there)
            store.commit([Create(ScopeKey("acme", "林"), "会话", key="钥匙")])
            assert store.find(ScopeKey("acme", "林"), "钥匙").id == "会话"
            assert store.scopes(None, 9) == [ScopeKey("acme", "林")]
            store.close()
    finally:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("state", "expected", "step"),
    [
        ("53100", DiskFull, "free some space"),
        ("55P03", Locked, "call again"),
        ("40P01", Locked, "call again"),
        ("57014", Unavailable, "statement_timeout"),
        ("57P03", Unavailable, "call again in a moment"),
        ("42P01", Unavailable, "segue migrate --apply"),
        ("XX001", Corrupt, "segue verify"),
        ("22P02", Invalid, "not stored"),
        ("99999", Unavailable, "nothing was written"),
    ],
)
def test_each_state_of_the_server_has_its_error_and_next_step(
    state: str, expected: type[SegueError], step: str
) -> None:
    error = translate(psycopg.errors.lookup(state)("said") if state != "99999" else _Odd("said"), "host:5432/db")
    assert type(error) is expected
    assert step in str(error)
    assert "host:5432/db" in str(error)


class _Odd(psycopg.Error):
    sqlstate = "99999"


# Migrations.


def test_what_is_pending_is_planned_and_then_applied(url: str, schema: str) -> None:
    assert plan(url, schema=schema) == steps()
    assert plan(url, schema=schema) == steps()  # planning changes nothing
    assert apply(url, schema=schema) == steps()
    assert plan(url, schema=schema) == apply(url, schema=schema) == ()


def test_without_migrate_a_schema_that_lacks_steps_is_named(url: str, schema: str) -> None:
    with pytest.raises(Unavailable, match="lacks 5 of 5 migrations; run: segue migrate --apply"):
        PostgresStore(url, schema=schema, migrate=False)
    apply(url, schema=schema)
    PostgresStore(url, schema=schema, migrate=False).close()


def test_a_newer_schema_is_refused_and_not_touched(url: str, admin: psycopg.Connection, schema: str) -> None:
    apply(url, schema=schema)
    admin.execute(f"INSERT INTO {schema}.migrations VALUES (99, 'later', '')")
    for attempt in (PostgresStore, plan, apply):
        with pytest.raises(TooNew, match="has format 99"):
            attempt(url, schema=schema)


def test_of_many_that_open_a_new_schema_at_once_one_makes_it(url: str, schema: str) -> None:
    applied: list[tuple[Step, ...]] = []
    threads = [threading.Thread(target=lambda: applied.append(apply(url, schema=schema))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(step for done in applied for step in done) == list(steps())


def test_a_step_that_fails_leaves_neither_itself_nor_its_record(
    url: str, admin: psycopg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Step(6, "broken", "CREATE TABLE @schema@.half (a int); SELECT 1 / 0;")
    known = steps()
    monkeypatch.setattr(_postgres_schema, "steps", lambda: (*known, broken))
    with pytest.raises(Invalid, match="division by zero"):
        apply(url, schema=schema)
    assert admin.execute("SELECT to_regclass(%s)", (f"{schema}.half",)).fetchone() == (None,)
    assert admin.execute(f"SELECT max(version) FROM {schema}.migrations").fetchone() == (5,)


def test_a_migration_that_meets_a_busy_table_waits_its_turn_and_is_tried_again(
    url: str, admin: psycopg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(url, schema=schema)
    known = steps()
    added = Step(6, "added", "ALTER TABLE @schema@.tickets ADD COLUMN note text;")
    monkeypatch.setattr(_postgres_schema, "steps", lambda: (*known, added))
    monkeypatch.setattr(_postgres_schema, "LOCK_MS", 50)
    with psycopg.connect(url) as reader:
        reader.execute(f"SELECT FROM {schema}.tickets")
        waiting = threading.Thread(target=apply, args=(url,), kwargs={"schema": schema})
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join()
    assert admin.execute(f"SELECT max(version) FROM {schema}.migrations").fetchone() == (6,)


def test_a_migration_that_was_another_when_it_was_applied_is_reported(
    url: str, admin: psycopg.Connection, schema: str
) -> None:
    store = PostgresStore(url, schema=schema)
    admin.execute(f"UPDATE {schema}.migrations SET digest = 'x' WHERE version = 3")
    assert ["migration 3" in report.text for report in store.check(deep=False) if report.level == "warn"] == [True]
    store.close()


def test_a_store_finds_missing_tables_by_name(url: str, admin: psycopg.Connection, schema: str) -> None:
    store = PostgresStore(url, schema=schema)
    admin.execute(f"DROP TABLE {schema}.entries CASCADE")
    with pytest.raises(Unavailable, match="missing .*segue migrate --apply"):
        store.commit([Create(ME, "s")])
        store.read(ME, "s")
    store.close()


# Row-level security.


@pytest.fixture
def guarded(url: str, admin: psycopg.Connection, schema: str) -> str:
    """The URL of a plain user on a schema with row-level security."""
    apply(url, schema=schema, row_security=True, app_user=servers.role(url, "segue_app"))
    return servers.as_user(url, "segue_app")


def test_without_the_setting_no_row_is_visible_and_with_it_those_of_one_scope(guarded: str, schema: str) -> None:
    store = PostgresStore(guarded, schema=schema, migrate=False)
    with segue.open(store) as db:
        for user in ("lin", "eve"):
            session = db.scope("acme", user).create(id="s")
            session.append({"role": "user", "content": "hello"}, refs=("r",))
            session.fork(1, id="f")
        with psycopg.connect(guarded) as plain:
            for table in ("sessions", "entries", "refs", "spans", "tickets", "conversations"):
                assert plain.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone() == (0,), table
            plain.execute("SELECT set_config('segue.tenant', 'acme', true), set_config('segue.user', 'lin', true)")
            for table, count in (("sessions", 2), ("entries", 1), ("refs", 1), ("spans", 1), ("conversations", 2)):
                assert plain.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone() == (count,), table
            plain.rollback()
            assert plain.execute(f"SELECT count(*) FROM {schema}.sessions").fetchone() == (0,)


def test_a_row_of_another_scope_cannot_be_written(guarded: str, schema: str) -> None:
    with psycopg.connect(guarded) as plain:
        plain.execute("SELECT set_config('segue.tenant', 'acme', true), set_config('segue.user', 'lin', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            plain.execute(
                f"INSERT INTO {schema}.refs (segment, seq, created_us, tenant, user_id, ref) "
                "VALUES (1, 1, 1, 'acme', 'eve', 'r')"
            )


def test_a_store_notices_row_security_by_itself(guarded: str, schema: str) -> None:
    store = PostgresStore(guarded, schema=schema, migrate=False)
    store.commit([Create(ME, "s"), Create(ScopeKey("acme", "eve"), "s")])
    assert [info.id for info in store.page(ME, Filter(), None, 9).sessions] == ["s"]
    assert store.scopes(None, 9) == [ScopeKey("acme", "eve"), ME]
    store.close()


def test_row_security_that_would_have_no_effect_is_refused(url: str, schema: str) -> None:
    with pytest.raises(Invalid, match="row_security=True has no effect .*without SUPERUSER"):
        PostgresStore(url, schema=schema, row_security=True)


# The servers of these tests.


def test_a_server_of_a_run_that_was_killed_is_stopped() -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import servers\n"
        "print(servers.join('postgres'), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTEST_XDIST_TESTRUNUID": secrets.token_hex(8)}
    command = [sys.executable, "-c", code, str(Path(servers.__file__).parent)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == -signal.SIGKILL, told.stderr
    until = time.monotonic() + 20
    with pytest.raises(psycopg.OperationalError):
        while time.monotonic() < until:
            psycopg.connect(told.stdout.strip(), connect_timeout=2).close()
