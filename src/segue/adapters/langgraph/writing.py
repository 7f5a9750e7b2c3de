"""Checkpoints and pending writes on their way in."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, get_checkpoint_metadata

import segue
from segue import codec as door
from segue.errors import Conflict, HeadMoved, Invalid, NotFound

from . import place as places
from .content import FORMAT, Batch, Encoded, encode
from .place import HeadId, NamedId, Place, ThreadMoved
from .thread import CHECKPOINT, DROP, DROPPED, WRITE, Manifest, Thread, Threads, gather
from .values import Codec, scalar

if TYPE_CHECKING:
    from .turns import Forks, Turns

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 10_000
"""How often a write is tried again while others write to the same thread."""

BRANCHES = ("fork", "update")
"""Sources of checkpoints that begin a branch."""

_DIGITS = 10
NOWHERE = Place("", None, None, None, is_engine=False)
_NAMED = ("v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels")


def next_version(current: str | float | None) -> str:
    """The version after this one, as wide as it was (savers write 32 digits, threads of ours 10)."""
    number, width = 0, _DIGITS
    if isinstance(current, str):
        digits = current.partition(".")[0]
        number, width = int(digits), max(width, len(digits))
    elif current is not None:
        number = int(current)
    return f"{number + 1:0{width}}.{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Writer:
    """What writing needs of a saver."""

    threads: Threads
    codec: Codec
    turns: Turns
    forks: Forks


@dataclass
class Put:
    """A checkpoint, encoded."""

    place: Place
    id: str
    source: str
    values: dict[str, Encoded]
    body: dict[str, Any]
    carried: dict[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    is_import: bool = False

    @classmethod
    def of(
        cls,
        codec: Codec,
        config: Mapping[str, Any],
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> Put:
        """Encode everything; ``Invalid`` when something could not be given back."""
        meta = get_checkpoint_metadata(config, metadata)  # type: ignore[arg-type]
        versions = checkpoint["channel_versions"]
        values = {
            channel: encode(codec, value)
            for channel, value in checkpoint["channel_values"].items()
            if channel in versions
        }
        body = {
            "v": checkpoint["v"],
            "ts": checkpoint["ts"],
            "versions": codec.safe(dict(versions)),
            "seen": codec.safe(dict(checkpoint["versions_seen"])),
            "updated": codec.safe(checkpoint.get("updated_channels")),
            "metadata": codec.safe({key: scalar(value) for key, value in meta.items()}),
        }
        more = {key: value for key, value in checkpoint.items() if key not in _NAMED}
        if more:
            body["more"] = codec.safe(more)
        # A channel that did not change and is not handed over is the parent's.
        carried = {c: v for c, v in versions.items() if c not in new_versions and c not in values}
        run_id = meta.get("run_id")
        return cls(
            Place.of(config) if config else NOWHERE,
            str(checkpoint["id"]),
            str(meta.get("source", "")),
            values,
            body,
            carried,
            run_id if isinstance(run_id, str) and run_id else None,
        )


def put(writer: Writer, put: Put) -> RunnableConfig:
    """Store a checkpoint."""
    place = writer.forks.follow(put.place)
    try:
        _put(writer, put, place)
    except ThreadMoved as moved:
        place = writer.forks.make(writer.threads, place, moved)
        _put(writer, put, place)
    writer.forks.went(put.place, place, put.id)
    return places.config(put.place.thread, place.ns or "", put.id)


def _put(writer: Writer, put: Put, place: Place) -> None:
    ns = place.ns or ""
    for _ in range(ATTEMPTS_MAX):
        thread = _thread(writer, place, is_put=not put.is_import)
        try:
            with thread.lock:
                thread.refresh()
                run = writer.turns.run(place, thread)
                thread.check_free(run)
                head, known = thread.head_of(ns), thread.checkpoint(ns, put.id)
                if known is None:
                    check_follows(place, head, put.source)
                batch = Batch(thread)
                body = _manifest(batch, put, place, head, known)
                if known is not None and {**known.body, "head": True} == {**body, "head": True}:
                    return  # the same again: a retry
                refs = [places.checkpoint_ref(put.id), places.ns_ref(ns)]
                refs += [places.run_ref(put.run_id)] if put.run_id else []
                seq = batch.add(body, kind=CHECKPOINT, refs=refs)
                thread.commit(batch, run)
                thread.put(Manifest(seq, body))
                return
        except HeadMoved:
            continue
        except NotFound:
            continue  # deleted in this moment: the next look says so
    raise _contended(place)


def _thread(writer: Writer, place: Place, *, is_put: bool) -> Thread:
    """The thread to write to; a run whose thread was deleted gets ``ThreadMoved``."""
    if is_put and place.checkpoint is not None and (place.is_engine or type(place.checkpoint) is not str):
        thread = writer.threads.find(place.thread)
        if thread is None:
            raise ThreadMoved(place.thread, place.checkpoint, None)
        return thread
    if not is_put and writer.threads.was_deleted(place.thread):
        raise ThreadMoved(place.thread, place.checkpoint, None)
    return writer.threads.make(place.thread)


def check_follows(place: Place, head: Manifest | None, source: str) -> None:
    """
    Refuse a checkpoint whose parent is not the head any more.

    A branch by intent is none of these: LangGraph reads the checkpoint that a caller names, then puts on it.
    What a program puts by hand may begin a thread anew; a run may not.
    """
    parent = place.checkpoint
    if head is None:
        if parent is not None and place.is_engine:
            raise ThreadMoved(place.thread, parent, None)
        return
    if parent is None:
        if place.is_engine and not place.ns:
            raise ThreadMoved(place.thread, None, head.id)
        return
    if parent == head.id or isinstance(parent, NamedId):
        return
    if source in BRANCHES and not isinstance(parent, HeadId):
        return
    raise ThreadMoved(place.thread, parent, head.id)


def _manifest(batch: Batch, put: Put, place: Place, head: Manifest | None, known: Manifest | None) -> dict[str, Any]:
    ns = place.ns or ""
    parent = batch.thread.checkpoint(ns, place.checkpoint) if place.checkpoint else None
    like = known or parent or head
    nodes = {} if like is None else like.body["values"]
    values = {channel: batch.node(one, _like(nodes, channel)) for channel, one in put.values.items()}
    if parent is not None:
        versions, before = parent.body["versions"], parent.body["values"]
        for channel, version in put.carried.items():
            if versions.get(channel) == version and channel in before:
                values[channel] = before[channel]
    body = {"id": put.id, "ns": ns, "parent": place.checkpoint, **put.body, "values": values}
    if place.checkpoint is not None:
        body["parent"] = str(place.checkpoint)
    if known is not None and (head is None or head.id != put.id):
        body["head"] = False  # stored again: it does not become the head by that
    return body


def _like(nodes: Mapping[str, Any], channel: str) -> Any:
    """The node to share a list's beginning with; an input's object is compared with the channels of its keys."""
    if channel == "__start__":
        return {"d": nodes}
    return nodes.get(channel)


def _contended(place: Place) -> Conflict:
    return Conflict(f"thread {place.thread!r} changes faster than this write can follow; take turns on it")


def put_writes(
    writer: Writer, config: Mapping[str, Any], writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> None:
    """Store pending writes."""
    if not writes:
        return
    place = writer.forks.follow(Place.of(config))
    if place.checkpoint is None:
        raise Invalid("pending writes belong to a checkpoint; the config names none", where="checkpoint_id")
    encoded = [
        (WRITES_IDX_MAP.get(channel, index), channel, encode(writer.codec, value))
        for index, (channel, value) in enumerate(writes)
    ]
    for _ in range(ATTEMPTS_MAX):
        thread = _thread(writer, place, is_put=False)
        try:
            with thread.lock:
                thread.refresh()
                run = writer.turns.run(place, thread)
                thread.check_free(run)
                _append_writes(thread, run, place, _Task(task_id, task_path), encoded)
                return
        except HeadMoved:
            continue
        except NotFound:
            continue  # deleted in this moment: the next look says so
    raise _contended(place)


class _Task(NamedTuple):
    id: str
    path: str


def _append_writes(
    thread: Thread,
    run: segue.Run | None,
    place: Place,
    task: _Task,
    encoded: Sequence[tuple[int, str, Encoded]],
) -> None:
    assert place.checkpoint is not None
    ns = place.ns or ""
    batch = Batch(thread)
    base = thread.checkpoint(ns, place.checkpoint)
    nodes = {} if base is None else base.body["values"]
    rows = [[index, channel, batch.node(one, nodes.get(channel))] for index, channel, one in encoded]
    if place.is_engine:
        _check_task(batch, run, place, task, rows)
    body = {"cp": str(place.checkpoint), "ns": ns, "task": task.id, "path": task.path, "writes": rows}
    door.encode(body)
    batch.add(body, kind=WRITE, format=FORMAT, refs=[places.writes_ref(place.checkpoint)])
    thread.commit(batch, run)
    if any(draft.kind == DROP for draft in batch.drafts):
        thread.forget()


def _check_task(batch: Batch, run: segue.Run | None, place: Place, task: _Task, rows: Sequence[Any]) -> None:
    """
    Tell a run whose task another run has done with another outcome; the first outcome would stay otherwise.

    A DeltaChannel is made from these writes, so that the answer of the one would be read back as the other's.
    In a turn, what a run has left that was fenced off gives way.
    """
    assert place.checkpoint is not None
    thread, ns = batch.thread, place.ns or ""
    head = thread.head_of(ns)
    if task.id == _input_task(place.checkpoint) and head is not None and head.id != place.checkpoint:
        raise ThreadMoved(place.thread, place.checkpoint, head.id)
    new = {index: [channel, node] for index, channel, node in rows if index >= 0}
    old = [w for w in thread.writes(ns, place.checkpoint) if w.task == task.id and w.number in new]
    if all([w.channel, w.node] == new[w.number] for w in old):
        return
    if run is None or any(w.run == run.id for w in old):
        raise ThreadMoved(place.thread, place.checkpoint, place.checkpoint if head is None else head.id)
    batch.add({"seqs": gather({w.seq for w in old}), "hidden": []}, kind=DROP, refs=(DROPPED,))


def _input_task(checkpoint: str) -> str:
    """The task under which LangGraph stores a run's input for a DeltaChannel."""
    try:
        return str(uuid.uuid5(uuid.UUID(checkpoint), "__input__"))
    except ValueError:
        return ""
