"""
Scopes that are too large for one slot: their sessions are spread over several.

Each shard is a scope of its own inside, whose user's name has a number behind a NUL, which no name of a caller has. A
session lies in one shard with all its entries, and its forks with it; so each operation is still one call. Where an id
lies is written down before its session is made, and never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from msgspec.structs import replace

from segue.errors import Exists, Invalid, NotDone, Unsupported
from segue.model import ScopeKey, SessionInfo
from segue.store import Create, Fork, Op, Result, Update

from ._redis_keys import Keys
from ._redis_link import Link
from ._redis_read import Reader
from ._redis_wires import Command, answered

SHARDS_MAX = 1_024
"""Most shards of a scope: a list asks all of them."""

PLACES_MAX = 100_000
"""Sessions of which a handle remembers the shard."""


class Shards:
    """
    Which scopes are spread, and where their sessions lie.

    Args:
        wanted: How many shards a scope is to have, which has no sessions yet.

    Raises:
        Invalid: The scope has another number already, or sessions.
    """

    def __init__(self, link: Link, keys: Keys, reader: Reader, wanted: Mapping[tuple[str, str], int]) -> None:
        self._keys = keys
        self._reader = reader
        self._key = f"{keys.prefix}:shards".encode()
        self._places: dict[tuple[ScopeKey, str], int] = {}
        for scope, count in wanted.items():
            self._declare(link, ScopeKey(*scope), count)
        pairs = answered(link.run([Command(self._key, (b"HGETALL", self._key))])[0], link.where)
        names = (ScopeKey(*name.decode().split("\0")) for name in pairs[::2])
        self._counts = {scope: int(count) for scope, count in zip(names, pairs[1::2], strict=True)}

    def _declare(self, link: Link, scope: ScopeKey, count: int) -> None:
        if not 2 <= count <= SHARDS_MAX:
            raise Invalid(f"a scope has 2 to {SHARDS_MAX:,} shards, not {count}", where="shards")
        name = "\0".join(scope).encode()
        lists = self._keys.of_scope(scope)[:3]
        found, has_sessions = link.run(
            [
                Command(self._key, (b"HGET", self._key, name)),
                Command(lists[0], (b"EXISTS", *lists)),
            ]
        )
        if answered(found, link.where) is None and answered(has_sessions, link.where):
            raise Invalid(
                f"{scope.tenant}/{scope.user} has sessions already and cannot be spread any more; "
                "copy them to a new store that is opened with these shards",
                where="shards",
            )
        answered(link.run([Command(self._key, (b"HSETNX", self._key, name, count))])[0], link.where)
        kept = int(answered(link.run([Command(self._key, (b"HGET", self._key, name))])[0], link.where))
        if kept != count:
            raise Invalid(f"{scope.tenant}/{scope.user} has {kept} shards for good, not {count}", where="shards")

    def all(self, scope: ScopeKey) -> list[ScopeKey]:
        """The shards of a scope; itself when it is not spread."""
        count = self._counts.get(scope)
        return [scope] if count is None else [_shard(scope, number) for number in range(count)]

    @property
    def are_any(self) -> bool:
        """Whether any scope is spread."""
        return bool(self._counts)

    def of_key(self, scope: ScopeKey, key: str) -> ScopeKey:
        """The shard of the session with a key."""
        return _shard(scope, self._number(scope, "key", key)) if scope in self._counts else scope

    def of_session(self, scope: ScopeKey, session: str) -> ScopeKey:
        """The shard of a session."""
        if scope not in self._counts:
            return scope
        number = self._places.get((scope, session))
        if number is None:
            key, home = self._home(scope, session)
            found = self._reader.ask(Command(key, (b"HGET", key, session)))
            if found is None:
                return _shard(scope, home)  # nobody has made it
            number = self._remember(scope, session, int(found))
        return _shard(scope, number)

    def route(self, op: Op) -> Op | NotDone:
        """The operation in the shard that it concerns, or why it cannot be done there."""
        if isinstance(op, Fork):
            scope = op.create.scope
            if scope not in self._counts:
                return op
            shard = self.of_session(scope, op.source)
            made = self._made(op.create, shard)
            return replace(op, create=made) if isinstance(made, Create) else made
        if op.scope not in self._counts:
            return op
        if isinstance(op, Create):
            if op.key is not None:
                return self._made(op, self.of_key(op.scope, op.key))
            return self._made(op, _shard(op.scope, self._number(op.scope, "id", op.id)))
        shard = self.of_session(op.scope, op.session)
        key = op.changes.get("key") if isinstance(op, Update) else None
        if key is not None and self.of_key(op.scope, key) != shard:
            return self._unsupported(op.scope)
        return replace(op, scope=shard)

    def _made(self, op: Create, shard: ScopeKey) -> Create | NotDone:
        """A create in its shard, once it is written down that its id lies there."""
        if op.key is not None and self.of_key(op.scope, op.key) != shard:
            return self._unsupported(op.scope)
        key, _ = self._home(op.scope, op.id)
        number = int(shard.user.rpartition("\0")[2])
        self._reader.ask(Command(key, (b"HSETNX", key, op.id, number)))
        kept = self._remember(op.scope, op.id, int(self._reader.ask(Command(key, (b"HGET", key, op.id)))))
        if kept == number:
            return replace(op, scope=shard)
        (other,) = self._reader.rows(_shard(op.scope, kept), [op.id], 0)
        return Exists(f"the id {op.id!r} is taken; choose another", session=op.id if other else None)

    def _unsupported(self, scope: ScopeKey) -> Unsupported:
        where = f"redis ({scope.tenant}/{scope.user} is spread over shards)"
        return Unsupported("a key that belongs to another shard than the session", where)

    def _home(self, scope: ScopeKey, session: str) -> tuple[bytes, int]:
        """The key under which it is written down where an id lies."""
        number = self._number(scope, "id", session)
        return self._keys.tag(_shard(scope, number)) + b"places", number

    def _number(self, scope: ScopeKey, sort: str, name: str) -> int:
        digest = sha256(f"{sort}\0{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % self._counts[scope]

    def _remember(self, scope: ScopeKey, session: str, number: int) -> int:
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places[scope, session] = number
        return number


def outer(scope: ScopeKey) -> ScopeKey:
    """The scope that a shard is a part of."""
    return ScopeKey(scope.tenant, scope.user.partition("\0")[0])


def shown(result: Result | NotDone) -> Result | NotDone:
    """A result as its owner sees it."""
    if isinstance(result, SessionInfo) and "\0" in result.scope.user:
        return replace(result, scope=outer(result.scope))
    return result


def _shard(scope: ScopeKey, number: int) -> ScopeKey:
    return ScopeKey(scope.tenant, f"{scope.user}\0{number}")
