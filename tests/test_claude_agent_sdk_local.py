"""Local transcripts of Claude Code, brought in so that the Claude Agent SDK resumes them."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import import_session_to_store, project_key_for_directory

import import_samples as samples
import segue
from import_samples import REAL, claude_record, line
from segue import cli
from segue.adapters.claude_agent_sdk import SegueSessionStore, import_transcripts

MAIN = "0a1b2c3d-0000-4000-8000-000000000001"
KEY = {"project_key": "-srv-app", "session_id": MAIN}


@pytest.fixture
def projects(tmp_path):
    folder = tmp_path / "config" / "projects" / "-srv-app"
    folder.mkdir(parents=True)
    (folder / f"{MAIN}.jsonl").write_bytes(samples.claude())
    return folder


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def lines_of(path):
    return [json.loads(one) for one in path.read_bytes().splitlines() if one.strip()]


def loaded(url, key=KEY, **options):
    with SegueSessionStore(url, spool=False, **options) as store:
        return asyncio.run(store.load(key))


def bring(url, *paths, **options):
    with SegueSessionStore(url, spool=False, **options) as store:
        return list(import_transcripts(store, paths))


def test_a_transcript_is_loaded_as_it_lies_on_the_disk_and_a_second_import_adds_nothing(projects, url):
    path = projects / f"{MAIN}.jsonl"
    (first,) = bring(url, projects)
    assert (first.outcome, first.entries) == ("imported", len(lines_of(path)))
    assert first.usage.output == 3 * 29
    assert loaded(url) == lines_of(path)
    (again,) = bring(url, projects)
    assert (again.outcome, again.entries, loaded(url)) == ("unchanged", 0, lines_of(path))
    with path.open("ab") as out:
        out.write(line(claude_record("user", "later", "b2", "and?")))
        out.write(line({"type": "summary", "summary": "no uuid", "leafUuid": "later"}))
    assert bring(url, path)[0].entries == 2
    assert loaded(url) == lines_of(path)


def test_it_is_what_the_sdk_itself_would_have_brought_in(projects, url, tmp_path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    agents = projects / MAIN / "subagents"
    agents.mkdir(parents=True)
    (agents / "agent-a1.jsonl").write_bytes(
        line(claude_record("user", "x", None, "look", isSidechain=True, agentId="a1"))
    )
    (agents / "agent-a1.meta.json").write_text('{"agentType": "Explore"}')
    reports = bring(url, projects)
    assert [report.outcome for report in reports if report.path.endswith(".jsonl")] == ["imported"] * 2
    other = f"sqlite:///{tmp_path}/other.db"

    async def both():
        with SegueSessionStore(other, spool=False) as theirs, SegueSessionStore(url, spool=False) as mine:
            await import_session_to_store(MAIN, theirs)
            for store in (theirs, mine):
                sub = (await store.list_subkeys(KEY))[0]
                yield (
                    await store.load(KEY),
                    await store.load({**KEY, "subpath": sub}),
                    await store.list_sessions("-srv-app"),
                )

    async def told():
        return [one async for one in both()]

    theirs, mine = asyncio.run(told())
    assert mine[:2] == theirs[:2]
    assert [one["session_id"] for one in mine[2]] == [MAIN]
    assert [report.outcome for report in bring(url, projects) if report.path.endswith(".jsonl")] == ["unchanged"] * 2


def test_damaged_lines_are_told_and_left_out(projects, url):
    path = projects / f"{MAIN}.jsonl"
    whole = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*whole[:2], whole[2] + whole[3], b"not json", b"\0" * 50, *whole[4:], b'{"type":"us']))
    (report,) = bring(url, path)
    assert report.counts == {"glued": 1, "broken": 3}
    assert loaded(url) == [json.loads(one) for one in whole]


def test_another_transcript_of_the_same_session_changes_nothing(projects, url):
    path = projects / f"{MAIN}.jsonl"
    bring(url, path)
    before = loaded(url)
    path.write_bytes(path.read_bytes().replace("第 0 个".encode(), "第 9 个".encode()))
    (report,) = bring(url, path)
    assert report.outcome == "failed"
    assert loaded(url) == before


def test_elsewhere_the_project_is_made_of_the_working_directory_or_given(tmp_path, url):
    path = tmp_path / f"{MAIN}.jsonl"
    path.write_bytes(samples.claude())
    cwd = lines_of(path)[1]["cwd"]
    bring(url, path)
    assert loaded(url, {**KEY, "project_key": project_key_for_directory(cwd)}) == lines_of(path)
    bring(url, path, project="support")
    assert loaded(url, project="support") == lines_of(path)


def test_the_command_brings_them_in_and_names_what_is_none(projects, url, capsys):
    (projects / "notes.md").write_text("# mine")
    assert cli.main(["import", str(projects), "--for", "claude-agent-sdk", "--store", url, "--json"]) == 0
    reports = [json.loads(one) for one in capsys.readouterr().out.splitlines()]
    assert [report["outcome"] for report in reports] == ["imported", "skipped"]
    assert loaded(url) == lines_of(projects / f"{MAIN}.jsonl")
    assert cli.main(["import", str(projects), "--for", "claude-agent-sdk", "--store", url, "--dry-run"]) == 0
    assert cli.main(["import", str(projects), "--project", "x", "--store", url]) == 2


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")
def test_recorded_transcripts_are_loaded_line_by_line(tmp_path):
    for path in sorted((REAL / "entire" / "claude-code").glob("*.jsonl")):
        with closing(segue.open("memory:")) as db, SegueSessionStore(db.scope()) as store:
            (report,) = import_transcripts(store, [path])
            assert report.outcome == "imported", (path.name, report.reason)
            (info,) = (info for info in db.scope().iterate(unlisted=True))
            facts = info.metadata["claude"]
            key = {"project_key": facts["project"], "session_id": facts["session"]}
            found = asyncio.run(store.load(key))
            told = [value for one in path.read_text().splitlines() for value in values_of(one)]
            names = [value.get("uuid") for value in told]
            assert found == [v for n, v in enumerate(told) if names[n] is None or names.index(names[n]) == n], path.name
            assert next(iter(import_transcripts(store, [path]))).entries == 0


def values_of(text):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
