"""
The tables: numbered SQL files, applied by one of any number of callers at once.

The server commits each of their statements by itself, so a step that was cut short is done again as a
whole: its statements are such that this changes nothing that is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection

from segue.errors import Locked, TooNew, Unavailable

from ._mysql_errors import number_of, translate
from ._mysql_pool import Target, run
from ._steps import Step, steps_of

PATIENCE_SECONDS = 30
"""How long another's migration is waited for."""

_NO_TABLE = 1146
_RECORDS = """
    CREATE TABLE IF NOT EXISTS migrations (
        version    INT PRIMARY KEY,
        name       VARBINARY(255) NOT NULL,
        digest     VARBINARY(64) NOT NULL COMMENT 'SHA-256 of the file',
        applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
    ) ENGINE = InnoDB
"""


def steps() -> tuple[Step, ...]:
    """All steps that this version of Segue knows, in order."""
    return steps_of("mysql")


class Schema:
    """The tables of one database."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def where(self) -> str:
        """Server and database, for messages."""
        return self._target.where

    def version(self, conn: Connection[Any]) -> int:
        """The number of the last step applied; 0 when there is nothing yet."""
        try:
            ((version,),) = run(conn, ["SELECT COALESCE(MAX(version), 0) FROM migrations"])[0]
        except pymysql.MySQLError as error:
            if number_of(error) == _NO_TABLE:
                return 0
            raise translate(error, self.where) from error
        return int(version)

    def pending(self, conn: Connection[Any]) -> tuple[Step, ...]:
        """
        Steps that are still to be applied, in order.

        Raises:
            TooNew: A newer Segue has been here.
        """
        version = self.version(conn)
        if version > steps()[-1].version:
            raise TooNew(version, steps()[-1].version, f"MySQL at {self.where}")
        return tuple(step for step in steps() if step.version > version)

    def check_current(self, conn: Connection[Any]) -> None:
        """``Unavailable`` when steps are pending."""
        if pending := self.pending(conn):
            raise Unavailable(
                f"MySQL at {self.where}: the tables lack {len(pending)} of {len(steps())} migrations; "
                "run: segue migrate URL --apply (as a user who may create tables and views), or open with migrate=True"
            )

    def apply(self, conn: Connection[Any]) -> tuple[Step, ...]:
        """
        Apply what is pending; several may try at once, one does it.

        Returns:
            The steps that this call applied.
        """
        if not self.pending(conn):
            return ()
        with self._alone(conn):
            pending = self.pending(conn)  # another may have been faster
            for step in pending:
                self._apply(conn, step)
        return pending

    def _apply(self, conn: Connection[Any], step: Step) -> None:
        try:
            run(conn, [_RECORDS])
            for statement in step.text.split(";\n"):
                if statement.strip():
                    run(conn, [statement.replace("%", "%%")])
            run(
                conn,
                ["REPLACE INTO migrations (version, name, digest) VALUES (%s, %s, %s)"],
                (step.version, step.name.encode(), step.digest.encode()),
            )
        except pymysql.MySQLError as error:
            raise translate(error, self.where) from error

    @contextmanager
    def _alone(self, conn: Connection[Any]) -> Iterator[None]:
        """While this holds, nobody else changes the tables. The lock ends with the connection, too."""
        name = "segue:" + hashlib.sha256(self._target.database.encode()).hexdigest()[:32]
        try:
            ((has_lock,),) = run(conn, ["SELECT GET_LOCK(%s, %s)"], (name, PATIENCE_SECONDS))[0]
            if not has_lock:
                raise Locked(
                    f"MySQL at {self.where}: another migration has been under way for {PATIENCE_SECONDS} s; try again"
                )
            yield
        except pymysql.MySQLError as error:
            raise translate(error, self.where) from error
        finally:
            if conn.open:
                run(conn, ["DO RELEASE_LOCK(%s)"], (name,))

    def altered(self, conn: Connection[Any]) -> list[Step]:
        """Steps whose file is not the one that was applied: a released file must never change."""
        applied = {
            version: digest.decode() for version, digest in run(conn, ["SELECT version, digest FROM migrations"])[0]
        }
        return [step for step in steps() if step.version in applied and applied[step.version] != step.digest]
