"""
Power loss: whatever the disk had when the current went, what was acknowledged is there, whole.

A history of commits is recorded call by call; at random points the power goes, and the folder is laid
out as the disk may have held it then. Each such state must open and show, for every session, what was
acknowledged last or what was under way.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lossy_disk import ForgetfulDisk, RecordingDisk, survivors
from segue import codec
from segue.errors import NotFound
from segue.model import Draft, Parent, ScopeKey, Usage
from segue.store import Append, Create, Erase, Fork, Hollow, Op, Release, Renew, Take, Update
from segue.stores._jsonl_names import file_of, session_file
from segue.stores.jsonl import JsonlStore

FULL = bool(os.environ.get("SEGUE_TORTURE"))
STATES = 4_000 if FULL else 320
HISTORIES = 20 if FULL else 4
COMMITS = 40

SCOPES = (ScopeKey("acme", "lin"), ScopeKey("acme", "Ömer"))
Shown = dict[tuple[ScopeKey, str], Any]


def draft(chance: random.Random, number: int) -> Draft:
    body = codec.encode({"role": "user", "content": f"entry {number} " + "x" * chance.choice((0, 30, 700, 3_000))})
    return Draft("message", "anthropic", "user", body, codec.digest(body), f"e{number}", ("all",), None, Usage(input=1))


class History:
    """Random commits on a recorded folder, with what it showed after each acknowledgement."""

    def __init__(self, folder: Path, seed: int, disk: type[RecordingDisk] = RecordingDisk) -> None:
        folder.mkdir(mode=0o700)
        self.chance = random.Random(seed)
        self.disk = disk(folder)
        self.stores = [JsonlStore(folder, disk=self.disk), JsonlStore(folder, disk=self.disk.another())]
        self.log = self.disk.log
        self.begins = len(self.log.events)
        self.ids: list[tuple[ScopeKey, str]] = []
        self.numbers = 0
        self.shown: list[Shown] = [{}]
        for _ in range(COMMITS):
            if self.ids and self.chance.random() < 0.15:
                self.tear()
            ops = self.ops()
            results = self.chance.choice(self.stores).commit(ops)
            self.log.acknowledge()
            self.shown.append(shown(self.stores[0], self.ids))
            heads = {(op.scope, op.session): result.head for op, result in zip(ops, results) if hasattr(result, "new")}
            assert all(self.shown[-1][key][0][0].head >= head for key, head in heads.items())
        for store in self.stores:
            store.close()

    def tear(self) -> None:
        """Another writer is killed in the middle of a write."""
        scope, session = self.chance.choice(self.ids)
        directory = os.open(self.disk.root / file_of(scope.tenant) / file_of(scope.user), os.O_RDONLY)
        opened = self.disk.open(session_file(session), os.O_WRONLY | os.O_APPEND, directory)
        whole = b'{"seq":1000000,"id":"torn","kind":"message","part":[1,2],"crc":"00000000","body":"' + b"torn" * 300
        self.disk.write(opened, memoryview(whole)[: self.chance.randint(1, len(whole))])
        os.close(opened)
        os.close(directory)

    def ops(self) -> list[Op]:
        if not self.ids or self.chance.random() < 0.2:
            return [self.create()]
        if self.chance.random() < 0.25:
            return [self.rewrite()]
        ops = [self.add() for _ in range(self.chance.choice((1, 1, 2, 5)))]
        # One step of a session's lease a commit: of two, the first may be done alone.
        leases = {op.session: op for op in ops if isinstance(op, Take | Renew | Release)}
        return [op for op in ops if not isinstance(op, Take | Renew | Release) or leases[op.session] is op]

    def drafts(self) -> tuple[Draft, ...]:
        count = self.chance.choice((1, 1, 2, 4))
        self.numbers += count
        return tuple(draft(self.chance, self.numbers - no) for no in range(count))

    def create(self) -> Op:
        scope, session = self.chance.choice(SCOPES), f"s{len(self.ids)}"
        sources = [(of, id) for of, id in self.ids if of == scope and self.shown[-1][of, id] is not None]
        self.ids.append((scope, session))
        if sources and self.chance.random() < 0.5:
            _, source = self.chance.choice(sources)
            at = self.chance.randint(0, self.stores[0].get(scope, source).head)
            return Fork(Create(scope, session, parent=Parent(source, at)), source, at)
        return Create(scope, session, title="a title", entries=self.drafts())

    def add(self) -> Op:
        scope, session = self.chance.choice(self.ids)
        run = self.chance.choice("ab")
        match self.chance.randrange(8):
            case 0:
                return Update(scope, session, {"title": f"title {self.numbers}"})
            case 1:
                return Take(scope, session, run, 36_000_000_000, "interrupt", over="a", entries=self.drafts())
            case 2:
                return Renew(scope, session, run, 1, 36_000_000_000)
            case 3:
                return Release(scope, session, run, 1)
            case _:
                entries = self.drafts()
                return Append(scope, session, tuple(entry._replace(kind="effect") for entry in entries))

    def rewrite(self) -> Op:
        scope, session = self.chance.choice(self.ids)
        if self.chance.random() < 0.4:
            return Erase(scope, session)
        try:
            info = self.stores[0].get(scope, session)
        except NotFound:
            return Erase(scope, session)
        return Hollow(scope, session, tuple(range(info.base + 1, info.head + 1))[-2:])


def shown(store: JsonlStore, ids: list[tuple[ScopeKey, str]]) -> Shown:
    """All that a store shows of some sessions; None where there is none."""
    found: Shown = {}
    for scope, session in ids:
        try:
            info = store.get(scope, session)
        except NotFound:
            found[scope, session] = None
            continue
        entries = store.read(scope, session)
        assert [entry.seq for entry in entries] == list(range(1, info.head + 1))
        hits = [hit.entry.seq for hit in store.by_ref(scope, "all", session=session)]
        mine = replace(info, lease=None, waiting=0, fence=0)
        found[scope, session] = ((mine, entries, hits), (info.lease, info.waiting, info.fence))
    return found


def lost(history: History, point: int, state: Path, seed: int) -> str:
    """What is wrong with the state that a power loss at a point of the history could leave; empty: nothing."""
    state.mkdir(mode=0o700)
    survivors(history.log.events[:point], random.Random(seed), state)
    acked = history.log.acked_before(point)
    before, under_way = history.shown[acked], history.shown[min(acked + 1, COMMITS)]
    try:
        store = JsonlStore(state)
        found = shown(store, history.ids)
    except Exception as error:  # whatever it is, the state was not as promised
        return f"{type(error).__name__}: {error}"
    for key, session in found.items():
        # An operation on a session's log and one on its lease may be in one commit, and one of them be done.
        old, new = before.get(key), under_way.get(key)
        if session not in (old, new) and not (
            old and new and session and session[0] in (old[0], new[0]) and session[1] in (old[1], new[1])
        ):
            return f"session {key} was {old} or {new}, now {session}"
    wrong = goes_on(store, found) or [text for level, text, *_ in store.check(deep=True) if level == "damage"]
    store.close()
    return str(wrong) if wrong else ""


def goes_on(store: JsonlStore, found: Shown) -> list[str]:
    """What is wrong with a further append to each session."""
    living = [key for key, session in found.items() if session is not None]
    entry = draft(random.Random(0), 1_000_000)._replace(kind="effect")
    for (scope, session), result in zip(
        living, store.commit([Append(*key, (entry,)) for key in living]) if living else [], strict=True
    ):
        entries = store.read(scope, session)
        if result.head != len(entries) or entries[-1].id != entry.id or entries[:-1] != found[scope, session][0][1]:
            return [f"{session} does not go on: {result}"]
    return []


def trials(history: History, count: int, seed: int) -> list[tuple[int, int]]:
    """Points at which the power goes, each with a seed for what is left; in the middle of a commit more often."""
    events = history.log.events
    points = list(range(history.begins, len(events) + 1))
    points += [point for point in points if point and events[point - 1].call != "sync"]
    chance = random.Random(seed)
    chance.shuffle(points)
    return [(points[no % len(points)], seed * 1_000_003 + no) for no in range(count)]


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_what_was_acknowledged_survives_a_power_loss_at_any_point(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "live", seed)
    for point, chance in trials(history, STATES // HISTORIES, seed):
        state = tmp_path / "state"
        assert lost(history, point, state, chance) == "", f"power loss after call {point}, chance {chance}"
        shutil.rmtree(state)


def test_without_syncs_acknowledged_entries_are_lost(tmp_path: Path) -> None:
    """The control: if this could not fail, the test above would prove nothing."""
    history = History(tmp_path / "live", 1, ForgetfulDisk)
    count = STATES // 8
    failed = 0
    for point, chance in trials(history, count, 1):
        failed += bool(lost(history, point, tmp_path / "state", chance))
        shutil.rmtree(tmp_path / "state")
    assert failed > count / 2


class Killed(BaseException):
    """The process is killed; nothing of it runs on."""


class KilledDisk(RecordingDisk):
    """A process that is killed after its write and before the sync."""

    is_killed = False

    def sync(self, file: int) -> None:
        if self.is_killed:
            raise Killed
        super().sync(file)


def test_a_retry_makes_durable_what_a_killed_process_had_only_written(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    scope, entry = SCOPES[0], draft(random.Random(0), 1)
    disk = KilledDisk(tmp_path / "live")
    killed, other = JsonlStore(tmp_path / "live", disk=disk), JsonlStore(tmp_path / "live", disk=disk.another())
    killed.commit([Create(scope, "s")])
    disk.is_killed = True
    with pytest.raises(Killed):
        killed.commit([Append(scope, "s", (entry,))])
    assert other.commit([Append(scope, "s", (entry,))])[0].new == 0  # acknowledged, though it wrote nothing
    for chance in range(20):
        state = tmp_path / str(chance)
        state.mkdir()
        survivors(disk.log.events, random.Random(chance), state)
        assert [each.id for each in JsonlStore(state).read(scope, "s")] == [entry.id]


def test_a_fork_makes_durable_what_it_shares(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    scope, entry = SCOPES[0], draft(random.Random(0), 1)
    disk = KilledDisk(tmp_path / "live")
    killed, other = JsonlStore(tmp_path / "live", disk=disk), JsonlStore(tmp_path / "live", disk=disk.another())
    killed.commit([Create(scope, "s")])
    disk.is_killed = True
    with pytest.raises(Killed):
        killed.commit([Append(scope, "s", (entry,))])
    other.commit([Fork(Create(scope, "f", parent=Parent("s", 1)), "s", 1)])
    for chance in range(20):
        state = tmp_path / str(chance)
        state.mkdir()
        survivors(disk.log.events, random.Random(chance), state)
        assert [each.id for each in JsonlStore(state).read(scope, "f")] == [entry.id]
