"""The schema: numbered SQL files, each applied in one transaction with its record."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from segue.errors import Invalid, TooNew, Unavailable

from ._postgres_errors import judge, translate
from ._postgres_pool import Connection, Target
from ._steps import Step, steps_of

SERVER_MIN = 130_000
"""Oldest PostgreSQL that will do, as ``server_version_num``."""

LOCK_MS = 2_000
"""How long a migration waits for a table: behind it all others wait too."""

PATIENCE_SECONDS = 30.0
"""How long a migration is tried again when others are in its way."""

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")
_TABLES = ("sessions", "entries", "spans", "refs", "tickets")


def steps() -> tuple[Step, ...]:
    """All steps that this version of Segue knows, in order."""
    return steps_of("postgres")


class Schema:
    """One schema on one server."""

    def __init__(self, target: Target, name: str) -> None:
        if not _SCHEMA.fullmatch(name):
            raise Invalid(
                f"{name!r} is no name for the schema; use up to 48 lower-case letters, digits and _, such as 'segue'",
                where="schema",
            )
        self.name = name
        self._target = target

    @property
    def where(self) -> str:
        """Server and schema, for messages."""
        return f"{self._target.where} (schema {self.name})"

    def version(self, conn: Connection) -> int:
        """The number of the last step applied; 0 when there is nothing yet."""
        # Asked of the catalog's tables: a name is looked up in a cache, which may not know yet what
        # another has just made.
        table = (
            "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = 'migrations'"
        )
        with self._translated():
            if conn.execute(table, (self.name,)).fetchone() is None:
                return 0
            query = sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(self._table("migrations"))
            found = conn.execute(query).fetchone()
        return int(found[0]) if found else 0

    def pending(self, conn: Connection) -> tuple[Step, ...]:
        """
        Steps that are still to be applied, in order.

        Raises:
            TooNew: A newer Segue has been here.
        """
        version = self.version(conn)
        if version > steps()[-1].version:
            raise TooNew(version, steps()[-1].version, f"PostgreSQL at {self.where}")
        return tuple(step for step in steps() if step.version > version)

    def check_current(self, conn: Connection) -> None:
        """``Unavailable`` when steps are pending."""
        if pending := self.pending(conn):
            raise Unavailable(
                f"PostgreSQL at {self.where}: the schema lacks {len(pending)} of {len(steps())} migrations; "
                "run: segue migrate --apply (as the owner of the schema), or open with migrate=True"
            )

    def apply(self, conn: Connection) -> tuple[Step, ...]:
        """
        Apply what is pending; several may try at once, one does it.

        Returns:
            The steps that this call applied.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        applied = []
        while pending := self.pending(conn):
            try:
                if self._apply(conn, pending[0]):
                    applied.append(pending[0])
            except psycopg.Error as error:
                if judge(error) != "again" or time.monotonic() > until:
                    raise translate(error, self.where) from error
        return tuple(applied)

    def _apply(self, conn: Connection, step: Step) -> bool:
        with conn.transaction():
            conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_MS))
            conn.execute("SET LOCAL statement_timeout = 0")
            self._be_alone(conn)
            if step.version <= self.version(conn):
                return False  # another was faster
            if step.version == 1:
                self._begin(conn)
            conn.execute(self._text(step))
            record = sql.SQL("INSERT INTO {} (version, name, digest) VALUES (%s, %s, %s)")
            conn.execute(record.format(self._table("migrations")), (step.version, step.name, step.digest))
        return True

    def _begin(self, conn: Connection) -> None:
        # Asked first: making a schema needs a right that one who may use it need not have.
        if conn.execute("SELECT FROM pg_namespace WHERE nspname = %s", (self.name,)).fetchone() is None:
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.name)))
        conn.execute(
            sql.SQL(
                "CREATE TABLE {} (version integer PRIMARY KEY, name text NOT NULL, digest text NOT NULL, "
                "applied_at timestamptz NOT NULL DEFAULT now())"
            ).format(self._table("migrations"))
        )

    def _text(self, step: Step) -> bytes:
        # The name was checked and is quoted here; nothing else of a file is ever replaced.
        quoted = sql.Identifier(self.name).as_string()
        return step.text.replace("@schema@", quoted).replace("@channel@", self.name).encode()

    def altered(self, conn: Connection) -> list[Step]:
        """Steps whose file is not the one that was applied: a released file must never change."""
        query = sql.SQL("SELECT version, digest FROM {}").format(self._table("migrations"))
        with self._translated():
            applied: dict[int, str] = dict(conn.execute(query).fetchall())
        return [step for step in steps() if step.version in applied and applied[step.version] != step.digest]

    # Row-level security.

    def has_row_security(self, conn: Connection) -> bool:
        """True when the tables show each transaction only one scope's rows, and this user too."""
        query = (
            "SELECT c.relrowsecurity AND c.relforcerowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls "
            "FROM pg_class c, pg_roles r WHERE c.oid = to_regclass(%s) AND r.rolname = current_user"
        )
        with self._translated():
            found = conn.execute(query, (f'"{self.name}".sessions',)).fetchone()
        return bool(found and found[0])

    def force_row_security(self, conn: Connection) -> None:
        """Switch it on, for the owner of the tables too."""
        with self._translated(), conn.transaction():
            conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_MS))
            self._be_alone(conn)
            for name in _TABLES:
                table = self._table(name)
                conn.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
                conn.execute(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(table))

    def grant(self, conn: Connection, user: str) -> None:
        """Let another user work with the tables, and no more."""
        schema, role = sql.Identifier(self.name), sql.Identifier(user)
        tables = sql.SQL(", ").join(self._table(name) for name in _TABLES)
        with self._translated(), conn.transaction():
            self._be_alone(conn)
            conn.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))
            conn.execute(sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(tables, role))
            read_only = sql.SQL(", ").join((self._table("migrations"), self._table("conversations")))
            conn.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(read_only, role))

    def _be_alone(self, conn: Connection) -> None:
        """Until the transaction ends, nobody else changes the schema."""
        conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"segue:{self.name}",))

    def _table(self, name: str) -> sql.Identifier:
        return sql.Identifier(self.name, name)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translate(error, self.where) from error


def check_server(conn: Connection, where: str) -> None:
    """
    Refuse a server that this store cannot use.

    Raises:
        Unavailable: Older than PostgreSQL 13, or the database's encoding would change names.
    """
    version = conn.info.server_version
    if version < SERVER_MIN:
        raise Unavailable(
            f"PostgreSQL at {where} has version {version // 10_000}; Segue needs 13 or newer: upgrade the server"
        )
    encoding = conn.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise Unavailable(
            f"the database at {where} has the encoding {encoding}, which cannot hold all names; "
            "make one with: createdb --encoding=UTF8 --template=template0 NAME"
        )
