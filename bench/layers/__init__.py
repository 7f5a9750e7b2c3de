"""
Session layers as the benchmark and the rivals' torture tests use them: each as its own documentation shows.

A layer is opened once by a process and has any number of sessions. Its methods are ``async``; a layer of blocking
code never suspends in them and says so with ``blocking``. This package runs in each layer's own environment: it
imports nothing but the standard library until a layer is opened.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Literal

from bench.text import Turn

SEED_TURNS = 250
"""Turns of one call when a history is made."""


class Layer:
    """
    One layer, at one place.

    Args:
        place: A path or a URL.
    """

    blocking: ClassVar[Literal["", "loop", "threads"]] = ""
    """What several tasks do with blocking code: block the loop (one connection), or take a thread for each call."""

    fork: Any = None
    """``async (session, name)``: make another session of all that this one has. None: there is no such call."""

    newest: Any = None
    """``async (count)``: the sessions that were active last."""

    fill: Any = None
    """``async (count)``: make so many empty sessions, as fast as it goes."""

    def __init__(self, place: str) -> None:
        self.place = place

    async def open(self) -> None:
        """Connect; make tables if need be."""

    async def begin(self, name: str) -> Any:
        """A handle on the session of that name, made if need be."""
        raise NotImplementedError

    def made(self, turn: Turn) -> list[Any]:
        """A turn in the layer's own objects, as its user has them in hand before storing them."""
        return turn.messages

    async def add(self, session: Any, items: list[Any]) -> None:
        """Store all items in as few steps as the layer has."""
        raise NotImplementedError

    async def turn(self, session: Any, items: list[Any]) -> None:
        """Store one turn piece by piece, as the layer's own runner does."""
        await self.add(session, items)

    async def seed(self, session: Any, turns: Sequence[Turn]) -> None:
        """Make a history, as fast as it goes."""
        for at in range(0, len(turns), SEED_TURNS):
            await self.add(session, [item for turn in turns[at : at + SEED_TURNS] for item in self.made(turn)])

    async def load(self, session: Any) -> list[Any]:
        """All messages, decoded, in order."""
        raise NotImplementedError

    async def last(self, session: Any, count: int) -> list[Any]:
        """The last messages, decoded, in order."""
        return (await self.load(session))[-count:]

    async def close(self) -> None:
        """Release everything."""

    # What only the torture tests ask.

    def text(self, message: Any) -> str:
        """The text of a question or an answer that ``load`` gave."""
        return str(message["content"])

    async def once(self, session: Any, key: str, text: str) -> None:
        """Store one message under an id of the caller's."""
        raise NotImplementedError

    async def put_value(self, session: Any, value: Any) -> Any:
        """Store a JSON value, and give it as it is read."""
        raise NotImplementedError


class Missing:
    """Nothing came back."""


def now(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a layer that says it blocks has suspended")


async def beside(layer: Layer, work: Coroutine[Any, Any, Any]) -> Any:
    """Await a call as one of several tasks."""
    if layer.blocking == "threads":
        return await asyncio.to_thread(now, work)
    return await work


def layer_of(name: str) -> type[Layer]:
    """The class ``module.Class`` of this package."""
    module, _, cls = name.partition(".")
    found: type[Layer] = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
    return found
