"""Factories for programs that test an adapter from outside: one store for each directory."""

from __future__ import annotations

import contextlib
import hashlib
import os


def claude_store(directory):
    from segue.adapters.claude_agent_sdk import SegueSessionStore

    return SegueSessionStore(f"sqlite:///{directory}/segue.db", spool=f"{directory}/spool")


def claude_pinned_store(directory):
    from segue.adapters.claude_agent_sdk import SegueSessionStore

    return SegueSessionStore(f"sqlite:///{directory}/segue.db", spool=f"{directory}/spool", project="analyst")


def agents_session(session_id, directory):
    from segue.adapters.openai_agents import SegueSession

    return SegueSession.from_url(session_id, f"sqlite:///{directory}/segue.db")


def agents_compacting_session(session_id, directory):
    import segue
    from segue.adapters.openai_agents import SegueCompactingSession

    db = segue.open(f"sqlite:///{directory}/segue.db")
    return SegueCompactingSession(session_id, db.scope(), client=object())


def saver(directory):
    from segue.adapters.langgraph import SegueSaver

    return SegueSaver.open(f"sqlite:///{directory}/segue.db")


def saver_jsonl(directory):
    from segue.adapters.langgraph import SegueSaver

    return SegueSaver.open(f"jsonl:{directory}/segue")


@contextlib.contextmanager
def saver_postgres(directory):
    """On the server of SEGUE_TEST_POSTGRES_URL; each directory is an owner of its own."""
    import segue
    from segue.adapters.langgraph import SegueSaver

    user = hashlib.sha256(str(directory).encode()).hexdigest()
    with segue.open(os.environ["SEGUE_TEST_POSTGRES_URL"], pool_size=1) as db:
        yield SegueSaver(db.scope(user=user))
