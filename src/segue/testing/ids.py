"""Entry ids: a retried append is stored once, whatever happened in between."""

from __future__ import annotations

from segue.errors import IdConflict
from segue.model import Lease
from segue.store import Append, Appended, Create, Release, Take

from .case import HOUR, MINUTE, StoreCase, draft, drafts, ids_of


class IdTests(StoreCase):
    def test_a_retried_append_is_stored_once_and_gives_the_same_seqs(self) -> None:
        session, batch = self.create(draft()), drafts(2)
        assert self.append(session, *batch) == Appended(3, (2, 3), 2)
        assert self.append(session, *batch, by=self.b) == Appended(3, (2, 3), 0)
        assert len(self.log(session)) == 3

    def test_a_retry_leaves_no_trace(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch)
        before = self.seen(self.me)
        self.append(session, *batch)
        assert self.seen(self.me) == before

    def test_known_and_new_ids_may_be_mixed(self) -> None:
        first, second, third, fourth = drafts(4)
        session = self.create(first, second)
        assert self.append(session, third, second, fourth, first) == Appended(4, (3, 2, 4, 1), 2)
        assert self.ids(session) == ids_of((first, second, third, fourth))

    def test_a_known_id_with_other_content_is_a_conflict_that_names_it(self) -> None:
        session = self.create(draft(), draft("this", id="same"))
        refusal = self.refused(Append(self.me, session, (draft("that", id="same"),)), IdConflict)
        assert (refusal.entry_id, refusal.seq) == ("same", 2)

    def test_content_is_compared_byte_for_byte(self) -> None:
        session = self.create(draft(body=b'{"a":1}', id="same"))
        self.refused(Append(self.me, session, (draft(body=b'{"a": 1}', id="same"),)), IdConflict)

    def test_only_the_content_decides_whether_it_is_the_same(self) -> None:
        session = self.create(draft("this", id="same", origin="user"))
        assert self.append(session, draft("this", id="same", origin="model", refs=("x",))).new == 0
        assert self.log(session)[0].origin == "user"

    def test_an_id_twice_in_a_batch_is_stored_once(self) -> None:
        session, entry = self.create(), draft()
        assert self.append(session, entry, draft(), entry) == Appended(2, (1, 2, 1), 2)

    def test_an_id_twice_in_a_batch_with_other_content_is_a_conflict(self) -> None:
        session = self.create()
        self.refused(Append(self.me, session, (draft("this", id="same"), draft("that", id="same"))), IdConflict)

    def test_sessions_do_not_share_ids(self) -> None:
        one = self.create(draft("this", id="same"))
        two = self.create(draft("that", id="same"))
        assert (self.log(one)[0].body, self.log(two)[0].body) == (b'"this"', b'"that"')

    def test_a_hollowed_entry_keeps_its_id(self) -> None:
        session = self.create(draft("this", id="same"))
        self.hollow(session, 1)
        assert self.append(session, draft("this", id="same")).new == 0
        self.refused(Append(self.me, session, (draft("that", id="same"),)), IdConflict)

    def test_a_retry_does_not_fill_a_hollowed_entry_again(self) -> None:
        session = self.create(draft("this", id="same"))
        self.hollow(session, 1)
        self.append(session, draft("this", id="same"))
        assert self.log(session)[0].body is None


class RetryTests(StoreCase):
    """A batch of only known ids is done, whatever the fence, the head and the state are now."""

    def test_a_retry_is_done_after_the_head_moved(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch, expect=0)
        self.append(session, draft())
        assert self.append(session, *batch, expect=0) == Appended(3, (1, 2), 0)

    def test_a_retry_is_done_after_the_run_was_overtaken(self) -> None:
        session, batch = self.create(), drafts(2)
        lease = self.take(session, "run-1")
        self.append(session, *batch, run="run-1", fence=lease.fence)
        self.take(session, "run-2", policy="interrupt", over="run-1")
        assert self.append(session, *batch, run="run-1", fence=lease.fence).new == 0

    def test_a_retry_is_done_after_the_lease_was_given_back(self) -> None:
        session, batch = self.create(), drafts(2)
        lease = self.take(session, "run-1")
        self.append(session, *batch, run="run-1", fence=lease.fence)
        self.do(Release(self.me, session, "run-1", lease.fence))
        assert self.append(session, *batch, run="run-1", fence=lease.fence).new == 0

    def test_a_retry_is_done_after_the_session_was_archived(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch)
        self.archive(session)
        assert self.append(session, *batch) == Appended(2, (1, 2), 0)

    def test_a_retry_without_a_run_is_done_while_a_run_is_active(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch)
        self.take(session, "run-1")
        assert self.append(session, *batch).new == 0

    def test_a_retry_is_done_after_a_year(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch)
        self.shift(366 * 24 * HOUR)
        self.reopen()
        assert self.append(session, *batch).new == 0

    def test_the_head_is_compared_when_one_of_many_is_new(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch)
        results = self.a.commit([Append(self.me, session, (*batch, draft()), expect=1)])
        assert type(results[0]).__name__ == "HeadMoved"

    def test_the_fence_is_compared_when_one_of_many_is_new(self) -> None:
        session, batch = self.create(), drafts(2)
        self.append(session, *batch)
        results = self.a.commit([Append(self.me, session, (*batch, draft()), run="nobody", fence=3)])
        assert type(results[0]).__name__ == "LeaseLost"

    def test_a_retried_take_gives_the_same_lease_and_stores_its_entries_once(self) -> None:
        session, batch = self.create(), drafts(2)
        take = Take(self.me, session, "run-1", MINUTE, entries=batch)
        first, again = self.do(take), self.do(take, by=self.b)
        assert isinstance(first, Lease)
        assert isinstance(again, Lease)
        assert first.fence == again.fence
        assert self.ids(session) == ids_of(batch)

    def test_a_retried_create_gives_the_session_again_and_writes_nothing(self) -> None:
        create = Create(self.me, "s", key="k", entries=drafts(2))
        self.do(create)
        self.append("s", draft())
        before = self.seen(self.me)
        self.do(create)
        assert self.seen(self.me) == before


class InheritedIdTests(StoreCase):
    def test_ids_that_a_fork_inherits_are_known_to_it(self) -> None:
        first, second, third = drafts(3)
        fork = self.fork(self.create(first, second), 2)
        assert self.append(fork, second, third, first) == Appended(3, (2, 3, 1), 1)

    def test_an_inherited_id_with_other_content_is_a_conflict(self) -> None:
        fork = self.fork(self.create(draft("this", id="same")), 1)
        self.refused(Append(self.me, fork, (draft("that", id="same"),)), IdConflict)

    def test_ids_after_the_fork_point_are_not_known_to_the_fork(self) -> None:
        fork = self.fork(self.create(draft(), draft("this", id="same")), 1)
        assert self.append(fork, draft("that", id="same")).seqs == (2,)

    def test_ids_of_a_fork_are_not_known_to_its_parent(self) -> None:
        parent = self.create(draft())
        self.append(self.fork(parent, 1), draft("this", id="same"))
        assert self.append(parent, draft("that", id="same")).seqs == (2,)

    def test_ids_of_a_fork_are_not_known_to_its_sister(self) -> None:
        parent = self.create(draft())
        self.append(self.fork(parent, 1), draft("this", id="same"))
        assert self.append(self.fork(parent, 1), draft("that", id="same")).seqs == (2,)

    def test_ids_inherited_from_far_above_are_known(self) -> None:
        oldest = draft()
        session = self.create(oldest)
        for depth in range(1, 6):
            session = self.fork(session, depth)
            self.append(session, draft())
        assert self.append(session, oldest) == Appended(6, (1,), 0)

    def test_inherited_ids_stay_known_when_the_parent_is_erased(self) -> None:
        entry = draft()
        parent = self.create(entry)
        fork = self.fork(parent, 1)
        self.erase(parent)
        assert self.append(fork, entry) == Appended(1, (1,), 0)
