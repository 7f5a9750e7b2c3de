"""Values in a checkpoint come back as they were or are refused, and are never code."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import pathlib
import random
import subprocess
import sys
import textwrap
import uuid
import zoneinfo
from typing import NamedTuple

import pytest

import segue
import stores

pytest.importorskip("langgraph")

from langchain_core import messages as lc
from langchain_core.documents import Document
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, SecretStr

import langgraph_lab as lab
from langgraph_lab import at, put
from segue.adapters.langgraph import Codec, SegueSaver, Unknown

MUTATIONS = 10_000 if stores.FULL else 1_500


class Colour(enum.Enum):
    RED = "r"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Order:
    id: int
    lines: list


@dataclasses.dataclass(frozen=True)
class Frozen:
    at: dt.datetime


class Model(BaseModel):
    name: str
    inner: Order | None = None


class Loud:
    """A class of no kind that can be taken apart."""


REGISTERED = [Colour, Point, Order, Frozen, Model]
UTC = dt.UTC
VALUES = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    2**64 - 1,
    2**64,
    -(2**70),
    10**400,
    0.1,
    1e300,
    5e-324,
    math.inf,
    -math.inf,
    "",
    "a\x00b",
    "\U0001f600 \u202e e\u0301",
    "lone \ud83d surrogate",
    {"\udc00": "\ud800"},
    b"",
    b"\x00\xff",
    bytearray(b"x"),
    [],
    {},
    (),
    (1, (2, [3])),
    {1, 2},
    frozenset({"a"}),
    collections.deque([1, 2], maxlen=3),
    {1: "a", None: "b", (1, 2): "c"},
    {"$": "bytes", "v": "AA=="},
    {"$": {"$": 1}},
    [{"$": "message"}],
    {"": 1, "a.b": 2},
    1 + 2j,
    decimal.Decimal("1.10"),
    uuid.UUID(int=7),
    pathlib.PurePosixPath("/a/b"),
    dt.date(2026, 8, 1),
    dt.time(1, 2, 3, 4),
    dt.timedelta(days=-1, microseconds=5),
    dt.datetime(2026, 8, 1, 12, 0, 0, 1),
    dt.datetime(2026, 8, 1, tzinfo=UTC),
    dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
    Send("node", {"a": [1]}),
    Interrupt(value={"q": 1}, id="i"),
    Command(update={"a": 1}, goto=["x"], resume="r"),
    Overwrite([1]),
    _DeltaSnapshot([1, "a"]),
    Document("text", metadata={"page": 1}),
    Colour.RED,
    Point(1, 2),
    Order(1, [Order(2, [])]),
    Frozen(dt.datetime(2026, 1, 1, tzinfo=UTC)),
    Model(name="m", inner=Order(1, [])),
    lc.HumanMessage("hi"),
    lc.HumanMessage([{"type": "image", "data": "x"}], id="1", name="n", custom={"a": (1,)}),
    lc.AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}]),
    lc.AIMessage("a", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    lc.AIMessageChunk("a", tool_call_chunks=[{"name": "f", "args": "{", "id": "c", "index": 0}]),
    lc.ToolMessage("r", tool_call_id="c", artifact={"b": b"x"}, status="error"),
    lc.SystemMessage("s"),
    lc.ChatMessage("c", role="critic"),
    lc.RemoveMessage("1"),
]  # fmt: skip


def exact(one, other):
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, pathlib.PurePath):
        return str(one) == str(other)
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, (list, tuple)):
        return all(map(exact, one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(exact(one[key], other[key]) for key in one)
    return True


@pytest.fixture(scope="module")
def codec():
    return Codec(REGISTERED)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40].encode("ascii", "replace").decode())
def test_a_value_comes_back_as_it_was(codec, value):
    for wrapped in (value, [value], {"k": value}, (value,), {"k": {"k": [value]}}):
        assert exact(codec.decode(codec.encode(wrapped)), wrapped)
        json.loads(codec.encode(wrapped))


def test_nan_and_minus_zero_come_back(codec):
    assert math.isnan(codec.decode(codec.encode(math.nan)))
    assert math.copysign(1, codec.decode(codec.encode(-0.0))) == -1


@pytest.mark.parametrize("value", [Loud(), Loud, len, object(), SecretStr("s"), (x for x in "a"), lambda: 1])
def test_what_cannot_be_given_back_is_refused_before_anything_is_stored(value):
    with segue.open("memory:") as db:
        saver = SegueSaver(db.scope())
        put(saver, values={"k": 1})
        before = saver.session("t").refresh().head
        with pytest.raises(segue.Invalid):
            put(saver, parent=saver.get_tuple(at()).config["configurable"]["checkpoint_id"], values={"k": [value]})
        assert saver.session("t").refresh().head == before


def test_too_deep_a_value_is_refused(codec):
    deep = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(segue.Invalid, match="deep"):
        codec.encode(deep)


def test_numpy_values_come_back(codec):
    """langgraph#8705."""
    np = pytest.importorskip("numpy")
    for value in (np.float64(1.5), np.int64(7), np.bool_(True)):
        back = codec.decode(codec.encode(value))
        assert back == value
        assert type(back) is type(value)
    array = np.arange(6, dtype="float32").reshape(2, 3)
    assert (codec.decode(codec.encode(array)) == array).all()


def test_numpy_numbers_in_metadata_are_numbers_for_a_filter():
    np = pytest.importorskip("numpy")
    with segue.open("memory:") as db:
        saver = SegueSaver(db.scope())
        put(saver, score=np.float64(1.5), n=np.int64(7))
        (found,) = saver.list(at(), filter={"score": 1.5, "n": 7})
        assert type(found.metadata["n"]) is int


def test_an_unregistered_class_is_kept_as_data_and_reported(caplog):
    stored = Codec(REGISTERED).encode({"order": Order(1, [2])})
    fresh = Codec()
    found = fresh.decode(stored)["order"]
    name = f"{Order.__module__}:Order"
    assert found == Unknown(name, {"id": 1, "lines": [2]})
    assert fresh.unknown == {name}
    assert name in caplog.text
    assert Codec(REGISTERED).decode(fresh.encode(found)) == Order(1, [2])


def test_a_renamed_class_is_read_under_its_old_name():
    stored = Codec([Order]).encode(Order(1, []))
    codec = Codec()
    codec.register(Order, name=f"{Order.__module__}:Order")
    assert codec.decode(stored) == Order(1, [])


def test_a_class_that_lost_and_won_fields_is_read():
    codec = Codec()
    codec.register(Order, name="old:Order")
    tree = {"$": "object", "name": "old:Order", "v": {"id": 1, "lines": [], "gone": 1}}
    assert codec.value(tree) == Order(1, [])


@pytest.mark.parametrize("cls", [Loud, int, dict, len, "Order"])
def test_only_classes_that_can_be_taken_apart_are_registered(cls):
    with pytest.raises(segue.Invalid):
        Codec([cls])


@pytest.mark.parametrize("store", ["memory", "sqlite", "jsonl", pytest.param("postgres", marks=pytest.mark.server)])
def test_values_go_through_a_graph_and_a_store(store, tmp_path):
    """langgraph#1878: a NUL, in a value, in metadata."""
    with stores.url_of(store, tmp_path) as url, segue.open(url) as db:
        saver = SegueSaver(db.scope(), types=REGISTERED)
        g = lab.graph(lab.Any_, saver, lambda state: {})
        values = {f"k{n}": value for n, value in enumerate(VALUES) if not isinstance(value, (Command, Overwrite))}
        g.invoke({"v": values}, at("t", user="a\x00b", note="\U0001f600", odd="\ud83d"))
        assert exact(g.get_state(at()).values["v"], values | {"k37": pathlib.Path("/a/b")}) or all(
            exact(g.get_state(at()).values["v"][key], one) for key, one in values.items()
        )
        metadata = saver.get_tuple(at()).metadata
        assert (metadata["user"], metadata["note"], metadata["odd"]) == ("ab", "\U0001f600", "\ud83d")


def test_a_value_over_the_limit_of_an_entry_is_stored_in_parts():
    big = "x\u00e9" * 3_000_000
    with segue.open("memory:") as db:
        saver = SegueSaver(db.scope())
        put(saver, values={"k": big, "l": [big, "small"]})
        assert saver.get_tuple(at()).checkpoint["channel_values"] == {"k": big, "l": [big, "small"]}
        put(saver, "u", values={"m": [f"{n} {'x' * 100}" for n in range(3_000)]})
        assert len(saver.get_tuple(at("u")).checkpoint["channel_values"]["m"]) == 3_000
        saver.prune(["t"])
        assert saver.get_tuple(at()).checkpoint["channel_values"]["k"] == big


FUZZ = """
    import json, random, sys
    sys.path.insert(0, sys.argv[1])
    from test_langgraph_values import REGISTERED, VALUES, NAMES, mutated
    from segue.adapters.langgraph import Codec
    from segue.errors import Corrupt

    codec = Codec(REGISTERED)
    stored = [codec.encode(value) for value in VALUES]
    for one in stored:
        codec.decode(one)  # what is imported lazily is imported now

    seen = []
    watched = False

    def hook(event, args):
        if watched and event in NAMES:
            seen.append((event, [repr(arg)[:80] for arg in args]))

    sys.addaudithook(hook)
    rnd = random.Random(8)
    refused = 0
    for _ in range(int(sys.argv[2])):
        record = mutated(rnd, rnd.choice(stored), stored)
        watched = True
        try:
            codec.decode(record)
        except Corrupt:
            refused += 1
        finally:
            watched = False
    assert not seen, seen[:5]
    print(refused)
"""
NAMES = frozenset(
    [
        "import",
        "exec",
        "compile",
        "open",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "subprocess.Popen",
        "pickle.find_class",
        "marshal.loads",
        "socket.connect",
        "socket.__new__",
        "ctypes.dlopen",
        "code.__new__",
        "builtins.input",
        "shutil.rmtree",
        "os.remove",
        "os.rename",
        "os.mkdir",
        "setopencodehook",
    ]  # fmt: skip
)
"""What no reading of a value may do."""

_EVIL = [
    "os:system", "builtins:eval", "builtins:exec", "subprocess:Popen", "pickle:loads", "importlib:import_module",
    "langchain_core.load.load:load", "__main__:Order", "posix:system", "os", "", "x" * 1000, "message", "object",
    "send",
    "command", "array", "path", "datetime", "map", "snapshot", "lc", "../../etc/passwd", "Europe/Berlin",
    "\x00",
]  # fmt: skip


def mutated(rnd, record, others):
    """A stored record, changed: a byte, a name, a form, a piece of another record."""
    if rnd.random() < 0.2:
        data = bytearray(record)
        for _ in range(rnd.randint(1, 4)):
            data[rnd.randrange(len(data))] = rnd.randrange(256)
        return bytes(data)
    tree = json.loads(record)
    for _ in range(rnd.randint(1, 4)):
        spots = list(_spots(tree))
        if not spots:
            tree = {"$": rnd.choice(_EVIL), "v": tree}
            continue
        inside, key = rnd.choice(spots)
        inside[key] = rnd.choice(
            [
                rnd.choice(_EVIL),
                {"$": rnd.choice(_EVIL), "name": rnd.choice(_EVIL), "v": inside[key], "class": "AIMessage"},
                {"$": "object", "name": rnd.choice(_EVIL), "v": {"args": [rnd.choice(_EVIL)], "__reduce__": "x"}},
                json.loads(rnd.choice(others)),
                None,
                [],
                {},
                2**60,
                {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
            ]
        )
    return json.dumps(tree).encode("utf-8", "replace")


def _spots(tree):
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, inside in pairs:
        yield tree, key
        yield from _spots(inside)


def test_nothing_stored_is_imported_called_or_executed():
    """Promise 12, under an audit hook."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FUZZ), str(pathlib.Path(__file__).parent), str(MUTATIONS)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert 0 < int(done.stdout) < MUTATIONS


def test_no_mutation_of_a_record_is_taken_for_another_kind_of_error():
    codec, rnd = Codec(REGISTERED), random.Random(3)
    stored = [codec.encode(value) for value in VALUES]
    for _ in range(300):
        with contextlib.suppress(segue.Corrupt):
            codec.decode(mutated(rnd, rnd.choice(stored), stored))
