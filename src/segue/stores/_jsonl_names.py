"""
File names of tenants, users and sessions: readable, reversible, the same on every file system.

A name is kept where it is made of ``a-z 0-9 _ - .`` and percent-encoded elsewhere, upper case too, so
that two names never meet in one file where case is not told apart. No name is hidden, is ``..``, is a
device of Windows, or is one of the folder's own files. A name too long for a file ends in ``~`` and
its SHA-256; the true name is in the first line of the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from urllib.parse import unquote_to_bytes

SESSION = ".jsonl"
LEASE = ".lease"
TORN = ".torn-"
INDEX = ".index"
TEMPORARY = ".tmp-"

_LONG = 200  # with the longest suffix still below the 255 bytes of common file systems
_KEPT = 120
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_TORN = re.compile(r"\.jsonl\.torn-\d{8}T\d{6}\.\d{6}Z$")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)|segue\.")


@lru_cache(16_384)
def file_of(name: str) -> str:
    """The file name (without suffix) that stands for a tenant, user or session."""
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in name.encode())
    if text.startswith(".") or _RESERVED.match(text):
        text = f"%{ord(text[0]):02x}{text[1:]}"
    if text.endswith("."):
        text = f"{text[:-1]}%2e"
    if len(text) <= _LONG:
        return text
    return f"{text[:_KEPT]}~{hashlib.sha256(name.encode()).hexdigest()[:40]}"


@lru_cache(16_384)
def name_of(file: str) -> str | None:
    """The name that a file name stands for; None when it is too long to tell, or no file name of ours."""
    try:
        name = unquote_to_bytes(file).decode()
        return name if name and file_of(name) == file else None
    except UnicodeError:
        return None


def is_long(file: str) -> bool:
    """Whether the true name is only inside the file."""
    return "~" in file


def session_file(session: str) -> str:
    """The file of a session."""
    return file_of(session) + SESSION


def lease_file(session_file: str) -> str:
    """The file beside it that holds its lease and queue."""
    return session_file.removesuffix(SESSION) + LEASE


def torn_file(session_file: str, moment: datetime) -> str:
    """The file to which the torn end of a session's is moved."""
    return f"{session_file}{TORN}{moment:%Y%m%dT%H%M%S.%fZ}"


def torn_files(names: Iterable[str], session_file: str = "") -> list[str]:
    """Those of the names that were set aside, of one session's file or of any. A session may be named like one."""
    return [name for name in names if _TORN.search(name) and (not session_file or name.startswith(session_file + TORN))]
