"""
The same story through the official clients, against servers on this machine that speak the vendors' protocols.

Behind both sits the stand-in, so what is tested is the path of the messages, not the wit of a model.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from examples.sales_analyst import hearing
from examples.sales_analyst.stand_in import StandIn

import segue
from test_sales_analyst import Played, play

pytestmark = pytest.mark.slow


class Vendor(BaseHTTPRequestHandler):
    """Answers like the vendor whose path is asked for."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        status = 200
        try:
            answer = ANSWERS.get(self.path, nothing_here)(request, len(self.server.requests))
        except hearing.Refused as refused:
            answer, status = {"error": {"type": "invalid_request_error", "message": str(refused)}}, 400
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def nothing_here(request, number):
    raise hearing.Refused("there is nothing here")


def as_anthropic(request, number):
    content = StandIn().reply(request["system"], request["tools"], request["messages"]).answer["content"]
    is_call = any(block["type"] == "tool_use" for block in content)
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": "tool_use" if is_call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3},
    }


def as_openai(request, number):
    """The same over items: what comes in is translated to the stand-in's format, what goes out back."""
    tools = [{"name": tool["name"]} for tool in request["tools"]]
    content = StandIn().reply(request["instructions"], tools, from_items(request["input"])).answer["content"]
    output = [{"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"sealed-{number}"}]
    output += [to_item(block, f"{number}_{n}") for n, block in enumerate(content)]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": request["model"],
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 13,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 18,
        },
    }


def to_item(block, number):
    if block["type"] == "text":
        text = {"type": "output_text", "text": block["text"], "annotations": [], "logprobs": []}
        return {"type": "message", "id": f"m_{number}", "role": "assistant", "status": "completed", "content": [text]}
    arguments = json.dumps(block["input"], ensure_ascii=False)
    called = {"call_id": block["id"], "name": block["name"], "arguments": arguments}
    return {"type": "function_call", "id": f"fc_{number}", "status": "completed", **called}


def from_items(items):
    messages = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        if item["type"] == "reasoning" and (following is None or following.get("role") == "user"):
            raise hearing.Refused("a reasoning item without the item that follows it")
        if item["type"] != "reasoning":
            messages.append(from_item(item))
    return messages


def from_item(item):
    if item["type"] == "function_call":
        block = {
            "type": "tool_use",
            "id": item["call_id"],
            "name": item["name"],
            "input": json.loads(item["arguments"]),
        }
        return {"role": "assistant", "content": [block]}
    if item["type"] == "function_call_output":
        block = {"type": "tool_result", "tool_use_id": item["call_id"], "content": item["output"]}
        if "read it again" in item["output"]:  # this format has no mark for errors
            block["is_error"] = True
        return {"role": "user", "content": [block]}
    role = {"developer": "user"}.get(item["role"], item["role"])
    parts = [{"type": "text", "text": item["content"]}] if isinstance(item["content"], str) else item["content"]
    return {"role": role, "content": [{"type": "text", "text": part["text"]} for part in parts]}


ANSWERS = {"/v1/messages": as_anthropic, "/v1/responses": as_openai}


@contextmanager
def vendor():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


VENDORS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "", "claude-sonnet-5-5"),
    "openai.responses": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1", "gpt-5.4"),
}


@pytest.fixture(scope="module", params=VENDORS)
def through(request, tmp_path_factory):
    key, base, path, _ = VENDORS[request.param]
    cwd = tmp_path_factory.mktemp("client")
    with vendor() as server:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        ended = play(cwd, **{key: "a-key-for-this-machine", base: url, "NO_PROXY": "127.0.0.1"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    story = Played(cwd, ended.stdout)
    yield request.param, story, server.requests
    story.db.close()


def test_it_says_which_model_answers(through):
    format, story, requests = through
    name = VENDORS[format][3]
    assert f"{name}, through the official client" in story.output
    assert {request["model"] for request in requests} == {name}


def test_the_whole_story_plays_with_the_same_outcome(through):
    format, story, _ = through
    assert story.session.info.format == format
    assert story.facts["counts"] == {"changed": 2, "current": 1}
    assert story.facts["effects"] == ["started", "completed"]
    assert story.facts["parent_before"] == story.facts["parent_after"]
    assert len(story.facts["stretches"]) == 2


def test_each_request_begins_with_the_one_before_it(through):
    """What was sent once is sent again unchanged, on Tuesday too: caches and signed reasoning live by that."""
    _, story, requests = through
    name = "messages" if "messages" in requests[0] else "input"
    sent = [json.dumps(request[name], ensure_ascii=False)[:-1] for request in requests]
    breaks = [n for n in range(1, len(sent)) if not sent[n].startswith(sent[n - 1])]
    assert len(breaks) == 1  # after the fork, back to the parent
    back = breaks[0]
    assert sent[back].startswith(sent[back - 3])  # the fork asked twice


def test_the_tokens_that_the_vendor_counted_are_summed_up(through):
    _, story, requests = through
    counted = sum((info.usage for info in story.me.iterate()), segue.Usage())
    assert (counted.input, counted.output, counted.cache_read) == (
        13 * len(requests),
        5 * len(requests),
        3 * len(requests),
    )


def test_a_vendor_that_refuses_is_reported_and_not_traced(tmp_path):
    with vendor() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        ended = play(tmp_path, ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=f"{url}/nowhere", NO_PROXY="127.0.0.1")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "Without its key, the stand-in plays." in ended.stderr
    assert os.listdir(tmp_path) == ["segue-demo"]
