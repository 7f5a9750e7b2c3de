"""A store that is away when a test says so."""

from __future__ import annotations

from segue.errors import Unavailable
from segue.stores.sqlite import SQLiteStore


class Flaky:
    """The SQLite store; while ``is_down`` nothing works, while ``down_after_reads`` nothing is written."""

    def __init__(self, path):
        self._inner = SQLiteStore(str(path))
        self.is_down = False
        self.down_after_reads = False

    def __getattr__(self, name):
        if self.__dict__.get("is_down") and name in ("get", "find", "page", "read", "by_ref"):
            raise Unavailable("the store is away")
        return getattr(self._inner, name)

    def commit(self, ops):
        if self.is_down or self.down_after_reads:
            raise Unavailable("the store is away")
        return self._inner.commit(ops)
