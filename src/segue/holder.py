"""Where a run lives, so that another process of the same machine can see that it is dead."""

from __future__ import annotations

import functools
import json
import os
import platform
from pathlib import Path

_PROC = Path("/proc")


def me() -> str:
    """This process, as JSON: host, boot, pid namespace, pid and start time."""
    return _describe(os.getpid())


def is_dead(holder: str) -> bool:
    """
    True only when the holder provably does not run any more.

    Provable is: same machine and pid namespace, and the machine was booted since, or no process has
    that pid, or another one has it, or it is a zombie. A stopped process is not dead. Elsewhere, and
    where the system does not tell (macOS), the answer is False and the lease's expiry decides.
    """
    try:
        was = json.loads(holder)
        here = json.loads(_describe(os.getpid()))
        if not here["boot"] or was["host"] != here["host"]:
            return False
        if was["boot"] != here["boot"]:
            return True
        return bool(was["space"] == here["space"] and was["start"] != _start(int(was["pid"])))
    except (ValueError, KeyError, TypeError):
        return False


@functools.cache
def _describe(pid: int) -> str:
    return json.dumps(
        {
            "host": platform.node(),
            "boot": _read(_PROC / "sys/kernel/random/boot_id"),
            "space": _link(_PROC / "self/ns/pid"),
            "pid": pid,
            "start": _start(pid),
        },
        separators=(",", ":"),
    )


def _start(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty when there is none, or only its zombie."""
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
