"""
The entries of one session, from one store to another: what is there is compared, what is missing is added.

Nothing of the target is overwritten, so every step may be the last one of a process, and be done again by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from .errors import Corrupt, HeadMoved, IdConflict, NotDone, OutcomeUnknown
from .model import Draft, Entry, ScopeKey, SessionInfo
from .store import Append, Appended, Hollow, Op, Store

PAGE = 50
PAGE_MAX = 500
PAGE_BYTES = 8 * 1024 * 1024
"""How many entries are held at a time: at first, at most, and by the size of those before."""

GRAIN_US = 5_000
"""Entries of one run that were stored within so many microseconds are stored at one time."""

BATCH_BYTES = 2 * 1024 * 1024

_EMPTY = b"null"
_NOWHERE = 1 << 40  # an expected head that no session has
_FACTS = ("seq", "kind", "format", "origin", "run", "occurred_us", "usage")

Outcome = Literal["copied", "continued", "unchanged", "tombstone", "differs", "refused", "damaged", "gone"]

DIFFERENCES = {
    "entries": "an entry is another one in the target",
    "ahead": "the target's session went on by itself",
    "hollow": "content that was erased in the source is still in the target, in a session that is erased itself",
    "attributes": "title, state or other attributes are not the source's, and the target's may be somebody's own",
    "identity": "another session has this id in the target: its parent or format is another",
    "key": "another session of the target has this key",
    "erased": "it was erased in the target, and stays erased",
    "erased-in-source": "it was erased in the source, and lives in the target",
    "parent": "it shares entries with a session that the target does not have so far",
}
"""What may differ between a session and the target's, by name."""


class Difference(NamedTuple):
    """Why a session is not the same in the target: one of DIFFERENCES, the first seq concerned (or None), in words."""

    kind: str
    seq: int | None
    text: str


class Differs(Exception):
    """The target's session is not the source's."""

    def __init__(self, kind: str, text: str = "", *, seq: int | None = None) -> None:
        super().__init__(kind)
        self.difference = Difference(kind, seq, text or DIFFERENCES[kind])


class Damaged(Corrupt):
    """It is the source that is damaged."""


class Tally:
    """What was done to one session so far."""

    def __init__(self) -> None:
        self.entries = self.hollowed = self.drift_us = 0
        self.is_new = self.is_changed = False
        self.left: set[str] = set()

    @property
    def outcome(self) -> Outcome:
        if self.is_new:
            return "copied"
        return "continued" if self.entries or self.hollowed or self.is_changed else "unchanged"


class Clock:
    """The clock of the target's handle, moved to the time of what is stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shift_us = 0
        self._at()

    def _at(self) -> None:
        self._base_us = self._store.now_us()
        self._tick_us = time.monotonic_ns() // 1_000

    def set(self, us: int) -> None:
        """Let it be that time now."""
        now = self._base_us + time.monotonic_ns() // 1_000 - self._tick_us + self._shift_us
        self._store.shift_clock(us - now)
        self._shift_us += us - now

    def reset(self) -> None:
        """Let it be the time that it is."""
        if self._shift_us:
            self._store.shift_clock(-self._shift_us)
            self._shift_us = 0
            self._at()


class Transfer:
    """
    Two stores, and what is known to be the same in both, of one scope at a time.

    Attributes:
        common: For each session of the target, up to which seq it is the source's.
        tell: Called with the number of entries that were added or compared.
    """

    def __init__(self, source: Store, target: Store, tell: Callable[[int], None]) -> None:
        self.source = source
        self.target = target
        self.clock = Clock(target)
        self.common: dict[str, int] = {}
        self.tell = tell

    def entries(
        self, scope: ScopeKey, source: str, theirs: SessionInfo, tally: Tally, *, after: int, upto: int
    ) -> None:
        """
        Compare what is there, add what is missing, and compare that as it was stored.

        Args:
            source: The session that is read.
            theirs: The session of the target.
            after, upto: Which entries; those up to ``after`` are known to be the same.

        Raises:
            Differs: An entry is another one.
        """
        target, base = theirs.id, theirs.base
        self.common[target] = after
        limit = PAGE
        while after < upto:
            try:
                ours = self.source.read(scope, source, after=after, upto=upto, limit=limit)
            except Corrupt as error:
                raise Damaged(str(error), session=error.session, seq=error.seq) from error
            there = self._stored(scope, target, ours, base) if after < theirs.head else []
            self._compare(scope, target, ours, there, tally, base=base)
            missing = ours[len(there) :]
            for batch in _batches(missing):
                self._append(scope, target, batch, tally)
            if missing:
                self._compare(scope, target, missing, self._stored(scope, target, missing, base), tally, base=base)
            if source == target:
                self.tell(max(0, ours[-1].seq - max(after, base)))
            after = self.common[target] = ours[-1].seq
            size = sum(len(entry.body or b"") for entry in ours)
            limit = max(1, min(PAGE_MAX, PAGE_BYTES * len(ours) // max(size, 1)))

    def _stored(self, scope: ScopeKey, target: str, ours: Sequence[Entry], base: int) -> list[Entry]:
        """What the target has of these entries."""
        after, upto = ours[0].seq - 1, ours[-1].seq
        try:
            return self.target.read(scope, target, after=after, upto=upto)
        except Corrupt:
            hollow = [entry for entry in ours if entry.body is None and entry.seq > base]
            if not hollow:
                raise
        # A copy that was killed between storing a hollow entry and hollowing it left one that has another digest.
        for entry in hollow:
            self._empty(scope, target, entry)
        return self.target.read(scope, target, after=after, upto=upto)

    def _empty(self, scope: ScopeKey, target: str, entry: Entry) -> None:
        """Hollow the entry in the target, if it is this one. It cannot be read, but its id and digest can be asked."""
        try:
            known = self.do(Append(scope, target, (_draft(entry),), expect=_NOWHERE))
        except (HeadMoved, IdConflict):
            return
        if known.seqs == (entry.seq,):
            self.do(Hollow(scope, target, (entry.seq,)))

    def _compare(
        self, scope: ScopeKey, target: str, ours: Sequence[Entry], theirs: Sequence[Entry], tally: Tally, *, base: int
    ) -> None:
        late: list[int] = []
        for mine, other in zip(ours, theirs, strict=False):
            if what := _difference(mine, other):
                self.common[target] = mine.seq - 1
                raise Differs("entries", what, seq=mine.seq)
            if mine.body is None and other.body is not None:
                late.append(mine.seq)
            elif mine.body is not None and other.body is None:
                tally.left.add("hollow")
            tally.drift_us = max(tally.drift_us, abs(mine.created_us - other.created_us))
        if late and late[0] <= base:
            raise Differs("hollow", seq=late[0])
        if late:
            tally.hollowed += self.do(Hollow(scope, target, tuple(late)))

    def _append(self, scope: ScopeKey, target: str, batch: Sequence[Entry], tally: Tally) -> None:
        first = batch[0]
        self.clock.set(first.created_us)
        op = Append(scope, target, tuple(map(_draft, batch)), run=first.run, expect=first.seq - 1)
        try:
            done: Appended = self.do(op)
        except IdConflict as error:
            raise Differs("entries", seq=error.seq) from None
        if done.seqs != tuple(entry.seq for entry in batch):
            raise Differs("entries", seq=first.seq)
        tally.entries += done.new
        # Not in one commit with the append: were that refused, it would be somebody else's entry that is hollowed.
        hollow = tuple(entry.seq for entry in batch if entry.body is None)
        if hollow:
            self.do(Hollow(scope, target, hollow))

    def do(self, op: Op) -> Any:
        """The operation's result, or its refusal. One of unknown outcome is asked for again, and done once."""
        for last in (False, False, True):
            try:
                (result,) = self.target.commit([op])
            except OutcomeUnknown:
                if last:
                    raise
                continue
            if isinstance(result, NotDone):
                raise result
            return result
        raise AssertionError


def _difference(mine: Entry, other: Entry) -> str:
    """What is not the same, in words; of an entry whose content was erased in one place, only what is left of it."""
    if (mine.id, mine.digest) != (other.id, other.digest):
        return DIFFERENCES["entries"]
    is_hollow = mine.body is None or other.body is None
    names = _FACTS if is_hollow else (*_FACTS, "refs")
    return next(
        (f"its {name} is another in the target" for name in names if getattr(mine, name) != getattr(other, name)), ""
    )


def _draft(entry: Entry) -> Draft:
    """The entry on its way; one whose content was erased with other content, which is erased at once."""
    body = _EMPTY if entry.body is None else entry.body
    return Draft(
        entry.kind, entry.format, entry.origin, body, entry.digest, entry.id, entry.refs, entry.occurred_us, entry.usage
    )  # fmt: skip


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries that one run stored at one time."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        first = batch[0] if batch else entry
        size += len(entry.body or b"")
        is_together = entry.run == first.run and abs(entry.created_us - first.created_us) <= GRAIN_US
        if batch and (size > BATCH_BYTES or not is_together):
            yield batch
            batch, size = [], len(entry.body or b"")
        batch.append(entry)
    if batch:
        yield batch
