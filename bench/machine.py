"""What a measurement was made on: processor, disk, versions, load. No names, no paths."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

SYNCS = 200
_PROGRAMS = {"PostgreSQL": "postgres", "MariaDB": "mysql", "Redis": "redis"}


def describe(folder: Path) -> dict[str, Any]:
    """The machine, and the disk that the folder is on."""
    return {
        "processor": _first("/proc/cpuinfo", r"model name\s*: (.+)") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "file_system": _file_system(folder),
        "fsync_ms": round(fsync_seconds(folder) * 1e3, 3),
        "python": platform.python_version(),
        "sqlite3": sqlite3.sqlite_version,
        "apsw": f"{version('apsw')} (SQLite {apsw.sqlite_lib_version()})",
        **{name: found for name, recipe in _PROGRAMS.items() if (found := _version(recipe))},
    }


def fsync_seconds(folder: Path) -> float:
    """Median time of appending 4 KiB and bringing them to the disk."""
    path, seconds = folder / "sync", []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(seconds)


def load() -> float:
    """Processes that ran or waited in the last minute."""
    return round(os.getloadavg()[0], 1)


def _first(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1] if found else None


def _file_system(folder: Path) -> str:
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, point, kind, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _version(recipe: str) -> str | None:
    import servers

    try:
        program = servers.RECIPES[recipe].find()
    except servers.Missing:
        return None
    told = subprocess.run([program, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", told)
    return found[0] if found else None
