"""
Private database servers for tests: on a free loopback port, in a temporary folder, always stopped.

``shared("postgres")`` gives the one server of this pytest run (all xdist workers use it), ``private``
one that a test may crash. A server comes from a URL in the environment (``SEGUE_TEST_POSTGRES_URL``),
else from the machine's own binaries; where there is neither, the test is skipped with the reason,
or fails when ``CI=true`` or ``SEGUE_REQUIRE_SERVERS=1``.

A shared server is run by a supervisor process. Each user of it holds a lock on a file; when the
kernel has dropped the last of these locks, by exit or by crash, the supervisor stops the server and
removes its folder. The server itself is killed by the kernel when its supervisor dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest

START_SECONDS = 60
PASSWORD = "a pass:word/with@signs"
"""Password of the role ``keeper`` of private PostgreSQL servers; others connect without one."""


class Missing(Exception):
    """There is no such server here; the text says what to install."""


# What each server is.


@dataclass(frozen=True)
class Recipe:
    """How to find, prepare and start one kind of server. To add a kind, add one of these to RECIPES."""

    name: str
    find: Callable[[], Path]  # the program, or Missing
    prepare: Callable[[Path, Path, int], list[str]]  # (program, folder, port) -> command line
    url: Callable[[int], str]
    is_up: Callable[[int], bool]
    fresh: Callable[[str], contextlib.AbstractContextManager[str]]  # the server's URL -> that of a new database
    stop_signal: signal.Signals = signal.SIGQUIT  # how to crash it

    @property
    def variable(self) -> str:
        return f"SEGUE_TEST_{self.name.upper()}_URL"


def _find_postgres() -> Path:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        folders.append(Path(subprocess.check_output(["pg_config", "--bindir"], text=True).strip()))
    if on_path := shutil.which("initdb"):
        folders.append(Path(on_path).parent)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder / "postgres"
    raise Missing("no PostgreSQL on this machine; run scripts/services.sh, or set SEGUE_TEST_POSTGRES_URL")


def _prepare_postgres(program: Path, folder: Path, port: int) -> list[str]:
    data = folder / "data"
    if not data.exists():
        secret = folder / "password"
        secret.write_text(PASSWORD)
        _own(secret)
        initdb = [program.with_name("initdb"), "-D", data, "-U", "segue", "-A", "trust", "-E", "UTF8", "--no-locale"]
        _run([*initdb, "--no-sync", f"--pwfile={secret}"], folder)
        (data / "pg_hba.conf").write_text(
            "host all keeper 127.0.0.1/32 scram-sha-256\n"
            "host all all 127.0.0.1/32 trust\n"
            "local all all trust\n"
            "host replication all 127.0.0.1/32 trust\n"
        )
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "max_connections": 200,
        "shared_buffers": "64MB",
        "logging_collector": "off",
    }
    return [str(program), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]


def _postgres_url(port: int) -> str:
    return f"postgresql://segue@127.0.0.1:{port}/postgres"


def _postgres_is_up(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(_postgres_url(port), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@contextlib.contextmanager
def _postgres_database(server: str) -> Iterator[str]:
    import psycopg

    fresh = f"segue_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {fresh} ENCODING 'UTF8' TEMPLATE template0")
    try:
        yield _at(server, fresh)
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {fresh} WITH (FORCE)")


def _find_mysql() -> Path:
    for name in ("mariadbd", "mysqld"):
        if found := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec"):
            return Path(found)
    raise Missing("no MariaDB on this machine; run scripts/services.sh, or set SEGUE_TEST_MYSQL_URL")


def _prepare_mysql(program: Path, folder: Path, port: int) -> list[str]:
    data = folder / "data"
    if not data.exists():
        install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
        if install is None:
            raise Missing("mariadbd without mariadb-install-db; run scripts/services.sh")
        _run(
            [
                install,
                "--no-defaults",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            folder,
        )
    return [
        str(program), "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1",
        f"--socket={folder / 'mysql.sock'}", f"--pid-file={folder / 'mysql.pid'}", "--max-connections=200",
        "--innodb-buffer-pool-size=128M", "--skip-name-resolve", "--skip-log-bin",
    ]  # fmt: skip


def _mysql_url(port: int) -> str:
    return f"mysql://root@127.0.0.1:{port}/mysql"


def _mysql_connect(url: str) -> Any:
    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        autocommit=True,
        connect_timeout=5,
    )


def _mysql_is_up(port: int) -> bool:
    import pymysql

    try:
        _mysql_connect(_mysql_url(port)).close()
    except pymysql.err.OperationalError:
        return False
    return True


@contextlib.contextmanager
def _mysql_database(server: str) -> Iterator[str]:
    fresh = f"segue_{secrets.token_hex(6)}"
    with contextlib.closing(_mysql_connect(server)) as admin:
        admin.cursor().execute(f"CREATE DATABASE {fresh}")
    try:
        yield _at(server, fresh)
    finally:
        with contextlib.closing(_mysql_connect(server)) as admin:
            admin.cursor().execute(f"DROP DATABASE IF EXISTS {fresh}")


def _find_redis() -> Path:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    raise Missing("no Redis on this machine; run scripts/services.sh, or set SEGUE_TEST_REDIS_URL")


def _prepare_redis(program: Path, folder: Path, port: int) -> list[str]:
    return [
        str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--databases", "512",
        "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction",
    ]  # fmt: skip


def _redis_url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


def _redis_is_up(port: int) -> bool:
    import redis

    with redis.Redis.from_url(_redis_url(port)) as client:
        try:
            client.ping()
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False
    return True


@contextlib.contextmanager
def _redis_database(server: str) -> Iterator[str]:
    import redis

    with redis.Redis.from_url(server) as admin:
        for _ in range(600):  # the server's databases are few: wait for a free one
            number = secrets.randbelow(511) + 1
            if admin.set(f"segue-tests:{number}", os.getpid(), nx=True):
                break
        else:
            raise RuntimeError("all databases of the tests' Redis are in use")
        url = _at(server, str(number))
        try:
            with redis.Redis.from_url(url) as fresh:
                fresh.flushdb()
            yield url
        finally:
            with redis.Redis.from_url(url) as fresh:
                fresh.flushdb()
            admin.delete(f"segue-tests:{number}")


def _at(server: str, database: str) -> str:
    parts, question, options = server.partition("?")
    return f"{parts.rpartition('/')[0]}/{database}{question}{options}"


RECIPES = {
    "postgres": Recipe(
        "postgres", _find_postgres, _prepare_postgres, _postgres_url, _postgres_is_up, _postgres_database
    ),
    "mysql": Recipe("mysql", _find_mysql, _prepare_mysql, _mysql_url, _mysql_is_up, _mysql_database, signal.SIGKILL),
    "redis": Recipe("redis", _find_redis, _prepare_redis, _redis_url, _redis_is_up, _redis_database, signal.SIGKILL),
}


# One running server.


@dataclass
class Server:
    """A server that this process started itself and may crash: ``kill``, ``start``, ``stop``."""

    recipe: Recipe
    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return self.recipe.url(self.port)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        self.port = self.port or free_port()
        command = self.recipe.prepare(self.recipe.find(), self.folder, self.port)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, **_unprivileged()
            )
        self.wait()

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + START_SECONDS
        while not self.recipe.is_up(self.port):
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.recipe.name} did not start:\n{self.log[-4000:]}")
            time.sleep(0.02)

    def kill(self, signal_: signal.Signals | None = None) -> None:
        """Crash it (an immediate stop, or the signal given), and wait until it is gone."""
        process = self._process  # another thread may start the next one meanwhile
        if process is not None and process.poll() is None:
            process.send_signal(signal_ or self.recipe.stop_signal)
            process.wait(START_SECONDS)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def private(name: str) -> Iterator[Server]:
    """A server of the test's own, to crash and restart."""
    recipe = RECIPES[name]
    with _skipping(name):
        recipe.find()
    server = Server(recipe, _folder(f"segue-{name}-"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass
class Bouncer:
    """A pgbouncer in transaction mode before a PostgreSQL server."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    def url(self, direct: str) -> str:
        """The same database as the direct URL's, through the pooler."""
        return urlsplit(direct)._replace(netloc=f"segue@127.0.0.1:{self.port}").geturl()


@contextlib.contextmanager
def pgbouncer(direct: str) -> Iterator[Bouncer]:
    """A pooler in transaction mode before the server of that URL (one of ours: it connects without a password)."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        _leave_out("no pgbouncer on this machine; run scripts/services.sh")
    folder, port = _folder("segue-pgbouncer-"), free_port()
    upstream = urlsplit(direct)
    (folder / "users").write_text('"segue" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={upstream.hostname} port={upstream.port or 5432}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {folder}/users\nlogfile = {folder}/log\n"
        "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 300\n"
    )
    for path in folder.iterdir():
        _own(path)
    process = subprocess.Popen(
        [program, "-q", str(folder / "ini")], stderr=subprocess.DEVNULL, cwd=folder, **_unprivileged()
    )
    try:
        _until_listening(port, process)
        yield Bouncer(process, folder, port)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def role(server: str, name: str, options: str = "LOGIN") -> str:
    """Make a user on a PostgreSQL server, unless another test has; they belong to all databases. Gives the name."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as admin:
        with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            admin.execute(f"CREATE ROLE {name} {options}")
    return name


def as_user(url: str, user: str, password: str = "") -> str:
    """The same URL for another user."""
    parts = urlsplit(url)
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return parts._replace(netloc=f"{who}@{parts.netloc.rpartition('@')[2]}").geturl()


# The server of the whole run.


@functools.cache
def shared(name: str) -> str:
    """The URL of the run's server of that kind, with the right to make databases; skips or fails without one."""
    recipe = RECIPES[name]
    if url := os.environ.get(recipe.variable):
        return url
    with _skipping(name):
        recipe.find()
    return join(name)


@contextlib.contextmanager
def database(name: str = "postgres") -> Iterator[str]:
    """The URL of a fresh database on the run's server; it is dropped at the end."""
    with RECIPES[name].fresh(shared(name)) as url:
        yield url


def join(name: str) -> str:
    """Hold a user's lock on the run's server, having started it if need be."""
    # xdist gives all workers of a run the same id; a run without workers has its process.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}"
    folder = Path(tempfile.gettempdir()) / f"segue-run-{os.getuid()}-{run}"
    folder.mkdir(mode=0o755, exist_ok=True)
    with (folder / f"{name}.start").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        # Never closed: the kernel drops the lock with the process, however that ends.
        users = os.open(folder / f"{name}.users", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(users, fcntl.LOCK_SH)  # waits while a supervisor that found itself alone cleans up
        state = folder / f"{name}.json"
        if not state.exists():
            _supervised(name, folder, state)
        answer = json.loads(state.read_text())
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return str(answer["url"])


def _supervised(name: str, folder: Path, state: Path) -> None:
    command = [sys.executable, __file__, name, str(folder)]
    with (folder / f"{name}.supervisor").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + START_SECONDS
    while not state.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError((folder / f"{name}.supervisor").read_text(errors="replace"))
        time.sleep(0.02)
    process.returncode = 0  # it outlives this process on purpose: nobody is to warn of it


def supervise(name: str, folder: Path) -> None:
    """Run the server until nobody uses it any more."""
    server = Server(RECIPES[name], _folder(f"segue-{name}-"))
    state = folder / f"{name}.json"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, and that ends us
    try:
        server.start()
        draft = state.with_suffix(".draft")
        draft.write_text(json.dumps({"url": server.url}))
        draft.rename(state)
        with (folder / f"{name}.users").open("r+") as users:
            fcntl.flock(users, fcntl.LOCK_EX)  # granted when the last user is gone
            state.unlink()
            server.stop()
    finally:
        server.stop()
        _remove_if_unused(folder)


def _remove_if_unused(folder: Path) -> None:
    if not list(folder.glob("*.json")):
        shutil.rmtree(folder, ignore_errors=True)


# Small things that all of them need.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _leave_out(reason: str) -> None:
    if os.environ.get("CI") == "true" or os.environ.get("SEGUE_REQUIRE_SERVERS") == "1":
        pytest.fail(f"a server is required here: {reason}", pytrace=False)
    pytest.skip(reason)


@contextlib.contextmanager
def _skipping(name: str) -> Iterator[None]:
    try:
        yield
    except Missing as missing:
        _leave_out(str(missing))


def _account() -> pwd.struct_passwd | None:
    """Whom to run a server as: database servers refuse to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Missing("started as root, and found no account 'postgres' or 'nobody' to run the server as")


def _unprivileged() -> dict[str, object]:
    account = _account()
    options: dict[str, object] = {"preexec_fn": _die_with_parent, "start_new_session": True}
    if account is not None:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    # Runs after the change of user, which would clear it.
    if _libc is not None:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a background shell ignores it, and so would the server
        _libc.prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


def _folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    _own(folder)
    return folder


def _own(path: Path) -> None:
    if account := _account():
        os.chown(path, account.pw_uid, account.pw_gid)


def _run(command: list[object], folder: Path) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, check=False, **_unprivileged()
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode(errors='replace')[-4000:]}")


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the server on port {port} did not start")


if __name__ == "__main__":
    supervise(sys.argv[1], Path(sys.argv[2]))
