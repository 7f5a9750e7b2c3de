"""Small files of other tools, written for the tests, and what every import must keep."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

from segue.exporters import export_original

REAL = Path(__file__).parents[1].parent / "shared" / "real" / "files"


def line(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def claude_record(kind, uuid, parent, content, **more):
    record = {
        "parentUuid": parent,
        "isSidechain": False,
        "sessionId": "0a1b2c3d-0000-4000-8000-000000000001",
        "type": kind,
        "message": {"role": kind, "content": content},
        "uuid": uuid,
        "timestamp": f"2026-05-01T09:00:{len(uuid) % 60:02d}.000Z",
        "cwd": "/srv/app",
    }
    record["message"].update(more.pop("message", {}))
    return {**record, **more}


def call(id):
    return [{"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}]


def result(id, text="ok"):
    return [{"type": "tool_result", "tool_use_id": id, "content": text}]


def spent(id, out, given=100):
    return {"id": id, "usage": {"input_tokens": given, "output_tokens": out, "cache_read_input_tokens": 7}}


def claude(turns=3):
    """A transcript: questions, thinking, a call with its result, an answer in two records."""
    values = [{"type": "summary", "summary": "earlier", "leafUuid": "x"}]
    before = None
    for n in range(turns):
        q, a, r, b = f"q{n}", f"a{n}", f"r{n}", f"b{n}"
        values += [
            claude_record("user", q, before, f"请看第 {n} 个文件 {{}}"),
            claude_record("assistant", a, q, call(f"toolu_{n}"), message=spent(f"msg_{n}", 9)),
            claude_record("user", r, a, result(f"toolu_{n}")),
            claude_record(
                "assistant", b, r, [{"type": "text", "text": f"done {n} 😀"}], message=spent(f"msg_{n}b", 20)
            ),
            {"type": "file-history-snapshot", "messageId": q, "snapshot": {}, "isSnapshotUpdate": False},
        ]
        before = b
    return b"".join(map(line, values))


def codex_message(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def codex():
    total = {"total_token_usage": {"input_tokens": 10, "output_tokens": 4}}
    values = [
        {"type": "session_meta", "payload": {"id": "thread-0001", "cwd": "/srv/app"}},
        {"type": "response_item", "payload": codex_message("user", "hi")},
        {
            "type": "response_item",
            "payload": {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
        },
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1", "output": "ok"}},
        {"type": "event_msg", "payload": {"type": "token_count", "info": total}},
        {"type": "response_item", "payload": codex_message("assistant", "yes")},
    ]
    return b"".join(line({"timestamp": f"2026-05-01T09:00:0{n}Z", **value}) for n, value in enumerate(values))


def gemini():
    call = {"id": "g1", "name": "ls", "args": {}, "status": "success",
            "result": [{"functionResponse": {"id": "g1", "name": "ls", "response": {"output": "a"}}}]}  # fmt: skip
    messages = [
        {"id": "m-user-0001", "timestamp": "2026-05-01T09:00:00Z", "type": "user", "content": "hi"},
        {"id": "m-model-0001", "timestamp": "2026-05-01T09:00:01Z", "type": "gemini",
         "content": "", "toolCalls": [call],
         "tokens": {"input": 10, "output": 3, "cached": 2, "thoughts": 1}},
        {"id": "m-model-0002", "timestamp": "2026-05-01T09:00:02Z", "type": "gemini", "content": "done"},
    ]  # fmt: skip
    return json.dumps({"sessionId": "gemini-0001", "projectHash": "x", "messages": messages}, indent=2).encode()


def chat_node(name, parent, role, text, time, **more):
    message = {"id": f"{name}-m", "author": {"role": role}, "create_time": time, "recipient": "all",
               "content": {"content_type": "text", "parts": [text]}, **more}  # fmt: skip
    return {"id": name, "parent": parent, "children": [], "message": message}


def chatgpt(order=lambda names: names):
    nodes = [
        {"id": "root", "parent": None, "children": [], "message": None},
        chat_node("u1", "root", "user", "why?", 1.0),
        chat_node("a1", "u1", "assistant", "first answer", 2.0),
        chat_node("a2", "u1", "assistant", "second answer", 3.0),
        chat_node("u2", "a2", "user", "thanks", 4.0),
    ]
    mapping = {node["id"]: node for node in order(nodes)}
    one = {"title": "Why", "conversation_id": "chat-00001", "current_node": "u2", "mapping": mapping}
    two = {
        "title": "Other",
        "conversation_id": "chat-00002",
        "current_node": "u1",
        "mapping": {n["id"]: n for n in nodes[:2]},
    }
    return json.dumps([one, two], indent=1).encode()


def claude_ai():
    messages = [
        {"uuid": "m1", "parent_message_uuid": "00000000-0000-4000-8000-000000000000", "sender": "human", "text": "hi",
         "content": [{"type": "text", "text": "hi"}], "created_at": "2026-02-01T09:00:00Z",
         "attachments": [{"file_name": "a.py", "extracted_content": "x = 1"}]},
        {"uuid": "m2", "parent_message_uuid": "m1", "sender": "assistant", "text": "",
         "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "look"},
                     {"type": "tool_use", "name": "repl", "input": {"code": "1"}},
                     {"type": "tool_result", "content": [{"type": "text", "text": "1"}]}]},
    ]  # fmt: skip
    return json.dumps(
        [{"uuid": "claude-ai-1", "name": "Talk", "chat_messages": messages}, {"uuid": "claude-ai-2"}]
    ).encode()


def tutorial():
    messages = [
        {"role": "user", "content": "拆一下 SKU"},
        {"type": "tool_use", "id": "t1", "name": "sql", "input": {"q": "select 1"}},
        {"type": "tool_result", "tool_use_id": "t1", "content": "1"},
        {"type": "text", "text": "好了"},
    ]
    return json.dumps(
        {"session_id": "tutorial-0001", "messages": messages, "updated_at": "2026-05-01T09:00:00"}
    ).encode()


def chat_list():
    return b"".join(
        map(line, [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},
                   {"role": "assistant", "content": "hello"}])
    )  # fmt: skip


LINES = {"claude.jsonl": claude(), "codex.jsonl": codex(), "list.jsonl": chat_list()}
DOCUMENTS = {
    "gemini.json": gemini(),
    "chatgpt.json": chatgpt(),
    "claude_ai.json": claude_ai(),
    "tutorial.json": tutorial(),
}
FILES = {**LINES, **DOCUMENTS}


def agents_database(path):
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY)")
    con.execute(
        "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT, message_data TEXT, created_at TEXT)"
    )
    rows = ['{"role": "user", "content": "hi"}', '{"role": "assistant", "content": "hello"}', "torn {"]
    con.executemany(
        "INSERT INTO agent_messages (session_id, message_data, created_at) VALUES ('s1', ?, '2026-05-01 09:00:00')",
        [(row,) for row in rows],
    )
    con.commit()
    con.close()


def original_of(scope, report):
    """The file, put together again from what was imported."""
    keys = [one.key for one in report.sessions]
    frames = [key for key in keys if key.endswith("/frame")]
    out = io.BytesIO()
    left = export_original(scope.get_key(frames[0] if frames else keys[0]), out, scope=scope)
    assert left == []
    return out.getvalue()


def messages_of(session):
    return [entry for entry in session.history(kinds=("message",))]


def llm_database(path):
    """A database of llm with rows of both kinds: a thread, a turn that no thread leads to, a call without text."""
    con = sqlite3.connect(path)
    con.executescript(
        """
        CREATE TABLE _llm_migrations (name TEXT);
        CREATE TABLE conversations (id TEXT, name TEXT, model TEXT);
        CREATE TABLE responses (id TEXT, prompt TEXT, system TEXT, response TEXT, conversation_id TEXT,
            datetime_utc TEXT, input_tokens INTEGER, output_tokens INTEGER, token_details TEXT);
        CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, response_id TEXT, name TEXT, arguments TEXT,
            tool_call_id TEXT);
        CREATE TABLE tool_results (id INTEGER PRIMARY KEY, response_id TEXT, output TEXT, tool_call_id TEXT);
        CREATE TABLE attachments (id TEXT, content BLOB);
        CREATE TABLE threads (id TEXT, name TEXT, tip_message_hash TEXT, datetime_utc TEXT);
        CREATE TABLE turns (id TEXT, thread_id TEXT, tip_message_hash TEXT, datetime_utc TEXT,
            input_tokens INTEGER, output_tokens INTEGER, token_details TEXT);
        CREATE TABLE messages (hash TEXT, parent_hash TEXT, role TEXT);
        CREATE TABLE parts (id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT, tool_name TEXT,
            text TEXT, payload TEXT);
        INSERT INTO conversations VALUES ('c1', 'Old', 'm');
        INSERT INTO responses VALUES ('r1', 'list', 'be brief', '', 'c1', '2026-05-01T09:00:00', 1, 10, NULL);
        INSERT INTO tool_calls VALUES (1, 'r1', 'ls', '{}', 't1');
        INSERT INTO tool_results VALUES (1, 'r2', 'a.txt', 't1');
        INSERT INTO responses VALUES ('r2', '', 'be brief', 'one file', 'c1', '2026-05-01T09:00:01', 2, 20, '{}');
        INSERT INTO responses VALUES ('r3', 'alone', NULL, '', NULL, '2026-05-01T09:00:02', 4, 40, NULL);
        INSERT INTO attachments VALUES ('a1', x'ff00');
        INSERT INTO threads VALUES ('t1', 'New', 'h2', '2026-05-02T09:00:00');
        INSERT INTO messages VALUES ('h1', NULL, 'user'), ('h2', 'h1', 'assistant'), ('h3', 'h1', 'assistant');
        INSERT INTO parts VALUES (1, 'h1', 0, 'text', NULL, 'hi' || char(0), NULL),
            (2, 'h2', 0, 'text', NULL, 'hello', NULL), (3, 'h3', 0, 'text', NULL, 'given up', NULL);
        INSERT INTO turns VALUES ('u1', 't1', 'h2', '2026-05-02T09:00:00', 8, 80, NULL),
            ('u2', 't1', 'h3', '2026-05-02T09:00:01', 16, 160, NULL);
        """
    )
    con.close()


def langgraph_database(path):
    """Checkpoints of two threads, a circle of two, and a write to a checkpoint that is not there; values as JSON."""
    said = {"type": "ai", "content": "yes", "usage_metadata": {"input_tokens": 7, "output_tokens": 3}}
    state = json.dumps({"channel_values": {"messages": [{"type": "human", "content": "a\0b"}, said]}}).encode()
    con = sqlite3.connect(path)
    con.executescript(
        """
        CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, parent_checkpoint_id TEXT,
            type TEXT, checkpoint BLOB, metadata BLOB);
        CREATE TABLE writes (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, task_id TEXT, idx INTEGER,
            channel TEXT, type TEXT, value BLOB);
        """
    )
    rows = [
        ("one", "1", None, state),
        ("two", "1", None, state),
        ("three", "1", "2", b"{}"),
        ("three", "2", "1", b"{}"),
    ]
    con.executemany(
        "INSERT INTO checkpoints VALUES (?, '', ?, ?, 'json', ?, x'80ff')",
        [(thread, id, parent, body) for thread, id, parent, body in rows],
    )
    con.execute("INSERT INTO writes VALUES ('one', '', '1', 't', 0, 'messages', 'json', x'5b5d')")
    con.execute("INSERT INTO writes VALUES ('lost', '', '9', 't', 0, ?, 'json', x'5b5d')", ("中文",))
    con.commit()
    con.close()


def langgraph_branches(path):
    """A root with two branches, each with a message of its own."""

    def state(*texts):
        messages = [{"type": "human", "id": text, "content": text} for text in texts]
        return json.dumps({"channel_values": {"messages": messages}}).encode()

    langgraph_database(path)
    rows = [("1", None, state("root")), ("2", "1", state("root", "way A")), ("3", "1", state("root", "way B"))]
    con = sqlite3.connect(path)
    con.execute("DELETE FROM checkpoints")
    con.execute("DELETE FROM writes")
    con.executemany("INSERT INTO checkpoints VALUES ('t', '', ?, ?, 'json', ?, x'80')", rows)
    con.commit()
    con.close()
