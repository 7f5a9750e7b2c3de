"""Tokens of imports equal what a second, simple reader counts in the same files, copies once."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing

import pytest

import import_samples as samples
import segue
from import_samples import REAL, line
from segue import Usage
from segue.importers import import_file, import_paths


@pytest.fixture
def scope():
    with closing(segue.open("memory:")) as db:
        yield db.scope()


# The second reader. It knows the files' own words, and nothing of the importers.


def values_of(text):
    """JSON values one behind the other, whatever is between them."""
    decoder, at = json.JSONDecoder(strict=False), 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        yield value


def number(told, name):
    return (told or {}).get(name) or 0


def of_claude(path):
    for record in values_of(path.read_text(errors="replace")):
        for value in record.get("loglines", [record]):
            message = value.get("message")
            if value.get("type", "assistant") == "assistant" and isinstance(message, dict) and message.get("usage"):
                told = message["usage"]
                read, write = number(told, "cache_read_input_tokens"), number(told, "cache_creation_input_tokens")
                long = number(told.get("cache_creation"), "ephemeral_1h_input_tokens")
                tokens = (number(told, "input_tokens") + read + write, number(told, "output_tokens"), read, write, long)
                yield message.get("id") or object(), (*tokens, 0)


def of_codex(path):
    """Running totals: what each adds to the one before, named by its time and the total."""
    before = (0,) * 6
    for value in values_of(path.read_text()):
        payload = value.get("payload")
        payload = payload if isinstance(payload, dict) else {}
        if payload.get("type") == "turn.completed":
            yield object(), codex_numbers(payload.get("usage"))
        total = (payload.get("info") or {}).get("total_token_usage") if payload.get("type") == "token_count" else None
        if total:
            now = codex_numbers(total)
            yield (value["timestamp"], now), tuple(a - b for a, b in zip(now, before, strict=True))
            before = now


def codex_numbers(told):
    names = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
    return (*(number(told, name) for name in names), 0, number(told, "reasoning_output_tokens"))


def of_gemini(path):
    for value in values_of(path.read_text()):
        for message in value.get("messages", [value]):
            told = message.get("tokens")
            if told:
                thoughts = number(told, "thoughts")
                given = number(told, "input") + number(told, "tool")
                tokens = (given, number(told, "output") + thoughts, number(told, "cached"), 0, 0, thoughts)
                yield message["id"] if len(message["id"]) > 8 else (path, message["id"]), tokens


def of_agents(path):
    if path.suffix == ".db":
        query = "SELECT name FROM sqlite_master WHERE name = 'turn_usage'"
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as con:
            if con.execute(query).fetchone():
                found = con.execute("SELECT total(input_tokens), total(output_tokens) FROM turn_usage").fetchone()
                yield object(), (*map(int, found), 0, 0, 0, 0)
        return
    told = json.loads(path.read_text())["context"].get("usage") or {}
    given, said = ((told.get(f"{side}_tokens_details") or [{}])[0] for side in ("input", "output"))
    cached, written = number(given, "cached_tokens"), number(given, "cache_write_tokens")
    reasoned = number(said, "reasoning_tokens")
    yield object(), (number(told, "input_tokens"), number(told, "output_tokens"), cached, written, 0, reasoned)


def of_llm(path):
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as con:
        for table in ("turns", "responses"):
            for id, given, said in con.execute(f"SELECT id, input_tokens, output_tokens FROM {table}"):  # noqa: S608
                yield id, (given or 0, said or 0, 0, 0, 0, 0)


def of_lists(path):
    for value in values_of(path.read_text(errors="replace")):
        told = value.get("response") if "messages" in value and isinstance(value.get("response"), dict) else value
        usage = told.get("usage") or {}
        if "prompt_tokens" in usage:
            cached = number(usage.get("prompt_tokens_details"), "cached_tokens")
            yield told["id"], (usage["prompt_tokens"], usage["completion_tokens"], cached, 0, 0, 0)


def of_nothing(path):
    """These formats tell no tokens: not one field in the file is called so."""
    assert b"_tokens" not in path.read_bytes().lower()
    return ()


READERS = {
    "claude-code": of_claude, "codex": of_codex, "gemini-cli": of_gemini, "openai-agents": of_agents, "llm": of_llm,
    "messages": of_lists, "chatgpt": of_nothing, "claude-ai": of_nothing, "langgraph": of_nothing,
}  # fmt: skip


def recount(facts):
    """Each call of a model once, by the highest numbers that were told of it."""
    calls = {}
    for name, tokens in facts:
        calls[name] = tuple(map(max, calls.get(name, (0,) * 6), tokens))
    return Usage(*(sum(column) for column in zip(*calls.values(), strict=True))) if calls else Usage()


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")
def test_tokens_of_all_recorded_files_equal_a_recount_by_another_reader(scope):
    imported = defaultdict(Usage)
    facts = defaultdict(list)
    for report in import_paths(scope, [REAL]):
        if report.outcome in ("imported", "unchanged"):
            imported[report.format] += report.usage
            path = REAL / report.path.removeprefix(f"{REAL}/")
            facts[report.format] += READERS[report.format](path)
    assert imported == {tool: recount(told) for tool, told in facts.items()}
    stored = Counter()
    for info in scope.iterate(unlisted=True):
        stored.update(dict(enumerate(info.usage)))
    assert Usage(*(stored[n] for n in range(6))) == sum(imported.values(), Usage())
    assert all(
        imported[tool].input for tool in ("claude-code", "codex", "gemini-cli", "openai-agents", "llm", "messages")
    )


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")
def test_each_recorded_file_alone_equals_its_recount():
    for path in sorted(REAL.rglob("*")):
        if path.is_file():
            with closing(segue.open("memory:")) as db:
                report = import_file(db.scope(), path)
            if report.outcome == "imported":
                told = READERS[report.format](path)
                assert report.usage == recount(told), path


# What the recorded files do not show.


def bring(scope, path, body):
    path.write_bytes(body)
    return import_file(scope, path)


def agents_database(path, usage):
    """A database of an advanced session with a branch, and the tokens of its turns."""
    path.unlink(missing_ok=True)
    samples.agents_database(path)
    with closing(sqlite3.connect(path)) as con, con:
        con.execute("ALTER TABLE agent_sessions ADD COLUMN created_at TEXT")
        con.execute("INSERT INTO agent_sessions VALUES ('s1', '2026-05-01 09:00:00')")
        con.execute(
            "CREATE TABLE message_structure"
            " (id INTEGER PRIMARY KEY, session_id, message_id, branch_id, sequence_number)"
        )
        rows = [("main", 1), ("main", 2), ("branch", 1), ("branch", 3)]
        con.executemany(
            "INSERT INTO message_structure (session_id, message_id, branch_id, sequence_number) VALUES ('s1', ?, ?, ?)",
            [(message, branch, n) for n, (branch, message) in enumerate(rows)],
        )
        con.execute(
            "CREATE TABLE turn_usage (session_id, branch_id, user_turn_number, input_tokens, output_tokens,"
            " input_tokens_details, output_tokens_details)"
        )
        con.executemany("INSERT INTO turn_usage VALUES ('s1', ?, ?, ?, ?, ?, NULL)", usage)


def test_turns_of_an_agents_database_are_counted_in_full_and_once_however_they_grow(scope, tmp_path):
    """A turn's tokens are stored behind its messages, may grow, and may belong to a turn without a message."""
    path = tmp_path / "a.db"
    agents_database(path, [])
    assert import_file(scope, path).usage == Usage()
    agents_database(path, [("main", 1, 100, 5, '{"cached_tokens": 60}')])
    assert import_file(scope, path).usage == Usage(100, 5, 60)
    grown = [("main", 1, 150, 9, '{"cached_tokens": 60}'), ("branch", 2, 30, 3, None), ("main", 7, 11, 1, None)]
    agents_database(path, grown)
    assert import_file(scope, path).usage == Usage(50 + 30 + 11, 4 + 3 + 1)
    assert import_file(scope, path).entries == 0
    with closing(segue.open("memory:")) as db:
        assert import_file(db.scope(), path).usage == Usage(191, 13, 60)


def test_a_later_state_of_a_run_counts_what_its_responses_add(scope, tmp_path):
    def state(*responses):
        told = [
            {"response_id": f"resp_{n}", "output": [], "usage": {"input_tokens": given, "output_tokens": 1}}
            for n, given in enumerate(responses)
        ]
        usage = {"input_tokens": sum(responses), "output_tokens": len(responses)}
        value = {"$schemaVersion": "1.0", "original_input": "hi", "generated_items": [], "context": {"usage": usage}}
        return json.dumps({**value, "model_responses": told}).encode()

    assert bring(scope, tmp_path / "one.json", state(10)).usage == Usage(10, 1)
    assert bring(scope, tmp_path / "two.json", state(10, 25)).usage == Usage(25, 1)


def test_turns_of_llm_that_no_thread_leads_to_and_answers_without_text_count_too(scope, tmp_path):
    path = tmp_path / "logs.db"
    samples.llm_database(path)
    report = import_file(scope, path)
    assert report.usage == recount(of_llm(path)) == Usage(1 + 2 + 4 + 8 + 16, 31 * 10)
    assert import_file(scope, path).entries == 0


def test_messages_of_langgraph_without_ids_are_counted_in_each_thread(scope, tmp_path):
    path = tmp_path / "checkpoints.db"
    samples.langgraph_database(path)
    report = import_file(scope, path)
    assert report.usage == Usage(2 * 7, 2 * 3)
    assert import_file(scope, path).usage == Usage()


def codex_file(metas, *totals):
    stamps = (f"2026-06-12T08:{n:02d}:00Z" for n in range(60))
    values = [{"type": "session_meta", "payload": meta} for meta in metas]
    for given, said in totals:
        info = {"total_token_usage": {"input_tokens": given, "output_tokens": said}}
        values.append(
            {"timestamp": next(stamps), "type": "event_msg", "payload": {"type": "token_count", "info": info}}
        )
    return b"".join(map(line, values))


def test_a_fork_of_a_fork_counts_what_is_its_own(scope, tmp_path):
    """ccusage/ccusage#1370, one step further: a fork repeats what its parents told, with their descriptions."""
    one = {"id": "one"}
    two = {"id": "two", "forked_from_id": "one"}
    three = {"id": "three", "forked_from_id": "two"}
    usage = bring(scope, tmp_path / "1.jsonl", codex_file([one], (100, 10))).usage
    usage += bring(scope, tmp_path / "2.jsonl", codex_file([two, one], (100, 10), (150, 20))).usage
    usage += bring(scope, tmp_path / "3.jsonl", codex_file([three, two, one], (100, 10), (150, 20), (170, 25))).usage
    assert usage[:2] == (170, 25)


def test_a_sub_agent_with_its_own_counter_is_counted_in_full(scope, tmp_path):
    """steipete/CodexBar#2208."""
    bring(scope, tmp_path / "1.jsonl", codex_file([{"id": "main"}], (100, 10), (200, 20)))
    child = bring(
        scope, tmp_path / "2.jsonl", codex_file([{"id": "sub", "parent_thread_id": "main"}], (100, 10), (120, 15))
    )
    assert child.usage[:2] == (120, 15)
    assert scope.get_key("codex:sub").info.parent.session == scope.get_key("codex:main").id


@pytest.mark.parametrize("told", [(9, 9, 159), (159, 9, 9)])
def test_of_several_records_of_one_message_the_highest_counts_in_whatever_order(scope, tmp_path, told):
    """ccusage/ccusage#901, titeya/dms-claudecode#52."""
    records = [
        samples.claude_record("assistant", f"a{n}", None, "x", message=samples.spent("m1", said), requestId="r1")
        for n, said in enumerate(told)
    ]
    report = bring(scope, tmp_path / "c.jsonl", b"".join(map(line, records)))
    assert report.usage == Usage(107, 159, 7)


def test_what_tools_gave_to_a_prompt_of_gemini_is_input_and_a_chat_that_is_written_anew_counts_once(scope, tmp_path):
    chat = json.loads(samples.gemini())
    chat["messages"][1]["tokens"]["tool"] = 40
    assert bring(scope, tmp_path / "g.json", json.dumps(chat).encode()).usage == Usage(50, 4, 2, 0, 0, 1)
    chat["messages"][1]["content"] = "written anew"
    chat["messages"][2]["id"] = "2"
    chat["messages"][2]["tokens"] = {"input": 5, "output": 1}
    assert bring(scope, tmp_path / "g.json", json.dumps(chat).encode()).usage == Usage(5, 1)
    assert bring(scope, tmp_path / "g.json", json.dumps(chat).encode()).entries == 0


def test_responses_that_were_kept_as_messages_or_beside_them_are_counted_by_their_ids(scope, tmp_path):
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8},
             "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip
    answer = {"role": "assistant", "content": "yes", "refusal": None}
    exchange = {"messages": [{"role": "user", "content": "hi"}],
                "response": {"id": "chatcmpl-1", "choices": [{"message": answer}], "usage": usage}}  # fmt: skip
    report = bring(scope, tmp_path / "log.json", json.dumps(exchange).encode())
    assert report.usage == Usage(12, 5, 8, 0, 0, 2)
    assert [m["content"] for m in scope.get_key(report.sessions[0].key).messages()] == ["hi", "yes"]
    assert bring(scope, tmp_path / "copy.json", json.dumps(exchange).encode()).usage == Usage()
    messages = [{"role": "user", "content": "hi"}, {**answer, "id": "chatcmpl-2", "usage": usage, "tool_calls": []}]
    assert bring(scope, tmp_path / "list.jsonl", b"".join(map(line, messages))).usage == Usage(12, 5, 8, 0, 0, 2)
