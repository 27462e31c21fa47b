"""librdkafka with `group.protocol=consumer` (KIP-848): the server assigns the partitions."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from tests.clients.test_groups import PARTITIONS, Watch, fill
from tests.harness.clients import Client, ClientFailed, Record
from tests.harness.clients.confluent import Confluent
from tests.harness.wire import Wire

from headrace.testing import Server, server

Eventually = Callable[[Callable[[], object]], None]
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(
        num_partitions=1,
        group_consumer_min_session_timeout_ms=SESSION_MS,
        group_consumer_session_timeout_ms=SESSION_MS,
        group_consumer_min_heartbeat_interval_ms=1_000,
        group_consumer_heartbeat_interval_ms=1_000,
    ) as started:
        yield started


@pytest.fixture
def client(running: Server) -> Client:
    return Confluent(running.kafka, group_protocol="consumer")


def test_a_second_member_has_its_share_soon_and_gives_it_back(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=PARTITIONS)
    first_values = fill(client, topic, "one")
    with client.member(topic, topic) as first:
        watch = Watch(first)
        watch.until(lambda: watch.settled() and watch.seen(first_values))
        first.commit()
        second = client.member(topic, topic)
        watch.members.append(second)
        began = time.monotonic()
        watch.until(watch.settled)
        assert time.monotonic() - began < 3, "Kafka takes 5 s, the interval of its heartbeats"
        shares = {member: member.owned() for member in watch.members}
        assert not shares[first] & shares[second]
        watch.got.clear()
        second_values = fill(client, topic, "two")
        watch.until(lambda: watch.seen(second_values))
        new = [(member, record) for member, record in watch.got if record.value in second_values]
        assert all(record.partition in shares[member] for member, record in new), "each only reads what it owns"
        assert len(new) == len(second_values)
        assert not [record for _, record in watch.got if record.value in first_values], (
            "committed ones are not repeated"
        )
        for member in watch.members:
            member.commit()
        watch.members.remove(second)
        second.close()
        watch.until(watch.settled)
        watch.got.clear()
        third_values = fill(client, topic, "three")
        watch.until(lambda: watch.seen(third_values))
        assert not [record for _, record in watch.got if record.value in second_values]


def test_a_member_goes_on_where_the_group_had_come_to(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=1)
    client.send(topic, [Record(value=b"before")])
    with client.member(topic, topic) as first:
        watch = Watch(first)
        watch.until(lambda: watch.seen([b"before"]))
        first.commit()
    assert wire.committed(topic, topic) == 1
    client.send(topic, [Record(value=b"behind")])
    with client.member(topic, topic, reset="latest") as second:
        watch = Watch(second)
        watch.until(lambda: watch.got)
        assert [record.value for _, record in watch.got] == [b"behind"]


def test_a_static_member_comes_back_to_its_partitions(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=PARTITIONS)
    with client.member(topic, topic, instance="one") as first:
        second = client.member(topic, topic, instance="two")
        watch = Watch(first, second)
        watch.until(watch.settled)
        share, others = second.owned(), first.owned()
        second.close()
        watch.members[1] = second = client.member(topic, topic, instance="two")
        watch.until(watch.settled)
        assert (second.owned(), first.owned()) == (share, others)
        second.close()


def test_an_instance_id_in_use_is_a_fatal_error(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=PARTITIONS)
    with client.member(topic, topic, instance="one") as first:
        watch = Watch(first)
        watch.until(first.owned)
        with client.member(topic, topic, instance="one") as second, pytest.raises(ClientFailed):
            deque(iter(lambda: second.poll(0.2), None), maxlen=0)
        assert first.owned() == frozenset(range(PARTITIONS))


class Subscribed:
    """A consumer that notes each assignment."""

    def __init__(self, running: Server, group: str, *topics: str) -> None:
        self.consumer = Consumer({
            "bootstrap.servers": running.kafka,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 1_000,
        })  # fmt: skip
        self.assigned: list[set[str]] = []
        self.consumer.subscribe(list(topics), on_assign=self._on_assign)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned.append({one.topic for one in partitions})

    def owned(self) -> set[str]:
        """Poll, and return the topics of the assignment."""
        self.consumer.poll(0.1)
        return {one.topic for one in self.consumer.assignment()}


def test_topics_of_a_pattern_come_after_named_ones(
    running: Server, wire: Wire, topic: str, eventually: Eventually
) -> None:
    named, matched, later = f"{topic}-named", f"{topic}-a1", f"{topic}-a2"
    wire.create(named)
    wire.create(matched)
    one = Subscribed(running, topic, named, f"^{topic}-a.*")
    try:
        eventually(lambda: one.owned() == {named, matched})
        assert one.assigned == [{named}, {matched}]
        wire.create(later)
        eventually(lambda: one.owned() == {named, matched, later})
        wire.delete(matched)
        eventually(lambda: one.owned() == {named, later})
    finally:
        one.consumer.close()


def test_a_topic_grows_is_deleted_and_created_again(
    running: Server, wire: Wire, topic: str, eventually: Eventually
) -> None:
    one = Subscribed(running, topic, topic)
    try:
        for _ in range(10):
            assert one.owned() == set(), "a missing topic is no error"
        wire.create(topic)
        eventually(lambda: one.owned() == {topic})
        admin = AdminClient({"bootstrap.servers": running.kafka})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        eventually(lambda: one.owned() and len(one.consumer.assignment()) == 3)
        wire.delete(topic)
        eventually(lambda: one.owned() == set())
        wire.create(topic, partitions=2)
        eventually(lambda: one.owned() and len(one.consumer.assignment()) == 2)
    finally:
        one.consumer.close()


def test_an_administrator_configures_a_group(running: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": running.kafka})

    def alter(value: str) -> None:
        entry = ConfigEntry("consumer.session.timeout.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    alter("20000")
    group = ConfigResource(ResourceType.GROUP, topic)
    described = admin.describe_configs([group])[group].result(30)
    assert described["consumer.session.timeout.ms"].value == "20000"
    given = described["share.session.timeout.ms"].synonyms
    assert [(name, each.value) for name, each in given.items()] == [("group.share.session.timeout.ms", "45000")]
    with pytest.raises(KafkaException, match=r"less than or equal to group\.consumer\.max\.session\.timeout\.ms"):
        alter("70000")


def test_partitions_of_a_killed_member_go_to_others(
    running: Server, client: Client, wire: Wire, topic: str, eventually: Eventually
) -> None:
    wire.create(topic, partitions=PARTITIONS)
    program = (
        "import sys; from confluent_kafka import Consumer\n"
        "one = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2], 'group.protocol': 'consumer'})\n"
        "one.subscribe([sys.argv[2]])\n"
        "while True: one.poll(0.1)\n"
    )
    with client.member(topic, topic) as first:
        other = subprocess.Popen([sys.executable, "-c", program, running.kafka, topic])
        try:
            watch = Watch(first)
            watch.until(lambda: len(first.owned()) == PARTITIONS // 2)
        finally:
            other.kill()
            other.wait()
        began = time.monotonic()
        watch.until(lambda: len(first.owned()) == PARTITIONS)
        assert time.monotonic() - began > SESSION_MS / 1_000 - 1.5


def test_members_go_on_after_a_restart_of_the_server(topic: str) -> None:
    with server(num_partitions=1) as restarted:
        client = Confluent(restarted.kafka, group_protocol="consumer")
        with Wire(restarted.kafka) as raw:
            raw.create(topic, partitions=PARTITIONS)
        with client.member(topic, topic) as first, client.member(topic, topic) as second:
            watch = Watch(first, second)
            watch.until(watch.settled)
            shares = first.owned(), second.owned()
            restarted.kill()
            restarted.start()
            values = fill(client, topic, "after")
            watch.until(lambda: watch.seen(values))
            assert (first.owned(), second.owned()) == shares
            first.commit()
