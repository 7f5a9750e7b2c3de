"""
Checkpoints as manifests: what is new is stored, what is known is pointed to.

A channel's value becomes a *node* in the manifest: ``{"v": …}`` a small value itself; a number, the seq of the entry
that holds the value; ``{"l": […]}`` a short list, ``{"p": seq}`` a long one (its *spine*), ``{"d": {…}}`` an object
of nodes, ``{"s": node}`` a snapshot of a DeltaChannel. The elements of a list are entries of their own, found again
by a keyed digest of their bytes. A spine says "the first n elements of that spine, then these", and is written in
full every 64 steps. So what a turn writes depends on what is new in it, not on how long the thread is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph.checkpoint.serde.types import _DeltaSnapshot

import segue
from segue import codec as door
from segue.errors import Corrupt
from segue.model import Draft
from segue.store import BATCH_MAX

from .values import MARK, Codec

if TYPE_CHECKING:
    from .thread import Thread

VALUE = "langgraph.value"
FORMAT = "langgraph"
SPINE = "langgraph.spine"
PARTS = "langgraph.parts"

INLINE_MAX_BYTES = 96
"""A value up to this size stands in the manifest itself."""

MESSAGE = b'{"$":"message"'
"""How the JSON of a message begins."""

SHORT_LIST = 8
"""A list up to this length stands in the manifest, its elements apart."""

FULL_EVERY = 64
"""A spine is written in full after so many that point to one before."""

ADD_MAX = 50_000
"""Most elements that one spine adds; a longer list is a chain of spines."""

PART_BYTES = 2 * 1024 * 1024
"""A larger value is stored in parts of this size."""

BATCH_BYTES = 24 * 1024 * 1024
"""Most bytes of one append; a larger checkpoint is stored in several, its manifest last."""

FIELDS_DEPTH = 3
"""How deep objects are taken apart."""

_NUMBERS = frozenset({int, float, bool, type(None)})


class Leaf(NamedTuple):
    """An encoded value."""

    data: bytes


class Items(NamedTuple):
    """The encoded elements of a list."""

    parts: list[bytes]


class Fields(NamedTuple):
    """The encoded values of an object."""

    of: dict[str, Encoded]


class Snapshot(NamedTuple):
    """The encoded value of a DeltaChannel's snapshot."""

    of: Encoded


Encoded = Leaf | Items | Fields | Snapshot


def encode(codec: Codec, value: Any, depth: int = 0) -> Encoded:
    """The value, each element of each list encoded once; ``Invalid`` when it could not be given back."""
    kind = type(value)
    if kind is list and value and not _NUMBERS.issuperset(map(type, value)):
        return Items([codec.encode(one) for one in value])
    if kind is dict and depth < FIELDS_DEPTH and _is_split(value):
        return Fields({key: encode(codec, one, depth + 1) for key, one in value.items()})
    if kind is _DeltaSnapshot:
        return Snapshot(encode(codec, value.value, depth))
    return Leaf(codec.encode(value))


def _is_split(value: dict[Any, Any]) -> bool:
    """Whether an object is worth taking apart: it holds a list or an object."""
    return any(type(one) in (list, dict) and one for one in value.values()) and all(
        type(key) is str and key != MARK and key.isprintable() for key in value
    )


@dataclass(slots=True)
class Spine:
    """
    A list as the saver knows it.

    Attributes:
        items: Its elements: a seq, or ``[tree]`` of a small one.
        keys: Their digests.
        depth: How many spines it is written in, besides a full one.
        whole: The digest of all of it, which tells an unchanged beginning faster than 2,000 small ones.
    """

    items: list[Any]
    keys: list[bytes]
    depth: int
    whole: bytes


class Batch:
    """
    The entries of one append, whose seqs are known beforehand: it is made for one head and expects it.

    Nothing of it is known to the thread before it was committed.
    """

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.drafts: list[Draft] = []
        self._values: dict[bytes, int] = {}
        self._spines: dict[int, Spine] = {}

    def add(self, value: Any, **options: Any) -> int:
        """Add an entry; its seq."""
        self.drafts.append(segue.draft(value, **{"format": FORMAT, **options}))
        return self.thread.head + len(self.drafts)

    def node(self, encoded: Encoded, like: Any = None) -> Any:
        """
        The node of a value.

        Args:
            encoded: The value.
            like: The node of the value it comes from, to share a list's beginning with.
        """
        if isinstance(encoded, Leaf):
            return {"v": door.decode(encoded.data)} if _is_small(encoded.data) else self._leaf(encoded.data)
        if isinstance(encoded, Snapshot):
            return {"s": self.node(encoded.of, like.get("s") if isinstance(like, dict) else None)}
        if isinstance(encoded, Fields):
            known = like.get("d", {}) if isinstance(like, dict) else {}
            return {"d": {key: self.node(one, known.get(key)) for key, one in encoded.of.items()}}
        if len(encoded.parts) <= SHORT_LIST:
            return {"l": [self._item(part) for part in encoded.parts]}
        return {"p": self._list(encoded.parts, like.get("p") if isinstance(like, dict) else None)}

    def _item(self, data: bytes) -> Any:
        return [door.decode(data)] if _is_small(data) else self._leaf(data)

    def _leaf(self, data: bytes, digest: bytes | None = None) -> int:
        digest = digest or self.thread.digest(data)
        seq = self._values.get(digest)
        if seq is None:
            seq = self.thread.find(digest)
        if seq is None:
            seq = self._store(data, digest)
        self._values[digest] = seq
        return seq

    def _store(self, data: bytes, digest: bytes) -> int:
        refs = (value_ref(digest),)
        if len(data) <= PART_BYTES:
            return self.add(data, kind=VALUE, refs=refs)
        parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        seqs = [self.add(part, kind=VALUE, format="raw") for part in parts]
        return self.add(seqs, kind=VALUE, format=PARTS, refs=refs)

    def _list(self, parts: list[bytes], like: int | None) -> int:
        """The spine of a list: the one before when nothing changed, else what it adds to it."""
        before = None if like is None else self._spine(like)
        if before is None or like is None:
            keys = [self.thread.digest(part) for part in parts]
            items = [self._known(part, key) for part, key in zip(parts, keys, strict=True)]
            return self._full(items, keys, self.thread.whole(parts).digest())
        count = len(before.items)
        whole = self.thread.whole(parts[:count])
        if len(parts) >= count and whole.digest() == before.whole:
            if len(parts) == count:
                return like
            whole.update(joined(parts[count:]))
            return self._longer(like, before, parts[count:], whole.digest())
        return self._changed(like, before, parts)

    def _longer(self, like: int, before: Spine, new: list[bytes], whole: bytes) -> int:
        """A list that begins with all of the one before."""
        keys = [self.thread.digest(part) for part in new]
        added = [self._known(part, key) for part, key in zip(new, keys, strict=True)]
        return self._grown(like, before, len(before.items), added, Spine([], keys, 0, whole))

    def _changed(self, like: int, before: Spine, parts: list[bytes]) -> int:
        """A list that shares only a part with the one before: elements were changed, moved or removed."""
        keys = [self.thread.digest(part) for part in parts]
        keep = _common(before.keys, keys)
        moved = dict(zip(before.keys, before.items, strict=True))
        added = [
            moved[key] if key in moved else self._known(part, key)
            for part, key in zip(parts[keep:], keys[keep:], strict=True)
        ]
        whole = self.thread.whole(parts).digest()
        return self._grown(like, before, keep, added, Spine([], keys[keep:], 0, whole))

    def _grown(self, like: int, before: Spine, keep: int, added: list[Any], new: Spine) -> int:
        items, keys = before.items[:keep] + added, before.keys[:keep] + new.keys
        if before.depth + 1 >= FULL_EVERY or len(added) > keep:
            return self._full(items, keys, new.whole)
        return self._spine_of(
            {"base": like, "keep": keep, "add": added}, Spine(items, keys, before.depth + 1, new.whole)
        )

    def _known(self, part: bytes, key: bytes) -> Any:
        return [door.decode(part)] if _is_small(part) else self._leaf(part, key)

    def _full(self, items: list[Any], keys: list[bytes], whole: bytes) -> int:
        base: int | None = None
        for at in range(0, len(items), ADD_MAX):
            end = min(len(items), at + ADD_MAX)
            body = {"base": base, "keep": at, "add": items[at:end]}
            base = self._spine_of(body, Spine(items[:end], keys[:end], at // ADD_MAX, whole))
        assert base is not None
        return base

    def _spine_of(self, body: dict[str, Any], spine: Spine) -> int:
        seq = self.add({**body, "depth": spine.depth}, kind=VALUE, format=SPINE)
        self._spines[seq] = spine
        return seq

    def _spine(self, seq: int) -> Spine | None:
        return self._spines.get(seq) or self.thread.spine(seq)

    def chunks(self) -> Iterator[tuple[Draft, ...]]:
        """The entries in order, as many at a time as one append takes."""
        chunk: list[Draft] = []
        size = 0
        for draft in self.drafts:
            if chunk and (len(chunk) == BATCH_MAX or size + len(draft.body) > BATCH_BYTES):
                yield tuple(chunk)
                chunk, size = [], 0
            chunk.append(draft)
            size += len(draft.body)
        if chunk:
            yield tuple(chunk)

    def learn(self) -> None:
        """Tell the thread what was committed."""
        self.thread.learn(self._values, self._spines)


def _is_small(data: bytes) -> bool:
    """Whether a value stands where it is used. A message is always an entry, so that ``segue show`` shows it."""
    return len(data) <= INLINE_MAX_BYTES and not data.startswith(MESSAGE)


def value_ref(digest: bytes) -> str:
    """The ref under which a value is found again."""
    return "lg:v:" + digest.hex()


def joined(parts: list[bytes]) -> bytes:
    """Encoded elements as one: JSON as we write it has no line ends."""
    return b"\n".join([*parts, b""]) if parts else b""


def _common(one: list[bytes], other: list[bytes]) -> int:
    """How many elements two lists have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Reader:
    """Reads nodes back, each entry once."""

    def __init__(self, thread: Thread, codec: Codec) -> None:
        self._thread = thread
        self._codec = codec

    def values(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        """The values of nodes, by name."""
        wanted: set[int] = set()
        for node in nodes.values():
            wanted.update(self.seqs(node))
        bodies = self._thread.bodies(wanted)
        return {name: self._value(node, bodies) for name, node in nodes.items()}

    def seqs(self, node: Any) -> Iterator[int]:
        """The seqs of the values that a node points to (not of its spines)."""
        if isinstance(node, int):
            yield node
            return
        for key, inside in _checked(node):
            if key == "l":
                yield from (item for item in inside if isinstance(item, int))
            elif key == "p":
                yield from (item for item in self._thread.items(inside) if isinstance(item, int))
            elif key == "d":
                for one in inside.values():
                    yield from self.seqs(one)
            elif key == "s":
                yield from self.seqs(inside)

    def _value(self, node: Any, bodies: Mapping[int, Any]) -> Any:
        if isinstance(node, int):
            return self._codec.value(bodies[node])
        for key, inside in _checked(node):
            if key == "v":
                return self._codec.value(inside)
            if key == "l":
                return [self._element(item, bodies) for item in inside]
            if key == "p":
                return [self._element(item, bodies) for item in self._thread.items(inside)]
            if key == "d":
                return {name: self._value(one, bodies) for name, one in inside.items()}
            if key == "s":
                return _DeltaSnapshot(self._value(inside, bodies))
        raise Corrupt("a manifest holds a node of an unknown form; was it written by a newer Segue?")

    def _element(self, item: Any, bodies: Mapping[int, Any]) -> Any:
        return self._codec.value(item[0] if isinstance(item, list) else bodies[item])


def _checked(node: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(node, dict) or len(node) != 1:
        raise Corrupt("a manifest holds what is no node")
    yield from node.items()
