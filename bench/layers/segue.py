"""Segue, on any store: its blocking face, and its async one."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import segue
from segue.store import Create

from . import Layer

WAIT = timedelta(seconds=120)
APPEND_MAX = 1_000
FILL_OPS = 1_000


class Segue(Layer):
    blocking = "threads"

    async def open(self) -> None:
        self._db = segue.open(self.place)
        self._me = self._db.scope()

    async def begin(self, name: str) -> Any:
        return self._me.open_key(name)

    async def add(self, session: Any, items: list[Any]) -> None:
        session.append(*items)

    async def turn(self, session: Any, items: list[Any]) -> None:
        with session.run(policy="enqueue", wait=WAIT) as run:
            for item in items:
                run.append(item)

    async def load(self, session: Any) -> list[Any]:
        return [entry.json() for entry in session.read()]

    async def last(self, session: Any, count: int) -> list[Any]:
        return [entry.json() for entry in session.read(last=count)]

    async def fork(self, session: Any, name: str) -> None:
        session.fork(key=name)

    async def newest(self, count: int) -> list[Any]:
        return list(self._me.list(limit=count).sessions)

    async def fill(self, count: int) -> None:
        for at in range(0, count, FILL_OPS):
            numbers = range(at, min(at + FILL_OPS, count))
            ops = [Create(self._me.key, f"s{n:06d}", title=f"第 {n} 次分析 / analysis {n}") for n in numbers]
            for done in self._db.engine.store.commit(ops):
                if isinstance(done, Exception):
                    raise done

    async def close(self) -> None:
        self._db.close()

    async def once(self, session: Any, key: str, text: str) -> None:
        session.append({"role": "user", "content": text}, ids=[key])

    async def put_value(self, session: Any, value: Any) -> Any:
        (seq,) = session.append({"v": value}, kind="app.fact", format="json").seqs
        return json.loads(session.read(after=seq - 1, upto=seq)[0].body)["v"]


class SegueAsync(Segue):
    blocking = ""

    async def begin(self, name: str) -> Any:
        return segue.AsyncSession(self._db.engine, self._me.open_key(name))

    async def add(self, session: Any, items: list[Any]) -> None:
        await session.append(*items)

    async def turn(self, session: Any, items: list[Any]) -> None:
        async with session.run(policy="enqueue", wait=WAIT) as run:
            for item in items:
                await run.append(item)

    async def load(self, session: Any) -> list[Any]:
        return [entry.json() for entry in await session.read()]

    async def last(self, session: Any, count: int) -> list[Any]:
        return [entry.json() for entry in await session.read(last=count)]
