"""Fault injection for brokers and their storage under load: `python -m tests.cluster.rounds --rounds 20 --seed 1`.

Three brokers run over one Redis that keeps what it acknowledges, or with `--cluster` over a Redis Cluster of three
primaries with a replica each. With `--network` each of these nine has its own host, and `min.insync.replicas` is 2.

- An idempotent Kafka producer writes one topic and a group of three reads it.
- Messages are put into another topic through the OCI API of any broker. A group of OCI instances, plain cursors, and a
  Kafka consumer read it.
- Another producer writes a native topic of adopted Redis Streams, and a group of two reads it. Not with `--network`,
  since reads of a plain stream do not wait for replication.

A round is a handful of faults from a seed, see `accidents`: of brokers, of Redis, of the network, or several at once.
Then everything has to settle, and `history` reports anomalies. No acknowledged record may be lost: no fault promotes a
replica that lacks one.

With `--transactions`, transactions run while the cleaner cleans one of their topics, see `transaction_rounds`. A round
is then a single fault. With `--groups`, members of all kinds of groups read one topic, see `group_rounds`.

Each round prints its seed and faults, after an anomaly the logs of the brokers, and the last line is a summary.
`--redis-server PROGRAM` replaces the bundled Valkey. `make test LANE=cluster` runs all kinds.
"""

import argparse
import contextlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster.accidents import (
    Accidents,
    AnyOf,
    AtOnce,
    Happening,
    OfACluster,
    OfBrokers,
    OfOneRedis,
    OfTheNetwork,
    Together,
)
from tests.cluster.group_rounds import GroupRound
from tests.cluster.history import History, Log
from tests.cluster.members import KafkaGroup, OciGroup, OciReader, OciWriter
from tests.cluster.site import site
from tests.cluster.transaction_rounds import TransactionRound, TransactionRounds
from tests.harness.brokers import Brokers, brokers, brokers_at
from tests.harness.ledger import Ledger, placed
from tests.harness.redis_cluster import RedisCluster
from tests.harness.waiting import wait_for

from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.storage.redis.clients import blocking
from headrace.testing.oci import OciClients

PARTITIONS = 6
NATIVE_PARTITIONS = 3
ACCIDENTS = 5
AT_ONCE = 20
"""Records of a producer every 5 ms: many batches for each fault, and time left for detections."""
ADOPTED = "rounds:"
"""How the keys of streams begin that become topics."""
SETTINGS: dict[str, Any] = {
    "broker_session_timeout_ms": 1_500,
    "broker_heartbeat_interval_ms": 200,
    "headrace_adopt_prefixes": ADOPTED,
    "log_cleaner_backoff_ms": 1_000,
    # Members that a fault has taken away leave soon.
    "group_consumer_min_session_timeout_ms": 10_000,
    "group_consumer_session_timeout_ms": 10_000,
    "group_share_min_session_timeout_ms": 10_000,
    "group_share_session_timeout_ms": 10_000,
    "group_share_min_record_lock_duration_ms": 5_000,
    "group_share_record_lock_duration_ms": 10_000,
}
Where = tuple[Brokers, Happening, redis.Redis | None]
"""Brokers, what may happen to them, and a client of their Redis where it gets streams that become topics."""
Told = Callable[[Sequence[Log]], Sequence[Mapping[int, int]]]
"""What was acknowledged of a topic, given its log, as far as that is known: number of a record -> offset."""


class Round:
    """One round over brokers that are there for all of them."""

    def __init__(self, over: Brokers, happening: Happening, seed: int, *, adopting: redis.Redis | None) -> None:
        """`adopting`: makes the streams of the native topic; None: there is none."""
        self.happened: list[str] = []
        self.saw: Counter[str] = Counter()
        self._over, self._happening, self._adopting = over, happening, adopting
        self._random = random.Random(seed)
        self._topic, self._stream, self._native = f"round-{seed}", f"round-{seed}-oci", f"round-{seed}-native"

    def run(self) -> None:
        """Raises AssertionError where something was that must not be."""
        topics = [self._topic, self._stream]
        admin = AdminClient({"bootstrap.servers": self._over.kafka, "log_level": 0})
        admin.create_topics([NewTopic(self._topic, PARTITIONS, 1)])[self._topic].result(30)
        stream = str(
            OciClients(next(iter(self._over.servers.values())).http).create_stream(self._stream, PARTITIONS).id
        )
        if self._adopting is not None:
            topics.append(self._native)
            adopt(admin, self._adopting, self._native)
        accidents = self._happening(topics, (), self._random)
        try:
            self._under_load(stream, accidents)
        finally:
            accidents.mend()
        for future in admin.delete_topics(topics).values():
            future.result(30)
        if self._adopting is not None:
            for key in adopted_by(self._native):
                self._adopting.delete(key)

    def _under_load(self, stream: str, accidents: Accidents) -> None:
        kafka, topic, native = self._over.kafka, self._topic, self._native
        by_kafka, by_oci, of_native = History(), History(), History(dense=False)
        with contextlib.ExitStack() as stack:
            ledgers = [stack.enter_context(Ledger(kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000))]
            writer = stack.enter_context(OciWriter(self._https, stream, PARTITIONS))
            stack.enter_context(KafkaGroup(kafka, topic, topic, by_kafka.audience("group")))
            stack.enter_context(
                KafkaGroup(kafka, self._stream, self._stream, by_oci.audience("Kafka group"), members=1)
            )
            group = f"{self._stream}-instances"
            stack.enter_context(OciGroup(self._https, stream, group, by_oci.audience("OCI group")))
            stack.enter_context(OciReader(self._https, stream, PARTITIONS, by_oci.audience("OCI reader")))
            told: list[tuple[History, str, int, Told]] = [
                (by_kafka, topic, PARTITIONS, ledgers[0].told),
                (by_oci, self._stream, PARTITIONS, lambda _: writer.acknowledged),
            ]
            if self._adopting is not None:
                ledgers.append(
                    stack.enter_context(Ledger(kafka, native, partitions=NATIVE_PARTITIONS, socket_timeout_ms=3_000))
                )
                audience = of_native.audience("group of the native topic")
                stack.enter_context(KafkaGroup(kafka, native, native, audience, members=2))
                told.append((of_native, native, NATIVE_PARTITIONS, ledgers[1].told))
            self._happen(ledgers, accidents)
            writer.stop()
            self.saw["puts without an answer"] = writer.unanswered
            for ledger in ledgers:
                ledger.settle()
                assert not ledger.refused, ledger.refused
            for each in told:
                self._check(*each)

    def _check(self, history: History, topic: str, partitions: int, told: Told) -> None:
        """Check that all clients have seen everything, without anomalies."""
        acknowledged = told([()] * partitions)
        with contextlib.suppress(AssertionError):  # the check says who has not seen what
            wait_for(lambda: history.unseen(acknowledged) == 0, "all to be seen")
        logs = placed(self._over.kafka, topic, partitions)
        history.check(told(logs), logs)
        self.saw["acknowledged"] += sum(map(len, acknowledged))
        for audience in history.audiences:
            self.saw["given"] += audience.given
            self.saw["given twice"] += audience.twice

    def _https(self) -> list[str]:
        running = [each.http for each in self._over.servers.values() if each.running]
        return running or [each.http for each in self._over.servers.values()]

    def _happen(self, ledgers: Sequence[Ledger], accidents: Accidents) -> None:
        """Inject all faults while the ledgers are written."""
        with contextlib.ExitStack() as writing:
            for ledger in ledgers:
                writing.enter_context(ledger.writing(AT_ONCE))
            for _ in range(ACCIDENTS):
                time.sleep(self._random.choice([0.1, 0.5, 1.0, 2.0]))
                self.happened.append(self._random.choice(accidents.acts)())
            accidents.mend()


@contextlib.contextmanager
def over_one(program: Path | None, *, harming: bool) -> Iterator[Where]:
    """Three brokers over one Redis, and what may happen to them. `harming`: see `OfBrokers`."""
    with brokers(3, program, **SETTINGS) as over:

        def happening(_topics: Sequence[str], _ids: Sequence[str], chance: random.Random) -> Accidents:
            return Together(OfBrokers(over, chance, harming=harming), OfOneRedis(over.redis, chance), chance)

        yield over, happening, blocking(over.redis.url)


@contextlib.contextmanager
def over_cluster(program: Path | None, *, harming: bool) -> Iterator[Where]:
    """Three brokers over a Redis Cluster, and what may happen to them."""
    with RedisCluster(program, calm=True) as cluster, brokers_at(cluster.url, 3, **SETTINGS) as over:

        def happening(topics: Sequence[str], ids: Sequence[str], chance: random.Random) -> Accidents:
            shards = OfACluster(cluster, keys_of(cluster.url, topics, ids), chance)
            return AnyOf(
                Together(OfBrokers(over, chance, harming=harming), shards, chance), AtOnce(over, cluster, chance)
            )

        yield over, happening, blocking(cluster.url)


@contextlib.contextmanager
def over_network(program: Path | None, *, harming: bool) -> Iterator[Where]:
    """The same on a host for each of them, and what may happen to these."""
    with site(program, **SETTINGS) as found:
        url = found.cluster.url

        def happening(topics: Sequence[str], ids: Sequence[str], chance: random.Random) -> Accidents:
            shards = OfACluster(found.cluster, keys_of(url, topics, ids), chance)
            all_of = Together(
                OfBrokers(found.brokers, chance, harming=harming), AnyOf(shards, OfTheNetwork(found, chance)), chance
            )
            return AnyOf(all_of, AtOnce(found.brokers, found.cluster, chance))

        yield found.brokers, happening, None


def adopt(admin: AdminClient, redis: redis.Redis, name: str) -> None:
    """Make Redis Streams, and a native topic of them."""
    for partition, key in enumerate(adopted_by(name)):
        redis.xgroup_create(key, "makes-it", mkstream=True)
        redis.xgroup_destroy(key, "makes-it")
        config = {"headrace.stream": key, "headrace.partition": str(partition)}
        admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)


def adopted_by(name: str) -> list[str]:
    """The keys of a native topic's streams."""
    return [f"{ADOPTED}{name}:{partition}" for partition in range(NATIVE_PARTITIONS)]


def keys_of(url: str, topics: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Keys whose slots are moved: of the view, the groups of these topics, transactional IDs, and partitions."""
    groups = [f"headrace:group:{{default/{topic}}}" for topic in topics]
    transactions = [f"headrace:transaction:{{default/{each}}}" for each in ids]
    return [
        "headrace:{meta}:view",
        *groups,
        *transactions,
        *(stream for topic in topics for stream in streams_of(url, topic)),
    ]


def streams_of(url: str, topic: str) -> list[str]:
    """The keys of a topic's partitions."""
    with LogReader(url) as log:
        return list(log.topics(Subscription((topic,)))[topic].streams)


def main() -> int:
    """Run rounds; the exit status is 1 where one found an anomaly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    over_what = parser.add_mutually_exclusive_group()
    over_what.add_argument("--cluster", action="store_true", help="over a Redis Cluster, not one Redis")
    over_what.add_argument("--network", action="store_true", help="over one, with a host for each: needs root")
    clients = parser.add_mutually_exclusive_group()
    clients.add_argument("--transactions", action="store_true", help="transactions, and no other clients")
    clients.add_argument("--groups", action="store_true", help="members of all kinds of groups, and no other clients")
    parser.add_argument("--redis-server", type=Path, default=None, help="a redis-server or valkey-server")
    chosen = parser.parse_args()
    failed, saw = 0, Counter[str]()
    over_which = over_network if chosen.network else over_cluster if chosen.cluster else over_one
    with over_which(chosen.redis_server, harming=chosen.transactions) as (over, happening, client):
        transactions = TransactionRounds(over, happening)
        for seed in range(chosen.seed, chosen.seed + chosen.rounds):
            this: Round | TransactionRound | GroupRound
            if chosen.transactions:
                this = transactions.round(seed)
            elif chosen.groups:
                this = GroupRound(over, happening, seed)
            else:
                this = Round(over, happening, seed, adopting=client)
            began = time.monotonic()
            logs = {node: len(each.log()) for node, each in over.servers.items()}
            try:
                this.run()
                what = _told(this.saw)
            except AssertionError as error:
                failed += 1
                what = f"ANOMALY {error}: {_told(this.saw)}"
                traceback.print_exc()
                for node, each in over.servers.items():
                    print(f"--- seed {seed}, broker {node}\n{each.log()[logs[node] :]}", file=sys.stderr, flush=True)
            print(f"seed {seed}: {what}, {time.monotonic() - began:.0f} s: {', '.join(this.happened)}", flush=True)
            saw += this.saw
        transactions.close()
    print(f"{chosen.rounds} rounds from seed {chosen.seed}, {failed} with anomalies: {_told(saw)}")
    return int(failed > 0)


def _told(saw: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in saw.items())


if __name__ == "__main__":
    sys.exit(main())
