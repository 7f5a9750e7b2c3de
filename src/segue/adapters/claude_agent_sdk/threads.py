"""Blocking code for an event loop, on daemon threads: a store that hangs never holds up the end of the program."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

THREADS_MAX = 64
"""Most threads of one store object; more calls wait their turn."""


class Threads:
    """Runs blocking calls one a thread, in the context of the caller. Threads are kept for the next call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def start(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """
        Begin the call; the future has its result.

        A caller that stops waiting leaves the call alone: what was begun is finished.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                value, error = context.run(function, *args), None
            except BaseException as raised:  # noqa: BLE001 - it belongs to the caller
                value, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                if not loop.is_closed():  # else nobody is left to be told
                    raise

        self._put(call)
        return future

    def _put(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1  # that thread is for this call
            elif self._threads < THREADS_MAX:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._calls.put(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it holds is the caller's
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Let the threads end once their calls are done."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
