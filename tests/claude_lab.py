"""
The real CLI of the Claude Agent SDK against a model of our own on loopback.

What the model answers follows from the request alone. The last text of the user may be a JSON object
``{"steps": [[[tool, arguments], …], …], "say": …}``: one message of tool calls a step, then the text. Any
other text is answered with every ``word-…`` of the request, so a test sees what the model was told.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

CLI = Path(sdk.__file__).parent / "_bundled" / "claude"
_WORD = re.compile(r"word-[A-Za-z0-9]+")
_INHERITED = re.compile(
    r"(CLAUDE|ANTHROPIC|AWS_|GOOGLE_|OTEL_|MCP_|DISABLE_|XDG_|NODE_OPTIONS|.*_PROXY$)", re.IGNORECASE
)


def script(*steps, say="done", seconds=0.0):
    return json.dumps({"steps": steps, "say": say, "seconds": seconds})


def texts(content):
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content if block.get("type") == "text"]


def plan(messages):
    """The user's script and how many of its steps were answered, or None."""
    answered = 0
    for message in reversed(messages):
        content = message["content"]
        if message["role"] == "user" and not isinstance(content, str):
            answered += any(block.get("type") == "tool_result" for block in content)
        if message["role"] != "user":
            continue
        for text in reversed(texts(content)):
            if text.startswith('{"steps"'):
                return json.loads(text), answered
            if not text.startswith("<") and not any(b.get("type") == "tool_result" for b in content if b != text):
                return None, answered
    return None, answered


def answer(body):
    told, answered = plan(body["messages"])
    if told is not None:
        if answered < len(told["steps"]):
            return [
                {"type": "tool_use", "id": "toolu_" + uuid.uuid4().hex[:24], "name": name, "input": arguments}
                for name, arguments in told["steps"][answered]
            ]
        time.sleep(told["seconds"])
    words = " ".join(dict.fromkeys(_WORD.findall(json.dumps(body["messages"]))))
    return [{"type": "text", "text": f"heard: {words}"}]


def events(body):
    blocks = answer(body)
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5, "output_tokens": 1}
    message = {"id": "msg_" + uuid.uuid4().hex[:24], "type": "message", "role": "assistant", "model": body["model"]}
    yield (
        "message_start",
        {"message": {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}},
    )
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start, delta = (
                {**block, "input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
            )
        yield "content_block_start", {"index": index, "content_block": start}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    yield "message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 7}}
    yield "message_stop", {}


class Model:
    """The model's API on a free port of 127.0.0.1; ``requests`` has every conversation's request body."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.send_response(200)
                self.end_headers()

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not self.path.split("?")[0].endswith("/v1/messages"):
                    self.send_error(404)
                    return
                if body.get("tools"):
                    outer.requests.append(body)
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for name, data in events(body):
                    self.wfile.write(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Reply:
    session_id: str = ""
    text: str = ""
    errors: list[str] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)


class Lab:
    """Machines that share a model: each has a home of its own."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        self.root = root
        self.model = Model() if url is None else None
        self.url = url or self.model.url

    def options(self, machine="a", cwd="work", **more):
        home, work = self.root / machine / "home", self.root / cwd
        for folder in (home / ".claude", home / "tmp", work):
            folder.mkdir(parents=True, exist_ok=True)
        env = {
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "TMPDIR": str(home / "tmp"),
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "sk-ant-none",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "NO_PROXY": "*",
        }
        more.setdefault("allowed_tools", ["Read", "Bash"])
        return sdk.ClaudeAgentOptions(cwd=str(work), env=env, setting_sources=[], model="claude-sonnet-4-5", **more)

    async def ask(self, prompt, options, seconds=60):
        reply, mark = Reply(), 0 if self.model is None else len(self.model.requests)

        async def go():
            async for message in sdk.query(prompt=prompt, options=options):
                reply.messages.append(message)
                if isinstance(message, sdk.MirrorErrorMessage):
                    reply.errors.append(message.error)
                elif isinstance(message, sdk.ResultMessage):
                    reply.session_id, reply.text = message.session_id, message.result or ""
                    if message.is_error:
                        reply.errors.append(reply.text)

        await asyncio.wait_for(go(), seconds)
        if self.model is not None:
            reply.requests = self.model.requests[mark:]
        return reply

    def close(self):
        if self.model is not None:
            self.model.close()


def clean_environment(set_, delete):
    """What this process inherited and the SDK would pass on is taken away."""
    for name in list(os.environ):
        if _INHERITED.match(name):
            delete(name)
    set_("NO_PROXY", "*")
