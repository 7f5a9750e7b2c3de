"""
Segue: the session layer for AI agents.

It keeps every session whole, brings it back for its owner alone, and says what changed in the world
while the session was away.

    import segue

    with segue.open("sqlite:///agent.db") as db:
        session = db.scope(user="lin").create(title="August sales")
        with session.run() as run:
            run.append({"role": "user", "content": "Why did East China's sales fall in August?"})
            messages = run.messages()  # for the model's client
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .database import Database, SweepReport, open
from .errors import (
    Archived,
    Busy,
    Closed,
    ConfigDrift,
    Conflict,
    Contended,
    Corrupt,
    DiskFull,
    Exists,
    HeadMoved,
    IdConflict,
    Invalid,
    LeaseLost,
    Locked,
    MaskRefused,
    MissingExtra,
    NotDone,
    NotFound,
    OutcomeUnknown,
    QueueTimeout,
    ReadOnly,
    SegueError,
    StaleRead,
    TooNew,
    Unavailable,
    Unsupported,
    VersionMoved,
    ViewInvalid,
)
from .log import draft
from .model import Draft, Entry, Hit, Lease, Parent, ScopeKey, SessionInfo, Usage
from .run import Run
from .session import Scope, Session, SessionList
from .view import View, ViewSpec

if TYPE_CHECKING:
    from .aio import AsyncDatabase, AsyncResumed, AsyncRun, AsyncScope, AsyncSession, aopen
    from .briefing import Briefing, ResumePolicy
    from .config import AgentConfig
    from .guard import calling, reads, using, writes
    from .ledger import Effect, Observation, Version
    from .resume import Resumed, ResumeOptions
    from .world import Finding, Sources

__version__ = "0.1.0"

__all__ = [
    "AgentConfig",
    "Archived",
    "AsyncDatabase",
    "AsyncResumed",
    "AsyncRun",
    "AsyncScope",
    "AsyncSession",
    "Briefing",
    "Busy",
    "Closed",
    "ConfigDrift",
    "Conflict",
    "Contended",
    "Corrupt",
    "Database",
    "DiskFull",
    "Draft",
    "Effect",
    "Entry",
    "Exists",
    "Finding",
    "HeadMoved",
    "Hit",
    "IdConflict",
    "Invalid",
    "Lease",
    "LeaseLost",
    "Locked",
    "MaskRefused",
    "MissingExtra",
    "NotDone",
    "NotFound",
    "Observation",
    "OutcomeUnknown",
    "Parent",
    "QueueTimeout",
    "ReadOnly",
    "ResumeOptions",
    "ResumePolicy",
    "Resumed",
    "Run",
    "Scope",
    "ScopeKey",
    "SegueError",
    "Session",
    "SessionInfo",
    "SessionList",
    "Sources",
    "StaleRead",
    "SweepReport",
    "TooNew",
    "Unavailable",
    "Unsupported",
    "Usage",
    "Version",
    "VersionMoved",
    "View",
    "ViewInvalid",
    "ViewSpec",
    "__version__",
    "aopen",
    "calling",
    "draft",
    "open",
    "reads",
    "using",
    "writes",
]


# What a program that keeps a conversation never touches is imported when it is first asked for.
_LATER = {
    **dict.fromkeys(("AsyncDatabase", "AsyncResumed", "AsyncRun", "AsyncScope", "AsyncSession", "aopen"), "aio"),
    **dict.fromkeys(("Briefing", "ResumePolicy"), "briefing"),
    **dict.fromkeys(("calling", "reads", "using", "writes"), "guard"),
    **dict.fromkeys(("Effect", "Observation", "Version"), "ledger"),
    **dict.fromkeys(("Resumed", "ResumeOptions"), "resume"),
    **dict.fromkeys(("Finding", "Sources"), "world"),
    "AgentConfig": "config",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module 'segue' has no attribute {name!r}")
