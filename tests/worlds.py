"""Real things in the world for tests to read and change: files, a git repository, a server, databases."""

from __future__ import annotations

import contextlib
import http.server
import os
import secrets
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import duckdb

import servers
from segue import probes

REFUSED = 65534
"""User id of nobody, who may not read what root keeps to itself."""


@dataclass
class World:
    """
    One source: how it is looked at, and what may befall it.

    ``deny`` and ``cut_off`` are contexts: inside, the source may not be read, or cannot be reached.
    """

    source: str
    probe: Any
    change: Callable[[], object]
    remove: Callable[[], object] | None
    deny: Callable[[], contextlib.AbstractContextManager[object]] | None = None
    cut_off: Callable[[], contextlib.AbstractContextManager[object]] | None = None


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """The path cannot be read by this process."""
    mode = path.stat().st_mode
    path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(REFUSED)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(mode)


@contextlib.contextmanager
def moved_away(path: Path) -> Iterator[None]:
    """The path is not there: a drive that is not mounted."""
    away = path.with_name(f"{path.name}.away")
    path.rename(away)
    try:
        yield
    finally:
        away.rename(path)


def file_world(folder: Path) -> World:
    root = folder / "files"
    root.mkdir()
    path = root / "report.csv"
    path.write_text("1,2\n")
    probe = probes.File(roots=[root])
    return World(
        "file:report.csv",
        probe,
        change=lambda: path.write_text("1,3\n"),
        remove=path.unlink,
        deny=lambda: unreadable(path),
        cut_off=lambda: moved_away(root),
    )


def folder_world(folder: Path) -> World:
    root = folder / "reports"
    root.mkdir()
    for name in "abc":
        (root / f"{name}.csv").write_text(name)

    def remove() -> None:
        for path in root.iterdir():
            path.unlink()
        root.rmdir()

    return World(
        "folder:reports",
        probes.Folder(root, "*.csv"),
        change=lambda: (root / "d.csv").write_text("new"),
        remove=remove,
        deny=lambda: unreadable(root / "b.csv"),
    )


def git(folder: Path, *arguments: str) -> str:
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{who}_NAME": "Lin", f"GIT_{who}_EMAIL": "lin@example.com"}
    return subprocess.check_output(
        ["git", "-C", str(folder), *arguments], text=True, env=os.environ | identity, stderr=subprocess.DEVNULL
    )


def commit(folder: Path, text: str, name: str = "a.txt") -> None:
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-q", "-m", text)


def git_world(folder: Path) -> World:
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    commit(repository, "one")
    git(repository, "branch", "work")
    return World(
        "git:work",
        probes.Git(repository, ref=None),
        change=lambda: (commit(repository, "two"), git(repository, "branch", "-f", "work")),
        remove=lambda: git(repository, "branch", "-D", "work"),
        cut_off=lambda: moved_away(repository),
    )


def git_path_world(folder: Path) -> World:
    """A file in a repository: other commits are no change of it."""
    world = git_world(folder)
    repository = folder / "repository"
    world.source, world.probe = "git:main", probes.Git(repository, ref="main", path="a.txt")
    world.change = lambda: (commit(repository, "else", "b.txt"), commit(repository, "two"))
    world.remove = lambda: (git(repository, "rm", "-q", "a.txt"), git(repository, "commit", "-q", "-m", "gone"))
    return world


@dataclass
class Page:
    """What the server serves, and which requests it saw."""

    body: bytes = b"one"
    etag: str | None = '"1"'
    modified: float | None = None
    control: str | None = None
    status: int = 200
    has_head: bool = True
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    release: threading.Event = field(default_factory=threading.Event)
    hangs: bool = False


class _Handler(http.server.BaseHTTPRequestHandler):
    page: Page

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        page = self.page
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = 412
        if self.headers.get("If-Match") == page.etag:
            status, page.body, page.etag = 204, body, f'"{len(page.requests)}-{body.decode()}"'
        page.requests.append((self.command, self.path, dict(self.headers)))
        self.send_response(status)
        self.send_header("ETag", page.etag or "")
        self.end_headers()

    def _serve(self) -> None:
        page = self.page
        page.requests.append((self.command, self.path, dict(self.headers)))
        if page.hangs:
            page.release.wait(30)
        status = 501 if self.command == "HEAD" and not page.has_head else page.status
        asked = self.headers.get("If-None-Match")
        if status == 200 and page.etag is not None and asked is not None and asked == page.etag:
            status = 304
        self.send_response(status)
        if page.etag:
            self.send_header("ETag", page.etag)
        if page.modified is not None:
            self.send_header("Last-Modified", formatdate(page.modified, usegmt=True))
        if page.control:
            self.send_header("Cache-Control", page.control)
        if status in (301, 302):
            self.send_header("Location", "/elsewhere")
        body = page.body if status == 200 else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Page]:
    """A server on loopback that serves one page at every path."""
    page = Page()
    handler = type("Handler", (_Handler,), {"page": page})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    page.url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield page
    finally:
        page.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def answering(page: Page, status: int) -> Iterator[None]:
    page.status, before = status, page.status
    try:
        yield
    finally:
        page.status = before


def http_world(page: Page, validator: str = "etag") -> World:
    page.etag = page.etag if validator == "etag" else None
    page.modified = 1_790_000_000.0 if validator == "modified" else None

    def change() -> None:
        page.body = b"two"
        page.etag = page.etag and '"2"'
        page.modified = page.modified and page.modified + 60

    return World(
        page.url,
        probes.Http(allow=[page.url]),
        change=change,
        remove=lambda: setattr(page, "status", 404),
        deny=lambda: answering(page, 403),
        cut_off=lambda: answering(page, 503),
    )


SCHEMA = "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, updated_at TIMESTAMP)"


def fill(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(SCHEMA)
    for i in (1, 2, 3):
        cursor.execute(f"INSERT INTO orders VALUES ({i}, {i}0, '2026-08-0{i} 03:12:00')")


def sqlite_connect(folder: Path) -> Callable[[], sqlite3.Connection]:
    path = folder / "orders.db"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.05)

    return connect


def sqlite_orders(folder: Path) -> Callable[[], sqlite3.Connection]:
    connect = sqlite_connect(folder)
    with contextlib.closing(connect()) as connection:
        fill(connection)
    return connect


def duckdb_orders(folder: Path) -> Callable[[], Any]:
    database = duckdb.connect(str(folder / "orders.duckdb"))
    fill(database)
    return database.cursor


def run_sql(connect: Callable[[], Any], *statements: str) -> None:
    connection = connect()
    for statement in statements:
        connection.cursor().execute(statement)
    with contextlib.suppress(Exception):
        connection.commit()
    connection.close()


UPDATE = "UPDATE orders SET amount = 99, updated_at = '2026-08-09 03:12:00' WHERE id = 2"
DELETE = "DELETE FROM orders WHERE id = 2"
BACKFILL = "UPDATE orders SET amount = 77 WHERE id = 1"  # does not stamp the row


def sql_world(connect: Callable[[], Any], **contexts: Any) -> World:
    return World(
        "warehouse:orders",
        probes.Watermark(connect, "orders", "updated_at"),
        change=lambda: run_sql(connect, UPDATE),
        remove=lambda: run_sql(connect, "DROP TABLE orders"),
        **contexts,
    )


def sqlite_world(folder: Path) -> World:
    """Cut off while another connection holds the file for itself."""
    connect = sqlite_orders(folder)

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        with contextlib.closing(connect()) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    return sql_world(connect, cut_off=locked)


def data_version_world(folder: Path) -> World:
    world = sqlite_world(folder)
    world.probe = probes.DataVersion(sqlite_connect(folder))
    world.remove = None  # the number is the file's: a table that is gone is a change
    return world


@contextlib.contextmanager
def postgres_world(server: str, kind: str) -> Iterator[World]:
    """Orders in a schema of their own. Denied: a role that may not read them; cut off: a port where nobody listens."""
    import psycopg

    name = f"world_{os.getpid()}_{secrets.token_hex(4)}"
    as_whom = {"role": "", "url": server}

    def connect() -> Any:
        connection = psycopg.connect(as_whom["url"], autocommit=True, options=f"-c search_path={name}")
        if as_whom["role"]:
            connection.execute(f"SET ROLE {as_whom['role']}")
        return connection

    def admin(*statements: str) -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextlib.contextmanager
    def instead(**values: str) -> Iterator[None]:
        before = dict(as_whom)
        as_whom.update(values)
        yield
        as_whom.update(before)

    admin(f"CREATE SCHEMA {name}", f"CREATE ROLE {name} NOLOGIN", f"GRANT USAGE ON SCHEMA {name} TO {name}")
    try:
        with connect() as connection:
            fill(connection)
        world = sql_world(
            connect,
            deny=lambda: instead(role=name),
            cut_off=lambda: instead(url="postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"),
        )
        if kind == "rows":
            world.probe = probes.Rows(connect, "SELECT id, amount FROM orders ORDER BY id")
        elif kind == "xmin":
            world.probe = probes.Xmin(connect, "orders")
        yield world
    finally:
        admin(f"DROP SCHEMA {name} CASCADE", f"DROP ROLE {name}")


def rows_world(connect: Callable[[], Any]) -> World:
    world = sql_world(connect)
    world.probe = probes.Rows(connect, "SELECT id, amount FROM orders ORDER BY id")
    return world


def url_world(folder: Path) -> World:
    root = folder / "bucket"
    root.mkdir()
    path = root / "object"
    path.write_text("one")
    return World(
        path.as_uri(),
        probes.Url(allow=[root.as_uri()]),
        change=lambda: path.write_text("three"),
        remove=path.unlink,
        deny=None,
    )


def call_world() -> World:
    state: dict[str, Any] = {"version": 1}

    def look() -> Any:
        if state.get("broken"):
            raise ConnectionError("password=hunter2")
        return state["version"]

    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        state["broken"] = True
        yield
        state["broken"] = False

    @contextlib.contextmanager
    def denied() -> Iterator[None]:
        before, state["version"] = state["version"], probes_denied()
        yield
        state["version"] = before

    return World(
        "erp:stock",
        probes.Call(look),
        change=lambda: state.update(version=2),
        remove=lambda: state.update(version=probes_gone()),
        deny=denied,
        cut_off=broken,
    )


def probes_denied() -> object:
    from segue.world import Denied

    return Denied()


def probes_gone() -> object:
    from segue.world import Gone

    return Gone()


@contextlib.contextmanager
def world_named(name: str, folder: Path) -> Iterator[World]:
    """One of WORLDS, in the folder."""
    kind = name.partition("-")[2]
    if name.startswith("http"):
        with serving() as page:
            yield http_world(page, kind or "etag")
        return
    if name.startswith("postgres"):
        with postgres_world(servers.shared("postgres"), kind) as world:
            yield world
        return
    make: dict[str, Callable[[], World]] = {
        "file": lambda: file_world(folder),
        "folder": lambda: folder_world(folder),
        "git": lambda: git_world(folder),
        "git-path": lambda: git_path_world(folder),
        "sqlite": lambda: sqlite_world(folder),
        "sqlite-version": lambda: data_version_world(folder),
        "duckdb": lambda: sql_world(duckdb_orders(folder)),
        "sqlite-rows": lambda: rows_world(sqlite_orders(folder)),
        "duckdb-rows": lambda: rows_world(duckdb_orders(folder)),
        "url": lambda: url_world(folder),
        "call": call_world,
    }
    yield make[name]()


WORLDS = ("file", "folder", "git", "http", "sqlite", "duckdb", "sqlite-rows", "duckdb-rows", "url", "call")
MORE = ("git-path", "http-modified", "http-body", "sqlite-version")
"""Further ones, for the whole matrix."""
POSTGRES = ("postgres", "postgres-rows", "postgres-xmin")
"""Those that need a server."""
DENYING = ("file", "folder", "http", "call")
CUTTING = ("file", "git", "http", "call")
