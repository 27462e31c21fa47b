"""A Redis Cluster on this machine: primaries with a replica each, for tests that fail it over and move its slots.

Each node has a loopback address of its own, so that all have the usual ports and none is chosen in advance.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.retry import Retry

from tests.harness.network import Host
from tests.harness.ports import loopback_network
from tests.harness.redis import RedisProcess, valkey_program
from tests.harness.redis_tls import RedisTls
from tests.harness.waiting import wait_for

PORT = 6379
NODE_TIMEOUT_MS = 2_000
"""After so long a silence a primary is replaced."""
CALM_MS = 30_000
"""The same in a calm cluster: more than a busy machine keeps a process waiting."""
_ASK_AGAIN_S = 6.0
_OPTIONS = {
    # Redis 7.0 takes no loopback address for one but 127.0.0.1.
    "protected-mode": "no",
    "cluster-enabled": "yes",
    "cluster-node-timeout": str(NODE_TIMEOUT_MS),
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
    "appendonly": "yes",
    "appendfsync": "no",
    "save": "",
    "maxmemory-policy": "noeviction",
}


class Node(RedisProcess):
    """One process after another with the same data, from `start` to `kill`."""

    def __init__(
        self, program: Path, host: str, folder: Path, on: Host | None = None, tls: RedisTls | None = None
    ) -> None:
        """Nothing runs yet; `on`: the host that it runs on, if that is not this one."""
        self._entered = contextlib.nullcontext if on is None else on.entered
        self._tls = tls
        self.host = host
        self._program = program
        self._folder = folder

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        own = dict.fromkeys(("bind", "bind-source-addr", "cluster-announce-ip"), self.host)
        listening = self._tls.options(PORT) if self._tls else {"port": str(PORT)}
        options = {**_OPTIONS, **own, **listening, "dir": os.fspath(self._folder)}
        with (self._folder / "log").open("ab") as log, self._entered():
            self._run(self._program, options, log)
        wait_for(self._answers, f"{self.host} to answer")

    def _answers(self) -> bool:
        assert not self.ended, (self._folder / "log").read_text()[-2_000:]
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    def ask(self, *command: str | int) -> Any:
        """What it answers to a command."""
        login = self._tls.admin if self._tls else {}
        with redis.Redis(
            self.host, PORT, decode_responses=True, socket_timeout=30, retry=Retry(NoBackoff(), 0), **login
        ) as link:
            # The text as it is: redis-py makes something else of some answers.
            link.response_callbacks.clear()
            return link.execute_command(*command)

    def refused(self, error: str) -> int:
        """How often it has answered with this error, such as ASK."""
        found = re.search(rf"errorstat_{error}:count=(\d+)", self.ask("INFO", "errorstats"))
        return int(found[1]) if found else 0

    @property
    def id(self) -> str:
        """What the cluster calls it."""
        return str(self.ask("CLUSTER", "MYID"))

    @property
    def is_primary(self) -> bool:
        """Whether it thinks that it is a primary with slots."""
        words = self._own_line()
        return "master" in words[2].split(",") and len(words) > 8

    def _own_line(self) -> list[str]:
        line = next(line for line in self.ask("CLUSTER", "NODES").splitlines() if "myself" in line)
        return str(line).split(" ")

    def is_replica_of(self, primary: "Node") -> bool:
        """Whether it follows that primary, and has all that it had."""
        role = self.ask("ROLE")
        return bool(role[:2] == ["slave", primary.host] and role[3] == "connected")


class RedisCluster:
    """Primaries with a replica each; a context manager starts and ends them."""

    def __init__(
        self,
        program: Path | None = None,
        primaries: int = 3,
        replicas: int = 1,
        hosts: Sequence[Host] = (),
        tls: bool = False,
        calm: bool = False,
    ) -> None:
        """Prepare the cluster without starting it.

        Args:
            program: the server to run; the embedded Valkey if None.
            primaries: number of primaries, with equal shares of slots.
            replicas: replicas of each primary.
            hosts: one for each node, the primaries first; without any they run here.
            tls: whether clients and nodes use only TLS, with a login; not supported by the embedded Valkey.
            calm: whether failovers happen only by `kill` and `fail_over`. Otherwise a busy machine causes them, with a
                loss of unreplicated writes.
        """
        self._silence_ms = CALM_MS if calm else NODE_TIMEOUT_MS
        self._hosts = hosts
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-redis-cluster-"))
        self._program = program or valkey_program()
        self._network = loopback_network()
        self._primaries = primaries
        places = range(primaries * (1 + replicas))
        self.tls = RedisTls(self._folder, [self._address(place) for place in places]) if tls else None
        self.nodes = [self._node(place) for place in places]

    def _address(self, place: int) -> str:
        return self._hosts[place].address if self._hosts else f"{self._network}.{place + 1}"

    def _node(self, place: int) -> Node:
        on = self._hosts[place] if self._hosts else None
        return Node(self._program, self._address(place), self._folder / str(place), on, self.tls)

    @property
    def url(self) -> str:
        """The storage URL."""
        return "redis+cluster://" + ",".join(f"{node.host}:{PORT}" for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            self._form()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self._folder)

    def _form(self) -> None:
        for epoch, node in enumerate(self.nodes, 1):
            node.start()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        primaries = self.nodes[: self._primaries]
        for place, node in enumerate(primaries):
            first, end = (REDIS_CLUSTER_HASH_SLOTS * part // self._primaries for part in (place, place + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", node.host, PORT)
        self.agree()
        for place, node in enumerate(self.nodes[self._primaries :]):
            primary = primaries[place % self._primaries]
            wait_for(partial(_followed, node, primary), f"{node.host} to follow")
        wait_for(lambda: all(node.is_primary or _synced(node) for node in self.nodes), "replicas to have all")
        self.agree()
        self._miss_after(self._silence_ms)

    @contextlib.contextmanager
    def missing_after(self, silence_ms: int) -> Iterator[None]:
        """Use this node timeout in the context; all of `running` answer."""
        self._miss_after(silence_ms)
        try:
            yield
        finally:
            self._miss_after(self._silence_ms)

    def start(self, node: Node) -> None:
        """Start a node that was killed; it misses the others as late as they miss each other."""
        node.start()
        node.ask("CONFIG", "SET", "cluster-node-timeout", self._silence_ms)

    def _miss_after(self, silence_ms: int) -> None:
        for node in self.running:
            node.ask("CONFIG", "SET", "cluster-node-timeout", silence_ms)

    def agree(self) -> None:
        """Wait until every node that runs says that all is well, and all say the same of slots."""
        wait_for(lambda: len({self._seen_by(node) for node in self.running}) == 1, "the nodes to agree")

    def _seen_by(self, node: Node) -> str:
        if "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
            return f"{node.host} is not well"
        lines = [line.split(" ") for line in node.ask("CLUSTER", "NODES").splitlines()]
        return str(sorted((words[0], words[2].replace("myself,", ""), words[3], *words[8:]) for words in lines))

    @property
    def running(self) -> list[Node]:
        """Those whose process is there."""
        return [node for node in self.nodes if node.running]

    def primary_of(self, key: str) -> Node:
        """The primary that has a key."""
        slot = key_slot(key.encode())
        for first, last, (host, *_), *_ in self.running[0].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.host == host)
        raise LookupError(f"nobody has slot {slot}")

    def replica_of(self, primary: Node) -> Node:
        """A replica of a primary, that has all."""
        found: list[Node] = []

        def look() -> bool:
            found[:] = [node for node in self.running if node is not primary and node.is_replica_of(primary)]
            return bool(found)

        wait_for(look, f"a replica of {primary.host}")
        return found[0]

    def fail_over(self, primary: Node, before: Callable[[], None] = lambda: None) -> Node:
        """CLUSTER FAILOVER: primary and replica change places in order; the new primary.

        `before`: called right before it is asked for.
        """
        replica = self.replica_of(primary)
        again_s = 0.0

        def taken_over() -> bool:
            nonlocal again_s
            if replica.is_primary:
                return True
            if time.monotonic() >= again_s:
                # Given up after 5 s where the others have voted for this shard a moment ago.
                again_s = time.monotonic() + _ASK_AGAIN_S
                with contextlib.suppress(redis.ResponseError):
                    replica.ask("CLUSTER", "FAILOVER")
            return False

        with self.missing_after(NODE_TIMEOUT_MS):
            before()
            wait_for(taken_over, f"{replica.host} to take over")
        return replica

    def kill(self, primary: Node, before: Callable[[], None] = lambda: None) -> Node:
        """Kill a primary, wait until its replica has taken over, and start it again; the new primary.

        It takes no more writes before that, until its replica has them all: what asynchronous replication loses is not
        what this is about.

        Args:
            primary: which one.
            before: called right before it is killed.
        """
        replica = self.drain(primary)
        with self.missing_after(NODE_TIMEOUT_MS):
            before()
            primary.kill()
            wait_for(lambda: replica.is_primary, f"{replica.host} to take over")
        self.start(primary)
        wait_for(lambda: primary.is_replica_of(replica), f"{primary.host} to follow")
        return replica

    def drain(self, primary: Node) -> Node:
        """Have a primary take no more writes, and wait until its replica has them all; the replica."""
        replica = self.replica_of(primary)
        primary.ask("CLIENT", "PAUSE", 60_000, "WRITE")
        wait_for(lambda: replica.ask("ROLE")[4] >= primary.ask("ROLE")[1], f"{replica.host} to have all")
        return replica

    def move_slot(self, key: str, target: Node, between: Callable[[], None] = lambda: None) -> None:
        """Move a key's slot as resharding tools have always done it: MIGRATE each of its keys.

        Args:
            key: whose slot it is.
            target: the primary that shall have it.
            between: called when some keys have moved and the slot has not.
        """
        source, slot = self.primary_of(key), key_slot(key.encode())
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        for each in self._keys(source, slot):
            source.ask("MIGRATE", target.host, PORT, each, 0, 30_000)
        between()
        for node in (target, source, *(node for node in self.running if node.is_primary)):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        self.agree()

    @property
    def moves_slots(self) -> bool:
        """Whether its servers know CLUSTER MIGRATESLOTS."""
        return any("MIGRATESLOTS" in str(line) for line in self.running[0].ask("CLUSTER", "HELP"))

    def move_slots(self, source: Node, target: Node, first: int, last: int) -> None:
        """Move slots with all that is in them in one step (CLUSTER MIGRATESLOTS, Valkey 9)."""
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", target.id)
        slot = range(first, last + 1)
        wait_for(lambda: all(each in _slots(target) for each in slot), f"{target.host} to have slots {first} to {last}")

    @staticmethod
    def _keys(node: Node, slot: int) -> Iterator[str]:
        while keys := node.ask("CLUSTER", "GETKEYSINSLOT", slot, 1):
            yield from keys


def _slots(node: Node) -> set[int]:
    found: set[int] = set()
    for first, last, (host, *_), *_ in node.ask("CLUSTER", "SLOTS"):
        if host == node.host:
            found.update(range(first, last + 1))
    return found


def _followed(node: Node, primary: Node) -> bool:
    """Ask to follow; whether that was possible: a node that has not heard of the other one refuses."""
    try:
        node.ask("CLUSTER", "REPLICATE", primary.id)
    except redis.ResponseError:
        return False
    return True


def _synced(node: Node) -> bool:
    role = node.ask("ROLE")
    return bool(role[0] == "slave" and role[3] == "connected")
