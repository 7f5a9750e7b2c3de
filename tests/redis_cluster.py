"""A private Redis Cluster of three nodes on loopback, for tests."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

import servers

NODES = 3
SLOTS = 16_384


@dataclass
class Cluster:
    """Running nodes, in the order of their slots."""

    nodes: list[servers.Server]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def wait(self) -> None:
        """Until all nodes say that the cluster is whole."""
        until = time.monotonic() + servers.START_SECONDS
        for node in self.nodes:
            with redis.Redis.from_url(node.url) as client:
                while not _is_whole(client):
                    if time.monotonic() > until:
                        raise RuntimeError("the cluster did not come together")
                    time.sleep(0.05)

    def owner_of(self, slot: int) -> servers.Server:
        """The node that got the slot at first."""
        return next(node for node, slots in zip(self.nodes, _shares(), strict=True) if slot in slots)


def _shares() -> list[range]:
    edges = [SLOTS * n // NODES for n in range(NODES + 1)]
    return [range(low, high) for low, high in itertools.pairwise(edges)]


def _prepare(program: Path, folder: Path, port: int) -> list[str]:
    bus = servers.free_port()  # the usual one, 10,000 higher, may be no port at all
    more = ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "5000"]
    plain = servers.RECIPES["redis"].prepare(program, folder, port)
    place = plain.index("--databases")
    return [*plain[:place], *plain[place + 2 :], *more, "--cluster-announce-bus-port", str(bus)]


RECIPE = servers.Recipe(
    "redis",
    servers.RECIPES["redis"].find,
    _prepare,
    lambda port: f"redis://127.0.0.1:{port}",
    servers.RECIPES["redis"].is_up,
    servers.RECIPES["redis"].fresh,
    servers.RECIPES["redis"].stop_signal,
)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Three nodes that share the slots; skips or fails where there is no Redis."""
    with servers._skipping("redis"):
        RECIPE.find()
    made = Cluster([servers.Server(RECIPE, servers._folder("segue-redis-cluster-")) for _ in range(NODES)])
    try:
        for node in made.nodes:
            node.start()
        _join(made)
        yield made
    finally:
        for node in made.nodes:
            node.stop()


def _join(made: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(node.url)) for node in made.nodes]
        for client, slots in zip(clients, _shares(), strict=True):
            client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        bus = [int(_facts(client)["cport"]) for client in clients]
        for node, port in zip(made.nodes[1:], bus[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, port)
    made.wait()


def _facts(client: redis.Redis) -> dict[str, str]:
    """The node's own line: its ports."""
    line = next(line for line in _text(client, "CLUSTER", "NODES").splitlines() if "myself" in line)
    return {"cport": line.split()[1].partition("@")[2].partition(",")[0]}


def _is_whole(client: redis.Redis) -> bool:
    info = _text(client, "CLUSTER", "INFO")
    return "cluster_state:ok" in info and f"cluster_known_nodes:{NODES}" in info


def _text(client: redis.Redis, *command: str) -> str:
    """The server's own words: the client would take them apart."""
    place = client.connection_pool.connection_kwargs
    wire = redis.Connection(host=place["host"], port=place["port"], protocol=2)
    wire.connect()
    try:
        wire.send_command(*command)
        return wire.read_response().decode()
    finally:
        wire.disconnect()
