"""Agno: one row a run, and the session's row, both at the end of the run, as its agent stores them."""

from __future__ import annotations

import time
from typing import Any

from bench.text import Turn

from . import Layer

AGENT, USER = "bench", "u"


class Agno(Layer):
    blocking = "threads"

    async def open(self) -> None:
        from agno.agent import Agent
        from agno.db.base import SessionType
        from agno.models.message import Message
        from agno.run.agent import RunOutput
        from agno.run.base import RunStatus
        from agno.session.agent import AgentSession

        self._db = self._open()
        self._message, self._run, self._session = Message, RunOutput, AgentSession
        self._type, self._done = SessionType.AGENT, RunStatus.completed
        self._agent = Agent(id=AGENT, db=self._db, user_id=USER, telemetry=False)

    def _open(self) -> Any:
        raise NotImplementedError

    async def begin(self, name: str) -> Any:
        found = self._db.get_session(name, self._type, USER)
        fresh = self._session(session_id=name, agent_id=AGENT, user_id=USER, created_at=int(time.time()))
        return found or self._db.upsert_session(fresh)

    def made(self, turn: Turn) -> list[Any]:
        made = self._message
        messages = [made(role="user", content=turn.question), made(role="assistant", content=turn.answer)]
        if turn.call:
            call = {
                "id": turn.call,
                "type": "function",
                "function": {"name": turn.name, "arguments": str(turn.arguments)},
            }
            messages[1:1] = [
                made(role="assistant", tool_calls=[call]),
                made(role="tool", tool_call_id=turn.call, tool_name=turn.name, content=turn.result),
            ]
        run = self._run(agent_id=AGENT, user_id=USER, messages=messages, content=turn.answer, status=self._done)
        run.run_id = messages[0].id
        return [run]

    async def add(self, session: Any, items: list[Any]) -> None:
        for run in items:
            run.session_id = session.session_id
            session.upsert_run(run)
            self._db.upsert_session(session)
            self._db.upsert_run(run, session.session_id, USER)

    async def seed(self, session: Any, turns: Any) -> None:
        """While a history is made, commits wait for no disk: one by one they take minutes."""
        from sqlalchemy import event

        engine = self._db.db_engine
        setting = "PRAGMA synchronous=OFF" if engine.dialect.name == "sqlite" else "SET synchronous_commit = off"

        def hasten(connection: Any, *_: Any) -> None:
            connection.cursor().execute(setting)

        event.listen(engine, "checkout", hasten)
        await super().seed(session, turns)
        event.remove(engine, "checkout", hasten)
        engine.dispose()

    async def load(self, session: Any) -> list[Any]:
        found: list[Any] = self._db.get_session(session.session_id, self._type, USER).get_messages()
        return found

    async def last(self, session: Any, count: int) -> list[Any]:
        runs = self._db.get_session(session.session_id, self._type, USER, runs_limit=count // 4)
        found: list[Any] = runs.get_messages()
        return found

    async def fork(self, session: Any, name: str) -> None:  # noqa: ARG002 - it names its forks itself
        self._agent.fork_session(source_session_id=session.session_id, user_id=USER)

    def text(self, message: Any) -> str:
        return str(message.content)


class Sqlite(Agno):
    def _open(self) -> Any:
        from agno.db.sqlite import SqliteDb

        return SqliteDb(db_file=self.place)


class Postgres(Agno):
    def _open(self) -> Any:
        from agno.db.postgres import PostgresDb

        return PostgresDb(db_url=self.place)
