"""A TCP proxy on loopback that loses what it is told to lose, to try what a store says then."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """
    Passes bytes between clients and one server.

    ``lose_question`` cuts the connection instead of passing a client's next question on;
    ``lose_answer`` passes it on, waits for the server's answer, and cuts instead of passing that back.
    What a client sends until it is answered is one question. With ``stays_away`` nobody is let in after a cut.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._lock = threading.Lock()
        self._plan: list[str] = []
        self.cuts = 0
        self.stays_away = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_question(self, *, after: int = 0) -> None:
        """Cut at the next question, or after some more."""
        self._plan = ["pass"] * after + ["question"]

    def lose_answer(self, *, after: int = 0) -> None:
        """Cut at the answer to the next question, or after some more."""
        self._plan = ["pass"] * after + ["answer"]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # else a thread that waits at the door keeps it open
        self._door.close()

    def count_cut(self) -> None:
        self.cuts += 1
        if self.stays_away:
            self.close()

    def next_step(self) -> str:
        with self._lock:
            return self._plan.pop(0) if self._plan else "pass"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._upstream) as server:
            _Link(self, client, server).pass_questions()


class _Link:
    """One connection."""

    def __init__(self, owner: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._owner, self._client, self._server = owner, client, server
        self._is_answered = True
        self._step = "pass"
        self._back = threading.Thread(target=self._pass_answers, daemon=True)
        self._back.start()

    def pass_questions(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 20):
                if self._is_answered:
                    self._is_answered = False
                    self._step = self._owner.next_step()
                if self._step == "question":
                    self._owner.count_cut()
                    break
                self._server.sendall(data)
        self._end()
        self._back.join(10)

    def _pass_answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self._step == "answer":
                    self._owner.count_cut()
                    break
                self._is_answered = True
                self._client.sendall(data)
        self._end()

    def _end(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(host: str, port: int) -> Iterator[Proxy]:
    running = Proxy(host, port)
    try:
        yield running
    finally:
        running.close()
