"""Where a call of LangGraph points to: thread, namespace, checkpoint, and how its parent was read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig

from segue.errors import Conflict, Invalid
from segue.model import NAME_MAX_BYTES

PREFIX = "langgraph:"
"""What the keys of the sessions that are threads begin with."""

TURN = "__segue_turn"
"""The key of ``configurable`` that names the turn a run belongs to."""

_ENGINE = "__pregel_"


class ThreadMoved(Conflict):
    """
    Another run advanced the thread: what this run built on is not the thread's head any more.

    Nothing of it entered the thread. Read the state and run again, take turns with
    ``saver.turn(thread, policy="enqueue")``, or keep such runs with ``SegueSaver(overtaken="fork")``.

    Attributes:
        thread: The thread.
        parent: The checkpoint that the run built on.
        head: The checkpoint that is the head now, or None when the thread was deleted.
    """

    def __init__(self, thread: str, parent: str | None, head: str | None) -> None:
        now = "the thread was deleted" if head is None else f"the head is now {head}"
        super().__init__(
            f"thread {thread!r}: this run built on {parent or 'an empty thread'}, but {now}; nothing was written. "
            "Read the state and run again, or take turns with saver.turn(thread, policy='enqueue')"
        )
        self.thread = thread
        self.parent = parent
        self.head = head


class HeadId(str):
    """A checkpoint id that was read as the head: what is put on it expects it to be the head still."""

    __slots__ = ()


class NamedId(str):
    """A checkpoint id that the caller had named: what is put on it is a branch by intent."""

    __slots__ = ()


class Place(NamedTuple):
    """A call's place."""

    thread: str
    ns: str | None
    checkpoint: str | None
    turn: str | None
    is_engine: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Place:
        """
        The place that a config points to.

        Raises:
            Invalid: It names no thread.
        """
        conf = config.get("configurable") or {}
        if conf.get("thread_id") is None:
            raise Invalid("the config names no thread; pass {'configurable': {'thread_id': ...}}", where="thread_id")
        ns = conf.get("checkpoint_ns")
        checkpoint = conf.get("checkpoint_id") or None
        if checkpoint is not None and not isinstance(checkpoint, str):
            raise Invalid("checkpoint_id must be a str", where="checkpoint_id")
        return cls(
            name(conf["thread_id"]),
            None if ns is None else str(ns),
            checkpoint,
            conf.get(TURN),
            any(isinstance(key, str) and key.startswith(_ENGINE) for key in conf),
        )


def name(thread: object) -> str:
    """A thread's name: LangGraph makes every id a str, so 7 and "7" are one thread."""
    return thread if type(thread) is str else str(thread)


def key(thread: str) -> str:
    """The key of the session that keeps a thread: the name itself where it fits, else its digest. Never two names."""
    plain = PREFIX + thread
    fits = thread.isprintable() and not thread.startswith("~") and len(plain.encode(errors="replace")) <= NAME_MAX_BYTES
    return plain if fits and "\ufffd" not in thread else f"{PREFIX}~{_hash(thread, 16)}"


def ns_ref(ns: str) -> str:
    """The ref of a namespace's checkpoints."""
    return "lg:ns" if not ns else f"lg:ns:{_hash(ns, 9)}"


def checkpoint_ref(id: str) -> str:
    """The ref of a checkpoint's manifest."""
    return "lg:cp:" + _short(id)


def writes_ref(id: str) -> str:
    """The ref of a checkpoint's pending writes."""
    return "lg:w:" + _short(id)


def run_ref(run: str) -> str:
    """The ref of the checkpoints of one of LangGraph's runs."""
    return "lg:run:" + _short(run)


def _short(text: str) -> str:
    fits = text.isprintable() and len(text) <= 60 and text.isascii() and not text.startswith("~")
    return text if fits else "~" + _hash(text, 16)


def _hash(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
    """The config of a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}
