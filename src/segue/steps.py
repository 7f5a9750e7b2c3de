"""
Procedures that wait for others, written once for blocking and async callers.

A procedure is a generator of steps; the driver does each and sends back what came of it. ``Do`` is the
store's work (blocking), ``Use`` is the caller's own code (a tool, a summariser; plain or async).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from .engine import Engine
from .errors import Invalid

T = TypeVar("T")


class Do(NamedTuple):
    """Blocking work of the store. Sent back: its result; its errors end the procedure."""

    work: Callable[[], Any]


class Use(NamedTuple):
    """Code of the caller. Sent back: ``Outcome``."""

    work: Callable[[], Any]


class Outcome(NamedTuple):
    """What came of the caller's code: a value, or the error that it raised."""

    value: Any = None
    error: Exception | None = None


def use(work: Callable[[], Any]) -> Outcome:
    """Run the caller's code."""
    try:
        value = work()
    except Exception as error:  # noqa: BLE001 - handed to the procedure, which decides
        return Outcome(error=error)
    if inspect.iscoroutine(value):
        value.close()
        return Outcome(error=Invalid("async code cannot be run here; open the store with segue.aopen"))
    return Outcome(value)


async def ause(work: Callable[[], Any]) -> Outcome:
    """Run the caller's code: async code here, plain code in a thread of its own."""
    try:
        value = await asyncio.to_thread(work)
        return Outcome(await value if inspect.isawaitable(value) else value)
    except Exception as error:  # noqa: BLE001 - handed to the procedure, which decides
        return Outcome(error=error)


def drive(steps: Generator[Do | Use, Any, T]) -> T:
    """Run a procedure to its end."""
    value: Any = None
    try:
        while True:
            step = steps.send(value)
            value = step.work() if isinstance(step, Do) else use(step.work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def adrive(engine: Engine, steps: Generator[Do | Use, Any, T]) -> T:
    """The same from an event loop."""
    value: Any = None
    try:
        while True:
            step = steps.send(value)
            value = await engine.ahop(step.work) if isinstance(step, Do) else await ause(step.work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
