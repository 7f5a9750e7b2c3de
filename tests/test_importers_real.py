"""Recorded files of other tools, where they are at hand: imported or named, byte for byte, with valid views."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

import segue
from import_samples import REAL, original_of
from segue import ViewSpec
from segue.exporters import export_original
from segue.formats import rules
from segue.importers import import_file, import_paths

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")

FORMATS = ("anthropic", "openai.chat", "openai.responses")
IMPORTED = {
    "entire/claude-code": "claude-code", "claude-code-log": "claude-code", "agent-sessions/claude": "claude-code",
    "polylogue/claude-code": "claude-code", "agent-sessions/codex": "codex", "agentsview/codex": "codex",
    "ccusage/branch-history": "codex", "entire/gemini-cli": "gemini-cli", "agentsview/gemini": "gemini-cli",
    "polylogue/chatgpt": "chatgpt", "polylogue/claude-ai": "claude-ai", "chatlore": "claude-ai",
    "generated/langgraph_checkpoints.sqlite": "langgraph", "generated/llm_logs.db": "llm",
    "generated/openai_agents_sessions.db": "openai-agents", "generated/openai_agents_advanced.db": "openai-agents",
    "generated/openai_agents_items.json": "messages",
}  # fmt: skip


@pytest.fixture(scope="module")
def imported():
    with closing(segue.open("memory:")) as db:
        scope = db.scope()
        reports = {report.path.removeprefix(f"{REAL}/"): report for report in import_paths(scope, [REAL])}
        yield scope, reports


def test_every_file_is_imported_or_named_with_the_reason(imported):
    _, reports = imported
    assert len(reports) == sum(path.is_file() for path in REAL.rglob("*"))
    for path, report in reports.items():
        assert report.outcome in ("imported", "unchanged") or (report.outcome == "skipped" and report.reason), path


def test_all_files_of_the_known_formats_are_imported(imported):
    _, reports = imported
    for start, tool in IMPORTED.items():
        for path, report in reports.items():
            if path.startswith(start) and not path.endswith(".meta.json"):
                assert (report.format, report.outcome != "skipped") == (tool, True), path


def test_a_second_import_adds_nothing(imported):
    scope, _ = imported
    assert sum(report.entries for report in import_paths(scope, [REAL])) == 0


def test_the_bytes_of_every_file_come_back(tmp_path):
    told = 0
    for path in sorted(REAL.rglob("*")):
        if not path.is_file() or path.read_bytes().startswith(b"SQLite format 3"):
            continue  # the rows of a database are records of their own: see test_rows_of_databases_come_back
        with closing(segue.open("memory:")) as db:
            report = import_file(db.scope(), path)
            if report.outcome == "imported":
                assert original_of(db.scope(), report) == path.read_bytes(), path
                told += 1
    assert told > 150


def test_views_in_all_formats_are_valid_and_leave_nothing_out_unsaid(imported):
    scope, _ = imported
    told = Counter()
    for info in scope.iterate(unlisted=True):
        session = scope.open(info.id)
        entries = [entry.seq for entry in session.history(kinds=("message",))]
        for format in FORMATS:
            view = session.view(ViewSpec(format, foreign="convert"))
            rules(format).check(view.messages)
            shown = {seq for seqs in view.seqs for seq in seqs}
            said = {seq for one in view.omitted for seq in range(one.first, one.last + 1)}
            missing = [seq for seq in entries if seq > (view.cut or 0) and seq not in shown | said]
            assert not missing, (info.key, format, missing)
            assert not entries or max(entries) in shown | said, (info.key, format)
            told[format] += 1
    assert min(told.values()) > 400


def test_tokens_of_claude_code_equal_a_recount(imported):
    scope, reports = imported
    messages: dict[str, dict[str, int]] = {}
    for path in (REAL / "entire/claude-code").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            for value in values_of(line):
                message = value.get("message") or {}
                if value.get("type") == "assistant" and message.get("usage"):
                    counted = messages.setdefault(message["id"], {})
                    for name, number in message["usage"].items():
                        if isinstance(number, int):
                            counted[name] = max(counted.get(name, 0), number)
    total = Counter()
    for counted in messages.values():
        total.update(counted)
    usage = segue.Usage()
    for path, report in reports.items():
        if path.startswith("entire/claude-code"):
            usage += report.usage
    assert usage.output == total["output_tokens"]
    assert usage.cache_read == total["cache_read_input_tokens"]
    cached = total["cache_read_input_tokens"] + total["cache_creation_input_tokens"]
    assert usage.input == total["input_tokens"] + cached


def values_of(line):
    decoder, at = json.JSONDecoder(), 0
    while at < len(line):
        value, at = decoder.raw_decode(line, at)
        yield value


def test_a_fork_of_codex_counts_what_its_parent_did_not(imported):
    _, reports = imported
    both = [reports[f"ccusage/branch-history/{name}.jsonl"].usage for name in ("parent", "branch")]
    assert sum(usage.input + usage.output for usage in both) == 2050


def test_a_growing_series_ends_equal_to_its_last_file(tmp_path):
    series = [REAL / "entire/claude-code" / name for name in ("91-b42542f24f-1.jsonl", "0e-053674f90a-0.jsonl")]
    with closing(segue.open("memory:")) as db:
        reports = [import_file(db.scope(), path) for path in series]
        last = db.scope().get_key(reports[1].sessions[0].key)
        out = io.BytesIO()
        export_original(last, out)
        assert out.getvalue() == series[1].read_bytes()
        with closing(segue.open("memory:")) as fresh:
            once = import_file(fresh.scope(), series[1])
            other = fresh.scope().get_key(once.sessions[0].key)
            assert last.messages() == other.messages()


def test_glued_records_are_both_there(imported):
    scope, reports = imported
    report = reports["entire/claude-code/37-995ebed6e4-2.jsonl"]
    assert [defect.record for defect in report.defects if defect.kind == "glued"] == [128]


def test_rows_of_databases_come_back(imported):
    scope, _ = imported
    for name in ("openai_agents_sessions.db", "openai_agents_advanced.db"):
        with closing(sqlite3.connect(REAL / "generated" / name)) as con:
            rows = con.execute("SELECT session_id, message_data FROM agent_messages ORDER BY id").fetchall()
        wanted = {(session, data.encode()) for session, data in rows}
        found = set()
        for info in scope.iterate(unlisted=True, tag="import:openai-agents"):
            if "session" in info.metadata:
                for entry in scope.open(info.id).history(kinds=("message",)):
                    found.add((info.metadata["session"], entry.body))
        assert wanted <= found


@pytest.mark.parametrize("tool", ["entire/claude-code", "agent-sessions/codex", "entire/gemini-cli"])
def test_every_recorded_file_that_grew_in_three_steps_is_as_if_it_was_imported_once(tmp_path, tool):
    for source in sorted((REAL / tool).glob("*.jsonl")):
        whole = source.read_bytes()
        path = tmp_path / source.name
        with closing(segue.open("memory:")) as db, closing(segue.open("memory:")) as fresh:
            usage = segue.Usage()
            for end in (len(whole) // 3, 2 * len(whole) // 3, len(whole)):
                path.write_bytes(whole[:end])
                report = import_file(db.scope(), path)
                usage += report.usage
            once = import_file(fresh.scope(), path)
            assert original_of(db.scope(), report) == whole, source.name
            assert usage == once.usage, source.name
            for a, b in zip(report.sessions, once.sessions, strict=True):
                views = [scope.get_key(one.key).messages() for scope, one in ((db.scope(), a), (fresh.scope(), b))]
                assert views[0] == views[1], source.name
