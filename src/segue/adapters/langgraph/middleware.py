"""Middleware for ``langchain.agents.create_agent``: tells the model what changed, and guards its tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from segue.errors import MissingExtra, StaleRead

try:
    from langchain.agents.middleware import AgentMiddleware
except ModuleNotFoundError as error:
    raise MissingExtra("langchain", error.name or "langchain") from None

from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.config import get_config

from .turns import turn_of


class SegueMiddleware(AgentMiddleware[Any, Any, Any]):
    """
    ``create_agent(model, tools, middleware=[SegueMiddleware()], checkpointer=saver)``, run in a ``saver.turn``.

    Before the agent starts, the turn's briefing (with ``resume=ResumeOptions(...)``) is added to the messages, once;
    from then on it is history. A tool that ``@segue.guard.writes`` a source which moved since the session read it is
    refused: the model gets the reason as the tool's result and can read again.
    """

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Add the note."""
        turn = turn_of(str(get_config()["configurable"].get("thread_id")))
        text = None if turn is None else turn.note()
        return None if text is None else {"messages": [HumanMessage(text, name="segue")]}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """See ``before_agent``."""
        return self.before_agent(state, runtime)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Tell the model of a write that was refused."""
        try:
            return handler(request)
        except StaleRead as refused:
            return _refusal(request, refused)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See ``wrap_tool_call``."""
        try:
            return await handler(request)
        except StaleRead as refused:
            return _refusal(request, refused)


def _refusal(request: Any, refused: StaleRead) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(str(refused), tool_call_id=call["id"], name=call["name"], status="error")
