"""Other tools' SQLite databases, read without disturbing them."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from .source import Source

WAIT_SECONDS = 5.0
"""How long a reading waits for a writer that holds the whole database."""


@contextmanager
def reading(source: Source) -> Iterator[sqlite3.Connection]:
    """
    A connection that only reads, in one transaction, so that a writer at work is neither stopped nor half seen.

    Raises:
        sqlite3.Error: It is damaged, locked for too long, or no database.
    """
    path = source.path.resolve()
    is_still = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()  # else SQLite wants to write
    uri = f"{path.as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"
    with closing(sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = _text
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield connection


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def raw_of(value: Any) -> bytes:
    """The bytes of a text or a blob as they are in the database; of nothing, none."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return bytes(value) if isinstance(value, bytes) else b"" if value is None else str(value).encode()


def tables(source: Source) -> dict[str, set[str]]:
    """Names of the tables with those of their columns; empty when the file is no database that can be read."""
    return _tables(source) if source.is_sqlite else {}


@functools.lru_cache(maxsize=1)  # every importer asks, and a locked database makes each wait
def _tables(source: Source) -> dict[str, set[str]]:
    try:
        with reading(source) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: _columns(connection, name) for name in names}
    except sqlite3.Error:
        return {}


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def key_of(source: Source, tool: str, name: str) -> str:
    """The key of a conversation that the database names; where no key can be made of the name, of the file's place."""
    key = f"{tool}:{name}"
    if name and name.isprintable() and len(raw_of(key)) <= 150:
        return key
    return source.key(tool, hashlib.sha256(raw_of(name)).hexdigest()[:32])


def row_bytes(table: str, row: sqlite3.Row) -> bytes:
    """
    A row as a record: its values exactly.

    Bytes are ``{"base64": …}``, text that is no UTF-8 is ``{"text_base64": …}``, and a number that JSON has not is
    ``{"real": "inf"}``.
    """
    values = {key: _value(row[key]) for key in row.keys()}  # noqa: SIM118 - a Row iterates its values
    return msgspec.json.encode({"table": table, "row": values})


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, str) and not value.isascii():
        raw = raw_of(value)
        return value if is_utf8(raw) else {"text_base64": base64.b64encode(raw).decode()}
    return {"real": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def is_utf8(raw: bytes) -> bool:
    """Whether the bytes are well-formed text."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
