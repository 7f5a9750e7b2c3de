"""Threads of another checkpointer, such as SqliteSaver or PostgresSaver, into Segue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple

from .place import name
from .saver import SegueSaver


class Migrated(NamedTuple):
    """What was taken over."""

    threads: int
    checkpoints: int
    skipped: tuple[str, ...]


def migrate(
    source: BaseCheckpointSaver[Any], target: SegueSaver, *, threads: Iterable[object] | None = None
) -> Migrated:
    """
    Take over threads with all their checkpoints and pending writes; the source is only read.

    A thread that the target has already is skipped and named, so that a migration may be run again. Checkpoints come
    in the order of their ids, so that the one which the other saver took for the head is the head.

    Args:
        source: A sync saver: SqliteSaver, PostgresSaver, InMemorySaver. It decodes by its own rules; what it cannot
            read is its error.
        target: Where to.
        threads: Only these; None: all that the source lists.

    Returns:
        How many threads and checkpoints were taken over, and the threads that were there already.
    """
    wanted = _all(source) if threads is None else [name(one) for one in threads]
    taken = checkpoints = 0
    skipped: list[str] = []
    for thread in wanted:
        if target.get_tuple({"configurable": {"thread_id": thread}}) is not None or any(_list(target, thread)):
            skipped.append(thread)
            continue
        found = sorted(_list(source, thread), key=lambda one: str(one.checkpoint["id"]))
        for one in found:
            _take_over(target, one)
        taken += bool(found)
        checkpoints += len(found)
    return Migrated(taken, checkpoints, tuple(skipped))


def _all(source: BaseCheckpointSaver[Any]) -> list[str]:
    return list(dict.fromkeys(str(one.config["configurable"]["thread_id"]) for one in source.list(None)))


def _list(saver: BaseCheckpointSaver[Any], thread: str) -> list[CheckpointTuple]:
    return list(saver.list({"configurable": {"thread_id": thread}}))


def _take_over(target: SegueSaver, one: CheckpointTuple) -> None:
    conf = one.config["configurable"]
    parent = None if one.parent_config is None else one.parent_config["configurable"]["checkpoint_id"]
    place = {"thread_id": str(conf["thread_id"]), "checkpoint_ns": conf.get("checkpoint_ns", "")}
    # Read by its id, so that a branch of the other saver is one here, too.
    target.import_checkpoint(place, parent, one.checkpoint, one.metadata)
    tasks: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for task, channel, value in one.pending_writes or ():
        tasks[task].append((channel, value))
    config: Any = {"configurable": {**place, "checkpoint_id": one.checkpoint["id"]}}
    for number, (task, writes) in enumerate(tasks.items()):
        # Another saver does not give the path of a task, but gives the writes in its order.
        special = [write for write in writes if write[0] in WRITES_IDX_MAP]
        regular = [write for write in writes if write[0] not in WRITES_IDX_MAP]
        target.put_writes(config, [*regular, *special], task, f"~migrated:{number:06}")
