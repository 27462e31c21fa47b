"""The demo's servers, on the default ports if free: one, or three brokers over a Redis Cluster."""

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.retry import Retry

from headrace.demo.messages import Ready
from headrace.demo.processes import Child, Hear, end, end_orphan, read_ready_line
from headrace.server.config import Address
from headrace.storage.errors import StoreError
from headrace.storage.valkey.datadir import DataDirectory

_BROKERS, _PRIMARIES, _NODES = 3, 3, 6
_LOOPBACK = "127.0.0.1"
_POLL_S = 0.02
_NODE_OPTIONS = {
    "bind": _LOOPBACK,
    "cluster-announce-ip": _LOOPBACK,
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    "repl-diskless-sync-delay": "0",
    "appendonly": "yes",
    "appendfsync": "no",
    "save": "",
    "maxmemory-policy": "noeviction",
    # All nodes stop together: do not wait for replicas.
    "shutdown-timeout": "0",
}


class ServersFailed(Exception):
    """The message has the reason."""


class Servers:
    """The running servers."""

    def __init__(self, data: Path, hear: Hear, say: Callable[[str, str], None]) -> None:
        """`hear` receives messages of the processes; `say` prints a message with a style."""
        self.brokers: list[Child] = []
        self.killed: Child | None = None
        self._data, self._hear, self._say = data, hear, say
        self._nodes: list[Child] = []
        self._said: dict[Child, Ready] = {}
        self._directory: DataDirectory | None = None

    def start_one(self, kafka: str | None, http: str | None) -> None:
        """Start a server with its embedded Valkey. Raises ServersFailed."""
        self.brokers.append(self._serve("server", kafka, http, "--data", str(self._data)))

    def start_cluster(self, kafka: str | None, http: str | None) -> None:
        """Start brokers over a cluster, the first at these addresses. Raises ServersFailed."""
        try:
            # In this mode, no server locks the directory.
            self._directory = DataDirectory.open(self._data)
        except StoreError as error:
            raise ServersFailed(str(error)) from None
        places = [self._start_node(number) for number in range(1, _NODES + 1)]
        try:
            form(places, _PRIMARIES)
        except (NotFormed, redis.RedisError) as error:
            raise ServersFailed(
                f"the Redis Cluster could not be made: {error} (logs: {self._data}/valkey-*.log)"
            ) from None
        self._say(
            f"Redis Cluster of {_PRIMARIES} primaries with a replica each: {', '.join(map(str, places))}", "green"
        )
        storage = ["--redis", "redis+cluster://" + ",".join(map(str, places))]
        for number in range(1, _BROKERS + 1):
            free = None if number == 1 else f"{_LOOPBACK}:0"
            arguments = [*storage, "--set", f"node.id={number}"]
            self.brokers.append(self._serve(f"broker-{number}", free or kafka, free or http, *arguments))

    def _serve(self, name: str, kafka: str | None, http: str | None, *arguments: str) -> Child:
        try:
            at_kafka, kafka_used = choose_address(kafka, KAFKA)
            at_http, http_used = choose_address(http, HTTP)
        except ValueError as error:
            raise ServersFailed(str(error)) from None
        for used, address, listener in ((kafka_used, KAFKA, "Kafka"), (http_used, HTTP, "HTTP")):
            if used:
                self._say(f"{address} is in use: the {listener} listener takes a free port", "yellow")
        command = ["serve", *arguments, "--kafka", at_kafka, "--http", at_http]
        return Child(name, "headrace", command, self._hear, self._data / f"{name}.log", read_ready_line)

    def _start_node(self, number: int) -> Address:
        name = f"valkey-{number}"
        folder = self._data / name
        folder.mkdir()
        port, bus = _free_ports(2)
        options = _NODE_OPTIONS | {
            "port": str(port),
            "cluster-port": str(bus),
            "dir": str(folder.absolute()),
            "logfile": str(self._data.absolute() / f"{name}.log"),
        }
        arguments = [part for option, value in options.items() for part in (f"--{option}", value)]
        self._nodes.append(Child(name, "headrace.demo.node", arguments, self._hear, self._data / f"{name}.err"))
        return Address(_LOOPBACK, port)

    def heard(self, child: Child, ready: Ready) -> None:
        """Record a broker's ready line."""
        self._said[child] = ready

    @property
    def ready(self) -> Ready | None:
        """Return all Kafka listeners and the first HTTP listener, once all are ready."""
        said = [self._said[child] for child in self.brokers if child in self._said]
        if not said or len(said) < len(self.brokers):
            return None
        return Ready(",".join(each.kafka for each in said), said[0].http, said[0].storage)

    def kill_one(self) -> Child | None:
        """Send SIGKILL to one of several brokers."""
        if len(self.brokers) > 1:
            self.killed = self.brokers[1]
            self.killed.kill()
        return self.killed

    @property
    def all(self) -> Sequence[Child]:
        """Processes that must run."""
        return [child for child in (*self.brokers, *self._nodes) if child is not self.killed]

    def ended(self, within_s: float) -> Child | None:
        """Return a process that ends within a time."""
        deadline = time.monotonic() + within_s
        while True:
            for child in self.all:
                if child.status is not None:
                    return child
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the brokers, then their storage."""
        end(self.brokers)
        end(self._nodes)
        if self._directory is not None:
            self._directory.close()
        elif self.brokers:
            with contextlib.suppress(StoreError):
                end_orphan(self._data)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((_LOOPBACK, 0))
        return [one.getsockname()[1] for one in held]


KAFKA = "127.0.0.1:9092"
HTTP = "127.0.0.1:8080"


def choose_address(asked: str | None, usual: str) -> tuple[str, bool]:
    """Return the server's HOST:PORT, and whether the default port was in use. Raises ValueError."""
    if asked is not None:
        return str(Address.parse(asked)), False
    address = Address.parse(usual)
    if not _in_use(address):
        return usual, False
    return str(Address(address.host, 0)), True


def _in_use(address: Address) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Like the server: closing connections of an earlier process do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen()
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


_PATIENCE_S = 60.0
_LOOK_S = 0.02
_CALM_MS = 30_000
"""Node timeout of the formed cluster.

On a busy machine, two seconds of silence are normal, and a failover loses unreplicated writes. During formation a
shorter timeout speeds up gossip.
"""


class NotFormed(Exception):
    """The cluster did not form in time."""


def form(nodes: Sequence[Address], primaries: int) -> None:
    """Form a cluster: the first `primaries` nodes share the slots, the others replicate them in turn.

    Replicas are then in sync and all nodes agree on the slots. Raises NotFormed after a minute, and redis.RedisError.
    """
    for epoch, node in enumerate(nodes, 1):
        _wait_for(partial(_answers, node), f"{node} to answer")
        _ask(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
    for place, node in enumerate(nodes[:primaries]):
        first, end = (REDIS_CLUSTER_HASH_SLOTS * part // primaries for part in (place, place + 1))
        _ask(node, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    buses = [_bus(node) for node in nodes]
    for node, bus in list(zip(nodes, buses, strict=True))[1:]:
        _ask(nodes[0], "CLUSTER", "MEET", node.host, node.port, bus)
    _wait_for(lambda: _agree(nodes), "the nodes to know each other")
    for place, node in enumerate(nodes[primaries:]):
        _wait_for(partial(_followed, node, nodes[place % primaries]), f"{node} to follow")
    for node in nodes[primaries:]:
        _wait_for(partial(_synced, node), f"{node} to have all")
    _wait_for(lambda: _agree(nodes), "the nodes to agree")
    for node in nodes:
        _ask(node, "CONFIG", "SET", "cluster-node-timeout", _CALM_MS)


def _ask(node: Address, *command: str | int) -> Any:
    with redis.Redis(
        node.host, node.port, decode_responses=True, socket_timeout=30, retry=Retry(NoBackoff(), 0)
    ) as link:
        # Without redis-py's transformation of responses.
        link.response_callbacks.clear()
        return link.execute_command(*command)


def _answers(node: Address) -> bool:
    try:
        return bool(_ask(node, "PING"))
    except redis.RedisError:
        return False


def _lines(node: Address) -> list[list[str]]:
    return [line.split(" ") for line in str(_ask(node, "CLUSTER", "NODES")).splitlines()]


def _own(node: Address) -> list[str]:
    return next(words for words in _lines(node) if "myself" in words[2])


def _bus(node: Address) -> int:
    return int(_own(node)[1].partition("@")[2].partition(",")[0])


def _agree(nodes: Sequence[Address]) -> bool:
    told = set()
    for node in nodes:
        if "cluster_state:ok" not in _ask(node, "CLUSTER", "INFO"):
            return False
        lines = _lines(node)
        if len(lines) != len(nodes):
            return False
        told.add(str(sorted((words[0], words[2].replace("myself,", ""), words[3], *words[8:]) for words in lines)))
    return len(told) == 1


def _followed(node: Address, primary: Address) -> bool:
    """Start replication; False if the node does not know the primary yet."""
    try:
        _ask(node, "CLUSTER", "REPLICATE", _own(primary)[0])
    except redis.ResponseError:
        return False
    return True


def _synced(node: Address) -> bool:
    role = _ask(node, "ROLE")
    return bool(role[0] == "slave" and role[3] == "connected")


def _wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            raise NotFormed(f"waited {_PATIENCE_S:.0f} s for {what}")
        time.sleep(_LOOK_S)
