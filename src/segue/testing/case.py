"""
What every test of the contract starts from: two handles on the same data, and few words.

Writes go through ``a``; what was stored is read through ``b``, since a store is no witness for itself.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from segue import codec
from segue.errors import NotDone, NotFound
from segue.model import Draft, Entry, Lease, Parent, ScopeKey, SessionInfo, Usage, new_id
from segue.store import (
    Append,
    Appended,
    Create,
    Erase,
    Erased,
    Filter,
    Fork,
    Hollow,
    Op,
    Queued,
    Result,
    Store,
    Take,
    Update,
)

from .matrix import matrix_of

SECOND: Final = 1_000_000
"""One second of the store's clock, in microseconds."""

MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

ALL_STATUSES: Final = ("running", "idle", "paused", "completed", "archived")

_ids = itertools.count(1)
_directories: weakref.WeakKeyDictionary[type, Path] = weakref.WeakKeyDictionary()

Refusal = TypeVar("Refusal", bound=NotDone)


def draft(
    value: Any = None,
    *,
    id: str | None = None,
    kind: str = "message",
    format: str = "anthropic",
    origin: str = "user",
    refs: tuple[str, ...] = (),
    body: bytes | None = None,
    usage: Usage | None = None,
    occurred_us: int | None = None,
) -> Draft:
    """An entry to append; its id is fresh and its body names the id unless they are given."""
    id = id or f"e{next(_ids)}"
    if body is None:
        body = codec.encode(f"text of {id}" if value is None else value)
    return Draft(kind, format, origin, body, codec.digest(body), id, refs, occurred_us, usage)


def drafts(count: int, **fields: Any) -> tuple[Draft, ...]:
    """Some fresh entries."""
    return tuple(draft(**fields) for _ in range(count))


def difference(found: bytes | None, stored: bytes) -> str:
    """
    Where a body parts from what was stored; empty when it is the same.

    For a comparison of long bytes that fails, pytest may look for the likeness of the two for minutes.
    """
    if found == stored:
        return ""
    if found is None:
        return "the content is gone"
    pairs = zip(found, stored, strict=False)
    at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(found), len(stored)))
    return f"at byte {at} {found[at : at + 20]!r}, not {stored[at : at + 20]!r}; {len(found)} bytes, not {len(stored)}"


@dataclass(frozen=True)
class Seen:
    """All that a scope shows: what a refused operation must leave as it was."""

    sessions: dict[str, SessionInfo]
    entries: dict[str, list[Entry]]


class StoreCase:
    """
    Base of the suite's areas. A subclass says how its store is made; see ``StoreSuite``.

    Attributes:
        a, b: Two handles on the same data, new for each test.
        me: A scope that no other test uses.
        directory: Where the store keeps its data; the tests of one class share it.
        shares_directory: False gives each test a directory of its own, for a store that opens the
            slower the more it holds.
    """

    shares_directory = True

    a: Store
    b: Store
    me: ScopeKey
    directory: Path

    def make_store(self, directory: Path) -> Store:
        """
        A new handle on the data in ``directory``. Called twice with one directory: two handles on the same data.

        A store that keeps its data elsewhere uses the directory's path as a name for them.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_store(self, directory)")

    # Around each test.

    @pytest.fixture(autouse=True)
    def _around(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        directory = _directories.get(type(self))
        if directory is None or not directory.exists() or not self.shares_directory:
            directory = _directories[type(self)] = tmp_path_factory.mktemp("store")
        self.set_up(directory)
        matrix_of(request.config).add(self.a)
        yield
        self.tear_down()

    def set_up(self, directory: Path) -> None:
        """Open two handles on the data in ``directory``, and choose a scope that nobody else uses."""
        self.directory = directory
        self._opened: list[Store] = []
        self._shifted_us = 0
        self.me = ScopeKey(f"tenant-{new_id()}", "user")
        self.a, self.b = self.open(), self.open()

    def tear_down(self) -> None:
        """Close every handle that the test opened."""
        for store in self._opened:
            store.close()

    def open(self, directory: Path | None = None) -> Store:
        """One more handle, closed after the test. ``directory``: other data than those of ``a`` and ``b``."""
        store = self.make_store(directory or self.directory)
        self._opened.append(store)
        store.shift_clock(self._shifted_us)
        return store

    def start_afresh(self) -> None:
        """Two handles on new data that no other test sees."""
        self.directory = self.directory / new_id()
        self.directory.mkdir()
        self.a, self.b = self.open(), self.open()

    def reopen(self) -> None:
        """Close both handles and open two new ones: what is seen then was stored."""
        self.a.close()
        self.b.close()
        self.a, self.b = self.open(), self.open()

    def shift(self, us: int) -> None:
        """Move the clock of all handles: tests do not sleep."""
        self._shifted_us += us
        for store in self._opened:
            store.shift_clock(us)

    def needs(self, capability: str) -> None:
        """Skip the test unless the store declares the capability."""
        if capability not in self.a.capabilities:
            pytest.skip(f"the {self.a.name} store does not declare {capability!r}")

    # Writing, through the first handle.

    def do(self, op: Op, *, by: Store | None = None) -> Result:
        """The operation's result; its refusal is raised."""
        (result,) = (by or self.a).commit([op])
        if isinstance(result, NotDone):
            raise result
        return result

    def refused(self, op: Op, refusal: type[Refusal], *, by: Store | None = None) -> Refusal:
        """The refusal, which must be of that very type and must have left no trace."""
        before = self.seen(_scope_of(op))
        (result,) = (by or self.a).commit([op])
        assert type(result) is refusal, f"expected {refusal.__name__}, got {result!r}"
        assert self.seen(_scope_of(op)) == before, "a refused operation left a trace"
        return result

    def create(self, *entries: Draft, scope: ScopeKey | None = None, id: str | None = None, **fields: Any) -> str:
        """The id of a new session with these entries."""
        info = self.do(Create(scope or self.me, id or new_id(), entries=entries, **fields))
        assert isinstance(info, SessionInfo)
        return info.id

    def fork(self, source: str, at: int, *, id: str | None = None) -> str:
        """The id of a new fork."""
        create = Create(self.me, id or new_id(), parent=Parent(source, at))
        info = self.do(Fork(create, source, at))
        assert isinstance(info, SessionInfo)
        return info.id

    def append(self, session: str, *entries: Draft, by: Store | None = None, **fields: Any) -> Appended:
        """What an append gives."""
        appended = self.do(Append(self.me, session, entries, **fields), by=by)
        assert isinstance(appended, Appended)
        return appended

    def take(self, session: str, run: str, *, ttl_us: int = MINUTE, **fields: Any) -> Lease:
        """The lease that a run gets; the test fails when it is queued."""
        lease = self.do(Take(self.me, session, run, ttl_us, **fields))
        assert isinstance(lease, Lease), f"expected a lease, got {lease!r}"
        return lease

    def enqueue(self, session: str, run: str, **fields: Any) -> Queued:
        """The place that a run gets in the queue; the test fails when it is granted."""
        queued = self.do(Take(self.me, session, run, MINUTE, "enqueue", **{"ticket_us": HOUR, **fields}))
        assert isinstance(queued, Queued), f"expected a place in the queue, got {queued!r}"
        return queued

    def hollow(self, session: str, *seqs: int) -> int:
        """How many of the entries were full."""
        count = self.do(Hollow(self.me, session, seqs))
        assert isinstance(count, int)
        return count

    def erase(self, session: str) -> Erased:
        """What an erase gives."""
        erased = self.do(Erase(self.me, session))
        assert isinstance(erased, Erased)
        return erased

    def update(self, session: str, expect: int | None = None, **changes: Any) -> SessionInfo:
        """The session after some of its attributes were changed."""
        info = self.do(Update(self.me, session, changes, expect))
        assert isinstance(info, SessionInfo)
        return info

    def archive(self, session: str) -> None:
        """Archive a session."""
        self.update(session, state="archived")

    # Reading, through the second handle.

    def info(self, session: str) -> SessionInfo:
        """The session's row."""
        return self.b.get(self.me, session)

    def log(self, session: str, **bounds: Any) -> list[Entry]:
        """The session's entries."""
        return self.b.read(self.me, session, **bounds)

    def ids(self, session: str, **bounds: Any) -> list[str]:
        """The ids of the session's entries, in order."""
        return [entry.id for entry in self.log(session, **bounds)]

    def hits(self, ref: str, **bounds: Any) -> list[tuple[str, int]]:
        """Session and seq of the entries that carry the ref."""
        return [(hit.session, hit.entry.seq) for hit in self.b.by_ref(self.me, ref, **bounds)]

    def listed(self, *, limit: int = 100, **conditions: Any) -> list[str]:
        """Ids of the sessions that one page shows."""
        return [info.id for info in self.b.page(self.me, Filter(**conditions), None, limit).sessions]

    def seen(self, scope: ScopeKey) -> Seen:
        """All that the scope shows through the second handle."""
        everything = Filter(status=ALL_STATUSES, include_unlisted=True)
        sessions = {info.id: info for info in self.b.page(scope, everything, None, 1_000).sessions}
        return Seen(sessions, {id: self.b.read(scope, id) for id in sessions})

    def assert_gone(self, session: str, *, scope: ScopeKey | None = None) -> None:
        """There is no such session, for any handle."""
        for store in (self.a, self.b):
            for reading in (store.get, store.read):
                with pytest.raises(NotFound):
                    reading(scope or self.me, session)


def _scope_of(op: Op) -> ScopeKey:
    return op.create.scope if isinstance(op, Fork) else op.scope


def ids_of(entries: Sequence[Draft | Entry]) -> list[str]:
    """The ids of some entries."""
    return [entry.id for entry in entries]
