"""What serves the demo: one server, or three brokers over a Redis Cluster of three primaries with a replica each."""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

from headrace.demo import addresses, directory, shards
from headrace.demo.messages import Ready
from headrace.demo.processes import Child, Hear, end, read_ready_line
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
    # Primaries and replicas end at once: nobody is left to wait for.
    "shutdown-timeout": "0",
}


class ServersFailed(Exception):
    """They could not be started. The message says why."""


class Servers:
    """From when it is made to `close`."""

    def __init__(self, data: Path, hear: Hear, say: Callable[[str, str], None]) -> None:
        """Nothing runs yet.

        Args:
            data: the demo's directory; logs lie there, too.
            hear: takes what they say, their ready lines first.
            say: told of what people may want to know, with a style.
        """
        self.brokers: list[Child] = []
        self.killed: Child | None = None
        self._data, self._hear, self._say = data, hear, say
        self._nodes: list[Child] = []
        self._said: dict[Child, Ready] = {}
        self._directory: DataDirectory | None = None

    def start_one(self, kafka: str | None, http: str | None) -> None:
        """A server with its embedded Valkey. Raises ServersFailed."""
        self.brokers.append(self._serve("server", kafka, http, "--data", str(self._data)))

    def start_cluster(self, kafka: str | None, http: str | None) -> None:
        """Brokers over a cluster, the first of them at these addresses. Raises ServersFailed."""
        try:
            # No server has the directory, so nobody else says that it is in use.
            self._directory = DataDirectory.open(self._data)
        except StoreError as error:
            raise ServersFailed(str(error)) from None
        places = [self._start_node(number) for number in range(1, _NODES + 1)]
        try:
            shards.form(places, _PRIMARIES)
        except (shards.NotFormed, redis.RedisError) as error:
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
            at_kafka, kafka_used = addresses.choose(kafka, addresses.KAFKA)
            at_http, http_used = addresses.choose(http, addresses.HTTP)
        except ValueError as error:
            raise ServersFailed(str(error)) from None
        for used, address, listener in ((kafka_used, addresses.KAFKA, "Kafka"), (http_used, addresses.HTTP, "HTTP")):
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
        """A broker's ready line."""
        self._said[child] = ready

    @property
    def ready(self) -> Ready | None:
        """Where clients find them: all Kafka listeners, the first one's HTTP; None until all are ready."""
        said = [self._said[child] for child in self.brokers if child in self._said]
        if not said or len(said) < len(self.brokers):
            return None
        return Ready(",".join(each.kafka for each in said), said[0].http, said[0].storage)

    def kill_one(self) -> Child | None:
        """SIGKILL to a broker, where there are several; who it was."""
        if len(self.brokers) > 1:
            self.killed = self.brokers[1]
            self.killed.kill()
        return self.killed

    @property
    def all(self) -> Sequence[Child]:
        """Those that have to run."""
        return [child for child in (*self.brokers, *self._nodes) if child is not self.killed]

    def ended(self, within_s: float) -> Child | None:
        """One that should run and does not, or ends within a time; None where there is none."""
        deadline = time.monotonic() + within_s
        while True:
            for child in self.all:
                if child.status is not None:
                    return child
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End them, brokers before what they store in."""
        end(self.brokers)
        end(self._nodes)
        if self._directory is not None:
            self._directory.close()
        elif self.brokers:
            with contextlib.suppress(StoreError):
                directory.end_orphan(self._data)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has at this moment; a server that finds one taken ends, and says so."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((_LOOPBACK, 0))
        return [one.getsockname()[1] for one in held]
