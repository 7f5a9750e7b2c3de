"""
At home in LangGraph: its checkpoints in Segue.

    from segue.adapters.langgraph import SegueSaver

    saver = SegueSaver(db.scope(tenant="acme", user="lin"))
    graph = builder.compile(checkpointer=saver)
    with saver.turn("chat-7", policy="enqueue") as turn:
        graph.invoke({"messages": [question]}, turn.config)
"""

from __future__ import annotations

from segue.errors import MissingExtra

try:
    import langgraph.checkpoint.base as _sdk  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("langgraph", error.name or "langgraph") from None

from .migrate import Migrated, migrate
from .place import ThreadMoved
from .saver import SegueSaver
from .turns import Turn, turn_of
from .values import Codec, Unknown

__all__ = ["Codec", "Migrated", "SegueSaver", "ThreadMoved", "Turn", "Unknown", "migrate", "turn_of"]
