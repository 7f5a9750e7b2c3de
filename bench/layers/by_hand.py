"""
The floors: what somebody writes by hand on the bare driver, as lean as it can be and still be right.

A head that moves under the row's lock (so that two writers cannot take one place), the messages as JSON text, the time
of the last activity for the list, one transaction, one round trip where the driver can. No ids, digests, leases,
compression or checks. Beside them, ``Kept`` and ``RedisKept`` store all that Segue stores of a turn. ``JsonFile`` is
no floor: it is the file that is rewritten each turn.
"""

# ruff: noqa: ASYNC240 - this is blocking code, and says so

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
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


# All that Segue keeps, by hand.


def described(item: dict[str, Any]) -> tuple[str, str, str, str, bytes, bytes, str]:
    """Id, kind, format, origin, body, digest and ref of a message."""
    body = encoded(item)
    blocks = [block for block in item["content"] if isinstance(block, dict)]
    calls = [block.get("id") or block.get("tool_use_id") for block in blocks]
    ref = next((f"call:{call}" for call in calls if call), "")
    return secrets.token_hex(16), "message", "anthropic", item["role"], body, hashlib.sha256(body).digest(), ref


def kept_tables(key: str, number: str, blob: str) -> tuple[str, ...]:
    """The tables of ``Kept``, in the types of an engine."""
    sessions = f"id {key} PRIMARY KEY, head {number}, active {number}, title {key}, parent {key}, entered {number}"
    entries = (
        f"session {key}, seq {number}, id {key}, kind {key}, format {key}, origin {key}, body {blob}, digest {blob},"
        f" ref {key}, created {number}, PRIMARY KEY (session, seq)"
    )
    refs = f"ref {key}, session {key}, seq {number}, created {number}, PRIMARY KEY (session, ref, seq)"
    tables = {"sessions": sessions, "entries": entries, "refs": refs}
    return tuple(f"CREATE TABLE IF NOT EXISTS {name} ({columns})" for name, columns in tables.items())


class Kept(Sql):
    """Ids, digests, origins, refs, times and totals, statement by statement in one transaction. No lease, no checks."""

    lock = " FOR UPDATE"

    async def open(self) -> None:
        await super().open()
        for statement in (
            "CREATE UNIQUE INDEX ids ON entries (session, id)",
            "CREATE INDEX newest ON sessions (active)",
        ):
            with contextlib.suppress(Exception):  # another process has made it
                self._do(statement)

    def _begin(self) -> Any:
        cursor = self._con.cursor()
        cursor.execute("BEGIN")
        return cursor

    async def add(self, session: Any, items: list[Any]) -> None:
        now, cursor = time.time_ns() // 1_000, self._begin()
        cursor.execute(f"SELECT head FROM sessions WHERE id = {self.mark}{self.lock}", (session,))
        head = int(cursor.fetchone()[0])
        rows = [(session, seq, *described(item), now) for seq, item in enumerate(items, head + 1)]
        refs = [(row[8], session, row[1], now) for row in rows if row[8]]
        cursor.executemany(f"INSERT INTO entries VALUES ({', '.join([self.mark] * 10)})", rows)
        if refs:
            cursor.executemany(f"INSERT INTO refs VALUES ({', '.join([self.mark] * 4)})", refs)
        changes = f"head = {self.mark}, active = {self.mark}, entered = {self.mark}"
        values = (head + len(items), now, sum(len(row[6]) for row in rows), session)
        cursor.execute(f"UPDATE sessions SET {changes} WHERE id = {self.mark}", values)
        cursor.execute("COMMIT")


class SqliteKept(Kept, Sqlite):
    tables = kept_tables("TEXT", "INTEGER", "BLOB")
    lock = ""

    def _begin(self) -> Any:
        return self._con.execute("BEGIN IMMEDIATE")


class PostgresKept(Kept, Postgres):
    tables = kept_tables("text", "bigint", "bytea")


class MysqlKept(Kept, Mysql):
    tables = kept_tables("VARBINARY(200)", "BIGINT", "LONGBLOB")


class RedisKept(Redis):
    """The same: what is known of an entry on a line before its body, and a hash of ids, sorted sets of refs, a row."""

    async def add(self, session: Any, items: list[Any]) -> None:
        import redis

        row, now = f"session:{session}", time.time_ns() // 1_000
        with self._client.pipeline() as pipe:
            while True:
                pipe.watch(row)
                head = int(pipe.hget(row, "head") or 0)
                pipe.multi()
                self._store(pipe, session, [(seq, *described(item)) for seq, item in enumerate(items, head + 1)], now)
                pipe.hset(row, mapping={"head": head + len(items), "active": now})
                pipe.zadd("sessions", {session: now})
                with contextlib.suppress(redis.WatchError):  # somebody was faster: once more
                    pipe.execute()
                    return

    def _store(self, pipe: Any, session: str, rows: list[tuple[Any, ...]], now: int) -> None:
        lines = [
            json.dumps([id, kind, format, origin, digest.hex(), ref, now]).encode() + b"\n" + body
            for _, id, kind, format, origin, body, digest, ref in rows
        ]
        pipe.rpush(f"entries:{session}", *lines)
        pipe.hset(f"ids:{session}", mapping={row[1]: row[0] for row in rows})
        for row in rows:
            if row[7]:
                pipe.zadd(f"ref:{row[7]}", {f"{session} {row[0]}": now})

    async def load(self, session: Any) -> list[Any]:
        return await self.last(session, 0)

    async def last(self, session: Any, count: int) -> list[Any]:
        return [json.loads(line.partition(b"\n")[2]) for line in self._client.lrange(f"entries:{session}", -count, -1)]


# Files.


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
