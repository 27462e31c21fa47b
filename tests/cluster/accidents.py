"""Faults of brokers and of their storage while clients use them. `mend` undoes each of them.

None may lose an acknowledged record. Replication inside a Redis Cluster is asynchronous. Faults that promote a replica
therefore pause writes until the replica has them all (as `RedisCluster.kill` does), or use `CLUSTER FAILOVER`.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tests.cluster.site import Site
from tests.harness.brokers import Brokers
from tests.harness.redis import RedisServer
from tests.harness.redis_cluster import NODE_TIMEOUT_MS, Node, RedisCluster
from tests.harness.waiting import wait_for

from headrace.testing import ServerFailed

Act = Callable[[], str]
"""Does something, and says what."""


class Accidents(Protocol):
    """Those of one kind."""

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""

    def mend(self) -> None:
        """Wait until everything is there again."""


Happening = Callable[[Sequence[str], Sequence[str], random.Random], Accidents]
"""What may happen, given the topics and the transactional IDs that there are."""


class OfBrokers:
    """They are killed, stopped, ended in order, started again; topics come and go at one or another."""

    def __init__(self, over: Brokers, chance: random.Random, *, harming: bool = False) -> None:
        """`harming`: only what brokers have to recover from."""
        self._over, self._random, self._harming = over, chance, harming

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        harms = (self.kill, self.sleep, self.end)
        return harms if self._harming else (*harms, self.start, self.topics)

    def mend(self) -> None:
        """Start the brokers that do not run, and wait until all agree on the membership."""
        self.start()
        self._over.agree(list(self._over.servers))

    def _chosen(self) -> int | None:
        """A broker that runs, unless it is the last one."""
        running = self._over.running
        return self._random.choice(running) if len(running) > 1 else None

    def kill(self) -> str:
        """SIGKILL."""
        node = self._chosen()
        if node is None:
            return self.start()
        self._over.servers[node].kill()
        return f"{node} killed"

    def end(self) -> str:
        """SIGTERM."""
        node = self._chosen()
        if node is None:
            return self.start()
        self._over.servers[node].stop()
        return f"{node} ended"

    def start(self) -> str:
        """All that do not run."""
        dead = [node for node, each in self._over.servers.items() if not each.running]
        for node in dead:
            wait_for(lambda node=node: self._started(node), f"broker {node} to start")  # type: ignore[misc]
        return f"{dead or 'nobody'} started"

    def _started(self, node: int) -> bool:
        """Whether it could be started. Without complete storage it exits, as configured, and the caller retries."""
        try:
            self._over.start(node)
        except ServerFailed as error:
            if any(
                each in str(error)
                for each in ("does not answer", "slots without a primary", "is still loading its data")
            ):
                return False
            raise
        return True

    def sleep(self) -> str:
        """SIGSTOP, for less than it takes to be missed, or more."""
        node = self._random.choice(self._over.running)
        length_s = self._random.choice([0.3, 1.0, 3.0, 5.0])
        os.kill(self._over.servers[node].pid, signal.SIGSTOP)
        time.sleep(length_s)
        os.kill(self._over.servers[node].pid, signal.SIGCONT)
        return f"{node} slept {length_s} s"

    def topics(self) -> str:
        """Two names are made, asked about and deleted at whichever broker; what that says is not looked at."""
        name = self._random.choice(["a", "b"])
        resource = ConfigResource(ResourceType.TOPIC, name)
        acts: list[Callable[[AdminClient], Iterable[Future[Any]]]] = [
            lambda admin: admin.create_topics([NewTopic(name, 3, 1)]).values(),
            lambda admin: admin.describe_configs([resource]).values(),
            lambda admin: admin.delete_topics([name]).values(),
        ]
        for act in acts:
            node = self._random.choice(self._over.running)
            admin = AdminClient({"bootstrap.servers": self._over.addresses[node], "log_level": 0})
            with contextlib.suppress(KafkaException, TimeoutError):
                for asked in act(admin):
                    asked.result(10)
        return f"topic {name} came and went"


class OfOneRedis:
    """It is stopped, or killed and started again with what it has on disk."""

    def __init__(self, redis: RedisServer, chance: random.Random) -> None:
        self._redis, self._random = redis, chance

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        return (self.sleep, self.kill)

    def mend(self) -> None:
        """It is there always."""

    def sleep(self) -> str:
        """SIGSTOP."""
        length_s = self._random.choice([0.3, 1.0, 3.0])
        self._redis.send(signal.SIGSTOP)
        time.sleep(length_s)
        self._redis.send(signal.SIGCONT)
        return f"Redis slept {length_s} s"

    def kill(self) -> str:
        """SIGKILL."""
        self._redis.kill()
        time.sleep(self._random.choice([0.0, 1.0]))
        self._redis.start()
        return "Redis killed and started"


class OfACluster:
    """Shards fail over, in order and by a death; their nodes hang; slots move, key by key and at once."""

    def __init__(self, cluster: RedisCluster, keys: Sequence[str], chance: random.Random) -> None:
        """`keys`: those whose slots are moved."""
        self._cluster, self._keys, self._random = cluster, keys, chance

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        return (self.fail_over, self.kill, self.hang, self.nap, self.kill_replica, self.move_keys, self.move_slots)

    def mend(self) -> None:
        """Every node runs, every primary has a replica that has all, and the nodes agree."""
        for node in self._cluster.nodes:
            if not node.running:
                self._cluster.start(node)
        self._cluster.agree()
        for primary in self._primaries():
            self._cluster.replica_of(primary)

    def _primaries(self) -> list[Node]:
        return [node for node in self._cluster.running if node.is_primary]

    def _chosen(self) -> Node:
        return self._random.choice(self._primaries())

    def fail_over(self) -> str:
        """CLUSTER FAILOVER."""
        primary = self._chosen()
        self._cluster.fail_over(primary)
        return f"shard of {_name(primary)} failed over"

    def kill(self) -> str:
        """SIGKILL to a primary whose replica has everything; it comes back as a replica."""
        primary = self._chosen()
        self._cluster.kill(primary)
        return f"primary {_name(primary)} killed and started"

    def hang(self) -> str:
        """SIGSTOP to such a primary until its replica has taken over, and a while."""
        primary = self._chosen()
        replica = self._cluster.drain(primary)
        with self._cluster.missing_after(NODE_TIMEOUT_MS):
            primary.send(signal.SIGSTOP)
            try:
                wait_for(lambda: replica.is_primary, f"{replica.host} to take over")
                time.sleep(self._random.choice([0.0, 2.0]))
            finally:
                # Else what follows asks a node that stands still, and its silence hides why this failed.
                primary.send(signal.SIGCONT)
            wait_for(lambda: primary.is_replica_of(replica), f"{primary.host} to follow")
        primary.ask("CLIENT", "UNPAUSE")
        return f"primary {_name(primary)} hung until its replica had taken over"

    def nap(self) -> str:
        """SIGSTOP to any node for less than the cluster takes to miss it."""
        node = self._random.choice(self._cluster.running)
        length_s = self._random.choice([0.2, 0.8])
        node.send(signal.SIGSTOP)
        time.sleep(length_s)
        node.send(signal.SIGCONT)
        return f"node {_name(node)} slept {length_s} s"

    def kill_replica(self) -> str:
        """SIGKILL to a replica."""
        primary = self._chosen()
        replica = self._cluster.replica_of(primary)
        replica.kill()
        time.sleep(self._random.choice([0.0, 1.0]))
        self._cluster.start(replica)
        wait_for(lambda: replica.is_replica_of(primary), f"{replica.host} to follow")
        return f"replica {_name(replica)} killed and started"

    def _two(self) -> tuple[str, Node, Node]:
        """A key, the primary that has it, and another one."""
        key = self._random.choice(self._keys)
        source = self._cluster.primary_of(key)
        return key, source, self._random.choice([node for node in self._primaries() if node is not source])

    def move_keys(self) -> str:
        """A slot, by MIGRATE of each of its keys; half way it rests, for clients to find it so."""
        key, source, target = self._two()
        self._cluster.move_slot(key, target, lambda: time.sleep(self._random.choice([0.0, 0.5])))
        return f"a slot moved from {_name(source)} to {_name(target)} key by key"

    def move_slots(self) -> str:
        """A slot, by CLUSTER MIGRATESLOTS; where the server is older than that, as `move_keys`."""
        key, source, target = self._two()
        if not self._cluster.moves_slots:
            return self.move_keys()
        slot = int(source.ask("CLUSTER", "KEYSLOT", key))
        self._cluster.move_slots(source, target, slot, slot)
        self._cluster.agree()
        return f"a slot moved from {_name(source)} to {_name(target)} at once"


class AtOnce:
    """A broker is killed, and within a tenth of a second a shard fails over: the next leader has to find it."""

    def __init__(self, over: Brokers, cluster: RedisCluster, chance: random.Random) -> None:
        self._over, self._cluster, self._random = over, cluster, chance

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        return (self.kill, self.fail_over, self.both)

    def mend(self) -> None:
        """Those of one kind each do that."""

    def kill(self) -> str:
        """SIGKILL to both; the replica of that primary has everything."""
        return self._struck(self._cluster.kill, "killed and started")

    def fail_over(self) -> str:
        """SIGKILL to the broker, CLUSTER FAILOVER."""
        return self._struck(self._cluster.fail_over, "failed over")

    def both(self) -> str:
        """The one after the other, a broker each time."""
        return f"{self.kill()}, {self.fail_over()}"

    def _struck(self, strike: Callable[[Node, Callable[[], None]], Node], how: str) -> str:
        primary = self._random.choice([node for node in self._cluster.running if node.is_primary])
        told = "no broker to spare"

        def before() -> None:
            nonlocal told
            running = self._over.running
            if len(running) > 1:
                node = self._random.choice(running)
                self._over.servers[node].kill()
                told = f"{node} killed"
            time.sleep(self._random.choice([0.0, 0.08]))

        strike(primary, before)
        return f"{told}, at once primary {_name(primary)} {how}"


class OfTheNetwork:
    """Hosts are cut apart for a while: brokers from the storage or each other, nodes of the storage from each other.

    With `min.insync.replicas` of 2 no record is acknowledged that a replica has not got: one may be promoted any time.
    """

    def __init__(self, site: Site, chance: random.Random) -> None:
        self._site, self._random = site, chance

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        return (self.cut_broker, self.cut_brokers, self.cut_replica, self.cut_primary, self.lose_primary)

    def mend(self) -> None:
        """All reach all."""
        self._site.heal()

    def _for_a_while(self) -> str:
        """For less than it takes to be missed, or more."""
        length_s = self._random.choice([0.5, 1.0, 3.0, 5.0])
        time.sleep(length_s)
        self._site.heal()
        return f"for {length_s} s"

    def cut_broker(self) -> str:
        """A broker from the storage."""
        node = self._random.choice(list(self._site.hosts))
        self._site.network.cut([self._site.hosts[node]], self._site.storage_hosts)
        return f"{node} cut from the storage {self._for_a_while()}"

    def cut_brokers(self) -> str:
        """A broker from the others."""
        node = self._random.choice(list(self._site.hosts))
        others = [host for each, host in self._site.hosts.items() if each != node]
        self._site.network.cut([self._site.hosts[node]], others)
        return f"{node} cut from the other brokers {self._for_a_while()}"

    def cut_replica(self) -> str:
        """A replica from the other nodes."""
        replica = self._site.cluster.replica_of(self._primary())
        self._site.cut_from_the_cluster(replica)
        return f"replica {_name(replica)} cut off {self._for_a_while()}"

    def cut_primary(self) -> str:
        """A primary from the other nodes until its replica is promoted; brokers reach both."""
        return self._replaced(self._site.cut_from_the_cluster, "the other nodes")

    def lose_primary(self) -> str:
        """Cut a primary from all hosts until its replica is promoted."""
        return self._replaced(self._site.cut_from_all, "everybody")

    def _primary(self) -> Node:
        return self._random.choice([node for node in self._site.cluster.running if node.is_primary])

    def _replaced(self, cut: Callable[[Node], None], others: str) -> str:
        primary = self._primary()
        replica = self._site.cluster.replica_of(primary)
        cut(primary)
        wait_for(lambda: replica.is_primary, f"{replica.host} to be promoted")
        self._site.heal()
        return f"primary {_name(primary)} cut from {others} until it was replaced"


class AnyOf:
    """Accidents of several kinds, one at a time."""

    def __init__(self, *kinds: Accidents) -> None:
        self._kinds = kinds

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        return [act for kind in self._kinds for act in kind.acts]

    def mend(self) -> None:
        """The last of them first."""
        for kind in reversed(self._kinds):
            kind.mend()


class Together:
    """Inject a fault of one kind during one of another kind."""

    def __init__(self, one: Accidents, other: Accidents, chance: random.Random) -> None:
        self._one, self._other, self._random = one, other, chance

    @property
    def acts(self) -> Sequence[Act]:
        """What may happen."""
        return (*self._one.acts, *self._other.acts, self.both, self.both)

    def mend(self) -> None:
        """First the storage."""
        self._other.mend()
        self._one.mend()

    def both(self) -> str:
        """One of each."""
        first, second = self._random.choice(self._one.acts), self._random.choice(self._other.acts)
        told: list[str] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                told.append(first())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            told.append(second())
        finally:
            thread.join()
        for error in raised:
            raise error
        return " while ".join(told)


def _name(node: Node) -> str:
    """Short."""
    return node.host.rpartition(".")[2]
