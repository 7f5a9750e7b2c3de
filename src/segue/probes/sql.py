"""Tables and queries of any database with a DB-API (or DuckDB, apsw) connection."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from segue.errors import Invalid
from segue.ledger import Answer, Denied, Gone, Unanswered, Version
from segue.model import new_id

from .call import named_parameters

Connect = Callable[..., Any]
"""Opens a connection; takes ``principal`` by name if it wants to connect as the user."""

# By SQLSTATE, MySQL's number, or the name of the driver's class: what the refusal of a query means.
_DENIED: frozenset[object] = frozenset({"42501", "28000", "28P01", 1044, 1045, 1142, 1143})
_GONE: frozenset[object] = frozenset({"42P01", "3D000", "3F000", "42S02", 1146, 1049, "CatalogException"})


class Sql:
    """
    The version is the one row that a query gives.

    Args:
        connect: Opens a connection; it is closed after each look.
        query: Constant text, the developer's own; values go into ``parameters``.
        parameters: In the driver's own style.
        kind: The kind of version.

    No row is ``Gone``; several rows cannot be told from one another: unverifiable (use ``Rows``).

    Blind spots: every change that does not change the query's row.
    """

    def __init__(
        self, connect: Connect, query: str, *, parameters: Sequence[Any] | None = None, kind: str = "watermark"
    ) -> None:
        self._connect = connect
        self._query = query
        self._parameters = parameters
        self._kind = kind

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """The query's row now; the source's name is not used."""
        try:
            with _cursor(self._connect, principal) as cursor:
                _execute(cursor, self._query, self._parameters)
                row, second = cursor.fetchone(), cursor.fetchone()
        except Exception as error:
            refused = _meaning(error)
            if refused is None:
                raise
            return refused
        if row is None:
            return Gone()
        if second is not None:
            return Unanswered("the query gave more than one row")
        return Version.of(_text(row), self._kind)


class Watermark(Sql):
    """
    The version is the largest value of a column that grows with every change: ``max(updated_at)``.

    Args:
        connect: Opens a connection.
        table: ``orders`` or ``sales.orders``, exactly as the database spells it.
        column: The column that is stamped at every insert and update.
        quote: The database's quotation mark for names (MySQL: a backtick).

    Blind spots: deletes; backfills and edits that do not stamp the column; a transaction that commits late with an
    earlier stamp; two changes within one tick of the clock; clocks that were set back. ``Rows`` sees the first two.
    """

    def __init__(self, connect: Connect, table: str, column: str, *, quote: str = '"') -> None:
        query = f"SELECT max({_name(column, quote)}) FROM {_name(table, quote)}"  # noqa: S608 - checked names
        super().__init__(connect, query, kind="watermark")


class Rows:
    """
    The version is the number of rows that a query gives and a digest over them.

    Args:
        connect: Opens a connection.
        query: Constant text; give it an ORDER BY, or a change of plan looks like a change of data.
        parameters: In the driver's own style.
        rows_max: Beyond, it is unverifiable.

    Blind spots: columns and rows that the query leaves out. Values that the driver shows alike
    (a float's last digits). It reads all rows: use it for small sets.
    """

    def __init__(
        self, connect: Connect, query: str, *, parameters: Sequence[Any] | None = None, rows_max: int = 100_000
    ) -> None:
        self._connect = connect
        self._query = query
        self._parameters = parameters
        self._rows_max = rows_max

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """Count and digest of the rows now; the source's name is not used."""
        try:
            with _cursor(self._connect, principal) as cursor:
                _execute(cursor, self._query, self._parameters)
                return self._digest(cursor)
        except Exception as error:
            refused = _meaning(error)
            if refused is None:
                raise
            return refused

    def _digest(self, cursor: Any) -> Answer:
        found = rows_version(islice(iter(cursor.fetchone, None), self._rows_max + 1))
        is_over = int(found.value.partition(" ")[0]) > self._rows_max
        return Unanswered(f"over {self._rows_max:,} rows") if is_over else found


def rows_version(rows: Iterable[Sequence[Any]]) -> Version:
    """The version that ``Rows`` gives a query whose rows are these, as the driver gave them."""
    hashing, count = hashlib.sha256(), 0
    for row in rows:
        count += 1
        hashing.update(repr([(type(value).__name__, str(value)) for value in row]).encode("utf-8", "surrogatepass"))
    return Version("count+digest", f"{count} {hashing.hexdigest()}")


class Xmin(Sql):
    """
    PostgreSQL: the number of rows of a table and the newest transaction that wrote one of them.

    Sees inserts, updates and deletes, stamped or not. It scans the table.

    Blind spots: a delete together with the insert of as many rows by one *older* transaction; transaction
    ids wrap around after 2³² and rows frozen before PostgreSQL 9.4. A dump and restore alarms without a change.
    """

    def __init__(self, connect: Connect, table: str) -> None:
        query = (
            "SELECT count(*), coalesce(max(xmin::text::bigint), 0), coalesce(sum(xmin::text::bigint), 0) "  # noqa: S608
            f"FROM {_name(table, chr(34))}"
        )
        super().__init__(connect, query, kind="xmin")


class Lsn(Sql):
    """
    PostgreSQL: the position of the write-ahead log. Cheap; it moves with every write to the *whole* server.

    Use it to prove "nothing at all was written". It alarms on writes to other tables, and on vacuum and checkpoints.

    Blind spots: unlogged and temporary tables; on a replica, what the primary wrote and did not send yet.
    """

    def __init__(self, connect: Connect) -> None:
        query = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text"
        super().__init__(connect, query, kind="lsn")


class DataVersion:
    """
    SQLite: ``PRAGMA data_version``, which moves when any other connection commits to the file.

    Args:
        connect: Opens a connection, once; it is kept, since the number means something on one connection only.

    Blind spots: the number does not outlive this probe: after a restart of the process earlier readings are
    unverifiable (use ``Watermark`` or ``Rows`` for those). It moves with writes to any table of the file.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Any = None
        self._lock = threading.Lock()
        self._kind = f"data_version@{new_id()[-12:]}"

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """The number now; the source's name is not used. The connection must be usable from any thread."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            row = self._connection.cursor().execute("PRAGMA data_version").fetchone()
        return Version.of(row[0], self._kind)

    def close(self) -> None:
        """Close the kept connection; a later look opens a new one, and its numbers may not fit the old ones."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._kind = f"data_version@{new_id()[-12:]}"


@contextmanager
def _cursor(connect: Connect, principal: str | None) -> Iterator[Any]:
    connection = connect(principal=principal) if "principal" in named_parameters(connect) else connect()
    try:
        yield connection.cursor()
    finally:
        connection.close()


def _execute(cursor: Any, query: str, parameters: Sequence[Any] | None) -> None:
    if parameters is None:  # some drivers read % and ? in the text as soon as there are parameters
        cursor.execute(query)
    else:
        cursor.execute(query, parameters)


def _meaning(error: Exception) -> Gone | Denied | None:
    """What a database's refusal says about the source; None where it says nothing."""
    said = (getattr(error, "sqlstate", None), error.args[0] if error.args else None, type(error).__name__)
    if any(_is_in(code, _DENIED) for code in said):
        return Denied()
    if any(_is_in(code, _GONE) for code in said) or str(error).removeprefix("SQLError: ").startswith("no such table"):
        return Gone()
    return None


def _is_in(code: object, known: frozenset[object]) -> bool:
    return isinstance(code, str | int) and code in known


def _text(row: Sequence[Any]) -> str:
    parts = ("null" if value is None else Version.of(value).value for value in row)
    return " | ".join(parts)


def _name(dotted: str, quote: str) -> str:
    """A table's or column's name, checked and quoted: letters, digits and underscores, at most three parts."""
    parts = dotted.split(".") if isinstance(dotted, str) else []
    if not 1 <= len(parts) <= 3 or not all(part.isidentifier() for part in parts) or quote not in {'"', "`"}:
        raise Invalid(
            f"{str(dotted)[:80]!r} is not a plain name of a table or column; use Sql with a query of your own",
            where="table",
        )
    return ".".join(f"{quote}{part}{quote}" for part in parts)
