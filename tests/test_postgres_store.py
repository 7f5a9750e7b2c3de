"""The PostgreSQL store: the contract, directly, through a pooler and under row-level security."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from segue.stores.postgres import PostgresStore
from segue.testing import StoreSuite

pytestmark = pytest.mark.server

# In the environment, since the suite's child processes make stores too.
DIRECT, POOLED = "SEGUE_TEST_DIRECT_URL", "SEGUE_TEST_POOLED_URL"


@pytest.fixture(scope="module", autouse=True)
def direct_url() -> Iterator[str]:
    """A database for this module, on the run's server."""
    with servers.database() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECT, url)
        yield url


def schema_of(directory: Path) -> str:
    """What the suite knows as a directory is a schema here."""
    return f"s_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


class TestPostgresStore(StoreSuite):
    def make_store(self, directory: Path) -> PostgresStore:
        return PostgresStore(os.environ[DIRECT], schema=schema_of(directory), pool_size=4)
