"""The handle itself: its clock, what it declares, what it checks, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from segue.errors import Closed, Unsupported
from segue.store import CAPABILITIES, Create, Filter, Store

from .case import DAY, HOUR, MINUTE, StoreCase, draft, drafts

PATIENCE_SECONDS = 60.0
"""How long a test waits for another thread or process before it fails. Nothing waits that long when all is well."""


class ClockTests(StoreCase):
    def test_the_clock_is_the_worlds_until_it_is_moved(self) -> None:
        assert abs(self.a.now_us() - time.time_ns() // 1_000) < HOUR

    def test_a_moved_clock_shows_the_shift_and_shifts_add_up(self) -> None:
        before = self.a.now_us()
        self.a.shift_clock(HOUR)
        self.a.shift_clock(DAY)
        assert HOUR + DAY <= self.a.now_us() - before < HOUR + DAY + MINUTE
        self.a.shift_clock(-HOUR - DAY)
        assert 0 <= self.a.now_us() - before < MINUTE

    def test_a_shift_moves_this_handle_alone(self) -> None:
        before = self.b.now_us()
        self.a.shift_clock(DAY)
        assert self.b.now_us() - before < HOUR

    def test_what_is_written_carries_the_time_of_the_handle_that_writes(self) -> None:
        self.a.shift_clock(DAY)
        session = self.create(draft())
        assert self.log(session)[0].created_us > self.b.now_us() + HOUR

    def test_order_is_by_seq_also_when_the_clock_goes_back(self) -> None:
        session = self.create(draft(id="first"))
        self.shift(-DAY)
        self.append(session, draft(id="second"))
        self.shift(-DAY)
        self.append(session, draft(id="third"))
        assert self.ids(session) == ["first", "second", "third"]

    def test_two_handles_agree_on_the_time(self) -> None:
        assert abs(self.a.now_us() - self.b.now_us()) < MINUTE

    def test_no_handle_is_ahead_of_another(self) -> None:
        read = [handle.now_us() for _ in range(100) for handle in (self.a, self.b)]
        assert read == sorted(read)


class CapabilityTests(StoreCase):
    def test_it_says_its_name(self) -> None:
        assert isinstance(self.a.name, str)
        assert self.a.name

    def test_it_declares_only_what_the_contract_knows(self) -> None:
        assert isinstance(self.a.capabilities, frozenset)
        assert self.a.capabilities <= CAPABILITIES.keys()

    def test_it_has_at_least_one_lane(self) -> None:
        assert self.a.lanes >= 1

    def test_all_handles_declare_the_same(self) -> None:
        assert (self.a.name, self.a.capabilities, self.a.lanes) == (self.b.name, self.b.capabilities, self.b.lanes)

    def test_nobody_listens_to_changes_at_first(self) -> None:
        assert self.a.on_change is None

    def test_a_store_that_lives_in_files_lives_in_its_directory(self) -> None:
        self.needs("disk")
        self.create(draft())
        assert any(path.is_file() and path.stat().st_size for path in self.directory.rglob("*"))

    def test_a_store_that_notifies_tells_of_another_handles_commits(self) -> None:
        self.needs("notify")
        session, told = self.create(), threading.Event()
        self.b.on_change = lambda changed: told.set() if changed in (None, session) else None
        self.append(session, draft(), by=self.a)
        assert told.wait(PATIENCE_SECONDS)

    def test_a_backup_is_a_whole_copy(self, tmp_path: Path) -> None:
        self.needs("backup")
        session = self.create(*drafts(3))
        self.append(session, draft())
        target = tmp_path / "backup"
        target.mkdir()
        self.back_up(self.a, target)
        copy = self.open(target)
        assert copy.read(self.me, session) == self.log(session)

    def test_a_store_without_backup_has_none_or_refuses_it_by_name(self, tmp_path: Path) -> None:
        backup = getattr(self.a, "backup", None)
        if "backup" in self.a.capabilities or backup is None:
            return
        with pytest.raises(Unsupported) as caught:
            backup(tmp_path / "backup")
        assert caught.value.capability == "backup"

    def back_up(self, store: Store, directory: Path) -> None:
        """Copy the store's data so that ``make_store(directory)`` opens the copy. Override where the call differs."""
        store.backup(directory)  # type: ignore[attr-defined]


class CheckTests(StoreCase):
    def test_a_sound_store_has_no_damage(self) -> None:
        self.start_afresh()
        parent = self.create(*drafts(3, refs=("x",)))
        self.append(self.fork(parent, 2), *drafts(2))
        self.hollow(parent, 1)
        self.erase(parent)
        self.take(self.create(draft()), "run-1")
        for deep in (False, True):
            assert [report for report in self.b.check(deep=deep) if report.level == "damage"] == []

    def test_every_finding_says_what_it_is_about(self) -> None:
        for report in self.b.check(deep=True):
            assert report.level in {"ok", "warn", "damage"}
            assert report.text

    def test_a_durable_store_warns_of_no_setting(self) -> None:
        self.needs("durable")
        assert [report for report in self.a.check(deep=False) if report.level != "ok"] == []


_CALLS: dict[str, Callable[[StoreCase], object]] = {
    "commit": lambda case: case.a.commit([Create(case.me, "s")]),
    "get": lambda case: case.a.get(case.me, "s"),
    "find": lambda case: case.a.find(case.me, "k"),
    "page": lambda case: case.a.page(case.me, Filter(), None, 10),
    "read": lambda case: case.a.read(case.me, "s"),
    "by_ref": lambda case: case.a.by_ref(case.me, "x"),
    "scopes": lambda case: case.a.scopes(None, 10),
    "check": lambda case: case.a.check(deep=False),
}


class CloseTests(StoreCase):
    @pytest.mark.parametrize("name", _CALLS)
    def test_a_closed_handle_refuses_every_call(self, name: str) -> None:
        self.a.close()
        with pytest.raises(Closed):
            _CALLS[name](self)

    def test_a_handle_may_be_closed_twice(self) -> None:
        self.a.close()
        self.a.close()

    def test_closing_one_handle_leaves_the_other(self) -> None:
        session = self.create(draft())
        self.a.close()
        assert self.append(session, draft(), by=self.b).head == 2
        assert len(self.log(session)) == 2

    def test_everything_is_there_for_handles_opened_later(self) -> None:
        parent = self.create(*drafts(3, refs=("x",)), key="k", title="t", tags=("tag",))
        fork = self.fork(parent, 2)
        self.append(fork, draft(refs=("x",)))
        self.take(parent, "run-1", ttl_us=HOUR)
        self.enqueue(parent, "run-2", ticket_us=HOUR)
        self.hollow(parent, 3)
        before, hits = self.seen(self.me), self.hits("x")
        third = self.open()
        self.reopen()
        third.close()
        assert (self.seen(self.me), self.hits("x")) == (before, hits)

    def test_a_handle_closed_at_once_leaves_nothing_behind(self) -> None:
        for _ in range(3):
            self.open().close()
        assert self.a.scopes(None, 1) is not None

    def test_a_lease_outlives_the_handle_that_took_it(self) -> None:
        session = self.create()
        self.take(session, "run-1", ttl_us=HOUR)
        self.a.close()
        shown = self.info(session).lease
        assert shown is not None
        assert shown.run == "run-1"
