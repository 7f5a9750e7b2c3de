"""
An agent of the OpenAI Agents SDK on Segue, without a key: two users at once, an approval, a crash, a fork.

    python -m examples.openai_agents_sdk
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import segue
from segue.adapters.openai_agents import SegueHooks, SegueSession, StateTaken


@function_tool(needs_approval=True)
def publish(text: str) -> str:
    """Publish a report."""
    print(f"   ... published: {text}")
    return "published as report-8"


def analyst(*answers: Any, tools: Iterable[Any] = ()) -> Agent[Any]:
    """An agent whose model says what it is told to."""
    return Agent("analyst", model=ScriptedModel([[answer] for answer in answers]), tools=list(tools))


async def two_tabs(me: segue.Scope) -> None:
    """One user, two browser tabs, one session: the questions wait for each other."""

    async def tab(name: str) -> None:
        session = SegueSession("chat-7", me)
        async with session.turn(policy="enqueue"):
            await Runner.run(analyst(assistant_message(f"answer to {name}")), f"question of {name}", session=session)

    await asyncio.gather(tab("tab A"), tab("tab B"))
    print("1. Two tabs at once:", [_text(item) for item in await SegueSession("chat-7", me).get_items()])


async def approval(me: segue.Scope) -> None:
    """The run stops for a person; whoever resumes it second is told."""
    session = SegueSession("chat-7", me)
    call = function_call("publish", {"text": "August"}, call_id="call_1")
    async with session.turn():
        result = await Runner.run(analyst(call, tools=[publish]), "Publish it.", session=session)
        state_id = await session.save_state(result.to_state())
    print("2. Waits for a person:", (await (await session.stored()).refresh()).status)
    agent = analyst(assistant_message("It is out."), tools=[publish])
    async with session.resume_state(agent, state_id) as state:
        for waiting in state.get_interruptions():
            state.approve(waiting)
        done = await Runner.run(agent, state, session=session, hooks=SegueHooks(session))
    print("   approved:", done.final_output)
    try:
        async with session.resume_state(agent, state_id):
            pass
    except StateTaken as refused:
        print("   a second time:", type(refused).__name__)


async def fork(me: segue.Scope) -> None:
    """What if we had asked something else."""
    session = SegueSession("chat-7", me)
    branch = await session.fork("chat-7-what-if", keep=2)
    await branch.add_items([{"role": "user", "content": "and by SKU?"}])
    print("3. Fork:", len(await branch.get_items()), "items; the parent still has", len(await session.get_items()))


def _text(item: Any) -> str:
    content = item.get("content", "")
    return content if isinstance(content, str) else content[0]["text"]


def main() -> None:
    """Run all of it in a folder of its own."""
    set_tracing_disabled(disabled=True)
    with tempfile.TemporaryDirectory() as folder, segue.open(f"sqlite:///{Path(folder)}/agent.db") as db:
        me = db.scope(tenant="acme", user="lin")
        for part in (two_tabs, approval, fork):
            asyncio.run(part(me))


if __name__ == "__main__":
    main()
