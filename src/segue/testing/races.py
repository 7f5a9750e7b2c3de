"""Races: many handles at once, and for every compare-and-set exactly one that succeeds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from segue.errors import Exists, HeadMoved, NotDone, NotFound
from segue.model import Lease, Parent, SessionInfo
from segue.store import Append, Appended, Create, Erase, Erased, Fork, Op, Queued, Release, Result, Store, Take, Update

from .case import HOUR, StoreCase, draft, drafts, ids_of
from .handles import PATIENCE_SECONDS

T = TypeVar("T")


class RaceCase(StoreCase):
    def race(self, acts: Sequence[Callable[[Store], T]]) -> list[T]:
        """Do all at once, each in its own thread with its own handle; what each gave, in the order given."""
        start = threading.Barrier(len(acts), timeout=PATIENCE_SECONDS)
        stores = [self.open() for _ in acts]

        def run(act: Callable[[Store], T], store: Store) -> T:
            start.wait()
            return act(store)

        with ThreadPoolExecutor(len(acts)) as threads:
            futures = [threads.submit(run, act, store) for act, store in zip(acts, stores, strict=True)]
            return [future.result(PATIENCE_SECONDS) for future in futures]

    def race_ops(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """Commit all operations at once."""
        return self.race([lambda store, op=op: store.commit([op])[0] for op in ops])  # type: ignore[misc]


class RaceTests(RaceCase):
    def test_one_of_many_creates_by_the_same_key_succeeds_and_the_others_learn_which(self) -> None:
        results = self.race_ops([Create(self.me, f"s{n}", key="k") for n in range(6)])
        winners = [result.id for result in results if isinstance(result, SessionInfo)]
        losers = [result.session for result in results if isinstance(result, Exists)]
        assert len(winners) == 1
        assert losers == winners * 5
        assert self.listed() == winners

    def test_the_same_create_by_many_makes_one_session(self) -> None:
        results = self.race_ops([Create(self.me, "s", key="k", entries=(draft("x", id="x"),))] * 6)
        assert {result.id for result in results if isinstance(result, SessionInfo)} == {"s"}
        assert len(results) == 6
        assert self.ids("s") == ["x"]

    def test_one_of_many_appends_that_expect_the_same_head_succeeds(self) -> None:
        session = self.create(draft())
        results = self.race_ops([Append(self.me, session, drafts(2), expect=1) for _ in range(6)])
        assert sorted(type(result).__name__ for result in results) == ["Appended", *["HeadMoved"] * 5]
        assert {result.actual for result in results if isinstance(result, HeadMoved)} == {3}
        assert self.info(session).head == 3

    def test_the_same_ids_from_16_senders_are_stored_once(self) -> None:
        session, batch = self.create(draft()), drafts(3)
        results = self.race_ops([Append(self.me, session, batch)] * 16)
        assert {result.seqs for result in results if isinstance(result, Appended)} == {(2, 3, 4)}
        assert sorted(result.new for result in results if isinstance(result, Appended)) == [*[0] * 15, 3]
        assert len(self.log(session)) == 4

    def test_one_of_many_runs_takes_a_free_session(self) -> None:
        session = self.create()
        results = self.race_ops([Take(self.me, session, f"run-{n}", HOUR) for n in range(6)])
        (lease,) = [result for result in results if isinstance(result, Lease)]
        assert sorted(type(result).__name__ for result in results) == [*["Busy"] * 5, "Lease"]
        assert self.info(session).lease == lease

    def test_one_of_many_runs_takes_an_expired_session(self) -> None:
        session = self.create()
        self.take(session, "run-0", ttl_us=HOUR)
        self.shift(2 * HOUR)
        results = self.race_ops([Take(self.me, session, f"run-{n}", HOUR) for n in range(1, 7)])
        assert [result.fence for result in results if isinstance(result, Lease)] == [2]

    def test_one_of_many_that_interrupt_the_same_run_succeeds(self) -> None:
        session = self.create()
        self.take(session, "run-0", ttl_us=HOUR)
        ops = [Take(self.me, session, f"run-{n}", HOUR, "interrupt", over="run-0") for n in range(1, 7)]
        assert sorted(type(result).__name__ for result in self.race_ops(ops)) == [*["Busy"] * 5, "Lease"]

    def test_many_that_queue_get_different_places(self) -> None:
        session = self.create()
        self.take(session, "run-0", ttl_us=HOUR)
        ops = [Take(self.me, session, f"run-{n}", HOUR, "enqueue", ticket_us=HOUR) for n in range(1, 7)]
        places = [result.before for result in self.race_ops(ops) if isinstance(result, Queued)]
        assert sorted(places) == list(range(6))

    def test_one_of_many_updates_that_expect_the_same_version_succeeds(self) -> None:
        session = self.create()
        version = self.info(session).version
        ops = [Update(self.me, session, {"title": f"title {n}"}, version) for n in range(6)]
        results = self.race_ops(ops)
        (winner,) = [result for result in results if isinstance(result, SessionInfo)]
        assert sorted(type(result).__name__ for result in results) == ["SessionInfo", *["VersionMoved"] * 5]
        assert self.info(session).title == winner.title

    def test_one_of_many_updates_gets_a_key(self) -> None:
        sessions = [self.create() for _ in range(6)]
        results = self.race_ops([Update(self.me, session, {"key": "k"}) for session in sessions])
        assert sorted(type(result).__name__ for result in results) == [*["Exists"] * 5, "SessionInfo"]

    def test_a_create_and_an_update_do_not_both_get_a_key(self) -> None:
        session = self.create()
        results = self.race_ops([Update(self.me, session, {"key": "k"}), Create(self.me, "s", key="k")] * 2)
        winners = {result.id for result in results if isinstance(result, SessionInfo)}
        assert len(winners) == 1
        found = self.b.find(self.me, "k")
        assert found is not None
        assert {found.id} == winners

    def test_a_session_is_either_archived_or_taken(self) -> None:
        for _ in range(5):
            session = self.create()
            archived, taken = self.race_ops(
                [Update(self.me, session, {"state": "archived"}), Take(self.me, session, "run-1", HOUR)]
            )
            assert isinstance(archived, SessionInfo) != isinstance(taken, Lease)

    def test_one_of_many_erases_counts_the_entries(self) -> None:
        session = self.create(*drafts(3))
        results = self.race_ops([Erase(self.me, session)] * 4)
        assert sorted(result.entries for result in results if isinstance(result, Erased)) == [0, 0, 0, 3]


class ConcurrencyTests(RaceCase):
    def test_appends_of_many_to_one_session_are_all_kept_whole_and_without_gaps(self) -> None:
        session = self.create()
        sent = [[drafts(3) for _ in range(10)] for _ in range(4)]

        def send(batches: list[tuple[object, ...]]) -> Callable[[Store], list[Appended]]:
            return lambda store: [self.append(session, *batch, by=store) for batch in batches]  # type: ignore[arg-type]

        answers = self.race([send(batches) for batches in sent])  # type: ignore[arg-type]
        stored = self.log(session)
        assert [entry.seq for entry in stored] == list(range(1, 121))
        for batches, appended in zip(sent, answers, strict=True):
            for batch, answer in zip(batches, appended, strict=True):
                first = answer.seqs[0]
                assert answer.seqs == (first, first + 1, first + 2)
                assert ids_of(stored[first - 1 : first + 2]) == ids_of(batch)

    def test_appends_of_one_sender_keep_their_order(self) -> None:
        session = self.create()
        sent = [drafts(20) for _ in range(3)]
        self.race([lambda store, own=own: [self.append(session, each, by=store) for each in own] for own in sent])  # type: ignore[misc]
        stored = self.ids(session)
        for own in sent:
            mine = ids_of(own)
            assert [id for id in stored if id in set(mine)] == mine

    def test_commits_of_many_operations_by_many_lose_nothing(self) -> None:
        sessions = [self.create() for _ in range(4)]
        batches = [[Append(self.me, session, drafts(1)) for session in sessions * 5] for _ in range(4)]
        results = self.race([lambda store, ops=ops: store.commit(ops) for ops in batches])  # type: ignore[misc]
        assert all(isinstance(result, Appended) for each in results for result in each)
        assert [self.info(session).head for session in sessions] == [20] * 4

    def test_a_reader_never_sees_half_a_batch_or_a_gap(self) -> None:
        session = self.create()
        finished = threading.Event()

        def write(store: Store) -> list[int]:
            try:
                return [self.append(session, *drafts(7), by=store).head for _ in range(25)]
            finally:
                finished.set()

        def watch(store: Store) -> list[int]:
            lengths = []
            while not finished.is_set():
                entries = store.read(self.me, session)
                assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
                lengths.append(len(entries))
            return lengths

        _, *seen = self.race([write, watch, watch])
        for lengths in seen:
            assert lengths == sorted(lengths)
            assert all(length % 7 == 0 for length in lengths)

    def test_what_a_writer_was_told_is_seen_by_every_reader_afterwards(self) -> None:
        session = self.create()

        def act(store: Store) -> bool:
            heads = [
                (self.append(session, draft(), by=store).head, self.b.get(self.me, session).head) for _ in range(15)
            ]
            return all(told <= seen for told, seen in heads)

        assert self.race([act, act, act]) == [True] * 3

    def test_a_fork_made_during_appends_shares_exactly_what_it_says(self) -> None:
        parent = self.create(*drafts(2))

        def grow(store: Store) -> list[str]:
            return [f"{self.append(parent, draft(), by=store).head}" for _ in range(30)]

        def split(store: Store) -> list[str]:
            made = []
            for number in range(10):
                head = store.get(self.me, parent).head
                store.commit([Fork(Create(self.me, f"f{number}"), parent, head)])
                made.append(f"f{number}")
            return made

        _, forks = self.race([grow, split])
        whole = self.ids(parent)
        for fork in forks:
            base = self.info(fork).base
            assert self.ids(fork) == whole[:base]

    def test_a_fork_of_a_parent_that_is_erased_meanwhile_keeps_what_it_was_promised(self) -> None:
        for number in range(5):
            parent = self.create(*drafts(3))
            before = self.ids(parent)
            fork = Fork(Create(self.me, f"f{number}", parent=Parent(parent, 2)), parent, 2)
            made, erased = self.race_ops([fork, Erase(self.me, parent)])
            assert isinstance(erased, Erased)
            assert erased.shared == (2 if isinstance(made, SessionInfo) else 0)
            if isinstance(made, SessionInfo):
                assert self.ids(made.id) == before[:2]
            else:
                assert isinstance(made, NotFound)

    def test_as_many_threads_as_it_has_lanes_commit_through_one_handle(self) -> None:
        lanes = min(self.a.lanes, 8)
        sessions = [self.create() for _ in range(lanes)]
        ops = [[Append(self.me, session, drafts(1)) for session in sessions] for _ in range(lanes * 5)]
        with ThreadPoolExecutor(lanes) as threads:
            answers = list(threads.map(self.a.commit, ops, timeout=PATIENCE_SECONDS))
        assert all(isinstance(result, Appended) for each in answers for result in each)
        assert [self.info(session).head for session in sessions] == [lanes * 5] * lanes

    def test_nothing_is_appended_to_a_session_that_is_erased_meanwhile(self) -> None:
        sessions = [self.create(draft()) for _ in range(8)]

        def append(store: Store) -> list[Result | NotDone]:
            return [store.commit([Append(self.me, session, drafts(1))])[0] for session in sessions * 2]

        def erase(store: Store) -> list[Result | NotDone]:
            return [store.commit([Erase(self.me, session)])[0] for session in sessions]

        appended, _ = self.race([append, erase])
        assert {type(result) for result in appended} <= {Appended, NotFound}
        for session in sessions:
            self.assert_gone(session)
        assert self.seen(self.me).sessions == {}

    def test_only_the_run_that_holds_the_lease_ever_appends(self) -> None:
        session = self.create()

        def compete(name: str) -> Callable[[Store], list[tuple[int, str]]]:
            def act(store: Store) -> list[tuple[int, str]]:
                done: list[tuple[int, str]] = []
                for number in range(12):
                    run = f"{name}-{number}"
                    (lease,) = store.commit([Take(self.me, session, run, HOUR)])
                    if isinstance(lease, Lease):
                        own = draft()
                        store.commit([Append(self.me, session, (own,), run=run, fence=lease.fence)])
                        store.commit([Release(self.me, session, run, lease.fence)])
                        done.append((lease.fence, own.id))
                return done

            return act

        done = sorted(pair for own in self.race([compete(name) for name in "abc"]) for pair in own)
        assert [fence for fence, _ in done] == list(range(1, len(done) + 1))
        assert self.ids(session) == [id for _, id in done]

    def test_one_handle_serves_readers_while_it_writes(self) -> None:
        session = self.create()
        with ThreadPoolExecutor(4) as threads:
            readers = [
                threads.submit(lambda: [len(self.a.read(self.me, session)) for _ in range(15)]) for _ in range(3)
            ]
            for _ in range(15):
                self.append(session, draft())
            for reader in readers:
                lengths = reader.result(PATIENCE_SECONDS)
                assert lengths == sorted(lengths)
