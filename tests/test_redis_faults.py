"""The Redis store when something is in its way: cuts, crashes, full memory, lost scripts, damage, moved slots."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import redis

import redis_cluster
import segue
import servers
from proxy import Proxy, proxy
from segue import codec
from segue.errors import Closed, Corrupt, DiskFull, Invalid, OutcomeUnknown, ReadOnly, TooNew, Unavailable
from segue.model import Draft, Lease, ScopeKey, SessionInfo, Usage
from segue.store import Append, Appended, Create, Erase, Erased, Filter, Fork, Hollow, Take, Update
from segue.stores import _redis_commit
from segue.stores.redis import RedisStore
from stores import FULL

pytestmark = pytest.mark.server

ME = ScopeKey("acme", "lin")
PATIENCE_SECONDS = 20


def draft(id: str, text: str | None = None, **more: object) -> Draft:
    body = codec.encode(text or f"text of {id}")
    return Draft("message", "anthropic", "user", body, codec.digest(body), id, **more)


@pytest.fixture
def url() -> Iterator[str]:
    with servers.database("redis") as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    store = RedisStore(url)
    store.commit([Create(ME, "s")])
    yield store
    store.close()


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    """Past the store."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def cutter(url: str) -> Iterator[Proxy]:
    parts = urlsplit(url)
    with proxy(parts.hostname or "", parts.port or 6379) as running:
        yield running


@pytest.fixture
def through(url: str, cutter: Proxy, store: RedisStore) -> Iterator[RedisStore]:
    """A store whose connections can be cut."""
    through = RedisStore(urlsplit(url)._replace(netloc=f"127.0.0.1:{cutter.port}").geturl(), notify=False)
    through.commit([Append(ME, "s", ())])  # its first connection is there, and the script known
    yield through
    through.close()


def ids(store: RedisStore, session: str = "s") -> list[str]:
    return [entry.id for entry in store.read(ME, session)]


def damage(store: RedisStore) -> list[str]:
    return [report.text for report in store.check(deep=True) if report.level == "damage"]


# Cut connections.


def test_an_append_that_was_stored_but_not_answered_is_told_done_and_stored_once(store, through, cutter):
    cutter.lose_answer()
    assert through.commit([Append(ME, "s", (draft("a"), draft("b")))]) == [Appended(2, (1, 2), 0)]
    assert cutter.cuts == 1
    assert ids(store) == ["a", "b"]


def test_an_append_that_did_not_arrive_is_sent_again(store, through, cutter):
    cutter.lose_question()
    assert through.commit([Append(ME, "s", (draft("a"),))]) == [Appended(1, (1,), 1)]
    assert cutter.cuts == 1
    assert ids(store) == ["a"]


def test_a_batch_that_was_stored_but_not_answered_is_told_done(through, cutter):
    through.commit([Create(ME, "s"), Take(ME, "s", "run", 60_000_000)])  # the script and the owner are known
    cutter.lose_answer()
    made, appended, taken = through.commit(
        [Create(ME, "t"), Append(ME, "t", (draft("a"),)), Take(ME, "s", "run", 60_000_000)]
    )
    assert isinstance(made, SessionInfo)
    assert appended == Appended(1, (1,), 0)
    assert isinstance(taken, Lease)
    assert (taken.fence, cutter.cuts) == (1, 1)


@pytest.mark.parametrize("lose", ["lose_answer", "lose_question"])
@pytest.mark.parametrize("op", [Update(ME, "s", {"title": "new"}), Erase(ME, "s"), Hollow(ME, "s", (1,))])
def test_what_no_id_makes_safe_is_unknown_after_a_cut_and_never_sent_twice(store, through, cutter, op, lose):
    store.commit([Append(ME, "s", (draft("a"),))])
    through.commit([Update(ME, "s", {"tags": ("x",)})])  # the script is known
    getattr(cutter, lose)()
    with pytest.raises(OutcomeUnknown, match="may or may not"):
        through.commit([op])
    assert cutter.cuts == 1
    if isinstance(op, Update):
        assert store.get(ME, "s").version == (3 if lose == "lose_answer" else 2)


def test_a_reading_that_is_cut_is_asked_again(through, cutter):
    cutter.lose_answer()
    assert through.get(ME, "s").id == "s"
    assert cutter.cuts == 1


def test_a_server_that_stays_away_after_a_cut_leaves_the_outcome_unknown(through, cutter, monkeypatch):
    monkeypatch.setattr(_redis_commit, "PATIENCE_SECONDS", 0.2)
    cutter.stays_away = True
    cutter.lose_answer()
    with pytest.raises(OutcomeUnknown, match="call again with the same ids"):
        through.commit([Append(ME, "s", (draft("a"),))])
    with pytest.raises(Unavailable, match="is the server up"):
        through.commit([Append(ME, "s", (draft("b"),))])


def test_a_crashed_server_is_named_and_works_again_at_once_when_it_is_back():
    with servers.private("redis") as server:
        store = RedisStore(server.url)
        store.commit([Create(ME, "s"), Append(ME, "s", (draft("acknowledged"),))])
        server.kill()
        with pytest.raises(Unavailable, match="is the server up"):
            store.commit([Append(ME, "s", (draft("refused"),))])
        with pytest.raises(Unavailable, match="is the server up"):
            store.get(ME, "s")
        server.start()
        store.commit([Append(ME, "s", (draft("later"),))])
        assert ids(store) == ["acknowledged", "later"]
        store.close()


def test_waiting_for_a_connection_ends_with_a_typed_error(url):
    store = RedisStore(url, pool_size=1, connect_timeout=timedelta(milliseconds=200))
    with store._link._wires.lend(), pytest.raises(Unavailable, match="raise pool_size"):
        store.now_us()
    store.close()


def test_callers_of_many_threads_share_a_small_pool(url, store):
    small = RedisStore(url, pool_size=2)
    calls = [lambda n=n: small.commit([Append(ME, "s", (draft(f"e{n}"),))]) for n in range(40)]
    threads = [threading.Thread(target=call) for call in calls]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(ids(store)) == sorted(f"e{n}" for n in range(40))
    small.close()
    with pytest.raises(Closed):
        small.now_us()


def test_a_store_works_on_both_sides_of_a_fork(store):
    store.commit([Append(ME, "s", (draft("before"),))])
    if (child := os.fork()) == 0:
        try:
            store.commit([Append(ME, "s", (draft("child"),))])
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.commit([Append(ME, "s", (draft("parent"),))])
    assert ids(store) == ["before", "child", "parent"]


# What the server refuses.


def test_a_server_that_forgot_the_scripts_is_sent_them_again(store, raw):
    for op in (Append(ME, "s", (draft("a"),)), Take(ME, "s", "run", 60_000_000)):
        raw.script_flush()
        (done,) = store.commit([op])
        assert isinstance(done, Appended | Lease)
    raw.script_flush()
    assert ids(store) == ["a"]


def test_a_server_without_memory_refuses_by_name_and_stores_nothing_of_a_batch():
    with servers.private("redis") as server, redis.Redis.from_url(server.url) as raw:
        store = RedisStore(server.url)
        store.commit([Create(ME, "s")])
        raw.config_set("maxmemory", 1)
        with pytest.raises(DiskFull, match="maxmemory"):
            store.commit([Append(ME, "s", (draft("a", refs=("x",)), draft("b")))])
        assert (ids(store), store.get(ME, "s").head) == ([], 0)
        assert store.commit([Erase(ME, "s")]) == [Erased(0, 0)]  # makes room
        raw.config_set("maxmemory", 0)
        store.commit([Create(ME, "t", entries=(draft("a"),))])
        assert damage(store) == []
        store.close()


def test_a_replica_is_named_and_can_be_read():
    with servers.private("redis") as primary, servers.private("redis") as replica:
        with segue.open(primary.url) as db:
            db.scope("acme", "lin").create(id="s").append({"role": "user", "content": "x"})
        with redis.Redis.from_url(replica.url) as raw:
            raw.replicaof("127.0.0.1", primary.port)
            arrived = threading.Event()
            while raw.info("replication")["master_link_status"] != "up":
                arrived.wait(0.02)
        store = RedisStore(replica.url)
        assert len(store.read(ME, "s")) == 1
        with pytest.raises(ReadOnly, match="connect to the primary"):
            store.commit([Append(ME, "s", (draft("a"),))])
        assert any("replica" in report.text for report in store.check(deep=False) if report.level == "warn")
        store.close()


def test_a_user_without_a_right_is_told_so_and_may_do_without_messages(url, raw, store):
    raw.execute_command("ACL", "SETUSER", "poor", "on", ">word", "~segue:*", "resetchannels", "+@all", "-config")
    poor = RedisStore(url.replace("redis://", "redis://poor:word@"))
    assert "notify" not in poor.capabilities
    assert "durable" not in poor.capabilities  # the server does not tell
    assert poor.commit([Append(ME, "s", (draft("a"),))]) == [Appended(1, (1,), 1)]
    poor.close()
    with pytest.raises(Unavailable, match="wrong user or password"):
        RedisStore(url.replace("redis://", "redis://poor:other@"))
    raw.execute_command("ACL", "SETUSER", "poor", "resetkeys", "~else:*")
    with pytest.raises(Unavailable, match="lacks a right"):
        RedisStore(url.replace("redis://", "redis://poor:word@"))
    raw.execute_command("ACL", "DELUSER", "poor")


# Durability by the server's settings.


@pytest.fixture(scope="module")
def tuned() -> Iterator[servers.Server]:
    """A server whose settings a test may change."""
    with servers.private("redis") as server:
        yield server


@pytest.fixture
def settings(tuned: servers.Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(tuned.url) as raw:
        yield raw
        for name, value in {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}.items():
            raw.config_set(name, value)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("appendonly", "no", "set appendonly yes"),
        ("maxmemory-policy", "allkeys-lru", "set maxmemory-policy noeviction"),
        ("maxmemory-policy", "volatile-ttl", "set maxmemory-policy noeviction"),
    ],
)
def test_a_server_that_loses_sessions_is_refused_unless_told_otherwise(tuned, settings, name, value, told):
    settings.config_set(name, value)
    with pytest.raises(Unavailable, match=told) as caught:
        RedisStore(tuned.url)
    assert "durability='server'" in str(caught.value)
    store = RedisStore(tuned.url, durability="server")
    assert "durable" not in store.capabilities
    assert any(told in report.text for report in store.check(deep=False) if report.level == "warn")
    store.close()


def test_a_sync_each_second_is_not_durable_and_warned_of_by_name(tuned, settings):
    settings.config_set("appendfsync", "everysec")
    store = RedisStore(tuned.url)
    assert "durable" not in store.capabilities
    (warning,) = (report.text for report in store.check(deep=False) if report.level == "warn")
    assert "appendfsync = everysec" in warning
    store.close()


def test_a_sync_at_every_write_is_durable(tuned, settings):
    store = RedisStore(tuned.url)
    assert "durable" in store.capabilities
    store.close()


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"prefix": "a{b}"}, "prefix"),
        ({"prefix": ""}, "prefix"),
        ({"durability": "none"}, "durability"),
        ({"pool_size": 0}, "pool_size"),
    ],
)
def test_a_wrong_option_is_named(url, bad, where):
    with pytest.raises(Invalid) as caught:
        RedisStore(url, **bad)
    assert caught.value.where == where


@pytest.mark.parametrize("bad", ["redis://h:secret", "redis://:secret@pass@host/0", "nonsense://secret"])
def test_what_is_no_url_is_refused_without_repeating_it(bad):
    with pytest.raises((Invalid, Unavailable)) as caught:
        RedisStore(bad, connect_timeout=timedelta(seconds=1))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "added",
    ["/agents", "/1x", "/-1", "/0/1", "/1?db=2", "/?db=x", "/?db=", "/0?foo=1", "/0?protocol=3", "/0?foo=", "/0#x"],
)
def test_a_database_that_is_no_number_and_options_that_nobody_knows_are_refused(url, raw, added):
    for server in (url, url.replace("redis:", "redis+cluster:")):
        with pytest.raises(Invalid, match="the database a number, and after \\? only db"):
            RedisStore(server.removesuffix(urlsplit(url).path) + added)
    assert raw.dbsize() == 0


def test_a_database_and_options_that_are_known_are_taken(url, store):
    place = url.removesuffix(urlsplit(url).path)
    number = urlsplit(url).path.strip("/")
    for same in (f"{place}/{number}/", f"{place}/?db={number}&socket_timeout=20"):
        other = RedisStore(same)
        assert other.get(ME, "s").id == "s"
        other.close()


def test_a_cluster_has_one_database(url):
    with pytest.raises(Invalid, match="database 0 alone"):
        RedisStore(url.replace("redis:", "redis+cluster:").removesuffix(urlsplit(url).path) + "/3")


def test_a_newer_format_is_refused_and_not_touched(url, store, raw):
    raw.set("segue:format", 2)
    before = raw.dbsize()
    with pytest.raises(TooNew):
        RedisStore(url)
    assert raw.dbsize() == before


# What lies in the server.


def busy(store: RedisStore) -> None:
    """Sessions in every state that a scope can have."""
    body = "x" * 5_000
    store.commit([
        Append(ME, "s", (draft("a", body, refs=("source:x",)), draft("b", usage=Usage(input=7)), draft("c"))),
        Fork(Create(ME, "f", entries=(draft("d"),)), "s", 2),
        Create(ME, "k", key="key", tags=("t",), idle_us=60_000_000, entries=(draft("e"),)),
        Create(ME, "old", is_listed=False),
        Update(ME, "old", {"state": "archived"}),
        Take(ME, "k", "run-1", 60_000_000),
        Take(ME, "k", "run-2", 60_000_000, "enqueue"),
        Hollow(ME, "s", (3,)),
        Erase(ME, "s"),
    ])  # fmt: skip


def test_all_keys_of_a_scope_lie_in_one_slot_under_the_prefix_and_none_expires(store, raw):
    busy(store)
    keys = set(raw.scan_iter("*")) - {b"segue:scopes", b"segue:format"}
    slots = {raw.execute_command("CLUSTER", "KEYSLOT", key) for key in keys} if FULL else set()
    assert all(key.startswith(b"segue:{acme/lin}:") for key in keys)
    assert len(slots) <= 1
    assert {raw.ttl(key) for key in raw.scan_iter("*")} == {-1}


def test_a_sweep_expires_a_session_whole_and_keeps_what_forks_share(url, raw):
    """Nothing of a session goes before the rest, whatever keys it has."""
    with segue.open(url) as db:
        me = db.scope("acme", "lin")
        parent = me.create(id="p", idle=timedelta(minutes=1), key="key", tags=["t"])
        parent.append({"role": "user", "content": "first"}, {"role": "user", "content": "second"})
        fork = parent.fork(at=1, id="f", pinned=True)
        db.engine.store.shift_clock(3_600_000_000)
        db.sweep()
        assert raw.exists("segue:{acme/lin}:e:p")
        db.engine.store.shift_clock(40 * 86_400_000_000)
        assert [session for _, session in db.sweep().erased] == ["p"]
        assert [entry.json()["content"] for entry in fork.read()] == ["first"]
        left = {key for key in raw.scan_iter("*:p")}
        assert left == {f"segue:{{acme/lin}}:{kind}:p".encode() for kind in "seif"}
        assert raw.hgetall("segue:{acme/lin}:s:p") == {b"gone": b"1", b"base": b"0", b"head": b"1"}
        fork.erase()
        assert {key for key in raw.scan_iter("*:[pf]")} == {b"segue:{acme/lin}:s:p", b"segue:{acme/lin}:s:f"}
        assert [report for report in db.check(deep=True) if report.level != "ok"] == []


def test_what_was_erased_is_in_no_value_any_more(store, raw):
    secret = "5f2c" * 10
    store.commit([
        Create(ME, "x", key=secret, title=secret, tags=(secret,), metadata={"m": secret}),
        Append(ME, "x", (draft(f"id-{secret}", secret, refs=(f"ref:{secret}",)),)),
        Append(ME, "s", (draft("h", secret, refs=(f"ref:{secret}",)),)),
    ])  # fmt: skip
    assert everything(raw).count(secret.encode()) > 5
    store.commit([Erase(ME, "x"), Hollow(ME, "s", (1,))])
    assert secret.encode() not in everything(raw)


def everything(raw: redis.Redis) -> bytes:
    """All keys with all that they hold."""
    ways = {
        b"hash": lambda key: raw.hgetall(key).items(),
        b"zset": lambda key: raw.zrange(key, 0, -1),
        b"string": raw.get,
    }
    return repr([(key, ways[raw.type(key)](key)) for key in raw.scan_iter("*")]).encode()


def test_a_fork_of_a_long_session_copies_nothing(store, raw):
    for first in range(0, 3_000, 1_000):
        store.commit([Append(ME, "s", tuple(draft(f"{n}") for n in range(first, first + 1_000)))])
    store.commit([Fork(Create(ME, "f"), "s", 2_900)])
    assert raw.exists("segue:{acme/lin}:e:f", "segue:{acme/lin}:i:f", "segue:{acme/lin}:m:f") == 0
    assert len(store.read(ME, "f")) == 2_900


# Damage.


def break_row(raw):
    raw.hset("segue:{acme/lin}:s:f", "head", "many")


BREAKS = {
    "an entry is gone": (lambda raw: raw.hdel("segue:{acme/lin}:e:f", "3"), "entry 3: the entry is missing"),
    "an entry is another": (
        lambda raw: raw.hset("segue:{acme/lin}:e:f", "3", raw.hget("segue:{acme/lin}:e:f", "4")),
        "entry 3: its id and the index of ids differ",
    ),
    "a body is changed": (
        lambda raw: raw.hset("segue:{acme/lin}:e:f", "3", raw.hget("segue:{acme/lin}:e:f", "3")[:-2] + b'!"'),
        "entry 3: the stored body does not match its digest",
    ),
    "an entry is no record": (
        lambda raw: raw.hset("segue:{acme/lin}:e:f", "3", b"\0" * 50),
        "entry 3: the stored body does not match its digest",
    ),
    "an entry too many": (
        lambda raw: raw.hset("segue:{acme/lin}:e:f", "9", raw.hget("segue:{acme/lin}:e:f", "4")),
        "entry 9: it lies beyond the head",
    ),
    "the ids are gone": (lambda raw: raw.delete("segue:{acme/lin}:i:f"), "its id and the index of ids differ"),
    "the marks are gone": (lambda raw: raw.delete("segue:{acme/lin}:m:f"), "its refs and the index of refs differ"),
    "the scope's refs are gone": (lambda raw: raw.delete("segue:{acme/lin}:refs"), "its refs are not in the scope's"),
    "what is shared is gone": (lambda raw: raw.delete("segue:{acme/lin}:e:s"), "of entries 1 to 2, shared with 's'"),
    "the sharer is forgotten": (lambda raw: raw.delete("segue:{acme/lin}:f:s"), "'s' does not know that it shares"),
    "the list is gone": (lambda raw: raw.delete("segue:{acme/lin}:listed"), "it is not where it should be in the list"),
    "the key is gone": (lambda raw: raw.delete("segue:{acme/lin}:names"), "its key 'key' does not lead to it"),
    "the row is gone": (lambda raw: raw.delete("segue:{acme/lin}:s:f"), "it has entries, ids or refs and no row"),
    "the row is damaged": (break_row, "the row"),
    "the owner is gone": (lambda raw: raw.delete("segue:scopes"), "its owner is not among the owners"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_damage_is_found_by_a_deep_check_and_named(store, raw, name):
    store.commit([
        Append(ME, "s", (draft("a"), draft("b"))),
        Fork(Create(ME, "f", key="key", entries=(draft("c", refs=("x",)), draft("d", refs=("y",)))), "s", 2),
    ])  # fmt: skip
    assert damage(store) == []
    breaks, told = BREAKS[name]
    breaks(raw)
    assert any(told in text for text in damage(store)), damage(store)


def test_a_damaged_entry_is_told_by_every_reading_and_never_skipped(store, raw):
    store.commit([Append(ME, "s", tuple(draft(f"e{n}", refs=("x",)) for n in range(100)))])
    raw.hdel("segue:{acme/lin}:e:s", "50")
    readings = [
        lambda: store.read(ME, "s"),
        lambda: store.read(ME, "s", after=45, limit=10),
        lambda: store.read(ME, "s", kinds=("message",)),
        lambda: store.by_ref(ME, "x"),
        lambda: store.by_ref(ME, "x", session="s"),
    ]
    for reading in readings:
        with pytest.raises(Corrupt) as caught:
            reading()
        assert (caught.value.session, caught.value.seq) == ("s", 50)
    assert len(store.read(ME, "s", after=50)) == 50


def test_damage_stops_nobody_else_and_nothing_is_done_twice(store, raw):
    store.commit([Append(ME, "s", (draft("a"),)), Create(ME, "t"), Create(ME, "u")])
    raw.hdel("segue:{acme/lin}:e:s", "1")
    retried = Append(ME, "s", (draft("a"),))
    with pytest.raises(Corrupt):
        store.commit([retried, Append(ME, "t", (draft("x"),))])
    renamed, broken, after = store.commit([Update(ME, "t", {"title": "x"}), retried, Append(ME, "u", (draft("y"),))])
    assert (renamed.version, after) == (2, Appended(1, (1,), 1))
    assert isinstance(broken, Unavailable)
    assert store.get(ME, "t").version == 2


def test_a_key_of_another_kind_is_damage_and_changes_nothing(store, raw):
    raw.delete("segue:{acme/lin}:s:s")
    raw.set("segue:{acme/lin}:s:s", "what is this")
    with pytest.raises(Corrupt):
        store.commit([Append(ME, "s", (draft("a"),))])
    with pytest.raises(Corrupt):
        store.get(ME, "s")
    assert raw.get("segue:{acme/lin}:s:s") == b"what is this"


# Lists.


def test_a_long_list_of_sessions_of_one_moment_gives_each_once(store):
    names = sorted((f"n{n:04}" for n in range(1_200)), reverse=True)
    for first in range(0, 1_200, 300):
        store.commit([Create(ME, name) for name in names[first : first + 300]])
    store.commit([Erase(ME, "s")])
    found, cursor = [], None
    while True:
        page = store.page(ME, Filter(), cursor, 97)
        found += [info.id for info in page.sessions]
        if (cursor := page.cursor) is None:
            break
    assert sorted(found, reverse=True) == names
    assert len(found) == 1_200


# Messages.


class Ear:
    """What a store's on_change was told."""

    def __init__(self, store: RedisStore) -> None:
        self.heard: queue.Queue[str | None] = queue.Queue()
        store.on_change = self.heard.put
        assert self.next() is None  # listening has begun

    def next(self) -> str | None:
        return self.heard.get(timeout=PATIENCE_SECONDS)


@pytest.fixture
def other(url: str) -> Iterator[RedisStore]:
    other = RedisStore(url)
    yield other
    other.close()


def test_a_commit_elsewhere_is_told_by_its_session_and_an_own_or_a_refused_one_is_not(store, other):
    ear = Ear(store)
    store.commit([Append(ME, "s", (draft("own"),))])
    other.commit([Append(ME, "s", (draft("refused"),), expect=7), Take(ME, "s", "run", 1_000_000)])
    other.commit([Take(ME, "s", "second", 1_000_000)])
    other.commit([Append(ME, "s", (draft("own"),)), Create(ME, "t"), Create(ME, "u")])
    assert [ear.next(), ear.next(), ear.next()] == ["s", "t", "u"]
    assert ear.heard.empty()


def test_a_listener_that_was_cut_listens_again_and_says_that_it_may_have_missed_something(store, other, raw):
    ear = Ear(store)
    for client in raw.client_list(_type="pubsub"):
        raw.client_kill(client["addr"])
    assert ear.next() is None
    other.commit([Append(ME, "s", (draft("x"),))])
    assert ear.next() == "s"


# A cluster.


@pytest.fixture(scope="module")
def cluster() -> Iterator[redis_cluster.Cluster]:
    with redis_cluster.cluster() as cluster:
        yield cluster


def scopes_by_node(store: RedisStore, cluster: redis_cluster.Cluster) -> dict[int, ScopeKey]:
    """A scope on each node, by the node's port."""
    found: dict[int, ScopeKey] = {}
    for n in range(200):
        scope = ScopeKey("acme", f"user-{n}")
        slot = redis.crc.key_slot(store._keys.tag(scope))
        found.setdefault(cluster.owner_of(slot).port, scope)
    assert len(found) == redis_cluster.NODES
    return found


def test_any_node_of_a_cluster_opens_it_and_a_commit_reaches_all_nodes(cluster):
    store = RedisStore(f"redis://127.0.0.1:{cluster.nodes[1].port}/0", prefix="reach")
    scopes = scopes_by_node(store, cluster)
    store.commit([Create(scope, "s") for scope in scopes.values()])
    done = store.commit([Append(scope, "s", (draft("a"),)) for scope in scopes.values()] * 2)
    assert done == [Appended(1, (1,), 1)] * 3 + [Appended(1, (1,), 0)] * 3
    assert store.scopes(None, 10) == sorted(scopes.values())
    assert damage(store) == []
    store.close()


def test_a_slot_that_moves_while_somebody_writes_loses_nothing(cluster):
    store = RedisStore(cluster.url, prefix="moved")
    (port, scope), (elsewhere, _), *_ = scopes_by_node(store, cluster).items()
    store.commit([Create(scope, "s"), *(Append(scope, "s", (draft(f"e{n}"),)) for n in range(20))])
    slot = redis.crc.key_slot(store._keys.tag(scope))
    written: list[str] = []
    is_over = threading.Event()

    def write() -> None:
        mine = RedisStore(cluster.url, prefix="moved")
        while not is_over.is_set():
            try:
                mine.commit([Append(scope, "s", (draft(f"w{len(written)}"),))])
            except (Unavailable, OutcomeUnknown):
                continue
            written.append(f"w{len(written)}")
        mine.close()

    writer = threading.Thread(target=write)
    writer.start()
    with redis.Redis(port=port) as old, redis.Redis(port=elsewhere) as new:
        names = {
            node: client.execute_command("CLUSTER", "MYID").decode() for node, client in ((port, old), (elsewhere, new))
        }
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[port])
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[elsewhere])
        while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 2):
            old.execute_command("MIGRATE", "127.0.0.1", elsewhere, "", 0, 5_000, "KEYS", *keys)
        for client in (new, old):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[elsewhere])
        told = len(written)
        gone_on = threading.Event()
        while len(written) < told + 5:
            gone_on.wait(0.01)
        is_over.set()
        writer.join()
    stored = [entry.id for entry in store.read(scope, "s")]
    assert stored == [*(f"e{n}" for n in range(20)), *written][: len(stored)]
    assert len(stored) >= 20 + len(written)
    assert damage(store) == []
    store.close()


def test_a_node_that_is_away_stops_its_own_scopes_alone():
    with redis_cluster.cluster() as cluster:
        for node in cluster.nodes:
            with redis.Redis.from_url(node.url) as raw:
                raw.config_set("cluster-require-full-coverage", "no")
        store = RedisStore(cluster.url)
        scopes = scopes_by_node(store, cluster)
        store.commit([Create(scope, "s") for scope in scopes.values()])
        other = RedisStore(cluster.url)
        other.commit([Create(scope, "t") for scope in scopes.values()])
        dead = cluster.nodes[2]
        dead.kill()
        done = store.commit([Append(scope, "s", (draft("a"),)) for scope in scopes.values()])
        for scope, answer in zip(scopes.values(), done, strict=True):
            if scope == scopes[dead.port]:
                assert isinstance(answer, Unavailable)
            else:
                assert answer == Appended(1, (1,), 1)
        # Whichever node the ear listened at, it hears of the others again.
        alive = next(scope for port, scope in scopes.items() if port != dead.port)
        heard = threading.Event()
        store.on_change = lambda session: heard.set() if session == "t" else None
        count = 0
        while not heard.is_set():
            other.commit([Append(alive, "t", (draft(f"{count}"),))])
            count += 1
            heard.wait(0.1)
        dead.start()
        cluster.wait()
        assert store.commit([Append(scopes[dead.port], "s", (draft("a"),))]) == [Appended(1, (1,), 1)]
        store.close()
        other.close()


def test_large_entries_are_read_in_pieces_by_kind_and_by_ref(store):
    """Each call of a script ends when it has looked at some megabytes."""
    text = os.urandom(200_000).hex()  # hardly packs
    kinds = ["message", "note"]
    for n in range(40):
        entry = draft(f"e{n}", text, refs=("x",))._replace(kind=kinds[n % 2])
        store.commit([Append(ME, "s", (entry,))])
    odd, even = list(range(1, 41, 2)), list(range(2, 41, 2))
    assert [entry.seq for entry in store.read(ME, "s", kinds=("message",))] == odd
    assert [entry.seq for entry in store.read(ME, "s", kinds=("note",), reverse=True)] == even[::-1]
    assert [entry.seq for entry in store.read(ME, "s", kinds=("note",), after=3, upto=39, limit=18)] == even[1:19]
    assert [hit.entry.seq for hit in store.by_ref(ME, "x", session="s")] == list(range(1, 41))
    assert [hit.entry.seq for hit in store.by_ref(ME, "x", session="s", reverse=True, limit=7)] == list(
        range(40, 33, -1)
    )


def test_a_commit_is_of_one_moment_also_where_a_fork_has_to_be_asked_about(store, other):
    store.commit([Append(ME, "s", (draft("a"),)), Fork(Create(ME, "f"), "s", 1), Create(ME, "z")])
    other.commit([Append(ME, name, (draft("b"),)) for name in ("z", "f", "s")])  # it does not know yet what f shares
    assert len({store.read(ME, name, after=0)[-1].created_us for name in ("z", "f", "s")}) == 1
    assert [info.id for info in store.page(ME, Filter(), None, 10).sessions] == ["z", "s", "f"]
