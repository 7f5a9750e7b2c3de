"""Forks: they share the entries before them, and neither side sees what the other adds."""

from __future__ import annotations

from msgspec.structs import replace

from segue.errors import Exists, IdConflict, Invalid, NotFound
from segue.model import Parent, SessionInfo, Usage
from segue.store import Create, Fork, Release, Update

from .case import StoreCase, draft, drafts, ids_of


class ForkTests(StoreCase):
    def op(self, id: str, source: str, at: int, **fields: object) -> Fork:
        """A fork on its way."""
        create = replace(Create(self.me, id, parent=Parent(source, at)), **fields)
        return Fork(create, source, at)

    def test_a_fork_begins_where_it_leaves_its_parent(self) -> None:
        parent = self.create(*drafts(3))
        info = self.do(self.op("f", parent, 2))
        assert isinstance(info, SessionInfo)
        assert (info.head, info.base, info.parent) == (2, 2, Parent(parent, 2))
        assert self.info("f") == info

    def test_a_fork_reads_the_entries_it_shares(self) -> None:
        parent = self.create(*drafts(3))
        fork = self.fork(parent, 2)
        assert self.log(fork) == self.log(parent)[:2]

    def test_a_fork_goes_on_with_the_next_seq(self) -> None:
        fork = self.fork(self.create(*drafts(3)), 2)
        assert self.append(fork, *drafts(2)).seqs == (3, 4)

    def test_a_fork_at_0_is_empty(self) -> None:
        parent = self.create(*drafts(2))
        fork = self.fork(parent, 0)
        assert (self.log(fork), self.info(fork).head) == ([], 0)
        assert self.append(fork, draft()).seqs == (1,)

    def test_a_fork_at_the_head_shares_all(self) -> None:
        parent = self.create(*drafts(3))
        assert self.log(self.fork(parent, 3)) == self.log(parent)

    def test_a_fork_beyond_the_head_is_refused(self) -> None:
        parent = self.create(*drafts(2))
        self.refused(self.op("f", parent, 3), Invalid)

    def test_a_fork_of_an_unknown_session_is_refused(self) -> None:
        self.refused(self.op("f", "unknown", 0), NotFound)

    def test_a_fork_never_changes_its_parent(self) -> None:
        parent = self.create(*drafts(3), title="parent")
        before = self.info(parent), self.log(parent)
        fork = self.fork(parent, 2)
        self.append(fork, *drafts(2))
        self.do(Update(self.me, fork, {"title": "fork", "state": "archived"}))
        assert (self.info(parent), self.log(parent)) == before

    def test_a_fork_does_not_see_what_its_parent_adds_later(self) -> None:
        first, later = draft(), draft()
        parent = self.create(first)
        fork = self.fork(parent, 1)
        self.append(parent, later)
        assert self.ids(fork) == [first.id]

    def test_a_parent_does_not_see_what_its_fork_adds(self) -> None:
        first, later = draft(), draft()
        parent = self.create(first)
        self.append(self.fork(parent, 1), later)
        assert self.ids(parent) == [first.id]

    def test_a_fork_sees_its_own_entries_not_those_that_its_parent_has_at_the_same_seqs(self) -> None:
        shared, theirs, ours = draft(), draft(), draft()
        parent = self.create(shared, theirs)
        fork = self.fork(parent, 1)
        self.append(fork, ours)
        assert (self.ids(parent), self.ids(fork)) == ([shared.id, theirs.id], [shared.id, ours.id])

    def test_sisters_do_not_see_each_other(self) -> None:
        parent = self.create(*drafts(5))
        forks = [self.fork(parent, at) for at in range(6)]
        own = [draft() for _ in forks]
        for fork, entry in zip(forks, own, strict=True):
            self.append(fork, entry)
        shared = self.ids(parent)
        assert [self.ids(fork) for fork in forks] == [[*shared[:at], own[at].id] for at in range(6)]

    def test_a_fork_inside_what_its_parent_inherits_shares_only_that(self) -> None:
        oldest = self.create(*drafts(4))
        middle = self.fork(oldest, 3)
        self.append(middle, *drafts(2))
        fork = self.fork(middle, 2)
        self.append(fork, draft())
        assert self.log(fork)[:2] == self.log(oldest)[:2]
        assert (self.info(fork).head, self.info(fork).parent) == (3, Parent(middle, 2))

    def test_a_fork_at_the_point_where_its_parent_was_forked_works(self) -> None:
        oldest = self.create(*drafts(2))
        middle = self.fork(oldest, 2)
        self.append(middle, draft())
        fork = self.fork(middle, 2)
        assert self.log(fork) == self.log(oldest)

    def test_a_fork_of_a_fork_reads_all_generations(self) -> None:
        session, expected = self.create(), []
        for generation in range(3):
            batch = drafts(2)
            self.append(session, *batch)
            expected += ids_of(batch)
            session = self.fork(session, 2 * generation + 2)
        assert self.ids(session) == expected

    def test_a_chain_of_50_forks_reads_whole(self) -> None:
        entries = drafts(51)
        session = self.create(entries[0])
        for depth in range(1, 51):
            session = self.fork(session, depth)
            self.append(session, entries[depth])
        assert self.ids(session) == ids_of(entries)
        assert self.ids(session, after=20, upto=25) == ids_of(entries[20:25])

    def test_reading_runs_over_the_fork_point_both_ways(self) -> None:
        fork = self.fork(self.create(*drafts(4)), 3)
        self.append(fork, *drafts(3))
        assert [entry.seq for entry in self.log(fork, after=1, upto=5)] == [2, 3, 4, 5]
        assert [entry.seq for entry in self.log(fork, reverse=True, limit=4)] == [6, 5, 4, 3]

    def test_a_fork_is_a_session_of_its_own(self) -> None:
        parent = self.create(*drafts(1), title="parent", tags=("t",), metadata={"a": 1}, is_pinned=True)
        self.do(self.op("f", parent, 1, title="fork", key="f-key", format="openai.chat"))
        info = self.info("f")
        assert (info.title, info.key, info.format, info.tags, info.metadata) == ("fork", "f-key", "openai.chat", (), {})
        assert not info.is_pinned
        assert self.b.find(self.me, "f-key") == info

    def test_a_fork_counts_only_the_usage_of_its_own_entries(self) -> None:
        fork = self.fork(self.create(draft(usage=Usage(input=100))), 1)
        self.append(fork, draft(usage=Usage(input=7)))
        assert self.info(fork).usage == Usage(input=7)

    def test_a_fork_of_an_archived_session_is_active(self) -> None:
        parent = self.create(*drafts(2))
        self.archive(parent)
        fork = self.fork(parent, 1)
        assert self.info(fork).state == "active"
        assert self.append(fork, draft()).new == 1

    def test_a_fork_does_not_inherit_the_lease(self) -> None:
        parent = self.create(*drafts(2))
        lease = self.take(parent, "run-1")
        fork = self.fork(parent, 2)
        assert (self.info(fork).lease, self.info(fork).fence) == (None, 0)
        self.take(fork, "run-2")
        self.do(Release(self.me, fork, "run-2", 1))
        assert self.info(parent).lease == lease

    def test_a_running_session_may_be_forked(self) -> None:
        parent = self.create(*drafts(2))
        self.take(parent, "run-1")
        assert self.append(self.fork(parent, 2), draft()).new == 1

    def test_a_fork_may_bring_its_first_entries(self) -> None:
        parent, own = self.create(*drafts(2)), draft()
        self.do(self.op("f", parent, 1, entries=(own,)))
        assert self.ids("f") == [*self.ids(parent)[:1], own.id]

    def test_a_fork_whose_first_entries_conflict_with_inherited_ones_makes_nothing(self) -> None:
        parent = self.create(draft("this", id="same"))
        self.refused(self.op("f", parent, 1, key="k", entries=(draft(), draft("that", id="same"))), IdConflict)
        self.assert_gone("f")
        self.fork(parent, 1, id="f")

    def test_a_fork_shows_the_hollow_entries_it_inherits(self) -> None:
        parent = self.create(*drafts(2))
        self.hollow(parent, 1)
        assert [entry.is_hollow for entry in self.log(self.fork(parent, 2))] == [True, False]

    def test_a_repeated_fork_gives_the_fork_again(self) -> None:
        parent = self.create(*drafts(2))
        op = self.op("f", parent, 1, key="k")
        self.do(op)
        self.append("f", draft())
        before = self.seen(self.me)
        assert self.do(op) == before.sessions["f"]
        assert self.seen(self.me) == before

    def test_a_repeated_fork_is_done_after_its_source_was_erased(self) -> None:
        parent = self.create(*drafts(2))
        op = self.op("f", parent, 1)
        self.do(op)
        self.erase(parent)
        assert self.do(op) == self.info("f")

    def test_another_fork_with_a_taken_id_is_refused(self) -> None:
        parent = self.create(*drafts(2))
        self.fork(parent, 1, id="f")
        self.refused(self.op("f", parent, 2), Exists)
        self.refused(self.op(parent, parent, 1), Exists)

    def test_another_fork_with_a_taken_key_is_refused(self) -> None:
        parent = self.create(*drafts(2), key="k")
        assert self.refused(self.op("f", parent, 1, key="k"), Exists).session == parent

    def test_a_fork_with_the_id_of_an_erased_session_is_refused(self) -> None:
        parent = self.create(*drafts(2))
        self.erase(self.fork(parent, 1, id="f"))
        self.refused(self.op("f", parent, 1), Exists)

    def test_forks_are_found_by_their_parent(self) -> None:
        parent = self.create(*drafts(2))
        forks = {self.fork(parent, at) for at in (0, 1, 2)}
        assert set(self.listed(parent=parent)) == forks

    def test_a_spill_keeps_its_link(self) -> None:
        parent = self.create(*drafts(2))
        self.do(self.op("f", parent, 1, parent=Parent(parent, 1, "spill")))
        assert self.info("f").parent == Parent(parent, 1, "spill")
