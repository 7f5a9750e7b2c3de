"""
The store contract: what an engine must do, and nothing that can be built above it.

A store is blocking code. It has one door for writes, ``commit``, which takes operations as values,
and five readings. Everything else (runs, views, resume, the async face) is built above it, once.

The one hard invariant: when ``commit`` returns, every operation that it reports as done survives a
power loss, and every one that it reports as refused has left no trace.

Operations are made by the layers above, which have already validated them: a store may rely on
well-formed names, bodies and limits, and must compare names as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from .errors import NotDone
from .model import Draft, Entry, Hit, Lease, Parent, Policy, ScopeKey, SessionInfo

READ_MAX = 10_000
"""Most entries one ``read`` or ``by_ref`` gives."""

LIST_MAX = 1_000
"""Most sessions one ``page`` gives."""

BATCH_MAX = 1_000
"""Most entries of one append."""


# Operations. Each is all-or-nothing, and judged by the store's clock.


class Create(msgspec.Struct, frozen=True):
    """
    Make a session, with its first entries. Result: SessionInfo.

    Refused: ``Exists`` when the key belongs to another session, or the id to a session or tombstone
    that this very operation did not make (same id, key and parent = the same operation, repeated: it
    gives the session again and writes nothing).
    """

    scope: ScopeKey
    id: str
    key: str | None = None
    format: str = "anthropic"
    title: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    is_pinned: bool = False
    is_listed: bool = True
    config: bytes | None = None
    idle_us: int | None = None
    expires_us: int | None = None
    parent: Parent | None = None
    entries: tuple[Draft, ...] = ()


class Fork(msgspec.Struct, frozen=True):
    """
    Make ``create.id`` a session that shares the entries 1..at of ``source`` and goes on from there.

    Copies no entry and never changes the source. ``create.parent`` is the source and ``at``.
    Result: SessionInfo with head == base == at. Refused: ``NotFound`` (source), ``Invalid`` (at
    beyond the source's head), ``Exists`` as for Create. An archived source may be forked.
    """

    create: Create
    source: str
    at: int


class Update(msgspec.Struct, frozen=True):
    """
    Change attributes. Result: SessionInfo, its version one higher.

    ``changes`` holds only names of UPDATABLE. ``expect`` is the version the caller has seen, or None.
    With ``if_due_us`` (a sweep) it is done only while the session's lifetime has ended at or before that
    time and it is not pinned: one that was used meanwhile is ``VersionMoved``.
    Refused: ``NotFound``, ``VersionMoved``, ``Busy`` when ``state`` would become archived while a
    run is active, ``Exists`` when a new key is taken.
    """

    scope: ScopeKey
    session: str
    changes: Mapping[str, Any]
    expect: int | None = None
    if_due_us: int | None = None


UPDATABLE = frozenset(
    {"key", "title", "tags", "metadata", "is_pinned", "is_listed", "state", "config", "idle_us", "expires_us"}
)


class Append(msgspec.Struct, frozen=True):
    """
    Add all entries at the end, or none. Result: Appended.

    Checked in this order: the session (``NotFound``), the ids, ``Archived``, then the fence (``LeaseLost``) or,
    without a fence, a run that is active when a *message* is appended (``Busy``), then ``expect``
    (``HeadMoved``). Entries whose id is known with the same digest are skipped and their seq is
    returned; with another digest the whole batch is refused (``IdConflict``). A batch of only known
    ids is done, whatever the fence, the head and the state are now: it is a retry of what was stored.
    Ids of entries that a fork inherits count as known, and so does an id that came earlier in the batch.
    ``expect`` is compared only when something is new.

    A fence is honoured only while its lease is the session's newest and running: an expired lease may
    still append until somebody takes over (nothing was overtaken), but never after, nor when it was
    given back or paused.
    A session that is ``completed`` becomes ``active`` by a new message (its version one higher).
    """

    scope: ScopeKey
    session: str
    entries: tuple[Draft, ...]
    run: str | None = None
    fence: int | None = None
    expect: int | None = None


class Take(msgspec.Struct, frozen=True):
    """
    Take the session's lease for a run, or stand in its queue. Result: Lease, or Queued.

    Free (no lease, or expired, or paused, or held by ``dead``), and nobody waits before us: granted
    with the next fence, and ``entries`` appended in the same step. Held: ``reject`` gives ``Busy``; ``enqueue``
    gives Queued and keeps (or makes) a ticket that lapses when it is not asked again within
    ``ticket_us``; ``interrupt`` and ``rollback`` take it from ``over``, the run that the caller has
    seen hold it, and give ``Busy`` when it is meanwhile another; they pass the queue.
    The same run asking again gets its own running lease again, extended, with the same fence. First come,
    first served. A paused lease is ended by the grant. A completed session becomes active (its version one
    higher). ``dead`` is a ``Lease.holder`` that the caller knows to live no more.
    Refused: ``NotFound``, ``Archived``, ``Busy``.
    """

    scope: ScopeKey
    session: str
    run: str
    ttl_us: int
    policy: Policy = "reject"
    holder: str = ""
    over: str | None = None
    dead: str | None = None
    ticket_us: int = 5_000_000
    entries: tuple[Draft, ...] = ()


class Renew(msgspec.Struct, frozen=True):
    """
    Extend a lease from now. Result: Lease. Refused: ``LeaseLost`` when it is not the newest any more, or is paused.

    An expired lease that nobody took is extended: nothing was overtaken.
    """

    scope: ScopeKey
    session: str
    run: str
    fence: int
    ttl_us: int


class Release(msgspec.Struct, frozen=True):
    """
    Give a lease back, or a place in the queue (``fence`` None), or pause (``pause_us``). Result: None.

    Idempotent: giving back what is lost or gone is done already. Pausing a lost lease is ``LeaseLost``.
    Refused also: ``NotFound``.
    """

    scope: ScopeKey
    session: str
    run: str
    fence: int | None
    pause_us: int | None = None


class Hollow(msgspec.Struct, frozen=True):
    """
    Erase the content (body and refs) of entries for good; seq, id and digest stay. Result: how many were full.

    Refused: ``NotFound``; ``Invalid`` for a seq beyond the head, or one that a fork inherits
    (it must be hollowed in the session that owns it).
    """

    scope: ScopeKey
    session: str
    seqs: tuple[int, ...]


class Erase(msgspec.Struct, frozen=True):
    """
    Erase a session for good and leave a tombstone, on which every later operation finds ``NotFound``.

    Entries that living forks share stay, readable through them only; all others are gone. When the
    last fork that shares them is erased, they go too. An active run does not prevent it: the run's
    next append finds ``NotFound``. Result: Erased. A second erase is done already (zeros).
    ``expect`` is the version the caller has seen (a sweep), or None: a session that was restored
    meanwhile is ``VersionMoved``.
    """

    scope: ScopeKey
    session: str
    expect: int | None = None


Op = Create | Fork | Update | Append | Take | Renew | Release | Hollow | Erase


class Appended(NamedTuple):
    """Head after the append, the seq of each entry of the batch, and how many of them were new."""

    head: int
    seqs: tuple[int, ...]
    new: int


class Queued(NamedTuple):
    """Not yet: how many runs are before this one, and which holds the lease (empty: none, but others are before)."""

    before: int
    run: str


class Erased(NamedTuple):
    """
    How many entries were erased, and how many of its own stay because forks share them.

    Erased ones include those of an erased parent that had stayed for this session alone.
    """

    entries: int
    shared: int


Result = SessionInfo | Appended | Lease | Queued | Erased | int | None


# Readings.


class Filter(msgspec.Struct, frozen=True):
    """
    What ``page`` shows; every condition that is set must hold.

    ``status`` is as of now. ``due_us``: sessions whose lifetime ended at or before that time and that
    are neither pinned, archived nor running; they come by due time, soonest first. ``archived_us``:
    archived at or before, not pinned; oldest first. All others come by last activity, newest first
    (then by id, descending), archived ones only when ``status`` asks for them. ``since_us`` and
    ``until_us`` bound the last activity, both inclusive.
    """

    status: tuple[str, ...] | None = None
    tag: str | None = None
    parent: str | None = None
    key_prefix: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    pinned: bool | None = None
    include_unlisted: bool = False
    due_us: int | None = None
    archived_us: int | None = None


class Page(NamedTuple):
    """Some sessions, and where to go on (None: that was all)."""

    sessions: tuple[SessionInfo, ...]
    cursor: str | None


class Report(NamedTuple):
    """One finding of ``check``: ``level`` is ok, warn or damage; ``session`` and ``seq`` where known."""

    level: Literal["ok", "warn", "damage"]
    text: str
    scope: ScopeKey | None = None
    session: str | None = None
    seq: int | None = None


class Store(Protocol):
    """
    An engine that keeps sessions. ``segue.testing`` holds an implementation to this contract.

    Attributes:
        name: Its name in messages (``sqlite``).
        capabilities: What of CAPABILITIES it can do. The rest it refuses with ``Unsupported``.
        lanes: How many threads may be in ``commit`` at a time (1 for embedded engines).
        on_change: Set by the layer above; the store calls it, from any thread, with the id of a
            session (or None: any) when it learns that another process committed.
    """

    name: str
    capabilities: frozenset[str]
    lanes: int
    on_change: Callable[[str | None], None] | None

    def commit(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """
        Do the operations in order, each all-or-nothing, durably, in as few commits as the engine can.

        Returns:
            For each operation its result, or the typed error that refused it; a refusal never
            touches the others. 1 to 1,000 operations; they may name the same session.

        Raises:
            Unavailable: Nothing of all this was written.
            OutcomeUnknown: The commit failed midway; each operation may or may not have been done.
            Corrupt: What an operation needed is damaged.
        """

    def get(self, scope: ScopeKey, session: str) -> SessionInfo:
        """The session's row, or ``NotFound``."""

    def find(self, scope: ScopeKey, key: str) -> SessionInfo | None:
        """The session with the caller's own key, or None."""

    def page(self, scope: ScopeKey, filter: Filter, cursor: str | None, limit: int) -> Page:
        """
        One page of the scope's sessions. A cursor is opaque, holds across processes, and gives no
        session twice or never unless its activity moved meanwhile. ``Invalid`` for a foreign cursor.
        """

    def read(
        self,
        scope: ScopeKey,
        session: str,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: tuple[str, ...] | None = None,
        reverse: bool = False,
        limit: int = READ_MAX,
    ) -> list[Entry]:
        """
        Entries with after < seq <= upto (None: head), at most ``limit``, ascending or (reverse) descending.

        Inherited entries of a fork included. ``Corrupt`` when one of them is missing or does not match its digest.
        """

    def by_ref(
        self,
        scope: ScopeKey,
        ref: str,
        *,
        session: str | None = None,
        after: int = 0,
        upto: int | None = None,
        since_us: int | None = None,
        reverse: bool = False,
        limit: int = READ_MAX,
    ) -> list[Hit]:
        """
        Entries that carry the ref, by index and not by scan.

        With a session: of its log (inherited entries included), by seq, within after < seq <= upto.
        Without: of all sessions of the scope, by (created_us, session, seq), created since ``since_us``;
        each entry once, under the session that owns it (what forks keep of an erased session is found
        only through them). Hollow and erased entries have no refs.
        """

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Scopes that have sessions, in byte order, for maintenance (sweep, verify, copy). Not a door to data."""

    def now_us(self) -> int:
        """The store's clock, microseconds since 1970."""

    def shift_clock(self, us: int) -> None:
        """Move this handle's clock: tests do not sleep. Adds to earlier shifts."""

    def check(self, *, deep: bool) -> list[Report]:
        """Settings of the engine (doctor); with ``deep`` also every entry and row (verify). Damage is no exception."""

    def close(self) -> None:
        """Release everything. Idempotent. Later calls raise ``Closed``."""


CAPABILITIES = {
    "durable": "what commit acknowledges survives a power loss",
    "processes": "several processes may open it at once",
    "notify": "on_change tells of other processes' commits",
    "shared-clock": "the clock is the server's, one for all handles",
    "backup": "makes a consistent copy while in use",
    "disk": "lives in files of this machine",
}
"""Names of what a store may declare, and what each promises."""
