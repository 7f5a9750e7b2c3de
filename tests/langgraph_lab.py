"""Graphs, savers and places for the tests of the LangGraph adapter."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

META: dict[str, Any] = {"source": "loop", "step": 0, "parents": {}}


class Log(TypedDict):
    log: Annotated[list, operator.add]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Any_(TypedDict):
    v: Any


def graph(schema, saver, node):
    builder = StateGraph(schema)
    builder.add_node("n", node)
    builder.add_edge(START, "n")
    builder.add_edge("n", END)
    return builder.compile(checkpointer=saver)


def chat(saver, before_answer=None):
    def bot(state):
        if before_answer is not None:
            before_answer(state)
        return {"messages": [AIMessage("re:" + str(state["messages"][-1].content))]}

    return graph(Chat, saver, bot)


def say(graph, text, thread="t", config=None):
    # "sync": a step's checkpoint is stored before its tasks begin, so that a test knows who is first.
    out = graph.invoke({"messages": [HumanMessage(text)]}, config or at(thread), durability="sync")
    return [m.content for m in out["messages"]]


def texts(graph, thread="t"):
    return [m.content for m in graph.get_state(at(thread)).values.get("messages", [])]


def at(thread="t", ns=None, id=None, **metadata):
    conf = {"thread_id": thread}
    if ns is not None:
        conf["checkpoint_ns"] = ns
    if id is not None:
        conf["checkpoint_id"] = id
    return {"configurable": conf, **({"metadata": metadata} if metadata else {})}


def put(saver, thread="t", ns="", parent=None, values=None, id=None, **metadata):
    """Put a checkpoint by hand; its id."""
    versions = {k: saver.get_next_version(None, None) for k in values or {}}
    id = id or str(uuid6(clock_seq=-1))
    checkpoint = {
        "v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", "channel_values": values or {},
        "channel_versions": versions, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    saver.put(at(thread, ns, parent), checkpoint, {**META, **metadata}, versions)
    return id


def id_of(found):
    return found.config["configurable"]["checkpoint_id"]
