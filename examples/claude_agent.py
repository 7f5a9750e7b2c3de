"""
Ask an agent of the Claude Agent SDK, and go on another day, on another machine, from another directory.

    python examples/claude_agent.py "Why did East China's sales fall in August?"
    python examples/claude_agent.py --resume "Split it by SKU, too."

The sessions are in SEGUE_STORE (sqlite:///agent.db unless told otherwise).
"""

from __future__ import annotations

import argparse
import asyncio
import os

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, TextBlock, query

import segue
from segue.adapters.claude_agent_sdk import Forked, SegueSessionStore


def told(fork: Forked) -> None:
    print(f"Somebody else went on with this session; your turn is kept as session {fork.fork_id}.")


async def ask(prompt: str, *, resume: bool) -> None:
    url = os.environ.get("SEGUE_STORE", "sqlite:///agent.db")
    async with SegueSessionStore(url, user=os.environ.get("USER", "local"), project="example", on_fork=told) as store:
        options = ClaudeAgentOptions(continue_conversation=resume, permission_mode="acceptEdits")
        try:
            async with store.turn(options) as turn:
                if turn.briefing is not None and not turn.briefing.is_quiet:
                    print(turn.briefing)
                async for message in query(prompt=prompt, options=turn.options):
                    if isinstance(message, AssistantMessage):
                        print(*(block.text for block in message.content if isinstance(block, TextBlock)), sep="")
        except segue.Busy as busy:
            print(f"Another terminal is working on this session (run {busy.run}); wait for it.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask an agent whose sessions Segue keeps.")
    parser.add_argument("prompt")
    parser.add_argument("--resume", action="store_true", help="go on with the newest session")
    given = parser.parse_args()
    asyncio.run(ask(given.prompt, resume=given.resume))
