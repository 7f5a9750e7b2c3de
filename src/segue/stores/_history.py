"""What a session in memory is made of: segments that forks share, its row, its queue, and batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from segue.errors import IdConflict
from segue.model import Draft, Entry, Lease, SessionInfo, to_us

ENDLESS = 1 << 62
"""A seq behind every entry: how far a session takes its own segment."""


class Segment:
    """The entries that one session wrote itself, from the seq after its base on."""

    def __init__(self, owner: str, base: int) -> None:
        self.owner = owner
        self.base = base
        self.entries: list[Entry] = []
        self.seqs: dict[str, int] = {}  # entry id -> seq
        self.refs: dict[str, list[int]] = {}  # ref -> seqs, ascending

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.seqs[entry.id] = entry.seq
        for ref in dict.fromkeys(entry.refs):
            self.refs.setdefault(ref, []).append(entry.seq)

    def at(self, seq: int) -> Entry:
        return self.entries[seq - self.base - 1]

    def between(self, after: int, upto: int) -> list[Entry]:
        """Entries with after < seq <= upto."""
        return self.entries[max(after - self.base, 0) : max(upto - self.base, 0)]

    def with_ref(self, ref: str, after: int, upto: int) -> list[Entry]:
        return [self.at(seq) for seq in self.refs.get(ref, ()) if after < seq <= upto]

    def hollow(self, seq: int) -> bool:
        """Drop the content of an entry; True when it had one."""
        entry = self.at(seq)
        if entry.body is None:
            return False
        self._forget_refs(entry)
        self.entries[seq - self.base - 1] = entry._replace(body=None, refs=())
        return True

    def cut(self, upto: int) -> int:
        """Drop all entries after ``upto``; how many they were."""
        gone = self.between(upto, ENDLESS)
        for entry in gone:
            self._forget_refs(entry)
            del self.seqs[entry.id]
        del self.entries[len(self.entries) - len(gone) :]
        return len(gone)

    def _forget_refs(self, entry: Entry) -> None:
        for ref in dict.fromkeys(entry.refs):
            self.refs[ref].remove(entry.seq)
            if not self.refs[ref]:
                del self.refs[ref]


@dataclass(slots=True)
class Session:
    """
    A session's row and its history.

    ``info.lease`` is the last lease given out, also when it has expired meanwhile; ``shown`` judges it.
    ``parts`` are the segments of the history with the last seq that is taken from each, oldest first;
    the last is the session's own.
    """

    info: SessionInfo
    parts: tuple[tuple[Segment, int], ...]
    queue: dict[str, int] = field(default_factory=dict)  # run -> when its ticket lapses; first come first

    @property
    def own(self) -> Segment:
        return self.parts[-1][0]

    def known(self, entry_id: str) -> Entry | None:
        for segment, upto in self.parts:
            seq = segment.seqs.get(entry_id)
            if seq is not None and seq <= upto:
                return segment.at(seq)
        return None

    def between(self, after: int, upto: int) -> Iterator[Entry]:
        """Entries with after < seq <= upto; parts overlap nowhere, since each begins where the one before ends."""
        for segment, end in self.parts:
            yield from segment.between(after, min(end, upto))

    def running(self, now: int) -> Lease | None:
        """The lease of the run that is active now, or None."""
        lease = self.info.lease
        return lease if lease and lease.state == "running" and to_us(lease.expires_at) > now else None

    def waiting(self, now: int) -> list[str]:
        """Runs whose place in the queue has not lapsed, first come first."""
        return [run for run, lapses in self.queue.items() if lapses > now]

    def shown(self, now: int) -> SessionInfo:
        lease = self.info.lease
        if lease is not None and to_us(lease.expires_at) <= now:
            lease = None
        metadata = copy.deepcopy(self.info.metadata)
        return replace(self.info, lease=lease, waiting=len(self.waiting(now)), metadata=metadata)


class Batch:
    """
    The entries of one append, told apart: those that the session knows already, and the new ones.

    Raises:
        IdConflict: A known id comes with other content.
    """

    def __init__(self, session: Session, entries: Sequence[Draft]) -> None:
        self.new: list[Draft] = []
        seqs: list[int] = []
        mine: dict[str, tuple[int, bytes]] = {}
        for draft in entries:
            known = session.known(draft.id)
            seq, digest = (known.seq, known.digest) if known else mine.get(draft.id, (0, b""))
            if not seq:
                self.new.append(draft)
                seq = session.info.head + len(self.new)
                mine[draft.id] = (seq, draft.digest)
            elif digest != draft.digest:
                raise IdConflict(draft.id, seq)
            seqs.append(seq)
        self.seqs = tuple(seqs)

    @property
    def has_message(self) -> bool:
        return any(draft.kind == "message" for draft in self.new)


def entry_of(draft: Draft, seq: int, run: str | None, now: int) -> Entry:
    return Entry(
        seq=seq,
        id=draft.id,
        kind=draft.kind,
        format=draft.format,
        origin=draft.origin,
        body=draft.body,
        digest=draft.digest,
        refs=draft.refs,
        run=run,
        created_us=now,
        occurred_us=draft.occurred_us,
        usage=draft.usage,
    )


def clip(parts: tuple[tuple[Segment, int], ...], at: int) -> tuple[tuple[Segment, int], ...]:
    """The history's parts up to a seq, for a fork there."""
    return tuple((segment, min(upto, at)) for segment, upto in parts if segment.base < at)


def held(session: Session, run: str | None, fence: int) -> Lease | None:
    """The session's newest lease when it is this one, also expired or paused; None when it was lost or given back."""
    lease = session.info.lease
    return lease if lease and (lease.run, lease.fence) == (run, fence) else None


def wake(session: Session) -> None:
    """A completed session that goes on is active again."""
    if session.info.state == "completed":
        session.info = replace(session.info, state="active", version=session.info.version + 1)


def needed(segment: Segment, living: Mapping[str, Session]) -> int:
    """Up to which seq some living history takes entries of the segment."""
    return max((upto for session in living.values() for part, upto in session.parts if part is segment), default=0)
