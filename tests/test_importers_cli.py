"""segue import, export and convert; and what an import of a large file needs."""

from __future__ import annotations

import json

import pytest

import import_samples as samples
import segue
from import_memory import needed
from segue import cli


@pytest.fixture
def run(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEGUE_STORE", "sqlite:///store.db")
    for name, body in samples.FILES.items():
        (tmp_path / name).write_bytes(body)

    def run(*words):
        code = cli.main(list(words))
        out, error = capfdbinary.readouterr()
        return code, out, error.decode()

    return run


def test_import_makes_a_store_and_says_what_it_did(run, tmp_path):
    code, out, _ = run("import", "claude.jsonl", "codex.jsonl")
    assert code == 0
    assert b"2 imported" in out
    code, out, _ = run("import", ".", "--json")
    reports = {report["path"]: report for report in map(json.loads, out.splitlines())}
    assert reports["claude.jsonl"]["outcome"] == "unchanged"
    assert reports["chatgpt.json"]["sessions"][0]["abandoned"] == 1
    assert reports["store.db"]["outcome"] == "skipped"
    assert code == 0


def test_the_exit_status_tells_of_what_was_no_conversation(run, tmp_path):
    (tmp_path / "notes.md").write_text("# mine")
    assert run("import", "notes.md")[0] == 1
    assert run("import", "claude.jsonl", "notes.md")[0] == 1
    assert run("import", "missing.jsonl")[0] == 2


def test_a_dry_run_makes_no_store_and_changes_none(run, tmp_path):
    for words in ((), ("--for", "claude-agent-sdk")):
        code, out, _ = run("import", "claude.jsonl", "--dry-run", *words)
        assert (code, b"nothing written" in out, b"1 imported" in out) == (0, True, True)
    run("import", "codex.jsonl", "--dry-run", "--store", "jsonl:folder")
    assert not (tmp_path / "store.db").exists()
    assert not (tmp_path / "folder").exists()
    run("import", "codex.jsonl")
    code, out, _ = run("import", "claude.jsonl", "codex.jsonl", "--dry-run", "--json")
    assert [json.loads(line)["outcome"] for line in out.splitlines()] == ["imported", "unchanged"]
    with segue.open("sqlite:///store.db") as db:
        assert len(list(db.scope().iterate(unlisted=True))) == 1


def test_an_import_that_has_nothing_to_write_makes_no_store(run, tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "notes.md").write_text("# mine")
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "other.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 100)
    for words in (["none"], ["notes.md"], ["empty.json", "none"], ["other.zst"], ["none", "missing"]):
        assert run("import", *words)[0] == (2 if "missing" in words else 1)
        assert not (tmp_path / "store.db").exists()
    assert run("import", "none", "notes.md", "claude.jsonl")[1].count(b"imported") == 2
    assert (tmp_path / "store.db").exists()


@pytest.mark.parametrize("kind", ["original", "bundle", "messages", "markdown", "html"])
def test_every_export_is_written(run, tmp_path, kind):
    run("import", "claude.jsonl")
    code, out, _ = run("export", "latest", "--as", kind, "--output", "out", "--json")
    assert (code, json.loads(out)["as"]) == (0, kind)
    body = (tmp_path / "out").read_bytes()
    assert len(body) == json.loads(out)["bytes"]
    assert run("export", "latest", "--as", kind)[1][:40] == body[:40]
    if kind == "original":
        assert body == samples.claude()
    if kind == "bundle":
        code, out, _ = run("import", "out", "--store", "other.db", "--dry-run")
        assert (code, b"2 messages" in out, (tmp_path / "other.db").exists()) == (0, True, False)
        assert run("import", "out", "--user", "wu")[0] == 0
        code, out, _ = run("import", "out", "--user", "wu")
        assert (code, out) == (0, b"unchanged  out\n1 unchanged\n")


def test_an_imported_session_is_shown_as_a_conversation(run):
    run("import", "claude.jsonl")
    out = run("show", "latest")[1].decode()
    assert "done 2" in out
    assert "import." not in out


def test_convert_needs_no_store(run, tmp_path):
    code, out, _ = run("convert", "codex.jsonl", "--to", "anthropic")
    assert (code, [m["role"] for m in json.loads(out)]) == (0, ["user", "assistant", "user", "assistant"])
    code, out, _ = run("convert", "chatgpt.json", "--to", "anthropic")
    assert [json.loads(line)["title"] for line in out.splitlines()] == ["Why", "Other"]
    assert not (tmp_path / "store.db").exists()
    assert run("convert", "missing", "--to", "anthropic")[0] == 2


def test_a_large_file_is_read_in_bounded_memory(tmp_path):
    (tmp_path / "small.jsonl").write_bytes(samples.claude())
    count = 2_600
    with (tmp_path / "big.jsonl").open("wb") as out:
        for n in range(count):
            record = samples.claude_record("user", f"u{n}", f"u{n - 1}" if n else None, f"{n} " + "text " * 5_000)
            out.write(samples.line(record))
        out.write(samples.line(samples.claude_record("user", "long", None, "x" * 2_000_000)))
        out.write(samples.line(samples.claude_record("user", "last", "long", "the-end")))
    size = (tmp_path / "big.jsonl").stat().st_size
    found = needed(tmp_path)
    assert found.records == count + 2
    assert size > 65_000_000
    assert found.more_bytes < 45_000_000, found  # what a batch takes, not the file
