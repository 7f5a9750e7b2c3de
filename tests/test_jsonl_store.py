"""The JSON-lines store: the contract, and what is special to a folder that people read."""

from __future__ import annotations

from pathlib import Path

from segue.stores.jsonl import JsonlStore
from segue.testing import StoreSuite


class TestJsonlStore(StoreSuite):
    def make_store(self, directory: Path) -> JsonlStore:
        return JsonlStore(directory / "folder")
