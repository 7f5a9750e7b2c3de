"""
The engine: carries operations to the store, many callers in one commit.

Operations of all callers wait in a lane and are committed together. A caller that finds its lane
free commits by itself, without a change of thread; under load one thread commits for all. An async
caller gives its operation to the lane and is told on its own event loop: one hop.

The one hard invariant: a caller is answered after the commit that holds its operation, never before.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .errors import Closed, Corrupt, NotDone, SegueError, Unavailable
from .store import Erase, Op, Release, Result, Store, Update

if TYPE_CHECKING:  # a program that is not async never pays for importing these
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

GROUP_MAX = 256
"""Most operations of one commit."""

HOPS_MAX = 32
"""Most blocking calls that async callers have under way at a time; more wait their turn."""

LINGER_MAX_SECONDS = 0.002
"""Longest a crowded lane waits for the callers it has just answered to come back."""

WATCH_SECONDS = (0.002, 0.05)
"""Shortest and longest pause between two looks of a follower, where nobody tells of other processes."""

WATCH_TOLD_SECONDS = 5.0
"""The same where we are told: only a net below the telling."""

_FREEING = (Release, Erase, Update)
"""After these somebody who waits for a session's lease may have it, or must learn that it is over."""

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Job:
    """One operation under way, and whom to tell."""

    __slots__ = ("error", "loop", "op", "result", "waiter")

    def __init__(self, op: Op, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.op = op
        self.result: Result = None
        self.error: BaseException | None = None
        self.loop = loop
        self.waiter: Any = None  # a locked lock (blocking callers) or an asyncio future

    def answer(self) -> Result:
        if self.error is not None:
            raise self.error
        return self.result


class Lane:
    """A queue of operations with one commit at a time."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._queue: deque[Job] = deque()
        self._busy = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._crowd = 0  # operations in the last commit
        self._took = 0.0  # seconds of the last commit
        self._closed = False

    def call(self, op: Op) -> Result:
        job = Job(op)
        # The fast way: nobody is committing and nobody waits, so this thread does it. Ctrl-C may come
        # between any two steps, but not between taking a lock and the block of a ``with``.
        if self._crowd < 2 and not self._queue and not self._busy.locked():
            with self._busy:
                self._commit([job])
            if self._queue:
                self._rouse()
            return job.answer()
        job.waiter = threading.Lock()
        job.waiter.acquire()
        self.put(job)
        job.waiter.acquire()
        return job.answer()

    def put(self, *jobs: Job) -> None:
        with self._start:  # what gets in before the end is worked off; nothing gets in behind it
            if self._closed:
                raise Closed("this database handle is closed; open the store again")
            self._queue.extend(jobs)
        self._rouse()

    def close(self) -> None:
        with self._start:
            self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _rouse(self) -> None:
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()
        self._wake.set()

    def _work(self) -> None:
        while not (self._closed and not self._queue):
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._linger()
                with self._busy:  # given back between commits, so that nobody who waits for it starves
                    jobs = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX))]
                    self._commit(jobs)
                    _tell(jobs)

    def _linger(self) -> None:
        # Callers that were just answered come back within microseconds: one commit for all of them
        # costs less than two. Nobody waits who was alone.
        if self._crowd < 2 or self._closed:
            return
        until = time.perf_counter() + min(self._took, LINGER_MAX_SECONDS)
        while len(self._queue) < self._crowd and time.perf_counter() < until:
            time.sleep(0.00002)

    def _commit(self, jobs: list[Job]) -> None:
        began = time.perf_counter()
        try:
            for job, result in zip(jobs, self._store.commit([job.op for job in jobs]), strict=True):
                if isinstance(result, NotDone):
                    job.error = result
                else:
                    job.result = result
        except Corrupt as error:
            self._commit_apart(jobs, error)
        except BaseException as error:  # noqa: BLE001
            for job in jobs:  # whatever it is, it belongs to the callers; a lane does not end by it
                job.error = error
        finally:
            self._crowd = len(jobs)
            self._took = time.perf_counter() - began

    def _commit_apart(self, jobs: list[Job], error: Corrupt) -> None:
        """One damaged session must not stop the others, nor its id reach their callers: each by itself."""
        if len(jobs) == 1:
            jobs[0].error = error
            return
        for job in jobs:
            self._commit([job])


def _tell(jobs: list[Job]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        if job.loop is None:
            job.waiter.release()
        else:
            loops.setdefault(job.loop, []).append(job)
    for loop, mine in loops.items():
        _call_soon(loop, _settle, mine)


def _settle(jobs: list[Job]) -> None:
    for job in jobs:
        if not job.waiter.done():
            if job.error is not None:
                job.waiter.set_exception(job.error)
            else:
                job.waiter.set_result(job.result)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop was closed while its operation was under way: nobody is left to be told.
        if not loop.is_closed():
            raise


class Pause(NamedTuple):
    """
    A step of a procedure that waits for a lease: go on when it may be free, or after some seconds.

    ``before`` runs of this process must give theirs back first: so many times it is not woken.
    """

    session: str
    seconds: float
    before: int = 0


class Changes:
    """Tells waiters in this process that a session changed. Holds no thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, dict[int, tuple[Callable[[bool], None], bool]]] = {}
        self._numbers = itertools.count()

    def tell(self, session: str | None, op: Op | None = None) -> None:
        """Wake those that wait for this session (None: for any), after an operation of ours (None: another's)."""
        if not self._waiters:
            return
        is_freeing = op is None or isinstance(op, _FREEING)
        with self._lock:
            groups = list(self._waiters.values()) if session is None else [self._waiters.get(session, {})]
            calls = [call for group in groups for call, for_lease in group.values() if is_freeing or not for_lease]
        for call in calls:
            call(op is None)

    def add(self, session: str, call: Callable[[bool], None], *, for_lease: bool) -> int:
        with self._lock:
            number = next(self._numbers)
            self._waiters.setdefault(session, {})[number] = (call, for_lease)
            return number

    def remove(self, session: str, number: int) -> None:
        with self._lock:
            group = self._waiters.get(session, {})
            group.pop(number, None)
            if not group:
                self._waiters.pop(session, None)


class Watch:
    """
    Notices changes of one session from its making on, so that none falls between a look and a wait.

    A store that is not told of other processes' commits is looked at again after a pause that grows.
    """

    def __init__(self, engine: Engine, session: str, *, for_lease: bool = False) -> None:
        self._engine = engine
        self._session = session
        self._event = threading.Event()
        self._wake: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._changes = self._before = 0
        self._number = engine.changes.add(session, self._changed, for_lease=for_lease)
        self._longest = WATCH_TOLD_SECONDS if engine.is_told else WATCH_SECONDS[1]
        self._pause = self._longest if engine.is_told else WATCH_SECONDS[0]

    def _changed(self, is_foreign: bool) -> None:  # noqa: FBT001 - a callback
        with self._lock:
            self._changes += 1
            if not is_foreign and self._changes <= self._before:
                return
            self._event.set()
        if self._wake is not None:
            self._wake()

    def wait(self, seconds: float, before: int = 0) -> None:
        """Block until something changed since the last wait, or the time is over; see ``Pause`` for ``before``."""
        self._expect(before)
        self._event.wait(seconds)
        self._seen()

    async def await_(self, seconds: float, before: int = 0) -> None:
        """The same without a thread."""
        import asyncio

        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._wake = lambda: _call_soon(loop, changed.set)
        self._expect(before)
        if not self._event.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), seconds)
        self._seen()

    def _expect(self, before: int) -> None:
        with self._lock:
            self._before = before
            if self._changes > before:  # between the last wait and now
                self._event.set()

    def pause(self, most: float | None) -> float:
        """How long a follower waits until it looks again: longer and longer while nothing happens."""
        pause, self._pause = self._pause, min(self._pause * 1.5, self._longest)
        return pause if most is None else max(0.0, min(pause, most))

    def _seen(self) -> None:
        with self._lock:
            if self._event.is_set() and not self._engine.is_told:
                self._pause = WATCH_SECONDS[0]
            self._event.clear()
            self._changes = 0

    def close(self) -> None:
        self._engine.changes.remove(self._session, self._number)


class Engine:
    """
    A store with its lanes, its waiters and the threads for async callers.

    One engine serves any number of threads and event loops. After ``os.fork`` the child's engine
    starts anew: it has no jobs, no waiters and no threads of the parent.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.changes = Changes()
        self._begin()
        _engines.add(self)
        store.on_change = self._changed

    def _begin(self) -> None:
        self._lanes = [Lane(self.store, f"segue-lane-{n}") for n in range(max(1, self.store.lanes))]
        self._hops: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.changes = Changes()
        self.keeper = Keeper(self)
        self._bundles: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        self._closed = False

    def _changed(self, session: str | None) -> None:
        self.changes.tell(session)

    @property
    def is_told(self) -> bool:
        """True when every commit that matters is told: the store tells, or there is only this process."""
        return "notify" in self.store.capabilities or "processes" not in self.store.capabilities

    def _lane(self, op: Op) -> Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        # One session, one lane: callers of a busy session share commits instead of waiting for row locks.
        return self._lanes[hash(_session_of(op)) % len(self._lanes)]

    def do(self, op: Op) -> Any:
        """Commit one operation together with those of other callers; its result, or its typed error."""
        self._check_open()
        result = self._lane(op).call(op)
        self.changes.tell(_session_of(op), op)
        return result

    async def ado(self, op: Op) -> Any:
        """The same for an async caller. Cancelling stops the waiting, not the operation."""
        import asyncio

        self._check_open()
        loop = asyncio.get_running_loop()
        job = Job(op, loop)
        job.waiter = loop.create_future()
        # What the loop's tasks ask for in one round goes to the lane together, which is then woken once.
        bundle = self._bundles.setdefault(loop, [])
        if not bundle:
            loop.call_soon(self._hand_over, loop)
        bundle.append(job)
        result = await job.waiter
        self.changes.tell(_session_of(op), op)
        return result

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._bundles.pop(loop, [])
        lanes: dict[Lane, list[Job]] = {}
        for job in jobs:
            lanes.setdefault(self._lane(job.op), []).append(job)
        for lane, mine in lanes.items():
            try:
                lane.put(*mine)
            except Closed as error:
                for job in mine:
                    job.error = error
                _settle(mine)

    def hop(self, function: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
        """Run blocking code on one of the engine's threads."""
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            self._check_open()
            if self._hops is None:
                self._hops = ThreadPoolExecutor(HOPS_MAX, thread_name_prefix="segue-hop")
            return self._hops.submit(function, *args, **options)

    async def ahop(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Await blocking code in one hop. Cancelling stops the waiting, not the code."""
        import asyncio

        return await asyncio.wrap_future(self.hop(function, *args, **options))

    def drive(self, steps: Generator[Pause, None, T]) -> T:
        """Run a waiting procedure on this thread."""
        watch: Watch | None = None
        try:
            while True:
                pause = next(steps)
                if watch is None:
                    watch = Watch(
                        self, pause.session, for_lease=True
                    )  # and look once more: it may have changed just before
                else:
                    watch.wait(pause.seconds, pause.before)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()
            if watch is not None:
                watch.close()

    async def adrive(self, steps: Generator[Pause, None, T]) -> T:
        """
        Run a waiting procedure from an event loop: its steps hop to a thread, its pauses hold none.

        When the caller is cancelled, a step that is under way is let finish and then the procedure
        is closed, which gives back what it took.
        """
        import asyncio

        watch: Watch | None = None
        step = self.hop(_step, steps)
        try:
            while True:
                pause, value = await asyncio.shield(asyncio.wrap_future(step))
                if pause is None:
                    return value  # type: ignore[no-any-return]
                if watch is None:
                    watch = Watch(self, pause.session, for_lease=True)
                else:
                    await watch.await_(pause.seconds, pause.before)
                step = self.hop(_step, steps)
        except BaseException:
            await _settled(self.hop(_abandon, steps, step))
            raise
        finally:
            if watch is not None:
                watch.close()

    def close(self) -> None:
        """Finish what was accepted, then release everything. Idempotent."""
        if self._closed:
            return
        self.keeper.close()
        with self._lock:
            self._closed = True
        for lane in self._lanes:
            lane.close()
        if self._hops is not None:
            # Closed from one of its own threads (the async face), the pool cannot wait for itself.
            self._hops.shutdown(wait=not threading.current_thread().name.startswith("segue-hop"))
        self.store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this database handle is closed; open the store again")


def _step(steps: Generator[Pause, None, T]) -> tuple[Pause | None, Any]:
    try:
        return next(steps), None
    except StopIteration as end:
        return None, end.value


def _abandon(steps: Generator[Pause, None, Any], step: Future[Any]) -> None:
    """Let the step that is under way finish, then give back what the procedure took."""
    try:
        _pause, result = step.result()
    except BaseException:  # noqa: BLE001 - the step failed, so it has cleaned up; its caller has the error
        result = None
    if result is not None:
        result.release()
    steps.close()


async def _settled(future: Future[None]) -> None:
    """Wait for the future however often the waiting is cancelled: the cancellation goes on afterwards."""
    import asyncio

    waiting = asyncio.wrap_future(future)
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            continue
    waiting.result()


def _session_of(op: Op) -> str:
    session = getattr(op, "session", None)
    if session is None:
        session = getattr(op, "id", None) or op.create.id  # type: ignore[union-attr]
    return str(session)


class Kept:
    """
    A lease that the keeper renews while its run is there.

    ``renew`` is a method of the run, which is not held: a run that everybody has forgotten expires.
    """

    __slots__ = ("due", "lost", "period", "renew", "renewed")

    def __init__(self, renew: Callable[[], object], period: float, lost: Callable[[SegueError], None]) -> None:
        self.renew = weakref.WeakMethod(renew)
        self.lost = weakref.WeakMethod(lost)
        self.period = period
        self.renewed = time.monotonic()
        self.due = self.renewed + period


class Keeper:
    """One thread that renews the leases of this process's runs, each at a third of its time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._kept: set[Kept] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, kept: Kept) -> None:
        with self._condition:
            self._kept.add(kept)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="segue-keeper", daemon=True)
                self._thread.start()
            self._condition.notify()

    def remove(self, kept: Kept) -> None:
        with self._condition:
            self._kept.discard(kept)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._kept.clear()
            self._condition.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                if self._closed:
                    return
                now = time.monotonic()
                due = [kept for kept in self._kept if kept.due <= now]
                if not due:
                    nearest = min((kept.due for kept in self._kept), default=now + 60)
                    self._condition.wait(max(0.0, nearest - now))
                    continue
            for kept in due:
                self._renew(kept)

    def _renew(self, kept: Kept) -> None:
        kept.due = time.monotonic() + kept.period
        renew, lost = kept.renew(), kept.lost()
        if renew is None or lost is None:
            self.remove(kept)
            return
        try:
            renew()
            kept.renewed = time.monotonic()
        except NotDone as error:
            if not isinstance(error, Unavailable):
                self.remove(kept)
                lost(error)
        except SegueError:
            kept.due = time.monotonic() + kept.period / 4  # unknown outcome: ask again soon


def _after_fork() -> None:
    for engine in list(_engines):
        engine._begin()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
