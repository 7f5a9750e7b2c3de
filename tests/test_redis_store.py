"""The Redis store: the contract on one server and on a cluster."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import redis_cluster
import servers
from segue.stores.redis import RedisStore
from segue.testing import StoreSuite

pytestmark = pytest.mark.server

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


@pytest.mark.usefixtures("cluster")
class TestRedisCluster(StoreSuite):
    """The same on three nodes: every key that a script touches is named, and lies in the scope's slot."""

    def make_store(self, directory: Path) -> RedisStore:
        return RedisStore(os.environ[CLUSTER], prefix=prefix_of(directory), pool_size=4)
