"""What ``check`` finds about the file and its settings. Damage is a finding here, no exception."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import apsw

from segue.errors import SegueError
from segue.store import Report

from ._local import PRIVATE
from ._sqlite_file import LOG_MAX_BYTES, File
from ._sqlite_migrate import FORMAT, migrations
from ._sqlite_rows import Moment
from ._sqlite_verify import verify

_MIB = 1024 * 1024


def check(file: File, moment: Moment, *, deep: bool) -> list[Report]:
    """Findings on the file's settings; with ``deep`` also on every row in it."""
    reports = list(_files(file))
    try:
        reports += file.read(lambda con: [*_settings(file, con), *_migrations(con)])
    except SegueError as error:
        return [*reports, Report("damage", str(error))]
    if deep:
        reports += verify(file, moment)
    return reports


def _files(file: File) -> Iterator[Report]:
    for path in (file.path, file.log, file.path.with_name(file.path.name + "-shm")):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        yield from _mode(path, stat.S_IMODE(found.st_mode))
    log_bytes = file.log_bytes()
    level: Literal["ok", "warn"] = "warn" if log_bytes > LOG_MAX_BYTES else "ok"
    text = f"the log has {log_bytes / _MIB:.1f} MiB"
    yield Report(level, f"{text}: a reading keeps it from being emptied; end that program" if level == "warn" else text)


def _mode(path: Path, mode: int) -> Iterator[Report]:
    if mode & ~PRIVATE:
        yield Report("warn", f"{path} has mode {mode:04o}: others may read it; run: chmod 600 {path}")
    else:
        yield Report("ok", f"{path} has mode {mode:04o}")


def _settings(file: File, con: apsw.Connection) -> Iterator[Report]:
    yield Report("ok", f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})")
    for name, wanted in (("journal_mode", "wal"), ("synchronous", 2), ("secure_delete", 1), ("foreign_keys", 1)):
        found = file.journal_mode(con) if name == "journal_mode" else con.pragma(name)
        if found == wanted:
            yield Report("ok", f"{name} is {found}")
        else:
            yield Report("warn", f"{name} is {found}, it should be {wanted}: another program changed it")
    size = con.pragma("page_size")
    all_mib, free_mib = con.pragma("page_count") * size / _MIB, con.pragma("freelist_count") * size / _MIB
    yield Report("ok", f"the database has {all_mib:.1f} MiB, of which {free_mib:.1f} MiB are free")


def _migrations(con: apsw.Connection) -> Iterator[Report]:
    rows: list[tuple[Any, ...]] = con.execute("SELECT no, digest FROM migrations").fetchall()
    found = dict(rows)
    known = {step.no: step.digest for step in migrations()}
    if found == known:
        yield Report("ok", f"format {FORMAT}")
    else:
        wrong = sorted(no for no in found.keys() | known.keys() if found.get(no) != known.get(no))
        yield Report("damage", f"the tables were not made by this program's migrations {', '.join(map(str, wrong))}")
