"""Stores for the tests, by name: a URL that several handles and processes may open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

import servers

FULL = bool(os.environ.get("SEGUE_TORTURE"))
"""The sizes of ``make torture``; else about a tenth."""

EMBEDDED = ["sqlite", "jsonl"]
SHARED = [
    *EMBEDDED,
    pytest.param("postgres", marks=pytest.mark.server),
    pytest.param("mysql", marks=pytest.mark.server),
    pytest.param("redis", marks=pytest.mark.server),
]
"""Stores that several processes may open at once."""


@contextlib.contextmanager
def url_of(name: str, folder: object) -> Iterator[str]:
    """The URL of a fresh store."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/store.db"
    elif name == "jsonl":
        yield f"jsonl:{folder}/folder"
    elif name == "memory":
        yield "memory:"
    else:
        with servers.database(name) as url:
            yield url
