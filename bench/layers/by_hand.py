"""
The floors: what somebody writes by hand on the bare driver, as lean as it can be and still be right.

A head that moves under the row's lock (so that two writers cannot take one place), the messages as JSON text, the time
of the last activity for the list, one transaction, one round trip where the driver can. No ids, digests, leases,
compression or checks. ``JsonFile`` is no floor: it is the file that is rewritten each turn.
"""

# ruff: noqa: ASYNC240 - this is blocking code, and says so

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from bench.text import encoded

from . import Layer

FILL_ROWS = 10_000


class Sql(Layer):
    """What the SQL floors share: the tables, one connection for each thread."""

    blocking = "threads"
    mark = "%s"
    tables: ClassVar[tuple[str, ...]] = ()

    async def open(self) -> None:
        self._local = threading.local()
        for statement in self.tables:
            self._do(statement)

    @property
    def _con(self) -> Any:
        if not hasattr(self._local, "con"):
            self._local.con = self._connect()
        return self._local.con

    def _connect(self) -> Any:
        raise NotImplementedError

    def _do(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        cursor = self._con.cursor()
        cursor.execute(statement.replace("?", self.mark), values)
        return cursor

    async def begin(self, name: str) -> Any:
        if not self._do("SELECT 1 FROM sessions WHERE id = ?", (name,)).fetchall():
            self._do("INSERT INTO sessions (id, head, active, title) VALUES (?, 0, ?, '')", (name, time.time_ns()))
        return name

    async def load(self, session: Any) -> list[Any]:
        rows = self._do("SELECT body FROM entries WHERE session = ? ORDER BY seq", (session,)).fetchall()
        return [json.loads(bytes(row[0])) for row in rows]

    async def last(self, session: Any, count: int) -> list[Any]:
        query = "SELECT body FROM entries WHERE session = ? ORDER BY seq DESC LIMIT ?"
        return [json.loads(bytes(row[0])) for row in self._do(query, (session, count)).fetchall()][::-1]

    async def fork(self, session: Any, name: str) -> None:
        self._do(
            "INSERT INTO sessions (id, head, active, title, parent) SELECT ?, head, active, title, id FROM sessions"
            " WHERE id = ?",
            (name, session),
        )

    async def newest(self, count: int) -> list[Any]:
        query = "SELECT id, head, active, title FROM sessions ORDER BY active DESC LIMIT ?"
        return list(self._do(query, (count,)).fetchall())

    async def fill(self, count: int) -> None:
        for at in range(0, count, FILL_ROWS):
            rows = [(f"s{n:06d}", 0, n, f"第 {n} 次分析 / analysis {n}") for n in range(at, min(at + FILL_ROWS, count))]
            query = "INSERT INTO sessions (id, head, active, title) VALUES (?, ?, ?, ?)"
            self._con.cursor().executemany(query.replace("?", self.mark), rows)

    async def close(self) -> None:
        self._con.close()


class Sqlite(Sql):
    blocking = "loop"
    mark = "?"
    tables = (
        (
            "CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, head INTEGER, active INTEGER, title TEXT,"
            " parent TEXT)"
        ),
        "CREATE INDEX IF NOT EXISTS newest ON sessions (active DESC)",
        "CREATE TABLE IF NOT EXISTS entries (session TEXT, seq INTEGER, body BLOB, PRIMARY KEY (session, seq))",
    )

    def _connect(self) -> Any:
        con = sqlite3.connect(self.place, isolation_level=None, timeout=60)
        con.execute("PRAGMA journal_mode=WAL")
        con.execute("PRAGMA synchronous=FULL")
        return con

    async def add(self, session: Any, items: list[Any]) -> None:
        con = self._con
        con.execute("BEGIN IMMEDIATE")
        (head,) = con.execute("SELECT head FROM sessions WHERE id = ?", (session,)).fetchone()
        rows = [(session, seq, encoded(item)) for seq, item in enumerate(items, head + 1)]
        con.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
        con.execute(
            "UPDATE sessions SET head = ?, active = ? WHERE id = ?", (head + len(items), time.time_ns(), session)
        )
        con.execute("COMMIT")

    async def fill(self, count: int) -> None:
        self._con.execute("BEGIN")
        await super().fill(count)
        self._con.execute("COMMIT")


class Postgres(Sql):
    tables = (
        (
            "CREATE TABLE IF NOT EXISTS sessions (id text PRIMARY KEY, head bigint, active bigint, title text,"
            " parent text)"
        ),
        "CREATE INDEX IF NOT EXISTS newest ON sessions (active DESC)",
        "CREATE TABLE IF NOT EXISTS entries (session text, seq bigint, body bytea, PRIMARY KEY (session, seq))",
    )
    _ADD = (
        "WITH moved AS (UPDATE sessions SET head = head + %s, active = %s WHERE id = %s RETURNING head)"
        " INSERT INTO entries SELECT %s, head - %s + item.place, item.body"
        " FROM moved, unnest(%s::bytea[]) WITH ORDINALITY AS item (body, place)"
    )

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.place, autocommit=True)

    async def add(self, session: Any, items: list[Any]) -> None:
        bodies, count = [encoded(item) for item in items], len(items)
        self._con.execute(self._ADD, (count, time.time_ns(), session, session, count, bodies), prepare=True)


class Mysql(Sql):
    tables = (
        (
            "CREATE TABLE IF NOT EXISTS sessions (id VARBINARY(100) PRIMARY KEY, head BIGINT, active BIGINT,"
            " title VARCHAR(500) CHARACTER SET utf8mb4, parent VARBINARY(100), INDEX newest (active DESC))"
        ),
        (
            "CREATE TABLE IF NOT EXISTS entries (session VARBINARY(100), seq BIGINT, body LONGBLOB,"
            " PRIMARY KEY (session, seq))"
        ),
    )

    def _connect(self) -> Any:
        import pymysql

        parts = urlsplit(self.place)
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=parts.path.strip("/"),
            charset="utf8mb4",
            autocommit=True,
            client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS,
        )

    async def add(self, session: Any, items: list[Any]) -> None:
        # One round trip; LAST_INSERT_ID(x) remembers x for the statements behind it.
        places = ", ".join(f"(%s, LAST_INSERT_ID() - {len(items) - n}, %s)" for n in range(1, len(items) + 1))
        cursor = self._con.cursor()
        cursor.execute(
            "BEGIN; UPDATE sessions SET head = LAST_INSERT_ID(head + %s), active = %s WHERE id = %s;"
            f"INSERT INTO entries VALUES {places}; COMMIT",
            (len(items), time.time_ns(), session, *(part for item in items for part in (session, encoded(item)))),
        )
        while cursor.nextset():
            pass


class Redis(Layer):
    """A list for each session, one sorted set for all."""

    blocking = "threads"

    async def open(self) -> None:
        import redis

        self._client = redis.Redis.from_url(self.place)  # a connection for each thread, by its pool

    async def begin(self, name: str) -> Any:
        return name

    async def add(self, session: Any, items: list[Any]) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.rpush(f"entries:{session}", *map(encoded, items))
            pipe.zadd("sessions", {session: time.time()})
            pipe.execute()

    async def load(self, session: Any) -> list[Any]:
        return [json.loads(body) for body in self._client.lrange(f"entries:{session}", 0, -1)]

    async def last(self, session: Any, count: int) -> list[Any]:
        return [json.loads(body) for body in self._client.lrange(f"entries:{session}", -count, -1)]

    async def fork(self, session: Any, name: str) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(f"parent:{name}", mapping={"session": session, "at": 0})
            pipe.zadd("sessions", {name: time.time()})
            pipe.execute()

    async def newest(self, count: int) -> list[Any]:
        ids = self._client.zrevrange("sessions", 0, count - 1)
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hgetall(b"session:" + id)
            return list(pipe.execute())

    async def fill(self, count: int) -> None:
        for at in range(0, count, FILL_ROWS):
            numbers = range(at, min(at + FILL_ROWS, count))
            with self._client.pipeline(transaction=False) as pipe:
                for n in numbers:
                    pipe.hset(f"session:s{n:06d}", mapping={"head": 0, "title": f"第 {n} 次分析 / analysis {n}"})
                pipe.zadd("sessions", {f"s{n:06d}": n for n in numbers})
                pipe.execute()

    async def close(self) -> None:
        self._client.close()


class Lines(Layer):
    """A line a message at the end of the session's file, and fdatasync. One writer at a time, by the file's lock."""

    blocking = "loop"

    async def open(self) -> None:
        Path(self.place).mkdir(exist_ok=True)

    async def begin(self, name: str) -> Any:
        return (Path(self.place) / f"{name}.jsonl").open("ab+", buffering=0)

    async def add(self, session: Any, items: list[Any]) -> None:
        import fcntl

        fcntl.flock(session, fcntl.LOCK_EX)
        session.write(b"".join(encoded(item) + b"\n" for item in items))
        os.fdatasync(session.fileno())
        fcntl.flock(session, fcntl.LOCK_UN)

    async def load(self, session: Any) -> list[Any]:
        return [json.loads(line) for line in Path(session.name).read_bytes().splitlines()]

    async def last(self, session: Any, count: int) -> list[Any]:
        size = session.seek(0, os.SEEK_END)
        want = 1 << 16
        while True:
            session.seek(max(0, size - want))
            lines = session.read().splitlines()
            if len(lines) > count or want >= size:
                return [json.loads(line) for line in lines[-count:]]
            want *= 2

    async def fork(self, session: Any, name: str) -> None:
        path = Path(self.place) / f"{name}.json"
        path.write_text(json.dumps({"parent": session.name}))
        with path.open("rb") as file:
            os.fsync(file.fileno())


class JsonFile(Layer):
    """One JSON file a session: read, extended, written beside, synced, renamed. No lock, as it is mostly written."""

    blocking = "loop"

    async def open(self) -> None:
        Path(self.place).mkdir(exist_ok=True)

    async def begin(self, name: str) -> Any:
        return Path(self.place) / f"{name}.json"

    async def add(self, session: Any, items: list[Any]) -> None:
        messages = await self.load(session)
        messages += items
        draft = session.with_suffix(f".{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(messages, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(session)

    async def load(self, session: Any) -> list[Any]:
        with contextlib.suppress(FileNotFoundError), session.open(encoding="utf-8") as file:
            found: list[Any] = json.load(file)
            return found
        return []

    async def fork(self, session: Any, name: str) -> None:
        copy = session.with_name(f"{name}.json")
        shutil.copyfile(session, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
