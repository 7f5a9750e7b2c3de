"""Google ADK: four events a turn, one call each; the session is read before a turn, as its runner does."""

from __future__ import annotations

from typing import Any

from bench.text import Turn

from . import Layer, Missing

APP, USER = "bench", "u"


class Handle:
    """A session object, which ADK keeps up to date as it appends."""

    def __init__(self, name: str, session: Any) -> None:
        self.name, self.session = name, session


class Adk(Layer):
    async def open(self) -> None:
        from google.adk.events import Event
        from google.adk.sessions import DatabaseSessionService
        from google.adk.sessions.base_session_service import GetSessionConfig
        from google.genai import types

        self._event, self._types, self._config = Event, types, GetSessionConfig
        self._service = DatabaseSessionService(self.place)

    async def begin(self, name: str) -> Any:
        try:
            made = await self._service.create_session(app_name=APP, user_id=USER, session_id=name)
        except Exception:  # noqa: BLE001 - it is there, or another process made it
            made = await self._read(name)
        return Handle(name, made)

    async def _read(self, name: str, last: int | None = None) -> Any:
        config = None if last is None else self._config(num_recent_events=last)
        return await self._service.get_session(app_name=APP, user_id=USER, session_id=name, config=config)

    def made(self, turn: Turn) -> list[Any]:
        part = self._types.Part
        parts = [("user", part(text=turn.question)), ("model", part(text=turn.answer))]
        if turn.call:
            asked = self._types.FunctionCall(id=turn.call, name=turn.name, args=turn.arguments)
            told = self._types.FunctionResponse(id=turn.call, name=turn.name, response={"result": turn.result})
            parts[1:1] = [("model", part(function_call=asked)), ("user", part(function_response=told))]
        return [self._made(author, part) for author, part in parts]

    def _made(self, author: str, part: Any, **fields: Any) -> Any:
        content = self._types.Content(role=author, parts=[part])
        return self._event(author=author, invocation_id="i", content=content, **fields)

    async def add(self, session: Any, items: list[Any]) -> None:
        for item in items:
            await self._service.append_event(session.session, item)

    async def turn(self, session: Any, items: list[Any]) -> None:
        session.session = await self._read(session.name)
        await self.add(session, items)

    async def seed(self, session: Any, turns: Any) -> None:
        """All but the last event are written at once, as rows of ADK's own class: one by one they take minutes."""
        *events, last = [event for turn in turns for event in self.made(turn)]
        row = self._service._get_schema_classes().StorageEvent  # noqa: SLF001
        async with self._service.database_session_factory() as database:
            database.add_all([row.from_event(session.session, event) for event in events])
            await database.commit()
        await self.turn(session, [last])

    async def load(self, session: Any) -> list[Any]:
        return [event for event in (await self._read(session.name)).events if event.content]

    async def last(self, session: Any, count: int) -> list[Any]:
        return list((await self._read(session.name, count)).events)

    async def close(self) -> None:
        await self._service.close()

    def text(self, message: Any) -> str:
        return str(message.content.parts[0].text)

    async def once(self, session: Any, key: str, text: str) -> None:
        await self.turn(session, [self._made("user", self._types.Part(text=text), id=key)])

    async def put_value(self, session: Any, value: Any) -> Any:
        event = self._made("user", self._types.Part(text="x"), custom_metadata={"v": value})
        await self.turn(session, [event])
        return ((await self._read(session.name)).events[-1].custom_metadata or {}).get("v", Missing)
