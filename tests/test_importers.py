"""Importers: every record is kept, what is in it is found, and nothing is counted or stored twice."""

from __future__ import annotations

import io
import json
import os
import random
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import import_samples as samples
import segue
from import_samples import call, claude_record, line, messages_of, original_of, result, spent
from segue import Usage, ViewSpec, cli
from segue.errors import Unavailable
from segue.exporters import export_bundle
from segue.importers import import_file, import_paths, import_rows, import_transcript


@pytest.fixture(params=["memory:", "sqlite"])
def scope(request, tmp_path):
    url = "memory:" if request.param == "memory:" else f"sqlite:///{tmp_path}/store.db"
    with closing(segue.open(url)) as db:
        yield db.scope("acme", "lin")


@pytest.fixture
def bring(scope, tmp_path):
    """Imports bytes under a name; the same name is the same file."""

    def bring(body, name="file.jsonl", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body if isinstance(body, bytes) else b"".join(map(line, body)))
        return import_file(scope, path, **options)

    return bring


def only(scope, report):
    return scope.get_key(report.sessions[0].key)


# Bytes, twice, growth


@pytest.mark.parametrize("name", samples.FILES)
def test_the_original_bytes_come_back(bring, scope, name):
    report = bring(samples.FILES[name], name)
    assert report.outcome == "imported"
    assert original_of(scope, report) == samples.FILES[name]


@pytest.mark.parametrize("name", samples.FILES)
def test_a_second_import_adds_nothing(bring, scope, name):
    first = bring(samples.FILES[name], name)
    again = bring(samples.FILES[name], name)
    assert (again.outcome, again.entries, again.usage) == ("unchanged", 0, Usage())
    assert [one.id for one in again.sessions] == [one.id for one in first.sessions]


@pytest.mark.parametrize("name", samples.LINES)
def test_a_file_that_grows_line_by_line_ends_as_if_it_was_imported_once(bring, scope, name):
    whole = samples.LINES[name]
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    for end in [*ends[:-1:2], ends[-1]]:
        report = bring(whole[:end], name)
        assert not report.counts["rewritten"]
    session = only(scope, report)
    assert original_of(scope, report) == whole
    ids = [entry.id for entry in messages_of(session)]
    with closing(segue.open("memory:")) as db:
        fresh = import_file(db.scope(), report.path)
        other = only(db.scope(), fresh)
        assert [e.id for e in messages_of(other)] == ids
        assert other.refresh().usage == session.refresh().usage


def test_a_file_that_ends_within_a_record_keeps_the_rest_and_goes_on_later(bring, scope):
    whole = samples.claude()
    torn = bring(whole[:-40])
    assert torn.counts["torn"] == 1
    assert original_of(scope, torn) == whole[:-40]
    later = bring(whole)
    assert later.sessions[0].id == torn.sessions[0].id
    assert original_of(scope, later) == whole


def test_a_torn_character_at_the_end_is_kept_and_told(bring, scope):
    body = samples.claude(1) + b'{"type":"user","message":{"role":"user","content":"\xc3'
    report = bring(body)
    assert report.counts["torn"] == 1
    assert original_of(scope, report) == body


def test_a_rewritten_file_becomes_a_fork_at_the_last_common_record(bring, scope):
    whole = samples.claude()
    first = bring(whole)
    changed = whole.replace("第 2 个".encode(), "第 7 个".encode())
    second = bring(changed)
    assert second.counts["rewritten"] == 1
    assert second.sessions[0].forked_from == first.sessions[0].id
    assert original_of(scope, first) == whole
    fork = only(scope, second)
    assert (fork.info.parent.session, fork.info.parent.link) == (first.sessions[0].id, "fork")
    assert original_of(scope, second) == changed
    assert bring(changed).entries == 0


def test_a_file_that_became_shorter_takes_nothing_away(bring, scope):
    whole = samples.claude()
    first = bring(whole)
    report = bring(samples.claude(1))
    assert (report.counts["shorter"], report.sessions[0].forked_from) == (1, "")
    assert original_of(scope, first) == whole


def test_a_session_that_was_continued_here_is_continued_in_a_fork(bring, scope):
    session = only(scope, bring(samples.claude(1)))
    with session.run() as run:
        run.append({"role": "user", "content": "and now?"})
    report = bring(samples.claude(2))
    assert report.sessions[0].forked_from == session.id
    assert session.messages()[-1]["content"] == "and now?"
    assert original_of(scope, report) == samples.claude(2)
    assert bring(samples.claude(2)).entries == 0


def test_a_dry_run_counts_and_writes_nothing(bring, scope):
    dry = bring(samples.claude(), is_dry=True)
    assert list(scope.iterate(unlisted=True)) == []
    assert dry.entries == bring(samples.claude()).entries


# What is found


def test_a_claude_transcript_is_a_conversation_that_can_go_on(bring, scope):
    session = only(scope, bring(samples.claude(2)))
    roles = [message["role"] for message in session.messages()]
    assert roles == ["user", "assistant", "user", "assistant"] * 2
    assert session.info.title.startswith("请看第 0 个文件")
    first = messages_of(session)[0]
    assert (first.origin, first.occurred_at.isoformat()) == ("user", "2026-05-01T09:00:02+00:00")
    with session.run() as run:
        run.append({"role": "user", "content": "go on"})
        assert run.messages()[-1]["content"] == "go on"


def test_a_message_is_the_very_bytes_of_the_record(bring, scope):
    odd = b'{"type":"user","sessionId":"s","uuid":"u","message":{"role":"user","content":"a \\u4e2d"},"more": 1}\n'
    entry = messages_of(only(scope, bring(odd)))[0]
    assert entry.body == b'{"role":"user","content":"a \\u4e2d"}'


def test_branches_that_were_given_up_are_told_apart_and_kept(bring, scope):
    record = claude_record
    values = [
        record("user", "q", None, "which?"),
        record("assistant", "a", "q", "the first"),
        record("user", "b", "a", "no"),
        record("user", "c", "a", "yes"),
        record("assistant", "d", "c", "fine"),
    ]
    report = bring(values)
    session = only(scope, report)
    assert report.sessions[0].abandoned == 1
    assert [m["content"] for m in session.messages()] == ["which?", "the first", "yes", "fine"]
    assert [e.json()["content"] for e in messages_of(session)] == ["which?", "the first", "no", "yes", "fine"]
    bring([*values, record("user", "e", "b", "after all, no")])
    assert [m["content"] for m in session.messages()] == ["which?", "the first", "no", "after all, no"]
    assert bring([*values, record("user", "e", "b", "after all, no")]).entries == 0


def test_parallel_calls_are_one_turn_and_no_branches(bring, scope):
    record = claude_record
    values = [
        record("user", "q", None, "both"),
        record("assistant", "a1", "q", call("t1"), message=spent("m", 5)),
        record("assistant", "a2", "a1", call("t2"), message=spent("m", 9)),
        record("user", "r1", "a1", result("t1")),
        record("user", "r2", "a2", result("t2")),
        record("assistant", "b", "r2", [{"type": "text", "text": "done"}]),
    ]
    report = bring(values)
    assert report.sessions[0].abandoned == 0
    messages = only(scope, report).messages()
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["t1", "t2"]


def test_a_compaction_is_a_cut_and_the_history_stays(bring, scope):
    record = claude_record
    values = [
        record("user", "q", None, "long ago"),
        record("assistant", "a", "q", "yes"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "s", "parentUuid": None, "logicalParentUuid": "a"},
        record("user", "c", "s", "summary of it all", isCompactSummary=True),
        record("assistant", "d", "c", "go on"),
    ]  # fmt: skip
    session = only(scope, bring(values))
    assert [m["content"] for m in session.messages()] == ["summary of it all", "go on"]
    assert len(messages_of(session)) == 4
    assert [m["content"] for m in session.fork().messages()] == ["summary of it all", "go on"]


def test_a_file_that_begins_with_a_compaction_is_known_again(bring, scope):
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "s", "parentUuid": None, "sessionId": "x"}
    values = [boundary, claude_record("user", "c", "s", "the summary", isCompactSummary=True)]
    assert bring(values).outcome == "imported"
    for _ in range(3):
        again = bring(values)
        assert (again.entries, again.counts["rewritten"]) == (0, 0)


def test_a_summary_whose_predecessor_is_missing_stands_alone(bring, scope):
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "s", "parentUuid": None, "sessionId": "x"}
    boundary["logicalParentUuid"] = "in another file"
    values = [boundary, claude_record("user", "c", "s", "the summary", isCompactSummary=True)]
    report = bring(values)
    assert report.counts["dangling-parent"] == 1
    assert len(only(scope, report).messages()) == 1


def test_subagents_are_children_and_not_listed(bring, scope, tmp_path):
    main = "0a1b2c3d-0000-4000-8000-000000000001"
    bring(samples.claude(1), f"{main}.jsonl")
    agent = claude_record("user", "x", None, "look there", isSidechain=True, agentId="a77")
    report = bring([agent], f"{main}/subagents/agent-a77.jsonl")
    child = only(scope, report)
    assert not child.info.is_listed
    assert child.info.parent.session == scope.get_key(f"claude-code:{main}").id
    assert len(scope.list().sessions) == 1
    again = import_transcript(scope, tmp_path / f"{main}.jsonl")
    assert [one.entries for one in again.sessions] == [0, 0]


def test_messages_of_a_subagent_inside_the_main_file_are_a_session_of_their_own(bring, scope):
    values = [
        claude_record("user", "q", None, "do it"),
        claude_record("user", "x", None, "sub task", isSidechain=True),
        claude_record("assistant", "y", "x", "sub answer", isSidechain=True),
        claude_record("assistant", "b", "q", "done"),
    ]
    report = bring(values)
    main, child = (scope.get_key(one.key) for one in report.sessions)
    assert [m["content"] for m in main.messages()] == ["do it", "done"]
    assert [m["content"] for m in child.messages()] == ["sub task", "sub answer"]
    assert original_of(scope, report) == b"".join(map(line, values))


def test_a_codex_compaction_shows_what_replaced_the_history(bring, scope):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "kept question"}]}
    body = samples.codex() + line({"type": "compacted", "payload": {"message": "", "replacement_history": [item]}})
    assert only(scope, bring(body)).messages() == [item]


def test_the_order_of_a_tree_in_the_file_does_not_matter(tmp_path):
    def told(order):
        with closing(segue.open("memory:")) as db:
            path = tmp_path / "c.json"
            path.write_bytes(samples.chatgpt(order))
            report = import_file(db.scope(), path)
            session = only(db.scope(), report)
            return [e.id for e in messages_of(session)], session.messages()

    first = told(list)
    assert [m["content"] for m in first[1]] == ["why?", "second answer", "thanks"]
    shuffled = random.Random(7)
    for _ in range(10):
        assert told(lambda nodes: shuffled.sample(nodes, len(nodes))) == first


def test_a_deep_tree_takes_time_in_proportion():
    from segue.importers.chatgpt import in_order

    mapping = {f"n{n}": {"parent": f"n{n - 1}" if n else None, "message": None} for n in range(40_000)}
    assert in_order(dict(reversed(mapping.items()))) == list(mapping)


def test_claude_ai_calls_and_results_are_parted_and_unsigned_thinking_is_left_out(bring, scope):
    report = bring(samples.claude_ai(), "c.json")
    messages = only(scope, report).messages()
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"][1]["text"] == "[attachment: a.py]\nx = 1"
    assert messages[2]["content"][0]["tool_use_id"] == messages[1]["content"][1]["id"]
    assert report.counts["left-out"] == 1
    assert report.counts["not-a-conversation"] == 1


def test_the_tutorials_sessions_hold_bare_blocks_and_end_on_the_assistant(bring, scope):
    report = bring(samples.tutorial(), "t.json")
    session = only(scope, report)
    assert [m["role"] for m in session.messages()] == ["user", "assistant", "user", "assistant"]
    assert report.counts["bare-block"] == 3
    row = {**json.loads(samples.tutorial()), "session_id": "tutorial-0002"}
    row["messages"] = json.dumps(row["messages"])
    assert import_rows(scope, [row]).entries == report.entries
    assert import_rows(scope, [row]).entries == 0


def test_rows_of_an_agents_database_are_its_entries(scope, tmp_path):
    samples.agents_database(tmp_path / "a.db")
    report = import_file(scope, tmp_path / "a.db")
    session = only(scope, report)
    assert [m["content"] for m in session.messages()] == ["hi", "hello"]
    assert messages_of(session)[0].body == b'{"role": "user", "content": "hi"}'
    assert report.counts["broken"] == 1
    assert b"torn {" in original_of(scope, report)


# Tokens


def test_records_of_one_message_are_counted_once_by_the_last(bring, scope):
    values = [
        claude_record("assistant", f"a{n}", None, "x", message=spent("m1", out)) for n, out in enumerate((9, 9, 159))
    ]
    session = only(scope, bring(values))
    assert session.refresh().usage == Usage(input=107, output=159, cache_read=7)


def test_copies_of_a_history_are_counted_once(bring, scope):
    bring(samples.claude(), "one.jsonl")
    copy = samples.claude().replace(b"0a1b2c3d-0000", b"ffffffff-0000")
    assert bring(copy, "two.jsonl").usage == Usage()
    more = copy + line(claude_record("assistant", "z", "b2", "more", message=spent("new", 5), sessionId="s"))
    assert bring(more, "two.jsonl").usage.output == 5


def test_a_codex_fork_that_repeats_its_parent_is_counted_once(bring, scope):
    def count(stamp, given, out):
        info = {"total_token_usage": {"input_tokens": given, "output_tokens": out}}
        return {"timestamp": stamp, "type": "event_msg", "payload": {"type": "token_count", "info": info}}

    meta = {"type": "session_meta", "payload": {"id": "parent-1"}}
    fork = {"type": "session_meta", "payload": {"id": "fork-1", "forked_from_id": "parent-1"}}
    one = bring([meta, count("2026-05-12T08:01:00Z", 1000, 200)], "p.jsonl")
    two = bring([fork, count("2026-06-12T08:01:00Z", 1000, 200), count("2026-06-12T08:02:00Z", 1600, 450)], "f.jsonl")
    assert (one.usage + two.usage)[:2] == (1600, 450)


# Damage


def damaged(values):
    lines = [line(value) for value in values]
    lines[1] = lines[1][:-1] + lines[2]
    lines[2] = b"\0" * 300 + b"\n"
    lines[4] = lines[4][:-1] + b"\0" * 900 + b"\n"
    return [*lines[:3], b"not json\n", *lines[3:], b'{"type":"user"\n']


def test_damage_is_reported_and_everything_readable_is_kept(bring, scope):
    values = [claude_record("user", f"u{n}", f"u{n - 1}" if n else None, f"text }}{{ {n}") for n in range(7)]
    body = b"".join(damaged(values))
    report = bring(body)
    assert [report.counts[kind] for kind in ("glued", "nul", "broken")] == [1, 2, 2]
    assert [m["content"] for m in only(scope, report).messages()] == [v["message"]["content"] for v in values]
    assert original_of(scope, report) == body


def test_half_characters_and_other_encodings_are_kept_and_shown_replaced(bring, scope):
    good = line(claude_record("user", "u", None, "MARK"))
    body = good.replace(b"MARK", b"half \\ud83d") + good.replace(b"MARK", "中文".encode("gb18030")).replace(
        b'"u"', b'"v"'
    )
    report = bring(body)
    assert (report.counts["surrogate"], report.counts["encoding"]) == (1, 1)
    texts = [e.json()["content"] for e in messages_of(only(scope, report))]
    assert texts[0] == "half \ufffd"
    assert "\ufffd" in texts[1]
    assert original_of(scope, report) == body


def test_links_that_lead_nowhere_or_in_a_circle_stop_nothing(bring, scope):
    record = claude_record
    values = [
        record("user", "a", "b", "one"),
        record("assistant", "b", "a", "two"),
        record("user", "c", "lost", "three"),
        record("user", "c", "lost", "three"),
    ]
    report = bring(values)
    assert (report.counts["cycle"], report.counts["dangling-parent"], report.counts["duplicate-id"]) == (1, 2, 1)
    assert [m["content"] for m in only(scope, report).messages()] == ["one", "two", "three"]


def test_clocks_that_run_backwards_and_other_sessions_are_reported_and_order_stays(bring, scope):
    values = [
        claude_record("user", "a", None, "one", timestamp="2026-05-02T00:00:00Z"),
        claude_record("assistant", "b", "a", "two", timestamp="2026-05-01T00:00:00Z", sessionId="another"),
        {"type": "quite-new", "sessionId": "another"},
    ]
    report = bring(values)
    assert [report.counts[k] for k in ("clock-backwards", "other-session", "unknown-record")] == [1, 1, 1]
    assert [m["content"] for m in only(scope, report).messages()] == ["one", "two"]


def test_orphans_are_reported_and_the_view_is_valid(bring, scope):
    record = claude_record
    values = [record("user", "q", None, "go")]
    for n in range(3):
        values += [
            record("assistant", f"a{n}", values[-1]["uuid"], call(f"t{n}")),
            record("user", f"u{n}", f"a{n}", "go on"),
        ]
    values.append(record("user", "r", "u2", result("never called")))
    report = bring(values)
    assert (report.counts["call-without-result"], report.counts["result-without-call"]) == (3, 1)
    session = only(scope, report)
    for format in ("anthropic", "openai.chat", "openai.responses"):
        assert session.view(ViewSpec(format, foreign="convert")).messages


def test_a_line_over_the_size_of_an_entry_is_kept_in_parts(bring, scope):
    values = [claude_record("user", "u", None, "x" * (5 * 1024 * 1024)), claude_record("user", "v", "u", "small")]
    body = b"".join(map(line, values))
    report = bring(body)
    assert report.counts["too-large"] == 1
    assert only(scope, report).messages() == [{"role": "user", "content": "small"}]
    assert original_of(scope, report) == body
    assert bring(body).entries == 0


@pytest.mark.parametrize("depth", [200, 600, 5_000])
@pytest.mark.parametrize("name", ["claude.jsonl", "codex.jsonl", "list.jsonl"])
def test_a_message_that_no_entry_can_hold_is_kept_and_stops_no_other(bring, scope, name, depth):
    deep = b"[" * depth + b"]" * depth
    lines = samples.LINES[name].splitlines(keepends=True)
    at = next(n for n, one in enumerate(lines) if b'"role":"user"' in one)
    lines.insert(at + 1, lines[at].replace(b'"role":"user"', b'"role":"user","more":' + deep).replace(b'"q0"', b'"q9"'))
    body = b"".join(lines)
    report = bring(body, name)
    whole = bring(samples.LINES[name], f"whole.{name}", is_dry=True)
    assert report.outcome == "imported"
    assert report.counts["not-shown"] + report.counts["broken"] + report.counts["torn"] == 1
    assert report.sessions[0].messages == whole.sessions[0].messages
    assert original_of(scope, report) == body


def test_a_line_over_the_limit_of_reading_is_kept_unread(bring, scope, monkeypatch):
    monkeypatch.setattr("segue.importers.records.LINE_MAX", 1000)
    body = line(claude_record("user", "u", None, "ok")) + b'{"type":"user","x":"' + b"y" * 2500 + b'"}\n'
    report = bring(body)
    assert report.counts["too-large"] >= 1
    assert original_of(scope, report) == body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"), (b"# notes\n", "no JSON"), (b"SQLite format 3\0" + b"x" * 100, "damaged"),
        (b"PK\x03\x04zip", "zip"), (b"\xff\xfeh\0i\0", "UTF-16"), (b'{"a": 1}\n', "unknown kind"),
        (b"\0" * 5000, "unknown kind"), (b'a:\n - {"effort": "low"}\n', "YAML"), (b'{"resourceSpans": []}\n', "traces"),
        (b'{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/"}\n', "session of pi"),
        (b'{"uuid":"u","sessionId":"s","type":"user","message":{"role":"user","parts":[]}}\n', "Qwen"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_named_with_the_reason(bring, body, reason):
    report = bring(body, "claude.jsonl")
    assert report.outcome == "skipped"
    assert reason in report.reason


TALK = b'{"role":"user","content":"hi"}\n{"role":"assistant","content":"yes"}\n'


@pytest.mark.parametrize("mode", ["wal", "delete", "persist"])
def test_files_that_sqlite_keeps_beside_a_database_are_no_conversations(scope, tmp_path, mode):
    folder = tmp_path / "app"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "a.db", isolation_level=None)) as con:
        con.execute(f"PRAGMA journal_mode = {mode}")
        con.execute("PRAGMA cache_size = 1")
        con.execute("CREATE TABLE t (x)")
        con.executemany("INSERT INTO t VALUES (?)", [(TALK * 20,)] * 40)
        con.execute("BEGIN")
        con.execute("UPDATE t SET x = x || 'y'")
        if mode == "persist":
            con.execute("COMMIT")  # its journal stays, with NULs over the beginning
        reports = {path.path.rpartition("/")[2]: path for path in import_paths(scope, [folder])}
    assert {report.outcome for report in reports.values()} == {"skipped"}
    assert reports.keys() == ({"a.db", "a.db-wal", "a.db-shm"} if mode == "wal" else {"a.db", "a.db-journal"})
    if mode != "persist":
        assert all("beside a database" in reports[name].reason for name in reports.keys() - {"a.db"})
    assert list(scope.iterate(unlisted=True)) == []


@pytest.mark.parametrize("start", [bytes(range(256)) * 4, b"\x00\x01\x00\x02\n\x03\x04\x05\n\x06\n\x07\n\x0e\n"])
def test_bytes_that_are_no_text_are_no_file_of_lines_although_some_lines_parse(bring, start):
    report = bring(start + b"\n" + TALK + start + b"\n" + TALK + start)
    assert (report.outcome, report.reason) == ("skipped", "bytes of an unknown kind")


def test_what_a_crash_leaves_in_a_file_of_lines_does_not_make_it_bytes(bring, scope):
    junk = bytes(range(256)).replace(b"\n", b"") + b"\n"
    told = TALK.splitlines(keepends=True)
    colours = b'{"role":"user","content":"\x1b[31m\x01\x02\x03\x04\x05"}\n'
    bodies = [
        b"\0" * 5000 + TALK,
        TALK + b"\0" * 5000,
        TALK + junk * 9,
        told[0] + junk + told[1],
        told[0] + b"\0" * 5000 + told[1],
    ]
    for n, body in enumerate([*bodies, colours]):
        report = bring(body, f"{n}.jsonl")
        assert report.outcome == "imported"
        assert report.sessions[0].messages
        assert original_of(scope, report) == body


def test_a_store_of_segue_is_named_with_the_command_that_copies_it(scope, tmp_path):
    with closing(segue.open(f"sqlite:///{tmp_path}/mine.db")) as db:
        db.scope().create().append({"role": "user", "content": "hi"})
    report = import_file(scope, tmp_path / "mine.db")
    assert (report.outcome, "segue copy" in report.reason) == ("skipped", True)


@pytest.mark.parametrize("name", ["gemini.json", "chatgpt.json", "claude_ai.json"])
def test_a_document_that_was_cut_off_anywhere_is_told_to_be_broken(bring, name):
    whole = samples.FILES[name].rstrip()
    for cut in range(1, len(whole), max(1, len(whole) // 25)):
        report = bring(whole[:cut], f"{cut}-{name}")
        assert report.outcome == "skipped" or [one.kind for one in report.defects].count("broken") == 1, cut
        assert "markdown" not in report.reason


# What cannot be read, and odd names


@pytest.fixture
def as_nobody():
    """A folder in which, and a moment for which, permissions hold although the tests may run as root."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103
        is_root = os.geteuid() == 0

        @contextmanager
        def moment():
            os.seteuid(65534 if is_root else os.geteuid())
            try:
                yield
            finally:
                os.seteuid(0 if is_root else os.geteuid())

        yield Path(folder), moment


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
def test_what_may_not_be_read_is_told_and_the_rest_is_imported(as_nobody, capfd, mode):
    folder, moment = as_nobody
    closed = folder / "in" / "closed"
    closed.mkdir(parents=True)
    for path in (closed / "a.jsonl", folder / "in" / "z" / "b.jsonl"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(TALK)
    (closed / "a.jsonl").chmod(0o000)
    closed.chmod(mode)
    with moment():
        code = cli.main(["import", str(folder / "in"), "--store", "memory:", "--json"])
    closed.chmod(0o755)
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    place = closed if mode == 0o000 else closed / "a.jsonl"
    assert (first["path"], first["outcome"], code) == (str(place), "failed", 1)
    assert "Permission denied" in first["reason"]
    assert second["outcome"] == "imported"


def test_a_file_in_a_folder_that_is_closed_is_told_when_it_is_named(as_nobody, capfd):
    folder, moment = as_nobody
    (folder / "closed").mkdir()
    (folder / "closed").chmod(0o000)
    with moment():
        code = cli.main(["import", str(folder / "closed" / "a.jsonl"), "--store", "memory:"])
    assert (code, "Permission denied" in capfd.readouterr().out) == (1, True)


@pytest.mark.parametrize("name", samples.FILES)
def test_a_name_that_is_no_utf_8_is_told_with_a_mark_and_imported_once(scope, tmp_path, name):
    for odd in (b"\xff", b"\xfe", b"agent-\xff"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + odd + b"/" + odd + b".x"))
        path.parent.mkdir()
        path.write_bytes(samples.FILES[name])
    first = list(import_paths(scope, [tmp_path]))
    first = [report for report in first if "store.db" not in report.path]
    assert {report.outcome for report in first} <= {"imported", "unchanged"}
    assert len({report.path.encode() for report in first}) == 3
    again = [report for report in import_paths(scope, [tmp_path]) if "store.db" not in report.path]
    assert {report.outcome for report in again} == {"unchanged"}
    assert original_of(scope, first[0]) == samples.FILES[name]


def test_a_name_that_is_no_utf_8_goes_through_the_command_line(tmp_path, capfd):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    Path(path).write_bytes(TALK)
    Path(path.replace(".jsonl", ".md")).write_bytes(b"# notes")
    store = f"sqlite:///{tmp_path}/s.db"
    for as_json in ((), ("--json",)):
        assert cli.main(["import", path, "--store", store, *as_json]) == 0
        assert cli.main(["import", path, path.replace(".jsonl", ".md"), "--store", store, *as_json]) == 1


@pytest.mark.parametrize("words", [(), ("--for", "claude-agent-sdk")])
def test_a_pipe_is_refused_by_name(tmp_path, capfd, words):
    os.mkfifo(tmp_path / "p.jsonl")
    assert cli.main(["import", str(tmp_path / "p.jsonl"), "--store", "memory:", *words]) == 1
    assert "a pipe" in capfd.readouterr().out


# Bundles


@pytest.fixture
def packed(tmp_path):
    """A session of two messages and a fork of it with one more, in a bundle; and what it was made of."""
    with closing(segue.open("memory:")) as db:
        main = db.scope().create(title="main")
        main.append({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"})
        main.append({"text": "mark"}, kind="note", format="segue")
        fork = main.fork(2, title="fork")
        fork.append({"role": "user", "content": "another way"})
        with (tmp_path / "b.segue").open("wb") as out:
            export_bundle([main, fork], out)
        yield tmp_path / "b.segue", main, fork


def told(report):
    return report.outcome, [(one.messages, one.entries) for one in report.sessions]


def test_a_bundle_says_what_was_new_and_a_dry_run_says_the_same_before(scope, packed):
    path, main, _ = packed
    new = ("imported", [(2, 3), (3, 1)])
    assert [told(import_file(scope, path, is_dry=True)) for _ in range(2)] == [new, new]
    assert list(scope.iterate(unlisted=True)) == []
    assert told(import_file(scope, path)) == new
    scope.open(main.id).append({"role": "user", "content": "mine"})
    for is_dry in (False, True, False):
        report = import_file(scope, path, is_dry=is_dry)
        assert told(report) == ("unchanged", [(2, 0), (3, 0)])
        assert report.sessions[0].id == main.id
    main.append({"role": "user", "content": "later"})
    with path.open("wb") as out:
        export_bundle([main], out)
    for is_dry in (True, False):
        assert told(import_file(scope, path, is_dry=is_dry)) == ("imported", [(3, 1)])


def test_a_bundle_of_what_is_archived_or_erased_here_is_unchanged(scope, packed, tmp_path):
    path, main, fork = packed
    import_file(scope, path)
    scope.open(fork.id).archive()
    mine = scope.open(main.id)
    mine.hollow(1)
    assert told(import_file(scope, path)) == ("unchanged", [(2, 0), (3, 0)])
    with path.open("wb") as out:
        export_bundle([mine], out)
    assert told(import_file(scope, path)) == ("unchanged", [(1, 0)])


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_bundle_whose_entry_is_another_one_here_fails_by_name_and_stops_nothing(scope, packed, tmp_path, is_dry):
    path, main, _ = packed
    scope.create(id=main.id).append({"role": "user", "content": "else"}, ids=[next(iter(main.history())).id])
    (tmp_path / "c.jsonl").write_bytes(TALK)
    first, second = import_paths(scope, [path, tmp_path / "c.jsonl"], is_dry=is_dry)
    assert (first.outcome, "other content" in first.reason, second.outcome) == ("failed", True, "imported")


@pytest.mark.parametrize("name", samples.DOCUMENTS)
def test_of_a_document_that_is_cut_off_the_rest_is_read(bring, scope, name):
    whole = samples.DOCUMENTS[name]
    cut = whole[: len(whole) * 3 // 4]
    if name == "tutorial.json":
        cut = cut.replace(b"[", b"[\n", 1)  # over several lines: no record of a file of lines
    report = bring(cut, name)
    assert report.outcome == "imported" or name == "claude_ai.json"
    if report.outcome == "imported":
        assert report.counts["broken"] == 1
        assert report.sessions[0].messages
        assert original_of(scope, report) == cut


def test_a_folder_of_everything_is_imported_file_by_file(scope, tmp_path):
    for name, body in samples.FILES.items():
        (tmp_path / "in" / "deep").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "deep" / f"{name}.wrong").write_bytes(body)
    (tmp_path / "in" / "notes.md").write_text("# mine")
    reports = list(import_paths(scope, [tmp_path / "in"]))
    assert sorted(report.outcome for report in reports) == ["imported"] * len(samples.FILES) + ["skipped"]


def test_an_export_of_an_import_of_an_export_is_the_same(bring, scope, tmp_path):
    session = only(scope, bring(samples.claude()))
    first = io.BytesIO()
    from segue.exporters import export_original

    export_original(session, first)
    with closing(segue.open("memory:")) as db:
        (tmp_path / "again.jsonl").write_bytes(first.getvalue())
        report = import_file(db.scope(), tmp_path / "again.jsonl")
        assert original_of(db.scope(), report) == first.getvalue()


def test_more_branches_than_one_entry_can_take_back_are_taken_back_by_several(bring, scope, monkeypatch):
    monkeypatch.setattr("segue.importers.writing.RETRACT_MAX", 3)
    values = [claude_record("user", "q", None, "which?")]
    values += [claude_record("assistant", f"a{n}", "q", f"answer {n}") for n in range(10)]
    session = only(scope, bring(values))
    assert [m["content"] for m in session.messages()] == ["which?", "answer 9"]
    assert len(session.by_ref("retract")) == 3
    assert bring(values).entries == 0
    values += [claude_record("user", "c", "a4", "the fifth it is")]
    bring(values)
    assert [m["content"] for m in session.messages()] == ["which?", "answer 4", "the fifth it is"]
    assert bring(values).entries == 0


@pytest.mark.parametrize("name", ["claude.jsonl", "codex.jsonl", "chatgpt.json", "tutorial.json"])
def test_an_import_that_the_store_stopped_anywhere_goes_on_when_it_is_asked_again(tmp_path, monkeypatch, name):
    monkeypatch.setattr("segue.importers.writing.BATCH_ENTRIES", 2)
    monkeypatch.setattr("segue.importers.packs.RECORDS_MAX", 3)
    path = tmp_path / name
    path.write_bytes(samples.FILES[name])
    append = segue.Session.append
    with closing(segue.open("memory:")) as db:
        once = import_file(db.scope(), path)
        wanted = [db.scope().get_key(one.key) for one in once.sessions]
        wanted = [(session.messages(), session.refresh().usage) for session in wanted if session.info.format != "segue"]
    for stop in range(1, 40):
        calls = iter(range(stop))

        def failing(session, *items, calls=calls, **options):
            if next(calls, None) is None:
                raise Unavailable("the disk is away; call again")
            return append(session, *items, **options)

        with closing(segue.open("memory:")) as db:
            monkeypatch.setattr(segue.Session, "append", failing)
            try:
                import_file(db.scope(), path)
            except Unavailable:
                is_stopped = True
            else:
                is_stopped = False
            monkeypatch.setattr(segue.Session, "append", append)
            report = import_file(db.scope(), path)
            assert original_of(db.scope(), report) == samples.FILES[name]
            sessions = [db.scope().get_key(one.key) for one in report.sessions]
            found = [
                (session.messages(), session.refresh().usage) for session in sessions if session.info.format != "segue"
            ]
            assert found == wanted
            assert (report.counts["rewritten"], import_file(db.scope(), path).entries) == (0, 0)
        if not is_stopped:
            break
    assert stop > 2


def test_a_document_of_more_than_one_append_takes_is_kept_whole(bring, scope):
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "x" * 1_500_000} for n in range(24)]
    body = json.dumps({"messages": messages}, indent=1).encode()
    report = bring(body, "m.json")
    assert (report.outcome, report.sessions[0].messages) == ("imported", 24)
    assert original_of(scope, report) == body
    assert bring(body, "m.json").entries == 0
