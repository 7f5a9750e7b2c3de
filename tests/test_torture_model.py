"""Random histories at the sizes of ``make torture``; cancellation's control."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

import segue
import servers
import stores
from segue import engine
from segue.stores.jsonl import JsonlStore
from segue.stores.mysql import MySQLStore
from segue.stores.postgres import PostgresStore
from segue.stores.redis import RedisStore
from segue.stores.sqlite import SQLiteStore
from segue.testing import StoreCase
from segue.testing.model import histories
from suite_runner import run

FULL = stores.FULL
HISTORIES, STEPS = (300, 50) if FULL else (8, 40)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(6_000)]


class SqliteCase(StoreCase):
    def make_store(self, directory):
        return SQLiteStore(directory / "s.db")


class JsonlCase(StoreCase):
    def make_store(self, directory):
        return JsonlStore(directory / "folder")


class PostgresCase(StoreCase):
    def make_store(self, directory):
        schema = f"m{hash(str(directory)) % 10**15}"
        return PostgresStore(os.environ["SEGUE_TEST_MODEL_URL"], schema=schema, pool_size=2)


class MySQLCase(StoreCase):
    def make_store(self, directory):
        return MySQLStore(os.environ["SEGUE_TEST_MODEL_URL"], pool_size=2)


class RedisCase(StoreCase):
    def make_store(self, directory):
        return RedisStore(os.environ["SEGUE_TEST_MODEL_URL"], prefix=f"m{hash(str(directory)) % 10**15}", pool_size=2)


def play(case, tmp_path, record_property):
    run(case, lambda case: histories(case, examples=HISTORIES, steps=STEPS), tmp_path)
    for name, value in {"cases": HISTORIES, "steps": STEPS, "divergences": 0}.items():
        record_property(name, value)


@pytest.mark.parametrize("case", [SqliteCase, JsonlCase], ids=["sqlite", "jsonl"])
def test_random_histories_say_and_show_what_the_model_does(case, tmp_path, record_property):
    play(case(), tmp_path, record_property)


@pytest.mark.server
@pytest.mark.parametrize("store", ["postgres", "mysql", "redis"])
def test_random_histories_say_and_show_what_the_model_does_on_a_server(store, tmp_path, record_property, monkeypatch):
    case = {"postgres": PostgresCase, "mysql": MySQLCase, "redis": RedisCase}[store]
    with servers.database(store) as url:
        monkeypatch.setenv("SEGUE_TEST_MODEL_URL", url)
        play(case(), tmp_path, record_property)


# Cancellation


def leave_a_lease(url) -> int:
    """How many runs, cancelled at some moment, left a lease behind."""

    async def main():
        left = 0
        async with await segue.aopen(url) as db:
            for step in range(30):
                session = await db.scope().create()
                task = asyncio.create_task(hold(session))
                for _ in range(step):
                    await asyncio.sleep(0.0005)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await asyncio.sleep(0.03)
                left += (await session.refresh()).lease is not None
        return left

    return asyncio.run(main())


async def hold(session):
    async with session.run():
        await asyncio.sleep(60)


def test_cancelled_runs_leave_no_lease_and_the_test_notices_one_that_does(tmp_path, monkeypatch, record_property):
    commit = SQLiteStore.commit

    def slowly(self, ops):
        time.sleep(0.005)  # so that cancellations meet a step under way
        return commit(self, ops)

    monkeypatch.setattr(SQLiteStore, "commit", slowly)
    assert leave_a_lease(f"sqlite:///{tmp_path}/sound.db") == 0
    monkeypatch.setattr(engine, "_abandon", lambda _steps, _step: None)
    left = leave_a_lease(f"sqlite:///{tmp_path}/broken.db")
    record_property("left", left)
    assert left > 0
