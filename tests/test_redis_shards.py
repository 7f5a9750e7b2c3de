"""Scopes whose sessions are spread over several slots of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

import redis_cluster
import segue
from segue import codec
from segue.errors import Exists, Invalid, Unsupported
from segue.model import Draft, Parent, ScopeKey
from segue.store import Append, Appended, Create, Erase, Filter, Fork, Update
from segue.stores.redis import RedisStore

pytestmark = pytest.mark.server

BOT = ScopeKey("acme", "bot")
SHARDS = {("acme", "bot"): 8}


def draft(id: str, **more: object) -> Draft:
    body = codec.encode(f"text of {id}")
    return Draft("message", "anthropic", "user", body, codec.digest(body), id, **more)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_cluster.cluster() as cluster:
        yield cluster.url


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return request.node.name[:60]


@pytest.fixture
def store(url: str, prefix: str) -> Iterator[RedisStore]:
    store = RedisStore(url, prefix=prefix, shards=SHARDS)
    yield store
    store.close()


def test_the_sessions_of_a_scope_lie_on_all_nodes_and_are_one_list(url, prefix, store):
    for n in range(60):
        made, done = store.commit([Create(BOT, f"s{n}"), Append(BOT, f"s{n}", (draft("a", refs=("x",)),))])
        assert (made.scope, done) == (BOT, Appended(1, (1,), 1))
    slots = {redis.crc.key_slot(key) for found in store._link.scan(f"{prefix}:{{*:s:*") for key in found}
    assert len(slots) == 8
    found, cursor = [], None
    while True:
        page = store.page(BOT, Filter(), cursor, 7)
        found += [info.id for info in page.sessions]
        assert {info.scope for info in page.sessions} == {BOT}
        if (cursor := page.cursor) is None:
            break
    assert found == [f"s{n}" for n in reversed(range(60))]
    assert [hit.session for hit in store.by_ref(BOT, "x")] == [f"s{n}" for n in range(60)]
    assert store.scopes(None, 10) == [BOT]
    assert [report.text for report in store.check(deep=True) if report.level != "ok"] == []


def test_a_handle_that_was_not_told_knows_the_shards(url, prefix, store):
    store.commit([Create(BOT, "s", key="k", entries=(draft("a"),))])
    other = RedisStore(url, prefix=prefix)
    assert other.get(BOT, "s").scope == other.find(BOT, "k").scope == BOT
    assert other.commit([Append(BOT, "s", (draft("b"),))]) == [Appended(2, (2,), 1)]
    other.close()


def test_forks_lie_with_their_parents_and_are_found_by_any_handle(url, prefix, store):
    store.commit([Create(BOT, "p", entries=(draft("a"), draft("b")))])
    store.commit([Fork(Create(BOT, f"f{n}", parent=Parent("p", 1)), "p", 1) for n in range(20)])
    other = RedisStore(url, prefix=prefix)
    for n in range(20):
        assert [entry.id for entry in other.read(BOT, f"f{n}")] == ["a"]
    (taken,) = other.commit([Create(BOT, "f3")])
    assert isinstance(taken, Exists)
    other.commit([Erase(BOT, "p"), *(Erase(BOT, f"f{n}") for n in range(20))])
    assert other.page(BOT, Filter(), None, 10).sessions == ()
    assert [report.text for report in other.check(deep=True) if report.level != "ok"] == []
    other.close()


def test_a_key_does_not_move_a_session_to_another_shard(store):
    store.commit([Create(BOT, "s", key="k0")])
    done = store.commit([Update(BOT, "s", {"key": f"k{n}", "title": "x"}) for n in range(1, 30)])
    refused = [answer for answer in done if isinstance(answer, Unsupported)]
    assert 0 < len(refused) < 29
    assert store.get(BOT, "s").version == 1 + 29 - len(refused)
    assert store.find(BOT, store.get(BOT, "s").key).id == "s"


def test_shards_are_declared_before_the_first_session_and_for_good(url, prefix, store):
    with pytest.raises(Invalid, match="has 8 shards for good"):
        RedisStore(url, prefix=prefix, shards={tuple(BOT): 4})
    with pytest.raises(Invalid, match="2 to 1,024 shards"):
        RedisStore(url, prefix=prefix, shards={("acme", "other"): 1})
    with segue.open(url, prefix=prefix) as db:
        db.scope("acme", "lin").create()
    with pytest.raises(Invalid, match="has sessions already"):
        RedisStore(url, prefix=prefix, shards={("acme", "lin"): 8})
