"""
A disk that remembers: an SQLite VFS that records what was written and what was synced.

From the record it makes the disks that a power loss could leave behind. The model: what was written
before a file's last sync is there; every later write is there, or lost, or torn at a sector; names are
durable in order. A sync may be told to fail; then what it should have made durable never is, although
it can still be read (as Linux does it).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import apsw

SECTOR = 512

_numbers = itertools.count(1)


class Change(NamedTuple):
    """One thing that happened: ``write``, ``truncate``, ``sync``, ``delete`` of a file, or an ``ack``."""

    what: str
    file: str = ""
    at: int = 0
    data: bytes = b""


class Disk:
    """
    Records all that goes through connections opened with ``vfs=disk.vfs``.

    ``fail_sync`` is asked before each sync, with the file's name; True makes it fail.
    """

    def __init__(self) -> None:
        self.log: list[Change] = []
        self.fail_sync = lambda _file: False
        self.vfs = f"disk-{next(_numbers)}"
        self._vfs = _Recording(self)  # unregistered when it is collected

    def ack(self) -> None:
        self.log.append(Change("ack"))

    def syncs(self, ending: str = "") -> int:
        """How many syncs of files whose names end so were done."""
        return sum(change.what == "sync" and change.file.endswith(ending) for change in self.log)

    def crashes(self, count: int, seed: int) -> Iterator[Crash]:
        """Disks after a power loss at random moments, in the order of these moments."""
        chance = random.Random(seed)
        moments = sorted(chance.randrange(len(self.log) + 1) for _ in range(count))
        durable = Durable()
        done = 0
        for moment in moments:
            for change in self.log[done:moment]:
                durable.add(change)
            done = moment
            yield durable.crash(chance)


@dataclass
class Crash:
    """What is on the disk, and how many acks were given before."""

    files: dict[str, bytes]
    acks: int

    def write(self, folder: Path) -> None:
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


@dataclass
class Durable:
    """What is on the disk for certain, and what may be."""

    files: dict[str, bytearray] = field(default_factory=dict)
    pending: dict[str, list[Change]] = field(default_factory=dict)
    acks: int = 0

    def add(self, change: Change) -> None:
        match change.what:
            case "ack":
                self.acks += 1
            case "sync":
                for each in self.pending.pop(change.file, ()):
                    _apply(self.files.setdefault(change.file, bytearray()), each)
            case "lost":
                self.pending.pop(change.file, None)
            case "delete":
                self.pending.pop(change.file, None)
                self.files.pop(change.file, None)
            case _:
                self.files.setdefault(change.file, bytearray())
                self.pending.setdefault(change.file, []).append(change)

    def crash(self, chance: random.Random) -> Crash:
        files = {}
        for name, durable in self.files.items():
            image = bytearray(durable)
            luck = chance.choice((0.0, 0.5, 0.9, 1.0))
            for change in self.pending.get(name, ()):
                if chance.random() < luck:
                    _apply(image, change)
                elif change.what == "write" and chance.random() < 0.3:
                    _apply(image, _torn(change, chance))
            files[name] = bytes(image)
        return Crash(files, self.acks)


def _apply(image: bytearray, change: Change) -> None:
    if change.what == "truncate":
        del image[change.at :]
        image.extend(bytes(change.at - len(image)))
        return
    end = change.at + len(change.data)
    if len(image) < end:
        image.extend(bytes(end - len(image)))
    image[change.at : end] = change.data


def _torn(change: Change, chance: random.Random) -> Change:
    """The write up to, or from, some sector on."""
    cut = chance.randrange(0, len(change.data) + 1, SECTOR) if len(change.data) > SECTOR else 0
    if chance.random() < 0.5:
        return change._replace(data=change.data[:cut])
    return change._replace(at=change.at + cut, data=change.data[cut:])


class _Recording(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name, flags):
        return _File(self._disk, name, flags)

    def xDelete(self, name, sync):
        super().xDelete(name, sync)
        self._disk.log.append(Change("delete", os.path.basename(name)))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name, flags) -> None:
        self._log = disk.log
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = os.path.basename(path) if path else ""
        super().__init__("", name, flags)

    def xWrite(self, data, at):
        super().xWrite(data, at)
        self._log.append(Change("write", self._name, at, bytes(data)))

    def xTruncate(self, size):
        super().xTruncate(size)
        self._log.append(Change("truncate", self._name, size))

    def xSync(self, flags):
        if self._disk.fail_sync(self._name):
            self._log.append(Change("lost", self._name))
            raise apsw.IOError("the disk fails")
        super().xSync(flags)
        self._log.append(Change("sync", self._name))
