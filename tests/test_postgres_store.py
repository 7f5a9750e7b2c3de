"""The PostgreSQL store: the contract, directly, through a pooler and under row-level security."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from segue.stores.postgres import PostgresStore, apply
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


@pytest.fixture(scope="module")
def pooled_url(direct_url: str) -> Iterator[str]:
    """The module's database through a pooler in transaction mode."""
    with servers.pgbouncer(direct_url) as bouncer, pytest.MonkeyPatch.context() as patch:
        patch.setenv(POOLED, bouncer.url(direct_url))
        yield bouncer.url(direct_url)


@pytest.mark.usefixtures("pooled_url")
class TestThroughPgbouncer(StoreSuite):
    """The same through a pooler, which gives each transaction another connection."""

    def make_store(self, directory: Path) -> PostgresStore:
        return PostgresStore(os.environ[POOLED], schema=schema_of(directory), pool_size=4)


@pytest.fixture(scope="module")
def app_url(direct_url: str) -> str:
    """The module's database for a user who is neither owner nor superuser."""
    servers.role(direct_url, "segue_app", "LOGIN NOSUPERUSER NOBYPASSRLS")
    return servers.as_user(direct_url, "segue_app")


@pytest.mark.usefixtures("app_url")
class TestRowSecurity(StoreSuite):
    """The same as a user to whom the database shows one scope at a time."""

    def make_store(self, directory: Path) -> PostgresStore:
        schema, owner = schema_of(directory), os.environ[DIRECT]
        apply(owner, schema=schema, row_security=True, app_user="segue_app")
        return PostgresStore(
            servers.as_user(owner, "segue_app"), schema=schema, row_security=True, migrate=False, pool_size=4
        )
