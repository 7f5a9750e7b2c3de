"""Connections to Redis, to one server or to a cluster: commands go out together, answers or errors come back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from segue.errors import Invalid, SegueError, Unavailable

from ._redis_errors import NotSentError, translate
from ._redis_wire import Reply

driver: Any = redis  # most of it has no types
Wire: TypeAlias = Any
"""A connection of the driver."""

PIPELINE_MAX = 100
"""Most commands that are under way on one connection at a time."""


class Command(NamedTuple):
    """A command; ``key`` is one of its keys, and says where in a cluster it belongs (None: anywhere)."""

    key: bytes | None
    args: tuple[Any, ...]


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

    def everywhere(self, *args: Any) -> dict[str, Reply]:
        """The answer of each primary to a command, by the node's name."""

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
            found: dict[str, Any] = driver.connection.parse_url(url)
            found.get("port")
        except ValueError:
            found = {}
        if not found.keys() & {"host", "path", "db", "port"} or "@" in str(found.get("host", "")):
            raise Invalid(
                "this is no URL of a Redis server; it should be redis://user:password@host:6379/0 "
                "or redis+cluster://host, with special characters in the password percent-encoded (@ is %40)",
                where="url",
            )
        return found


def answered(reply: Reply | Exception, where: str) -> Any:
    """An answer; an error is raised as the typed one."""
    if isinstance(reply, Exception):
        raise translate(reply, where) from reply
    return reply


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
        self._pool = driver.BlockingConnectionPool(
            max_connections=target.pool_size,
            timeout=target.connect_seconds,
            retry=Retry(NoBackoff(), 0),
            **options,
        )

    def run(self, commands: Sequence[Command]) -> list[Reply | Exception]:
        """See ``Link.run``."""
        replies: list[Reply | Exception] = []
        for first in range(0, len(commands), PIPELINE_MAX):
            part = commands[first : first + PIPELINE_MAX]
            try:
                with _lent(self._pool, self.where) as wire:
                    error = _send(wire, part)
                    replies += [error] * len(part) if error else _receive(wire, len(part))
            except NotSentError as error:
                replies += [error] * len(part)
        return replies

    def everywhere(self, *args: Any) -> dict[str, Reply]:
        """See ``Link.everywhere``."""
        return {self.where: _ask(self._pool, self.where, args)}

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """See ``Link.scan``."""
        return _scan(self._pool, self.where, pattern)

    def listen(self) -> Wire:
        """See ``Link.listen``."""
        return _connected(self._pool, self.where)

    def refresh(self) -> None:
        """Close what nobody uses: after one connection broke, the others are likely broken too."""
        self._pool.disconnect(inuse_connections=False)

    def again(self) -> Link:
        """See ``Link.again``."""
        return _Server(self._target)

    def close(self) -> None:
        """See ``Link.close``."""
        self._pool.disconnect()


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
        for name in ("decode_responses", "db"):
            self._options.pop(name, None)
        self._places = [(str(self._options.pop("host", "localhost")), int(self._options.pop("port", 6379)))]
        self._places += [(host, int(port or 6379)) for host, _, port in (other.partition(":") for other in others)]
        self.where = target.where
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def _cluster(self) -> Any:
        with self._lock:
            if self._made is None:
                try:
                    self._made = driver.RedisCluster(
                        startup_nodes=[driver.cluster.ClusterNode(host, port) for host, port in self._places],
                        retry=Retry(NoBackoff(), 0),
                        connection_pool_class=driver.BlockingConnectionPool,
                        max_connections=self._target.pool_size,
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
                    wire = stack.enter_context(_lent(self._pool_of(name), name))
                    failure = _send(wire, [commands[n] for n in mine])
                except NotSentError as error:
                    failure = error
                if failure is None:
                    under_way.append((wire, mine))
                for place in mine:
                    replies[place] = failure
            for wire, mine in under_way:
                for place, reply in zip(mine, _receive(wire, len(mine)), strict=True):
                    replies[place] = reply
        for place in places:
            if isinstance(replies[place], redis.exceptions.AskError | redis.exceptions.TryAgainError):
                replies[place] = self._sent_on(commands[place])

    def _sent_on(self, command: Command) -> Reply | Exception:
        try:
            return self._cluster.execute_command(*command.args)
        except NotSentError as error:
            return error
        except _ERRORS as error:
            return error

    def _node_of(self, key: bytes | None) -> str:
        try:
            if key is None:
                node = self._cluster.get_default_node()
            else:
                node = self._cluster.nodes_manager.get_node_from_slot(key_slot(key))
        except redis.exceptions.RedisClusterException as error:
            raise NotSentError(translate(error, self.where)) from error
        return str(node.name)

    def _pool_of(self, name: str) -> Any:
        node = self._cluster.get_node(node_name=name)
        if node is None:
            text = f"Redis at {self.where}: the cluster lost the node {name}; call again in a moment"
            raise NotSentError(Unavailable(text))
        return self._cluster.get_redis_connection(node).connection_pool

    def everywhere(self, *args: Any) -> dict[str, Reply]:
        """See ``Link.everywhere``."""
        primaries = [str(node.name) for node in self._primaries()]
        return {name: _ask(self._pool_of(name), name, args) for name in primaries}

    def _primaries(self) -> list[Any]:
        try:
            return list(self._cluster.get_primaries())
        except NotSentError as error:
            raise error.error from error

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """See ``Link.scan``."""
        for node in self._primaries():
            yield from _scan(self._pool_of(node.name), str(node.name), pattern)

    def listen(self) -> Wire:
        """See ``Link.listen``. What one node publishes, all of them tell."""
        try:
            return _connected(self._pool_of(self._node_of(None)), self.where)
        except NotSentError as error:
            raise error.error from error

    def refresh(self) -> None:
        """Learn again who serves what."""
        with contextlib.suppress(NotSentError, *_ERRORS):
            self._cluster.nodes_manager.initialize()

    def close(self) -> None:
        """See ``Link.close``."""
        if self._made is None:
            return
        self._made.close()
        for node in self._made.get_nodes():
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect()


# One connection.


def _connected(pool: Any, where: str) -> Wire:
    """A connection that does not count as one of the pool."""
    wire: Wire = pool.connection_class(**pool.connection_kwargs)
    try:
        wire.connect()
    except (redis.RedisError, OSError) as error:
        raise translate(error, where) from error
    return wire


@contextlib.contextmanager
def _lent(pool: Any, where: str) -> Iterator[Wire]:
    try:
        wire = pool.get_connection()
    except (redis.RedisError, OSError) as error:
        raise NotSentError(_no_connection(error, where)) from error
    try:
        yield wire
    except BaseException:
        wire.disconnect()  # an answer may be under way that nobody waits for any more
        raise
    finally:
        pool.release(wire)


def _no_connection(error: Exception, where: str) -> SegueError:
    if "No connection available" in str(error):
        return Unavailable(
            f"Redis at {where}: all connections of the pool were busy; raise pool_size, or do less at a time"
        )
    return translate(error, where)


def _ask(pool: Any, where: str, args: tuple[Any, ...]) -> Any:
    """One command to one server, whatever slots it has."""
    try:
        with _lent(pool, where) as wire:
            error = _send(wire, [Command(None, args)])
            reply = error or _receive(wire, 1)[0]
    except NotSentError as unsent:
        reply = unsent
    return answered(reply, where)


def _scan(pool: Any, where: str, pattern: str) -> Iterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, keys = _ask(pool, where, (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 500))
        yield keys
        if cursor == b"0":
            return


def _send(wire: Wire, commands: Sequence[Command]) -> Exception | None:
    try:
        wire.send_packed_command(wire.pack_commands([command.args for command in commands]))
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        return error
    return None


def _receive(wire: Wire, count: int) -> list[Reply | Exception]:
    replies: list[Reply | Exception] = []
    while len(replies) < count:
        try:
            replies.append(wire.read_response())
        except redis.ResponseError as error:
            replies.append(error)
        except (
            redis.BusyLoadingError,
            redis.exceptions.AuthenticationError,
            redis.exceptions.AuthorizationError,
        ) as error:
            replies.append(error)  # said by the server; the connection lives
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            return replies + [error] * (count - len(replies))
    return replies
