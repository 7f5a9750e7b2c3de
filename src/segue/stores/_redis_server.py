"""What a server promises, by its settings: asked at open, reported by ``check``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from segue.errors import Unavailable
from segue.store import Report

from ._redis_link import Link
from ._redis_wire import Reply
from ._redis_wires import answered

SERVER_MIN = (6, 2)
"""Oldest Redis that will do."""

_QUESTIONS = (("INFO",), ("CONFIG", "GET", "append*"), ("CONFIG", "GET", "maxmemory*"))


@dataclass(frozen=True)
class Server:
    """
    One server, or one primary of a cluster.

    Attributes:
        where: Host and port.
        kind: Redis or Valkey, and its version.
        has_log: Whether every write goes into an append-only file.
        sync: ``always``, ``everysec``, ``no``, or empty where the server does not say.
        policy: What is done when memory is full; only ``noeviction`` loses nothing.
        memory_max: Bytes, 0 for no limit.
        failed_write: What went wrong when it last wrote its log, or empty.
    """

    where: str
    kind: str
    version: tuple[int, ...]
    is_replica: bool
    has_log: bool
    sync: str
    policy: str
    memory_max: int
    replicas: int
    failed_write: str

    @property
    def is_durable(self) -> bool:
        """Whether what it acknowledges survives a power loss."""
        return self.has_log and self.sync == "always" and self.policy == "noeviction"


def ask(link: Link) -> tuple[Server, ...]:
    """
    Each server as it is set.

    Raises:
        Unavailable: One of them cannot be asked, or is too old.
    """
    answers = link.everywhere(*_QUESTIONS)
    servers = tuple(_server(where, *replies) for where, replies in answers.items())
    for server in servers:
        if server.version < SERVER_MIN:
            raise Unavailable(
                f"{server.kind} at {server.where} is too old; Segue needs 6.2 or newer: upgrade the server"
            )
    return servers


def require(servers: tuple[Server, ...]) -> None:
    """
    Refuse servers that lose what they acknowledged.

    Raises:
        Unavailable: No append-only file, or a policy that throws keys away. The message says what to set.
    """
    wanted = []
    for server in servers:
        if not server.has_log:
            wanted.append(f"{server.where}: appendonly is no, so that a crash loses sessions; set appendonly yes")
        if server.policy != "noeviction":
            wanted.append(
                f"{server.where}: maxmemory-policy is {server.policy}, which throws sessions away when memory is full; "
                "set maxmemory-policy noeviction"
            )
    if wanted:
        raise Unavailable(
            f"Redis would lose what it acknowledged. {'. '.join(wanted)} (CONFIG SET, and in the configuration file). "
            "Or open with durability='server' to take it as it is"
        )


def _settings(*replies: Reply | Exception) -> dict[str, str]:
    """What CONFIG says; nothing where it is not allowed, as with managed servers: INFO tells most of it."""
    pairs = [part.decode(errors="replace") for reply in replies if not isinstance(reply, Exception) for part in reply]
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _facts(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _server(where: str, info: Reply | Exception, *config: Reply | Exception) -> Server:
    facts, settings = _facts(answered(info, where)), _settings(*config)
    # Valkey says which Redis it is compatible with, besides its own version.
    own = facts.get("valkey_version")
    version = facts.get("redis_version", "0")
    failed: dict[str, Any] = {n: facts.get(n, "ok") for n in ("aof_last_write_status", "aof_last_bgrewrite_status")}
    return Server(
        where=where,
        kind=f"Valkey {own}" if own else f"Redis {version}",
        version=tuple(int(part) for part in version.split(".")[:2] if part.isdigit()),
        is_replica=facts.get("role") == "slave",
        has_log=facts.get("aof_enabled") == "1",
        sync=settings.get("appendfsync", ""),
        policy=settings.get("maxmemory-policy") or facts.get("maxmemory_policy", "unknown"),
        memory_max=int(settings.get("maxmemory") or facts.get("maxmemory") or 0),
        replicas=int(facts.get("connected_slaves", 0)),
        failed_write=", ".join(f"{name} is {value}" for name, value in failed.items() if value != "ok"),
    )


# Reports.

_SYNCS = {
    "always": "appendfsync = always",
    "everysec": "appendfsync = everysec: a power loss can take the last second or two of what was acknowledged; "
    "set appendfsync always",
    "no": "appendfsync = no: a power loss can take half a minute of what was acknowledged; set appendfsync always",
    "": "the server does not tell its appendfsync; unless it is always, a power loss can take what came last",
}


def report(servers: tuple[Server, ...], link: Link, pool_size: int, *, is_told: bool) -> Iterator[Report]:
    """Each server's settings, and what to change."""
    for server in servers:
        yield Report("ok", f"{server.kind} at {server.where}" + (", a node of a cluster" if link.is_cluster else ""))
        yield from _durability(server)
        yield from _state(server)
    told = "are told through PUBLISH" if is_told else "are polled, not told"
    yield Report("ok", f"pool_size {pool_size}; others' commits {told}; no key of Segue has an expiry")


def _durability(server: Server) -> Iterator[Report]:
    if server.has_log:
        yield Report("ok", f"{server.where}: appendonly = yes")
        yield Report(
            "ok" if server.sync == "always" else "warn", f"{server.where}: {_SYNCS.get(server.sync, server.sync)}"
        )
    else:
        yield Report(
            "warn", f"{server.where}: appendonly = no: a crash loses what was acknowledged; set appendonly yes"
        )
    level: Literal["ok", "warn"] = "ok" if server.policy == "noeviction" else "warn"
    why = "" if level == "ok" else ": sessions are thrown away when memory is full; set maxmemory-policy noeviction"
    yield Report(level, f"{server.where}: maxmemory-policy = {server.policy}{why}")


def _state(server: Server) -> Iterator[Report]:
    if server.is_replica:
        yield Report("warn", f"{server.where}: this is a replica, which takes no writes; connect to its primary")
    if server.failed_write:
        yield Report("warn", f"{server.where}: {server.failed_write}; look at its log and its disk")
    limit = f"maxmemory = {server.memory_max:,} bytes" if server.memory_max else "maxmemory = 0 (no limit)"
    yield Report("ok", f"{server.where}: {limit}")
    if server.replicas:
        text = f"{server.replicas} replicas, which follow later: a failover can lose what was acknowledged last"
        yield Report("ok", f"{server.where}: {text}")
