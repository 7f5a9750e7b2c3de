"""The benchmark still runs: a tiny run of Segue beside what is written by hand, and what it counts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from bench import compare, text
from bench.page import END
from bench.systems import PINS, ROOT, SYSTEMS
from bench.worker import damage

NAMES = ["floor_sqlite", "segue_sqlite", "floor_files", "json_file"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    compare.main(["--quick", "--only", *NAMES, "--out", str(folder)])
    return folder


@pytest.fixture
def figures(out):
    return json.loads((out / "data" / "bench.json").read_text("utf-8"))


def test_every_measure_of_a_system_is_there(figures):
    assert figures["left_out"] == {}
    least = {f"append at {head}" for head in (8, 40)} | {"load 8", "load 40", "last 20 of 40", "fork at 40"}
    assert all(least <= figures["calls"][name].keys() for name in NAMES)
    assert figures["calls"]["segue_sqlite"].keys() >= {"append, async, at 8", "turn in steps at 8", "newest 20"}
    ratios = [sample["ratio"] for sample in figures["calls"]["segue_sqlite"]["append at 8"]]
    assert ratios and all(ratio > 0 for ratio in ratios)
    assert figures["bytes"].keys() == figures["imports"].keys() == set(NAMES)
    assert figures["machine"]["cores"] and figures["machine"]["fsync_ms"] > 0


def test_on_one_session_segue_neither_loses_nor_mixes_turns(figures):
    crowds = figures["crowds"]["segue_sqlite"]
    one = [run for what, runs in crowds.items() if what.endswith("one session") for run in runs]
    assert len(one) == 2 and all(run["turns"] > 0 for run in one)
    assert {run[what] for run in one for what in ("lost", "torn", "interleaved")} == {0}


def test_the_page_and_the_picture_show_what_was_measured(out):
    page = (out / "benchmark.md").read_text("utf-8")
    assert all(SYSTEMS[name].title in page for name in NAMES) and END in page
    assert "one session: lost, torn or interleaved | 0 | 0 | yes |" in page
    drawn = ET.parse(out / "data" / "bench.svg").getroot()  # noqa: S314 - ours
    assert len(drawn.findall("{*}polyline")) == len(NAMES)


def test_damage_is_counted():
    def parts(tag, n, *places):
        return [text.turn(n, tag).messages[place] for place in places]

    done = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)]
    history = [
        *parts("a", 1, 0, 1, 2, 3),
        *parts("a", 2, 0, 1),
        *parts("b", 1, 0),
        *parts("a", 2, 2, 3),
        *parts("b", 1, 1, 2, 3),
        *parts("b", 2, 0, 1, 3),
    ]
    assert damage(history, done) == {"lost": 1, "torn": 1, "interleaved": 2}
    twice = parts("a", 1, 0, 1, 2, 3) * 2
    assert damage(twice, [("a", 1)])["interleaved"] == 1


def test_the_text_is_the_same_everywhere_and_like_a_conversation():
    turns = [text.turn(n) for n in range(400)]
    assert turns == [text.turn(n) for n in range(400)]
    sizes = sorted(len(text.encoded(message)) for turn in turns for message in turn.messages)
    assert 400 < sizes[len(sizes) // 2] < 800 and 1_000 < sum(sizes) / len(sizes) < 1_600 and sizes[-1] > 20_000
    marked = [text.marks(message) for message in turns[5].messages]
    assert marked == [[("t", 5, part)] for part in range(4)]


def test_every_system_has_its_layer_and_its_pins():
    for system in SYSTEMS.values():
        module, _, name = system.layer.partition(".")
        assert f"class {name}(" in (Path(ROOT) / "bench" / "layers" / f"{module}.py").read_text("utf-8")
        assert not system.environment or system.environment in PINS


def test_the_committed_figures_are_a_whole_run():
    figures = json.loads((ROOT / "docs" / "data" / "bench.json").read_text("utf-8"))
    assert figures["sizes"] == json.loads(json.dumps(compare.Sizes()._asdict()))
    assert figures["minutes"] < 30
    assert figures["calls"].keys() | figures["left_out"].keys() == SYSTEMS.keys()
