"""The MySQL store: the contract, on MariaDB where no MySQL is at hand."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pymysql
import pytest

import servers
from segue.stores.mysql import MySQLStore
from segue.testing import StoreSuite

pytestmark = pytest.mark.server

URL = "SEGUE_TEST_MYSQL_MODULE_URL"
"""In the environment, since the suite's child processes make stores too."""


@pytest.fixture(scope="module", autouse=True)
def module_url() -> Iterator[str]:
    """A database for this module; others whose names begin with its name are dropped with it."""
    with servers.database("mysql") as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL, url)
        yield url
        with admin(url) as conn, conn.cursor() as cursor:
            cursor.execute("SHOW DATABASES LIKE %s", (urlsplit(url).path[1:].replace("_", r"\_") + r"\_%",))
            for (name,) in cursor.fetchall():
                cursor.execute(f"DROP DATABASE {name}")


def admin(url: str) -> pymysql.Connection:
    parts = urlsplit(url)
    user, password = unquote(parts.username or "root"), unquote(parts.password or "")
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=user, password=password, autocommit=True, ssl_disabled=True
    )


@functools.cache
def database_of(url: str, directory: Path) -> str:
    """What the suite knows as a directory is a database here."""
    parts = urlsplit(url)
    name = f"{parts.path[1:]}_{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"
    with admin(url) as conn:
        conn.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {name}")
    return parts._replace(path=f"/{name}").geturl()


class TestMySQLStore(StoreSuite):
    def make_store(self, directory: Path) -> MySQLStore:
        return MySQLStore(database_of(os.environ[URL], directory), pool_size=4)
