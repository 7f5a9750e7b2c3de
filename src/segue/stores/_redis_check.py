"""What a deep check looks at: every session and every entry, as far as it is not what it should be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from segue.errors import Corrupt
from segue.model import Entry, ScopeKey, SessionInfo, Usage, to_us
from segue.store import Report

from ._redis_keys import Keys, Spans, unpack_spans
from ._redis_read import LOOK_MAX, Reader
from ._redis_wire import Reply, unpack_entry
from ._redis_wires import Command

LOOKS = 3
"""The store is in use meanwhile: what is reported was there at each of so many looks."""

PAUSE_SECONDS = 0.05
"""Between two looks."""

LISTED_MAX = 20
"""Most damaged entries of one session that are named one by one."""


class _Finding(NamedTuple):
    scope: ScopeKey
    session: str
    what: str
    seq: int | None = None

    def report(self) -> Report:
        place = f"session {self.session!r}" + ("" if self.seq is None else f", entry {self.seq}")
        return Report("damage", f"{place}: {self.what}", self.scope, self.session, self.seq)


class _Own(NamedTuple):
    """A session's own part: what its keys hold."""

    is_erased: bool
    base: int
    last: int
    spans: Spans
    ids: dict[bytes, bytes]
    marks: set[bytes]
    seqs: set[int]


def damage(reader: Reader, keys: Keys) -> Iterator[Report]:
    """Every session that there is, then the lists of every scope."""
    verifier = _Verifier(reader, keys)
    scopes: set[ScopeKey] = set()
    sessions: set[int] = set()  # a key may come twice
    for found in reader.link.scan(f"{keys.prefix}:{{*"):
        for key in found:
            owner = keys.owner_of(key)
            if owner is None:
                continue
            scopes.add(owner[0])
            if key == keys.of_session(*owner)[0]:
                sessions.add(hash(owner))
                yield from _certain(partial(verifier.session, *owner))
            else:
                yield from _certain(partial(verifier.stray, *owner))
    for scope in sorted(scopes):
        yield from _certain(partial(verifier.lists, scope))
    yield Report("ok", f"{len(sessions)} sessions were read, entry by entry")


def _certain(look: Callable[[], Iterator[_Finding]]) -> list[Report]:
    found = list(look())
    for _ in range(LOOKS - 1):
        if not found:
            break
        time.sleep(PAUSE_SECONDS)
        again = set(look())
        found = [finding for finding in found if finding in again]
    return [finding.report() for finding in dict.fromkeys(found)]


class _Verifier:
    def __init__(self, reader: Reader, keys: Keys) -> None:
        self._reader = reader
        self._keys = keys

    def stray(self, scope: ScopeKey, session: str) -> Iterator[_Finding]:
        """Keys of a session without a row."""
        row = self._keys.of_session(scope, session)[0]
        if not self._reader.ask(Command(row, (b"EXISTS", row))):
            yield _Finding(scope, session, "it has entries, ids or refs and no row")

    def session(self, scope: ScopeKey, session: str) -> Iterator[_Finding]:
        """One session, or what forks keep of an erased one."""
        try:
            own = self._own(scope, session)
            (info,) = self._reader.rows(scope, [session], 0)
        except Corrupt as error:
            yield _Finding(scope, session, str(error))
            return
        entries, findings = self._entries(scope, session, own)
        yield from findings[:LISTED_MAX]
        yield from self._beyond(scope, session, own)
        yield from self._indexes(scope, session, own, entries)
        if info is not None and not own.is_erased:
            yield from self._across(scope, session, entries)
            yield from self._shared(scope, session, own)
            yield from self._row(scope, info, entries, is_whole=not findings)
            yield from self._listed(scope, info)

    def _own(self, scope: ScopeKey, session: str) -> _Own:
        row, entries, ids, marks, _ = self._keys.of_session(scope, session)
        fields = (b"gone", b"base", b"head", b"spans")
        (gone, base, head, spans), seqs, known, marked = self._reader.ask_all(
            [
                Command(row, (b"HMGET", row, *fields)),
                Command(entries, (b"HKEYS", entries)),
                Command(ids, (b"HGETALL", ids)),
                Command(marks, (b"ZRANGE", marks, 0, -1)),
            ]
        )
        try:
            return _Own(
                gone is not None,
                int(base or 0),
                int(head or 0),
                unpack_spans(spans) if spans else (),
                dict(zip(known[::2], known[1::2], strict=True)),
                set(marked),
                {int(seq) for seq in seqs},
            )
        except (ValueError, msgspec.MsgspecError) as error:
            raise Corrupt(f"the row is damaged ({error})", session=session) from error

    def _entries(self, scope: ScopeKey, session: str, own: _Own) -> tuple[list[Entry], list[_Finding]]:
        key = self._keys.of_session(scope, session)[1]
        entries, findings = [], []
        for first in range(own.base + 1, own.last + 1, LOOK_MAX):
            seqs = range(first, min(first + LOOK_MAX, own.last + 1))
            records = self._reader.ask(Command(key, (b"HMGET", key, *map(str, seqs))))
            for seq, record in zip(seqs, records, strict=True):
                if record is None:
                    findings.append(_Finding(scope, session, "the entry is missing", seq))
                    continue
                try:
                    entries.append(unpack_entry(seq, record, session))
                except Corrupt:
                    findings.append(_Finding(scope, session, "the stored body does not match its digest", seq))
        return entries, findings

    def _beyond(self, scope: ScopeKey, session: str, own: _Own) -> Iterator[_Finding]:
        beyond = [seq for seq in own.seqs if not own.base < seq <= own.last]
        what = "an erased session keeps entries that nobody shares" if own.is_erased else "it lies beyond the head"
        yield from (_Finding(scope, session, what, seq) for seq in sorted(beyond)[:LISTED_MAX])

    def _indexes(self, scope: ScopeKey, session: str, own: _Own, entries: Sequence[Entry]) -> Iterator[_Finding]:
        """Ids and refs, as far as their entries can be read."""
        readable = {entry.seq for entry in entries}
        ids = {entry.id.encode() for entry in entries}
        for entry in entries:
            if own.ids.get(entry.id.encode()) != b"%d" % entry.seq:
                yield _Finding(scope, session, "its id and the index of ids differ", entry.seq)
        for id, at in own.ids.items():
            if id not in ids and (int(at) in readable or not own.base < int(at) <= own.last):
                yield _Finding(scope, session, "the index of ids has one that no entry has", int(at))
        marks = {_mark(ref, entry): entry.seq for entry in entries for ref in entry.refs}
        wrong = {marks[mark] for mark in marks.keys() - own.marks}
        wrong |= {seq for mark in own.marks - marks.keys() if (seq := int(mark[-32:-16])) in readable}
        yield from (_Finding(scope, session, "its refs and the index of refs differ", seq) for seq in sorted(wrong))

    def _across(self, scope: ScopeKey, session: str, entries: Sequence[Entry]) -> Iterator[_Finding]:
        key = self._keys.named(scope, "refs")
        members = [(_member(ref, session, entry), entry.seq) for entry in entries for ref in entry.refs]
        for first in range(0, len(members), LOOK_MAX):
            piece = members[first : first + LOOK_MAX]
            scores = self._reader.ask_all([Command(key, (b"ZSCORE", key, member)) for member, _ in piece])
            for (_, seq), score in zip(piece, scores, strict=True):
                if score is None:
                    yield _Finding(scope, session, "its refs are not in the scope's index", seq)

    def _shared(self, scope: ScopeKey, session: str, own: _Own) -> Iterator[_Finding]:
        """A fork's history must reach from 1 to its base."""
        end = 0
        for owner, low, upto in own.spans:
            _, entries, _, _, shares = self._keys.of_session(scope, owner)
            score, *found = self._reader.ask_all(
                [
                    Command(shares, (b"ZSCORE", shares, session.encode())),
                    *(Command(entries, (b"HEXISTS", entries, str(seq))) for seq in range(low + 1, upto + 1)),
                ]
            )
            if low != end:
                yield _Finding(scope, session, f"what it shares of {owner!r} begins at {low + 1}, not at {end + 1}")
            if sum(found) != upto - low:
                text = f"of entries {low + 1} to {upto}, shared with {owner!r}, {sum(found)} are there"
                yield _Finding(scope, session, text)
            if score is None or int(float(score)) != upto:
                yield _Finding(scope, session, f"{owner!r} does not know that it shares entries up to {upto}")
            end = upto
        if end != own.base:
            yield _Finding(scope, session, f"its shared history ends at {end}, not at {own.base}")

    def _row(
        self, scope: ScopeKey, info: SessionInfo, entries: Sequence[Entry], *, is_whole: bool
    ) -> Iterator[_Finding]:
        summed = sum((entry.usage for entry in entries if entry.usage), Usage())
        if is_whole and summed != info.usage:
            text = f"the token totals are {tuple(info.usage)}, the entries have {tuple(summed)}"
            yield _Finding(scope, info.id, text)
        if info.lease is not None and info.fence < 1:
            yield _Finding(scope, info.id, f"run {info.lease.run!r} holds a lease that was never given out")

    def _listed(self, scope: ScopeKey, info: SessionInfo) -> Iterator[_Finding]:
        """Whether it is found where it should be, and nowhere else."""
        names = ("listed", "unlisted", "archived")
        mine = "archived" if info.state == "archived" else "listed" if info.is_listed else "unlisted"
        commands = [self._score(scope, name, info.id) for name in (*names, "due", "old")]
        names_key = self._keys.named(scope, "names")
        if info.key is not None:
            commands.append(Command(names_key, (b"HGET", names_key, info.key)))
        *places, due, old = (self._reader.ask_all(commands))[:5]
        wanted = [to_us(info.active_at) if name == mine else None for name in names]
        if [_us(place) for place in places] != wanted:
            yield _Finding(scope, info.id, f"it is not where it should be in the list {mine!r}")
        may_end = info.state != "archived" and not info.is_pinned and info.due_at is not None
        is_old = info.archived_at is not None and not info.is_pinned
        if (due is not None) != may_end or (old is not None) != is_old:
            yield _Finding(scope, info.id, "the lists by which it is swept do not have it as its row says")
        if info.key is not None and self._reader.ask(commands[-1]) != info.id.encode():
            yield _Finding(scope, info.id, f"its key {info.key!r} does not lead to it")

    def _score(self, scope: ScopeKey, name: str, session: str) -> Command:
        key = self._keys.named(scope, name)
        return Command(key, (b"ZSCORE", key, session))

    def lists(self, scope: ScopeKey) -> Iterator[_Finding]:
        """What the scope's lists name must be there."""
        for name in ("listed", "unlisted", "archived"):
            key = self._keys.named(scope, name)
            for first in range(0, 1 << 62, LOOK_MAX):
                found = self._reader.ask(Command(key, (b"ZRANGE", key, first, first + LOOK_MAX - 1)))
                rows = [self._keys.of_session(scope, id.decode())[0] for id in found]
                heads = self._reader.ask_all([Command(row, (b"HMGET", row, b"head", b"gone")) for row in rows])
                for id, (head, gone) in zip(found, heads, strict=True):
                    if head is None or gone is not None:
                        yield _Finding(scope, id.decode(), f"the list {name!r} has it, but it is not there")
                if len(found) < LOOK_MAX:
                    break
        yield from self._unregistered(scope)

    def _unregistered(self, scope: ScopeKey) -> Iterator[_Finding]:
        member = "\0".join(scope).encode()
        if self._reader.ask(Command(self._keys.scopes, (b"ZSCORE", self._keys.scopes, member))) is None:
            yield _Finding(scope, "", "its owner is not among the owners; sweep and copy would pass it over")


def _us(score: Reply) -> int | None:
    return None if score is None else int(float(score))


def _mark(ref: str, entry: Entry) -> bytes:
    return ref.encode() + b"\0%016d%016d" % (entry.seq, entry.created_us)


def _member(ref: str, session: str, entry: Entry) -> bytes:
    return ref.encode() + b"\0%016d" % entry.created_us + session.encode() + b"\0%016d" % entry.seq
