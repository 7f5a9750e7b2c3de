"""SegueSaver keeps LangGraph's contract, and what LangGraph does not promise: no turn is lost without a word."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
import uuid
from unittest import mock

import pytest

import segue
import stores

pytest.importorskip("langgraph")

import langgraph.checkpoint.base.id as lg_ids
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.types import Command, interrupt

import langgraph_lab as lab
from langgraph_lab import at, chat, id_of, put, say, texts
from segue.adapters.langgraph import SegueSaver, ThreadMoved

STORES = ["memory", *stores.SHARED]


@pytest.fixture(params=STORES)
def db(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db


@pytest.fixture
def saver(db):
    return SegueSaver(db.scope(user="lin"))


@pytest.fixture
def fast():
    with segue.open("memory:") as db:
        yield SegueSaver(db.scope(user="lin"))


# The official suite


@pytest.mark.parametrize(
    ("capability", "clauses"),
    [
        ("put", 17),
        ("put_writes", 10),
        ("get_tuple", 10),
        ("list", 16),
        ("delete_thread", 5),
        ("delete_for_runs", 7),
        ("copy_thread", 8),
        ("prune", 8),
    ],
)
def test_the_official_suite_passes(db, capability, clauses):
    conformance = pytest.importorskip("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="segue")
    async def make():
        yield SegueSaver(db.scope(user=uuid.uuid4().hex))

    report = asyncio.run(conformance.validate(make, capabilities={capability}))
    result = report.to_dict()["results"][capability]
    assert result["passed"], result["failures"]
    assert result["tests_passed"] == clauses


# The head


def test_the_head_is_what_was_accepted_last_and_no_clock(saver):
    g = chat(saver)
    say(g, "one")
    behind = time.time_ns() - 5_000_000_000
    with mock.patch.object(lg_ids.time, "time_ns", lambda: behind):
        lg_ids._last_v6_timestamp = None  # another machine has its own
        say(g, "two")
    lg_ids._last_v6_timestamp = None
    assert texts(g) == ["one", "re:one", "two", "re:two"]
    assert say(g, "three")[-2:] == ["three", "re:three"]
    assert len(texts(g)) == 6


def test_of_two_runs_at_once_the_later_is_told_and_nothing_is_lost(saver):
    inside, go = threading.Event(), threading.Event()

    def hold(state):
        if state["messages"][-1].content == "slow":
            inside.set()
            assert go.wait(30)

    g, errors = chat(saver, hold), []
    say(g, "hello")

    def slow():
        try:
            say(g, "slow")
        except ThreadMoved as error:
            errors.append(error)

    thread = threading.Thread(target=slow)
    thread.start()
    assert inside.wait(30)
    say(g, "fast")
    go.set()
    thread.join()
    assert len(errors) == 1
    assert errors[0].thread == "t"
    assert texts(g)[-2:] == ["fast", "re:fast"]


def test_two_runs_that_begin_a_thread_at_once_leave_one(fast):
    inside, go = threading.Event(), threading.Event()
    g, seen = chat(fast), []
    real = fast.put

    def slow_put(config, *rest):
        if not seen:
            seen.append(1)
            inside.set()
            assert go.wait(30)
        return real(config, *rest)

    slow, refused = copy.copy(fast), []
    slow.put = slow_put

    def begin():
        try:
            say(chat(slow), "slow")
        except ThreadMoved:
            refused.append(1)

    thread = threading.Thread(target=begin)
    thread.start()
    assert inside.wait(30)
    say(g, "fast")
    go.set()
    thread.join()
    assert refused == [1]
    assert texts(g) == ["fast", "re:fast"]


def test_update_state_of_a_head_that_moved_is_told(fast):
    g = chat(fast)
    say(g, "one")
    real, once = fast.get_tuple, []

    def meanwhile(config):
        found = real(config)
        if not once:
            once.append(1)
            say(chat(fast), "two")
        return found

    slow = copy.copy(fast)
    slow.get_tuple = meanwhile
    with pytest.raises(ThreadMoved):
        chat(slow).update_state(at(), {"messages": [HumanMessage("late")]})
    assert texts(g)[-1] == "re:two"


def test_a_named_checkpoint_begins_a_branch_which_becomes_the_head(saver):
    g = chat(saver)
    say(g, "one")
    base = g.get_state(at()).config
    say(g, "two")
    left = g.update_state(base, {"messages": [HumanMessage("L")]})
    right = g.update_state(base, {"messages": [HumanMessage("R")]})
    assert [m.content for m in g.get_state(left).values["messages"]] == ["one", "re:one", "L"]
    assert [m.content for m in g.get_state(right).values["messages"]] == ["one", "re:one", "R"]
    assert texts(g) == ["one", "re:one", "R"]
    assert say(g, "on")[-2:] == ["on", "re:on"]


def test_a_replay_from_an_old_checkpoint_runs_again_and_goes_on(saver):
    g = chat(saver)
    say(g, "one")
    say(g, "two")
    before = next(s for s in g.get_state_history(at()) if s.next == ("n",) and len(s.values["messages"]) == 3)
    out = g.invoke(None, before.config)
    assert [m.content for m in out["messages"]] == ["one", "re:one", "two", "re:two"]
    assert say(g, "three")[-1] == "re:three"


def test_a_config_that_went_through_json_names_the_same_checkpoint(fast):
    g = chat(fast)
    say(g, "one")
    say(g, "two")
    old = [s for s in g.get_state_history(at())][-1].config
    again = json.loads(json.dumps(old))
    assert again == old
    assert g.get_state(again).config["configurable"]["checkpoint_id"] == old["configurable"]["checkpoint_id"]


def test_an_overtaken_run_goes_on_in_a_fork_where_that_is_asked_for(db):
    saver = SegueSaver(db.scope(user="forks"), overtaken="fork")
    inside, go = threading.Event(), threading.Event()

    def hold(state):
        if state["messages"][-1].content == "slow":
            inside.set()
            assert go.wait(30)

    g, out = chat(saver, hold), []
    say(g, "hello")
    thread = threading.Thread(target=lambda: out.append(say(g, "slow")))
    thread.start()
    assert inside.wait(30)
    say(g, "fast")
    go.set()
    thread.join()
    ((thread_id, fork),) = saver.forks
    assert thread_id == "t"
    assert texts(g)[-1] == "re:fast"
    assert texts(g, fork) == out[0] == ["hello", "re:hello", "slow", "re:slow"]


# Pending writes


def test_pending_writes_come_in_the_order_of_a_step(saver):
    id = put(saver)
    tasks = [("b", "~1"), ("a", "~2"), ("c", "~0"), ("d", "~1")]
    for task, path in tasks:
        saver.put_writes(at("t", "", id), [("x", f"{task}{n}") for n in range(12)], task, path)
    want = [(t, f"{t}{n}") for t, p in sorted(tasks, key=lambda one: one[1]) for n in range(12)]
    assert [(w[0], w[2]) for w in saver.get_tuple(at("t", "")).pending_writes] == want


def test_writes_may_come_before_their_checkpoint(saver):
    id = str(lg_ids.uuid6(clock_seq=-1))
    saver.put_writes(at("t", "", id), [("x", 1)], "task")
    assert saver.get_tuple(at("t", "")) is None
    put(saver, id=id)
    assert saver.get_tuple(at("t", "")).pending_writes == [("task", "x", 1)]


def test_of_langgraphs_own_writes_the_last_holds_of_others_the_first(saver):
    id = put(saver)
    saver.put_writes(at("t", "", id), [(RESUME, [1]), ("x", 9)], "task")
    saver.put_writes(at("t", "", id), [(RESUME, [1, 2]), ("x", 10)], "task")
    assert {w[1]: w[2] for w in saver.get_tuple(at("t", "")).pending_writes} == {RESUME: [1, 2], "x": 9}


def test_writes_of_branches_do_not_mix(fast):
    g = lab.graph(lab.Log, fast, lambda state: {"log": ["n"]})
    g.invoke({"log": ["root"]}, at())
    root = [s for s in g.get_state_history(at())][-1].config  # langgraphjs#2737
    a = g.update_state(root, {"log": ["A"]})
    b = g.update_state(root, {"log": ["B"]})
    assert "B" not in g.get_state(a).values["log"]
    assert "A" not in g.get_state(b).values["log"]


def test_an_error_of_a_node_is_kept_as_its_text(fast):
    def fail(state):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        lab.graph(lab.Log, fast, fail).invoke({"log": ["a"]}, at())
    writes = fast.get_tuple(at()).pending_writes
    assert [w[2] for w in writes if w[1] == ERROR] == ["RuntimeError('no')"]


def test_an_interrupt_is_resumed_by_another_instance(db):
    def ask(state):
        return {"log": [interrupt({"q": "ok?"})]}

    one, two = SegueSaver(db.scope()), SegueSaver(db.scope())
    out = lab.graph(lab.Log, one, ask).invoke({"log": ["in"]}, at())
    assert out["__interrupt__"][0].value == {"q": "ok?"}
    assert INTERRUPT in [w[1] for w in two.get_tuple(at()).pending_writes]
    assert lab.graph(lab.Log, two, ask).invoke(Command(resume="yes"), at())["log"] == ["in", "yes"]


# list


def test_a_list_of_all_threads_is_newest_first_with_before_and_limit(saver):
    where = [("t", ""), ("u", ""), ("t", "child:1"), ("a", ""), ("u", "")]
    ids = [put(saver, thread, ns, tag=f"x{n % 2}") for n, (thread, ns) in enumerate(where)]
    assert [id_of(one) for one in saver.list(None)] == ids[::-1]
    assert [id_of(one) for one in saver.list(None, limit=2)] == ids[:-3:-1]
    assert [id_of(one) for one in saver.list(None, filter={"tag": "x1"})] == [ids[3], ids[1]]
    assert [id_of(one) for one in saver.list(None, before=at("t", "", ids[2]))] == [ids[1], ids[0]]
    assert [id_of(one) for one in saver.list(at("t"))] == [ids[2], ids[0]]
    assert [id_of(one) for one in saver.list(at("t", ""))] == [ids[0]]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"a.b": "dot"}, True),
        ({"obj.x": 1}, False),
        ({"$": 1}, False),
        ({"x') OR 1=1--": 1}, False),
        ({"my key": 1}, True),
        ({"my key": 1.0}, True),
        ({"my key": True}, False),
        ({"yes": True}, True),
        ({"yes": 1}, False),
        ({"obj": {"y": 2, "x": 1}}, True),
        ({"obj": {"x": 1}}, False),
        ({"list": [1, 2]}, True),
        ({"list": [1]}, False),
        ({"none": None}, True),
        ({"missing": None}, False),
        ({}, True),
    ],
)
def test_a_filter_means_equal_fields_and_keys_are_only_keys(fast, wanted, found):
    meta = {"a.b": "dot", "my key": 1, "yes": True, "obj": {"x": 1, "y": 2}, "list": [1, 2], "none": None}
    put(fast, **meta)
    assert len(list(fast.list(at("t"), filter=wanted))) == found
    assert len(list(fast.list(None, filter=wanted))) == found


def test_a_reader_that_pauses_in_a_list_blocks_nobody(saver):
    for _ in range(5):
        put(saver)
    found = saver.list(at("t", ""))
    next(found)
    put(saver)
    put(saver, "other")
    assert saver.get_tuple(at("t")) is not None
    assert len(list(found)) == 4


def test_a_subgraphs_checkpoint_of_a_parents_step_is_not_before_it(fast):
    """LangGraph asks for a subgraph's state before a checkpoint of its parent, which may be stored later."""
    old = put(fast)
    ids = [str(lg_ids.uuid6(clock_seq=-1)) for _ in range(2)]
    put(fast, ns="sub", id=ids[0], parents={"": old})
    bound = str(lg_ids.uuid6(clock_seq=-1))
    put(fast, ns="sub", parent=ids[0], id=ids[1], parents={"": bound})
    put(fast, id=bound, parent=old)
    assert [id_of(one) for one in fast.list(at("t", "sub"), before=at("t", None, bound), limit=1)] == [ids[0]]


# Threads


@pytest.mark.parametrize(
    "thread", ["a\x00b", "x" * 5_000, "", "~a", "langgraph:", "中文", "' OR 1=1", "a/../b", "\ud83d", " ", "%", "{}"]
)
def test_a_thread_may_have_any_name(fast, thread):
    put(fast, thread, values={"k": thread})
    for other in ["a", "x" * 4_999, "ab", "a\x00", "~", "中", "\ud83e"]:
        assert fast.get_tuple(at(other)) is None
    found = fast.get_tuple(at(thread))
    assert found.checkpoint["channel_values"] == {"k": thread}
    assert found.config["configurable"]["thread_id"] == thread
    assert [name for name, _ in fast.threads()] == [thread]


def test_ids_that_langgraph_makes_a_str_are_one_thread(fast):
    say(chat(fast), "hello", 7)
    assert fast.get_tuple(at(7)) is not None
    assert fast.get_tuple(at("7")) is not None
    fast.delete_thread(7)
    assert fast.get_tuple(at("7")) is None


def test_a_config_without_a_thread_is_refused(fast):
    with pytest.raises(segue.Invalid, match="thread_id"):
        fast.get_tuple({"configurable": {}})


def test_no_thread_of_another_owner_is_reached(db):
    mine, other = SegueSaver(db.scope(user="lin")), SegueSaver(db.scope(user="mia"))
    say(chat(mine), "secret")
    assert other.get_tuple(at()) is None
    assert list(other.list(None)) == []
    other.delete_thread("t")
    assert texts(chat(mine)) == ["secret", "re:secret"]


def test_a_run_that_outlives_its_thread_does_not_bring_it_back(db):
    """langgraph#7206."""
    one, two = SegueSaver(db.scope()), SegueSaver(db.scope())
    g = chat(one, lambda state: two.delete_thread("t") if state["messages"][-1].content == "last" else None)
    say(g, "first")
    with pytest.raises(ThreadMoved):
        say(g, "last")
    assert two.get_tuple(at()) is None
    assert list(two.list(None)) == []
    assert db.scope().list(unlisted=True).sessions == ()
    assert say(g, "anew") == ["anew", "re:anew"]


def test_a_run_that_outlives_the_thread_it_began_does_not_bring_it_back(db):
    one, two = SegueSaver(db.scope()), SegueSaver(db.scope())
    with pytest.raises(ThreadMoved):
        say(chat(one, lambda state: two.delete_thread("t")), "first")
    assert db.scope().list(unlisted=True).sessions == ()


def test_sync_and_async_are_one_from_any_loop(db):
    """langgraph#6693."""
    saver = SegueSaver(db.scope())
    g = chat(saver)

    async def turn(text):
        out = await g.ainvoke({"messages": [HumanMessage(text)]}, at())
        return [m.content for m in out["messages"]]

    asyncio.run(turn("one"))
    say(g, "two")
    assert asyncio.run(turn("three"))[::2] == ["one", "two", "three"]

    async def listed():
        return [id_of(one) async for one in saver.alist(at(), limit=25)]

    assert asyncio.run(listed()) == [id_of(one) for one in saver.list(at())]


def test_a_saver_on_the_thread_of_a_running_loop_works(fast):
    """langgraph#7857: the official one hangs."""

    async def on_the_loop():
        put(fast)
        return fast.get_tuple(at())

    assert asyncio.run(asyncio.wait_for(on_the_loop(), 10)) is not None


def test_a_shallow_copy_shares_all(saver):
    twin = copy.copy(saver)
    put(twin, values={"k": 1})
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"k": 1}
    assert saver.with_allowlist([("m", "C")]).get_tuple(at()) is not None


def test_a_checkpoint_put_twice_is_stored_once(saver):
    id = put(saver, values={"k": [1, 2, {"x": "y" * 200}]})
    head = saver.session("t").refresh().head
    found = saver.get_tuple(at("t", "", id))
    saver.put(at("t", ""), found.checkpoint, found.metadata, {})
    assert saver.session("t").refresh().head == head


def test_a_checkpoint_put_again_does_not_become_the_head_by_that(saver):
    first = put(saver, values={"k": 1})
    second = put(saver, parent=first, values={"k": 2})
    put(saver, id=first, values={"k": 3})
    assert id_of(saver.get_tuple(at())) == second
    assert saver.get_tuple(at("t", "", first)).checkpoint["channel_values"] == {"k": 3}


def test_a_run_of_the_graph_that_failed_can_be_gone_on_with(fast):
    calls = []

    def flaky(state):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("once")

    g = chat(fast, flaky)
    with pytest.raises(RuntimeError):
        say(g, "one")
    assert [m.content for m in g.invoke(None, at())["messages"]] == ["one", "re:one"]


def test_old_checkpoints_get_what_was_sent_from_their_parents_writes(fast):
    """Formats before 4 keep it there."""
    parent = put(fast)
    fast.put_writes(at("t", "", parent), [("__pregel_tasks", "sent"), ("x", 1)], "task")
    fast.put(
        at("t", "", parent),
        {
            "v": 3, "id": str(lg_ids.uuid6(clock_seq=-1)), "ts": "", "channel_values": {},
            "channel_versions": {"x": "0000000002.a"}, "versions_seen": {}, "updated_channels": None,
        },
        dict(lab.META),
        {},
    )  # fmt: skip
    found = fast.get_tuple(at()).checkpoint
    assert found["channel_values"] == {"__pregel_tasks": ["sent"]}
    assert found["channel_versions"]["__pregel_tasks"] == "0000000002.a"


def test_messages_come_back_with_all_they_had(fast):
    messages = [
        HumanMessage([{"type": "text", "text": "hi"}], id="1", name="lin", custom="x"),
        AIMessage(
            "",
            id="2",
            tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            response_metadata={"model": "m"},
        ),
    ]
    put(fast, values={"messages": messages})
    back = fast.get_tuple(at()).checkpoint["channel_values"]["messages"]
    assert back == messages
    assert [m.model_dump() for m in back] == [m.model_dump() for m in messages]
