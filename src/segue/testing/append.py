"""Appending: all or nothing, numbered without gaps, checked in the order that the contract gives."""

from __future__ import annotations

from segue.codec import BODY_MAX_BYTES, digest
from segue.errors import Archived, Busy, HeadMoved, IdConflict, LeaseLost, NotDone, NotFound
from segue.model import Usage
from segue.store import BATCH_MAX, Append, Appended, Create

from .case import MINUTE, StoreCase, difference, draft, drafts, ids_of


class AppendTests(StoreCase):
    def test_an_append_gives_the_new_head_the_seqs_and_how_many_were_new(self) -> None:
        session = self.create(draft())
        assert self.append(session, *drafts(3)) == Appended(head=4, seqs=(2, 3, 4), new=3)

    def test_entries_are_numbered_from_1_without_gaps(self) -> None:
        session = self.create()
        for size in (1, 3, 1, 2):
            self.append(session, *drafts(size))
        assert [entry.seq for entry in self.log(session)] == [1, 2, 3, 4, 5, 6, 7]

    def test_a_refused_append_uses_up_no_seq(self) -> None:
        session = self.create(draft(id="known"))
        self.refused(Append(self.me, session, (draft(), draft("other", id="known"))), IdConflict)
        assert self.append(session, draft()).seqs == (2,)

    def test_an_entry_comes_back_with_all_that_was_appended(self) -> None:
        session = self.create()
        lease = self.take(session, "run-1")
        sent = draft(
            {"b": 1, "a": [None]},
            kind="note",
            format="segue",
            origin="tool",
            refs=("source:x", "call:1"),
            usage=Usage(10, 20, 3, 4, 1, 5),
            occurred_us=1_234_567_890_123_456,
        )
        self.append(session, sent, run="run-1", fence=lease.fence)
        (entry,) = self.log(session)
        assert entry == (1, sent.id, *sent[:5], ("source:x", "call:1"), "run-1", entry.created_us, *sent[7:])

    def test_an_entry_may_have_happened_before_1970(self) -> None:
        session = self.create(draft(occurred_us=-1_000_001))
        assert self.log(session)[0].occurred_us == -1_000_001

    def test_the_refs_of_an_entry_keep_their_order(self) -> None:
        session = self.create(draft(refs=("z", "a", "m")))
        assert self.log(session)[0].refs == ("z", "a", "m")

    def test_a_kind_that_nobody_knows_is_kept(self) -> None:
        session = self.create(draft(kind="claude.line", format="claude.jsonl", origin="import"))
        assert self.log(session)[0].kind == "claude.line"

    def test_a_batch_of_the_largest_size_is_stored_in_order(self) -> None:
        session = self.create()
        batch = drafts(BATCH_MAX)
        self.append(session, *batch)
        assert self.ids(session) == ids_of(batch)

    def test_a_body_of_the_largest_size_comes_back(self) -> None:
        body = bytes(range(256)) * (BODY_MAX_BYTES // 256)
        session = self.create(draft(body=body, format="raw"))
        assert difference(self.log(session)[0].body, body) == ""

    def test_an_acknowledged_append_is_seen_by_the_other_handle_at_once(self) -> None:
        session = self.create()
        for number in range(1, 6):
            self.append(session, draft(), by=self.a if number % 2 else self.b)
            assert self.a.get(self.me, session).head == self.b.get(self.me, session).head == number

    def test_what_was_acknowledged_is_there_for_a_handle_opened_later(self) -> None:
        session = self.create(draft(id="first"))
        third = self.open()
        assert [entry.id for entry in third.read(self.me, session)] == ["first"]

    def test_a_batch_with_a_bad_id_in_its_middle_leaves_no_trace(self) -> None:
        session = self.create(draft(id="known"))
        self.refused(Append(self.me, session, (draft(), draft("other", id="known"), draft())), IdConflict)

    def test_an_append_to_an_unknown_session_is_refused(self) -> None:
        self.refused(Append(self.me, "unknown", drafts(1)), NotFound)


class CommitTests(StoreCase):
    def test_operations_of_one_commit_see_each_other_in_order(self) -> None:
        results = self.a.commit(
            [
                Append(self.me, "s", drafts(1)),
                Create(self.me, "s", entries=drafts(1)),
                Append(self.me, "s", drafts(2), expect=1),
                Append(self.me, "s", drafts(1), expect=1),
            ]
        )
        assert [type(result).__name__ for result in results] == ["NotFound", "SessionInfo", "Appended", "HeadMoved"]
        assert self.info("s").head == 3

    def test_a_refused_operation_touches_no_other_of_its_commit(self) -> None:
        one, two = self.create(), self.create(draft(id="known"))
        first, second, third = drafts(3)
        results = self.a.commit(
            [
                Append(self.me, one, (first,)),
                Append(self.me, two, (draft(), draft("other", id="known"))),
                Append(self.me, two, (second,)),
                Append(self.me, one, (third,)),
            ]
        )
        assert [isinstance(result, NotDone) for result in results] == [False, True, False, False]
        assert (self.ids(one), self.ids(two)) == ([first.id, third.id], ["known", second.id])

    def test_the_same_ids_twice_in_one_commit_are_stored_once(self) -> None:
        session = self.create()
        append = Append(self.me, session, drafts(2))
        assert self.a.commit([append, append]) == [Appended(2, (1, 2), 2), Appended(2, (1, 2), 0)]

    def test_one_commit_takes_1000_operations(self) -> None:
        session = self.create()
        results = self.a.commit([Append(self.me, session, drafts(1)) for _ in range(1_000)])
        assert [result.head for result in results if isinstance(result, Appended)] == list(range(1, 1_001))

    def test_a_commit_of_refusals_only_writes_nothing(self) -> None:
        before = self.seen(self.me)
        results = self.a.commit([Append(self.me, f"unknown-{n}", drafts(1)) for n in range(3)])
        assert [type(result) for result in results] == [NotFound] * 3
        assert self.seen(self.me) == before


class HeadTests(StoreCase):
    def test_an_append_that_expects_the_head_is_stored(self) -> None:
        session = self.create(*drafts(2))
        assert self.append(session, draft(), expect=2).head == 3

    def test_an_append_may_expect_an_empty_session(self) -> None:
        session = self.create()
        self.append(session, draft(), expect=0)
        self.refused(Append(self.me, session, drafts(1), expect=0), HeadMoved)

    def test_an_append_that_expects_another_head_is_refused_with_both_heads(self) -> None:
        session = self.create(*drafts(3))
        refusal = self.refused(Append(self.me, session, drafts(1), expect=2), HeadMoved)
        assert (refusal.expected, refusal.actual) == (2, 3)

    def test_a_head_that_was_never_reached_is_refused(self) -> None:
        session = self.create(*drafts(3))
        self.refused(Append(self.me, session, drafts(1), expect=4), HeadMoved)

    def test_the_head_expected_of_a_fork_counts_what_it_inherits(self) -> None:
        fork = self.fork(self.create(*drafts(3)), 2)
        assert self.append(fork, draft(), expect=2).seqs == (3,)


class CheckOrderTests(StoreCase):
    def test_ids_are_checked_before_the_archive_the_fence_and_the_head(self) -> None:
        session = self.create(draft(id="known"))
        self.archive(session)
        op = Append(self.me, session, (draft("other", id="known"),), run="nobody", fence=99, expect=77)
        self.refused(op, IdConflict)

    def test_the_archive_is_checked_before_the_fence(self) -> None:
        session = self.create()
        self.archive(session)
        self.refused(Append(self.me, session, drafts(1), run="nobody", fence=99, expect=77), Archived)

    def test_the_fence_is_checked_before_the_head(self) -> None:
        session = self.create()
        self.refused(Append(self.me, session, drafts(1), run="nobody", fence=99, expect=77), LeaseLost)

    def test_an_active_run_is_checked_before_the_head(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Append(self.me, session, drafts(1), expect=77), Busy)

    def test_the_session_is_checked_before_everything(self) -> None:
        self.refused(Append(self.me, "unknown", drafts(1), run="nobody", fence=99, expect=77), NotFound)


class TotalsTests(StoreCase):
    def test_an_append_adds_its_usage_to_the_sessions_totals(self) -> None:
        session = self.create(draft(usage=Usage(1, 2, 3, 4, 5, 6)))
        self.append(session, draft(usage=Usage(input=10)), draft(), draft(usage=Usage(output=7)))
        assert self.info(session).usage == Usage(11, 9, 3, 4, 5, 6)

    def test_totals_hold_more_than_32_bits(self) -> None:
        session = self.create(*drafts(3, usage=Usage(input=2_000_000_000)))
        assert self.info(session).usage.input == 6_000_000_000

    def test_a_retry_adds_no_usage(self) -> None:
        session, entry = self.create(), draft(usage=Usage(input=5))
        self.append(session, entry)
        self.append(session, entry, draft(usage=Usage(input=1)))
        assert self.info(session).usage == Usage(input=6)

    def test_an_append_is_activity_by_the_stores_clock(self) -> None:
        session = self.create()
        self.shift(MINUTE)
        before = self.a.now_us()
        self.append(session, draft())
        (entry,) = self.log(session)
        assert before <= entry.created_us <= self.b.now_us()
        assert self.info(session).active_at == entry.created_at

    def test_a_retry_is_no_activity(self) -> None:
        entry = draft()
        session = self.create(entry)
        before = self.info(session)
        self.shift(MINUTE)
        self.append(session, entry)
        assert self.info(session) == before

    def test_an_append_leaves_the_version_alone(self) -> None:
        session = self.create()
        before = self.info(session).version
        self.append(session, draft())
        assert self.info(session).version == before

    def test_the_digest_of_an_entry_is_the_one_that_was_appended(self) -> None:
        session = self.create(draft("x", id="x"))
        assert self.log(session)[0].digest == digest(b'"x"')


class StateTests(StoreCase):
    def test_an_archived_session_takes_no_append(self) -> None:
        session = self.create()
        self.archive(session)
        self.refused(Append(self.me, session, drafts(1)), Archived)

    def test_a_restored_session_takes_appends_again(self) -> None:
        session = self.create()
        self.archive(session)
        self.update(session, state="active")
        assert self.append(session, draft()).head == 1

    def test_a_completed_session_becomes_active_by_a_message(self) -> None:
        session = self.create()
        self.update(session, state="completed")
        self.append(session, draft(kind="note"), draft())
        assert self.info(session).state == "active"

    def test_a_completed_session_stays_so_by_a_fact(self) -> None:
        session = self.create()
        self.update(session, state="completed")
        self.append(session, draft(kind="effect"))
        assert self.info(session).state == "completed"

    def test_a_completed_session_stays_so_by_a_retry(self) -> None:
        entry = draft()
        session = self.create(entry)
        self.update(session, state="completed")
        self.append(session, entry)
        assert self.info(session).state == "completed"

    def test_a_message_without_a_run_is_refused_while_a_run_is_active(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        assert self.refused(Append(self.me, session, drafts(1)), Busy).run == "run-1"

    def test_a_fact_without_a_run_is_stored_while_a_run_is_active(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        assert self.append(session, draft(kind="effect"), draft(kind="observation")).new == 2

    def test_one_message_among_facts_is_refused_while_a_run_is_active(self) -> None:
        session = self.create()
        self.take(session, "run-1")
        self.refused(Append(self.me, session, (draft(kind="effect"), draft())), Busy)

    def test_a_message_that_is_known_already_is_no_message_while_a_run_is_active(self) -> None:
        message = draft()
        session = self.create(message)
        self.take(session, "run-1")
        assert self.append(session, message, draft(kind="effect")).new == 1

    def test_a_message_without_a_run_is_stored_when_the_run_has_expired(self) -> None:
        session = self.create()
        self.take(session, "run-1", ttl_us=MINUTE)
        self.shift(2 * MINUTE)
        assert self.append(session, draft()).new == 1
