"""A store that Segue does not ship, in a hundred lines, held to the contract by six."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from segue import store as contract
from segue.errors import Closed, NotDone
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import Filter, Op, Page, Report, Result
from segue.stores.memory import MemoryStore
from segue.testing import StoreSuite


class Replica(MemoryStore):
    """A store in memory whose clock stands still while old operations are done again."""

    at_us: int | None = None

    def now_us(self) -> int:
        return super().now_us() if self.at_us is None else self.at_us


class JournalStore:
    """
    Sessions as a journal of operations: one JSON line a commit, done again in memory by each handle.

    Simple, and slow to open when the journal is long. It is not durable: the file is not synced.
    """

    name = "journal"
    capabilities = frozenset({"processes"})
    lanes = 1

    def __init__(self, path: Path) -> None:
        self.on_change: Callable[[str | None], None] | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._replica = Replica()
        self._done = 0  # bytes of the journal that the replica has seen
        self._is_closed = False

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        with self._current(fcntl.LOCK_EX) as replica:
            at_us = replica.now_us()
            line = msgspec.json.encode([at_us, [[type(op).__name__, op] for op in ops]]) + b"\n"
            os.ftruncate(self._file, self._done)  # a line that a killed process left unfinished
            written = os.pwrite(self._file, line, self._done)
            assert written == len(line), "the disk is full"
            return self._apply(line)

    @contextmanager
    def _current(self, lock: int) -> Iterator[Replica]:
        """The replica with all that any handle has written, while nobody else writes."""
        with self._lock:
            if self._is_closed:
                raise Closed("this handle was closed; open another")
            fcntl.flock(self._file, lock)
            try:
                news = os.pread(self._file, os.fstat(self._file).st_size - self._done, self._done)
                for line in news.splitlines(keepends=True):
                    if line.endswith(b"\n"):
                        self._apply(line)
                yield self._replica
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _apply(self, line: bytes) -> list[Result | NotDone]:
        self._done += len(line)
        at_us, named = json.loads(line)
        ops = [self._op(name, fields) for name, fields in named]
        self._replica.at_us = at_us
        try:
            return self._replica.commit(ops)
        finally:
            self._replica.at_us = None

    def _op(self, name: str, fields: dict[str, Any]) -> Op:
        changes = fields.get("changes", {})
        if changes.get("config") is not None:  # bytes of which only this store knows that they are
            changes["config"] = base64.b64decode(changes["config"])
        op: Op = msgspec.convert(fields, getattr(contract, name), builtin_types=())
        return op

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.get(scope, session)

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.find(scope, key)

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.page(scope, filter, cursor, limit)

    def read(self, scope: ScopeKey, session: str, **bounds: Any) -> list[Entry]:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.read(scope, session, **bounds)

    def by_ref(self, scope: ScopeKey, ref: str, **bounds: Any) -> list[Hit]:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.by_ref(scope, ref, **bounds)

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.scopes(after, limit)

    def now_us(self) -> int:
        return self._replica.now_us()

    def shift_clock(self, us: int) -> None:
        self._replica.shift_clock(us)

    def check(self, *, deep: bool) -> list[Report]:
        with self._current(fcntl.LOCK_SH) as replica:
            return replica.check(deep=deep)

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)


class TestJournalStore(StoreSuite):
    shares_directory = False  # a long journal takes long to open

    def make_store(self, directory: Path) -> JournalStore:
        return JournalStore(directory / "journal.jsonl")


def test_the_example_is_a_store_for_the_type_checker_too(tmp_path: Path) -> None:
    store: contract.Store = JournalStore(tmp_path / "journal.jsonl")
    store.close()
