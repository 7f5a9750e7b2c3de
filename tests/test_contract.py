"""Every store of Segue is held to the contract."""

from __future__ import annotations

from pathlib import Path

from segue.stores.memory import MemoryStore
from segue.stores.sqlite import SQLiteStore
from segue.testing import StoreSuite


class TestMemoryStore(StoreSuite):
    def make_store(self, directory: Path) -> MemoryStore:
        return MemoryStore(str(directory))


class TestSQLiteStore(StoreSuite):
    def make_store(self, directory: Path) -> SQLiteStore:
        return SQLiteStore(directory / "store.db")
