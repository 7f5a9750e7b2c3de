"""
At home in the OpenAI Agents SDK: its sessions in Segue.

    from segue.adapters.openai_agents import SegueSession

    session = SegueSession("chat-7", db.scope(tenant="acme", user="lin"))
    async with session.turn(policy="enqueue"):
        result = await Runner.run(agent, "Why did sales fall in August?", session=session)
"""

from __future__ import annotations

from segue.errors import MissingExtra

try:
    import agents.memory as _sdk  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("openai-agents", error.name or "agents") from None

from .compacting import SegueCompactingSession
from .hooks import CallStarted, SegueHooks
from .migrate import Migrated, migrate_file, migrate_session
from .progress import TurnLost
from .refusals import tell_refusal
from .session import SegueSession
from .states import SavedState, StateExpired, StateMissing, StateStale, StateTaken
from .turn import Turn

__all__ = [
    "CallStarted",
    "Migrated",
    "SavedState",
    "SegueCompactingSession",
    "SegueHooks",
    "SegueSession",
    "StateExpired",
    "StateMissing",
    "StateStale",
    "StateTaken",
    "Turn",
    "TurnLost",
    "migrate_file",
    "migrate_session",
    "tell_refusal",
]
