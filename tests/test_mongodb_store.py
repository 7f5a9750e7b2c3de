"""The MongoDB store: the contract, on a strict stand-in by the real driver, and on a server where one is given."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pymongo import MongoClient

from fakes.mongodb import Server, replica_set
from segue.stores.mongodb import MongoStore
from segue.testing import StoreSuite

# In the environment, since the suite's child processes make stores too.
STAND_IN, GIVEN = "SEGUE_TEST_MONGODB_STAND_IN", "SEGUE_TEST_MONGODB_URL"


def prefix_of(directory: Path) -> str:
    """What the suite knows as a directory is a prefix of the collections here."""
    prefix = f"s_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"
    _made.add(prefix)
    return prefix


_made: set[str] = set()


@pytest.fixture(scope="class")
def stand_in() -> Iterator[Server]:
    # What a killed process left open is in the way for a while: two seconds here, a minute on a server.
    with replica_set(idle_seconds=2.0) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(STAND_IN, server.url)
        yield server
        assert server.unheard == []


@pytest.mark.usefixtures("stand_in")
class TestOnTheStandIn(StoreSuite):
    def make_store(self, directory: Path) -> MongoStore:
        return MongoStore(os.environ[STAND_IN], prefix=prefix_of(directory), lock_timeout=timedelta(seconds=60))


@pytest.fixture(scope="class")
def given() -> Iterator[None]:
    """The given server, rid of this run's collections at the end."""
    yield
    with MongoClient(os.environ[GIVEN]) as client:
        database = client.get_default_database("segue")
        for name in database.list_collection_names():
            if name.partition(".")[0] in _made:
                database.drop_collection(name)


if os.environ.get(GIVEN):

    @pytest.mark.usefixtures("given")
    @pytest.mark.server
    class TestOnAServer(StoreSuite):
        def make_store(self, directory: Path) -> MongoStore:
            return MongoStore(os.environ[GIVEN], prefix=prefix_of(directory), lock_timeout=timedelta(seconds=90))

else:  # no package of one is to be had, so that this is skipped also where servers are required

    @pytest.mark.skip(reason=f"no MongoDB on this machine; give a replica set in {GIVEN}")
    def test_the_suite_on_a_server() -> None: ...
