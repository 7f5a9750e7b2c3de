"""What Segue adds to LangGraph: briefing, guarded tools, lifetimes, erasure, the command line, migration."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import segue
import stores
from segue.guard import writes
from segue.world import Sources

pytest.importorskip("langgraph")

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

import langgraph_lab as lab
from langgraph_lab import at, chat, say, texts
from segue.adapters.langgraph import SegueSaver, migrate


@pytest.fixture
def db():
    with segue.open("memory:") as db:
        yield db


@pytest.fixture
def saver(db):
    return SegueSaver(db.scope(user="lin"), title="Sales", tags=["chat"], idle=timedelta(days=30))


# Sessions


def test_a_thread_is_a_session_with_a_title_tags_and_lifetime(saver, db):
    say(chat(saver), "hello")
    (info,) = db.scope(user="lin").list().sessions
    assert (info.title, info.tags, info.idle) == ("Sales", ("chat",), timedelta(days=30))
    assert saver.session("t").id == info.id
    saver.session("t").rename("August")
    assert [(name, one.title) for name, one in saver.threads()] == [("t", "August")]


def test_an_expired_thread_is_put_away_and_erased_by_the_sweep(saver, db):
    """langgraph-redis#137: all of it, or nothing."""
    g = chat(saver)
    say(g, "hello")
    db.engine.store.shift_clock(31 * 86_400 * 1_000_000)
    assert len(db.sweep().archived) == 1
    with pytest.raises(segue.Archived):
        say(g, "again")
    assert texts(g) == ["hello", "re:hello"]
    db.engine.store.shift_clock(31 * 86_400 * 1_000_000)
    assert len(db.sweep().erased) == 1
    assert saver.get_tuple(at()) is None
    assert db.scope(user="lin").list(unlisted=True).sessions == ()


def test_what_a_cancelled_run_stored_expires_like_all_else(saver):
    """langgraph-redis#190."""

    async def cancelled():
        inside = asyncio.Event()

        async def wait(state):
            inside.set()
            await asyncio.sleep(60)

        g = lab.graph(lab.Log, saver, wait)
        run = asyncio.create_task(g.ainvoke({"log": ["a"]}, at(), durability="sync"))
        await inside.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancelled())
    assert [info.idle for _, info in saver.threads()] == [timedelta(days=30)]


def test_an_erased_session_is_a_deleted_thread(saver):
    g = chat(saver)
    say(g, "hello")
    saver.session("t").erase()
    assert saver.get_tuple(at()) is None
    with pytest.raises(segue.NotFound):
        saver.session("t")


def test_checkpoints_are_no_messages_of_the_session(saver):
    say(chat(saver), "hello")
    assert saver.session("t").messages() == []


def test_segue_show_tells_the_messages(tmp_path, capsys):
    from segue.cli import main

    with segue.open(f"sqlite:///{tmp_path}/a.db") as db:
        saver = SegueSaver(db.scope())
        say(chat(saver), "Why did sales fall?")
        id = saver.session("t").id
    main(["--store", f"sqlite:///{tmp_path}/a.db", "show", id])
    out = capsys.readouterr().out
    assert "Why did sales fall?" in out
    assert "re:Why did sales fall?" in out
    assert "user" in out
    assert "model" in out


# Coming back


class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def agent(saver, answers, tools=()):
    langchain = pytest.importorskip("langchain.agents")
    from segue.adapters.langgraph.middleware import SegueMiddleware

    model = Model(messages=iter(answers))
    return langchain.create_agent(model, list(tools), middleware=[SegueMiddleware()], checkpointer=saver)


def test_the_middleware_tells_once_what_happened_meanwhile(saver, db):
    g = agent(saver, [AIMessage("one"), AIMessage("two"), AIMessage("three")])
    how = segue.ResumeOptions()
    with saver.turn("t", resume=how) as turn:
        assert turn.briefing.is_quiet
        g.invoke({"messages": [HumanMessage("a")]}, turn.config)
    db.engine.store.shift_clock(3 * 86_400 * 1_000_000)
    with saver.turn("t", resume=how) as turn:
        g.invoke({"messages": [HumanMessage("b")]}, turn.config)
        messages = g.invoke({"messages": [HumanMessage("c")]}, turn.config)["messages"]
    notes = [m for m in messages if m.name == "segue"]
    assert len(notes) == 1
    assert "3 days" in notes[0].content
    assert [m.content for m in messages if m.name != "segue"] == ["a", "one", "b", "two", "c", "three"]


def test_a_guarded_write_on_ground_that_moved_is_told_to_the_model(saver):
    done, world = [], {"version": "1"}

    @tool
    @writes("wiki:page")
    def publish(text: str) -> str:
        """Publish."""
        done.append(text)
        return "published"

    call = {"name": "publish", "args": {"text": "x"}, "id": "c1"}
    g = agent(saver, [AIMessage("", tool_calls=[call]), AIMessage("I must read it first.")], [publish])
    sources = Sources()
    sources.register("wiki:", lambda source: world["version"])
    with saver.turn("t", resume=segue.ResumeOptions(sources=sources)) as turn:
        messages = g.invoke({"messages": [HumanMessage("publish")]}, turn.config)["messages"]
    (refused,) = [m for m in messages if isinstance(m, ToolMessage)]
    assert refused.status == "error"
    assert "never read" in refused.content
    assert done == []


# Interrupts, subgraphs


def test_time_travel_into_a_subgraph_goes_on_from_there(saver):
    """langgraph#8458."""
    runs = []

    def inner(state):
        runs.append("inner")
        return {"log": [interrupt("ok?")]}

    sub = lab.graph(lab.Log, True, inner)

    def outer_first(state):
        runs.append("outer")
        return {"log": ["first"]}

    from langgraph.graph import END, START, StateGraph

    builder = StateGraph(lab.Log)
    builder.add_node("first", outer_first)
    builder.add_node("sub", sub)
    builder.add_edge(START, "first")
    builder.add_edge("first", "sub")
    builder.add_edge("sub", END)
    g = builder.compile(checkpointer=saver)
    g.invoke({"log": ["in"]}, at())
    out = g.invoke(Command(resume="yes"), at())
    assert out["log"][-1] == "yes"
    stopped = next(s for s in g.get_state_history(at()) if s.next == ("sub",))
    runs.clear()
    g.invoke(None, stopped.config)
    out = g.invoke(Command(resume="no"), at())
    assert out["log"][-1] == "no"
    assert "outer" not in runs


def test_the_history_of_a_subgraph_with_a_checkpointer_of_its_own_goes_on(saver):
    sub = lab.graph(lab.Log, True, lambda state: {"log": [f"sub{len(state['log'])}"]})

    def call(state):
        return {"log": sub.invoke({"log": ["x"]})["log"][-1:]}

    g = lab.graph(lab.Log, saver, call)
    for _ in range(3):
        out = g.invoke({"log": ["in"]}, at())
    assert [one for one in out["log"] if one.startswith("sub")] == ["sub1", "sub3", "sub5"]


# Migration


def _source(kind, tmp_path, request):
    if kind == "memory":
        return InMemorySaver()
    module = pytest.importorskip("langgraph.checkpoint.sqlite")
    import sqlite3

    connection = sqlite3.connect(tmp_path / "old.db", check_same_thread=False)
    request.addfinalizer(connection.close)
    return module.SqliteSaver(connection)


@pytest.mark.filterwarnings("ignore::Warning:langgraph.*")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_threads_of_another_saver_are_taken_over_whole(kind, tmp_path, request, saver):
    old = _source(kind, tmp_path, request)
    _migrates(old, saver)


@pytest.mark.server
def test_threads_of_the_postgres_saver_are_taken_over_whole(saver):
    postgres = pytest.importorskip("langgraph.checkpoint.postgres")
    with stores.url_of("postgres", None) as url, postgres.PostgresSaver.from_conn_string(url) as old:
        old.setup()
        _migrates(old, saver)


def _migrates(old, saver):
    g = chat(old)
    for n in range(3):
        say(g, f"m{n}")
    branch = [*g.get_state_history(at())][4].config
    g.update_state(branch, {"messages": [HumanMessage("branch")]})
    want = texts(g)
    ask = lab.graph(lab.Log, old, lambda state: {"log": [interrupt("ok?")]})
    ask.invoke({"log": ["in"]}, at("waits"))
    done = migrate(old, saver)
    assert (done.threads, done.skipped) == (2, ())
    assert done.checkpoints == len(list(old.list(None)))
    assert texts(chat(saver)) == want
    for one in old.list(at()):
        mine = saver.get_tuple(one.config)
        assert mine.checkpoint["channel_values"] == one.checkpoint["channel_values"]
        assert mine.metadata == one.metadata
        assert mine.parent_config == one.parent_config
    assert say(chat(saver), "on")[-1] == "re:on"
    out = lab.graph(lab.Log, saver, lambda state: {"log": [interrupt("ok?")]}).invoke(Command(resume="y"), at("waits"))
    assert out["log"] == ["in", "y"]
    assert set(migrate(old, saver).skipped) == {"t", "waits"}


# The example


def test_the_example_runs(monkeypatch, capsys):
    from examples import langgraph_agent

    monkeypatch.setenv("SEGUE_STORE", "memory:")
    langgraph_agent.main()
    out = capsys.readouterr().out.splitlines()
    assert out[2:] == [
        "on the branch: Published.",
        "on the thread: Not published.",
        "mia sees: {}",
        "lin has: report, report, published",
        "after erasing: report, published",
    ]
