"""The Redis store: the contract on one server and on a cluster."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import redis_cluster
import servers
from segue.model import ScopeKey
from segue.stores.redis import RedisStore
from segue.testing import StoreSuite
from segue.testing.append import AppendTests, CheckOrderTests, CommitTests, StateTests
from segue.testing.attributes import CreateTests
from segue.testing.erasure import EraseTests, HollowTests, SharedEraseTests
from segue.testing.forks import ForkTests
from segue.testing.handles import CheckTests
from segue.testing.ids import InheritedIdTests, RetryTests
from segue.testing.lease import LeaseTests
from segue.testing.listing import FilterTests, LifetimeTests, PageTests, ScopeListTests
from segue.testing.names import NearTwinTests, OwnerTests
from segue.testing.processes import CrashTests, ProcessTests
from segue.testing.queue import QueueTests
from segue.testing.reading import DamageTests, ReadTests, RefTests
from stores import FULL

pytestmark = [pytest.mark.server, pytest.mark.timeout(3_000 if FULL else 300)]

# In the environment, since the suite's child processes make stores too.
SERVER, CLUSTER = "SEGUE_TEST_REDIS_SERVER", "SEGUE_TEST_REDIS_CLUSTER"


def prefix_of(directory: Path) -> str:
    """What the suite knows as a directory is a prefix here."""
    return f"s_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A database for this module, on the run's server."""
    with servers.database("redis") as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SERVER, url)
        yield url


@pytest.mark.usefixtures("server_url")
class TestRedisStore(StoreSuite):
    def make_store(self, directory: Path) -> RedisStore:
        return RedisStore(os.environ[SERVER], prefix=prefix_of(directory), pool_size=4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[redis_cluster.Cluster]:
    """Three nodes for this module."""
    with redis_cluster.cluster() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLUSTER, cluster.url)
        yield cluster


class Brief(AppendTests, CommitTests, ForkTests, SharedEraseTests, RefTests, PageTests, CrashTests, ProcessTests):
    """The areas in which operations need several sessions' keys, and killed processes."""


@pytest.mark.usefixtures("cluster")
class TestRedisCluster(StoreSuite if FULL else Brief):  # type: ignore[misc]
    """The same on three nodes: every key that a script touches is named, and lies in the scope's slot."""

    def make_store(self, directory: Path) -> RedisStore:
        return RedisStore(os.environ[CLUSTER], prefix=prefix_of(directory), pool_size=4)


class Everywhere(dict):
    """As if every scope had three shards."""

    def __contains__(self, scope: object) -> bool:
        return isinstance(scope, ScopeKey) and "\0" not in scope.user

    def __missing__(self, scope: ScopeKey) -> int:
        return 3

    def get(self, scope: ScopeKey, default: object = None) -> int:
        return 3

    def __bool__(self) -> bool:
        return True


class Keyless(
    AppendTests, CheckOrderTests, StateTests, EraseTests, HollowTests, SharedEraseTests, LeaseTests, QueueTests
):
    """What gives no key to a session that has none."""


class Listed(ReadTests, RefTests, DamageTests, PageTests, FilterTests, LifetimeTests, ScopeListTests, CheckTests):
    """What is found and read."""


class Named(CreateTests, NearTwinTests, OwnerTests, RetryTests, InheritedIdTests):
    """What is found by name."""


@pytest.mark.usefixtures("server_url")
class TestShards(Keyless, Listed, Named, LeaseTests, QueueTests):
    """The contract with the sessions of each scope spread over shards, but for keys that would move between them."""

    def make_store(self, directory: Path) -> RedisStore:
        store = RedisStore(os.environ[SERVER], prefix=prefix_of(directory), pool_size=4)
        store._shards._counts = Everywhere()
        return store
