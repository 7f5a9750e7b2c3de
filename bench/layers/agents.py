"""OpenAI Agents SDK: its runner stores the question first, then calls with their results, the answer last."""

from __future__ import annotations

import json
from typing import Any

from bench.text import Turn

from . import Layer, Missing


class Agents(Layer):
    def made(self, turn: Turn) -> list[Any]:
        called = [
            {"type": "function_call", "call_id": turn.call, "name": turn.name, "arguments": json.dumps(turn.arguments)},
            {"type": "function_call_output", "call_id": turn.call, "output": turn.result},
        ]
        ends = [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        return [ends[0], *(called if turn.call else []), ends[1]]

    async def add(self, session: Any, items: list[Any]) -> None:
        await session.add_items(items)

    async def turn(self, session: Any, items: list[Any]) -> None:
        for batch in (items[:1], items[1:-1], items[-1:]):
            if batch:
                await session.add_items(batch)

    async def load(self, session: Any) -> list[Any]:
        found: list[Any] = await session.get_items()
        return found

    async def last(self, session: Any, count: int) -> list[Any]:
        found: list[Any] = await session.get_items(limit=count)
        return found

    async def once(self, session: Any, key: str, text: str) -> None:
        await session.add_items([{"id": key, "role": "user", "content": text}])

    async def put_value(self, session: Any, value: Any) -> Any:
        before = len(await session.get_items())
        await session.add_items([{"role": "user", "content": "x", "v": value}])
        items = await session.get_items()
        return items[-1].get("v", Missing) if len(items) == before + 1 else Missing


class Sqlite(Agents):
    async def begin(self, name: str) -> Any:
        from agents import SQLiteSession

        return SQLiteSession(name, self.place)


class SqlAlchemy(Agents):
    async def open(self) -> None:
        from agents.extensions.memory import SQLAlchemySession
        from sqlalchemy.ext.asyncio import create_async_engine

        self._engine = create_async_engine(self.place)
        self._class = SQLAlchemySession
        await (await self.begin("tables")).get_items()

    async def begin(self, name: str) -> Any:
        return self._class(name, engine=self._engine, create_tables=True)

    async def close(self) -> None:
        await self._engine.dispose()


class Redis(Agents):
    async def open(self) -> None:
        import redis.asyncio
        from agents.extensions.memory import RedisSession

        self._client, self._class = redis.asyncio.from_url(self.place), RedisSession

    async def begin(self, name: str) -> Any:
        return self._class(name, redis_client=self._client)

    async def close(self) -> None:
        await self._client.aclose()
