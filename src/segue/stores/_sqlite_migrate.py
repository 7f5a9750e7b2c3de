"""Numbered SQL files that bring a database file to the newest format, forward only."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

import apsw

APPLICATION = 0x53454755
"""What an SQLite file of Segue carries as its application_id (``SEGU``)."""

FORMAT = 1
"""The newest format: the number of the last migration."""

_FOLDER = Path(__file__).with_name("migrations") / "sqlite"


class Migration(NamedTuple):
    """One file: what it is called, and what it does."""

    no: int
    name: str
    sql: str

    @property
    def digest(self) -> bytes:
        """SHA-256 of the file, recorded when it is applied."""
        return hashlib.sha256(self.sql.encode()).digest()


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """All of them, in order."""
    files = sorted(_FOLDER.glob("*.sql"))
    return tuple(Migration(int(file.name[:4]), file.stem, file.read_text("utf-8")) for file in files)


def migrate(con: apsw.Connection, now_us: int) -> None:
    """Apply what is missing, all together with its record, once, however many processes open the file."""
    con.execute("BEGIN IMMEDIATE")
    try:
        found = con.pragma("user_version")  # somebody may have been faster
        for step in migrations():
            if step.no > found:
                con.execute(step.sql)
                con.execute("INSERT INTO migrations VALUES (?, ?, ?, ?)", (step.no, step.name, step.digest, now_us))
        if found < FORMAT:
            con.pragma("application_id", APPLICATION)
            con.pragma("user_version", FORMAT)
        con.execute("COMMIT")
    except BaseException:
        if con.in_transaction:
            con.execute("ROLLBACK")
        raise
