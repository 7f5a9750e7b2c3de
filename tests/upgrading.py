"""
Data of earlier versions, and processes that are killed in the middle of making or migrating a store.

``python tests/upgrading.py`` writes the data of this version into tests/upgrade; once it was released it is never
written again. A folder of lines tells git to leave its leases out: ``git add --force`` keeps them here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import segue

KEPT = Path(__file__).with_name("upgrade")
VERSION = "1"
USERS = (("acme", "lin"), ("acme", "王"), ("Ünder", "lin"))


def fill(url: str) -> None:
    """A world with something of everything that is stored."""
    with segue.open(url) as db:
        for tenant, user in USERS:
            me = db.scope(tenant, user)
            first = me.create(id="first", key="k/1", title="八月", tags=("a", "ü"), metadata={"b": [1, None], "a": "x"})
            with first.run(id="run-1") as run:
                run.append(
                    {"role": "user", "content": "接着昨天那个"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
                    ids=["one", "two"],
                    usage=segue.Usage(input=5, output=7),
                    occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC),
                )
                run.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]})
            first.append(b'{ "spelled": 1e2,\t"as": "\\u00e9" }', kind="app.fact", format="json", refs=("source:x",))
            first.append(b"\x00\xff no json", kind="app.raw", format="raw")
            first.hollow(5)
            fork = first.fork(2, id="fork", title="another way")
            fork.append({"role": "user", "content": "x" * 5_000})
            me.create(id="gone").erase()
            me.create(id="archived", idle=timedelta(days=3)).archive()
            me.create(id="pinned", pinned=True, listed=False)
            held = me.create(id="paused")
            held.run(id="run-2").pause(timedelta(days=10_000))


def shown(url: str, **options: object) -> dict:
    """All that a store shows of it, as JSON."""
    with segue.open(url, **options) as db:
        return json.loads(json.dumps({f"{t}/{u}": _scope(db.scope(t, u)) for t, u in USERS}, default=str))


def _scope(me) -> dict:
    statuses = ["running", "idle", "paused", "completed", "archived"]
    found = {}
    for info in me.iterate(status=statuses, unlisted=True):
        entries = [
            [e.seq, e.id, e.kind, e.format, e.origin, e.digest, e.refs, e.run, e.created_us, e.occurred_us, e.usage]
            + [None if e.body is None else hashlib.sha256(e.body).hexdigest()]
            for e in me.open(info.id).read()
        ]
        row = [info.key, info.title, info.tags, info.metadata, info.format, info.status, info.head, info.base]
        row += [info.fence, info.version, info.is_pinned, info.is_listed, info.created_at, info.usage, info.parent]
        found[info.id] = {"row": row, "entries": [[_text(part) for part in entry] for entry in entries]}
    return found


def _text(part):
    return part.hex() if isinstance(part, bytes) else part


def killed_at(url: str, store: str, statement: int) -> None:
    """Open a store and be killed before its n-th statement; say so when there are no more."""
    count = 0

    def step(*_args):
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    if store == "sqlite":
        import apsw

        def trace(con):
            con.exec_trace = step

        apsw.connection_hooks.append(trace)
    elif store == "jsonl":
        from segue.stores._jsonl_disk import Disk

        for name in ("open", "write", "sync", "mkdir", "rename"):
            _before(Disk, name, step)
    elif store == "mysql":
        from pymysql.connections import Connection

        _before(Connection, "query", step)
    elif store == "redis":
        from redis.connection import Connection as Wire

        _before(Wire, "send_packed_command", step)
    else:
        import psycopg

        _before(psycopg.Connection, "execute", step)
    with segue.open(url) as db:
        db.scope().create(id="made").append({"role": "user", "content": "x"})
    sys.exit(7)


def _before(cls, name, step):
    real = getattr(cls, name)

    def method(self, *args, **options):
        step()
        return real(self, *args, **options)

    setattr(cls, name, method)


def second_step(*, killed: int | None = None, in_one: bool = True):
    """Give the SQLite store a second migration; with ``in_one`` False a broken one, not in one transaction."""
    from segue.stores import _sqlite_file, _sqlite_migrate

    first = _sqlite_migrate.migrations()
    sql = "".join(f"CREATE TABLE extra_{n} (a INTEGER) STRICT; INSERT INTO extra_{n} VALUES ({n});" for n in range(5))
    step = _sqlite_migrate.Migration(2, "0002_extra", sql + "UPDATE profiles SET title = title;")
    _sqlite_migrate.migrations = lambda: (*first, step)
    _sqlite_migrate.FORMAT = _sqlite_file.FORMAT = 2
    if not in_one:
        real = _sqlite_migrate.migrate

        def broken(con, now_us):
            if con.pragma("user_version") == 1:
                con.execute(step.sql)
                con.pragma("user_version", 2)
            else:
                real(con, now_us)

        _sqlite_file.migrate = broken


def migrated_and_killed(path: str, statement: int, in_one: bool) -> None:
    second_step(in_one=in_one)
    killed_at(f"sqlite:///{path}", "sqlite", statement)


def migrated(path: str, pipe) -> None:
    """Open with the second step, and say what is there."""
    second_step()
    try:
        pipe.send(shown(f"sqlite:///{path}"))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    import servers

    kept = KEPT / VERSION
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    fill(f"sqlite:///{kept}/segue.db")
    fill(f"jsonl:{kept}/folder")
    (kept / "folder" / "segue.lock").unlink(missing_ok=True)
    with servers.private("postgres") as server:
        fill(server.url)
        dump = ["pg_dump", "--inserts", "--schema=segue", "--no-owner", server.url]
        text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
        lines = [line for line in text.splitlines() if line and not line.startswith(("--", "SET ", "\\"))]
        (kept / "postgres.sql").write_text("\n".join(lines) + "\n")
        expected = {"postgres": shown(server.url)}
    expected |= {"sqlite": shown(f"sqlite:///{kept}/segue.db"), "jsonl": shown(f"jsonl:{kept}/folder")}
    (kept / "folder" / "segue.lock").unlink(missing_ok=True)
    (kept / "shown.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")
