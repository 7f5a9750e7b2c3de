"""Hollowing entries and erasing sessions: what is gone is gone, what forks share stays as long as they."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from segue.errors import Exists, Invalid, NotFound, VersionMoved
from segue.model import Parent
from segue.store import Append, Create, Erase, Erased, Fork, Hollow, Op, Release, Renew, Take, Update

from .case import MINUTE, StoreCase, draft, drafts


class HollowTests(StoreCase):
    def test_a_hollowed_entry_loses_body_and_refs_and_keeps_the_rest(self) -> None:
        session = self.create(draft(refs=("source:x",)))
        (before,) = self.log(session)
        assert self.hollow(session, 1) == 1
        assert self.log(session) == [before._replace(body=None, refs=())]

    def test_hollowing_counts_the_entries_that_were_full(self) -> None:
        session = self.create(*drafts(4))
        assert self.hollow(session, 2) == 1
        assert self.hollow(session, 1, 2, 3) == 2
        assert self.hollow(session, 1, 2, 3) == 0

    def test_hollowing_leaves_the_other_entries(self) -> None:
        session = self.create(*drafts(3))
        before = self.log(session)
        self.hollow(session, 2)
        assert [self.log(session)[n] for n in (0, 2)] == [before[n] for n in (0, 2)]

    def test_hollowing_moves_neither_head_nor_version_nor_activity(self) -> None:
        session = self.create(*drafts(3))
        before = self.info(session)
        self.shift(MINUTE)
        self.hollow(session, 3)
        assert self.info(session) == before

    def test_the_next_entry_comes_after_a_hollowed_head(self) -> None:
        session = self.create(*drafts(3))
        self.hollow(session, 3)
        assert self.append(session, draft()).seqs == (4,)

    def test_a_hollowed_entry_is_not_found_by_its_refs(self) -> None:
        session = self.create(*drafts(2, refs=("source:x",)))
        self.hollow(session, 1)
        assert self.hits("source:x") == [(session, 2)]
        assert self.hits("source:x", session=session) == [(session, 2)]

    def test_a_hollowed_entry_of_a_kind_is_still_read_by_its_kind(self) -> None:
        session = self.create(draft(kind="cut"), draft())
        self.hollow(session, 1)
        assert [entry.seq for entry in self.log(session, kinds=("cut",))] == [1]

    def test_forks_see_that_an_entry_was_hollowed_by_its_owner(self) -> None:
        parent = self.create(*drafts(2, refs=("source:x",)))
        fork = self.fork(parent, 2)
        self.hollow(parent, 1)
        assert [entry.is_hollow for entry in self.log(fork)] == [True, False]
        assert self.hits("source:x", session=fork) == [(parent, 2)]

    def test_an_inherited_entry_is_not_hollowed_through_the_fork(self) -> None:
        parent = self.create(*drafts(2))
        fork = self.fork(parent, 2)
        self.append(fork, draft())
        self.refused(Hollow(self.me, fork, (3, 2)), Invalid)
        assert self.hollow(fork, 3) == 1

    def test_hollowing_beyond_the_head_or_at_0_is_refused_whole(self) -> None:
        session = self.create(*drafts(2))
        self.refused(Hollow(self.me, session, (1, 3)), Invalid)
        self.refused(Hollow(self.me, session, (1, 0)), Invalid)

    def test_an_unknown_session_has_nothing_to_hollow(self) -> None:
        self.refused(Hollow(self.me, "unknown", (1,)), NotFound)

    def test_hollow_stays_hollow_for_a_handle_opened_later(self) -> None:
        session = self.create(*drafts(2))
        self.hollow(session, 1)
        self.reopen()
        assert [entry.is_hollow for entry in self.log(session)] == [True, False]

    def test_1000_entries_are_hollowed_at_once(self) -> None:
        session = self.create(*drafts(1_000))
        assert self.hollow(session, *range(1, 1_001)) == 1_000
        assert all(entry.is_hollow for entry in self.log(session))


class EraseTests(StoreCase):
    def test_an_erase_counts_what_it_erased(self) -> None:
        session = self.create(*drafts(3))
        assert self.erase(session) == Erased(entries=3, shared=0)

    def test_a_second_erase_is_done_already(self) -> None:
        session = self.create(*drafts(3))
        self.erase(session)
        assert self.erase(session) == Erased(0, 0)

    def test_an_unknown_session_is_not_erased(self) -> None:
        self.refused(Erase(self.me, "unknown"), NotFound)

    def test_an_erase_that_expects_the_version_is_done(self) -> None:
        session = self.create(*drafts(3))
        assert self.do(Erase(self.me, session, self.info(session).version)) == Erased(3, 0)

    def test_an_erase_of_a_session_that_was_restored_meanwhile_is_refused(self) -> None:
        session = self.create(*drafts(3))
        self.archive(session)
        seen = self.info(session).version
        self.update(session, state="active")
        refusal = self.refused(Erase(self.me, session, seen), VersionMoved)
        assert (refusal.expected, refusal.actual) == (seen, seen + 1)

    def test_a_second_erase_is_done_already_whatever_it_expects(self) -> None:
        session = self.create(*drafts(3))
        self.erase(session)
        assert self.do(Erase(self.me, session, 77)) == Erased(0, 0)

    def test_every_operation_on_an_erased_session_finds_nothing(self) -> None:
        session = self.create(*drafts(2))
        self.erase(session)
        ops: list[Op] = [
            Append(self.me, session, drafts(1)),
            Append(self.me, session, drafts(1), run="run-1", fence=1),
            Update(self.me, session, {"title": "x"}),
            Take(self.me, session, "run-1", MINUTE),
            Renew(self.me, session, "run-1", 1, MINUTE),
            Release(self.me, session, "run-1", 1),
            Hollow(self.me, session, (1,)),
            Fork(Create(self.me, "f", parent=Parent(session, 1)), session, 1),
        ]
        for op in ops:
            self.refused(op, NotFound)

    def test_every_reading_of_an_erased_session_finds_nothing(self) -> None:
        session = self.create(draft(refs=("source:x",)), key="k", tags=("t",))
        self.erase(session)
        self.assert_gone(session)
        with pytest.raises(NotFound):
            self.b.by_ref(self.me, "source:x", session=session)
        assert self.hits("source:x") == []
        assert self.b.find(self.me, "k") is None
        assert self.listed() == self.listed(tag="t") == self.listed(status=("archived",)) == []

    def test_an_append_of_known_ids_to_an_erased_session_finds_nothing(self) -> None:
        entry = draft()
        session = self.create(entry)
        self.erase(session)
        self.refused(Append(self.me, session, (entry,)), NotFound)

    def test_the_id_of_an_erased_session_is_never_given_again(self) -> None:
        self.create(id="s")
        self.erase("s")
        self.refused(Create(self.me, "s"), Exists)
        self.reopen()
        self.refused(Create(self.me, "s", key="k"), Exists)

    def test_the_key_of_an_erased_session_is_free_again(self) -> None:
        self.erase(self.create(key="k"))
        session = self.create(key="k")
        found = self.b.find(self.me, "k")
        assert found is not None
        assert found.id == session

    def test_an_active_run_does_not_prevent_an_erase_and_finds_nothing(self) -> None:
        session = self.create(*drafts(1))
        lease = self.take(session, "run-1")
        self.erase(session)
        self.refused(Append(self.me, session, drafts(1), run="run-1", fence=lease.fence), NotFound)
        self.refused(Renew(self.me, session, "run-1", lease.fence, MINUTE), NotFound)

    def test_an_archived_session_may_be_erased(self) -> None:
        session = self.create(*drafts(1))
        self.archive(session)
        assert self.erase(session).entries == 1

    def test_erased_stays_erased_for_a_handle_opened_later(self) -> None:
        session = self.create(*drafts(2))
        self.erase(session)
        self.reopen()
        self.assert_gone(session)

    def test_an_erase_leaves_other_sessions_alone(self) -> None:
        kept = self.create(*drafts(2, refs=("source:x",)))
        before = self.info(kept), self.log(kept)
        self.erase(self.create(*drafts(2, refs=("source:x",))))
        assert (self.info(kept), self.log(kept)) == before
        assert self.hits("source:x") == [(kept, 1), (kept, 2)]

    def test_hollowed_entries_are_erased_too(self) -> None:
        session = self.create(*drafts(3))
        self.hollow(session, 1)
        assert self.erase(session) == Erased(3, 0)


class SharedEraseTests(StoreCase):
    def test_a_fork_keeps_what_it_shares_with_an_erased_parent(self) -> None:
        parent = self.create(*drafts(5))
        fork = self.fork(parent, 3)
        self.append(fork, draft())
        before = self.log(fork)
        assert self.erase(parent) == Erased(entries=2, shared=3)
        self.assert_gone(parent)
        assert self.log(fork) == before

    def test_the_longest_share_of_several_forks_is_kept(self) -> None:
        parent = self.create(*drafts(6))
        forks = [self.fork(parent, at) for at in (2, 4, 3)]
        before = [self.log(fork) for fork in forks]
        assert self.erase(parent) == Erased(entries=2, shared=4)
        assert [self.log(fork) for fork in forks] == before

    def test_a_fork_at_0_keeps_nothing_of_its_parent(self) -> None:
        parent = self.create(*drafts(3))
        self.fork(parent, 0)
        assert self.erase(parent) == Erased(3, 0)

    def test_a_fork_of_an_erased_parent_goes_on(self) -> None:
        parent = self.create(*drafts(3))
        fork = self.fork(parent, 2)
        self.erase(parent)
        assert self.append(fork, draft()).seqs == (3,)
        assert len(self.log(self.fork(fork, 2))) == 2

    def test_what_was_kept_for_a_fork_goes_with_the_last_fork_that_shares_it(self) -> None:
        parent = self.create(*drafts(5))
        short, long = self.fork(parent, 2), self.fork(parent, 4)
        self.append(long, draft())
        assert self.erase(parent) == Erased(entries=1, shared=4)
        assert self.erase(long) == Erased(entries=1 + 2, shared=0)
        assert len(self.log(short)) == 2
        assert self.erase(short) == Erased(entries=2, shared=0)
        assert self.seen(self.me).sessions == {}

    def test_an_erased_fork_leaves_its_parent_and_sisters(self) -> None:
        parent = self.create(*drafts(3))
        fork, sister = self.fork(parent, 2), self.fork(parent, 3)
        self.append(fork, draft())
        before = self.log(parent), self.log(sister)
        assert self.erase(fork) == Erased(entries=1, shared=0)
        assert (self.log(parent), self.log(sister)) == before

    def test_an_erased_middle_generation_keeps_what_the_youngest_shares(self) -> None:
        oldest = self.create(*drafts(2))
        middle = self.fork(oldest, 2)
        self.append(middle, *drafts(3))
        youngest = self.fork(middle, 4)
        before = self.log(youngest)
        assert self.erase(middle) == Erased(entries=1, shared=2)
        assert self.log(youngest) == before
        assert self.erase(youngest) == Erased(entries=2, shared=0)
        assert len(self.log(oldest)) == 2

    def test_a_grandchild_keeps_what_it_shares_with_an_erased_grandparent(self) -> None:
        oldest = self.create(*drafts(4))
        middle = self.fork(oldest, 3)
        youngest = self.fork(middle, 2)
        assert self.erase(oldest) == Erased(entries=1, shared=3)
        assert self.erase(middle) == Erased(entries=1, shared=0)
        assert len(self.log(youngest)) == 2
        assert self.erase(youngest) == Erased(entries=2, shared=0)

    def test_what_a_fork_keeps_of_an_erased_parent_is_found_only_through_the_fork(self) -> None:
        parent = self.create(*drafts(2, refs=("source:x",)))
        fork = self.fork(parent, 1)
        self.erase(parent)
        assert self.hits("source:x") == []
        assert [seq for _, seq in self.hits("source:x", session=fork)] == [1]

    def test_an_entry_kept_for_a_fork_is_not_hollowed_through_the_fork(self) -> None:
        parent = self.create(*drafts(2))
        fork = self.fork(parent, 2)
        self.erase(parent)
        self.refused(Hollow(self.me, fork, (1,)), Invalid)

    def test_the_fork_still_names_its_erased_parent(self) -> None:
        parent = self.create(*drafts(2))
        fork = self.fork(parent, 1)
        self.erase(parent)
        assert self.info(fork).parent == Parent(parent, 1)

    def test_a_session_that_is_linked_without_sharing_keeps_nothing(self) -> None:
        parent = self.create(*drafts(3))
        child = self.create(draft(), parent=Parent(parent, 3, "child"))
        assert self.erase(parent) == Erased(3, 0)
        assert len(self.log(child)) == 1


class NothingLeftTests(StoreCase):
    """A store that lives in files has nothing of what was erased in them, once its handles are closed."""

    def files_with(self, secret: str) -> list[Path]:
        """Files of the store that hold the text, after all handles were closed."""
        self.tear_down()
        return [path for path in self.directory.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]

    def test_an_erased_session_is_in_no_file(self) -> None:
        self.needs("disk")
        secret = secrets.token_hex(40)
        session = self.create(draft(secret), draft(refs=(f"ref:{secret}",)), title=secret, metadata={"secret": secret})
        self.append(session, *drafts(3))
        self.erase(session)
        assert self.files_with(secret) == []

    def test_a_hollowed_entry_is_in_no_file(self) -> None:
        self.needs("disk")
        secret = secrets.token_hex(40)
        session = self.create(draft(), draft(secret, refs=(f"ref:{secret}",)), draft())
        self.append(session, *drafts(3))
        self.hollow(session, 2)
        assert self.files_with(secret) == []
