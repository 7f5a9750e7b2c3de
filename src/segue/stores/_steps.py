"""Migrations as numbered files of SQL."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Step(NamedTuple):
    """One numbered file of SQL."""

    version: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the file, kept with the record that it was applied."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def steps_of(engine: str) -> tuple[Step, ...]:
    """All steps for an engine that this version of Segue knows, in order."""
    folder = files(__package__).joinpath("migrations", engine)
    named = [(_FILE.fullmatch(file.name), file) for file in folder.iterdir()]
    return tuple(sorted(Step(int(name[1]), name[2], file.read_text("utf-8")) for name, file in named if name))
