"""Single connections to a server, and a pool of them for many threads."""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import redis

from segue.errors import Closed, Unavailable

from ._redis_errors import NotSentError, translate
from ._redis_wire import Reply

Wire: TypeAlias = Any
"""A connection of the driver, most of which has no types."""


class Command(NamedTuple):
    """A command; ``key`` is one of its keys, and says where in a cluster it belongs (None: anywhere)."""

    key: bytes | None
    args: tuple[Any, ...]


class Wires:
    """
    At most ``size`` connections, made when needed, lent to one thread at a time.

    A connection is made by the thread that needs it, so that this thread learns at once why that
    fails, and works again at once when the server is back.

    Args:
        make: Makes one that is not connected yet.
        where: Host and port, for messages.
    """

    def __init__(self, make: Callable[[], Wire], size: int, *, wait_seconds: float, where: str) -> None:
        self._make = make
        self._size = size
        self._wait_seconds = wait_seconds
        self._where = where
        self._idle: deque[Wire] = deque()
        self._room = threading.BoundedSemaphore(size)
        self._is_closed = False

    def lend(self) -> Lent:
        """A connection for a ``with`` block; entering raises NotSentError when none is to be had."""
        return Lent(self)

    def connect(self) -> Wire:
        """A connection that does not count as one of the pool, or the typed error that says what is wrong."""
        wire = self._make()
        try:
            wire.connect()
        except (redis.RedisError, OSError) as error:
            raise translate(error, self._where) from error
        return wire

    def take(self) -> Wire:
        """Lend one."""
        if not self._room.acquire(timeout=self._wait_seconds):
            text = (
                f"Redis at {self._where}: all {self._size} connections of the pool were busy for "
                f"{self._wait_seconds:g} s; raise pool_size, or do less at a time"
            )
            raise NotSentError(Unavailable(text))
        try:
            return self._found()
        except BaseException:
            self._room.release()
            raise

    def _found(self) -> Wire:
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:
                break
            if not has_news(wire):
                return wire
            wire.disconnect()
        try:
            return self.connect()
        except Unavailable as error:
            raise NotSentError(error) from error

    def give_back(self, wire: Wire) -> None:
        """It can be lent again, unless it broke."""
        if self._is_closed or socket_of(wire) is None:
            wire.disconnect()
        else:
            self._idle.append(wire)
        self._room.release()

    def drop_idle(self) -> None:
        """Close what nobody uses: after one connection broke, the others are likely broken too."""
        while self._idle:
            try:
                self._idle.pop().disconnect()
            except IndexError:
                return

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._is_closed = True
        self.drop_idle()

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Reply | Exception]:
        """Send some commands, and give for each its answer or its error."""
        try:
            with self.lend() as wire:
                error = send(wire, commands)
                return [error] * len(commands) if error else receive(wire, len(commands))
        except NotSentError as unsent:
            return [unsent] * len(commands)

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """All keys of a pattern, some at a time; a key may come twice."""
        cursor = b"0"
        while True:
            (reply,) = self.ask([(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", 500)])
            cursor, keys = answered(reply, self._where)
            yield keys
            if cursor == b"0":
                return


class Lent:
    """One connection, lent until the end of a ``with`` block."""

    __slots__ = ("_wire", "_wires")

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._wire: Wire = None

    def __enter__(self) -> Wire:
        self._wire = self._wires.take()
        return self._wire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._wire.disconnect()  # an answer may be under way that nobody waits for any more
        self._wires.give_back(self._wire)


def socket_of(wire: Wire) -> Any:
    """Its socket, or None when it is not connected: the driver has no other way to wait for two."""
    return wire._sock  # noqa: SLF001


def has_news(wire: Wire) -> bool:
    """True when an idle connection has something to read: its end, or the server's last words."""
    poll = select.poll()
    poll.register(socket_of(wire), select.POLLIN)
    return bool(poll.poll(0))


def send(wire: Wire, commands: Sequence[tuple[Any, ...]]) -> Exception | None:
    """Send all; an error leaves open what has arrived."""
    try:
        wire.send_packed_command(wire.pack_commands(commands))
    except (redis.RedisError, OSError) as error:
        return error
    return None


def receive(wire: Wire, count: int) -> list[Reply | Exception]:
    """So many answers, or errors; when the connection breaks, all that are still to come are that error."""
    replies: list[Reply | Exception] = []
    while len(replies) < count:
        try:
            replies.append(wire.read_response())
        except _SAID as error:
            replies.append(error)
        except (redis.RedisError, OSError) as error:
            wire.disconnect()
            return replies + [error] * (count - len(replies))
    return replies


# Said by the server: the connection lives.
_SAID = (
    redis.ResponseError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
)


def answered(reply: Reply | Exception, where: str) -> Any:
    """An answer; an error is raised as the typed one."""
    if isinstance(reply, Exception):
        raise translate(reply, where) from reply
    return reply
