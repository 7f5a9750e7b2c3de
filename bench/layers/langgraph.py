"""LangGraph: a graph of one node whose answer is known beforehand; the saver keeps its state."""

from __future__ import annotations

from typing import Any

from bench.text import Turn

from . import Layer, Missing


class LangGraph(Layer):
    blocking = "threads"

    async def open(self) -> None:
        from typing import Annotated, TypedDict

        from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
        from langchain_core.runnables import RunnableConfig
        from langgraph.graph import END, START, StateGraph
        from langgraph.graph.message import add_messages

        def node(_: Any, config: RunnableConfig) -> Any:
            # Keys with two underscores reach the node and stay out of what is stored.
            return {"messages": config["configurable"]["__answer"]}

        graph = StateGraph(TypedDict("State", {"messages": Annotated[list, add_messages], "v": Any}, total=False))
        graph.add_node("model", node)
        graph.add_edge(START, "model")
        graph.add_edge("model", END)
        self._graph = graph.compile(checkpointer=self._saver())
        self._human, self._ai, self._tool = HumanMessage, AIMessage, ToolMessage

    def _saver(self) -> Any:
        raise NotImplementedError

    async def begin(self, name: str) -> Any:
        return {"thread_id": name}

    def made(self, turn: Turn) -> list[Any]:
        question, answer = self._human(turn.question), self._ai(turn.answer)
        if not turn.call:
            return [question, answer]
        call = {"id": turn.call, "name": turn.name, "args": turn.arguments}
        return [question, self._ai("", tool_calls=[call]), self._tool(turn.result, tool_call_id=turn.call), answer]

    async def add(self, session: Any, items: list[Any]) -> None:
        self._graph.update_state({"configurable": session}, {"messages": items}, as_node="model")

    async def seed(self, session: Any, turns: Any) -> None:
        await self.add(session, [item for turn in turns for item in self.made(turn)])

    async def turn(self, session: Any, items: list[Any]) -> None:
        self._invoke(session, {"messages": items[:1]}, items[1:])

    def _invoke(self, session: Any, state: dict[str, Any], answer: list[Any]) -> None:
        self._graph.invoke(state, {"configurable": {**session, "__answer": answer}})

    async def load(self, session: Any) -> list[Any]:
        found: list[Any] = self._state(session).get("messages", [])
        return found

    def _state(self, session: Any) -> dict[str, Any]:
        values: dict[str, Any] = self._graph.get_state({"configurable": session}).values
        return values

    async def fork(self, session: Any, name: str) -> None:
        values = self._state(session)
        self._graph.update_state({"configurable": {"thread_id": name}}, values, as_node="model")

    def text(self, message: Any) -> str:
        return str(message.content)

    async def once(self, session: Any, key: str, text: str) -> None:
        self._invoke(session, {"messages": [self._human(text, id=key)]}, [])

    async def put_value(self, session: Any, value: Any) -> Any:
        self._invoke(session, {"v": value}, [])
        return self._state(session).get("v", Missing)


class Sqlite(LangGraph):
    def _saver(self) -> Any:
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(sqlite3.connect(self.place, check_same_thread=False, timeout=60))
        saver.setup()
        return saver


class Postgres(LangGraph):
    async def open(self) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.errors import UniqueViolation

        with PostgresSaver.from_conn_string(self.place) as saver:
            try:
                saver.setup()
            except UniqueViolation:  # another process made the tables in this moment
                saver.setup()
        await super().open()

    def _saver(self) -> Any:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg import Connection
        from psycopg.rows import dict_row

        connection = Connection.connect(self.place, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        return PostgresSaver(connection)
