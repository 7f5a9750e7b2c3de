"""
A TCP proxy that cuts connections at commits: before the server has heard of it, or after it was done.

It reads PostgreSQL's protocol just far enough to know which messages carry a statement out; in MySQL's, the word is
enough. A cut "before" drops
what the client sent; a cut "after" hands it on, waits for the server's answer, and drops that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator


class Proxy:
    """Before the server at ``host:port``; cuts a share ``chance`` of what carries statements out while ``is_on``."""

    def __init__(self, host: str, port: int, *, seed: int, chance: float, speaks: str):
        mark = b"EVAL" if speaks == "redis" else b"COMMIT"
        self._carries_out = _carries_out if speaks == "postgres" else lambda data: mark in data
        self.cuts: Counter[str] = Counter()
        self.is_on = False
        self.port = 0
        self._server, self._chance, self._random = (host, port), chance, random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task] = set()
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                server, to_server = await asyncio.open_connection(*self._server)
                await self._carry(client, to_client, server, to_server)
        finally:
            self._tasks.discard(task)
            for end in (to_client, *([to_server] if "to_server" in locals() else [])):
                end.transport.abort()

    async def _carry(self, client, to_client, server, to_server) -> None:
        """Carry both ways until one end closes, or it is time to cut."""
        answers_are_lost = asyncio.Event()

        async def up() -> None:
            while data := await client.read(65_536):
                when = self._cut(data)
                if when == "before":
                    return
                if when == "after":
                    answers_are_lost.set()
                to_server.write(data)
                await to_server.drain()

        async def down() -> None:
            while data := await server.read(65_536):
                if answers_are_lost.is_set():
                    return
                to_client.write(data)
                await to_client.drain()

        tasks = {asyncio.create_task(up()), asyncio.create_task(down())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _cut(self, data: bytes) -> str | None:
        if not self.is_on or not self._carries_out(data) or self._random.random() >= self._chance:
            return None
        when = self._random.choice(("before", "after"))
        self.cuts[when] += 1
        return when


def _carries_out(data: bytes) -> bool:
    """Whether a client's messages have something done: an Execute, or a COMMIT."""
    at = 0
    while at + 5 <= len(data):
        kind, length = data[at : at + 1], int.from_bytes(data[at + 1 : at + 5], "big")
        if kind == b"E" or (kind == b"Q" and b"COMMIT" in data):
            return True
        at += 1 + length
    return False


@contextlib.contextmanager
def proxy(host: str, port: int, *, seed: int, chance: float = 0.05, speaks: str = "postgres") -> Iterator[Proxy]:
    """A running proxy, stopped at the end."""
    made = Proxy(host, port, seed=seed, chance=chance, speaks=speaks)
    made.start()
    try:
        yield made
    finally:
        made.stop()
