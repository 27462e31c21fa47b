"""Rounds with members of all kinds of groups: `python -m tests.cluster.rounds --groups`.

One topic is written without a break. These read it:

- consumers whose partitions the server assigns (KIP-848): by names, as a static member, and by a pattern. Each leaves
  and joins again from time to time.
- a share group, which accepts most records and releases some.
- a group that OCI instances and such consumers share.

A round is a handful of faults from a seed, see `accidents`. No partition may have two holders, see `holders`. Nothing
may be lost or skipped, see `history`, and no record may be accepted from two deliveries, see `deliveries`.
"""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, KafkaError, KafkaException, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.cluster.accidents import Happening
from tests.cluster.deliveries import Deliveries, Place
from tests.cluster.history import Audience, History
from tests.cluster.holders import Holders
from tests.cluster.members import NUMBER, OciGroup, Threads, poll
from tests.harness.brokers import Brokers
from tests.harness.ledger import Ledger, placed
from tests.harness.waiting import wait_for

from headrace.testing.oci import OciClients

PARTITIONS = 6
ACCIDENTS = 5
AT_ONCE = 20
_RELEASED = 20
"""One record of this many is released."""
_STAY_S = (2.0, 12.0)
"""How long a member of a group stays."""
_QUIET_S = 5.0
_CLOSE_S = 15.0
_SETTINGS: dict[str, Any] = {
    "socket.timeout.ms": 3_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 10_000,
    "log_level": 0,
}


class ConsumerGroup(Threads):
    """Consumers of a group whose partitions the server assigns."""

    def __init__(
        self, kafka: str, topic: str, audience: Audience, holders: Holders, chance: random.Random, members: int = 3
    ) -> None:
        """They begin at once. Of several, the first is static. The third one has a pattern."""
        self._topic, self._audience, self.holders = topic, audience, holders
        self._static = "1" if members > 1 else None
        self._stays = {f"{number}": chance.uniform(*_STAY_S) for number in range(1, members + 1)}
        self._settings: dict[str, Any] = {
            **_SETTINGS,
            "bootstrap.servers": kafka,
            "group.id": holders.group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 300,
            "check.crcs": True,
        }
        super().__init__(members)

    def work(self, name: str) -> None:
        """Poll. The static member stays, the others leave and join again."""
        settings = dict(self._settings)
        if name == self._static:
            settings["group.instance.id"] = f"{self.holders.group}-static"
        stay = float("inf") if name == self._static else self._stays[name]
        while not self.stopping.is_set():
            # Instances of the same group have numbers, too.
            self._stay(f"consumer-{name}", settings, time.monotonic() + stay)

    def _stay(self, name: str, settings: dict[str, Any], until: float) -> None:
        audience = self._audience

        def committed(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            # After an error of the request, its partitions have none.
            for each in partitions if error is None else ():
                if each.error is None and each.offset >= 0:
                    audience.committed(each.partition, each.offset)

        consumer = Consumer({**settings, "on_commit": committed})

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            audience.began(name)
            self.holders.assigned(name, [each.partition for each in partitions])

        def given_up(_: Consumer, partitions: list[TopicPartition]) -> None:
            audience.began(name)
            self.holders.given_up(name, [each.partition for each in partitions])

        topics = [f"^{self._topic}$"] if name == "consumer-3" else [self._topic]
        consumer.subscribe(topics, on_assign=assigned, on_revoke=given_up, on_lost=given_up)
        try:
            while not self.stopping.is_set() and time.monotonic() < until:
                poll(consumer, audience, name)
        finally:
            consumer.close()
            self.holders.gone(name)


class ShareGroup(Threads):
    """Members of a share group. Each response says what the server accepted."""

    def __init__(self, kafka: str, topic: str, group: str, deliveries: Deliveries, seed: int) -> None:
        """They begin at once."""
        self.deliveries, self.refused, self.stuck = deliveries, 0, 0
        self._topic, self._seed = topic, seed
        self._settings: dict[str, Any] = {
            **_SETTINGS,
            "bootstrap.servers": kafka,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
        super().__init__(3)

    def work(self, name: str) -> None:
        """Poll, acknowledge and commit. A member leaves and joins again from time to time."""
        chance = random.Random(f"{self._seed}.{name}")
        while not self.stopping.is_set():
            until = time.monotonic() + chance.uniform(*_STAY_S)
            consumer = ShareConsumer(dict(self._settings))
            consumer.subscribe([self._topic])
            try:
                while not self.stopping.is_set() and time.monotonic() < until:
                    self._take(name, consumer, chance)
            finally:
                self._close(consumer)

    def _close(self, consumer: ShareConsumer) -> None:
        """Leave. With librdkafka 2.16, some calls never return after a broker was killed: these are left."""

        def close() -> None:
            with contextlib.suppress(KafkaException):
                consumer.close()

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        self.stuck += closing.is_alive()

    def _take(self, name: str, consumer: ShareConsumer, chance: random.Random) -> None:
        accepted: dict[int, list[Place]] = {}
        self.deliveries.polls(name)
        for message in consumer.poll(0.2):
            if message.error() is not None:
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            number, count = NUMBER.unpack_from(value)[0], message.delivery_count() or 0
            self.deliveries.delivered(name, (partition, offset), number, count)
            # The last delivery is accepted: a released one would reach the limit.
            if chance.randrange(_RELEASED) == 0 and count < 3:
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                accepted.setdefault(partition, []).append((partition, offset))
        if not accepted:
            return
        try:
            results = consumer.commit_sync(10.0)
        except KafkaException:
            results = {}
        errors = {each.partition: error for each, error in results.items()}
        for partition, places in accepted.items():
            if partition in errors and errors[partition] is None:
                self.deliveries.accepted(name, places)
            else:
                self.refused += len(places)
                self.deliveries.unknown(name, places)


class GroupRound:
    """One round over brokers that are there for all of them."""

    def __init__(self, over: Brokers, happening: Happening, seed: int) -> None:
        self.happened: list[str] = []
        self.saw: Counter[str] = Counter()
        self._over, self._happening, self._seed = over, happening, seed
        self._random = random.Random(seed)
        self._topic = f"groups-{seed}"

    def run(self) -> None:
        """Raises AssertionError where something was that must not be."""
        kafka, topic = self._over.kafka, self._topic
        admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
        stream = str(OciClients(next(iter(self._over.servers.values())).http).create_stream(topic, PARTITIONS).id)
        self._over.led(topic, PARTITIONS)
        begin_at_earliest(admin, f"{topic}-shared")
        accidents = self._happening([topic], (), self._random)
        history, deliveries = History(), Deliveries()
        holders = Holders(f"{topic}-consumers")
        try:
            with contextlib.ExitStack() as stack:
                ledger = stack.enter_context(Ledger(kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000))
                stack.enter_context(ConsumerGroup(kafka, topic, history.audience("consumers"), holders, self._random))
                sharing = stack.enter_context(ShareGroup(kafka, topic, f"{topic}-shared", deliveries, self._seed))
                both = history.audience("instances and a consumer")
                stack.enter_context(OciGroup(self._https, stream, f"{topic}-instances", both))
                alone = Holders(f"{topic}-instances")
                stack.enter_context(ConsumerGroup(kafka, topic, both, alone, self._random, members=1))
                with ledger.writing(AT_ONCE):
                    for _ in range(ACCIDENTS):
                        time.sleep(self._random.choice([0.1, 0.5, 1.0, 2.0]))
                        self.happened.append(self._random.choice(accidents.acts)())
                    accidents.mend()
                ledger.settle()
                assert not ledger.refused, ledger.refused
                self._wait(lambda: history.unseen(ledger.told([()] * PARTITIONS)) == 0)
                self._wait(lambda: deliveries.unseen(ledger.told([()] * PARTITIONS)) == 0)
                self._wait(lambda: deliveries.open() == 0)
                sharing.stop()
                deliveries.again(left_over(kafka, topic, f"{topic}-shared"))
                logs = placed(kafka, topic, PARTITIONS)
                acknowledged = ledger.told(logs)
                history.check(acknowledged, logs)
                deliveries.check(acknowledged)
                holders.check()
                self._count(acknowledged, history, deliveries, holders, sharing)
        finally:
            accidents.mend()
        for future in admin.delete_topics([topic]).values():
            future.result(30)

    def _wait(self, until: Callable[[], bool]) -> None:
        with contextlib.suppress(AssertionError):  # the checks say what is missing
            wait_for(until, "all to be delivered")

    def _count(
        self,
        acknowledged: Sequence[Any],
        history: History,
        deliveries: Deliveries,
        holders: Holders,
        sharing: ShareGroup,
    ) -> None:
        self.saw["acknowledged"] += sum(map(len, acknowledged))
        for audience in history.audiences:
            self.saw["given"] += audience.given
            self.saw["given twice"] += audience.twice
        self.saw["grants"] += holders.grants
        self.saw["delivered to share members"] += deliveries.given
        self.saw["delivered again"] += deliveries.twice
        self.saw["accepted late"] += deliveries.late
        self.saw["acknowledgements without success"] += sharing.refused
        self.saw["closes that never returned"] += sharing.stuck

    def _https(self) -> list[str]:
        running = [each.http for each in self._over.servers.values() if each.running]
        return running or [each.http for each in self._over.servers.values()]


def begin_at_earliest(admin: AdminClient, group: str) -> None:
    """Let a share group begin at the first record."""
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def left_over(kafka: str, topic: str, group: str) -> list[Place]:
    """Return what a new member of a share group is given in five seconds."""
    found: list[Place] = []
    consumer = ShareConsumer({**_SETTINGS, "bootstrap.servers": kafka, "group.id": group})
    consumer.subscribe([topic])
    deadline = time.monotonic() + _QUIET_S
    try:
        while time.monotonic() < deadline:
            for message in consumer.poll(0.2):
                partition, offset = message.partition(), message.offset()
                if message.error() is None and partition is not None and offset is not None:
                    found.append((partition, offset))
    finally:
        consumer.close()
    return found
