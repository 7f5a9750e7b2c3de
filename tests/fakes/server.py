"""The loopback server: HTTP, server-sent events, faults that a test asks for."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import anthropic_api, chat_api, responses_api
from .refusal import Refusal

ROUTES = {
    "/v1/messages": anthropic_api.messages,
    "/v1/chat/completions": chat_api.completions,
    "/v1/responses": responses_api.create,
    "/v1/responses/compact": responses_api.compact,
    "/v1/conversations": responses_api.conversation,
}


class Http(ThreadingHTTPServer):
    """Where connections of killed clients end without a word."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Server:
    """
    A provider.

    Attributes:
        requests: (path, body) of all requests that were understood.
        refused: Texts of all refusals that the rules made (faults that a test asked for are not among them).
        faults: What happens to the next requests, one each: None, a status, ``("cut", n)`` (the stream ends
            after n events) or ``("repeat",)`` (every event comes twice).
    """

    def __init__(self) -> None:
        self.requests: list = []
        self.refused: list[str] = []
        self.faults: list = []
        self.script: list = []  # texts of the next answers, instead of the stand-in's own
        self.responses: dict = {}
        self.conversations: dict = {}
        self.prefixes: set = set()  # digests of what the cache holds
        self.made = 0
        self.lock = threading.Lock()
        self.http = Http(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def new_id(self, kind: str) -> str:
        self.made += 1
        return f"{kind}_{self.made:08d}"


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            with server.lock:
                state = {"refused": server.refused, "requests": len(server.requests)}
            self.answer(200, json.dumps(state).encode())

        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if len(raw) < int(self.headers["Content-Length"]):
                return  # whoever asked was killed in the middle of it
            path = self.path.split("?")[0]
            with server.lock:
                fault = server.faults.pop(0) if server.faults else None
                if isinstance(fault, int):
                    texts = {
                        429: "rate_limit_error",
                        529: "overloaded_error",
                        500: "api_error",
                        400: "invalid_request_error",
                    }
                    error = {
                        "type": texts.get(fault, "api_error"),
                        "message": "Overloaded",
                        "code": None,
                        "param": None,
                    }
                    self.answer(
                        fault, json.dumps({"type": "error", "error": error}).encode(), {"x-should-retry": "false"}
                    )
                    return
                try:
                    body = json.loads(raw)
                    server.requests.append((path, body))
                    answer, events = ROUTES[path](server, body, self.headers)
                except Refusal as refusal:
                    server.refused.append(refusal.message) if not refusal.is_expected else None
                    self.answer(refusal.status, json.dumps(refusal.body(path)).encode())
                    return
            if not body.get("stream"):
                self.answer(200, json.dumps(answer).encode())
                return
            self.stream(events, fault)

        def answer(self, status, body, more=None):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def stream(self, events, fault):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            if fault and fault[0] == "cut":
                events = events[: fault[1]]
            if fault and fault[0] == "repeat":
                events = [event for event in events for _ in (1, 2)]
            with contextlib.suppress(OSError):
                for event in events:
                    name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
                    data = event if isinstance(event, str) else json.dumps(event)
                    self.wfile.write(f"{name}data: {data}\n\n".encode())

    return Handler


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()


def main() -> None:
    server = Server()
    print(server.url, flush=True)
    threading.Thread(target=server.http.serve_forever, daemon=True).start()
    with contextlib.suppress(OSError, KeyboardInterrupt):
        sys.stdin.read()  # ends with the process that started it
