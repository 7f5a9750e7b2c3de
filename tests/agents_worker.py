"""
Processes that run the Agents SDK on a session and may be killed at any point.

A nursery imports the SDK once; each line on its stdin starts a child by fork, whose pid it prints:

    loop URL LOG         one question after the other, each with three tool calls
    resume URL LOG [die] resume the state that waits; with "die", end inside the tool

An empty line waits for all children to end, and prints "gone".
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from agents import Runner, function_tool, set_tracing_disabled

import segue
from agents_sdk import Echo, agent
from segue.adapters.openai_agents import SegueHooks, SegueSession, StateTaken


def tool(log: Path, *, needs_approval: bool = False, dies: bool = False):
    @function_tool(needs_approval=needs_approval)
    def pay(text: str) -> str:
        """Pay: it is in the log, so it has happened."""
        with log.open("a") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        if dies:
            os._exit(9)
        return f"paid {text}"

    return pay


async def loop(session: SegueSession, log: Path) -> None:
    who = agent(Echo(tool="pay"), tool(log))
    for n in range(10_000):
        async with session.turn(policy="enqueue", briefing=False):
            await Runner.run(who, f"{os.getpid()}.{n} call:3", session=session, hooks=SegueHooks(session))
            print(n, flush=True)


async def resume(session: SegueSession, log: Path, *, dies: bool) -> None:
    who = agent(Echo(tool="pay"), tool(log, needs_approval=True, dies=dies))
    try:
        async with session.resume_state(who) as state:
            for waiting in state.get_interruptions():
                state.approve(waiting)
            done = await Runner.run(who, state, session=session, hooks=SegueHooks(session))
            print(done.final_output, flush=True)
    except (StateTaken, segue.NotFound) as error:
        print(type(error).__name__, flush=True)


def main(what: str, url: str, log: str, *more: str) -> None:
    set_tracing_disabled(disabled=True)
    with segue.open(url) as db:
        session = SegueSession("a", db.scope("acme", "lin"))
        if what == "loop":
            asyncio.run(loop(session, Path(log)))
        else:
            asyncio.run(resume(session, Path(log), dies="die" in more))


def nursery() -> None:
    children = []
    for line in sys.stdin:
        if not line.strip():
            while children:
                os.waitpid(children.pop(), 0)
            print("gone", flush=True)
            continue
        child = os.fork()
        if child == 0:
            try:
                main(*line.split())
            finally:
                os._exit(0)
        children.append(child)
        print(child, flush=True)


if __name__ == "__main__":
    nursery()
