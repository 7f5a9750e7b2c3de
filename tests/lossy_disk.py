"""
A disk that remembers every call of the JSON-lines store, and what a power loss could have left of it.

The rules of the simulated disk: content is there when its file was synced, a name when its directory
was. What came later may be there, be missing, or be torn at 512-byte sectors; a missing sector reads as
NULs where the file grew over it. Changes of one directory keep their order.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import Path

from segue.stores._jsonl_disk import Disk

SECTOR = 512


@dataclass
class Event:
    """One call. ``target`` is a file's number, or a directory's path within the folder."""

    call: str
    target: int | str
    name: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""
    file: int = 0


@dataclass
class Log:
    """All calls in their order, and marks of what was acknowledged after which."""

    events: list[Event] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)  # how many events there were at each acknowledgement

    def acknowledge(self) -> None:
        self.acks.append(len(self.events))

    def acked_before(self, point: int) -> int:
        """How many acknowledgements came before a point."""
        return sum(at <= point for at in self.acks)


class RecordingDisk(Disk):
    """Does every call and writes it down. Two stores may share a log."""

    def __init__(self, root: Path, log: Log | None = None, numbers: dict[int, int] | None = None) -> None:
        self.root = root.resolve()
        self.log = log or Log()
        self.numbers = {} if numbers is None else numbers  # inode -> number of the file that has it now

    def another(self) -> RecordingDisk:
        return type(self)(self.root, self.log, self.numbers)

    def open(self, name: str, flags: int, at: int) -> int:
        opened = super().open(name, flags, at)
        if flags & os.O_CREAT:
            file = len(self.log.events) + 1
            self.numbers[os.fstat(opened).st_ino] = file
            self._note("create", self._path(at), name=name, file=file)
        return opened

    def write(self, file: int, data: memoryview) -> int:
        offset = os.fstat(file).st_size
        written = super().write(file, data)
        self._note("write", self._number(file), offset=offset, data=bytes(data[:written]))
        return written

    def overwrite(self, file: int, data: bytes, offset: int) -> int:
        written = super().overwrite(file, data, offset)
        self._note("write", self._number(file), offset=offset, data=data[:written])
        return written

    def truncate(self, file: int, size: int) -> None:
        super().truncate(file, size)
        self._note("truncate", self._number(file), offset=size)

    def sync(self, file: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(file).st_mode)
        self._note("sync", self._path(file) if is_directory else self._number(file))

    def mkdir(self, name: str, at: int) -> None:
        super().mkdir(name, at)
        self._note("mkdir", self._path(at), name=name)

    def rename(self, old: str, new: str, at: int) -> None:
        super().rename(old, new, at)
        self._note("rename", self._path(at), name=old, other=new)

    def unlink(self, name: str, at: int) -> None:
        super().unlink(name, at)
        self._note("unlink", self._path(at), name=name)

    def _note(self, call: str, target: int | str, **what) -> None:
        self.log.events.append(Event(call, target, **what))

    def _number(self, file: int) -> int:
        return self.numbers[os.fstat(file).st_ino]

    def _path(self, at: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{at}"))
        return "" if path == self.root else str(path.relative_to(self.root))


class ForgetfulDisk(RecordingDisk):
    """A control: it syncs nothing, so that acknowledged entries must get lost."""

    def sync(self, file: int) -> None:
        pass


def survivors(events: list[Event], chance: random.Random, folder: Path) -> None:
    """Lay out in ``folder`` what a power loss after these events could leave."""
    files = {file: _content(events, file, chance) for file in {e.file for e in events if e.call == "create"}}
    for path, names in _directories(events, chance).items():
        # A directory whose own name was lost is not reached, whatever it holds.
        if not (folder / path).is_dir():
            continue
        for name, file in names.items():
            if file is None:
                (folder / path / name).mkdir(mode=0o700)
            else:
                (folder / path / name).write_bytes(files[file])
                (folder / path / name).chmod(0o600)


def _content(events: list[Event], file: int, chance: random.Random) -> bytes:
    mine = [event for event in events if event.target == file and event.call in ("write", "truncate", "sync")]
    durable = max((no for no, event in enumerate(mine) if event.call == "sync"), default=-1)
    content = bytearray()
    for no, event in enumerate(mine):
        if event.call == "sync":
            continue
        fate = "whole" if no < durable else chance.choice(("whole", "missing", "torn", "torn", "grown"))
        if event.call == "truncate":
            if fate != "missing" and len(content) > event.offset:
                del content[event.offset :]
        elif fate != "missing":
            _write(content, event, fate, chance)
    return bytes(content)


def _write(content: bytearray, event: Event, fate: str, chance: random.Random) -> None:
    first, end = event.offset, event.offset + len(event.data)
    kept = []
    at = first
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        if fate == "whole" or (fate == "torn" and chance.random() < 0.5):
            kept.append((at, upto))
        at = upto
    size = end if fate in ("whole", "grown") or chance.random() < 0.5 else max((upto for _, upto in kept), default=0)
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    for start, upto in kept:
        content[start:upto] = event.data[start - first : upto - first]


def _directories(events: list[Event], chance: random.Random) -> dict[str, dict[str, int | None]]:
    """The names in each directory, parents first."""
    found: dict[str, dict[str, int | None]] = {}
    for path in sorted({""} | {e.target for e in events if isinstance(e.target, str)}):
        mine = [event for event in events if event.target == path]
        durable = max((no for no, event in enumerate(mine) if event.call == "sync"), default=-1)
        upto = chance.randint(durable + 1, len(mine))
        names: dict[str, int | None] = {}
        for event in mine[:upto]:
            if event.call == "create":
                names[event.name] = event.file
            elif event.call == "mkdir":
                names[event.name] = None
            elif event.call == "rename":
                names[event.other] = names.pop(event.name)
            elif event.call == "unlink":
                del names[event.name]
        found[path] = names
    return found
