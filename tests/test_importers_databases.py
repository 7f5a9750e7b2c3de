"""Databases of other tools: every row comes back with its exact values, whatever stands in it."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

import import_samples as samples
import segue
from import_samples import REAL, messages_of
from segue.exporters import export_original
from segue.importers import import_file, import_paths

MADE_FROM_OTHERS = ("_llm_migrations", "responses", "turn_search", "sqlite_")
"""Tables of llm that hold no record of their own; ``responses`` is compared where it is no index of words."""


@pytest.fixture
def scope():
    with closing(segue.open("memory:")) as db:
        yield db.scope()


def rows_of(path):
    """Each row as JSON, by a reader of its own: text and blobs by their bytes."""
    found = Counter()
    with closing(sqlite3.connect(path)) as con:
        con.text_factory = lambda raw: ("text", raw)
        names = [name[1].decode() for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in names:
            if table == "responses" or not table.startswith(MADE_FROM_OTHERS):
                columns = [column[1][1].decode() for column in con.execute(f'PRAGMA table_info("{table}")')]
                for row in con.execute(f'SELECT * FROM "{table}"'):  # noqa: S608
                    found[canonical({"table": table, "row": dict(zip(columns, map(told, row), strict=True))})] += 1
    return found


def told(value):
    if isinstance(value, tuple):
        try:
            return value[1].decode()
        except UnicodeDecodeError:
            return {"text_base64": base64.b64encode(value[1]).decode()}
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return {"real": "inf"} if value == float("inf") else value


def canonical(value):
    return json.dumps(value, sort_keys=True)


def records_of(scope, report):
    """The records of all sessions of the file, those that forks share once."""
    found = Counter()
    for one in report.sessions:
        out = io.BytesIO()
        assert export_original(scope.get_key(one.key), out, scope=scope) == []
        mine = Counter(canonical(json.loads(record)) for record in out.getvalue().splitlines())
        found |= mine
    return found


FILES = {
    "llm": (samples.llm_database, "llm_logs.db"),
    "langgraph": (samples.langgraph_database, "langgraph_checkpoints.sqlite"),
}


@pytest.mark.parametrize("tool", FILES)
@pytest.mark.parametrize("source", ["made", "recorded"])
def test_every_row_comes_back_and_a_second_import_adds_nothing(scope, tmp_path, tool, source):
    make, name = FILES[tool]
    path = tmp_path / name
    if source == "made":
        make(path)
    elif REAL.is_dir():
        shutil.copy(REAL / "generated" / name, path)
    else:
        pytest.skip("the recorded files are not here")
    report = import_file(scope, path)
    assert (report.format, report.outcome) == (tool, "imported")
    assert records_of(scope, report) == rows_of(path)
    again = import_file(scope, path)
    assert (again.outcome, again.entries) == ("unchanged", 0)


def test_values_that_json_does_not_have_are_kept_exactly(scope, tmp_path):
    path = tmp_path / "logs.db"
    samples.llm_database(path)
    with closing(sqlite3.connect(path)) as con, con:
        torn = "中文".encode()[:-1]
        con.execute("INSERT INTO responses (id, prompt, conversation_id) VALUES ('r9', CAST(? AS TEXT), 'c1')", (torn,))
        con.execute("INSERT INTO responses (id, prompt) VALUES ('nul', ?)", ("a\0b\ud83d".encode("utf-8", "replace"),))
        con.execute("INSERT INTO attachments VALUES ('inf', 9e999), ('big', 1.5e300)")
        con.execute("INSERT INTO attachments VALUES (-9223372036854775808, '😀')")
    report = import_file(scope, path)
    assert records_of(scope, report) == rows_of(path)
    assert not report.counts["not-written"]
    texts = [e.json()["content"] for e in messages_of(scope.get_key("llm:c1"))]
    assert "中\ufffd\ufffd" in texts


def test_items_of_an_agents_database_are_its_own_bytes_however_odd(scope, tmp_path):
    path = tmp_path / "a.db"
    samples.agents_database(path)
    items = [b'{"role": "user", "content": "a\\u0000b"}', b'{"role":"user","content":"\xe4\xb8"}', b"\xff", b"\0\0"]
    with closing(sqlite3.connect(path)) as con, con:
        for kind in ("TEXT", "BLOB"):
            insert = f"INSERT INTO agent_messages (session_id, message_data) VALUES ('s\n2', CAST(? AS {kind}))"  # noqa: S608
            con.executemany(insert, [(item,) for item in items])
    report = import_file(scope, path)
    sessions = [scope.get_key(one.key) for one in report.sessions]
    assert len(sessions) == 2
    odd = next(session for session in sessions if session.info.metadata["session"] == "s\n2")
    out = io.BytesIO()
    assert export_original(odd, out) == []
    assert out.getvalue() == b"".join(item + b"\n" for item in items * 2)
    assert import_file(scope, path).entries == 0


def test_calls_of_llm_and_their_results_are_a_conversation(scope, tmp_path):
    path = tmp_path / "logs.db"
    samples.llm_database(path)
    import_file(scope, path)
    messages = scope.get_key("llm:c1").messages()
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2]["tool_calls"][0]["id"] == messages[3]["tool_call_id"]
    assert {info.title for info in scope.iterate()} == {"New", "Old", ""}


def test_a_database_that_grew_adds_what_is_new(scope, tmp_path):
    path = tmp_path / "logs.db"
    samples.llm_database(path)
    import_file(scope, path)
    with closing(sqlite3.connect(path)) as con, con:
        con.execute("INSERT INTO messages VALUES ('h4', 'h2', 'user'), ('h5', 'h4', 'assistant')")
        con.execute("INSERT INTO parts VALUES (4, 'h4', 0, 'text', NULL, 'and?', NULL)")
        con.execute("INSERT INTO parts VALUES (5, 'h5', 0, 'text', NULL, 'that is all', NULL)")
        con.execute("UPDATE threads SET tip_message_hash = 'h5'")
        con.execute("INSERT INTO turns VALUES ('u3', 't1', 'h5', '2026-05-03', 3, 30, NULL)")
    report = import_file(scope, path)
    assert [one.forked_from for one in report.sessions if one.key == "llm:t1"] == [""]
    assert report.usage == segue.Usage(3, 30)
    assert [m["content"] for m in scope.get_key("llm:t1").messages()][-2:] == ["and?", "that is all"]


def test_a_database_in_use_is_read_beside_its_writer_and_one_that_is_locked_is_named(scope, tmp_path, monkeypatch):
    monkeypatch.setattr("segue.importers.database.WAIT_SECONDS", 0.05)
    path = tmp_path / "a.db"
    samples.agents_database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        report = import_file(scope, path)
        assert (report.outcome, "locked" in report.reason) == ("skipped", True)
        writer.execute("ROLLBACK")
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM agent_messages")
        report = import_file(scope, path)
        assert (report.outcome, report.sessions[0].messages) == ("imported", 2)
        writer.execute("ROLLBACK")


def test_a_database_of_another_version_and_a_damaged_one_stop_nothing(scope, tmp_path):
    strange, damaged, good = (tmp_path / f"{name}.db" for name in ("a-strange", "b-damaged", "c-good"))
    with closing(sqlite3.connect(strange)) as con, con:
        con.execute("CREATE TABLE agent_messages (id INTEGER, payload TEXT)")
    samples.llm_database(damaged)
    body = bytearray(damaged.read_bytes())
    body[5_000:40_000] = bytes(35_000)
    damaged.write_bytes(body)
    samples.agents_database(good)
    reports = list(import_paths(scope, [tmp_path]))
    assert [report.outcome for report in reports] == ["skipped", reports[1].outcome, "imported"]
    assert reports[1].outcome in ("failed", "skipped")
    assert all(report.reason for report in reports[:2])
