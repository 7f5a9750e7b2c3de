"""The lease: one run at a time, by a fence that only grows, judged by the store's clock."""

from __future__ import annotations

from datetime import timedelta

from segue.errors import Archived, Busy, IdConflict, LeaseLost, NotFound
from segue.model import Lease, to_us
from segue.store import Append, Release, Renew, Take

from .case import DAY, HOUR, MINUTE, SECOND, StoreCase, draft, drafts


class LeaseTests(StoreCase):
    def test_a_free_session_is_granted_and_the_other_handle_sees_by_whom(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1", holder="host/1")
        assert self.info(session).lease == lease
        assert (lease.run, lease.state, lease.holder) == ("run-1", "running", "host/1")
        assert self.info(session).status == "running"

    def test_a_lease_ends_its_time_after_now_by_the_stores_clock(self) -> None:
        session = self.create()
        self.shift(HOUR)
        before, lease, after = self.a.now_us(), self.take(session, "run-1", ttl_us=DAY), self.a.now_us()
        assert before + DAY - SECOND <= to_us(lease.expires_at) <= after + DAY + SECOND

    def test_a_held_session_is_refused_with_the_run_that_holds_it(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        assert self.refused(Take(self.me, session, "run-2", MINUTE), Busy).run == "run-1"

    def test_each_grant_has_a_higher_fence(self) -> None:
        session = self.create()
        fences = []
        for number in range(4):
            lease = self.take(session, f"run-{number}")
            fences.append(lease.fence)
            self.do(Release(self.me, session, lease.run, lease.fence))
        assert fences == [1, 2, 3, 4]
        assert self.info(session).fence == 4

    def test_the_same_run_asking_again_gets_its_lease_again_extended(self) -> None:
        session = self.create()
        first = self.take(session, "run-1", ttl_us=HOUR)
        self.shift(30 * MINUTE)
        again = self.take(session, "run-1", ttl_us=HOUR)
        assert again.fence == first.fence
        assert again.expires_at > first.expires_at + timedelta(minutes=29)

    def test_a_grant_appends_its_entries_in_the_same_step_under_the_run(self) -> None:
        session, batch = self.create(), drafts(2)
        self.take(session, "run-1", entries=batch)
        assert [(entry.id, entry.run) for entry in self.log(session)] == [(each.id, "run-1") for each in batch]

    def test_a_refused_take_appends_nothing(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Take(self.me, session, "run-2", MINUTE, entries=drafts(1)), Busy)

    def test_a_take_whose_entries_conflict_grants_nothing(self) -> None:
        session = self.create(draft("this", id="same"))
        self.refused(Take(self.me, session, "run-1", MINUTE, entries=(draft("that", id="same"),)), IdConflict)

    def test_a_grant_without_entries_is_no_activity_and_no_change_of_version(self) -> None:
        session = self.create()
        before = self.info(session)
        self.shift(MINUTE)
        self.take(session, "run-1")
        after = self.info(session)
        assert (after.active_at, after.version) == (before.active_at, before.version)

    def test_the_run_that_holds_the_lease_appends(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        assert self.append(session, draft(), run="run-1", fence=lease.fence).new == 1

    def test_an_unknown_session_has_no_lease_to_take_renew_or_release(self) -> None:
        self.refused(Take(self.me, "unknown", "run-1", MINUTE), NotFound)
        self.refused(Renew(self.me, "unknown", "run-1", 1, MINUTE), NotFound)
        self.refused(Release(self.me, "unknown", "run-1", 1), NotFound)

    def test_an_archived_session_is_not_granted(self) -> None:
        session = self.create()
        self.archive(session)
        self.refused(Take(self.me, session, "run-1", MINUTE), Archived)

    def test_a_completed_session_becomes_active_by_a_grant(self) -> None:
        session = self.create()
        self.update(session, state="completed")
        self.take(session, "run-1")
        assert self.info(session).state == "active"

    def test_a_completed_session_stays_so_by_a_refused_take(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.update(session, state="completed")
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)

    def test_each_step_of_a_lease_is_seen_by_the_other_handle_whether_it_brought_entries_or_not(self) -> None:
        session = self.create()
        for run in ("run-1", "run-2"):
            for batch in ((), drafts(1), ()):
                taken = self.take(session, run, entries=batch)
                assert self.info(session).lease == taken
            renewed = self.do(Renew(self.me, session, run, taken.fence, HOUR))
            assert self.info(session).lease == renewed
            self.take(session, "run-0", policy="interrupt", over=run, entries=drafts(1))
            last = self.take(session, f"{run} again", policy="interrupt", over="run-0")
            assert self.info(session).lease == last
            self.do(Release(self.me, session, last.run, last.fence))
            assert self.info(session).lease is None

    def test_leases_of_two_sessions_have_nothing_to_do_with_each_other(self) -> None:
        one, two = self.create(), self.create()
        assert (self.take(one, "run-1").fence, self.take(two, "run-2").fence) == (1, 1)

    def test_a_lease_is_there_for_a_handle_opened_later(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.reopen()
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)
        assert self.append(session, draft(), run="run-1", fence=lease.fence).new == 1


class ExpiryTests(StoreCase):
    def test_an_expired_lease_is_not_shown(self) -> None:
        session = self.create()
        self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(MINUTE + SECOND)
        assert (self.info(session).lease, self.info(session).status) == (None, "idle")

    def test_a_lease_that_has_not_expired_is_not_overtaken(self) -> None:
        session = self.create()
        self.take(session, "run-1", ttl_us=HOUR)
        self.shift(HOUR - MINUTE)
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)

    def test_an_expired_lease_is_overtaken_with_a_higher_fence(self) -> None:
        session = self.create()
        first = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(MINUTE + SECOND)
        assert self.take(session, "run-2").fence == first.fence + 1

    def test_an_expired_lease_still_appends_until_somebody_takes_over(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        assert self.append(session, draft(), run="run-1", fence=lease.fence).new == 1

    def test_an_overtaken_lease_never_appends_again(self) -> None:
        session = self.create()
        old = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        new = self.take(session, "run-2", ttl_us=MINUTE)
        stale = Append(self.me, session, drafts(1), run="run-1", fence=old.fence)
        assert self.refused(stale, LeaseLost).current == new.fence
        self.shift(HOUR)  # the newer one has expired too: that gives the older one nothing back
        self.refused(stale, LeaseLost)
        self.do(Release(self.me, session, "run-2", new.fence))
        self.refused(stale, LeaseLost)

    def test_an_overtaken_run_appends_no_fact_either(self) -> None:
        session = self.create()
        old = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        self.take(session, "run-2")
        self.refused(Append(self.me, session, drafts(1, kind="effect"), run="run-1", fence=old.fence), LeaseLost)

    def test_a_lease_needs_both_its_run_and_its_fence(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.refused(Append(self.me, session, drafts(1), run="run-2", fence=lease.fence), LeaseLost)
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=lease.fence + 1), LeaseLost)
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=lease.fence - 1), LeaseLost)

    def test_an_earlier_lease_of_the_same_run_is_lost_too(self) -> None:
        session = self.create()
        first = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        other = self.take(session, "run-2")
        self.do(Release(self.me, session, "run-2", other.fence))
        self.take(session, "run-1")
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=first.fence), LeaseLost)

    def test_a_clock_that_goes_back_ends_no_lease(self) -> None:
        session = self.create()
        self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(-HOUR)
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)


class RenewTests(StoreCase):
    def test_a_renewed_lease_ends_later_with_the_same_fence(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1", ttl_us=HOUR)
        self.shift(50 * MINUTE)
        renewed = self.do(Renew(self.me, session, "run-1", lease.fence, HOUR))
        assert isinstance(renewed, Lease)
        assert (renewed.run, renewed.fence, renewed.state) == ("run-1", lease.fence, "running")
        self.shift(50 * MINUTE)
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)
        assert self.info(session).lease == renewed

    def test_a_renewal_counts_from_now(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1", ttl_us=HOUR)
        self.do(Renew(self.me, session, "run-1", lease.fence, MINUTE))
        self.shift(2 * MINUTE)
        assert self.info(session).lease is None

    def test_a_renewal_keeps_the_holder(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1", holder="host/1")
        self.do(Renew(self.me, session, "run-1", lease.fence, MINUTE))
        shown = self.info(session).lease
        assert shown is not None
        assert shown.holder == "host/1"

    def test_an_expired_lease_that_nobody_took_is_renewed(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        self.do(Renew(self.me, session, "run-1", lease.fence, MINUTE))
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)

    def test_a_lost_lease_is_not_renewed(self) -> None:
        session = self.create()
        old = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        new = self.take(session, "run-2")
        refusal = self.refused(Renew(self.me, session, "run-1", old.fence, MINUTE), LeaseLost)
        assert (refusal.fence, refusal.current) == (old.fence, new.fence)

    def test_a_paused_lease_is_not_renewed(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence, pause_us=HOUR))
        self.refused(Renew(self.me, session, "run-1", lease.fence, MINUTE), LeaseLost)

    def test_a_lease_given_back_is_not_renewed(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence))
        self.refused(Renew(self.me, session, "run-1", lease.fence, MINUTE), LeaseLost)


class ReleaseTests(StoreCase):
    def test_a_lease_given_back_frees_the_session(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        assert self.do(Release(self.me, session, "run-1", lease.fence)) is None
        assert (self.info(session).lease, self.info(session).status) == (None, "idle")
        assert self.take(session, "run-2").fence == lease.fence + 1

    def test_a_lease_given_back_appends_no_more(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence))
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=lease.fence), LeaseLost)

    def test_a_lease_may_be_given_back_twice(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        release = Release(self.me, session, "run-1", lease.fence)
        assert [self.do(release), self.do(release)] == [None, None]

    def test_giving_back_a_lost_lease_does_not_end_the_newer_one(self) -> None:
        session = self.create()
        old = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        new = self.take(session, "run-2")
        self.do(Release(self.me, session, "run-1", old.fence))
        assert self.info(session).lease == new

    def test_the_fence_is_not_reused_after_a_release(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence))
        assert self.info(session).fence == lease.fence
        assert self.take(session, "run-1").fence == lease.fence + 1


class PauseTests(StoreCase):
    def paused(self, pause_us: int = HOUR) -> tuple[str, Lease]:
        """A session whose run-1 waits for a person."""
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence, pause_us=pause_us))
        return session, lease

    def test_a_paused_session_says_so_and_until_when(self) -> None:
        session, lease = self.paused()
        shown = self.info(session).lease
        assert shown is not None
        assert (shown.run, shown.fence, shown.state) == ("run-1", lease.fence, "paused")
        assert self.info(session).status == "paused"
        assert shown.expires_at > lease.expires_at + timedelta(minutes=50)

    def test_a_pause_lapses_by_time(self) -> None:
        session, _ = self.paused(HOUR)
        self.shift(HOUR + SECOND)
        assert (self.info(session).lease, self.info(session).status) == (None, "idle")

    def test_a_paused_run_appends_nothing(self) -> None:
        session, lease = self.paused()
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=lease.fence), LeaseLost)

    def test_a_pause_holds_nothing_so_another_run_is_granted(self) -> None:
        session, lease = self.paused()
        assert self.take(session, "run-2").fence == lease.fence + 1

    def test_a_pause_ends_by_a_grant(self) -> None:
        session, lease = self.paused()
        new = self.take(session, "run-2")
        self.do(Release(self.me, session, "run-1", lease.fence))
        assert self.info(session).lease == new
        self.do(Release(self.me, session, "run-2", new.fence))
        assert self.info(session).status == "idle"

    def test_a_paused_run_goes_on_with_a_new_fence(self) -> None:
        session, lease = self.paused()
        again = self.take(session, "run-1")
        assert again.fence == lease.fence + 1
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=lease.fence), LeaseLost)

    def test_a_message_without_a_run_is_stored_while_a_run_is_paused(self) -> None:
        session, _ = self.paused()
        assert self.append(session, draft()).new == 1

    def test_a_paused_run_may_give_up(self) -> None:
        session, lease = self.paused()
        self.do(Release(self.me, session, "run-1", lease.fence))
        assert self.info(session).status == "idle"

    def test_a_lost_lease_is_not_paused(self) -> None:
        session = self.create()
        old = self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(HOUR)
        self.take(session, "run-2")
        self.refused(Release(self.me, session, "run-1", old.fence, pause_us=HOUR), LeaseLost)

    def test_a_lease_given_back_is_not_paused(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence))
        self.refused(Release(self.me, session, "run-1", lease.fence, pause_us=HOUR), LeaseLost)

    def test_a_paused_session_may_be_archived(self) -> None:
        session, _ = self.paused()
        self.archive(session)
        assert self.info(session).status == "archived"


class InterruptTests(StoreCase):
    def test_interrupt_takes_the_lease_from_the_run_it_names(self) -> None:
        self._check_takes_from_the_run_it_names("interrupt")

    def test_rollback_takes_the_lease_from_the_run_it_names(self) -> None:
        self._check_takes_from_the_run_it_names("rollback")

    def _check_takes_from_the_run_it_names(self, policy: str) -> None:
        session = self.create()
        old = self.take(session, "run-1")
        new = self.take(session, "run-2", policy=policy, over="run-1", entries=(draft(id="retraction"),))
        assert new.fence == old.fence + 1
        assert self.ids(session) == ["retraction"]
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=old.fence), LeaseLost)

    def test_what_an_interrupted_run_stored_stays(self) -> None:
        session, finished = self.create(), draft()
        lease = self.take(session, "run-1")
        self.append(session, finished, run="run-1", fence=lease.fence)
        self.take(session, "run-2", policy="interrupt", over="run-1")
        assert self.ids(session) == [finished.id]

    def test_interrupt_of_a_run_that_does_not_hold_it_is_refused_with_the_one_that_does(self) -> None:
        session = self.create()
        self.take(session, "run-2")
        wrong = Take(self.me, session, "run-3", MINUTE, "interrupt", over="run-1")
        assert self.refused(wrong, Busy).run == "run-2"

    def test_rollback_of_a_run_that_does_not_hold_it_is_refused(self) -> None:
        session = self.create()
        self.take(session, "run-2")
        self.refused(Take(self.me, session, "run-3", MINUTE, "rollback", over="run-1", entries=drafts(1)), Busy)

    def test_interrupt_that_names_no_run_is_refused_while_one_holds_it(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Take(self.me, session, "run-2", MINUTE, "interrupt"), Busy)
        self.refused(Take(self.me, session, "run-2", MINUTE, "rollback"), Busy)

    def test_only_one_of_two_that_interrupt_the_same_run_succeeds(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.take(session, "run-2", policy="interrupt", over="run-1")
        self.refused(Take(self.me, session, "run-3", MINUTE, "interrupt", over="run-1"), Busy)

    def test_interrupt_of_a_free_session_is_granted(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        self.do(Release(self.me, session, "run-1", lease.fence))
        assert self.take(session, "run-2", policy="interrupt", over="run-1").fence == 2

    def test_policies_other_than_interrupt_and_rollback_take_it_from_nobody(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Take(self.me, session, "run-2", MINUTE, "reject", over="run-1"), Busy)
        self.enqueue(session, "run-2", over="run-1")


class DeadHolderTests(StoreCase):
    def test_a_lease_of_a_dead_holder_is_overtaken_at_once(self) -> None:
        session = self.create()
        old = self.take(session, "run-1", holder="host/1")
        assert self.take(session, "run-2", dead="host/1").fence == old.fence + 1
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=old.fence), LeaseLost)

    def test_a_lease_of_another_holder_is_not_overtaken(self) -> None:
        session = self.create()
        self.take(session, "run-1", holder="host/2")
        self.refused(Take(self.me, session, "run-2", MINUTE, dead="host/1"), Busy)

    def test_no_dead_holder_is_meant_when_none_is_named(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Take(self.me, session, "run-2", MINUTE), Busy)
