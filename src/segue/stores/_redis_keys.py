"""Names of keys: one hash tag a scope, so that all that an operation touches lies in one slot."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from segue.errors import Invalid
from segue.model import ScopeKey

SPANS_MAX = 10_000
"""Forks of which a handle remembers what they share."""

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_SCOPE = ("listed", "unlisted", "archived", "due", "old", "words", "names", "refs", "leases")  # as in write_1_rows.lua
_SESSION = (b"s:", b"e:", b"i:", b"m:", b"f:")  # row, entries, ids, marks, shares


class Span(NamedTuple):
    """What a fork shares of one segment: its owner's entries after ``low``, up to ``upto``."""

    owner: str
    low: int
    upto: int


Spans = tuple[Span, ...]
_read_spans = msgspec.msgpack.Decoder(tuple[Span, ...]).decode


def unpack_spans(packed: bytes) -> Spans:
    """What a row keeps under ``spans``."""
    return _read_spans(packed)


class Keys:
    """
    The keys of one store.

    Args:
        prefix: What all of them begin with.
    """

    def __init__(self, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise Invalid(
                f"{prefix!r} is no prefix for keys; use up to 64 letters, digits and _ . : -, such as 'segue'",
                where="prefix",
            )
        self.prefix = prefix
        self.scopes = f"{prefix}:scopes".encode()
        self.format = f"{prefix}:format".encode()
        self.tag = lru_cache(4_096)(self._tag)
        self.of_scope = lru_cache(4_096)(self._of_scope)

    def _tag(self, scope: ScopeKey) -> bytes:
        return f"{self.prefix}:{{{quote(scope.tenant, safe='')}/{quote(scope.user, safe='')}}}:".encode()

    def _of_scope(self, scope: ScopeKey) -> tuple[bytes, ...]:
        """The nine keys that the scope itself has."""
        return tuple(self.tag(scope) + name.encode() for name in _SCOPE)

    def named(self, scope: ScopeKey, name: str) -> bytes:
        """One of the scope's own keys."""
        return self.of_scope(scope)[_SCOPE.index(name)]

    def of_session(self, scope: ScopeKey, session: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """A session's row, entries, ids, marks and shares."""
        tag, id = self.tag(scope), session.encode()
        row, entries, ids, marks, shares = _SESSION
        return tag + row + id, tag + entries + id, tag + ids + id, tag + marks + id, tag + shares + id

    def owner_of(self, key: bytes) -> tuple[ScopeKey, str] | None:
        """Whose row, entries, ids, marks or shares this key is; None when it is no such key."""
        rest = key.removeprefix(f"{self.prefix}:{{".encode())
        scope, brace, name = rest.partition(b"}:")
        tenant, slash, user = scope.decode("ascii", "replace").partition("/")
        if rest == key or not brace or not slash or name[:2] not in _SESSION:
            return None
        return ScopeKey(unquote(tenant), unquote(user)), name[2:].decode("utf-8", "replace")


class Table:
    """The KEYS of one call: those of the scope, then five for each session that is named."""

    def __init__(self, keys: Keys, scope: ScopeKey) -> None:
        self._keys = keys
        self._scope = scope
        self._places: dict[str, int] = {}
        self.all: list[bytes] = list(keys.of_scope(scope))

    def at(self, session: str) -> int:
        """From which place on a session's keys stand, counted from 1."""
        place = self._places.get(session)
        if place is None:
            place = self._places[session] = len(self.all) + 1
            self.all += self._keys.of_session(self._scope, session)
        return place


class Lineage:
    """
    What forks share, as far as this handle knows it.

    It never changes: a session's spans are made with it, and its id is never given again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[ScopeKey, str], Spans] = OrderedDict()

    def of(self, scope: ScopeKey, session: str) -> Spans:
        """The spans of a session; none when it shares nothing, or is not known."""
        return self._known.get((scope, session), ())

    def learn(self, scope: ScopeKey, session: str, packed: bytes | None) -> None:
        """Remember what a row says."""
        if packed:
            with self._lock:
                self._known[scope, session] = unpack_spans(packed)
                if len(self._known) > SPANS_MAX:
                    self._known.popitem(last=False)
