"""The MongoDB store when something is in its way, on the stand-in: cuts, conflicts, elections, races, forks."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from fakes.mongodb import Fault, Server, replica_set
from segue.errors import (
    Closed,
    Corrupt,
    DiskFull,
    HeadMoved,
    Invalid,
    Locked,
    NotFound,
    OutcomeUnknown,
    SegueError,
    Unavailable,
)
from segue.model import Lease, ScopeKey, SessionInfo
from segue.store import Append, Appended, Create, Erase, Erased, Fork, Hollow, Take, Update
from segue.stores.mongodb import MongoStore
from segue.testing.case import draft, drafts
from stores import FULL

ME = ScopeKey("acme", "lin")
TRANSIENT, UNKNOWN = "TransientTransactionError", "UnknownTransactionCommitResult"
TURNS = 100 if FULL else 4
BRIEFLY = timedelta(milliseconds=100)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for a lost server at most every half second; here it need not wait so long."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    with replica_set() as server:
        yield server
        assert server.unheard == []


@pytest.fixture
def store(server: Server) -> Iterator[MongoStore]:
    """A store with a session "s"."""
    store = MongoStore(server.url, connect_timeout=timedelta(seconds=20), lock_timeout=timedelta(seconds=20))
    store.commit([Create(ME, "s")])
    yield store
    store.close()


@pytest.fixture
def hasty(server: Server, store: MongoStore) -> Iterator[MongoStore]:
    """A store on the same data that gives up soon."""
    hasty = MongoStore(server.url, connect_timeout=timedelta(milliseconds=700), lock_timeout=BRIEFLY)
    yield hasty
    hasty.close()


def ids(store: MongoStore, session: str = "s") -> list[str]:
    return [entry.id for entry in store.read(ME, session)]


def append(*ids: str, session: str = "s", **fields) -> Append:
    return Append(ME, session, tuple(draft(id=id) for id in ids), **fields)


# Cuts.


@pytest.mark.parametrize(
    ("command", "cut"), [("aggregate", "before"), ("find", "before"), ("insert", "after"), ("update", "after")]
)
def test_a_cut_before_the_commit_leaves_nothing_and_the_whole_is_done_again(
    server: Server, store: MongoStore, command: str, cut: str
) -> None:
    store.commit([append("first")])
    server.faults = [Fault(command, cut=cut)]
    assert store.commit([append("a"), append("b")]) == [Appended(2, (2,), 1), Appended(3, (3,), 1)]
    assert server.faults == []
    assert ids(store) == ["first", "a", "b"]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_that_is_cut_is_asked_again_and_done_once(server: Server, store: MongoStore, cut: str) -> None:
    server.faults = [Fault("commitTransaction", cut=cut)]
    (info,) = store.commit([Update(ME, "s", {"title": "new"})])
    assert isinstance(info, SessionInfo)
    assert (info.version, store.get(ME, "s").version) == (2, 2)
    assert server.commands[-3:].count("commitTransaction") == (2 if cut == "after" else 1)


def test_a_commit_that_is_never_answered_is_unknown_and_known_again_by_its_ids(
    server: Server, store: MongoStore, hasty: MongoStore
) -> None:
    server.faults = [Fault("commitTransaction", times=1_000, cut="after")]
    with pytest.raises(OutcomeUnknown, match="call again with the same ids"):
        hasty.commit([append("a")])
    server.faults = []
    assert hasty.commit([append("a")]) == [Appended(1, (1,), 0)]
    assert ids(store) == ["a"]


def test_a_server_that_goes_away_at_the_commit_leaves_it_unknown(server: Server, hasty: MongoStore) -> None:
    server.faults = [Fault("commitTransaction", cut="before", run=server.close)]
    with pytest.raises(OutcomeUnknown, match="may or may not have been stored"):
        hasty.commit([append("a")])
    with pytest.raises(Unavailable, match="is the server up"):
        hasty.commit([append("b")])
    with pytest.raises(Unavailable, match="is the server up"):
        hasty.get(ME, "s")


def test_a_reading_that_is_cut_is_asked_again(server: Server, store: MongoStore) -> None:
    server.faults = [Fault("aggregate", cut="before")]
    assert store.get(ME, "s").id == "s"


@pytest.mark.parametrize("code", [239, 246])
def test_a_reading_whose_snapshot_is_gone_begins_again(server: Server, store: MongoStore, code: int) -> None:
    store.commit([append("a")])
    server.faults = [Fault("find", code=code)]
    assert ids(store) == ["a"]


# What the server says of commits.


def test_an_unknown_result_of_a_commit_is_asked_again_until_it_is_known(server: Server, store: MongoStore) -> None:
    server.faults = [Fault("commitTransaction", times=5, code=64, labels=(UNKNOWN,), done=True)]
    assert store.commit([append("a"), append("b")]) == [Appended(1, (1,), 1), Appended(2, (2,), 1)]
    assert ids(store) == ["a", "b"]


def test_a_majority_that_stays_away_leaves_a_commit_unknown(server: Server, hasty: MongoStore) -> None:
    server.faults = [Fault("commitTransaction", times=1_000, code=64, labels=(UNKNOWN,), done=True)]
    with pytest.raises(OutcomeUnknown, match="majority of the replica set"):
        hasty.commit([Update(ME, "s", {"title": "new"})])
    server.faults = []
    assert hasty.get(ME, "s").title == "new"


def test_a_commit_that_the_server_knows_nothing_of_was_not_done_and_the_whole_is_done_again(
    server: Server, store: MongoStore
) -> None:
    server.faults = [Fault("commitTransaction", run=server.end_open_transactions)]
    assert store.commit([append("a"), append("b")]) == [Appended(1, (1,), 1), Appended(2, (2,), 1)]
    assert ids(store) == ["a", "b"]


def test_an_election_in_the_middle_is_waited_for(server: Server, store: MongoStore) -> None:
    server.faults = [Fault("insert", code=10107, labels=(TRANSIENT,))]
    server.elections = 1
    assert store.commit([append("a")]) == [Appended(1, (1,), 1)]
    assert ids(store) == ["a"]


# Conflicts.


def test_a_conflict_makes_the_whole_group_new_and_each_of_it_is_done_once(server: Server, store: MongoStore) -> None:
    store.commit([Create(ME, f"s{n}") for n in range(3)])
    server.faults = [Fault("update", skip=2, code=112, labels=(TRANSIENT,))]
    before = server.commands.count("insert")
    assert store.commit([append("a", session=f"s{n}") for n in range(3)]) == [Appended(1, (1,), 1)] * 3
    assert server.commands.count("insert") - before == 6
    assert [ids(store, f"s{n}") for n in range(3)] == [["a"]] * 3


def test_a_session_that_another_transaction_holds_does_not_stop_the_others_of_the_group(
    server: Server, store: MongoStore, hasty: MongoStore
) -> None:
    store.commit([Create(ME, "free")])
    with store._link.transaction() as session:
        store._link.sessions.update_one(
            {"tenant": "acme", "user": "lin", "id": "s"}, {"$inc": {"touched": 1}}, session=session
        )
        held, also_held, free = hasty.commit([append("a"), append("b"), append("a", session="free")])
    assert isinstance(held, Locked)
    assert held is also_held
    assert "lock_timeout" in str(held)
    assert free == Appended(1, (1,), 1)
    assert ids(store) == []


def test_an_abandoned_transaction_is_in_the_way_until_the_server_ends_it(server: Server, hasty: MongoStore) -> None:
    with hasty._link.transaction() as session:
        filter = {"tenant": "acme", "user": "lin", "id": "s"}
        hasty._link.sessions.update_one(filter, {"$inc": {"touched": 1}}, session=session)
        with pytest.raises(Locked, match="transactionLifetimeLimitSeconds"):
            hasty.commit([append("a")])
        server.end_open_transactions()
        assert hasty.commit([append("a")]) == [Appended(1, (1,), 1)]


def test_a_refusal_is_no_reason_to_do_the_group_again_and_leaves_no_trace(server: Server, store: MongoStore) -> None:
    before = server.commands.count("commitTransaction")
    done, refused, also_done = store.commit([append("a"), append("b", expect=7), append("c")])
    assert (done, also_done) == (Appended(1, (1,), 1), Appended(2, (2,), 1))
    assert isinstance(refused, HeadMoved)
    assert server.commands.count("commitTransaction") == before + 1
    assert ids(store) == ["a", "c"]


# Races that a mere snapshot would lose, in the order that loses them.


def test_a_fork_whose_source_is_erased_between_its_look_and_its_write_finds_nothing(
    server: Server, store: MongoStore, hasty: MongoStore
) -> None:
    store.commit([append("a", "b")])
    server.faults = [Fault("update", run=lambda: hasty.commit([Erase(ME, "s")]))]
    (answer,) = store.commit([Fork(Create(ME, "f"), "s", 2)])
    assert isinstance(answer, NotFound)
    assert server.documents("entries") == []


def test_two_erases_of_the_last_sharers_at_once_leave_nothing(
    server: Server, store: MongoStore, hasty: MongoStore
) -> None:
    store.commit([append("a", "b", "c"), Fork(Create(ME, "f1"), "s", 2), Fork(Create(ME, "f2"), "s", 2)])
    assert store.commit([Erase(ME, "s")]) == [Erased(1, 2)]
    server.faults = [Fault("update", run=lambda: hasty.commit([Erase(ME, "f1")]))]
    assert store.commit([Erase(ME, "f2")]) == [Erased(2, 0)]
    assert server.documents("entries") == []
    left = [each.keys() - {"_id", "base", "touched"} for each in server.documents("sessions")]
    assert left == [{"tenant", "user", "id", "erased_us"}] * 3


def test_an_append_that_is_overtaken_between_its_look_and_its_write_is_judged_again(
    server: Server, store: MongoStore, hasty: MongoStore
) -> None:
    server.faults = [Fault("insert", run=lambda: hasty.commit([append("b")]))]
    (answer,) = store.commit([append("a", expect=0)])
    assert isinstance(answer, HeadMoved)
    assert ids(store) == ["b"]


def test_a_run_that_is_taken_over_between_its_look_and_its_write_appends_nothing(
    server: Server, store: MongoStore, hasty: MongoStore
) -> None:
    (lease,) = store.commit([Take(ME, "s", "run-1", 60_000_000)])
    assert isinstance(lease, Lease)
    take_over = Take(ME, "s", "run-2", 60_000_000, "interrupt", over="run-1")
    server.faults = [Fault("insert", run=lambda: hasty.commit([take_over]))]
    (answer,) = store.commit([append("late", run="run-1", fence=lease.fence)])
    assert type(answer).__name__ == "LeaseLost"
    assert ids(store) == []


# All of it at once.


def storm(seed: int) -> Callable[[str], Fault | None]:
    """Now and then a conflict, an ended transaction, an unknown commit or a cut."""
    chance = random.Random(seed)
    cuts: list[dict] = [{"cut": "before"}, {"cut": "after"}]
    of_commits = [*[{"code": 64, "labels": (UNKNOWN,), "done": True}] * 6, *cuts]
    of_others = [*[{"code": code, "labels": (TRANSIENT,)} for code in (112, 112, 251)] * 5, *cuts]

    def weather(command: str) -> Fault | None:
        if command not in ("aggregate", "find", "insert", "update", "delete", "commitTransaction"):
            return None
        kind = chance.choice(of_commits if command == "commitTransaction" else of_others)
        return Fault(command, **kind) if chance.random() < 0.1 else None

    return weather


def test_a_storm_of_faults_loses_and_doubles_nothing(server: Server, store: MongoStore) -> None:
    stored: list[str] = []

    def work(number: int, mine: MongoStore) -> None:
        for turn in range(TURNS):
            name, passing = f"{number}-{turn}", f"p{number}-{turn}"
            ops = [append(name), append(name, session=f"own-{number}"), Create(ME, passing, entries=(draft(),))]
            forks = [Fork(Create(ME, f"f{name}"), "s", 1), Fork(Create(ME, f"q{name}"), passing, 1)]
            answers = mine.commit([*ops, *forks, Erase(ME, passing)])
            assert not [answer for answer in answers if isinstance(answer, SegueError)], answers
            assert mine.commit([Erase(ME, f"q{name}"), Erase(ME, f"f{name}")]) == [Erased(1, 0), Erased(0, 0)]
            stored.append(name)

    workers = range(3)
    store.commit([append("first"), *(Create(ME, f"own-{number}") for number in workers)])
    stores = [MongoStore(server.url, lock_timeout=timedelta(seconds=120)) for _ in workers]
    server.weather = storm(seed=7)
    with ThreadPoolExecutor(len(workers)) as threads:
        list(threads.map(work, workers, stores))
    server.weather = None
    for each in stores:
        each.close()
    assert sorted(ids(store)) == sorted([*stored, "first"])
    for number in workers:
        assert ids(store, f"own-{number}") == [f"{number}-{turn}" for turn in range(TURNS)]
    assert len(server.documents("entries")) == 2 * len(stored) + 1  # nothing is left of what was erased
    assert [report for report in store.check(deep=True) if report.level == "damage"] == []


# Other errors of the server.


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (13, Unavailable, "readWrite"),
        (50, Unavailable, "time limit"),
        (290, Unavailable, "transactionLifetimeLimitSeconds"),
        (10334, Invalid, "16 MiB"),
        (14031, DiskFull, "free some space"),
        (31337, Unavailable, "the server refused"),
    ],
)
@pytest.mark.parametrize("command", ["insert", "update"])
def test_an_error_of_the_server_is_typed_says_what_to_do_and_leaves_nothing(
    server: Server, store: MongoStore, command: str, code: int, error: type[SegueError], text: str
) -> None:
    server.faults = [Fault(command, code=code)]
    try:
        (answer,) = store.commit([append("a")])
    except SegueError as raised:
        answer = raised
    assert type(answer) is error
    assert text in str(answer)
    assert (ids(store), store.get(ME, "s").head, server.documents("entries")) == ([], 0, [])


def test_an_index_that_contradicts_the_row_is_damage(server: Server, store: MongoStore) -> None:
    store.commit([append("a")])
    (entry,) = server.documents("entries")
    server.plant("entries", entry | {"_id": entry["_id"][:-1] + b"\x02", "id": "stray", "seq": 2})
    with pytest.raises(Corrupt, match="segue verify"):
        store.commit([append("b")])
    assert [report.seq for report in store.check(deep=True) if report.level == "damage"] == [2]


def test_a_value_that_no_document_holds_refuses_its_own_operation_only(store: MongoStore) -> None:
    large = draft(body=os.urandom(17 << 20), format="raw")
    answers = store.commit([append("a"), Append(ME, "s", (large,)), append("b")])
    assert [type(answer).__name__ for answer in answers] == ["Appended", "Invalid", "Appended"]
    assert "16 MiB" in str(answers[1])
    assert ids(store) == ["a", "b"]


# The handle.


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_works_on_both_sides_of_a_fork_of_the_process(store: MongoStore) -> None:
    store.commit([append("before")])
    if (child := os.fork()) == 0:
        try:
            store.commit([append("child")])
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.commit([append("parent")])
    assert ids(store) == ["before", "child", "parent"]


def test_callers_of_many_threads_share_a_small_pool(server: Server, store: MongoStore) -> None:
    small = MongoStore(server.url, pool_size=2, lock_timeout=timedelta(seconds=60))
    threads = [threading.Thread(target=small.commit, args=([append(f"e{n}")],)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    small.close()
    assert sorted(ids(store)) == sorted(f"e{n}" for n in range(20))


def test_waiting_for_a_connection_ends_with_a_typed_error(server: Server) -> None:
    narrow = MongoStore(server.url, pool_size=1, connect_timeout=timedelta(milliseconds=700), lock_timeout=BRIEFLY)
    errors: list[Unavailable] = []

    def ask() -> None:
        try:
            narrow.now_us()
        except Unavailable as error:
            errors.append(error)
            done.set()

    done = threading.Event()
    server.faults = [Fault("aggregate", run=lambda: done.wait(20))]
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    narrow.close()
    assert ["raise pool_size" in str(error) for error in errors] == [True]


def test_a_closed_store_says_so(store: MongoStore) -> None:
    store.close()
    with pytest.raises(Closed):
        store.now_us()
    with pytest.raises(Closed):
        store.commit([Hollow(ME, "s", (1,))])


def test_a_long_log_of_large_bodies_comes_in_several_answers(server: Server, store: MongoStore) -> None:
    big = tuple(draft(body=os.urandom(3 << 20), format="raw") for _ in range(7))
    store.commit([Append(ME, "s", (*big, *drafts(200)))])
    entries = store.read(ME, "s")
    assert [entry.body for entry in entries[:7]] == [each.body for each in big]
    assert len(entries) == 207
    assert server.commands.count("getMore") >= 1
