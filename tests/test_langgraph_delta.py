"""DeltaChannels, and what prune, copy and delete keep of them and of everything else."""

from __future__ import annotations

import threading
from typing import Annotated, TypedDict

import pytest

import segue
import stores

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import langgraph_lab as lab
from langgraph_lab import at, chat, id_of, put, say, texts
from segue.adapters.langgraph import SegueSaver, ThreadMoved

STORES = ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def db(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db


@pytest.fixture
def saver(db):
    return SegueSaver(db.scope(user="lin"))


def delta(saver, frequency, node=lambda state: {"log": ["n"]}):
    def reduce(state, writes):
        return [*(state or []), *(one for write in writes for one in write)]

    schema = TypedDict("schema", {"log": Annotated[list, DeltaChannel(reduce, snapshot_frequency=frequency)]})  # noqa: UP013
    return lab.graph(schema, saver, node)


def grown(saver, frequency, turns=12, thread="d"):
    g = delta(saver, frequency)
    for n in range(turns):
        g.invoke({"log": [str(n)]}, at(thread, run_id=f"run-{n}"))
    return g


def log(g, thread="d"):
    return g.get_state(at(thread)).values.get("log", [])


def full(turns):
    return [one for n in range(turns) for one in (str(n), "n")]


def bodies(saver, thread):
    return [entry for entry in saver.session(thread).read() if not entry.is_hollow]


# The clauses of a DeltaChannel's history


def chain(saver, *steps):
    """A chain of checkpoints; each step: the snapshot it holds or None, and the writes it made."""
    ids, parent = [], None
    for n, (snapshot, writes) in enumerate(steps):
        values = {} if snapshot is None else {"ch": _DeltaSnapshot(snapshot)}
        parent = put(saver, "h", parent=parent, values=values)
        for k, value in enumerate(writes):
            saver.put_writes(at("h", "", parent), [("ch", value)], f"task-{n}-{k}", f"~{k}")
        ids.append(parent)
    return ids


def history(saver, id=None, channels=("ch",)):
    found = saver.get_delta_channel_history(config=at("h", "", id), channels=channels)
    return {channel: ([w[2] for w in one["writes"]], one.get("seed")) for channel, one in found.items()}


def test_the_writes_of_the_ancestors_come_oldest_first_back_to_the_seed(saver):
    chain(saver, (["old"], ["a"]), (None, ["b"]), (["seed"], ["c", "d"]), (None, ["e"]), (None, ["pending"]))
    assert history(saver) == {"ch": (["c", "d", "e"], _DeltaSnapshot(["seed"]))}


def test_without_a_seed_the_writes_go_back_to_the_root(saver):
    chain(saver, (None, ["a"]), (None, ["b"]), (None, []))
    assert history(saver) == {"ch": (["a", "b"], None)}
    assert "seed" not in saver.get_delta_channel_history(config=at("h", ""), channels=["ch"])["ch"]


def test_writes_of_the_checkpoint_itself_are_pending_and_not_in_it(saver):
    ids = chain(saver, (None, ["a"]), (None, ["b"]))
    assert history(saver, ids[1]) == {"ch": (["a"], None)}
    assert history(saver, ids[0]) == {"ch": ([], None)}


def test_other_channels_and_no_channels_are_apart(saver):
    ids = chain(saver, (None, ["a"]), (None, []))
    saver.put_writes(at("h", "", ids[0]), [("other", 1)], "z")
    assert history(saver, channels=("ch", "other", "none")) == {
        "ch": (["a"], None),
        "other": ([1], None),
        "none": ([], None),
    }
    assert saver.get_delta_channel_history(config=at("h", ""), channels=[]) == {}


def test_a_branch_has_only_what_is_on_its_path(saver):
    """langgraph#8443."""
    ids = chain(saver, (None, ["a"]), (None, ["left"]), (None, []))
    right = put(saver, "h", parent=ids[0], source="fork")
    leaf = put(saver, "h", parent=right)
    saver.put_writes(at("h", "", right), [("ch", "right")], "r")
    assert history(saver, leaf) == {"ch": (["a", "right"], None)}
    assert history(saver, ids[2]) == {"ch": (["a", "left"], None)}


def test_parallel_tasks_come_in_the_order_of_their_paths(saver):
    parent = put(saver, "h")
    for task, path in (("a", "~2"), ("z", "~0"), ("m", "~1")):
        saver.put_writes(at("h", "", parent), [("ch", task)], task, path)
    put(saver, "h", parent=parent)
    assert history(saver) == {"ch": (["z", "m", "a"], None)}


def test_an_unknown_thread_or_checkpoint_has_no_history(saver):
    assert history(saver) == {"ch": ([], None)}
    chain(saver, (None, ["a"]))
    assert history(saver, "00000000-0000-0000-0000-000000000000") == {"ch": ([], None)}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("frequency", [3, 100])
def test_a_delta_channel_reads_back_whole(saver, frequency, durability):
    g = delta(saver, frequency)
    for n in range(8):
        g.invoke({"log": [str(n)]}, at("d"), durability=durability)
    assert log(g) == full(8)


# Deleting, pruning, copying


@pytest.mark.parametrize("frequency", [3, 100])
def test_pruning_keeps_the_latest_and_what_its_delta_channels_need(saver, frequency):
    g = grown(saver, frequency)
    before = len(bodies(saver, "d"))
    saver.prune(["d"])
    assert len(list(saver.list(at("d")))) == 1
    assert log(g) == full(12)
    if frequency == 3:  # with 100 there is no snapshot: all of it is needed
        assert len(bodies(saver, "d")) < before
    assert g.invoke({"log": ["on"]}, at("d"))["log"] == [*full(12), "on", "n"]
    saver.prune(["d"])
    assert log(g) == [*full(12), "on", "n"]


def test_deleting_the_last_runs_gives_the_state_before_them(saver):
    g = grown(saver, 100, 5)
    saver.delete_for_runs(["run-3", "run-4"])
    assert log(g) == full(3)
    assert g.invoke({"log": ["on"]}, at("d"))["log"] == [*full(3), "on", "n"]


def test_deleting_a_run_in_the_middle_leaves_what_later_ones_are_made_from(saver):
    g = grown(saver, 100, 5)
    saver.delete_for_runs(["run-2"])
    assert "run-2" not in {one.metadata.get("run_id") for one in saver.list(at("d"))}
    assert log(g) == full(5)
    for one in saver.list(at("d")):
        assert saver.get_tuple(one.config) is not None


def test_a_pruned_thread_holds_no_more_than_its_last_checkpoint_needs(saver):
    g = chat(saver)
    for n in range(6):
        say(g, f"{n} {'x' * 300}")
    want = texts(g)
    lab.put(saver, "t", "", id_of(saver.get_tuple(at())), {"messages": [HumanMessage("short", id="1")]})
    saver.prune(["t"])
    assert [m.content for m in saver.get_tuple(at()).checkpoint["channel_values"]["messages"]] == ["short"]
    kept = b"".join(entry.body for entry in bodies(saver, "t"))
    assert not any(text.encode() in kept for text in want)


def test_what_was_pruned_and_is_said_again_is_stored_again(saver):
    long = "y" * 400
    first = put(saver, values={"k": long})
    put(saver, parent=first, values={"k": "other"})
    saver.prune(["t"])
    put(saver, parent=id_of(saver.get_tuple(at())), values={"k": long})
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"k": long}


def test_a_copy_is_whole_and_shares_all_content(saver):
    g = chat(saver)
    for n in range(4):
        say(g, f"{n} {'x' * 500}")
    before = len(bodies(saver, "t"))
    saver.copy_thread("t", "u")
    assert texts(g, "u") == texts(g, "t")
    assert saver.session("u").info.base == before
    ids = [id_of(one) for one in saver.list(at("t"))]
    assert [id_of(one) for one in saver.list(at("u"))] == ids
    assert all(one.config["configurable"]["thread_id"] == "u" for one in saver.list(at("u")))
    assert {name for name, _ in saver.threads()} == {"t", "u"}


@pytest.mark.parametrize("act", ["prune", "delete", "delete_for_runs"])
@pytest.mark.parametrize("kind", ["delta", "plain"])
def test_nothing_that_is_done_to_a_thread_is_done_to_its_copy(saver, kind, act):
    g = grown(saver, 100, 4) if kind == "delta" else lab.graph(lab.Log, saver, lambda state: {"log": ["n" * 200]})
    if kind == "plain":
        for n in range(4):
            g.invoke({"log": [f"{n}" * 200]}, at("d", run_id=f"run-{n}"))
    want = log(g)
    saver.copy_thread("d", "e")
    saver.copy_thread("e", "f")
    g.invoke({"log": ["more"]}, at("d"))
    saver.delete_thread("e")
    if act == "prune":
        saver.prune(["d"])
    elif act == "delete":
        saver.delete_thread("d")
    else:
        saver.prune(["d"])
        saver.delete_for_runs(["none"])
    assert log(g, "f") == want
    assert len(list(saver.list(at("f")))) == 3 * 4
    for one in saver.list(at("f")):
        assert one.checkpoint["id"]


def test_pruning_a_copy_leaves_its_source(saver):
    g = grown(saver, 100, 4)
    saver.copy_thread("d", "e")
    saver.prune(["e"])
    assert len(list(saver.list(at("e")))) == 1
    assert len(list(saver.list(at("d")))) == 12
    assert log(g, "e") == log(g, "d") == full(4)


def test_a_copy_onto_a_living_thread_is_refused(saver):
    put(saver, "a")
    put(saver, "b")
    with pytest.raises(segue.Exists):
        saver.copy_thread("a", "b")


def test_a_writer_that_shares_a_value_while_it_is_pruned_is_told_in_time(db):
    """The pruning says first what it drops, and expects the head: a stale writer looks again."""
    one, two = SegueSaver(db.scope()), SegueSaver(db.scope())
    long = "z" * 500
    first = put(one, values={"k": long})
    second = put(one, parent=first, values={"k": "short"})
    assert two.get_tuple(at()) is not None  # knows where the value is
    one.prune(["t"])
    put(two, parent=second, values={"k": long})
    assert one.get_tuple(at()).checkpoint["channel_values"] == {"k": long}


def test_an_unknown_strategy_is_refused(saver):
    with pytest.raises(segue.Invalid):
        saver.prune(["t"], strategy="keep_nothing")


def test_two_inputs_at_once_into_a_delta_channel_do_not_take_each_others_place(db):
    """LangGraph stores both under one task, on the head they share: the first would be read back as the second's."""
    saver = SegueSaver(db.scope())
    g = grown(saver, 100, 2)
    inside, go = threading.Event(), threading.Event()
    real, told = saver.put_writes, []

    class Slow(SegueSaver):
        def put_writes(self, config, writes, *rest):
            real(config, writes, *rest)
            if not inside.is_set():
                inside.set()
                assert go.wait(30)

    slow = Slow(db.scope())

    def first():
        try:
            delta(slow, 100).invoke({"log": ["slow"]}, at("d"))
        except ThreadMoved as error:
            told.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(30)
    try:
        acknowledged = g.invoke({"log": ["fast"]}, at("d"))["log"]
    except ThreadMoved:
        acknowledged = None
    go.set()
    thread.join()
    assert log(g) == (acknowledged or [*full(2), "slow", "n"])


def test_a_late_input_does_not_enter_a_delta_channel(saver):
    g = grown(saver, 100, 2)
    real, once = saver.get_tuple, []

    class Late(SegueSaver):
        def get_tuple(self, config):
            found = super().get_tuple(config)
            if not once:
                once.append(1)
                g.invoke({"log": ["meanwhile"]}, at("d"))
            return found

    late = Late(saver.scope)
    with pytest.raises(ThreadMoved):
        delta(late, 100).invoke({"log": ["late"]}, at("d"))
    assert real(at("d")) is not None
    assert log(g) == [*full(2), "meanwhile", "n"]
