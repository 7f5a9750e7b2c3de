"""Claude Code transcripts that went wrong elsewhere: brought in with everything that a reader can make out of them."""

from __future__ import annotations

from contextlib import closing

import pytest

import segue
from import_samples import claude_record, line, messages_of, original_of
from segue.importers import import_file


@pytest.fixture
def scope(tmp_path):
    with closing(segue.open(f"sqlite:///{tmp_path}/store.db")) as db:
        yield db.scope("acme", "lin")


def conversation(count):
    kinds = ("user", "assistant")
    return [
        line(
            claude_record(kinds[n % 2], f"u{n}", f"u{n - 1}" if n else None, f"text {n}", cwd="/srv/team/.local/share")
        )
        for n in range(count)
    ]


def bring(scope, path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    report = import_file(scope, path)
    assert original_of(scope, report) == body
    assert [info.id for info in scope.iterate()] == [one.id for one in report.sessions]
    return report, scope.get_key(report.sessions[0].key)


def texts(session):
    return [entry.json()["content"] for entry in messages_of(session)]


def test_where_the_conversation_was_held_is_read_from_its_lines_not_from_the_folders_name(scope, tmp_path):
    """mrocklin/claudechic#20: "." becomes "-" in the name, too, so nobody can turn it back."""
    _, session = bring(scope, tmp_path / "-srv-team--local-share" / "one.jsonl", b"".join(conversation(2)))
    assert session.info.metadata["cwd"] == "/srv/team/.local/share"


def test_a_malformed_record_in_the_middle_costs_itself_and_is_told(scope, tmp_path):
    """anthropics/claude-code#50347."""
    lines = conversation(40)
    lines.insert(20, b'{"type": "file-history-snapshot", "snapshot": {"trackedFileBackups": \n')
    report, session = bring(scope, tmp_path / "one.jsonl", b"".join(lines))
    assert texts(session) == [f"text {n}" for n in range(40)]
    assert [defect.record for defect in report.defects] == [21]


def test_nul_blocks_of_a_crash_cost_what_they_cover_and_the_session_is_listed(scope, tmp_path):
    """anthropics/claude-code#76059."""
    lines = conversation(128)
    lines[60] = lines[60].rstrip(b"\n") + bytes(9_000) + b"\n"
    lines[127] = bytes(143_000)
    report, session = bring(scope, tmp_path / "one.jsonl", b"".join(lines))
    assert texts(session) == [f"text {n}" for n in range(127)]
    assert len({defect.record for defect in report.defects}) == 2
