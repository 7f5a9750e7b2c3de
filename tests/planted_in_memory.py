"""Bugs in the store in memory: a function plants each, by patching or by giving a broken class."""

from __future__ import annotations

import json
import threading
import unicodedata
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from planting import Any, planter
from segue.errors import HeadMoved, IdConflict
from segue.model import Usage
from segue.store import Appended, Filter, Hollow
from segue.stores import (
    _history,
    _listing,
    memory,
)
from segue.stores.memory import MemoryStore
from segue.testing.append import AppendTests, CheckOrderTests, CommitTests, HeadTests, StateTests, TotalsTests
from segue.testing.attributes import CreateTests, UpdateTests
from segue.testing.content import ContentTests
from segue.testing.erasure import EraseTests, HollowTests, SharedEraseTests
from segue.testing.forks import ForkTests
from segue.testing.handles import ClockTests, CloseTests
from segue.testing.histories import HistoryTests
from segue.testing.ids import IdTests, InheritedIdTests, RetryTests
from segue.testing.lease import DeadHolderTests, ExpiryTests, InterruptTests, LeaseTests, PauseTests, ReleaseTests
from segue.testing.listing import FilterTests, LifetimeTests, PageTests
from segue.testing.names import NearTwinTests, OwnerTests
from segue.testing.queue import QueueTests
from segue.testing.races import ConcurrencyTests, RaceTests
from segue.testing.reading import DamageTests, ReadTests, RefTests

MEMORY_BUGS: dict[str, tuple[type, Callable[[pytest.MonkeyPatch], type[MemoryStore] | None]]] = {}
planted = planter(MEMORY_BUGS)


class NothingIsKnown(_history.Batch):
    def __init__(self, session, entries):
        self.new = list(entries)
        self.seqs = tuple(range(session.info.head + 1, session.info.head + 1 + len(self.new)))


@planted(IdTests)
def ids_are_not_checked(patch):
    patch.setattr(memory, "Batch", NothingIsKnown)


@planted(RetryTests)
def retries_are_stored_twice(patch):
    patch.setattr(memory, "Batch", NothingIsKnown)


@planted(IdTests)
def digests_are_not_compared(patch):
    known = _history.Session.known
    patch.setattr(_history.Session, "known", lambda self, name: (e := known(self, name)) and e._replace(digest=Any()))


@planted(InheritedIdTests)
def inherited_ids_are_forgotten(patch):
    def known(self, id):
        seq = self.own.seqs.get(id)
        return self.own.at(seq) if seq else None

    patch.setattr(_history.Session, "known", known)


@planted(InheritedIdTests)
def ids_behind_the_fork_point_are_known(patch):
    def known(self, id):
        return next((part.at(part.seqs[id]) for part, _ in self.parts if id in part.seqs), None)

    patch.setattr(_history.Session, "known", known)


@planted(CheckOrderTests)
def the_fence_is_checked_before_the_ids(patch):
    class Broken(MemoryStore):
        def _append(self, op, now):
            session = self._session(op.scope, op.session)
            self._check_may_append(session, op, NothingIsKnown(session, op.entries), now)
            return super()._append(op, now)

    return Broken


@planted(AppendTests)
def a_refused_append_uses_up_a_seq(patch):
    class Broken(MemoryStore):
        def _append(self, op, now):
            try:
                return super()._append(op, now)
            except IdConflict:
                session = self._session(op.scope, op.session)
                session.info = replace(session.info, head=session.info.head + 1)
                raise

    return Broken


@planted(AppendTests)
def a_batch_is_not_atomic(patch):
    class Broken(MemoryStore):
        def _append(self, op, now):
            done = [MemoryStore._append(self, replace(op, entries=(entry,)), now) for entry in op.entries]
            return Appended(done[-1].head, tuple(each.seqs[0] for each in done), sum(each.new for each in done))

    return Broken


@planted(CommitTests)
def a_refusal_ends_the_commit(patch):
    class Broken(MemoryStore):
        def commit(self, ops):
            results = super().commit(ops)
            bad = next((n for n, result in enumerate(results) if isinstance(result, Exception)), len(ops))
            return [*results[: bad + 1], *results[bad : bad + 1] * (len(ops) - bad - 1)]

    return Broken


@planted(HeadTests)
def the_head_is_checked_after_the_write(patch):
    class Broken(MemoryStore):
        def _append(self, op, now):
            head = self._session(op.scope, op.session).info.head
            done = super()._append(replace(op, expect=None), now)
            if op.expect is not None and op.expect != head:
                raise HeadMoved(op.expect, head)
            return done

    return Broken


@planted(TotalsTests)
def a_retry_counts_its_usage_again(patch):
    class Broken(MemoryStore):
        def _append(self, op, now):
            done = super()._append(op, now)
            session = self._session(op.scope, op.session)
            again = sum((e.usage for e in op.entries if e.usage), Usage()) if done.new < len(op.entries) else Usage()
            session.info = replace(session.info, usage=session.info.usage + again)
            return done

    return Broken


@planted(StateTests)
def an_archived_session_takes_appends(patch):
    class Broken(MemoryStore):
        def _check_may_append(self, session, op, batch, now):
            pass

    return Broken


@planted(ExpiryTests)
def the_fence_is_not_compared(patch):
    patch.setattr(memory, "held", lambda session, run, fence: session.info.lease)


@planted(ExpiryTests)
def an_expired_lease_is_never_overtaken(patch):
    patch.setattr(_history.Session, "running", lambda self, now: self.info.lease)


@planted(ExpiryTests)
def an_expired_lease_appends_no_more(patch):
    class Broken(MemoryStore):
        def _check_may_append(self, session, op, batch, now):
            super()._check_may_append(session, op, batch, now)
            if op.fence is not None and session.running(now) is None:
                raise memory.LeaseLost(op.run, op.fence, op.fence)

    return Broken


@planted(ExpiryTests)
def leases_are_judged_by_the_wall_clock(patch):
    running = _history.Session.running
    patch.setattr(_history.Session, "running", lambda self, now: running(self, memory.time.time_ns() // 1000))


@planted(LeaseTests)
def a_fence_is_used_again(patch):
    class Broken(MemoryStore):
        def _release(self, op, now):
            super()._release(op, now)
            session = self._session(op.scope, op.session)
            if session.info.lease is None:
                session.info = replace(session.info, fence=0)

    return Broken


@planted(ReleaseTests)
def giving_back_a_lost_lease_ends_the_newer_one(patch):
    class Broken(MemoryStore):
        def _release(self, op, now):
            session = self._session(op.scope, op.session)
            session.info = replace(session.info, lease=None)

    return Broken


@planted(PauseTests)
def a_paused_run_appends(patch):
    held = _history.held
    patch.setattr(memory, "held", lambda *args: (lease := held(*args)) and replace(lease, state="running"))


@planted(InterruptTests)
def interrupt_takes_it_from_anybody(patch):
    class Broken(MemoryStore):
        def _take(self, op, now):
            lease = self._session(op.scope, op.session).info.lease
            wanted = op.policy in ("interrupt", "rollback") and lease is not None
            return super()._take(replace(op, over=lease.run) if wanted else op, now)

    return Broken


@planted(DeadHolderTests)
def any_holder_counts_as_dead(patch):
    class Broken(MemoryStore):
        def _take(self, op, now):
            lease = self._session(op.scope, op.session).info.lease
            return super()._take(replace(op, dead=lease.holder) if op.dead and lease else op, now)

    return Broken


@planted(QueueTests)
def the_queue_is_served_by_name(patch):
    waiting = _history.Session.waiting
    patch.setattr(_history.Session, "waiting", lambda self, now: sorted(waiting(self, now)))


@planted(QueueTests)
def a_place_in_the_queue_never_lapses(patch):
    patch.setattr(_history.Session, "waiting", lambda self, now: list(self.queue))


@planted(QueueTests)
def asking_again_moves_to_the_end(patch):
    class Broken(MemoryStore):
        def _take(self, op, now):
            self._session(op.scope, op.session).queue.pop(op.run, None)
            return super()._take(op, now)

    return Broken


@planted(ForkTests)
def a_fork_sees_what_its_parent_adds_later(patch):
    clip = _history.clip
    patch.setattr(memory, "clip", lambda parts, at: tuple((segment, 1 << 40) for segment, _ in clip(parts, at)))


@planted(ForkTests)
def a_fork_changes_its_parent(patch):
    class Broken(MemoryStore):
        def _fork(self, op, now):
            info = super()._fork(op, now)
            source = self._session(op.create.scope, op.source)
            source.info = replace(source.info, version=source.info.version + 1)
            return info

    return Broken


@planted(SharedEraseTests)
def an_erase_takes_what_forks_share(patch):
    patch.setattr(memory, "needed", lambda segment, living: 0)


@planted(SharedEraseTests)
def an_erase_keeps_what_no_fork_shares(patch):
    patch.setattr(_history.Segment, "cut", lambda self, upto: 0)


@planted(EraseTests)
def an_erase_leaves_no_tombstone(patch):
    class Broken(MemoryStore):
        def _erase(self, op):
            erased = super()._erase(op)
            self._data.tombstones.clear()
            return erased

    return Broken


@planted(HollowTests)
def hollow_leaves_the_body(patch):
    patch.setattr(_history.Segment, "hollow", lambda self, seq: self._forget_refs(self.at(seq)) or True)


@planted(HollowTests)
def hollow_leaves_the_refs(patch):
    def hollow(self, seq):
        entry = self.at(seq)
        self.entries[seq - self.base - 1] = entry._replace(body=None)
        return entry.body is not None

    patch.setattr(_history.Segment, "hollow", hollow)


@planted(HollowTests)
def a_fork_hollows_what_it_inherits(patch):
    class Broken(MemoryStore):
        def _hollow(self, op):
            session = self._session(op.scope, op.session)
            own = tuple(seq for seq in op.seqs if seq > session.info.base)
            return super()._hollow(Hollow(op.scope, op.session, own))

    return Broken


@planted(ReadTests)
def the_limit_counts_before_the_kind(patch):
    class Broken(MemoryStore):
        def read(self, scope, session, *, kinds=None, **bounds):
            return [e for e in super().read(scope, session, **bounds) if kinds is None or e.kind in kinds]

    return Broken


@planted(ReadTests)
def reverse_gives_the_first_ones_turned_round(patch):
    class Broken(MemoryStore):
        def read(self, scope, session, *, reverse=False, **bounds):
            entries = super().read(scope, session, **bounds)
            return entries[::-1] if reverse else entries

    return Broken


@planted(DamageTests)
def damage_is_skipped(patch):
    patch.setattr(memory.Entry, "verify", lambda self, session: self)


@planted(RefTests)
def a_shared_entry_is_found_once_a_fork(patch):
    class Broken(MemoryStore):
        def by_ref(self, scope, ref, *, session=None, **bounds):
            if session is not None:
                return super().by_ref(scope, ref, session=session, **bounds)
            sessions = [info.id for info in self.page(scope, Filter(), None, 100).sessions]
            return [hit for each in sessions for hit in super(Broken, self).by_ref(scope, ref, session=each, **bounds)]

    return Broken


@planted(CreateTests)
def a_repeated_create_makes_it_anew(patch):
    class Broken(MemoryStore):
        def _create(self, op, source, now):
            self._data.sessions.get(op.scope, {}).pop(op.id, None)
            return super()._create(op, source, now)

    return Broken


@planted(CreateTests)
def metadata_are_shared_with_the_caller(patch):
    patch.setattr(memory.copy, "deepcopy", lambda value: value)


@planted(UpdateTests)
def an_append_breaks_a_rename(patch):
    class Broken(MemoryStore):
        def _add(self, session, batch, run, now):
            session.info = replace(session.info, version=session.info.version + 1)
            return super()._add(session, batch, run, now)

    return Broken


@planted(PageTests)
def pages_go_by_number_instead_of_place(patch):
    class Broken(MemoryStore):
        def page(self, scope, filter, cursor, limit):
            start = int(cursor or 0)
            found = super().page(scope, filter, None, 1000).sessions[start:]
            more = str(start + limit) if len(found) > limit else None
            return _listing.Page(found[:limit], more)

    return Broken


@planted(FilterTests)
def archived_sessions_are_listed(patch):
    class Broken(MemoryStore):
        def page(self, scope, filter, cursor, limit):
            every = ("running", "idle", "paused", "completed", "archived")
            return super().page(scope, replace(filter, status=filter.status or every), cursor, limit)

    return Broken


@planted(LifetimeTests)
def pinned_sessions_are_due(patch):
    patch.setattr(_listing, "_is_due", lambda info, at: info.due_at is not None and _listing.to_us(info.due_at) <= at)


@planted(OwnerTests)
def lists_ignore_the_owner(patch):
    class Broken(MemoryStore):
        def page(self, scope, filter, cursor, limit):
            pages = [super(Broken, self).page(each, filter, None, limit) for each in self.scopes(None, 1000)]
            return _listing.Page(tuple(info for page in pages for info in page.sessions), None)

    return Broken


@planted(OwnerTests)
def the_tenant_is_ignored(patch):
    session = MemoryStore._session

    def anywhere(self, scope, name):
        found = next((s for s in self._data.sessions if s.user == scope.user and name in self._data.sessions[s]), scope)
        return session(self, found, name)

    patch.setattr(MemoryStore, "_session", anywhere)


def folded(fold: Callable[[str], str]) -> type[MemoryStore]:
    """A store that takes some names for one, as a database with such a collation does."""

    class Folded(MemoryStore):
        def commit(self, ops):
            return super().commit([self.fold(op) for op in ops])

        def fold(self, op):
            names = [name for name in ("id", "session", "key", "run") if isinstance(getattr(op, name, None), str)]
            scope = {"scope": op.scope._replace(user=fold(op.scope.user))} if hasattr(op, "scope") else {}
            return replace(op, **scope, **{name: fold(getattr(op, name)) for name in names})

        def _session(self, scope, session):
            return super()._session(scope._replace(user=fold(scope.user)), fold(session))

    return Folded


@planted(NearTwinTests)
def names_ignore_case(patch):
    return folded(str.casefold)


@planted(NearTwinTests)
def names_are_normalised(patch):
    return folded(lambda name: unicodedata.normalize("NFC", name))


@planted(NearTwinTests)
def names_lose_their_last_space(patch):
    return folded(lambda name: name.rstrip(" ") or name)


def recoded(change: Callable[[bytes], bytes]) -> type[MemoryStore]:
    """A store that keeps something else than the bytes that came."""

    class Recoded(MemoryStore):
        def read(self, scope, session, **bounds):
            return [e._replace(body=e.body and change(e.body)) for e in super().read(scope, session, **bounds)]

    return Recoded


def as_json(body: bytes, **options) -> bytes:
    try:
        return json.dumps(json.loads(body), ensure_ascii=False, **options).encode()
    except ValueError:
        return body


@planted(ContentTests)
def bodies_are_written_as_json_again(patch):
    return recoded(as_json)


@planted(ContentTests)
def only_key_order_is_lost(patch):
    return recoded(lambda body: body if b'"' not in body or b" " in body else as_json(body, sort_keys=True))


@planted(ContentTests)
def bodies_are_kept_as_text(patch):
    return recoded(lambda body: body.decode("utf-8", "replace").encode())


@planted(ContentTests)
def bodies_end_at_a_nul_byte(patch):
    return recoded(lambda body: body.split(b"\0")[0])


@planted(ClockTests)
def the_clock_of_one_handle_is_the_clock_of_all(patch):
    def shift(self, us):
        MemoryStore._shift_of_all = getattr(MemoryStore, "_shift_of_all", 0) + us

    patch.setattr(MemoryStore, "shift_clock", shift)
    patch.setattr(MemoryStore, "_shift_of_all", 0, raising=False)
    patch.setattr(MemoryStore, "now_us", lambda self: memory.time.time_ns() // 1000 + MemoryStore._shift_of_all)


@planted(CloseTests)
def a_closed_handle_goes_on(patch):
    patch.setattr(MemoryStore, "close", lambda self: None)


class Torn(MemoryStore):
    """Lets others in between its steps: ``pause`` gives up the lock for a moment."""

    def pause(self):
        self._data.lock.release()
        threading.Event().wait(0.002)
        self._data.lock.acquire()


@planted(RaceTests)
def keys_are_checked_and_then_taken(patch):
    class Broken(Torn):
        def _check_key(self, scope, key):
            super()._check_key(scope, key)
            self.pause()

    return Broken


@planted(RaceTests)
def the_head_is_checked_and_then_moved(patch):
    class Broken(Torn):
        def _check_may_append(self, session, op, batch, now):
            super()._check_may_append(session, op, batch, now)
            self.pause()

    return Broken


@planted(RaceTests)
def leases_are_checked_and_then_taken(patch):
    class Broken(Torn):
        def _grant(self, session, op, batch, fence, now):
            self.pause()
            return super()._grant(session, op, batch, fence, now)

    return Broken


@planted(ConcurrencyTests)
def a_reader_sees_half_a_batch(patch):
    class Broken(Torn):
        def _add(self, session, batch, run, now):
            whole, seqs = batch.new, batch.seqs
            for entry in whole:
                batch.new = [entry]
                super()._add(session, batch, run, now)
                if len(whole) > 1:
                    self.pause()
            return Appended(session.info.head, seqs, len(whole))

    return Broken


@planted(HistoryTests)
def now_and_then_a_reading_is_stale(patch):
    read, turns = MemoryStore.read, iter(range(10**9))

    def stale(self, scope, session, **bounds):
        entries = read(self, scope, session, **bounds)
        return entries[:-1] if next(turns) % 7 == 6 else entries

    patch.setattr(MemoryStore, "read", stale)


@planted(HistoryTests)
def now_and_then_an_append_is_told_and_lost(patch):
    turns = iter(range(10**9))

    class Broken(MemoryStore):
        def _append(self, op, now):
            session = self._session(op.scope, op.session)
            if next(turns) % 10 == 9 and op.fence is None and op.expect is None:
                batch = memory.Batch(session, op.entries)
                return Appended(session.info.head + len(batch.new), batch.seqs, len(batch.new))
            return super()._append(op, now)

    return Broken
