"""What stores in files of this machine share: a clock for leases, private files, where files may lie."""

from __future__ import annotations

import os
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")

# Locks or shared memory do not hold between machines there.
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs",
    "smb2", "smb3", "smbfs",
})  # fmt: skip

PRIVATE = 0o600
"""Mode of every file that holds content."""


class Clock:
    """
    Two clocks that a test moves together.

    ``wall_us`` is for people and lifetimes. ``tick_us`` is for leases: it counts from the boot named by
    ``boot``, also while the machine sleeps, and no one can set it. Where the system names no boot
    (macOS), it is the wall clock and ``boot`` is empty.
    """

    def __init__(self) -> None:
        self.shift_us = 0
        self.boot = _boot()
        self._tick = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) if self.boot else time.CLOCK_REALTIME

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1_000 + self.shift_us

    def tick_us(self) -> int:
        """Microseconds since the boot."""
        return time.clock_gettime_ns(self._tick) // 1_000 + self.shift_us


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip().replace("-", "")
    except OSError:
        return ""


def create_private(path: Path) -> bool:
    """
    Make an empty file that only its owner may read, whatever the umask; False when something is there already.

    An existing file is not even opened: closing it again would drop this process's locks on it.
    """
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    except FileExistsError:
        return False
    try:
        os.fchmod(made, PRIVATE)
        os.fsync(made)
    finally:
        os.close(made)
    sync_folder(path.parent)
    return True


def sync_file(path: Path) -> None:
    """Make what is in a file survive a power loss. The file must not be open in this process as a database."""
    opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """
    The type of the network file system that a path lies on (``nfs4``), or None: local, or not known.

    Args:
        path: An existing file or folder.
        mounts: The text of Linux's mountinfo, for tests; None reads it.
    """
    try:
        text = _MOUNTS.read_text(errors="surrogateescape") if mounts is None else mounts
    except OSError:
        return None
    real = os.path.realpath(path)
    best, found = -1, None
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # later mounts hide earlier ones
            best, found = len(point), kind[0]
    return found if found in _NETWORK else None
