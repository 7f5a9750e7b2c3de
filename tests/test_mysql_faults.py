"""The MySQL store when something is in its way: cut connections, locks, packets, settings, forks of the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pymysql
import pytest

import servers
from proxy import Proxy, proxy
from segue import codec
from segue.errors import Closed, IdConflict, Invalid, Locked, OutcomeUnknown, TooNew, Unavailable
from segue.model import Draft, Lease, ScopeKey, SessionInfo
from segue.store import Append, Appended, Create, Erase, Fork, Op, Take, Update
from segue.stores import _mysql_commit
from segue.stores._mysql_pool import check_version
from segue.stores.mysql import MySQLStore, apply, plan

pytestmark = pytest.mark.server

ME = ScopeKey("acme", "lin")


def draft(id: str, body: object = None) -> Draft:
    encoded = codec.encode(body or f"text of {id}")
    return Draft("message", "anthropic", "user", encoded, codec.digest(encoded), id)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with servers.database("mysql") as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    store = MySQLStore(url, lock_timeout=timedelta(seconds=1))
    yield store
    store.close()


@pytest.fixture
def session(store: MySQLStore, request: pytest.FixtureRequest) -> str:
    (info,) = store.commit([Create(ME, request.node.name[:200])])
    assert isinstance(info, SessionInfo)
    return info.id


@pytest.fixture
def cutter(url: str) -> Iterator[Proxy]:
    parts = urlsplit(url)
    with proxy(parts.hostname or "", parts.port or 3306) as running:
        yield running


@pytest.fixture
def through(url: str, cutter: Proxy) -> Iterator[MySQLStore]:
    """A store whose connections can be cut."""
    there = urlsplit(url)
    store = MySQLStore(there._replace(netloc=f"{there.username}@127.0.0.1:{cutter.port}").geturl())
    yield store
    store.close()


def connect(url: str) -> pymysql.Connection:
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:], ssl_disabled=True
    )


def hold(conn: pymysql.Connection, session: str) -> None:
    """Lock a session's row until the connection ends."""
    query = "SELECT id FROM sessions WHERE tenant = 'acme' AND user_id = 'lin' AND id = %s FOR UPDATE"
    conn.cursor().execute(query, (session.encode(),))


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A server to crash and to misconfigure."""
    with servers.private("mysql") as server:
        yield server


@pytest.fixture
def own_url(server: servers.Server) -> Iterator[str]:
    """A database of the test's own on that server."""
    with servers.RECIPES["mysql"].fresh(server.url) as url:
        yield url


def ids(store: MySQLStore, session: str) -> list[str]:
    return [entry.id for entry in store.read(ME, session)]


# Cut connections. A commit of what is known again by its ids is two messages: lock and read, then write and commit.


def test_an_append_that_was_stored_but_not_answered_is_told_done_and_stored_once(
    store: MySQLStore, through: MySQLStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer(after=1)
    assert through.commit([Append(ME, session, (draft("a"), draft("b")))]) == [Appended(2, (1, 2), 0)]
    assert cutter.cuts == 1
    assert ids(store, session) == ["a", "b"]


@pytest.mark.parametrize("passed", [0, 1])
def test_an_append_that_did_not_arrive_is_sent_again(
    store: MySQLStore, through: MySQLStore, cutter: Proxy, session: str, passed: int
) -> None:
    cutter.lose_question(after=passed)
    assert through.commit([Append(ME, session, (draft("a"),))]) == [Appended(1, (1,), 1)]
    assert cutter.cuts == 1
    assert ids(store, session) == ["a"]


def test_a_batch_that_was_stored_but_not_answered_is_told_done(
    store: MySQLStore, through: MySQLStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer(after=1)
    made, appended, taken = through.commit(
        [Create(ME, f"{session}-2"), Append(ME, f"{session}-2", (draft("a"),)), Take(ME, session, "run", 60_000_000)]
    )
    assert cutter.cuts == 1
    assert isinstance(made, SessionInfo)
    assert appended == Appended(1, (1,), 0)
    assert isinstance(taken, Lease)
    assert taken.fence == 1


def test_an_update_whose_commit_is_not_answered_is_unknown(
    store: MySQLStore, through: MySQLStore, cutter: Proxy, session: str
) -> None:
    cutter.lose_answer(after=2)
    with pytest.raises(OutcomeUnknown, match="may or may not"):
        through.commit([Update(ME, session, {"title": "new"})])
    assert store.get(ME, session).title == "new"


def test_an_update_that_is_cut_before_its_commit_is_done_once(through: MySQLStore, cutter: Proxy, session: str) -> None:
    cutter.lose_answer(after=1)
    (info,) = through.commit([Update(ME, session, {"title": "new"})])
    assert isinstance(info, SessionInfo)
    assert (info.title, info.version) == ("new", 2)
    assert cutter.cuts == 1


def test_an_erase_whose_commit_is_cut_is_unknown_or_done_never_half(
    store: MySQLStore, through: MySQLStore, cutter: Proxy, session: str
) -> None:
    store.commit([Append(ME, session, (draft("a"),))])
    for after in range(20):
        cutter.lose_answer(after=after)
        try:
            through.commit([Erase(ME, session)])
        except OutcomeUnknown:
            break
        store.commit([Create(ME, f"{session}-{after}"), Append(ME, f"{session}-{after}", (draft("a"),))])
        session = f"{session}-{after}"
    else:
        pytest.fail("no cut met the commit")
    assert not [report for report in store.check(deep=True) if report.level == "damage"]


def test_a_reading_that_is_cut_is_asked_again(through: MySQLStore, cutter: Proxy, session: str) -> None:
    cutter.lose_answer()
    assert through.get(ME, session).id == session
    assert cutter.cuts == 1


def test_a_server_that_stays_away_after_a_cut_leaves_the_outcome_unknown(
    through: MySQLStore, cutter: Proxy, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mysql_commit, "PATIENCE_SECONDS", 0.2)
    cutter.stays_away = True
    cutter.lose_answer(after=1)
    with pytest.raises(OutcomeUnknown, match="call again with the same ids"):
        through.commit([Append(ME, session, (draft("a"),))])
    with pytest.raises(Unavailable, match="is the server up"):
        through.commit([Append(ME, session, (draft("b"),))])


def test_a_server_killed_in_the_middle_of_commits_has_everything_acknowledged_and_no_half_batch(
    server: servers.Server, own_url: str
) -> None:
    store = MySQLStore(own_url)
    names = [f"s{n}" for n in range(4)]
    store.commit([Create(ME, name) for name in names])
    told: dict[str, list[str]] = {name: [] for name in names}
    enough = threading.Semaphore(0)

    def write(name: str) -> None:
        for number in range(100_000):
            batch = (draft(f"{number}a"), draft(f"{number}b"))
            try:
                (done,) = store.commit([Append(ME, name, batch)])
            except (Unavailable, OutcomeUnknown):
                return
            assert isinstance(done, Appended)
            told[name] += [one.id for one in batch]
            enough.release()

    for _ in range(2):
        writers = [threading.Thread(target=write, args=(name,)) for name in names]
        for name in names:
            told[name].clear()
        for writer in writers:
            writer.start()
        for _ in range(60):
            assert enough.acquire(timeout=60)
        server.kill(signal.SIGKILL)
        for writer in writers:
            writer.join(60)
        with pytest.raises(Unavailable, match="is the server up"):
            store.get(ME, "s0")
        server.start()
        for name in names:
            stored = ids(store, name)
            assert stored[: len(told[name])] == told[name]
            assert len(stored) % 2 == 0
    assert not [report for report in store.check(deep=True) if report.level == "damage"]
    store.close()


# Locks.


def test_a_session_that_another_holds_does_not_stop_the_others_of_the_batch(
    url: str, store: MySQLStore, session: str
) -> None:
    store.commit([Create(ME, "free")])
    with connect(url) as other:
        hold(other, session)
        held, free = store.commit([Append(ME, session, (draft("a"),)), Append(ME, "free", (draft("a"),))])
    assert isinstance(held, Locked)
    assert "lock_timeout" in str(held)
    assert free == Appended(1, (1,), 1)
    assert ids(store, session) == []
    assert store.commit([Append(ME, session, (draft("a"),))]) == [Appended(1, (1,), 1)]


def test_no_row_is_waited_for_but_those_that_are_written(url: str, store: MySQLStore, session: str) -> None:
    with connect(url) as other:
        hold(other, session)
        made = store.commit([Create(ME, "beside"), Append(ME, "beside", (draft("a"),))])
    assert isinstance(made[0], SessionInfo)


def test_waiting_for_a_connection_ends_with_a_typed_error(url: str) -> None:
    store = MySQLStore(url, pool_size=1, connect_timeout=timedelta(milliseconds=50))
    with store._pool.connection(), pytest.raises(Unavailable, match="raise pool_size"):
        store.now_us()
    store.close()


def test_callers_of_many_threads_share_a_small_pool(url: str, session: str) -> None:
    store = MySQLStore(url, pool_size=2)
    threads = [
        threading.Thread(target=store.commit, args=([Append(ME, session, (draft(f"e{n}"),))],)) for n in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids(store, session)) == sorted(f"e{n}" for n in range(40))
    store.close()


def test_a_closed_store_says_so(url: str) -> None:
    store = MySQLStore(url)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.now_us()


def test_batches_that_meet_in_keys_and_sessions_never_stand_still(url: str, store: MySQLStore) -> None:
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


# Ids are taken for new first: what is refused must rest on what is stored all the same.


@pytest.mark.parametrize("twin", ["a", "b"])
def test_a_conflict_names_the_first_id_that_is_stored_with_other_content(
    store: MySQLStore, session: str, twin: str
) -> None:
    store.commit([Append(ME, session, (draft("a"),))])
    added, refused = store.commit(
        [Append(ME, session, (draft("b"),)), Append(ME, session, (draft("a", "other"), draft(twin, "another")))]
    )
    assert added == Appended(2, (2,), 1)
    assert isinstance(refused, IdConflict)
    assert (refused.entry_id, refused.seq) == ("a", 1)


def test_a_retry_after_new_entries_and_a_moved_head_is_known_again(store: MySQLStore, session: str) -> None:
    first = Append(ME, session, (draft("a"), draft("b")), expect=0)
    answers = [store.commit([first, Append(ME, session, (draft(name),)), first])[2] for name in ("c", "d")]
    assert answers == [Appended(3, (1, 2), 0), Appended(4, (1, 2), 0)]


# What the server takes.


def test_a_body_over_max_allowed_packet_is_refused_by_name_and_a_large_batch_goes_in_parts(own_url: str) -> None:
    with connect(own_url) as admin:
        admin.cursor().execute("SET GLOBAL max_allowed_packet = 1048576")  # of this server alone
    store = MySQLStore(own_url)
    store.commit([Create(ME, "s")])
    fine, large, also = store.commit([
        Append(ME, "s", (draft("fine"),)),
        Append(ME, "s", (draft("large", "x" * 600_000),)),
        Append(ME, "s", tuple(draft(f"part {n}", "y" * 200_000) for n in range(20))),
    ])  # fmt: skip
    assert fine == Appended(1, (1,), 1)
    assert isinstance(large, Invalid)
    assert "max_allowed_packet is 1,0" in str(large)
    assert also == Appended(21, tuple(range(2, 22)), 20)
    assert [len(entry.body or b"") for entry in store.read(ME, "s", after=1)] == [200_002] * 20
    too_much = Create(ME, "t", config=b"x" * 600_000)
    (refused,) = store.commit([too_much])
    assert isinstance(refused, Invalid)
    assert any("max_allowed_packet" in report.text for report in store.check(deep=False) if report.level == "warn")
    store.close()


def test_a_value_that_no_column_takes_is_refused_alone(store: MySQLStore, session: str) -> None:
    holder = "h" * 2_000
    for ops in (
        [Take(ME, session, "run", 1, holder=holder)],
        [Take(ME, session, "run", 1, holder=holder), Create(ME, f"{session}-2")],
    ):
        refused, *others = store.commit(ops)
        assert isinstance(refused, Invalid)
        assert all(isinstance(other, SessionInfo) for other in others)


def test_every_byte_comes_back_in_names_and_bodies(store: MySQLStore, session: str) -> None:
    body = bytes(range(256)) * 3 + b"'\"\\%s\\'; DROP TABLE entries; -- "
    name = "'\"\\%s;--😀é"
    raw = Draft("message", "raw", "user", body, codec.digest(body), name, refs=(name,))
    store.commit([Append(ME, session, (raw,))])
    (entry,) = store.read(ME, session)
    assert (entry.body, entry.id, entry.refs) == (body, name, (name,))
    assert [hit.entry.id for hit in store.by_ref(ME, name)] == [name]


# Forks of the process.


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_works_on_both_sides_of_a_fork(store: MySQLStore, session: str) -> None:
    store.commit([Append(ME, session, (draft("before"),))])
    if (child := os.fork()) == 0:
        try:
            store.commit([Append(ME, session, (draft("child"),))])
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.commit([Append(ME, session, (draft("parent"),))])
    assert ids(store, session) == ["before", "child", "parent"]


# Opening.


SECRET = "hush@hush"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "http://localhost/segue",
        "mysql://localhost",
        "mysql:segue",
        "mysql:/segue",
        "mysql://localhost/segue#x",
        f"mysql://lin:{SECRET}@localhost/segue",
        f"mysql://lin@localhost:{SECRET}/segue",
        f"mysql://lin@localhost/segue?{SECRET}=1",
    ],
)
def test_what_is_no_url_is_refused_without_repeating_it(bad: str) -> None:
    with pytest.raises(Invalid, match="percent-encoded") as caught:
        MySQLStore(bad)
    assert "hush" not in str(caught.value)


def test_a_wrong_password_is_named_and_shown_nowhere(url: str) -> None:
    user = f"keeper_{os.getpid()}"
    with connect(url) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE USER {user}@'%%' IDENTIFIED BY %s", (SECRET,))
        cursor.execute(f"GRANT ALL ON {urlsplit(url).path[1:]}.* TO {user}@'%'")
    try:
        store = MySQLStore(servers.as_user(url, user, SECRET))
        assert "hush" not in repr(store) + repr(store._pool.target) + str(store.check(deep=False))
        store.close()
        with pytest.raises(Unavailable, match="lets this user not in .*MYSQL_PWD") as caught:
            MySQLStore(servers.as_user(url, user, "wrong-hush"))
        assert "hush" not in str(caught.value)
    finally:
        with connect(url) as admin:
            admin.cursor().execute(f"DROP USER {user}@'%'")


def test_a_server_or_a_database_that_is_not_there_is_named(url: str) -> None:
    port = servers.free_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}/x: cannot connect .*is the server up"):
        MySQLStore(f"mysql://127.0.0.1:{port}/x")
    with pytest.raises(Unavailable, match="no such database .*CREATE DATABASE"):
        MySQLStore(f"{url}_not")


def test_tls_that_the_url_asks_for_is_not_left_out(url: str) -> None:
    with pytest.raises(Unavailable, match="SSL is required"):
        MySQLStore(f"{url}?ssl_verify_cert=true")


@pytest.mark.parametrize(
    "version", ["5.7.44", "5.5.5-10.5.20-MariaDB", "8.0.36", "5.5.5-10.6.1-MariaDB-log", "11.4.2-MariaDB"]
)
def test_a_server_that_is_too_old_is_refused_by_name(version: str) -> None:
    if version in ("5.7.44", "5.5.5-10.5.20-MariaDB"):
        with pytest.raises(Unavailable, match="Segue needs"):
            check_version(version, "host")
    else:
        assert check_version(version, "host") is ("MariaDB" in version)


def test_tables_of_a_newer_segue_are_refused_and_missing_ones_named() -> None:
    with servers.database("mysql") as url:
        with pytest.raises(Unavailable, match="lack 2 of 2 migrations"):
            MySQLStore(url, migrate=False)
        assert [step[:2] for step in plan(url)] == [(1, "tables"), (2, "conversations")]
        assert len(apply(url)) == 2
        assert (plan(url), apply(url)) == ((), ())
        MySQLStore(url, migrate=False).close()
        with connect(url) as admin:
            admin.cursor().execute("INSERT INTO migrations (version, name, digest) VALUES (99, 'later', '')")
            admin.commit()
        with pytest.raises(TooNew):
            MySQLStore(url)


def test_many_that_open_a_fresh_database_at_once_make_its_tables_once() -> None:
    with servers.database("mysql") as url:
        applied: list[int] = []
        threads = [threading.Thread(target=lambda: applied.append(len(apply(url)))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(applied) == [0] * 7 + [2]


def test_a_server_that_may_lose_what_it_acknowledged_is_not_called_durable(own_url: str) -> None:
    MySQLStore(own_url).close()
    with connect(own_url) as admin:
        admin.cursor().execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    store = MySQLStore(own_url)
    assert "durable" not in store.capabilities
    warned = [report.text for report in store.check(deep=False) if report.level == "warn"]
    assert any(text.startswith("innodb_flush_log_at_trx_commit = 2: ") for text in warned)
    store.close()
