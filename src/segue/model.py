"""What is stored: scopes, entries, sessions, leases. Plain values that know nothing of stores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from . import codec
from .errors import Corrupt, Invalid

T = TypeVar("T")

NAME_MAX_BYTES = 255
"""Longest tenant, user, session id, key, entry id or ref, in UTF-8 bytes."""

KINDS = frozenset({"message", "note", "cut", "observation", "effect", "derived", "config", "retract", "mask"})
"""The kinds that Segue gives a meaning. Any other name is an opaque kind of an adapter (``claude.line``)."""

ORIGINS = frozenset({"user", "model", "tool", "system", "import"})
"""Who an entry comes from. Stamped by the code that appends it, never taken from a body."""

Format = str
"""Whose JSON a body holds: ``anthropic``, ``openai.responses``, ``openai.chat``, ``segue``, ``raw`` or an adapter's."""

Status = Literal["running", "idle", "paused", "completed", "archived"]
State = Literal["active", "completed", "archived"]
Policy = Literal["reject", "enqueue", "interrupt", "rollback"]
Link = Literal["fork", "child", "anew", "spill"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """UTC datetime of a count of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=us)


def to_us(moment: datetime) -> int:
    """
    Microseconds since 1970 of an aware datetime.

    Raises:
        Invalid: It is naive, so that nobody knows its zone; or so near the first or the last day there is that
            it could not be given back in every zone.
    """
    if not isinstance(moment, datetime):
        raise Invalid(f"a moment must be an aware datetime, not a {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise Invalid(f"{moment!r} has no time zone; use an aware datetime such as datetime.now(UTC)")
    return check_us((moment - _EPOCH) // _MICROSECOND, "a moment")


def check_us(us: object, what: str) -> int:
    """(inner) Microseconds since 1970 that are a moment in every zone, or ``Invalid``."""
    if not isinstance(us, int) or isinstance(us, bool) or not _FIRST_US <= us <= _LAST_US:
        raise Invalid(f"{what} must lie between 0001-01-02 and 9999-12-30; leave it out for never")
    return us


def check_name(value: object, what: str) -> str:
    """
    A tenant, user, id, key or ref: a str of 1 to 255 UTF-8 bytes, compared as bytes.

    Raises:
        Invalid: Empty, too long, not a str, a lone surrogate or a control character.
    """
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a str, not {type(value).__name__}", where=what)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} holds a lone surrogate; it must be well-formed Unicode", where=what) from None
    if not 1 <= size <= NAME_MAX_BYTES:
        raise Invalid(f"{what} must have 1 to {NAME_MAX_BYTES} bytes, it has {size}", where=what)
    if not value.isprintable() and any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise Invalid(f"{what} holds a control character", where=what)
    return value if type(value) is str else str.__str__(value)  # stores take no StrEnum


SEQ_MAX = (1 << 63) - 1
"""The highest number that every store can hold."""


def check_count(value: object, what: str) -> int:
    """
    A number of entries, or a seq: a whole number from 0.

    Raises:
        Invalid: Not an int (True and False are none), negative, or over 63 bits.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= SEQ_MAX:
        raise Invalid(f"{what} must be a whole number from 0, not {_short(value)}", where=what)
    return value


def check_strings(values: object, what: str) -> tuple[str, ...]:
    """
    Several strings, whatever is in them: any sequence or set of str, but not one str.

    Raises:
        Invalid: It is something else.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise Invalid(f"{what} must be a sequence of str, not {_short(values)}", where=what)
    found = tuple(values)
    for value in found:
        check_type(value, str, what)
    return found


def check_names(values: object, what: str) -> tuple[str, ...]:
    """The same, and each must be a name as ``check_name`` has it."""
    return tuple(check_name(value, what) for value in check_strings(values, what))


def check_type(value: object, kind: type[T], what: str, hint: str = "") -> T:
    """
    An object of a class.

    Raises:
        Invalid: It is another; ``hint`` says what to do.
    """
    if not isinstance(value, kind):
        more = f"; {hint}" if hint else ""
        raise Invalid(f"{what} must be a {kind.__name__}, not {_short(value)}{more}", where=what)
    return value


def _short(value: object) -> str:
    return f"{value!r}"[:60] if isinstance(value, int | float | bool | None) else type(value).__name__


def new_id() -> str:
    """A fresh id: 48 bits of milliseconds, then 80 random bits, as 32 hex digits. Not a secret, never an order."""
    return f"{time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF:012x}{_tail()}"


def _tail() -> str:
    # The system is asked for many at a time: each question gives other threads the interpreter.
    while True:
        try:
            return _tails.pop()
        except IndexError:
            digits = os.urandom(640).hex()
            _tails.extend(digits[at : at + 20] for at in range(0, len(digits), 20))


_tails: list[str] = []
os.register_at_fork(after_in_child=_tails.clear)  # a child must not use its parent's


class ScopeKey(NamedTuple):
    """Tenant and user: the owner of sessions and the only door to them. Compared as bytes."""

    tenant: str
    user: str


class Usage(NamedTuple):
    """
    Tokens of one model call, as the provider counted them.

    ``input`` counts all input tokens, cached ones included; ``cache_read`` and ``cache_write`` are parts of it.
    ``cache_write_long`` is the part of ``cache_write`` that is kept for an hour or more.
    ``reasoning`` is a part of ``output``.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_long: int = 0
    reasoning: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Usage:  # sums, not tuple concatenation
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


class Draft(NamedTuple):
    """An entry on its way into a session, checked at the door. ``Session.append`` makes them from messages."""

    kind: str
    format: Format
    origin: str
    body: bytes
    digest: bytes
    id: str
    refs: tuple[str, ...] = ()
    occurred_us: int | None = None
    usage: Usage | None = None


class Entry(NamedTuple):
    """
    One record of a session's log.

    ``seq`` counts from 1 without gaps. ``body`` is None when the entry was hollowed: its content is
    gone for good, its seq, id and digest stay.
    """

    seq: int
    id: str
    kind: str
    format: Format
    origin: str
    body: bytes | None
    digest: bytes
    refs: tuple[str, ...]
    run: str | None
    created_us: int
    occurred_us: int | None
    usage: Usage | None

    @property
    def created_at(self) -> datetime:
        """When it was stored, by the store's clock (UTC)."""
        return from_us(self.created_us)

    @property
    def occurred_at(self) -> datetime | None:
        """When it is said to have happened (imports, replays), or None."""
        return None if self.occurred_us is None else from_us(self.occurred_us)

    @property
    def is_hollow(self) -> bool:
        """True when the content was erased and only the record of it is left."""
        return self.body is None

    def json(self) -> Any:
        """
        The body's value; None when hollow.

        Raises:
            Invalid: The body is of format ``raw``; use ``body``.
        """
        if self.body is None:
            return None
        if self.format == "raw":
            raise Invalid(f"entry {self.seq} is raw bytes; read .body")
        return codec.decode(self.body)

    def verify(self, session: str) -> Entry:
        """This entry, or Corrupt when its body does not match its digest (guarantee G11)."""
        if self.body is not None and codec.digest(self.body) != self.digest:
            raise Corrupt(
                f"session {session!r}, entry {self.seq}: the stored body does not match its digest; "
                "restore it from a backup, or run segue verify to see all damage",
                session=session,
                seq=self.seq,
            )
        return self


class Hit(NamedTuple):
    """An entry found by one of its refs, with the id of the session that owns it."""

    session: str
    entry: Entry


class Lease(msgspec.Struct, frozen=True):
    """
    The right to advance a session.

    Attributes:
        run: Id of the run that holds it.
        fence: Number that only grows within a session; checked inside every append of the run.
        state: ``running``, or ``paused`` (waits for a person, holds nothing).
        expires_at: By the store's clock; a running lease is renewed before, a paused one lapses.
        holder: Where the run lives (host, boot, process), to see whether it is dead.
    """

    run: str
    fence: int
    state: Literal["running", "paused"]
    expires_at: datetime
    holder: str = ""


class Parent(msgspec.Struct, frozen=True):
    """Where a session comes from: the parent's id, the last seq shared or seen, and how they are linked."""

    session: str
    seq: int
    link: Link = "fork"


class SessionInfo(msgspec.Struct, frozen=True):
    """
    A session's row: everything about it but its entries.

    Attributes:
        scope: Its owner.
        id: Its id, unique within the scope.
        key: The caller's own key, unique within the scope, or None.
        format: Whose JSON its messages are, unless an append says otherwise.
        title: At most 500 characters; empty when not set.
        state: What its owner made of it: active, completed, archived.
        head: The last seq; 0 when empty.
        base: The last seq it shares with its parent; 0 unless it is a fork.
        fence: Highest fence ever given out.
        version: Counts the changes of title, tags, metadata, pin, state, lifetimes and config.
        tags: Sorted, distinct.
        metadata: The caller's own fields, at most 16 KiB as JSON.
        is_pinned: Never swept.
        is_listed: Shown by list() (sub-agents are not, unless asked for).
        config: The pinned agent configuration as JSON, or None.
        idle_us: Lifetime after the last activity, or None.
        expires_at: Absolute end of its lifetime, or None.
        created_at, active_at: Creation and last append, by the store's clock.
        archived_at: When it was archived, or None.
        usage: Token totals of its own entries.
        parent: Where it comes from, or None.
        lease: The current lease (running and not expired, or paused and not lapsed), or None.
        waiting: How many runs are queued for it.
    """

    scope: ScopeKey
    id: str
    key: str | None
    format: Format
    title: str
    state: State
    head: int
    base: int
    fence: int
    version: int
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    is_pinned: bool
    is_listed: bool
    config: bytes | None
    idle_us: int | None
    expires_at: datetime | None
    created_at: datetime
    active_at: datetime
    archived_at: datetime | None = None
    usage: Usage = Usage()
    parent: Parent | None = None
    lease: Lease | None = None
    waiting: int = 0

    @property
    def status(self) -> Status:
        """``archived`` or ``completed`` when its owner made it so, else what its lease says."""
        if self.state != "active":
            return self.state
        return "idle" if self.lease is None else self.lease.state

    @property
    def idle(self) -> timedelta | None:
        """Lifetime after the last activity, or None."""
        return None if self.idle_us is None else timedelta(microseconds=self.idle_us)

    @property
    def due_at(self) -> datetime | None:
        """When its lifetime ends, by whichever of the two lifetimes comes first, or None."""
        ends = [self.active_at + self.idle] if self.idle is not None else []
        ends += [self.expires_at] if self.expires_at is not None else []
        return min(ends, default=None)
