"""The documentation is true: its code runs, prints what it says, and its links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import threading
import unicodedata
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anthropic
import pytest

import docs_runner
import segue

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])
LEFT_OUT_MAX = 2
"""Most blocks of all pages that do not run."""


class StandIn(BaseHTTPRequestHandler):
    """Answers as a model's provider does, on this machine, so that the pages use the real clients."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        provider = PROVIDERS[self.path]
        answer = provider(asked) if provider else {"type": "error"}
        is_streamed = asked.get("stream", False)
        body = _events(answer).encode() if is_streamed else json.dumps(answer).encode()
        self.send_response(200 if provider else 400)
        self.send_header("Content-Type", "text/event-stream" if is_streamed else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ANSWER = "Fewer orders, not lower prices: orders fell by 9 %."


def _anthropic(asked):
    assert asked["messages"][-1]["role"] == "user"
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "stop_reason": "end_turn",
            "stop_sequence": None, "content": [{"type": "text", "text": ANSWER}],
            "usage": {"input_tokens": 900, "output_tokens": 20}}  # fmt: skip


def _events(answer):
    """Anthropic's answer as it streams one."""
    (block,) = answer["content"]
    stop = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events = (
        {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {**block, "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": block["text"]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": answer["usage"]},
        {"type": "message_stop"},
    )
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _responses(asked):
    text = {"type": "output_text", "text": ANSWER, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": asked["model"], "output": [item],
            "status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip


def _chat(asked):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}
    return {"id": "c_1", "object": "chat.completion", "created": 1, "model": asked["model"], "choices": [choice]}


PROVIDERS = {"/v1/messages": _anthropic, "/v1/responses": _responses, "/v1/chat/completions": _chat}
"""What answers at which path; None refuses."""


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """An empty folder, no settings of whoever runs the tests, and a provider on this machine."""
    for name in ("SEGUE_STORE", "SEGUE_TENANT", "SEGUE_USER", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": f"{url}/v1",
        "NO_PROXY": "127.0.0.1",
        "TZ": "UTC",
    }.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_does_what_the_page_says(page, alone):
    docs_runner.run(page)


def test_few_blocks_are_left_out():
    left_out = [
        f"{page.name}:{block.line}" for page in PAGES for block in docs_runner.blocks(page) if block.is_left_out
    ]
    assert len(left_out) <= LEFT_OUT_MAX, left_out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), link


@pytest.mark.parametrize("start", ["README.md", "README.zh.md"])
def test_every_page_is_linked_from_the_readme(start):
    links = re.findall(r"\]\((docs/[^)#\s]+\.md)", (ROOT / start).read_text(encoding="utf-8"))
    assert {ROOT / link for link in links} >= set((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(
    ("page", "store", "key", "messages"),
    [
        ("README.md", "chat", "chat", 2),
        ("README.zh.md", "chat", "chat", 2),
        ("docs/plain-apis.md", "agent", "ticket-7", 4),
    ],
)
def test_the_first_block_run_again_stores_nothing_twice(alone, monkeypatch, page, store, key, messages):
    first = next(block for block in docs_runner.blocks(ROOT / page) if block.language == "python")
    with monkeypatch.context() as broken:
        broken.setitem(PROVIDERS, "/v1/messages", None)
        with pytest.raises(anthropic.BadRequestError):
            _ran(first.text)
    for _ in range(2):
        assert ANSWER in _ran(first.text)
    with closing(segue.open(f"sqlite:///{store}.db")) as db:
        assert len(db.scope(user="lin").open_key(key).messages()) == messages


def _ran(code):
    """What a program of its own prints."""
    out, namespace = io.StringIO(), {}
    try:
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
    finally:
        namespace["client"].close()
    return out.getvalue()


def _anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


OTHERS_SESSION = ("openai-agents.md",)
"""Pages whose ``session`` is not Segue's own."""


@pytest.fixture
def things():
    """What the names mean that the pages use in their sentences and tables."""
    with closing(segue.open("memory:")) as db:
        me = db.scope()
        session = me.create()
        with session.run() as run:
            run.append({"role": "user", "content": "?"})
            (entry,), back = session.read(), me.resume(session)
            yield {"db": db, "me": me, "session": session, "run": run, "entry": entry, "back": back, "fork": session}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_calls_in_its_sentences_is_there(page, things):
    if page.name in OTHERS_SESSION:
        del things["session"]
    for code in spans(page):
        try:
            check_names(code, things)
        except AttributeError as error:
            raise AssertionError(f"{page.name} says `{code}`: {error}") from None


@pytest.mark.parametrize("code", ["session.usage", "me.open(id).read(), me.newest()", "session.run(police='reject')"])
def test_a_name_that_is_not_there_is_noticed(code, things):
    with pytest.raises(AttributeError):
        check_names(code, things)


def spans(page):
    """The code within a page's sentences that is Python."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", text):
        try:
            ast.parse(code.replace("…", "..."))
        except SyntaxError:
            continue
        yield code


def check_names(code, things):
    """AttributeError when an attribute, or a keyword of a call, is not there."""
    for node in ast.walk(ast.parse(code.replace("…", "..."))):
        if isinstance(node, ast.Attribute):
            _meant(node, things)
        elif isinstance(node, ast.Call) and callable(function := _meant(node.func, things)):
            parameters = inspect.signature(function).parameters
            if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                for keyword in node.keywords:
                    if keyword.arg is not None and keyword.arg not in parameters:
                        raise AttributeError(f"{ast.unparse(node.func)} takes no {keyword.arg!r}")


def _meant(node, things):
    """The object that a dotted name means, or None for one that begins with something else."""
    if isinstance(node, ast.Attribute):
        owner = _meant(node.value, things)
        return None if owner is None else getattr(owner, node.attr)
    return things.get(node.id) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store) else None


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_lines_of_a_diagram_meet_in_a_terminal(page):
    drawing = next(block.text for block in docs_runner.blocks(ROOT / page) if "query_sales" in block.text)
    rows = [{cell for cell, mark in _cells(line) if mark in "│├┤┐└▼"} for line in drawing.splitlines()]
    assert any(rows)
    for above, line, below in zip([set(), *rows], drawing.splitlines(), [*rows[1:], set()], strict=False):
        for cell, mark in _cells(line):
            assert mark not in "│├┤▼" or cell in above | below, f"{page}: {line}"


def _cells(line):
    """Each character with the column of a terminal that it stands in; a Chinese one takes two."""
    cell = 0
    for mark in line:
        yield cell, mark
        cell += 2 if unicodedata.east_asian_width(mark) in "WF" else 1


def page_of(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("said", "is_true"),
    [("1\n2", True), ("1\n3", False), ("…\n2", True), ("1\n…", True), ("…", True), ("1\n2\n3", False), ("1", False)],
)
def test_a_page_that_prints_something_else_is_noticed(alone, said, is_true):
    page = page_of(alone, f"```python\nprint(1)\nprint(2)\n```\n\n```output\n{said}\n```\n")
    if is_true:
        docs_runner.run(page)
    else:
        with pytest.raises(AssertionError):
            docs_runner.run(page)


def test_a_page_whose_code_fails_is_noticed_with_its_line(alone):
    with pytest.raises(ZeroDivisionError) as caught:
        docs_runner.run(page_of(alone, "# Title\n\n```python\n1 / 0\n```\n"))
    assert caught.traceback[-1].lineno + 1 == 4


def test_a_command_that_prints_something_else_is_noticed(alone):
    docs_runner.run(page_of(alone, "```console\n$ segue --version\nsegue …\n```\n"))
    with pytest.raises(AssertionError):
        docs_runner.run(page_of(alone, "```console\n$ segue --version\nsegue 99\n```\n"))
    with pytest.raises(AssertionError, match="runs segue"):
        docs_runner.run(page_of(alone, "```console\n$ rm -r x\n```\n"))


def test_hidden_code_runs_and_marked_blocks_do_not(alone):
    docs_runner.run(
        page_of(
            alone, "<!-- run\nx = 1\n-->\n```python\nassert x == 1\n```\n<!-- no-run: why -->\n```python\n1 / 0\n```\n"
        )
    )


def test_ids_and_times_may_differ_and_nothing_else():
    same = "3f9a1c22  idle  just now 15:04  4  3.2k  Title"
    assert docs_runner.plain(same) == docs_runner.plain("00000b12  idle  18 h ago Mon 09:12  4  3.2k  Title")
    assert docs_runner.plain(same) != docs_runner.plain("00000b12  idle  18 h ago Mon 09:12  5  3.2k  Title")
