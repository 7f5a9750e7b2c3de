"""Tool calls are recorded before they start, so that a crash inside one leaves "unknown" instead of nothing."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from agents import RunHooks

import segue
from segue.errors import Conflict, IdConflict
from segue.model import Draft, new_id

from . import history
from .recovery import open_call
from .turn import turn_of

if TYPE_CHECKING:
    from .session import SegueSession

RESULT_MAX = 20_000
"""Most characters of a tool's result that are kept with the record of the call; the item has all of it."""


class CallStarted(Conflict):
    """
    This very tool call was started before, in another process: it was not started again.

    Attributes:
        call: The id of the call.
        tool: The tool's name.
    """

    def __init__(self, call: str, tool: str) -> None:
        Conflict.__init__(
            self,
            f"the call {call!r} of tool {tool!r} was started before by another run of the same state; "
            "it was not started again: read the session to see what came of it",
        )
        self.call = call
        self.tool = tool


class SegueHooks(RunHooks[Any]):
    """
    Records each tool call in the session before it starts and after it ends: ``Runner.run(..., hooks=...)``.

    After a crash the next ``turn()`` tells the model what was called and what came of it, or that nobody
    knows. A call of one stored item is started once, whoever resumes it.

    Args:
        session: Where to record.
        tools: Names of the tools to record; None: all.
        inner: Your own hooks, which are called as well.
    """

    def __init__(
        self, session: SegueSession, inner: RunHooks[Any] | None = None, *, tools: Collection[str] | None = None
    ) -> None:
        self._session = session
        self._inner = inner or RunHooks[Any]()
        self._tools = None if tools is None else frozenset(tools)
        self._open: weakref.WeakKeyDictionary[Any, list[tuple[str, segue.Effect]]] = weakref.WeakKeyDictionary()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Record the call; the tool does not start unless this is on the disk."""
        if self._tools is None or tool.name in self._tools:
            await self._start(context, tool.name)
        await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """Record what came of it."""
        effect = self._take(context, tool.name)
        if effect is not None:
            text = str(result).encode("utf-8", "replace").decode()
            end = effect.then("completed", result={"output": text[:RESULT_MAX]})
            await self._fact(_entry(end, f"{end.id}-end", {}))
        await self._inner.on_tool_end(context, agent, tool, result)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        """Handed on."""
        await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Handed on."""
        await self._inner.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """Handed on."""
        await self._inner.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """Handed on."""
        await self._inner.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Handed on."""
        await self._inner.on_handoff(context, from_agent, to_agent)

    async def _start(self, context: Any, tool: str) -> None:
        stored = await self._session.stored()
        call, arguments = getattr(context, "tool_call_id", None), getattr(context, "tool_arguments", None)
        name = (
            new_id()
            if call is None
            else await stored.sync.log.engine.ahop(_identity, stored.sync, call, tool, arguments)
        )
        effect = segue.Effect(name, tool, key=name)
        about = {"call": call, "arguments": arguments, "by": new_id()}
        try:
            await self._session._append(stored, [_entry(effect, f"{name}-start", about)])  # noqa: SLF001
        except IdConflict:
            raise CallStarted(str(call), tool) from None
        self._open.setdefault(context, []).append((tool, effect))

    def _take(self, context: Any, tool: str) -> segue.Effect | None:
        started = self._open.get(context, [])
        for pair in started:
            if pair[0] == tool:
                started.remove(pair)
                return pair[1]
        return None

    async def _fact(self, entry: Draft) -> None:
        """What happened is stored, even when the turn was overtaken meanwhile."""
        stored = await self._session.stored()
        turn = turn_of(stored.id)
        if turn is None:
            await stored.append(entry)
        else:
            await stored.sync.log.engine.ahop(turn.run.sync.append_fact, entry)


def _entry(effect: segue.Effect, id: str, about: dict[str, Any]) -> Draft:
    body = {**effect.body(), **about}
    return segue.draft(body, kind="effect", format="segue", origin="tool", id=id, refs=effect.refs)


def _identity(stored: segue.Session, call: str, tool: str, arguments: str | None) -> str:
    """
    What is the same whoever starts this call: the stored item of the call, else the place it is made at.

    The id alone does not do: some models count their calls from 1 in every answer.
    """
    place = open_call(stored, call) or history.last_message(stored)
    what = json.dumps([stored.id, place, call, tool, arguments])
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:32]
