"""The PostgreSQL store when something is in its way: cut connections, locks, forks of the process, notifications."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

import servers
from proxy import Proxy, proxy
from segue import codec
from segue.errors import Closed, Locked, OutcomeUnknown, Unavailable
from segue.model import Draft, Lease, ScopeKey, SessionInfo
from segue.store import Append, Appended, Create, Erase, Fork, Op, Take, Update
from segue.stores import _postgres_commit
from segue.stores.postgres import PostgresStore

pytestmark = pytest.mark.server

ME = ScopeKey("acme", "lin")
PATIENCE_SECONDS = 20


def draft(id: str) -> Draft:
    body = codec.encode(f"text of {id}")
    return Draft("message", "anthropic", "user", body, codec.digest(body), id)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with servers.database() as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url, lock_timeout=timedelta(milliseconds=100))
    yield store
    store.close()


@pytest.fixture
def session(store: PostgresStore, request: pytest.FixtureRequest) -> str:
    (info,) = store.commit([Create(ME, request.node.name[:200])])
    assert isinstance(info, SessionInfo)
    return info.id


@pytest.fixture
def cutter(url: str) -> Iterator[Proxy]:
    parts = urlsplit(url)
    with proxy(parts.hostname or "", parts.port or 5432) as running:
        yield running


@pytest.fixture
def through(url: str, cutter: Proxy) -> Iterator[PostgresStore]:
    """A store whose connections can be cut."""
    there = urlsplit(url)
    where = there._replace(netloc=f"{there.username}@127.0.0.1:{cutter.port}").geturl()
    store = PostgresStore(where, notify=False)
    store.now_us()  # its first connection is there
    yield store
    store.close()


def ids(store: PostgresStore, session: str) -> list[str]:
    return [entry.id for entry in store.read(ME, session)]


# Cut connections.


def test_an_append_that_was_stored_but_not_answered_is_told_done_and_stored_once(
    store: PostgresStore, through: PostgresStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer()
    assert through.commit([Append(ME, session, (draft("a"), draft("b")))]) == [Appended(2, (1, 2), 0)]
    assert cutter.cuts == 1
    assert ids(store, session) == ["a", "b"]


def test_an_append_that_did_not_arrive_is_sent_again(
    store: PostgresStore, through: PostgresStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_question()
    assert through.commit([Append(ME, session, (draft("a"),))]) == [Appended(1, (1,), 1)]
    assert cutter.cuts == 1
    assert ids(store, session) == ["a"]


def test_a_batch_that_was_stored_but_not_answered_is_told_done(
    store: PostgresStore, through: PostgresStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer()
    made, appended, taken = through.commit(
        [Create(ME, f"{session}-2"), Append(ME, f"{session}-2", (draft("a"),)), Take(ME, session, "run", 60_000_000)]
    )
    assert cutter.cuts == 1
    assert isinstance(made, SessionInfo)
    assert appended == Appended(1, (1,), 0)
    assert isinstance(taken, Lease)
    assert taken.fence == 1


def test_an_update_whose_commit_is_not_answered_is_unknown(
    store: PostgresStore, through: PostgresStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer(after=1)
    with pytest.raises(OutcomeUnknown, match="may or may not"):
        through.commit([Update(ME, session, {"title": "new"})])
    assert store.get(ME, session).title == "new"


def test_an_update_that_is_cut_before_its_commit_is_done_once(
    store: PostgresStore, through: PostgresStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer()
    (info,) = through.commit([Update(ME, session, {"title": "new"})])
    assert (info.title, info.version) == ("new", 2)
    assert cutter.cuts == 1


def test_an_erase_whose_commit_is_not_answered_is_unknown(
    store: PostgresStore, through: PostgresStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer(after=1)
    with pytest.raises(OutcomeUnknown):
        through.commit([Erase(ME, session)])


def test_a_reading_that_is_cut_is_asked_again(through: PostgresStore, cutter: Proxy, session: str) -> None:
    cutter.lose_answer()
    assert through.get(ME, session).id == session
    assert cutter.cuts == 1


def test_a_server_that_stays_away_after_a_cut_leaves_the_outcome_unknown(
    through: PostgresStore, cutter: Proxy, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres_commit, "PATIENCE_SECONDS", 0.2)
    cutter.stays_away = True
    cutter.lose_answer()
    with pytest.raises(OutcomeUnknown, match="call again with the same ids"):
        through.commit([Append(ME, session, (draft("a"),))])
    with pytest.raises(Unavailable, match="is the server up"):
        through.commit([Append(ME, session, (draft("b"),))])


def test_a_crashed_server_is_named_and_works_again_at_once_when_it_is_back() -> None:
    with servers.private("postgres") as server:
        store = PostgresStore(server.url)
        store.commit([Create(ME, "s"), Append(ME, "s", (draft("acknowledged"),))])
        server.kill()
        with pytest.raises(Unavailable, match="is the server up"):
            store.commit([Append(ME, "s", (draft("refused"),))])
        with pytest.raises(Unavailable, match="is the server up"):
            store.get(ME, "s")
        server.start()
        store.commit([Append(ME, "s", (draft("later"),))])
        assert ids(store, "s") == ["acknowledged", "later"]
        store.close()


# Locks.


def test_a_session_that_another_holds_does_not_stop_the_others_of_the_batch(
    url: str, store: PostgresStore, session: str
) -> None:
    store.commit([Create(ME, "free")])
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM segue.sessions WHERE id = %s FOR UPDATE", (session,))
        held, free = store.commit([Append(ME, session, (draft("a"),)), Append(ME, "free", (draft("a"),))])
    assert isinstance(held, Locked)
    assert free == Appended(1, (1,), 1)
    assert ids(store, session) == []


def test_waiting_for_a_row_ends_with_a_typed_error(url: str, store: PostgresStore, session: str) -> None:
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM segue.sessions WHERE id = %s FOR UPDATE", (session,))
        with pytest.raises(Locked, match="lock_timeout"):
            store.commit([Append(ME, session, (draft("a"),))])


def test_waiting_for_a_connection_ends_with_a_typed_error(url: str) -> None:
    store = PostgresStore(url, pool_size=1, connect_timeout=timedelta(milliseconds=50))
    with store._pool.connection(), pytest.raises(Unavailable, match="raise pool_size"):
        store.now_us()
    store.close()


def test_callers_of_many_threads_share_a_small_pool(url: str, session: str) -> None:
    store = PostgresStore(url, pool_size=2)
    threads = [
        threading.Thread(target=store.commit, args=([Append(ME, session, (draft(f"e{n}"),))],)) for n in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids(store, session)) == sorted(f"e{n}" for n in range(40))
    store.close()


def test_a_closed_store_says_so_and_keeps_no_connection(url: str) -> None:
    store = PostgresStore(f"{url}?application_name=closing")
    store.on_change = lambda _: None
    store.now_us()
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.now_us()
    with psycopg.connect(url) as other:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'closing' AND state <> 'idle'"
        assert other.execute(query).fetchone() == (0,)


def test_batches_that_meet_in_keys_and_sessions_never_stand_still(url: str, store: PostgresStore) -> None:
    names = [f"meeting {n}" for n in range(4)]
    store.commit([Create(ME, name) for name in names])
    answers: list[object] = []

    def work(number: int) -> None:
        for turn in range(10):
            shuffled = names[number:] + names[:number]
            ops: list[Op] = [Append(ME, name, (draft(f"{number} {turn}"),)) for name in shuffled]
            ops[2:2] = [
                Create(ME, f"{number} {turn}", key=f"key {turn}"),
                Fork(Create(ME, f"f {number} {turn}"), names[0], 0),
            ]
            answers.extend(store.commit(ops))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4 * 10 * 6
    assert not [answer for answer in answers if isinstance(answer, Unavailable)]
    with psycopg.connect(url) as conn:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert conn.execute(query).fetchone() == (0,)


# Forks of the process.


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_works_on_both_sides_of_a_fork(store: PostgresStore, session: str) -> None:
    store.commit([Append(ME, session, (draft("before"),))])
    if (child := os.fork()) == 0:
        try:
            store.commit([Append(ME, session, (draft("child"),))])
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.commit([Append(ME, session, (draft("parent"),))])
    assert ids(store, session) == ["before", "child", "parent"]


# Notifications.


class Ear:
    """What a store's on_change was told."""

    def __init__(self, store: PostgresStore) -> None:
        self.heard: queue.Queue[str | None] = queue.Queue()
        store.on_change = self.heard.put
        assert self.next() is None  # listening has begun

    def next(self) -> str | None:
        return self.heard.get(timeout=PATIENCE_SECONDS)


@pytest.fixture
def other(url: str) -> Iterator[PostgresStore]:
    other = PostgresStore(url)
    yield other
    other.close()


def test_a_commit_elsewhere_is_told_by_its_session_and_an_own_one_is_not(
    store: PostgresStore, other: PostgresStore, session: str
) -> None:
    ear = Ear(store)
    store.commit([Append(ME, session, (draft("own"),))])
    other.commit([Append(ME, session, (draft("other"),))])
    assert ear.next() == session
    other.commit([Create(ME, f"{session}-2")])
    assert ear.next() == f"{session}-2"
    assert ear.heard.empty()


def test_a_batch_tells_each_session(store: PostgresStore, other: PostgresStore, session: str) -> None:
    other.commit([Create(ME, f"{session}-2")])
    ear = Ear(store)
    other.commit([Append(ME, name, (draft("x"),)) for name in (session, f"{session}-2")])
    assert {ear.next(), ear.next()} == {session, f"{session}-2"}


def test_a_batch_of_more_names_than_a_notification_holds_tells_of_any(
    store: PostgresStore, other: PostgresStore, session: str
) -> None:
    names = [f"{n:03}" + "x" * 200 for n in range(60)]
    other.commit([Create(ME, name) for name in names])
    ear = Ear(store)
    other.commit([Append(ME, name, (draft("x"),)) for name in names])
    assert ear.next() is None


def test_a_refused_operation_tells_nobody(store: PostgresStore, other: PostgresStore, session: str) -> None:
    ear = Ear(store)
    other.commit([Append(ME, session, (draft("x"),), expect=7)])
    other.commit([Append(ME, session, (draft("y"),))])
    assert ear.next() == session
    assert ear.heard.empty()


def test_a_listener_that_was_cut_listens_again_and_says_that_it_may_have_missed_something(
    url: str, other: PostgresStore, session: str
) -> None:
    store = PostgresStore(f"{url}?application_name=ear")
    ear = Ear(store)
    with psycopg.connect(url) as admin:
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'ear'"
        assert admin.execute(query).fetchone() != (0,)
    assert ear.next() is None
    other.commit([Append(ME, session, (draft("x"),))])
    assert ear.next() == session
    store.close()


def test_behind_a_pooler_notify_is_not_declared_but_others_are_still_told(
    url: str, store: PostgresStore, session: str
) -> None:
    ear = Ear(store)
    with servers.pgbouncer(url) as bouncer:
        pooled = PostgresStore(bouncer.url(url))
        assert "notify" not in pooled.capabilities
        pooled.commit([Append(ME, session, (draft("x"),))])
        assert ear.next() == session
        pooled.close()


def test_a_url_past_the_pooler_is_used_for_hearing(url: str, other: PostgresStore, session: str) -> None:
    with servers.pgbouncer(url) as bouncer:
        pooled = PostgresStore(bouncer.url(url), listen_url=url)
        assert "notify" in pooled.capabilities
        ear = Ear(pooled)
        other.commit([Append(ME, session, (draft("x"),))])
        assert ear.next() == session
        pooled.close()
