"""Deleting, copying and pruning threads: what nobody uses any more is hollowed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import segue
from segue.errors import Conflict, Exists, HeadMoved, Invalid, NotFound
from segue.model import Entry

from . import place as places
from .content import FORMAT, VALUE, Batch, Reader
from .thread import CHECKPOINT, DROP, DROPPED, NAMED, THREAD, WRITE, Manifest, Thread, Threads, gather
from .values import Codec

ATTEMPTS_MAX = 1_000
HOLLOW_MAX = 500
"""Entries that are hollowed in one step."""


def delete(threads: Threads, name: str) -> None:
    """Erase a thread."""
    thread = threads.find(name)
    if thread is not None:
        thread.session.erase()
        threads.forget(thread)


def copy(threads: Threads, source: str, target: str) -> None:
    """Copy a thread: a fork of its session, under another name."""
    thread = threads.find(source)
    if thread is None:
        return
    if threads.scope.get_key(places.key(target)) is not None:
        raise Exists(f"there is a thread {target!r} already; delete it first, or copy to another id")
    with thread.lock:
        thread.refresh()
        made = thread.session.fork(thread.head, key=places.key(target))
        first, *_, last = [*thread.session.by_ref(NAMED), *thread.session.by_ref(NAMED)]
        chain = [*last.entry.json()["chain"], [thread.session.id, thread.head]]
    body = {"thread": Codec().safe(target), "key": first.entry.json()["key"], "chain": chain}
    refs = [NAMED, *(_from(session) for session, _ in chain)]
    made.append(body, kind=THREAD, format=FORMAT, refs=refs)


def _from(session: str) -> str:
    """The ref of what was copied from a session, directly or not."""
    return f"lg:from:{session}"


def prune(threads: Threads, names: Sequence[str], strategy: str) -> None:
    """Prune threads."""
    if strategy not in ("keep_latest", "delete", "delete_all"):
        raise Invalid(f"strategy {strategy!r} is neither keep_latest nor delete", where="strategy")
    for name in names:
        if strategy != "keep_latest":
            delete(threads, name)
            continue
        thread = threads.find(name)
        if thread is not None:
            _guarded(threads, thread, lambda thread: shrink(thread, _heads(thread)))


def _heads(thread: Thread) -> Callable[[Manifest], bool]:
    """Whether a checkpoint is the head of its namespace."""
    thread.refresh()
    heads: dict[str, int] = {}
    for one in thread.manifests(None):
        if one.is_head:
            heads.setdefault(one.ns, one.seq)
    return lambda one: heads.get(one.ns) == one.seq


def delete_for_runs(threads: Threads, runs: Sequence[str]) -> None:
    """Delete the checkpoints of runs, wherever they are."""
    gone = {str(run) for run in runs}
    if not gone:
        return

    def keeps(one: Manifest) -> bool:
        return one.body["metadata"].get("run_id") not in gone

    for thread in threads.each():
        if any(thread.session.by_ref(places.run_ref(run), limit=1) for run in gone):
            _guarded(threads, thread, lambda thread: shrink(thread, keeps))


def take_back(thread: Thread, run: segue.Run) -> None:
    """Take back what the run stored that this one has overtaken with ``rollback``."""
    with thread.lock:
        thread.refresh()
        hits = thread.session.by_ref("retract", reverse=True, limit=1)
        if not hits or hits[0].entry.run != run.id:
            return  # nobody was overtaken
        over = hits[0].entry.json()["run"]
        shrink(thread, lambda one: one.run != over, drops=lambda entry: entry.run == over, run=run)


def _guarded(threads: Threads, thread: Thread, act: Callable[[Thread], None]) -> None:
    try:
        with thread.lock:
            act(thread)
    except NotFound:  # deleted meanwhile: there is nothing left to prune
        threads.forget(thread)


def shrink(
    thread: Thread,
    keeps: Callable[[Manifest], bool],
    *,
    drops: Callable[[Entry], bool] = lambda _: False,
    run: segue.Run | None = None,
) -> None:
    """
    Keep these checkpoints and what they need; drop the rest for good.

    First an entry says what is dropped, and expects the head: a writer that meant to share a value of it is told
    by that. Then what no copy of the thread shares is hollowed. A crash in between leaves no more than content
    that nobody sees; the next pruning hollows it.
    """
    for _ in range(ATTEMPTS_MAX):
        thread.refresh()
        plan = _Plan(thread, keeps, drops)
        try:
            if plan.gone or plan.hidden:
                batch = Batch(thread)
                body = {"seqs": gather(plan.gone), "hidden": gather(plan.hidden)}
                batch.add(body, kind=DROP, refs=(DROPPED,))
                thread.commit(batch, run)
                thread.forget()
                thread.refresh()
        except HeadMoved:
            continue
        _hollow(thread, plan.gone | plan.gone_before)
        return
    raise Conflict(f"thread {thread.name!r} changes faster than it can be pruned; try again later")


def _hollow(thread: Thread, seqs: set[int]) -> None:
    own = sorted(seq for seq in seqs if seq > _shared_upto(thread))
    for at in range(0, len(own), HOLLOW_MAX):
        thread.session.hollow(*own[at : at + HOLLOW_MAX])


def _shared_upto(thread: Thread) -> int:
    """The last entry that belongs to another session, or that a copy or fork shares."""
    session = thread.session
    upto = session.info.base
    for hit in thread.scope.by_ref(_from(session.id), limit=10_000):
        upto = max([upto, *(at for id, at in hit.entry.json()["chain"] if id == session.id)])
    everything = ("running", "idle", "paused", "completed", "archived")
    for child in thread.scope.iterate(parent=session.id, unlisted=True, status=everything):
        if child.parent is not None and child.parent.link == "fork":
            upto = max(upto, child.parent.seq)
    return upto


class _Plan:
    """
    What to drop of a thread.

    Attributes:
        gone: Entries to drop.
        gone_before: Entries that were dropped before and have content still.
        hidden: Checkpoints to keep out of sight, for the DeltaChannels of those that are kept.
    """

    def __init__(self, thread: Thread, keeps: Callable[[Manifest], bool], drops: Callable[[Entry], bool]) -> None:
        self._thread = thread
        self._reader = Reader(thread, Codec())
        self._needed: set[int] = set()
        self.hidden: set[int] = set()
        kept = [one for one in thread.manifests(None) if keeps(one)]
        self._drops = drops
        for one in kept:
            self._keep(one)
        shown = {one.seq for one in kept}
        for one in kept:
            self._ancestors(one, shown)
        full = [(e.seq, thread.is_dropped(e.seq)) for e in self._entries() if e.body is not None]
        self.gone = {seq for seq, dropped in full if not dropped and seq not in self._needed}
        self.gone_before = {seq for seq, dropped in full if dropped}

    def _entries(self) -> Iterator[Entry]:
        """All entries up to the head that was seen, to which the drop is bound."""
        return self._thread.session.history(upto=self._thread.head, kinds=(CHECKPOINT, WRITE, VALUE))

    def _keep(self, one: Manifest) -> None:
        self._needed.add(one.seq)
        for node in one.body["values"].values():
            self._need(node)
        for entry, body in self._writes(one):
            if not self._drops(entry):
                self._needed.add(entry.seq)
                for _, _, node in body["writes"]:
                    self._need(node)

    def _writes(self, one: Manifest) -> Iterator[tuple[Entry, dict[str, Any]]]:
        for hit in self._thread.session.by_ref(places.writes_ref(one.id)):
            if hit.entry.body is not None and not self._thread.is_dropped(hit.entry.seq):
                body = hit.entry.json()
                if body["ns"] == one.ns and body["cp"] == one.id:
                    yield hit.entry, body

    def _need(self, node: Any) -> None:
        for seq in self._reader.seqs(node):
            if seq not in self._needed:
                self._needed.add(seq)
                self._needed.update(self._thread.parts(seq))
        for spine in _spines(node):
            self._needed.update(self._thread.chain(spine))

    def _ancestors(self, one: Manifest, shown: set[int]) -> None:
        """Keep what the DeltaChannels of a checkpoint are made from."""
        left = {channel for channel in _deltas(one) if channel not in one.body["values"]}
        parent = one.body["parent"]
        while left and parent is not None:
            found = self._thread.ancestor(one.ns, parent)
            if found is None:
                return
            self._needed.add(found.seq)
            if found.seq not in shown:
                self.hidden.add(found.seq)
            for entry, body in self._writes(found):
                mine = [node for _, channel, node in body["writes"] if channel in left]
                if mine:
                    self._needed.add(entry.seq)
                for node in mine:
                    self._need(node)
            for channel in [channel for channel in left if channel in found.body["values"]]:
                self._need(found.body["values"][channel])
                left.discard(channel)
            parent = found.body["parent"]


def _deltas(one: Manifest) -> set[str]:
    """The DeltaChannels that have been written to since their last snapshot."""
    counters = one.body["metadata"].get("counters_since_delta_snapshot")
    return set(counters) if isinstance(counters, dict) else set()


def _spines(node: Any) -> Iterator[int]:
    if isinstance(node, dict):
        for key, inside in node.items():
            if key == "p":
                yield inside
            elif key == "d":
                for one in inside.values():
                    yield from _spines(one)
            elif key == "s":
                yield from _spines(inside)
