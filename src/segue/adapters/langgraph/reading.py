"""Checkpoints and what belongs to them on their way out."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import TASKS

from segue.errors import Invalid, NotFound

from . import place as places
from .content import Reader
from .place import HeadId, NamedId, Place
from .thread import Manifest, Thread, Threads
from .values import Codec
from .writing import next_version

PENDING_SENDS_BELOW = 4
"""Checkpoints of a lower format keep what was sent in their parent's writes."""


def tuple_of(thread: Thread, place: Place, codec: Codec) -> CheckpointTuple | None:
    """The checkpoint that a place names, or the head there."""
    ns = place.ns or ""
    found = thread.head_of(ns) if place.checkpoint is None else thread.checkpoint(ns, place.checkpoint)
    if found is None:
        return None
    made = build(thread, found, codec)
    kind = HeadId if place.checkpoint is None else NamedId
    made.config["configurable"]["checkpoint_id"] = kind(found.id)
    return made


def build(thread: Thread, manifest: Manifest, codec: Codec) -> CheckpointTuple:
    """A checkpoint with its values, metadata and pending writes."""
    body = manifest.body
    writes = thread.writes(manifest.ns, manifest.id)
    nodes = {f"v{channel}": node for channel, node in body["values"].items()}
    nodes |= {f"w{n}": write.node for n, write in enumerate(writes)}
    values = Reader(thread, codec).values(nodes)
    checkpoint: Any = {
        "v": body["v"],
        "id": manifest.id,
        "ts": body["ts"],
        "channel_values": {channel: values[f"v{channel}"] for channel in body["values"]},
        "channel_versions": codec.value(body["versions"]),
        "versions_seen": codec.value(body["seen"]),
        "updated_channels": codec.value(body["updated"]),
        **codec.value(body.get("more", {})),
    }
    parent = body["parent"]
    if body["v"] < PENDING_SENDS_BELOW and parent is not None:
        _lift_sends(thread, manifest, checkpoint, codec)
    return CheckpointTuple(
        places.config(thread.name, manifest.ns, manifest.id),
        checkpoint,
        codec.value(body["metadata"]),
        None if parent is None else places.config(thread.name, manifest.ns, parent),
        [(write.task, write.channel, values[f"w{n}"]) for n, write in enumerate(writes)],
    )


def _lift_sends(thread: Thread, manifest: Manifest, checkpoint: Any, codec: Codec) -> None:
    """What an old LangGraph sent stands in the parent's writes; it reads it as a channel today."""
    writes = [w for w in thread.writes(manifest.ns, manifest.body["parent"]) if w.channel == TASKS]
    if not writes:
        return
    found = Reader(thread, codec).values({str(n): write.node for n, write in enumerate(writes)})
    versions = checkpoint["channel_versions"]
    checkpoint["channel_values"][TASKS] = [found[str(n)] for n in range(len(writes))]
    versions[TASKS] = max(versions.values(), default=None) or next_version(None)


class Query:
    """What ``list`` shows."""

    def __init__(self, codec: Codec, filter: Mapping[str, Any], before: Any) -> None:
        if not isinstance(filter, Mapping):
            raise Invalid("filter must be a mapping of metadata fields", where="filter")
        self._codec = codec
        self._filter = {key: codec.safe(value) for key, value in filter.items()}
        self._before = before

    def tuples(self, threads: Threads, place: Place | None) -> Iterator[CheckpointTuple]:
        """The checkpoints, each read when it is asked for."""
        if place is None:
            yield from self._everywhere(threads)
            return
        thread = threads.find(place.thread)
        if thread is not None:
            bound = _Bound.of(thread, self._before)
            for one in self._manifests(thread, place, bound):
                made = self._build(threads, thread, one)
                if made is not None:
                    yield made

    def _everywhere(self, threads: Threads) -> Iterator[CheckpointTuple]:
        before = _moment(threads, self._before)
        order = count()

        def stream(thread: Thread) -> Iterator[tuple[int, int, int, Manifest, Thread]]:
            for one in self._all(thread, before):
                yield -one.created_us, -one.seq, next(order), one, thread

        streams = [stream(thread) for thread in threads.each()]
        for *_, one, thread in heapq.merge(*streams):
            made = self._build(threads, thread, one)
            if made is not None:
                yield made

    def _all(self, thread: Thread, before: _Moment | None) -> Iterator[Manifest]:
        try:
            with thread.lock:
                thread.refresh()
        except NotFound:
            return
        everywhere = Place(thread.name, None, None, None, is_engine=False)
        for one in self._manifests(thread, everywhere, None):
            if before is None or before.is_after(one, thread.name):
                yield one

    def _manifests(self, thread: Thread, place: Place, bound: _Bound | None) -> Iterator[Manifest]:
        after = None if bound is None else bound.seq
        if place.checkpoint is not None:
            found = thread.checkpoint(place.ns or "", place.checkpoint)
            candidates = iter([] if found is None else [found])
        else:
            candidates = thread.manifests(place.ns, before=after)
        for one in candidates:
            if (bound is None or bound.has(thread, one)) and self._fits(one):
                yield one

    def _fits(self, manifest: Manifest) -> bool:
        if not self._filter:
            return True
        metadata = manifest.body["metadata"]
        return all(key in metadata and same(metadata[key], value) for key, value in self._filter.items())

    def _build(self, threads: Threads, thread: Thread, one: Manifest) -> CheckpointTuple | None:
        try:
            with thread.lock:
                thread.refresh()
                if not thread.is_seen(one.seq):
                    return None
                return build(thread, one, self._codec)
        except NotFound:
            threads.forget(thread)
            return None


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, but True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class _Bound:
    """
    What "before this checkpoint" means: stored before it, and not by what came out of it.

    LangGraph asks so for the checkpoints of a subgraph before one of its parent graph, whose own storing may
    still have been under way when the subgraph stored its first.
    """

    def __init__(self, seq: int | None, id: str) -> None:
        self.seq = seq
        self._id = id

    @classmethod
    def of(cls, thread: Thread, config: Any) -> _Bound | None:
        id = None if config is None else (config.get("configurable") or {}).get("checkpoint_id")
        if not id:
            return None
        ns = config["configurable"].get("checkpoint_ns")
        found = None if ns is None else thread.checkpoint(ns, id)
        return cls(found.seq if found is not None else thread.seq_of(id), id)

    def has(self, thread: Thread, one: Manifest) -> bool:
        if self.seq is None:  # not stored here: nothing but the ids tells
            return one.id < self._id
        parents = one.body["metadata"].get("parents")
        if not isinstance(parents, dict):
            return True
        for id in parents.values():
            seq = thread.seq_of(id) if isinstance(id, str) else None
            if id == self._id or (seq is not None and seq >= self.seq) or (seq is None and id > self._id):
                return False
        return True


def _moment(threads: Threads, config: Any) -> _Moment | None:
    """The bound of a list of all threads."""
    id = None if config is None else (config.get("configurable") or {}).get("checkpoint_id")
    if not id:
        return None
    place = Place.of(config)
    thread = threads.find(place.thread)
    found = None if thread is None else thread.entry_of(id)
    if found is None:
        return _Moment(id, None, place.thread, 0)
    return _Moment(id, found.created_us, place.thread, found.seq)


class _Moment(NamedTuple):
    """When a checkpoint was stored."""

    id: str
    created_us: int | None
    thread: str
    seq: int

    def is_after(self, one: Manifest, thread: str) -> bool:
        """Whether a checkpoint was stored before it."""
        if self.created_us is None:  # not stored here: nothing but the ids tells
            return one.id < self.id
        if thread == self.thread:
            return one.seq < self.seq
        return one.created_us < self.created_us


def delta_history(thread: Thread, place: Place, channels: Sequence[str], codec: Codec) -> dict[str, Any]:
    """Per channel the writes of the ancestors, oldest first, back to the nearest one that has a value: the seed."""
    ns = place.ns or ""
    found = thread.head_of(ns) if place.checkpoint is None else thread.checkpoint(ns, place.checkpoint)
    nodes: dict[str, Any] = {}
    rows: dict[str, list[Any]] = {channel: [] for channel in channels}
    left = set(channels)
    while found is not None and left and found.body["parent"] is not None:
        found = thread.ancestor(ns, found.body["parent"])
        if found is None:
            break
        for write in reversed(thread.writes(ns, found.id)):
            if write.channel in left:
                nodes[f"w{len(nodes)}"] = write.node
                rows[write.channel].append((write, f"w{len(nodes) - 1}"))
        for channel in [one for one in left if one in found.body["values"]]:
            nodes[f"s{channel}"] = found.body["values"][channel]
            left.discard(channel)
    values = Reader(thread, codec).values(nodes)
    return {
        channel: {
            "writes": [(write.task, write.channel, values[key]) for write, key in reversed(rows[channel])],
            **({"seed": values[f"s{channel}"]} if f"s{channel}" in nodes else {}),
        }
        for channel in channels
    }
