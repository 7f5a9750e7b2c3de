"""Reading a log by seq and by ref."""

from __future__ import annotations

import pytest

from segue.codec import digest
from segue.errors import Corrupt, NotDone, NotFound
from segue.model import Draft
from segue.store import READ_MAX, Append, Create

from .case import MINUTE, StoreCase, draft, drafts, ids_of


class ReadTests(StoreCase):
    def seqs(self, session: str, **bounds: object) -> list[int]:
        """The seqs of what is read."""
        return [entry.seq for entry in self.log(session, **bounds)]

    def test_a_new_session_has_no_entries(self) -> None:
        assert self.log(self.create()) == []

    def test_an_unknown_session_is_not_read(self) -> None:
        with pytest.raises(NotFound):
            self.log("unknown")

    def test_reading_gives_what_comes_after_and_up_to(self) -> None:
        session = self.create(*drafts(6))
        assert self.seqs(session, after=2) == [3, 4, 5, 6]
        assert self.seqs(session, upto=2) == [1, 2]
        assert self.seqs(session, after=2, upto=4) == [3, 4]

    def test_reading_beyond_the_head_or_between_nothing_gives_nothing(self) -> None:
        session = self.create(*drafts(3))
        assert self.seqs(session, after=3) == self.seqs(session, after=99) == []
        assert self.seqs(session, after=2, upto=2) == self.seqs(session, after=2, upto=1) == []
        assert self.seqs(session, upto=0) == []
        assert self.seqs(session, upto=99) == [1, 2, 3]

    def test_reading_gives_at_most_the_limit_from_the_start(self) -> None:
        session = self.create(*drafts(5))
        assert self.seqs(session, limit=2) == [1, 2]
        assert self.seqs(session, after=1, upto=4, limit=2) == [2, 3]

    def test_reading_in_reverse_gives_the_last_first(self) -> None:
        session = self.create(*drafts(5))
        assert self.seqs(session, reverse=True) == [5, 4, 3, 2, 1]
        assert self.seqs(session, reverse=True, limit=2) == [5, 4]
        assert self.seqs(session, after=1, upto=4, reverse=True, limit=2) == [4, 3]

    def test_reading_by_kind_gives_only_those_and_counts_only_those(self) -> None:
        session = self.create(*(draft(kind=kind) for kind in ("message", "note", "cut", "note", "message", "note")))
        assert self.seqs(session, kinds=("note",)) == [2, 4, 6]
        assert self.seqs(session, kinds=("note",), limit=2) == [2, 4]
        assert self.seqs(session, kinds=("note",), reverse=True, limit=1) == [6]
        assert self.seqs(session, kinds=("cut", "message"), after=1) == [3, 5]
        assert self.seqs(session, kinds=("unheard-of",)) == []

    def test_reading_by_kind_runs_over_the_fork_point(self) -> None:
        fork = self.fork(self.create(draft(kind="note"), draft(), draft(kind="note")), 2)
        self.append(fork, draft(kind="note"))
        assert self.seqs(fork, kinds=("note",)) == [1, 3]

    def test_a_log_is_read_whole_in_pieces(self) -> None:
        session, batch = self.create(), drafts(25)
        self.append(session, *batch)
        found: list[str] = []
        while piece := self.log(session, after=len(found), limit=7):
            found += ids_of(piece)
        assert found == ids_of(batch)

    def test_reading_gives_no_more_than_its_largest_number(self) -> None:
        session = self.create(*drafts(3))
        assert len(self.log(session, limit=READ_MAX * 10)) == 3

    def test_an_archived_session_is_read(self) -> None:
        session = self.create(*drafts(2))
        self.archive(session)
        assert self.seqs(session) == [1, 2]

    def test_reading_changes_nothing(self) -> None:
        session = self.create(*drafts(2))
        self.shift(MINUTE)
        before = self.info(session)
        self.log(session)
        self.a.by_ref(self.me, "x", session=session)
        assert self.info(session) == before


class DamageTests(StoreCase):
    """An entry whose digest is not that of its body stands for damage on the disk."""

    def damaged(self) -> str:
        """A session with three entries of which the second is damaged."""
        self.start_afresh()
        session = self.create(draft(refs=("x",)))
        wrong = Draft("message", "raw", "user", b"body", digest(b"another body"), "wrong", ("x",))
        (result,) = self.a.commit([Append(self.me, session, (wrong,))])
        if isinstance(result, NotDone):
            pytest.skip("this store checks digests before it writes")
        self.append(session, draft(refs=("x",)))
        return session

    def test_damage_is_reported_by_reading_and_never_skipped(self) -> None:
        session = self.damaged()
        with pytest.raises(Corrupt) as caught:
            self.log(session)
        assert (caught.value.session, caught.value.seq) == (session, 2)

    def test_damage_is_reported_by_ref(self) -> None:
        session = self.damaged()
        with pytest.raises(Corrupt):
            self.hits("x")
        with pytest.raises(Corrupt):
            self.hits("x", session=session)

    def test_damage_is_reported_through_a_fork(self) -> None:
        fork = self.fork(self.damaged(), 3)
        with pytest.raises(Corrupt):
            self.log(fork)

    def test_the_rest_of_a_damaged_log_stays_readable(self) -> None:
        session = self.damaged()
        assert len(self.log(session, upto=1)) == len(self.log(session, after=2)) == 1

    def test_a_deep_check_finds_the_damage_and_where_it_is(self) -> None:
        session = self.damaged()
        found = [
            (report.scope, report.session, report.seq) for report in self.b.check(deep=True) if report.level == "damage"
        ]
        assert found == [(self.me, session, 2)]


class RefTests(StoreCase):
    def test_an_entry_is_found_by_each_of_its_refs(self) -> None:
        session = self.create(draft(), draft(refs=("source:x", "call:1")), draft(refs=("call:2",)))
        assert self.hits("source:x", session=session) == self.hits("call:1", session=session) == [(session, 2)]

    def test_a_hit_holds_the_whole_entry(self) -> None:
        session = self.create(draft(refs=("b", "a")))
        (hit,) = self.b.by_ref(self.me, "a")
        assert hit.entry == self.log(session)[0]

    def test_a_ref_that_nobody_carries_finds_nothing(self) -> None:
        session = self.create(draft(refs=("source:x",)))
        for ref in ("source", "source:", "source:xy", "Source:x", "source:X", "%", "source:%", "source_x", "*"):
            assert self.hits(ref, session=session) == self.hits(ref) == []

    def test_a_ref_twice_on_an_entry_finds_it_once(self) -> None:
        session = self.create(draft(refs=("x", "x")))
        assert self.hits("x") == self.hits("x", session=session) == [(session, 1)]

    def test_hits_of_a_session_come_by_seq_within_the_bounds(self) -> None:
        session = self.create(*(draft(refs=("x",) if n % 2 else ("y",)) for n in range(1, 10)))
        assert self.hits("x", session=session) == [(session, n) for n in (1, 3, 5, 7, 9)]
        assert self.hits("x", session=session, after=1, upto=7) == [(session, n) for n in (3, 5, 7)]
        assert self.hits("x", session=session, reverse=True, limit=2) == [(session, n) for n in (9, 7)]
        assert self.hits("x", session=session, after=3, limit=1) == [(session, 5)]

    def test_an_unknown_session_has_no_refs(self) -> None:
        with pytest.raises(NotFound):
            self.hits("x", session="unknown")

    def test_inherited_hits_name_the_session_that_owns_them(self) -> None:
        parent = self.create(*drafts(3, refs=("x",)))
        fork = self.fork(parent, 2)
        self.append(fork, draft(refs=("x",)))
        assert self.hits("x", session=fork) == [(parent, 1), (parent, 2), (fork, 3)]
        assert self.hits("x", session=fork, reverse=True, limit=2) == [(fork, 3), (parent, 2)]
        assert self.hits("x", session=parent) == [(parent, 1), (parent, 2), (parent, 3)]

    def test_hits_of_a_scope_come_by_time(self) -> None:
        one, two = self.create(), self.create()
        for session in (two, one, two):
            self.shift(MINUTE)
            self.append(session, draft(refs=("x",)))
        assert self.hits("x") == [(two, 1), (one, 1), (two, 2)]
        assert self.hits("x", reverse=True) == [(two, 2), (one, 1), (two, 1)]
        assert self.hits("x", limit=2) == [(two, 1), (one, 1)]
        assert self.hits("x", reverse=True, limit=1) == [(two, 2)]

    def test_hits_of_the_same_time_come_by_session_and_seq(self) -> None:
        self.a.commit([Create(self.me, id, entries=drafts(2, refs=("x",))) for id in ("s-b", "s-a", "s-c")])
        hits = self.b.by_ref(self.me, "x")
        assert hits == sorted(hits, key=lambda hit: (hit.entry.created_us, hit.session, hit.entry.seq))
        assert len(hits) == 6

    def test_hits_of_a_scope_since_a_time(self) -> None:
        session = self.create(draft(refs=("x",)))
        self.shift(MINUTE)
        since = self.a.now_us()
        self.append(session, draft(refs=("x",)))
        assert self.hits("x", since_us=since) == [(session, 2)]
        assert self.hits("x", since_us=self.log(session)[0].created_us) == [(session, 1), (session, 2)]
        assert self.hits("x", since_us=since + MINUTE) == []

    def test_an_entry_that_forks_share_is_found_once_in_the_scope(self) -> None:
        parent = self.create(draft(refs=("x",)))
        for _ in range(3):
            self.fork(parent, 1)
        assert self.hits("x") == [(parent, 1)]

    def test_hits_of_a_scope_are_of_that_scope_alone(self) -> None:
        other = self.me._replace(user="somebody else")
        self.create(draft(refs=("x",)), scope=other)
        assert self.hits("x") == []
        assert len(self.b.by_ref(other, "x")) == 1

    def test_hits_of_an_archived_session_are_found(self) -> None:
        session = self.create(draft(refs=("x",)))
        self.archive(session)
        assert self.hits("x") == [(session, 1)]
