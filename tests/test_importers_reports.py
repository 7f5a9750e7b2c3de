"""
Public reports about sessions, as imports: each test names the one that it comes from; the inputs are our own.

Orphan calls, odd text, huge files, order and clocks, forks and branches, torn files, exported conversations. Reports
about tokens are in ``test_importers_tokens``, those about single records in ``test_claude_transcripts``.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest

import import_samples as samples
import segue
from import_memory import needed
from import_samples import REAL, call, claude_record, line, messages_of, original_of, result
from segue import ViewSpec
from segue.exporters import export_messages
from segue.formats import rules
from segue.importers import import_file, import_paths
from stores import FULL

FORMATS = ("anthropic", "openai.chat", "openai.responses")


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def scope(request, tmp_path):
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db", "jsonl": f"jsonl:{tmp_path}/s"}[request.param]
    with closing(segue.open(url)) as db:
        yield db.scope("acme", "lin")


@pytest.fixture
def bring(scope, tmp_path):
    def bring(records, name="file.jsonl"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        body = records if isinstance(records, bytes) else b"".join(map(line, records))
        path.write_bytes(body)
        report = import_file(scope, path)
        assert report.outcome in ("imported", "unchanged")
        assert original_of(scope, report) == body
        return report, scope.get_key(report.sessions[0].key)

    return bring


def talk(count, sessionId="s", **more):
    kinds = ("user", "assistant")
    return [
        claude_record(kinds[n % 2], f"u{n}", f"u{n - 1}" if n else None, f"text {n}", sessionId=sessionId, **more)
        for n in range(count)
    ]


def texts(messages):
    return [message["content"] for message in messages]


# A. Orphan tool calls


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_call_that_a_crash_left_open_is_answered_in_the_view_alone(bring, goes_on):
    """anthropics/claude-code#1894, strands-agents/harness-sdk#2025, pydantic/pydantic-ai#7977."""
    records = [claude_record("user", "q", None, "go"), claude_record("assistant", "a", "q", call("t1"))]
    records += [claude_record("user", "b", "a", "go on")] if goes_on else []
    report, session = bring(records)
    assert report.counts["call-without-result"] == 1
    before = [entry.body for entry in messages_of(session)]
    for format in FORMATS:
        first = session.view(ViewSpec(format, foreign="convert"))
        rules(format).check(first.messages)
        assert session.view(ViewSpec(format, foreign="convert")).messages == first.messages
    answer = session.messages()[2]["content"][0]
    assert (answer["tool_use_id"], answer["is_error"]) == ("t1", True)
    with session.run() as run:
        run.append({"role": "user", "content": "now this"})
        rules("anthropic").check(run.messages())
    assert [entry.body for entry in messages_of(session)][: len(before)] == before


def test_no_limit_of_a_view_cuts_a_call_from_its_result(bring):
    """strands-agents/harness-sdk#1274, openai/openai-agents-python#4322, microsoft/semantic-kernel#12708."""
    records = [claude_record("user", "q", None, "go")]
    for n in range(6):
        records.append(claude_record("assistant", f"a{n}", records[-1]["uuid"], call(f"t{n}")))
        records.append(claude_record("user", f"r{n}", f"a{n}", result(f"t{n}", "word " * 50)))
    _, session = bring(records)
    sizes = set()
    for most in range(1, 14):
        view = session.view(ViewSpec("anthropic", last_entries=most))
        rules("anthropic").check(view.messages)
        shown = {seq for seqs in view.seqs for seq in seqs}
        left = {seq for one in view.omitted for seq in range(one.first, one.last + 1)}
        assert {entry.seq for entry in messages_of(session)} <= shown | left
        sizes.add(len(view.messages))
    assert len(sizes) > 3


def test_of_orphans_in_the_middle_all_bytes_are_kept_all_are_told_and_the_view_is_valid(bring):
    """pydantic/pydantic-ai#4728."""
    records = [claude_record("user", "q", None, "go")]
    for n in range(3):
        records.append(claude_record("assistant", f"a{n}", records[-1]["uuid"], call(f"t{n}")))
        records.append(claude_record("user", f"u{n}", f"a{n}", "go on"))
    records.append(claude_record("user", "r", "u2", result("never called")))
    records += [claude_record("assistant", "z", "r", "done")]
    report, session = bring(records)
    assert report.counts["call-without-result"] + report.counts["result-without-call"] == 4
    for format in FORMATS:
        rules(format).check(session.view(ViewSpec(format, foreign="convert")).messages)


# C. Odd text


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ude00\\ud83d", "a\\ud83d\\u4e2d"])
def test_half_characters_are_kept_and_shown_replaced_and_told(bring, half):
    """anthropics/claude-code#56064."""
    body = line(claude_record("user", "u", None, [{"type": "text", "text": "ok MARK"}])).replace(b"MARK", half.encode())
    report, session = bring(body)
    assert report.counts["surrogate"] == 1
    shown = session.view(ViewSpec("anthropic")).bodies[0]
    assert "\ufffd" in json.loads(shown.decode())["content"][0]["text"]


def test_a_nul_comes_back_wherever_it_stands(bring, scope):
    """langchain-ai/langgraph#1878."""
    records = [
        claude_record("user", "q", None, "a\0b", cwd="/a\0b"),
        claude_record("assistant", "a", "q", call("t\0")),
        claude_record("user", "r", "a", result("t\0", "x\0y")),
        {"type": "custom-title", "customTitle": "t\0itle", "sessionId": records_session()},
    ]
    _, session = bring(records)
    assert session.messages() == [record["message"] for record in records[:3]]
    assert (session.info.title, session.info.metadata["cwd"]) == ("t\0itle", "/a\0b")
    assert [info.title for info in scope.iterate()] == ["t\0itle"]


def records_session():
    return claude_record("user", "q", None, "")["sessionId"]


@pytest.mark.parametrize(
    "odd", [{"content": "no role"}, {"role": "user"}, {"who": "me"}, {"role": 7, "content": "x"}, 3]
)
def test_what_is_no_message_is_told_with_its_place_and_kept(bring, odd):
    """pydantic/pydantic-ai#3038."""
    values = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, odd]
    report, session = bring(values)
    assert [(defect.kind, defect.record) for defect in report.defects] == [("not-a-message", 3)]
    assert texts(session.messages()) == ["hi", "yes"]


def test_no_locale_changes_what_is_imported_and_exported(tmp_path):
    """NousResearch/hermes-agent#117802, #13090."""
    body = line(claude_record("user", "u", None, "继续昨天那个脚本 😀"))
    (tmp_path / "c.jsonl").write_bytes(body)
    env = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "SEGUE_STORE": "sqlite:///s.db"}

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "segue", *words], cwd=tmp_path, env=env, capture_output=True, check=True
        )
        return done.stdout

    run("import", "c.jsonl")
    assert run("ls")
    assert run("export", "latest", "--as", "original") == body
    assert "继续昨天那个脚本 😀".encode() in run("export", "latest", "--as", "messages")


# D. Huge files


@pytest.mark.parametrize("place", ["first", "middle", "behind a broken line"])
def test_memory_is_a_small_multiple_of_the_longest_line_however_long_the_file(tmp_path, place):
    """openai/codex#28866: 500 MB with a line of 100 MB (here a tenth)."""
    size, longest = (500_000_000, 100_000_000) if FULL else (50_000_000, 10_000_000)
    count = (size - longest) // 20_000
    is_broken = place == "behind a broken line"
    with (tmp_path / "big.jsonl").open("wb") as out:
        out.write(b'{"type":"user","message":{"rol\n' if is_broken else b"")
        for n in range(count):
            if n == (count // 2 if place == "middle" else 0):
                out.write(line(claude_record("user", "long", f"u{n - 1}", "x" * longest)))
            out.write(line(claude_record("user", f"u{n}", f"u{n - 1}" if n else None, f"{n:019,}|" * 1_000)))
        out.write(line(claude_record("assistant", "end", f"u{count - 1}", "the-end")))
    found = needed(tmp_path)
    assert (found.records, found.large, found.last) == (count + 2 + is_broken, 1, "the-end")
    assert found.more_bytes < 40_000_000 + 3 * longest, found


def test_many_pictures_are_read_in_bounded_memory(tmp_path):
    """earendil-works/pi#9613, openclaw/openclaw#82402."""
    count = 200 if FULL else 20
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 375_000}}
    with (tmp_path / "big.jsonl").open("wb") as out:
        for n in range(count):
            out.write(line(claude_record("assistant", f"a{n}", f"r{n - 1}" if n else None, call(f"t{n}"))))
            out.write(line(claude_record("user", f"r{n}", f"a{n}", [{**result(f"t{n}")[0], "content": [picture]}])))
        out.write(line(claude_record("assistant", "end", f"r{count - 1}", "the-end")))
    found = needed(tmp_path)
    assert (found.records, found.large, found.last) == (2 * count + 1, 0, "the-end")
    assert found.more_bytes < 60_000_000, found


def test_what_a_session_costs_does_not_depend_on_its_sub_agents(scope, tmp_path):
    """anthropics/claude-code#23373, #78171."""
    children, length = (400, 80) if FULL else (40, 8)
    main = "0a1b2c3d-0000-4000-8000-000000000009"
    folder = tmp_path / "p" / main / "subagents"
    folder.mkdir(parents=True)
    (tmp_path / "p" / f"{main}.jsonl").write_bytes(b"".join(map(line, talk(14, sessionId=main))))
    for n in range(children):
        records = talk(length, sessionId=main, isSidechain=True, agentId=f"a{n:03}")
        (folder / f"agent-a{n:03}.jsonl").write_bytes(b"".join(map(line, records)))
    assert {report.outcome for report in import_paths(scope, [tmp_path / "p"])} == {"imported"}
    (parent,) = scope.list().sessions
    session = scope.open(parent.id)
    assert len(session.messages()) == len(messages_of(session)) == 14
    mine = list(scope.iterate(unlisted=True, parent=parent.id))
    assert len(mine) == children
    assert {info.parent.link for info in mine} == {"child"}


# E. Order and clocks


def test_the_order_of_the_file_decides_where_times_do_not(bring):
    """openai/openai-agents-python#1900, inclusionAI/Avernet#857, mastra-ai/mastra#16597."""
    stamp = "2026-05-01T09:00:00.000Z"
    _, session = bring(talk(1_000, timestamp=stamp))
    wanted = [f"text {n}" for n in range(1_000)]
    for _ in range(5):
        assert texts(session.messages()) == wanted
    assert len({entry.occurred_at for entry in messages_of(session)}) == 1


ZONES = """
    import segue
    from segue.importers import import_file
    with segue.open("memory:") as db:
        report = import_file(db.scope(), "c.jsonl")
        print([e.occurred_us for e in db.scope().get_key(report.sessions[0].key).history(kinds=("message",))])
"""


def test_times_are_the_same_instant_in_every_time_zone(tmp_path):
    """google/adk-python#1180: a time without a zone is UTC, which is what the tools that write it mean."""
    stamps = ["2026-05-01T09:00:00", "2026-05-01T09:00:00Z", "2026-05-01T14:45:00+05:45", "2026-05-01T09:00:00.000Z"]
    records = [claude_record("user", f"u{n}", None, "x", timestamp=stamp) for n, stamp in enumerate(stamps)]
    (tmp_path / "c.jsonl").write_bytes(b"".join(map(line, records)))
    told = set()
    for zone in ("America/New_York", "Asia/Shanghai", "Asia/Kathmandu"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(ZONES)],
            cwd=tmp_path, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        told.add(done.stdout)
    assert told == {f"{[1_777_626_000_000_000] * 4}\n"}


# F. Forks and branches


def test_a_file_rewritten_twice_at_the_same_place_is_two_forks(bring, scope):
    """openai/openai-agents-python#4150."""
    whole = talk(6)
    reports = [bring([*whole[:3], *talk_from(3, way)])[0] for way in ("first", "second", "third")]
    ids = [report.sessions[0].id for report in reports]
    assert len(set(ids)) == 3
    for id, way in zip(ids, ("first", "second", "third"), strict=True):
        assert texts(scope.open(id).messages()) == ["text 0", "text 1", "text 2", f"{way} 3", f"{way} 4", f"{way} 5"]
    assert bring([*whole[:3], *talk_from(3, "second")])[0].sessions[0].id == ids[1]


def talk_from(start, way):
    return [{**record, "message": {**record["message"], "content": f"{way} {n}"}}
            for n, record in enumerate(talk(6)) if n >= start]  # fmt: skip


def test_a_fork_behind_a_compaction_shows_what_its_parent_shows(bring):
    """anthropics/claude-code#40360."""
    before = talk(100)
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "cut", "parentUuid": None,
                "logicalParentUuid": "u99", "sessionId": "s"}  # fmt: skip
    summary = claude_record("user", "sum", "cut", "the summary", isCompactSummary=True, sessionId="s")
    kinds = ("assistant", "user")
    after = [claude_record(kinds[n % 2], f"v{n}", f"v{n - 1}" if n else "sum", f"later {n}", sessionId="s")
             for n in range(10)]  # fmt: skip
    _, session = bring([*before, boundary, summary, *after])
    assert texts(session.messages()) == ["the summary", *(f"later {n}" for n in range(10))]
    assert session.fork().messages() == session.messages()
    assert len(messages_of(session)) == 111


def test_branches_of_checkpoints_show_nothing_of_each_other(scope, tmp_path):
    """langchain-ai/langgraphjs#2737."""
    samples.langgraph_branches(tmp_path / "b.db")
    report = import_file(scope, tmp_path / "b.db")
    told = [texts(scope.get_key(one.key).messages()) for one in report.sessions]
    assert sorted(told) == [["root", "way A"], ["root", "way B"]]


def test_a_fork_of_a_rewritten_file_leaves_the_sub_agents_with_their_parent(bring, scope):
    """langchain-ai/langgraph#8458."""
    main = "0a1b2c3d-0000-4000-8000-000000000008"
    first, session = bring(talk(4, sessionId=main), f"{main}.jsonl")
    _, child = bring(talk(2, sessionId=main, isSidechain=True, agentId="a1"), f"{main}/subagents/agent-a1.jsonl")
    changed = talk(4, sessionId=main)
    changed[3]["message"]["content"] = "another"
    report, fork = bring(changed, f"{main}.jsonl")
    assert report.sessions[0].forked_from == session.id
    assert (child.refresh().parent.session, fork.info.parent.link) == (session.id, "fork")
    assert texts(child.messages()) == ["text 0", "text 1"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")
@pytest.mark.parametrize("name", ["76-62d755ef9f-2.jsonl", "ad-a8171575ce-0.jsonl"])
def test_what_was_given_up_is_told_apart_from_the_living_path_and_kept(name):
    """anthropics/claude-code#24471: against a second reader of the links, by the numbers of the lines."""
    path = REAL / "entire" / "claude-code" / name
    with closing(segue.open("memory:")) as db:
        report = import_file(db.scope(), path)
        session = db.scope().get_key(report.sessions[0].key)
        number = {entry.seq: int(entry.id.split(".")[1]) for entry in messages_of(session)}
        gone = {number[seq] for hit in session.by_ref("retract") for seq in hit.entry.json()["seqs"]}
        records = {n: value for n, text in enumerate(path.read_text().splitlines(), 1) for value in [json.loads(text)]}
        said = {n: v for n, v in records.items() if v["type"] in ("user", "assistant") and not v.get("isSidechain")}
        assert set(number.values()) == set(said)
        assert gone == set(said) - living(records, said)
        assert report.sessions[0].abandoned == len(gone)
        shown = {number[seq] for seqs in session.view().seqs for seq in seqs}
        assert not shown & gone
        assert max(said) in shown


def living(records, said):
    """Lines on the path from the newest message to the beginning, with all lines of their messages and calls."""
    by_name = {v["uuid"]: n for n, v in reversed(records.items()) if "uuid" in v}
    path, at = set(), max(said)
    while at is not None and at not in path:
        path.add(at)
        parent = records[at].get("parentUuid") or records[at].get("logicalParentUuid")
        at = by_name.get(parent, at - 1) if parent else None
        at = at if at in records else None
    names = {said[n]["message"].get("id") for n in path & set(said) if said[n]["type"] == "assistant"} - {None}
    path |= {n for n, v in said.items() if v["message"].get("id") in names and v["type"] == "assistant"}
    made = {b["id"] for n in path & set(said) for b in blocks(said[n]) if b["type"] == "tool_use"}
    answered = {b["tool_use_id"] for n in path & set(said) for b in blocks(said[n]) if b["type"] == "tool_result"}
    for n, value in said.items():
        open_ones = {b["tool_use_id"] for b in blocks(value) if b["type"] == "tool_result"} & (made - answered)
        if n not in path and open_ones:
            path.add(n)
            answered |= open_ones
    return path & set(said)


def blocks(record):
    content = record["message"].get("content")
    return content if isinstance(content, list) else []


# U. Exported conversations


def test_a_trunk_with_many_branches_is_the_same_tree_in_every_order(tmp_path):
    """danny-avila/LibreChat#4761."""
    roles = ("user", "assistant")
    nodes = [samples.chat_node(f"n{n:02}", f"n{n - 1:02}" if n else "root", roles[n % 2], f"trunk {n}", float(n))
             for n in range(40)]  # fmt: skip
    nodes += [samples.chat_node(f"b{n:02}", f"n{n % 40:02}", "user", f"branch {n}", 100.0 + n) for n in range(42)]
    nodes.append({"id": "root", "parent": None, "children": [], "message": None})
    order, told = random.Random(4761), set()
    for n in range(6):
        mapping = {node["id"]: node for node in (order.sample(nodes, len(nodes)) if n else nodes)}
        value = {"title": "tree", "conversation_id": "tree-0001", "current_node": "n39", "mapping": mapping}
        (tmp_path / "t.json").write_text(json.dumps([value]))
        with closing(segue.open("memory:")) as db:
            report = import_file(db.scope(), tmp_path / "t.json")
            session = db.scope().get_key(report.sessions[0].key)
            assert texts(session.messages()) == [f"trunk {n}" for n in range(40)]
            told.add((report.sessions[0].abandoned, *(entry.id for entry in messages_of(session))))
    assert len(told) == 1
    assert next(iter(told))[0] == 42


def test_records_of_unknown_types_are_kept_counted_and_stop_nothing(bring):
    """delexw/claude-code-trace#10."""
    strange = ({"type": f"new-{n}", "sessionId": "s", "uuid": f"x{n}", "parentUuid": f"u{n}"} for n in range(10))
    records = list(itertools.chain.from_iterable(zip(talk(10), strange, strict=True)))
    report, session = bring(records)
    assert report.counts["unknown-record"] == 10
    assert texts(session.messages()) == [f"text {n}" for n in range(10)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lines", [True, False])
def test_an_export_of_an_import_of_an_export_is_the_same(bring, format, lines):
    """google-gemini/gemini-cli#12815, pydantic/pydantic-ai#6359."""
    _, session = bring(samples.claude())
    for _ in range(2):
        out = io.BytesIO()
        assert export_messages(session, out, format=format, lines=lines) == []
        report, session = bring(out.getvalue(), f"{len(out.getvalue())}.json")
        assert report.sessions[0].format == format
        again = io.BytesIO()
        export_messages(session, again, format=format, lines=lines)
        assert again.getvalue() == out.getvalue()
