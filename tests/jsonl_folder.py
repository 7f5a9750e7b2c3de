"""Few words for tests that look into a folder of the JSON-lines store behind its back."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from segue import codec
from segue.errors import SegueError
from segue.model import Draft, ScopeKey
from segue.store import Append, Create, Fork, Op
from segue.stores.jsonl import JsonlStore

ME = ScopeKey("acme", "lin")

_ids = itertools.count(1)


def draft(text: str = "", *, body: bytes | None = None, **fields: Any) -> Draft:
    """An entry; its id and text are fresh unless given."""
    fields.setdefault("id", f"e{next(_ids)}")
    if body is None:
        body = codec.encode({"role": "user", "content": text or f"text of {fields['id']}"})
    known = {"kind": "message", "format": "anthropic", "origin": "user"} | fields
    return Draft(body=body, digest=codec.digest(body), **known)


def do(store: JsonlStore, op: Op) -> Any:
    """The result of an operation; its refusal is raised."""
    (result,) = store.commit([op])
    if isinstance(result, SegueError):
        raise result
    return result


def begin(store: JsonlStore, session: str = "s", *entries: Draft, scope: ScopeKey = ME, **fields: Any) -> Path:
    """Make a session with these entries; its file."""
    do(store, Create(scope, session, entries=entries, **fields))
    return file_of(store, session, scope)


def file_of(store: JsonlStore, session: str = "s", scope: ScopeKey = ME) -> Path:
    """The file of a session, for names that need no encoding."""
    return Path(store._folder.path) / scope.tenant / scope.user / f"{session}.jsonl"


def add(store: JsonlStore, *entries: Draft, session: str = "s", scope: ScopeKey = ME) -> Any:
    return do(store, Append(scope, session, entries or (draft(),)))


def fork(store: JsonlStore, session: str, source: str, at: int) -> Any:
    return do(store, Fork(Create(ME, session), source, at))


def ids(store: JsonlStore, session: str = "s", scope: ScopeKey = ME) -> list[str]:
    return [entry.id for entry in store.read(scope, session)]


def all_bytes(folder: Path) -> bytes:
    """Everything that is in a folder, names too."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return b"\n".join(str(path).encode() + b"\n" + path.read_bytes() for path in files)


def findings(store: JsonlStore, *levels: str) -> list[str]:
    """What the deep check finds, of these levels."""
    return [report.text for report in store.check(deep=True) if report.level in levels]
