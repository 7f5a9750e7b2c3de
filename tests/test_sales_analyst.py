"""The main job, played once as a newcomer plays it, then looked at behind its back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, timedelta
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from examples.sales_analyst import hearing
from examples.sales_analyst.clock import Story
from examples.sales_analyst.model import Call
from examples.sales_analyst.screen import Screen
from examples.sales_analyst.stand_in import StandIn
from examples.sales_analyst.story import TITLE, Place, prepare
from examples.sales_analyst.tools import DEFINITIONS, ORDERS, TARGETS, orders_of
from examples.sales_analyst.tuesday import show_effect
from examples.sales_analyst.warehouse import Warehouse

import segue

ROOT = Path(__file__).resolve().parents[1]
YEAR = 2026
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "SEGUE_EXAMPLE_MODEL", "FORCE_COLOR")
TOOLS = StandIn().definitions(DEFINITIONS)


def environment(**more):
    return {name: value for name, value in os.environ.items() if name not in KEYS} | {"PYTHONPATH": str(ROOT)} | more


def play(cwd, *arguments, **env):
    command = [sys.executable, "-m", "examples.sales_analyst", "--year", str(YEAR), *arguments]
    env = environment(**env)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=120, check=False)


class Played:
    """The story's output, its facts, and its store."""

    def __init__(self, cwd, output):
        self.cwd, self.output = cwd, output
        self.folder = cwd / "segue-demo"
        self.facts = json.loads((self.folder / "story.json").read_text(encoding="utf-8"))
        self.db = segue.open(f"sqlite:///{self.folder / 'agent.db'}")
        self.me = self.db.scope(tenant="acme", user="lin")
        self.session = self.me.open(self.facts["session"])

    def bodies(self, kind):
        return [entry.json() for entry in self.session.read(kinds=(kind,))]

    def calls(self, *, after=0, upto=None):
        """The tool calls of a stretch, in order."""
        found = []
        for entry in self.session.read(after=after, upto=upto, kinds=("message",)):
            content = entry.json()["content"]
            found += [b for b in content if isinstance(b, dict) and b["type"] == "tool_use"]
        return found

    def seq_of_question(self, part):
        return next(e.seq for e in self.session.read() if e.origin == "user" and part in str(e.json()["content"]))

    def answer_to(self, part):
        later = self.session.read(after=self.seq_of_question(part), kinds=("message",))
        content = next(e for e in later if e.origin == "model" and "tool_use" not in str(e.json())).json()["content"]
        return content[0]["text"]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("story")
    ended = play(cwd)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    story = Played(cwd, ended.stdout)
    yield story
    story.db.close()


# The story


def test_without_a_key_it_says_that_a_stand_in_plays(played):
    assert "a scripted stand-in: neither ANTHROPIC_API_KEY nor OPENAI_API_KEY is set" in played.output


def test_a_file_gets_plain_text(played):
    assert "\x1b" not in played.output
    assert max(len(line) for line in played.output.splitlines()) <= 120


def test_each_day_plays_in_a_process_of_its_own(played):
    pids = {played.facts["monday_pid"], played.facts["tuesday_pid"], os.getpid()}
    assert len(pids) == 3
    assert f"Process {played.facts['monday_pid']} ends here" in played.output
    assert f"Process {played.facts['tuesday_pid']};" in played.output


def test_three_sessions_are_listed_and_yesterdays_is_resumed_though_another_is_newer(played):
    assert played.facts["listed"] == ["8 月目标完成率", TITLE, "华南 7 月复盘"]
    assert played.session.info.title == TITLE
    assert played.facts["resumed"] == played.session.id


def test_the_night_really_changed_rows_of_the_warehouse(played):
    with duckdb.connect(str(played.folder / "warehouse.duckdb"), read_only=True) as warehouse:
        stamp = Story(YEAR).night.astimezone(UTC).replace(tzinfo=None)
        rows = warehouse.execute("SELECT region FROM sales.orders WHERE updated_at = ?", [stamp]).fetchall()
    assert len(rows) == played.facts["restated_rows"] > 0
    assert {row[0] for row in rows} == {"华东"}


def test_the_note_says_that_18_hours_passed_and_which_two_of_three_readings_changed(played):
    (note,) = played.bodies("note")
    assert timedelta(seconds=note["facts"]["gap_seconds"]) - timedelta(hours=18) < timedelta(minutes=1)
    assert note["facts"]["counts"] == {"changed": 2, "current": 1}
    assert "距上次活动 18 小时" in note["text"]
    assert "3 项（2 项已变，1 项未变）" in note["text"]
    assert played.facts["changed"] == [ORDERS, orders_of("华东")]
    assert TARGETS not in note["text"]


def test_the_note_is_stored_once_right_before_tuesdays_question(played):
    (note,) = played.session.read(kinds=("note",))
    assert played.seq_of_question("接着昨天那个") == note.seq + 1


def test_what_changed_is_read_again_before_the_sku_split_and_what_did_not_is_left_alone(played):
    begin, end = played.seq_of_question("接着昨天那个"), played.seq_of_question("发布成报告")
    calls = played.calls(after=begin, upto=end)
    assert [call["input"].get("by") for call in calls] == ["region", "month", "sku"]
    assert {call["name"] for call in calls} == {"query_sales"}


def test_each_answer_has_the_numbers_that_held_when_it_was_given(played):
    before, after, late = (f"{played.facts[name]:,.1f}" for name in ("before", "after", "late_after"))
    assert before in played.answer_to("为什么下滑")
    assert f"由 {before} 万元重述为 {after} 万元" in played.answer_to("接着昨天那个")
    assert late in played.answer_to("发布成报告")


def test_a_publication_is_refused_on_stale_ground_and_done_after_reading_again(played):
    begin, end = played.seq_of_question("发布成报告"), played.seq_of_question("各大区的对比")
    calls = [call["name"] for call in played.calls(after=begin, upto=end)]
    assert calls == ["publish_report", "query_sales", "query_sales", "query_sales", "publish_report"]
    results = [
        block
        for entry in played.session.read(after=begin, upto=end, kinds=("message",))
        for block in entry.json()["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]
    assert [bool(result.get("is_error")) for result in results] == [True, False, False, False, False]
    assert "read it again, then write" in results[0]["content"]


def test_the_effect_was_recorded_before_and_after_and_names_the_file_that_is_there(played):
    started, completed = played.bodies("effect")
    assert (started["phase"], completed["phase"]) == ("started", "completed")
    path = played.folder / started["source"].removeprefix("file:")
    assert completed["version"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"{played.facts['late_after']:,.1f} 万元" in path.read_text(encoding="utf-8")


def test_the_fork_shares_the_beginning_and_left_the_parent_as_it_was(played):
    fork = played.me.open(played.facts["fork"])
    at, _ = played.facts["parent_before"]
    assert played.facts["parent_after"] == played.facts["parent_before"]
    assert (fork.info.parent.session, fork.info.parent.seq, fork.info.base) == (played.session.id, at, at)
    shared = [(entry.seq, entry.id, entry.digest) for entry in fork.read(upto=at)]
    assert shared == [(entry.seq, entry.id, entry.digest) for entry in played.session.read(upto=at)]
    assert "channel" in str(fork.read(after=at)[1].json())
    assert "channel" not in str([entry.body for entry in played.session.read()])


def test_the_second_of_two_requests_waits_until_the_first_has_answered(played):
    happened = [(event["who"], event["what"]) for event in played.facts["at_once"]]
    assert happened.index(("phone", "asks")) < happened.index(("laptop", "answered"))
    assert happened.index(("laptop", "answered")) < happened.index(("phone", "its turn"))
    assert played.facts["waited_seconds"] > 0


def test_the_two_requests_stand_in_the_log_one_after_the_other(played):
    runs = [entry.run for entry in played.session.read(after=played.facts["parent_after"][0])]
    assert sum(one != other for one, other in pairwise(runs)) == 1
    assert [run for run, _, _ in played.facts["stretches"]] == list(dict.fromkeys(runs))


def test_the_vendor_would_accept_every_history(played):
    for info in played.me.iterate():
        messages = played.me.open(info.id).messages()
        hearing.check([*messages, {"role": "user", "content": "?"}])


def test_the_commands_at_the_end_work(played):
    lines = played.output[played.output.index("export SEGUE_STORE") :].splitlines()
    commands = [line.strip() for line in lines if line.strip()]
    assert len(commands) == 5
    assert commands[0].endswith("TZ=Asia/Shanghai")  # the zone that the story tells its times in
    said = ""
    for command in commands[1:]:
        script = f"{commands[0]}\n{command}"
        env = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        ended = subprocess.run(
            ["sh", "-ec", script], cwd=played.cwd, env=env, capture_output=True, encoding="utf-8", check=False
        )
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        said += ended.stdout
    for part in (TITLE, "华东 8 月：按渠道", "会话恢复", "no damage"):
        assert part in said


def test_where_the_model_published_nothing_no_effect_is_claimed(capsys):
    show_effect(Screen(), [])
    assert "✗ no effect" in (printed := capsys.readouterr().out)
    assert "✓" not in printed
    show_effect(Screen(), ["started", "failed"])
    assert "✓ effect  publish_report, started → failed" in capsys.readouterr().out


def test_it_deletes_its_own_folder_and_no_other(tmp_path):
    place = Place(tmp_path / "own", "memory:", YEAR)
    prepare(place)
    prepare(place)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("three years")
    with pytest.raises(SystemExit, match="choose another"):
        prepare(Place(tmp_path / "other", "memory:", YEAR))
    assert (tmp_path / "other" / "thesis.txt").read_text() == "three years"


# The warehouse and the calendar


def test_the_generator_always_gives_the_same_orders(tmp_path):
    story, found = Story(YEAR), []
    for name in ("a", "b"):
        with Warehouse.make(tmp_path / name, year=YEAR, loaded_at=story.loaded) as warehouse, warehouse.cursor() as one:
            found.append(one.execute("SELECT * FROM sales.orders ORDER BY order_id").fetchall())
    assert found[0] == found[1]


def test_the_watermark_of_a_region_moves_with_its_rows_alone(tmp_path):
    story = Story(YEAR)
    with Warehouse.make(tmp_path / "w", year=YEAR, loaded_at=story.loaded) as warehouse:
        before = {region: warehouse.watermark(region) for region in (None, "华东", "华南")}
        warehouse.restate(region="华东", month=date(YEAR, 8, 1), share=(0, 2), at=story.night)
        assert warehouse.watermark("华东") == warehouse.watermark() == story.night > before["华东"]
        assert warehouse.watermark("华南") == before["华南"]


@pytest.mark.parametrize("year", range(2024, 2034))
def test_the_story_plays_on_a_monday_and_a_tuesday_of_september(year):
    story = Story(year)
    assert (story.monday.weekday(), story.night.weekday(), story.monday.month) == (0, 1, 9)
    assert Story.newest(story.at(2)).year == year - 1
    assert Story.newest(story.at(4)).year == year


# The stand-in


def said(text):
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def called(*ids):
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": id, "name": "query_sales", "input": {}} for id in ids],
    }


def results(*ids, text=""):
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": "{}"} for id in ids]
    return {"role": "user", "content": [*blocks, {"type": "text", "text": text}] if text else blocks}


def text_first(text, id):
    return {"role": "user", "content": [{"type": "text", "text": text}, *results(id)["content"]]}


ASKED = {"role": "user", "content": "为什么？"}

REFUSED = {
    "nothing at all": [],
    "the assistant begins": [said("好"), ASKED],
    "the assistant ends": [ASKED, said("好")],
    "a call without a result": [ASKED, called("a"), ASKED],
    "a call at the end": [ASKED, called("a")],
    "a result without a call": [ASKED, said("好"), results("a")],
    "a result too late": [ASKED, called("a"), results("a"), said("好"), results("a")],
    "a result twice": [ASKED, called("a"), results("a", "a")],
    "one result of two": [ASKED, called("a", "b"), results("a")],
    "two calls of one id": [ASKED, called("a", "a"), results("a", "a")],
    "text before the result": [ASKED, called("a"), text_first("x", "a")],
    "empty text": [{"role": "user", "content": " \n"}],
    "empty content": [{"role": "user", "content": []}],
    "an unknown role": [{"role": "developer", "content": "x"}],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_stand_in_refuses_what_the_vendor_refuses(name):
    with pytest.raises(hearing.Refused):
        StandIn().reply("", TOOLS, REFUSED[name])


def test_the_stand_in_accepts_what_the_vendor_accepts():
    hearing.check([ASKED, ASKED, called("a", "b"), results("b", "a", text="再看看"), said("好"), ASKED])


def test_the_stand_in_calls_no_tool_that_is_not_offered():
    with pytest.raises(hearing.Refused, match="not offered"):
        StandIn().reply("2026-08", [], [{"role": "user", "content": "按 SKU 拆一下 8 月"}])


def exchange(question, rows, *, by, stamp=""):
    """A conversation in which one query was answered with these rows."""
    asked = {"role": "user", "content": question}
    reply = StandIn().reply("2026-06 至 2026-08", TOOLS, [asked])
    assert [call.arguments["by"] for call in reply.calls] == [by]
    text = json.dumps({"rows": rows}) + stamp
    block = {"type": "tool_result", "tool_use_id": reply.calls[0].id, "content": text}
    return [asked, reply.answer, {"role": "user", "content": [block]}]


def test_the_stand_in_takes_its_numbers_from_the_results():
    rows = [{"name": "R2 风扇", "before": 55.5, "sales": 11.1}, {"name": "K9", "before": 10.0, "sales": 12.0}]
    reply = StandIn().reply("2026-06", TOOLS, exchange("华北 7 月按 SKU 拆", rows, by="sku"))
    assert reply.calls == []
    assert "R2 风扇：55.5 → 11.1（−80.0%）" in reply.text
    assert re.findall(r"\d+\.\d", reply.text) == ["55.5", "11.1", "80.0", "10.0", "12.0", "20.0"]


def test_the_stand_in_reads_again_what_a_note_names_and_only_that():
    stamp = "\n[读取于 2026-09-07T07:00Z · warehouse:a?x=1 · 水位 1]"
    talk = [*exchange("7 月按 SKU 拆", [{"name": "A", "before": 2.0, "sales": 1.0}], by="sku", stamp=stamp), said("好")]

    def next_calls(line):
        note = {"role": "user", "content": [{"type": "text", "text": f"[会话恢复 · 现在]\n{line}"}]}
        reply = StandIn().reply("2026-06", TOOLS, [*talk, note, {"role": "user", "content": "按渠道拆呢？"}])
        return [call.arguments["by"] for call in reply.calls]

    assert next_calls("- 已变：warehouse:a?x=1，读取于 …") == ["sku"]
    assert next_calls("- 已变：warehouse:a，读取于 …") == ["channel"]
    assert next_calls("已核对外部数据 1 项（1 项未变）。") == ["channel"]


def test_a_stamp_on_a_result_names_its_source():
    done = hearing.Done(Call("a", "t", {}), "{}\n[observed 2026-09-07T07:00Z · file:t.csv · sha256 ab]", is_error=False)
    assert done.sources == [TARGETS.replace("targets", "t")]
