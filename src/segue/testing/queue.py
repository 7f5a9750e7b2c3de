"""The queue for a session's lease: first come, first served, and who stops asking loses the place."""

from __future__ import annotations

from segue.errors import Busy, NotFound
from segue.model import Lease
from segue.store import Queued, Release, Take

from .case import HOUR, MINUTE, StoreCase, drafts


class QueueTests(StoreCase):
    def held(self) -> tuple[str, Lease]:
        """A session that run-1 holds for an hour."""
        session = self.create()
        return session, self.take(session, "run-1", ttl_us=HOUR)

    def free(self, session: str, lease: Lease) -> None:
        """Give the lease back."""
        self.do(Release(self.me, session, lease.run, lease.fence))

    def ask(self, session: str, run: str) -> Lease | Queued:
        """Ask as a run does that waits."""
        answer = self.do(Take(self.me, session, run, HOUR, "enqueue", ticket_us=HOUR))
        assert isinstance(answer, Lease | Queued)
        return answer

    def test_enqueue_on_a_free_session_is_granted(self) -> None:
        assert isinstance(self.ask(self.create(), "run-1"), Lease)

    def test_enqueue_on_a_held_session_gives_a_place_and_the_run_that_holds_it(self) -> None:
        session, _ = self.held()
        assert self.enqueue(session, "run-2") == Queued(before=0, run="run-1")
        assert self.enqueue(session, "run-3") == Queued(before=1, run="run-1")

    def test_asking_again_keeps_the_place(self) -> None:
        session, _ = self.held()
        for run in ("run-2", "run-3", "run-2", "run-3", "run-2"):
            self.enqueue(session, run)
        assert (self.enqueue(session, "run-2").before, self.enqueue(session, "run-3").before) == (0, 1)

    def test_a_session_shows_how_many_wait(self) -> None:
        session, _ = self.held()
        self.enqueue(session, "run-2")
        self.enqueue(session, "run-3")
        assert self.info(session).waiting == 2

    def test_waiting_appends_nothing(self) -> None:
        session, _ = self.held()
        self.enqueue(session, "run-2", entries=drafts(1))
        assert self.log(session) == []

    def test_the_first_that_came_is_granted_and_its_place_is_gone(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.enqueue(session, "run-3")
        self.free(session, lease)
        assert self.ask(session, "run-3") == Queued(before=1, run="")
        assert isinstance(self.ask(session, "run-2"), Lease)
        assert self.ask(session, "run-3") == Queued(before=0, run="run-2")
        assert self.info(session).waiting == 1

    def test_a_place_does_not_depend_on_the_names_of_the_runs(self) -> None:
        session, lease = self.held()
        for run in ("z", "a", "m"):
            self.enqueue(session, run)
        order: list[str] = []
        while len(order) < 3:
            self.free(session, lease)
            (lease,) = [got for run in ("a", "m", "z") if isinstance(got := self.ask(session, run), Lease)]
            order.append(lease.run)
        assert order == ["z", "a", "m"]

    def test_a_newcomer_does_not_pass_those_who_wait(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.free(session, lease)
        assert self.refused(Take(self.me, session, "run-3", MINUTE, "reject"), Busy).waiting == 1
        assert self.ask(session, "run-3") == Queued(before=1, run="")

    def test_the_run_at_the_front_may_also_ask_with_reject(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.free(session, lease)
        assert self.take(session, "run-2", policy="reject").fence == 2

    def test_an_expired_lease_goes_to_the_first_that_waits(self) -> None:
        session, _ = self.held()
        self.shift(HOUR - MINUTE)
        self.enqueue(session, "run-2", ticket_us=HOUR)
        self.enqueue(session, "run-3", ticket_us=HOUR)
        self.shift(2 * MINUTE)
        assert self.ask(session, "run-3") == Queued(before=1, run="")
        assert isinstance(self.ask(session, "run-2"), Lease)

    def test_a_paused_lease_goes_to_the_first_that_waits(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.do(Release(self.me, session, "run-1", lease.fence, pause_us=HOUR))
        assert isinstance(self.ask(session, "run-2"), Lease)

    def test_a_place_lapses_when_it_is_not_asked_for_in_time(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2", ticket_us=5 * MINUTE)
        self.enqueue(session, "run-3", ticket_us=HOUR)
        self.shift(10 * MINUTE)
        assert self.info(session).waiting == 1
        self.free(session, lease)
        assert isinstance(self.ask(session, "run-3"), Lease)

    def test_a_place_that_is_asked_for_in_time_does_not_lapse(self) -> None:
        session, _ = self.held()
        self.enqueue(session, "run-2", ticket_us=5 * MINUTE)
        self.enqueue(session, "run-3", ticket_us=HOUR)
        for _ in range(4):
            self.shift(3 * MINUTE)
            assert self.enqueue(session, "run-2", ticket_us=5 * MINUTE).before == 0

    def test_who_let_a_place_lapse_goes_to_the_end(self) -> None:
        session, _ = self.held()
        self.enqueue(session, "run-2", ticket_us=5 * MINUTE)
        self.enqueue(session, "run-3", ticket_us=HOUR)
        self.shift(10 * MINUTE)
        assert self.enqueue(session, "run-2").before == 1
        assert self.enqueue(session, "run-3").before == 0

    def test_a_lapsed_place_holds_up_nobody(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2", ticket_us=5 * MINUTE)
        self.shift(10 * MINUTE)
        self.free(session, lease)
        assert self.take(session, "run-3", policy="reject").fence == 2

    def test_who_leaves_the_queue_holds_up_nobody(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.enqueue(session, "run-3")
        assert self.do(Release(self.me, session, "run-2", None)) is None
        assert self.enqueue(session, "run-3").before == 0
        self.free(session, lease)
        assert isinstance(self.ask(session, "run-3"), Lease)

    def test_leaving_a_queue_twice_is_done_already(self) -> None:
        session, _ = self.held()
        leave = Release(self.me, session, "run-9", None)
        assert [self.do(leave), self.do(leave)] == [None, None]

    def test_leaving_the_queue_does_not_give_back_the_lease(self) -> None:
        session, lease = self.held()
        self.do(Release(self.me, session, "run-1", None))
        assert self.info(session).lease == lease

    def test_interrupt_passes_the_queue_which_stays(self) -> None:
        session, _ = self.held()
        self.enqueue(session, "run-2")
        self.take(session, "run-3", policy="interrupt", over="run-1")
        assert self.enqueue(session, "run-2") == Queued(before=0, run="run-3")

    def test_interrupt_of_a_free_session_passes_the_queue(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.free(session, lease)
        assert self.take(session, "run-3", policy="interrupt").fence == 2

    def test_an_interrupt_that_is_refused_leaves_the_queue(self) -> None:
        session, _ = self.held()
        self.enqueue(session, "run-2")
        self.refused(Take(self.me, session, "run-3", MINUTE, "interrupt", over="run-9"), Busy)
        assert self.info(session).waiting == 1

    def test_a_dead_holder_makes_way_for_the_queue_not_for_a_newcomer(self) -> None:
        session = self.create()
        self.take(session, "run-1", holder="host/1")
        self.enqueue(session, "run-2")
        self.refused(Take(self.me, session, "run-3", MINUTE, dead="host/1"), Busy)
        assert self.take(session, "run-2", policy="enqueue", dead="host/1").fence == 2

    def test_a_run_that_holds_the_lease_does_not_queue_behind_others(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        assert self.take(session, "run-1", policy="enqueue").fence == lease.fence

    def test_a_queue_is_there_for_a_handle_opened_later(self) -> None:
        session, lease = self.held()
        self.enqueue(session, "run-2")
        self.reopen()
        self.free(session, lease)
        self.refused(Take(self.me, session, "run-3", MINUTE), Busy)
        assert isinstance(self.ask(session, "run-2"), Lease)

    def test_queues_of_two_sessions_have_nothing_to_do_with_each_other(self) -> None:
        one, _ = self.held()
        two, _ = self.held()
        self.enqueue(one, "run-2")
        assert self.enqueue(two, "run-2").before == 0
        assert self.info(two).waiting == 1

    def test_an_unknown_session_has_no_queue(self) -> None:
        self.refused(Take(self.me, "unknown", "run-1", MINUTE, "enqueue"), NotFound)
        self.refused(Release(self.me, "unknown", "run-1", None), NotFound)
