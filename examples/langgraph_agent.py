"""
A LangGraph agent whose threads have owners: it asks before it publishes, goes back in time, and serves two users.

    python examples/langgraph_agent.py

No model is called: the two nodes stand in for one. The threads are in SEGUE_STORE (memory: unless told otherwise).
"""

from __future__ import annotations

import os
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import segue
from segue.adapters.langgraph import SegueSaver


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(f"About {str(state['messages'][-1].content).rstrip('?')}: orders fell by 9 %.")]}


def publish(state: State) -> dict[str, Any]:
    said = interrupt({"publish": state["messages"][-1].content})
    return {"messages": [AIMessage("Published." if said == "yes" else "Not published.")]}


def build(saver: SegueSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_node("publish", publish)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "publish")
    graph.add_edge("publish", END)
    return graph.compile(checkpointer=saver)


def main() -> None:
    with segue.open(os.environ.get("SEGUE_STORE", "memory:")) as db:
        lin = SegueSaver(db.scope(tenant="acme", user="lin"), title="August sales")
        graph = build(lin)

        # A turn: a second program that wants this thread now waits, is refused, or interrupts.
        with lin.turn("report") as turn:
            paused = graph.invoke({"messages": [HumanMessage("August in East China?")]}, turn.config)
        print("asks:", paused["__interrupt__"][0].value["publish"])

        with lin.turn("report") as turn:
            print("lin says no:", graph.invoke(Command(resume="no"), turn.config)["messages"][-1].content)

        # Time travel: back to the question, and answer it otherwise. The branch has a name of its own.
        thread = {"configurable": {"thread_id": "report"}}
        asked = next(one for one in graph.get_state_history(thread) if one.next == ("publish",))
        lin.copy_thread("report", "report, published")
        branch = {"configurable": {**asked.config["configurable"], "thread_id": "report, published"}}
        graph.invoke(None, branch)
        done = graph.invoke(Command(resume="yes"), {"configurable": {"thread_id": "report, published"}})
        print("on the branch:", done["messages"][-1].content)
        print("on the thread:", graph.get_state(thread).values["messages"][-1].content)

        # Another user has a thread of the same name, and sees nothing of this one.
        mia = SegueSaver(db.scope(tenant="acme", user="mia"))
        print("mia sees:", build(mia).get_state(thread).values)
        print("lin has:", ", ".join(sorted(name for name, _ in lin.threads())))
        lin.delete_thread("report")
        print("after erasing:", ", ".join(name for name, _ in lin.threads()))


if __name__ == "__main__":
    main()
