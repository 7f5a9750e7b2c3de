"""The experiment on stale readings: small, and what its page says of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench import stale_model
from bench.stale_readings import HABITS, PAGE, WAYS, measure

STORIES = 5


@pytest.fixture(scope="module")
def counts():
    return measure(STORIES)


def total(counts, way, what, habits=tuple(HABITS)):
    return sum(counts[habit, way].n[what] for habit in habits)


def test_every_habit_plays_every_way_to_its_end(counts):
    assert counts.keys() == {(habit, way) for habit in HABITS for way in WAYS}
    assert {count.n["reports"] + count.n["given up"] for count in counts.values()} == {STORIES}
    assert {count.n["answers"] for count in counts.values()} == {4 * STORIES}


def test_the_same_stories_are_played_in_every_way(counts):
    unread = {counts["reuses all", way].n["stale answers"] for way in WAYS}
    assert len(unread) == 1 and unread != {0}


def test_the_guard_publishes_less_stale_figures_than_any_other_way(counts):
    guarded = total(counts, "guard", "stale reports")
    assert all(guarded < total(counts, way, "stale reports") for way in ("nothing", "time", "note", "mask"))


def test_a_mask_keeps_results_from_being_reused_and_not_prose(counts):
    for habit, helps in (("reuses results", True), ("reuses all", False)):
        masked, plain = (counts[habit, way].n["stale answers"] for way in ("mask", "nothing"))
        assert (masked < plain) is helps


def test_a_real_model_is_asked_in_the_providers_form():
    asked = []

    class Client:
        """Re-reads what it is asked for, then says it."""

        @property
        def messages(self):
            return self

        def create(self, **request):
            asked.append(request)
            last = request["messages"][-1]["content"]
            if isinstance(last, list):
                seen = last[0]["content"].partition("\n")[0]
                said = (
                    "Published." if seen == "published" else f"{json.loads(seen)['key']} is {json.loads(seen)['value']}"
                )
                return SimpleNamespace(content=[SimpleNamespace(type="text", text=said)])
            key = last.split()[-1].strip("?.")
            call = SimpleNamespace(type="tool_use", name="read", input={"key": key})
            if "Publish" in last:
                call = SimpleNamespace(type="tool_use", name="publish", input={"figures": {key: "0"}})
            return SimpleNamespace(content=[call])

    shown = stale_model.play("some-model", 1, Client())
    assert "| the model |" in shown and asked[0]["tools"][0]["name"] == "read"
    assert asked[-1]["messages"][-1]["role"] == "user"


def test_the_page_tells_the_measured_run_and_that_no_real_model_played():
    page = Path(PAGE).read_text(encoding="utf-8")
    assert "200 stories" in page and "no figure here comes from a real model" in page
    for name in (*WAYS, *HABITS):
        assert f"| {name} |" in page
