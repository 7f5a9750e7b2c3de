"""One thread: a Segue session whose entries are manifests, values and pending writes."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import segue
from segue import codec as door
from segue.errors import Busy, Corrupt, HeadMoved, LeaseLost, NotFound
from segue.model import Entry
from segue.store import Appended

from . import place
from .content import FORMAT, PARTS, SPINE, VALUE, Batch, Spine, joined
from .values import Codec

THREAD = "langgraph.thread"
CHECKPOINT = "langgraph.checkpoint"
WRITE = "langgraph.write"
DROP = "langgraph.drop"

DROPPED = "lg:drop"
"""The ref of what says that entries are no part of the thread any more."""

NAMED = "lg:thread"
"""The ref of the entry that names the thread."""

KNOWN_MAX = 50_000
SPINES_MAX = 64
MANIFESTS_MAX = 512
THREADS_MAX = 1_000
GAP_MAX = 64
"""Entries between two wanted ones that are read over rather than read around."""

PAGE = 100

T = TypeVar("T")


class Manifest(NamedTuple):
    """A checkpoint as it is stored. ``created_us`` is 0 when this process has just stored it."""

    seq: int
    body: dict[str, Any]
    created_us: int = 0
    run: str | None = None

    @property
    def id(self) -> str:
        """The checkpoint's id."""
        return self.body["id"]  # type: ignore[no-any-return]

    @property
    def ns(self) -> str:
        """Its namespace."""
        return self.body["ns"]  # type: ignore[no-any-return]

    @property
    def is_head(self) -> bool:
        """Whether it became the head of its namespace when it was stored."""
        return bool(self.body.get("head", True))


class Write(NamedTuple):
    """One pending write as it is stored."""

    path: str
    task: str
    number: int
    channel: str
    node: Any
    seq: int
    run: str | None


class Lru(OrderedDict[Any, T]):
    """A small cache that forgets what was not used for longest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def see(self, key: Any) -> T | None:
        """The value, which was used now."""
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key: Any, value: T) -> None:
        """Keep a value."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)


class Thread:
    """
    A thread and what this process knows of it. Hold ``lock`` around every use.

    What is cached is either immutable (values, spines) or belongs to ``head``, which every append expects.
    """

    def __init__(self, scope: segue.Scope, session: segue.Session, name: str, key: bytes) -> None:
        self.scope = scope
        self.session = session
        self.name = name
        self.lock = threading.RLock()
        self.head = -1
        self._hash = hashlib.blake2b(key=key, digest_size=16)
        self._dropped: set[int] = set()
        self._hidden: set[int] = set()
        self._known: Lru[int] = Lru(KNOWN_MAX)
        self._spines: Lru[Spine] = Lru(SPINES_MAX)
        self._manifests: Lru[Manifest] = Lru(MANIFESTS_MAX)
        self._heads: dict[str, Manifest | None] = {}

    # State

    def refresh(self) -> None:
        """See what others did meanwhile; ``NotFound`` when the thread was deleted."""
        head = self.session.refresh().head
        if head == self.head:
            return
        for hit in self.session.by_ref(DROPPED, after=max(self.head, 0)):
            self._drop(hit.entry)
        self._heads.clear()
        self._manifests.clear()  # one of them may have been stored again
        self.head = head

    def forget(self) -> None:
        """Look at everything anew: something was dropped."""
        self.head = -1

    def _drop(self, entry: Entry) -> None:
        body = entry.json()
        gone = spread(body["seqs"])
        self._dropped |= gone
        self._hidden |= spread(body["hidden"])
        for digest in [digest for digest, seq in self._known.items() if seq in gone]:
            del self._known[digest]

    def check_free(self, run: segue.Run | None) -> None:
        """
        Refuse a write when a turn of another run is active (``Busy``), or took over this one's (``LeaseLost``).

        The append checks the fence again; here it is told first, since an overtaken run has a wrong parent, too.
        """
        info = self.session.info
        if run is not None:
            run.check()
            if info.fence != run.fence:
                raise LeaseLost(run.id, run.fence, info.fence)
        elif info.lease is not None and info.lease.state == "running":
            raise Busy(info.lease.run, message=_busy(self.name, info.lease.run))

    def is_dropped(self, seq: int) -> bool:
        """Whether an entry is no part of the thread any more."""
        return seq in self._dropped

    def is_seen(self, seq: int) -> bool:
        """Whether a checkpoint is shown: neither dropped nor kept for others alone."""
        return seq not in self._dropped and seq not in self._hidden

    # Values

    def digest(self, data: bytes) -> bytes:
        """The keyed digest of a value."""
        made = self._hash.copy()
        made.update(data)
        return made.digest()

    def whole(self, parts: list[bytes]) -> hashlib._Hash:
        """The digest of encoded elements, to go on with. It is never stored; processors have SHA-256 built in."""
        return hashlib.sha256(joined(parts))

    def find(self, digest: bytes) -> int | None:
        """The seq of a value that is stored already."""
        seq = self._known.see(digest)
        if seq is not None:
            return seq
        for hit in self.session.by_ref("lg:v:" + digest.hex(), upto=self.head, reverse=True, limit=10):
            if hit.entry.seq not in self._dropped:
                self._known.keep(digest, hit.entry.seq)
                return hit.entry.seq
        return None

    def learn(self, values: Mapping[bytes, int], spines: Mapping[int, Spine]) -> None:
        """Know what was committed."""
        for digest, seq in values.items():
            self._known.keep(digest, seq)
        for seq, spine in spines.items():
            self._spines.keep(seq, spine)

    def items(self, seq: int) -> list[Any]:
        """The elements of a list: seqs, and ``[tree]`` of small ones."""
        known = self._spines.see(seq)
        if known is not None:
            return known.items
        steps: list[dict[str, Any]] = []
        at: int | None = seq
        items: list[Any] = []
        while at is not None:
            before = self._spines.see(at)
            if before is not None:
                items = before.items
                break
            steps.append(self._body(at, SPINE))
            at = steps[-1]["base"]
        for step in reversed(steps):
            items = items[: step["keep"]] + step["add"]
        return items

    def chain(self, seq: int) -> Iterator[int]:
        """The spines that a list is written in, itself first."""
        at: int | None = seq
        while at is not None:
            yield at
            at = self._body(at, SPINE)["base"]

    def parts(self, seq: int) -> list[int]:
        """The entries in which a large value is stored, besides its own."""
        entry = self._entries([seq])[seq]
        return list(entry.json()) if entry.format == PARTS and entry.body is not None else []

    def spine(self, seq: int) -> Spine:
        """A list with the digests of its elements."""
        known = self._spines.see(seq)
        if known is not None:
            return known
        items = self.items(seq)
        entries = self._entries({item for item in items if isinstance(item, int)})
        parts = [self._data(entries[item]) if isinstance(item, int) else _inline(item) for item in items]
        keys = [self.digest(part) for part in parts]
        spine = Spine(items, keys, self._body(seq, SPINE)["depth"], self.whole(parts).digest())
        self._spines.keep(seq, spine)
        for item, key in zip(items, keys, strict=True):
            if isinstance(item, int):
                self._known.keep(key, item)
        return spine

    def bodies(self, seqs: Collection[int]) -> dict[int, Any]:
        """The values of entries, as JSON."""
        return {seq: door.decode(self._data(entry)) for seq, entry in self._entries(seqs).items()}

    def _data(self, entry: Entry) -> bytes:
        if entry.body is None:
            raise self._gone(entry.seq)
        if entry.format != PARTS:
            return entry.body
        parts = entry.json()
        entries = self._entries(parts)
        return b"".join(entries[seq].body or b"" for seq in parts)

    def _body(self, seq: int, format: str) -> dict[str, Any]:
        entry = self._entries([seq])[seq]
        if entry.body is None or entry.format != format:
            raise self._gone(seq)
        return entry.json()  # type: ignore[no-any-return]

    def _entries(self, seqs: Collection[int]) -> dict[int, Entry]:
        wanted, found = set(seqs), {}
        for first, last in _ranges(wanted):
            for entry in self.session.read(after=first - 1, upto=last, kinds=(VALUE,)):
                if entry.seq in wanted:
                    found[entry.seq] = entry
        for seq in wanted:
            if seq not in found:
                raise self._gone(seq)
        return found

    def _gone(self, seq: int) -> Corrupt:
        return Corrupt(
            f"thread {self.name!r}: the value in entry {seq} is gone, and a checkpoint needs it; run segue verify",
            session=self.session.id,
            seq=seq,
        )

    # Checkpoints

    def head_of(self, ns: str) -> Manifest | None:
        """The head of a namespace: the checkpoint that was last accepted."""
        if ns not in self._heads:
            self._heads[ns] = next((one for one in self.manifests(ns) if one.is_head), None)
        return self._heads[ns]

    def checkpoint(self, ns: str, id: str) -> Manifest | None:
        """A checkpoint by its id."""
        known = self._manifests.see((ns, id)) or self.ancestor(ns, id)
        if known is None or known.seq in self._hidden:
            return None
        self._manifests.keep((ns, id), known)
        return known

    def ancestor(self, ns: str, id: str) -> Manifest | None:
        """A checkpoint by its id, also one that is kept only for what descends from it."""
        for hit in self.session.by_ref(place.checkpoint_ref(id), reverse=True):
            one = self._manifest(hit.entry)
            if one is not None and one.ns == ns and one.id == id:
                return one
        return None

    def entry_of(self, id: str) -> Entry | None:
        """The entry in which a checkpoint was first stored, in whatever namespace."""
        for hit in self.session.by_ref(place.checkpoint_ref(id)):
            if hit.entry.kind == CHECKPOINT and hit.entry.body is not None and hit.entry.json()["id"] == id:
                return hit.entry
        return None

    def seq_of(self, id: str) -> int | None:
        """The seq of that entry."""
        found = self.entry_of(id)
        return None if found is None else found.seq

    def manifests(self, ns: str | None, *, before: int | None = None) -> Iterator[Manifest]:
        """The checkpoints of a namespace (None: of all), last stored first, each once."""
        seen: set[tuple[str, str]] = set()
        upto = self.head if before is None else before - 1
        size = 2
        while upto > 0:
            page = self._page(ns, upto, size)
            for entry in page:
                one = self._manifest(entry)
                if one is None or one.seq in self._hidden:
                    continue
                if (ns is None or one.ns == ns) and (one.ns, one.id) not in seen:
                    seen.add((one.ns, one.id))
                    yield one
            if len(page) < size:
                return
            upto = page[-1].seq - 1
            size = min(size * 4, PAGE)

    def _page(self, ns: str | None, upto: int, size: int) -> list[Entry]:
        if ns is None:
            return self.session.read(upto=upto, kinds=(CHECKPOINT,), reverse=True, limit=size)
        return [hit.entry for hit in self.session.by_ref(place.ns_ref(ns), upto=upto, reverse=True, limit=size)]

    def _manifest(self, entry: Entry) -> Manifest | None:
        if entry.body is None or entry.kind != CHECKPOINT or entry.seq in self._dropped:
            return None
        return Manifest(entry.seq, entry.json(), entry.created_us, entry.run)

    def put(self, manifest: Manifest) -> None:
        """Know a manifest that was committed."""
        self._manifests.keep((manifest.ns, manifest.id), manifest)
        if manifest.is_head:
            self._heads[manifest.ns] = manifest

    def writes(self, ns: str, id: str) -> list[Write]:
        """A checkpoint's pending writes, in the order in which a step applies them."""
        found: dict[tuple[str, int], Write] = {}
        for hit in self.session.by_ref(place.writes_ref(id)):
            entry = hit.entry
            if entry.body is None or entry.seq in self._dropped:
                continue
            body = entry.json()
            if body["ns"] != ns or body["cp"] != id:
                continue
            for index, channel, node in body["writes"]:
                key = (body["task"], index)
                if index < 0 or key not in found:  # the first stays, but for LangGraph's own four
                    found[key] = Write(body["path"], body["task"], index, channel, node, entry.seq, entry.run)
        return sorted(found.values(), key=lambda one: (one.path, one.task, one.number))

    # Appending

    def commit(self, batch: Batch, run: segue.Run | None) -> None:
        """
        Append a batch that was made for this head.

        Raises:
            HeadMoved: Something was appended since; refresh and make it anew.
        """
        try:
            for chunk in batch.chunks():
                done = self._append(chunk, run)
                if done.new != len(chunk) or done.head != self.head + len(chunk):
                    raise Corrupt("an append gave other numbers than expected", session=self.session.id)
                self.head = done.head
        except HeadMoved:
            self.head = -1
            self._heads.clear()
            raise
        batch.learn()

    def _append(self, chunk: tuple[segue.Draft, ...], run: segue.Run | None) -> Appended:
        if run is not None:
            return run.append_drafts(chunk, expect=self.head)
        return self.session.append(*chunk, expect=self.head)


def _busy(thread: str, run: str) -> str:
    return (
        f"thread {thread!r}: turn {run!r} is active; take turns with saver.turn(thread, policy='enqueue') "
        "(or 'interrupt'), or wait for it"
    )


def spread(ranges: Iterable[Sequence[int]]) -> set[int]:
    """The numbers of ranges."""
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def gather(seqs: Iterable[int]) -> list[list[int]]:
    """Ranges of numbers, first and last of each."""
    found: list[list[int]] = []
    for seq in sorted(seqs):
        if found and seq == found[-1][1] + 1:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return found


def _inline(item: list[Any]) -> bytes:
    return door.encode(item[0])


def _ranges(seqs: Collection[int]) -> Iterator[tuple[int, int]]:
    """Ranges that cover the numbers, with small gaps read over."""
    first = last = None
    for seq in sorted(set(seqs)):
        if first is None or last is None:
            first = last = seq
        elif seq - last > GAP_MAX:
            yield first, last
            first = last = seq
        else:
            last = seq
    if first is not None and last is not None:
        yield first, last


class Threads:
    """All threads of a scope, as far as this process knows them. Shared by all copies of a saver."""

    def __init__(self, scope: segue.Scope, options: Mapping[str, Any]) -> None:
        self.scope = scope
        self.options = dict(options)
        self.lock = threading.Lock()
        self._threads: Lru[Thread] = Lru(THREADS_MAX)
        self._gone: Lru[str] = Lru(THREADS_MAX)
        self._codec = Codec()

    def find(self, name: str) -> Thread | None:
        """The thread as it is now, or None."""
        known = self._known(name)
        if known is not None and self._is_there(known):
            return known
        session = self.scope.get_key(place.key(name))
        thread = None if session is None else self._open(session, name)
        return thread if thread is not None and self._is_there(thread) else None

    def _is_there(self, thread: Thread) -> bool:
        try:
            with thread.lock:
                thread.refresh()
        except NotFound:
            self.forget(thread)
            return False
        return True

    def make(self, name: str) -> Thread:
        """The thread; made where there is none."""
        found = self.find(name)
        while found is None:
            session = self.scope.open_key(place.key(name), **self.options)
            body = {"thread": self._codec.safe(name), "key": secrets.token_hex(16), "chain": []}
            with contextlib.suppress(HeadMoved, NotFound):  # another one was faster
                session.append(segue.draft(body, kind=THREAD, format=FORMAT, refs=(NAMED,)), expect=0)
            found = self.find(name)
        with self.lock:
            self._gone.pop(name, None)
        return found

    def was_deleted(self, name: str) -> bool:
        """Whether this process has used the thread, it was deleted since, and nobody began it anew."""
        if self.find(name) is not None:
            return False
        with self.lock:
            return name in self._gone

    def forget(self, thread: Thread) -> None:
        """Forget a thread that was deleted, but for that."""
        with self.lock:
            if self._threads.get(thread.name) is thread:
                del self._threads[thread.name]
            self._gone.keep(thread.name, thread.session.id)

    def begins(self, name: str) -> None:
        """A run found no such thread: it may begin one of this name, even where one was deleted."""
        with self.lock:
            self._gone.pop(name, None)

    def each(self) -> Iterator[Thread]:
        """All threads of the scope, last active first."""
        everything = ("running", "idle", "paused", "completed", "archived")
        for info in self.scope.iterate(key_prefix=place.PREFIX, unlisted=True, status=everything):
            try:
                thread = self._open(self.scope.open(info.id), None)
            except NotFound:
                continue  # deleted in this moment
            if thread is not None and self._is_there(thread):
                yield thread

    def _known(self, name: str) -> Thread | None:
        with self.lock:
            return self._threads.see(name)

    def _open(self, session: segue.Session, name: str | None) -> Thread | None:
        hits = session.by_ref(NAMED)
        if not hits:
            return None  # made this moment, its first entry is on its way
        first, last = hits[0].entry.json(), hits[-1].entry.json()
        name = self._codec.value(last["thread"]) if name is None else name
        if place.key(name) != session.info.key:
            return None  # a copy of this moment, whose name is on its way
        with self.lock:
            known = self._threads.get(name)
            if known is not None and known.session.id == session.id:
                return known
            made = Thread(self.scope, session, name, bytes.fromhex(first["key"]))
            self._threads.keep(name, made)
            return made
