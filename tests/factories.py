"""Factories for programs that test an adapter from outside: one store for each directory."""

from __future__ import annotations


def claude_store(directory):
    from segue.adapters.claude_agent_sdk import SegueSessionStore

    return SegueSessionStore(f"sqlite:///{directory}/segue.db", spool=f"{directory}/spool")


def claude_pinned_store(directory):
    from segue.adapters.claude_agent_sdk import SegueSessionStore

    return SegueSessionStore(f"sqlite:///{directory}/segue.db", spool=f"{directory}/spool", project="analyst")
