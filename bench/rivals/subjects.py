"""
Session layers as the kit uses them: each as its own documentation shows, one handle a process.

A turn is a question and an answer. ``turn`` returns when the layer says that both are stored; ``texts`` gives what
is there. What a layer offers against racing turns is used where its documentation says how.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any


class Subject:
    """One session, by one process."""

    def __init__(self, place: str, session: str) -> None:
        raise NotImplementedError

    def turn(self, question: str, answer: str) -> None:
        raise NotImplementedError

    def once(self, key: str, text: str) -> None:
        """Store one message under an id of the caller's."""
        raise NotImplementedError

    def texts(self) -> list[str]:
        raise NotImplementedError

    def put_value(self, value: Any) -> Any:
        """Store a JSON value, and give it as another handle reads it."""
        raise NotImplementedError


class Segue(Subject):
    def __init__(self, place: str, session: str) -> None:
        import segue

        self._db = segue.open(place)
        self._session = self._db.scope().open_key(session)

    def turn(self, question: str, answer: str) -> None:
        with self._session.run(policy="enqueue", wait=timedelta(seconds=120)) as run:
            run.append({"role": "user", "content": question})
            run.append({"role": "assistant", "content": answer})

    def once(self, key: str, text: str) -> None:
        self._session.append({"role": "user", "content": text}, ids=[key])

    def texts(self) -> list[str]:
        return [entry.json()["content"] for entry in self._session.read(kinds=["message"])]

    def put_value(self, value: Any) -> Any:
        (seq,) = self._session.append({"v": value}, kind="app.fact", format="json").seqs
        return json.loads(self._session.read(after=seq - 1, upto=seq)[0].body)["v"]


class Loop(Subject):
    """A layer that is async: one event loop for the life of the process."""

    def __init__(self, place: str, session: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._place, self._name = place, session
        self._do(self._open())

    def _do(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    async def _open(self) -> None:
        raise NotImplementedError


class Agents(Loop):
    """OpenAI Agents SDK: the runner stores the question first, the answer at the end of the turn."""

    _session: Any

    def turn(self, question: str, answer: str) -> None:
        self._do(self._session.add_items([{"role": "user", "content": question}]))
        self._do(self._session.add_items([{"role": "assistant", "content": answer}]))

    def once(self, key: str, text: str) -> None:
        self._do(self._session.add_items([{"id": key, "role": "user", "content": text}]))

    def texts(self) -> list[str]:
        return [item["content"] for item in self._do(self._session.get_items())]

    def put_value(self, value: Any) -> Any:
        before = len(self._do(self._session.get_items()))
        self._do(self._session.add_items([{"role": "user", "content": "x", "v": value}]))
        items = self._do(self._session.get_items())
        if len(items) != before + 1:
            return Missing
        return items[-1].get("v", Missing)


class AgentsSqlite(Agents):
    async def _open(self) -> None:
        from agents import SQLiteSession

        self._session = SQLiteSession(self._name, self._place)


class AgentsSqlalchemy(Agents):
    async def _open(self) -> None:
        from agents.extensions.memory import SQLAlchemySession

        self._session = SQLAlchemySession.from_url(self._name, url=self._place, create_tables=True)
        await self._session.get_items()


class LangGraph(Subject):
    """A graph of one node whose answer is known beforehand; the saver keeps its state."""

    def __init__(self, place: str, session: str) -> None:
        from typing import Annotated, TypedDict

        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.graph import END, START, StateGraph
        from langgraph.graph.message import add_messages

        class State(TypedDict, total=False):
            messages: Annotated[list, add_messages]
            answer: str
            v: Any

        def node(state: Any) -> Any:
            return {"messages": [AIMessage(state["answer"])]} if state.get("answer") else {}

        graph = StateGraph(State)
        graph.add_node("model", node)
        graph.add_edge(START, "model")
        graph.add_edge("model", END)
        self._graph = graph.compile(checkpointer=self._saver(place))
        self._human = HumanMessage
        self._config = {"configurable": {"thread_id": session}}

    def _saver(self, place: str) -> Any:
        raise NotImplementedError

    def turn(self, question: str, answer: str) -> None:
        self._graph.invoke({"messages": [self._human(question)], "answer": answer}, self._config)

    def once(self, key: str, text: str) -> None:
        self._graph.invoke({"messages": [self._human(text, id=key)], "answer": ""}, self._config)

    def texts(self) -> list[str]:
        return [message.content for message in self._graph.get_state(self._config).values.get("messages", [])]

    def put_value(self, value: Any) -> Any:
        self._graph.invoke({"v": value, "answer": ""}, self._config)
        return self._graph.get_state(self._config).values.get("v", Missing)


class LangGraphSqlite(LangGraph):
    def _saver(self, place: str) -> Any:
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(sqlite3.connect(place, check_same_thread=False, timeout=60))
        saver.setup()
        return saver


class LangGraphPostgres(LangGraph):
    def _saver(self, place: str) -> Any:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg import Connection
        from psycopg.rows import dict_row

        connection = Connection.connect(place, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        return PostgresSaver(connection)

    @staticmethod
    def prepare(place: str) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(place) as saver:
            saver.setup()


class Adk(Loop):
    """Google ADK: the session is read before each turn, as its runner does."""

    async def _open(self) -> None:
        from google.adk.events import Event
        from google.adk.sessions import DatabaseSessionService
        from google.genai import types

        self._event, self._types = Event, types
        self._service = DatabaseSessionService(self._place)
        try:
            await self._service.create_session(app_name="kit", user_id="u", session_id=self._name)
        except Exception:  # noqa: BLE001 - another process made it
            await self._read()

    async def _read(self) -> Any:
        return await self._service.get_session(app_name="kit", user_id="u", session_id=self._name)

    def _made(self, author: str, text: str, **fields: Any) -> Any:
        content = self._types.Content(role=author, parts=[self._types.Part(text=text)])
        return self._event(author=author, invocation_id="i", content=content, **fields)

    async def _add(self, *events: Any) -> None:
        session = await self._read()
        for event in events:
            await self._service.append_event(session, event)

    def turn(self, question: str, answer: str) -> None:
        self._do(self._add(self._made("user", question), self._made("model", answer)))

    def once(self, key: str, text: str) -> None:
        self._do(self._add(self._made("user", text, id=key)))

    def texts(self) -> list[str]:
        return [event.content.parts[0].text for event in self._do(self._read()).events if event.content]

    def put_value(self, value: Any) -> Any:
        self._do(self._add(self._made("user", "x", custom_metadata={"v": value})))
        return (self._do(self._read()).events[-1].custom_metadata or {}).get("v", Missing)


class Missing:
    """Nothing came back."""


SUBJECTS: dict[str, type[Subject]] = {
    "segue_sqlite": Segue,
    "segue_postgres": Segue,
    "agents_sqlite": AgentsSqlite,
    "agents_sqlalchemy": AgentsSqlalchemy,
    "langgraph_sqlite": LangGraphSqlite,
    "langgraph_postgres": LangGraphPostgres,
    "adk_sqlite": Adk,
    "adk_postgres": Adk,
}
