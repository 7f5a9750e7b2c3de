"""Which store, whose sessions, and which session: what the words on the command line stand for."""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import segue
from segue import migrations
from segue.errors import Invalid, NotFound, SegueError, Unavailable
from segue.model import SessionInfo

from .outcome import Ambiguous, NoStore

STORE, TENANT, USER = "sqlite:///segue.db", "default", "local"
"""What is meant when neither an option nor the environment says otherwise."""

PART_MIN = 4
"""Fewest characters of an id that may stand for the whole."""

SHORT = 8
"""How many characters of a generated id are shown."""

CANDIDATES_MAX = 10
STATUSES = ("running", "idle", "paused", "completed", "archived")

_WITH_SCHEMA = ("postgres:", "postgresql:", "mysql:", "mariadb:", "mongodb:", "mongodb+srv:")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")
_PASSWORD = re.compile(r"(://[^/@:?#]*):(?:[^/?#]*|[^?#]*)@")
_PARAMETER = re.compile(r"([?&])([^=&]*)=([^&]*)")
_SECRET = re.compile("pass|pwd|secret|token|credential|authmechanismproperties", re.IGNORECASE)
_GENERATED = re.compile(r"[0-9a-f]{32}")


def store_url(given: str | None) -> str:
    """The store's URL from the option, the environment or the default; a path to a file stands for its SQLite URL."""
    url = given or os.environ.get("SEGUE_STORE") or STORE
    return url if _SCHEME.match(url) else f"sqlite:///{url}"


def shown(url: str) -> str:
    """The URL without passwords: neither before the host nor in the query."""

    def masked(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}=***" if _SECRET.search(unquote_plus(found[2])) else found[0]

    return _PARAMETER.sub(masked, _PASSWORD.sub(r"\1:***@", url))


def given(word: str) -> str:
    """A word of the command line that may not be empty: a variable that was not set is no wish for the default."""
    if not word:
        raise ArgumentTypeError("it is empty; give a value, or leave it out where it has a default")
    return word


def file_of(url: str) -> Path | None:
    """The file or folder of an embedded store, or None."""
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    if url.startswith("jsonl:"):
        return Path(url.removeprefix("jsonl:").removeprefix("//"))
    return None


def must_exist(url: str) -> None:
    """
    Refuse a file that is not there: opening it would make an empty store, and hide a mistyped name.

    Raises:
        NoStore: There is none.
        Unavailable: It cannot be looked at.
    """
    place = file_of(url)
    if place is None or not place.name:
        return
    try:
        if url.startswith("sqlite:") and place.is_dir():
            raise Invalid(f"{place} is a folder; for a store of JSON lines, name it jsonl:{place}", where="store")
        is_there = place.exists() and bool(any(place.iterdir()) if place.is_dir() else place.stat().st_size)
    except OSError as error:
        raise Unavailable(f"the store at {place} cannot be read: {error.strerror or error}") from error
    if not is_there:
        raise NoStore(
            f"no store at {place}; name it with --store or SEGUE_STORE (segue.open makes one, this command never)"
        )


def opened(url: str, *, reads: bool = False) -> segue.Database:
    """
    The store that is there, open (for reading only where that is enough). None is made, and no schema changed.

    Raises:
        NoStore: There is none.
        Unavailable: Its schema lacks migrations, or it cannot work now.
    """
    must_exist(url)
    if file_of(url) is not None:
        db = segue.open(url, read_only=True)
        if reads:
            return db
        db.close()  # it is there: in an empty file or folder, opening for writing would have made a store
    if not url.startswith(_WITH_SCHEMA):
        return segue.open(url)
    try:
        return segue.open(url, migrate=False)
    except Unavailable as error:
        if _is_empty(url):
            raise NoStore(
                f"no store at {shown(url)}; name it with --store or SEGUE_STORE (segue migrate --apply and segue.open "
                "make one, this command never)"
            ) from error
        raise


def _is_empty(url: str) -> bool:
    """Whether a server's database can be asked, and has nothing of Segue."""
    try:
        pending = migrations.plan(url).steps
    except SegueError:
        return False  # what opening said stands
    return bool(pending) and pending[0].number == 1


class Desk:
    """
    What a command works on: an open store and one owner's sessions in it.

    Attributes:
        url: The store's URL.
        db: The open store.
        scope: The owner's sessions.
    """

    def __init__(self, url: str, db: segue.Database, scope: segue.Scope) -> None:
        self.url = url
        self.db = db
        self.scope = scope
        self.now = db.now()

    def sessions(self, **filters: Any) -> Iterator[SessionInfo]:
        """All sessions of the owner, archived ones and sub-agents' included."""
        return self.scope.iterate(**{"status": STATUSES, "unlisted": True, **filters})

    def find(self, given: str, **latest: Any) -> segue.Session:
        """
        The session that is meant.

        Args:
            given: ``latest``; ``key:`` and the caller's own key; ``id:`` and a full id; or a full id, its
                beginning or its end (4 characters or more) where only one session fits.
            latest: Filters of ``latest``.

        Raises:
            NotFound: There is none.
            Ambiguous: Several fit.
        """
        if given == "latest":
            return self.scope.latest(**latest)
        if given.startswith("key:"):
            found = self.scope.get_key(given.removeprefix("key:"))
            if found is None:
                raise NotFound(given)
            return found
        try:
            return self.scope.open(given.removeprefix("id:"))
        except NotFound:
            if given.startswith("id:"):
                raise NotFound(given) from None
        return self.scope.open(self._complete(given))

    def _complete(self, given: str) -> str:
        if len(given) < PART_MIN:
            raise Invalid(
                f"{given!r} is too short for a part of an id; give {PART_MIN} characters or more", where="session"
            )
        fitting = [info.id for info in self.sessions() if info.id.startswith(given) or info.id.endswith(given)]
        if not fitting:
            raise NotFound(given)
        if len(fitting) > 1:
            raise Ambiguous(given, tuple(fitting[:CANDIDATES_MAX]), total=len(fitting))
        return fitting[0]


@contextmanager
def desk(args: Any, *, reads: bool = False, makes: bool = False) -> Iterator[Desk]:
    """Open what the options name, for reading only where that is enough, and close it afterwards."""
    url = store_url(args.store)
    with segue.open(url) if makes else opened(url, reads=reads) as db:
        yield Desk(url, db, db.scope(*owner(args)))


def owner(args: Any) -> tuple[str, str]:
    """Tenant and user from the options, the environment or the defaults."""
    return (
        args.tenant or os.environ.get("SEGUE_TENANT") or TENANT,
        args.user or os.environ.get("SEGUE_USER") or USER,
    )


def short_id(id: str) -> str:
    """
    What of an id is shown, and finds the session again.

    A generated id begins with the time, which sessions of one minute share: its end tells it from others.
    """
    return id[-SHORT:] if _GENERATED.fullmatch(id) else id
