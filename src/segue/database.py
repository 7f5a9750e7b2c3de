"""Opening a store by its URL, and what concerns all scopes: the sweep, the check."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, Self

from .engine import Engine
from .errors import Busy, Invalid, MissingExtra, NotFound, VersionMoved
from .model import ScopeKey, SessionInfo, check_name, from_us
from .session import Scope
from .store import LIST_MAX, Erase, Filter, Report, Store, Update

PURGE_AFTER = timedelta(days=30)
"""How long an archived session stays before a sweep erases it."""

# scheme → module, class, the extra that installs its driver
_STORES = {
    "memory": ("memory", "MemoryStore", ""),
    "sqlite": ("sqlite", "SQLiteStore", ""),
    "jsonl": ("jsonl", "JsonlStore", ""),
    "postgresql": ("postgres", "PostgresStore", "postgres"),
    "mysql": ("mysql", "MySQLStore", "mysql"),
    "redis": ("redis", "RedisStore", "redis"),
    "mongodb": ("mongodb", "MongoStore", "mongodb"),
}
_ALIASES = {
    "postgres": "postgresql",
    "mariadb": "mysql",
    "rediss": "redis",
    "redis+cluster": "redis",
    "mongodb+srv": "mongodb",
}


def open(url: str | Store = "sqlite:///segue.db", **options: Any) -> Database:
    """
    Open a store.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``memory:``, ``jsonl:folder``,
            ``postgresql://user@host/db``, ``mysql://user@host/db``, ``redis://host/0``,
            ``mongodb://host/db?replicaSet=rs``; or a store object. The URL of a file, a folder or a memory
            holds no ``?`` and no ``#``.
        options: What the store takes besides; see docs/stores.md.

    Returns:
        A handle for any number of threads; close it, or use it as a context manager.

    Raises:
        Invalid: The URL names no store, or holds what belongs into ``options``; options came with a store object.
        MissingExtra: The store's driver is not installed; the message says how to.
        Unavailable: The store cannot be opened; the message says why.
        TooNew: A newer version of Segue wrote it.
    """
    return Database(Engine(_store(url, options)))


def _store(url: Any, options: dict[str, Any]) -> Store:
    if callable(getattr(url, "commit", None)) and not isinstance(url, str):
        if options:
            raise Invalid(f"a store object takes no options; give {', '.join(options)} to its class", where="options")
        return url  # type: ignore[no-any-return]
    module, made, place = find_store(url)
    return getattr(module, made)(place, **options)  # type: ignore[no-any-return]


def find_store(url: Any) -> tuple[ModuleType, str, str | None]:
    """(inner) The module of the URL's store, the name of its class, and the place that it is given."""
    if not isinstance(url, str):
        this = f"sqlite:///{os.fspath(url)}" if isinstance(url, os.PathLike) else "sqlite:///segue.db"
        raise Invalid(f"a store's URL is a text such as {this!r}, not {type(url).__name__}", where="url")
    scheme, colon, rest = url.partition(":")
    scheme = _ALIASES.get(scheme, scheme)
    if not colon or scheme not in _STORES:
        raise Invalid(
            f"{url.partition('://')[0]!r} names no store; a URL begins with {', '.join(f'{s}:' for s in _STORES)} "
            "such as sqlite:///segue.db",
            where="url",
        )
    name, made, extra = _STORES[scheme]
    try:
        module = importlib.import_module(f".stores.{name}", __package__)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("segue"):
            raise
        raise MissingExtra(extra, error.name or name) from None
    return module, made, _place(scheme, url, rest)


def _place(scheme: str, url: str, rest: str) -> str | None:
    """What a store is given: a path for files, a name for memory, the whole URL for servers."""
    if scheme not in ("sqlite", "jsonl", "memory"):
        return url
    if "?" in rest or "#" in rest:
        raise Invalid(
            f"a {scheme}: URL holds no ? and no #: options are keyword arguments, such as "
            "segue.open(url, busy_timeout=…); a path that really holds one goes to the store's class itself",
            where="url",
        )
    if scheme == "sqlite":
        if not rest.startswith("///") or len(rest) == 3:
            raise Invalid("an SQLite URL is sqlite:///relative.db or sqlite:////absolute.db", where="url")
        if rest.endswith("/") or rest[3:] != rest[3:].strip():
            raise Invalid(f"{rest[3:]!r} begins or ends with a space, or ends with a slash; name a file", where="url")
        return rest[3:]
    if scheme == "jsonl":
        folder = rest.removeprefix("//")
        if not folder:
            raise Invalid("a JSON-lines URL is jsonl:folder", where="url")
        return folder
    return rest.removeprefix("//") or None


class SweepReport(NamedTuple):
    """What a sweep did (or, dry, would do): (scope, session id) of each."""

    archived: tuple[tuple[ScopeKey, str], ...]
    erased: tuple[tuple[ScopeKey, str], ...]


class Database:
    """An open store. Its scopes are the only door to data."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<Database {self._engine.store.name}>"

    @property
    def engine(self) -> Engine:
        """The engine below, for the async face."""
        return self._engine

    @property
    def name(self) -> str:
        """The store's name, such as ``sqlite``."""
        return self._engine.store.name

    @property
    def capabilities(self) -> frozenset[str]:
        """What the store declares; see ``segue.store.CAPABILITIES``."""
        return self._engine.store.capabilities

    def scope(self, tenant: str = "default", user: str = "local") -> Scope:
        """
        The door to one user's sessions. Take both names from the login, never from a request's body.

        Raises:
            Invalid: A name is empty, over 255 bytes, or holds control characters.

        Guarantees: G7 no call reaches another owner's data.
        """
        return Scope(self._engine, ScopeKey(check_name(tenant, "tenant"), check_name(user, "user")))

    def scopes(self) -> Iterator[ScopeKey]:
        """All owners that have sessions, for maintenance."""
        after: ScopeKey | None = None
        while True:
            found = self._engine.store.scopes(after, LIST_MAX)
            yield from found
            if len(found) < LIST_MAX:
                return
            after = found[-1]

    def now(self) -> datetime:
        """The store's clock (UTC)."""
        return from_us(self._engine.store.now_us())

    def check(self, *, deep: bool = False) -> list[Report]:
        """Findings on the store's settings; ``deep`` reads and compares every entry. Damage is a finding."""
        return self._engine.store.check(deep=deep)

    def sweep(
        self,
        *,
        purge_after: timedelta = PURGE_AFTER,
        dry: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> SweepReport:
        """
        Archive the sessions whose lifetime ended; erase those archived longer than ``purge_after``.

        Pinned and running sessions are left alone. Call it as often as you like, from several processes.

        Args:
            purge_after: How long an archived session stays.
            dry: Only say what would be done.
            progress: Called with one line a session.

        Returns:
            What was done, by scope and id.
        """
        now = self._engine.store.now_us()
        purge = now - purge_after // timedelta(microseconds=1)
        archived: list[tuple[ScopeKey, str]] = []
        erased: list[tuple[ScopeKey, str]] = []
        for scope in self.scopes():
            purged = self._found(scope, Filter(archived_us=purge, include_unlisted=True))
            erased += [(scope, i.id) for i in purged if dry or self._sweep_one(Erase(scope, i.id, i.version))]
            due = self._found(scope, Filter(due_us=now, include_unlisted=True))
            put_away = {"state": "archived"}
            archived += [
                (scope, i.id) for i in due if dry or self._sweep_one(Update(scope, i.id, put_away, i.version, now))
            ]
        for done, verb in ((archived, "archived"), (erased, "erased")):
            for scope, session in done:
                if progress is not None:
                    progress(f"{'would be ' if dry else ''}{verb}: {scope.tenant}/{scope.user} {session}")
        return SweepReport(tuple(archived), tuple(erased))

    def _found(self, scope: ScopeKey, filter: Filter) -> list[SessionInfo]:
        found: list[SessionInfo] = []
        cursor: str | None = None
        while True:
            page = self._engine.store.page(scope, filter, cursor, LIST_MAX)
            found += page.sessions
            cursor = page.cursor
            if cursor is None:
                return found

    def _sweep_one(self, op: Erase | Update) -> bool:
        """Whether it was done; a session that was used, changed or erased in this moment is left alone."""
        try:
            self._engine.do(op)
        except (Busy, VersionMoved, NotFound):
            return False
        return True

    def close(self) -> None:
        """Finish what was accepted and release everything. Idempotent."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
