"""
At home in the Claude Agent SDK: its sessions in Segue.

    from segue.adapters.claude_agent_sdk import SegueSessionStore

    options = ClaudeAgentOptions(session_store=SegueSessionStore("sqlite:///agent.db", user="lin"))
"""

from __future__ import annotations

from segue.errors import MissingExtra

try:
    import claude_agent_sdk as _sdk  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("claude-agent-sdk", error.name or "claude_agent_sdk") from None

from .hooks import Hooks
from .local import import_transcripts
from .mirror import Forked
from .store import SegueSessionStore
from .turn import Turn, segue_options

__all__ = ["Forked", "Hooks", "SegueSessionStore", "Turn", "import_transcripts", "segue_options"]
