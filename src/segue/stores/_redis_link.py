"""Connections to Redis, to one server or to a cluster: commands go out together, answers or errors come back."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from segue.errors import Invalid, SegueError, Unavailable

from ._redis_errors import NotSentError, translate
from ._redis_wire import Reply
from ._redis_wires import Command, Wire, Wires, answered, receive, send

driver: Any = redis  # most of it has no types

REDIRECTS_MAX = 8
"""How often a command is sent on to the node that a cluster names."""

TRY_AGAIN_SECONDS = 0.02
"""Pause before a command is sent again whose keys are under way to another node."""

PIPELINE_MAX = 100
"""Most commands that are under way on one connection at a time."""


_OPTIONS = frozenset({
    "db", "decode_responses", "health_check_interval", "password", "socket_connect_timeout", "socket_keepalive",
    "socket_timeout", "username",
})  # fmt: skip
_TLS = frozenset({
    "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_ciphers",
    "ssl_keyfile", "ssl_min_version", "ssl_password",
})  # fmt: skip


class Link(Protocol):
    """
    The way to the server.

    Attributes:
        where: Host and port, for messages, never a password.
        database: The number of the database; 0 in a cluster.
        is_cluster: Whether it is a cluster.
    """

    where: str
    database: int
    is_cluster: bool

    def run(self, commands: Sequence[Command]) -> list[Reply | Exception]:
        """
        Send all, and give for each its answer, the driver's error (a connection error: nobody knows), or NotSentError.

        Commands of one slot are done in order, except that one that is sent on comes later.
        """

    def everywhere(self, *commands: tuple[Any, ...]) -> dict[str, list[Reply | Exception]]:
        """What each primary answers to some commands, by the node's name."""

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """All keys of a pattern, some at a time; a key may come twice."""

    def listen(self) -> Wire:
        """A connection of one's own, for hearing."""

    def refresh(self) -> None:
        """After an error: forget connections, and learn again who serves what."""

    def again(self) -> Link:
        """A link of the same kind without connections, for the child of a fork."""

    def close(self) -> None:
        """Release all connections."""


@dataclass(frozen=True)
class Target:
    """
    Where to connect and how.

    Attributes:
        url: May hold a password; never shown.
        pool_size: Most connections to a server.
        timeout_seconds: Longest wait for an answer.
        connect_seconds: Longest time to connect, and to wait for a free connection.
    """

    url: str
    pool_size: int
    timeout_seconds: float
    connect_seconds: float

    def __repr__(self) -> str:
        return f"Target({self.where!r})"

    @property
    def where(self) -> str:
        """Host, port and database, without user and password."""
        parts = urlsplit(self.url)
        return f"{parts.netloc.rpartition('@')[2] or 'localhost:6379'}{parts.path.rstrip('/')}"

    def open(self) -> Link:
        """
        Connect to what is there, a server or a cluster.

        Raises:
            Invalid: The URL is none.
            Unavailable: No connection; the message says why.
        """
        scheme, _, rest = self.url.partition("://")
        if scheme == "redis+cluster":
            return _Cluster(self, f"redis://{rest}")
        link = _Server(self)
        try:
            if b"redis_mode:cluster" not in answered(link.run([Command(None, ("INFO", "server"))])[0], link.where):
                return link
        except BaseException:
            link.close()
            raise
        link.close()
        return _Cluster(self, self.url)

    def options(self) -> dict[str, Any]:
        """What all connections share. Nothing is repeated by the driver: only we know what may be."""
        return {
            "protocol": 2,
            "socket_timeout": self.timeout_seconds,
            "socket_connect_timeout": self.connect_seconds,
            "socket_keepalive": True,
            "client_name": "segue",
        }

    def read(self, url: str) -> dict[str, Any]:
        """The parts of a URL. ``Invalid`` tells nothing of it: a password may be in any part."""
        try:
            _check_url(url)
            found: dict[str, Any] = driver.connection.parse_url(url)
        except ValueError:
            found = {}
        if not found.keys() & {"host", "path", "db", "port"} or "@" in str(found.get("host", "")):
            raise Invalid(
                "this is no URL of a Redis server; it should be redis://user:password@host:6379/0 "
                "or redis+cluster://host, with special characters in the password percent-encoded (@ is %40), the "
                f"database a number, and after ? only {', '.join(sorted(_OPTIONS))}, and for rediss: "
                f"{', '.join(sorted(_TLS))}; what the store takes besides are keyword arguments",
                where="url",
            )
        return found


def _check_url(url: str) -> None:
    """ValueError for what the driver passes over in silence: a database that is no number, options it does not know."""
    parts = urlsplit(url)
    known = _OPTIONS | _TLS if parts.scheme == "rediss" else _OPTIONS
    given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    if parts.fragment or not all(name in known and value for name, value in given):
        raise ValueError(url)
    numbers = [value for name, value in given if name == "db"]
    if parts.scheme != "unix" and parts.path.strip("/"):
        numbers.append(parts.path.removeprefix("/").removesuffix("/"))
    if not all(number.isascii() and number.isdigit() for number in numbers) or len(set(numbers)) > 1:
        raise ValueError(url)


_ERRORS = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)


class _Server:
    """One server."""

    is_cluster = False

    def __init__(self, target: Target) -> None:
        self._target = target
        options = target.options() | target.read(target.url)
        options.pop("decode_responses", None)
        self.where = target.where
        self.database = int(options.get("db") or 0)
        pool = driver.ConnectionPool(retry=_NEVER, **options)
        self._wires = _wires(target, pool, self.where)

    def run(self, commands: Sequence[Command]) -> list[Reply | Exception]:
        """See ``Link.run``."""
        replies: list[Reply | Exception] = []
        for first in range(0, len(commands), PIPELINE_MAX):
            replies += self._wires.ask([command.args for command in commands[first : first + PIPELINE_MAX]])
        return replies

    def everywhere(self, *commands: tuple[Any, ...]) -> dict[str, list[Reply | Exception]]:
        """See ``Link.everywhere``."""
        return {self.where: self._wires.ask(commands)}

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """See ``Link.scan``."""
        return self._wires.scan(pattern)

    def listen(self) -> Wire:
        """See ``Link.listen``."""
        return self._wires.connect()

    def refresh(self) -> None:
        """See ``Link.refresh``."""
        self._wires.drop_idle()

    def again(self) -> Link:
        """See ``Link.again``."""
        return _Server(self._target)

    def close(self) -> None:
        """See ``Link.close``."""
        self._wires.close()


class _Cluster:
    """A cluster; the driver knows who serves which slot, and follows those that move."""

    is_cluster = True
    database = 0

    def __init__(self, target: Target, url: str) -> None:
        self._target, self._url = target, url
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        first, *others = hosts.split(",")
        self._options = target.options() | target.read(parts._replace(netloc=f"{user}{at}{first}").geturl())
        self._options.pop("decode_responses", None)
        if self._options.pop("db", 0):
            raise Invalid(f"Redis at {target.where}: a cluster has database 0 alone; leave the number out", where="url")
        self._places = [(str(self._options.pop("host", "localhost")), int(self._options.pop("port", 6379)))]
        self._places += [(host, int(port or 6379)) for host, _, port in (other.partition(":") for other in others)]
        self.where = target.where
        self._lock = threading.RLock()
        self._made: Any = None
        self._wires: dict[str, Wires] = {}

    @property
    def _cluster(self) -> Any:
        with self._lock:
            if self._made is None:
                try:
                    self._made = driver.RedisCluster(
                        startup_nodes=[driver.cluster.ClusterNode(host, port) for host, port in self._places],
                        retry=_NEVER,
                        **self._options,
                    )
                except _ERRORS as error:
                    raise NotSentError(translate(error, self.where)) from error
            return self._made

    def again(self) -> Link:
        """See ``Link.again``."""
        return _Cluster(self._target, self._url)

    def run(self, commands: Sequence[Command]) -> list[Reply | Exception]:
        """See ``Link.run``."""
        replies: list[Reply | Exception] = [None] * len(commands)
        for first in range(0, len(commands), PIPELINE_MAX):
            places = range(first, min(first + PIPELINE_MAX, len(commands)))
            self._run(commands, places, replies)
        return replies

    def _run(self, commands: Sequence[Command], places: Sequence[int], replies: list[Reply | Exception]) -> None:
        """Send to all nodes, then hear all of them; what is not theirs any more is sent on by the driver."""
        by_node: dict[str, list[int]] = {}
        for place in places:
            try:
                by_node.setdefault(self._node_of(commands[place].key), []).append(place)
            except NotSentError as error:
                replies[place] = error
        with contextlib.ExitStack() as stack:
            under_way: list[tuple[Wire, list[int]]] = []
            for name in sorted(by_node):  # all in one order: nobody holds what another waits for in a circle
                mine = by_node[name]
                failure: Exception | None
                try:
                    wire = stack.enter_context(self._wires_of(name).lend())
                    failure = send(wire, [commands[n].args for n in mine])
                except NotSentError as error:
                    failure = error
                if failure is None:
                    under_way.append((wire, mine))
                for place in mine:
                    replies[place] = failure
            for wire, mine in under_way:
                for place, reply in zip(mine, receive(wire, len(mine)), strict=True):
                    replies[place] = reply
        for place in places:
            if isinstance(replies[place], _MOVING):
                replies[place] = self._sent_on(commands[place], replies[place])

    def _sent_on(self, command: Command, reply: Reply | Exception) -> Reply | Exception:
        """The answer of the node that has the slot now: the driver's own way would also translate the answer."""
        for _ in range(REDIRECTS_MAX):
            try:
                if isinstance(reply, redis.exceptions.MovedError):
                    self.refresh()
                    (reply,) = self._wires_of(_named(reply)).ask([command.args])
                elif isinstance(reply, redis.exceptions.AskError):
                    _, reply = self._wires_of(_named(reply)).ask([(b"ASKING",), command.args])
                elif isinstance(reply, redis.exceptions.TryAgainError):
                    time.sleep(TRY_AGAIN_SECONDS)  # some keys of the call have moved already, some have not
                    (reply,) = self._wires_of(self._node_of(command.key)).ask([command.args])
                else:
                    break
            except NotSentError as error:
                return error
        return reply

    def _node_of(self, key: bytes | None) -> str:
        try:
            if key is None:
                node = self._cluster.get_default_node()
            else:
                node = self._cluster.nodes_manager.get_node_from_slot(key_slot(key))
        except redis.exceptions.RedisClusterException as error:
            raise NotSentError(translate(error, self.where)) from error
        return str(node.name)

    def _wires_of(self, name: str) -> Wires:
        """The connections to a node, by its name."""
        wires = self._wires.get(name)
        if wires is not None:
            return wires
        node = self._cluster.get_node(node_name=name)
        if node is None:
            text = f"Redis at {self.where}: the cluster lost the node {name}; call again in a moment"
            raise NotSentError(Unavailable(text))
        pool = self._cluster.get_redis_connection(node).connection_pool
        with self._lock:
            return self._wires.setdefault(name, _wires(self._target, pool, name))

    def everywhere(self, *commands: tuple[Any, ...]) -> dict[str, list[Reply | Exception]]:
        """See ``Link.everywhere``."""
        return {name: self._wires_of(name).ask(commands) for name in self._primaries()}

    def _primaries(self) -> list[str]:
        try:
            return [str(node.name) for node in self._cluster.get_primaries()]
        except NotSentError as error:
            raise error.error from error

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """See ``Link.scan``."""
        for name in self._primaries():
            yield from self._wires_of(name).scan(pattern)

    def listen(self) -> Wire:
        """See ``Link.listen``. What one node publishes, all of them tell; so any that is there will do."""
        names = self._primaries()
        random.shuffle(names)
        for name in names[:-1]:
            with contextlib.suppress(NotSentError, SegueError):
                return self._wires_of(name).connect()
        try:
            return self._wires_of(names[-1]).connect()
        except NotSentError as error:
            raise error.error from error

    def refresh(self) -> None:
        """Learn again who serves what."""
        with contextlib.suppress(NotSentError, *_ERRORS):
            self._cluster.nodes_manager.initialize()
        for wires in list(self._wires.values()):
            wires.drop_idle()

    def close(self) -> None:
        """See ``Link.close``."""
        for wires in list(self._wires.values()):
            wires.close()
        if self._made is not None:
            self._made.close()


def _named(moved: Any) -> str:
    """The node that an answer names."""
    return str(driver.cluster.get_node_name(moved.host, moved.port))


_NEVER = Retry(NoBackoff(), 0)
_MOVING = (redis.exceptions.AskError, redis.exceptions.TryAgainError)  # MOVED is a kind of ASK there


def _wires(target: Target, pool: Any, where: str) -> Wires:
    """Connections as the driver's pool would make them."""
    return Wires(
        lambda: pool.connection_class(**pool.connection_kwargs),
        target.pool_size,
        wait_seconds=target.connect_seconds,
        where=where,
    )
