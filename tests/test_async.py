"""The async face: any loop, any thread, and cancellation that leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from datetime import timedelta

import pytest

import segue
import stores

FULL = stores.FULL


def user(text):
    return {"role": "user", "content": text}


@pytest.fixture(params=stores.SHARED)
def url(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url:
        yield url


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 200))


def test_the_readme_works_async(url):
    async def main():
        async with await segue.aopen(url) as db:
            session = await db.scope(user="lin").open_key("chat")
            async with session.run() as run:
                await run.append(user("hi"))
                async with run.effect("publish") as effect:
                    effect.done({"ok": True})
                return await run.messages(), [entry.kind async for entry in session.history()]

    assert run(main()) == ([user("hi")], ["message", "effect", "effect"])


def test_a_long_history_comes_whole_through_the_async_iterators(url):
    async def main():
        async with await segue.aopen(url) as db:
            session = await db.scope().create()
            await session.append(*[user(str(n)) for n in range(950)])
            return [entry.seq async for entry in session.history()]

    assert run(main()) == list(range(1, 951))


def test_a_run_that_is_cancelled_while_it_waits_leaves_the_queue(url):
    async def main():
        async with await segue.aopen(url) as db:
            session = await db.scope().create()
            async with session.run():
                waiting = asyncio.create_task(_take(session))
                while (await session.refresh()).waiting == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                return (await session.refresh()).waiting

    assert run(main()) == 0


async def _take(session):
    async with session.run(policy="enqueue", wait=None):
        await asyncio.sleep(60)


def test_a_run_that_is_cancelled_at_any_moment_leaves_no_lease(url):
    async def main():
        async with await segue.aopen(url) as db:
            session = await db.scope().create()
            for step in range(60):
                task = asyncio.create_task(_take(session))
                for _ in range(step):
                    await asyncio.sleep(0)
                await asyncio.sleep(step / 40_000)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                info = await session.refresh()
                assert (info.lease, info.waiting) == (None, 0), step

    run(main())


def test_waiting_holds_no_thread(url):
    async def main():
        async with await segue.aopen(url) as db:
            session = await db.scope().create()
            async with session.run():
                tasks = [asyncio.create_task(_take(session)) for _ in range(100)]
                while (await session.refresh()).waiting < 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                threads = threading.active_count()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return threads

    assert run(main()) < 50


def test_an_append_that_is_cancelled_is_whole_or_absent(url):
    async def main():
        async with await segue.aopen(url) as db:
            session = await db.scope().create()
            for n in range(100):
                task = asyncio.create_task(session.append(user(f"{n}"), user(f"{n}")))
                await asyncio.sleep(random.Random(n).random() / 1_000)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            counts = Counter([entry.json()["content"] async for entry in session.history()])
            assert set(counts.values()) <= {2}

    run(main())


def test_a_loop_that_is_closed_under_a_call_disturbs_nobody(url):
    with segue.open(url) as db:
        session = db.scope().create()
        twin = segue.AsyncSession(db.engine, session)

        async def leave():
            asyncio.create_task(twin.append(user("left behind")))  # noqa: RUF006
            await asyncio.sleep(0)

        for _ in range(20):
            asyncio.run(leave())
        session.append(user("still here"))
        assert session.read(last=1)[0].json() == user("still here")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mixed_calls_of_threads_and_loops_half_of_them_cancelled_cross_leak_and_lose_nothing(url):
    """4 threads and 3 event loops on one handle; the sizes make 20,000 calls with SEGUE_TORTURE, else 2,000."""
    per_worker = (20_000 if FULL else 2_000) // 7
    failures: list[BaseException] = []
    acknowledged: dict[str, list[str]] = {}
    with segue.open(url) as db:
        sessions = {n: db.scope("t", f"user{n}").create().id for n in range(7)}

        def guard(work):
            def go(n):
                try:
                    acknowledged[sessions[n]] = work(n)
                except BaseException as error:
                    failures.append(error)

            return go

        def blocking(n):
            rng, mine = random.Random(n), []
            session = db.scope("t", f"user{n}").open(sessions[n])
            for number in range(per_worker):
                mine += _sync_call(session, rng, f"w{n}-{number}")
            return mine

        def looping(n):
            return asyncio.run(_async_calls(db, f"user{n}", sessions[n], random.Random(n), per_worker, n))

        threads = [threading.Thread(target=guard(blocking if n < 4 else looping), args=(n,)) for n in range(7)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert failures == []
        for n, id in sessions.items():
            session = db.scope("t", f"user{n}").open(id)
            found = [entry.id for entry in session.history()]
            assert set(acknowledged[id]) <= set(found)
            assert all(entry_id.startswith(f"w{n}-") for entry_id in found), "an entry of another session"
            assert len(found) == len(set(found)) == session.info.head
            assert (session.info.lease, session.info.waiting) == (None, 0)
            session.append(user("works"), ids=["end"])


def _sync_call(session, rng, id):
    what = rng.randrange(4)
    if what == 0:
        session.read(last=5)
    elif what == 1:
        with session.run(policy="enqueue") as run:
            run.append(user(id), ids=[id])
        return [id]
    elif what == 2:
        session.refresh()
    else:
        session.append(user(id), ids=[id])
        return [id]
    return []


async def _async_calls(db, user_name, session_id, rng, count, n):
    twin = segue.AsyncDatabase(db)
    session = await twin.scope("t", user_name).open(session_id)
    mine = []
    for number in range(0, count, 8):
        calls = [asyncio.create_task(_async_call(session, rng, f"w{n}-{number + k}")) for k in range(8)]
        await asyncio.sleep(rng.random() / 500)
        for call in calls[::2]:
            call.cancel()
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, list):
                mine += answer
            elif not isinstance(answer, asyncio.CancelledError):
                raise answer
    return mine


async def _async_call(session, rng, id):
    what = rng.randrange(4)
    if what == 0:
        await session.read(last=5)
    elif what == 1:
        async with session.run(policy="enqueue", wait=timedelta(seconds=120)) as run:
            await run.append(user(id), ids=[id])
        return [id]
    elif what == 2:
        await session.refresh()
    else:
        # A message is refused while one of our own runs is active; a fact never is.
        await session.append({"id": id}, kind="app.fact", format="json", ids=[id])
        return [id]
    return []
