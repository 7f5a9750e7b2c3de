"""
A spool on the local disk: what the store could not take now, fsynced, in the order it came.

One file a record, readable by its owner alone. Whoever finds records sends them, oldest first, and
removes each after the store has it; sent twice is stored once, because the entries keep their ids.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import segue
from segue.errors import Corrupt
from segue.model import Draft, Usage

from .lines import Batch
from .place import Place

_log = logging.getLogger("segue.claude")
_BATCH = ("is_linked", "parents", "root", "title", "prompt")
_SUFFIX = ".spool1"  # the 1 is the version of the records


@dataclass(frozen=True, slots=True)
class Record:
    """
    One append that waits.

    Attributes:
        place: Which transcript it goes on.
        writer: Whose it is, and what that writer had seen: see ``Writer.facts``.
        batch: The entries, with their ids.
    """

    place: Place
    writer: Mapping[str, Any]
    batch: Batch

    def encode(self) -> bytes:
        """As bytes, bodies kept exactly."""
        entries = [[*draft[:3], _packed(draft.body), *draft[5:]] for draft in self.batch.drafts]
        told = {
            "place": self.place,
            "writer": dict(self.writer),
            "batch": {name: getattr(self.batch, name) for name in _BATCH},
            "entries": entries,
        }
        data = json.dumps(told).encode()
        return hashlib.sha256(data).hexdigest().encode() + b"\n" + data

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """The record that ``encode`` wrote; ``Corrupt`` when it is none."""
        digest, _, text = data.partition(b"\n")
        if digest != hashlib.sha256(text).hexdigest().encode():
            raise Corrupt("a record of the spool does not match its digest; restore it from a backup")
        try:
            told = json.loads(text)
            facts = {name: told["batch"][name] for name in _BATCH}
            facts["parents"] = tuple(facts["parents"])
            batch = Batch(tuple(_draft(fields) for fields in told["entries"]), **facts)
            return cls(Place(*told["place"]), told["writer"], batch)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"a record of the spool cannot be read: {error}; restore it from a backup") from error


def _packed(body: bytes) -> str:
    return base64.b64encode(body).decode("ascii")


def _draft(fields: list[Any]) -> Draft:
    kind, format, origin, body, id, refs, occurred_us, usage = fields
    made = segue.draft(
        base64.b64decode(body),
        kind=kind,
        format=format,
        origin=origin,
        id=id,
        refs=refs,
        usage=None if usage is None else Usage(*usage),
    )
    return made._replace(occurred_us=occurred_us)


class Spool:
    """
    The records of one store's user in one folder.

    Args:
        folder: Where they lie; made with the rights 0700. One folder serves one store and one user.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._last = max((_number(path) for path in self.paths()), default=0)

    def put(self, record: Record) -> Path:
        """Keep a record; when this returns, it survives a power loss."""
        with self._lock:
            self._last += 1
            name = f"{self._last:016d}-{os.getpid()}-{secrets.token_hex(4)}"
        path = self.folder / f"{name}{_SUFFIX}"
        draft = self.folder / f"{name}.new"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(record.encode())
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(self.folder)
        return path

    def paths(self) -> list[Path]:
        """The records, oldest first."""
        return sorted(self.folder.glob(f"*{_SUFFIX}"))

    def records(self) -> Iterator[tuple[Path, Record]]:
        """Every record and its file, oldest first; one that is damaged is put aside and logged."""
        for path in self.paths():
            try:
                record = Record.decode(path.read_bytes())
            except FileNotFoundError:
                continue  # another process has sent it
            except Corrupt as error:
                _log.error("%s: %s; it is put aside: look at it, the rest is sent", path, error)
                self.put_aside(path)
                continue
            yield path, record

    def remove(self, path: Path) -> None:
        """The store has it."""
        path.unlink(missing_ok=True)

    def put_aside(self, path: Path) -> None:
        """It can never be sent; it stays for a person to look at, and holds up no other."""
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_suffix(".aside"))


def _number(path: Path) -> int:
    head = path.name.partition("-")[0]
    return int(head) if head.isdecimal() else 0


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no handle for a folder; a rename there is journalled
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
