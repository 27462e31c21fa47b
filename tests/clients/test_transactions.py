"""Transactional producers of real clients: commit, abort, offsets, fencing, and readers of committed records."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.structs import OffsetAndMetadata as AioOffset
from aiokafka.structs import TopicPartition as AioPartition
from tests.harness.wire import Wire

import kafka
from headrace.testing import Server

TRANSFORMED = 20


def committed(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Read a topic from its beginning to its last stable offset, or to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": str(uuid.uuid4()),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: list[bytes] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(20)
            assert message is not None, "no end of the partition"
            if (error := message.error()) is not None:
                assert error.name() == "_PARTITION_EOF"
                return found
            found.append(message.value() or b"")
    finally:
        consumer.close()


def confluent_producer(bootstrap: str, name: str, **config: Any) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0} | config
    )
    producer.init_transactions(20)
    return producer


def send_with_confluent(bootstrap: str, topic: str) -> None:
    producer = confluent_producer(bootstrap, topic)
    for name, commit in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, f"{name}{number}".encode())
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)


def send_with_kafka_python(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    try:
        producer.init_transactions()
        for name, commit in (("a", True), ("b", False), ("c", True)):
            producer.begin_transaction()
            for number in range(10):
                producer.send(topic, f"{name}{number}".encode())
            producer.flush(20)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(5)


def send_with_aiokafka(bootstrap: str, topic: str) -> None:
    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
            for name, commit in (("a", True), ("b", False), ("c", True)):
                await producer.begin_transaction()
                for number in range(10):
                    await producer.send_and_wait(topic, f"{name}{number}".encode())
                if commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    asyncio.run(send())


SENDERS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": send_with_confluent,
    "kafka-python": send_with_kafka_python,
    "aiokafka": send_with_aiokafka,
}


@pytest.mark.parametrize("sender", SENDERS)
def test_readers_see_exactly_the_committed_records(running: Server, wire: Wire, topic: str, sender: str) -> None:
    wire.create(topic)
    SENDERS[sender](running.kafka, topic)
    wanted = [f"{name}{number}".encode() for name in "ac" for number in range(10)]
    assert committed(running.kafka, topic) == wanted
    everything = [f"{name}{number}".encode() for name in "abc" for number in range(10)]
    assert committed(running.kafka, topic, "read_uncommitted") == everything


@pytest.mark.parametrize("sender", SENDERS)
def test_a_transactional_id_is_used_again_after_a_restart_of_its_producer(
    running: Server, wire: Wire, topic: str, sender: str
) -> None:
    wire.create(topic)
    for _ in range(2):
        SENDERS[sender](running.kafka, topic)
    assert len(committed(running.kafka, topic)) == 40


def transform_with_confluent(bootstrap: str, source: str, target: str, group: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = confluent_producer(bootstrap, target)
    try:
        consumer.subscribe([source])
        done = 0
        while done < TRANSFORMED:
            messages = consumer.consume(5, 20)
            assert messages
            producer.begin_transaction()
            for message in messages:
                assert message.error() is None
                producer.produce(target, b"seen " + (message.value() or b""))
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 20)
            producer.commit_transaction(20)
            done += len(messages)
    finally:
        consumer.close()


def transform_with_aiokafka(bootstrap: str, source: str, target: str, group: str) -> None:
    async def transform() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        async with (
            consumer,
            aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=target) as producer,
        ):
            done = 0
            while done < TRANSFORMED:
                batches = await consumer.getmany(timeout_ms=20_000, max_records=5)
                async with producer.transaction():
                    for partition, messages in batches.items():
                        for message in messages:
                            await producer.send(target, b"seen " + message.value)
                        done += len(messages)
                        offsets = {AioPartition(*partition): AioOffset(messages[-1].offset + 1, "")}
                        await producer.send_offsets_to_transaction(offsets, group)

    asyncio.run(transform())


def transform_with_kafka_python(bootstrap: str, source: str, target: str, group: str) -> None:
    consumer = kafka.KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=target)
    try:
        producer.init_transactions()
        done = 0
        while done < TRANSFORMED:
            batches = consumer.poll(20_000, max_records=5)
            assert batches
            producer.begin_transaction()
            for partition, messages in batches.items():
                for message in messages:
                    producer.send(target, b"seen " + message.value)
                done += len(messages)
                offset = kafka.OffsetAndMetadata(messages[-1].offset + 1, "", -1)
                producer.send_offsets_to_transaction({partition: offset}, group)
            producer.commit_transaction()
    finally:
        producer.close(5)
        consumer.close()


TRANSFORMERS: dict[str, Callable[[str, str, str, str], None]] = {
    "confluent-kafka": transform_with_confluent,
    "kafka-python": transform_with_kafka_python,
    "aiokafka": transform_with_aiokafka,
}


@pytest.mark.parametrize("transformer", TRANSFORMERS)
def test_offsets_are_committed_with_the_records(running: Server, wire: Wire, topic: str, transformer: str) -> None:
    source, target = wire.create(f"{topic}-source"), wire.create(topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": running.kafka})
    for number in range(TRANSFORMED):
        producer.produce(source, b"%d" % number)
    assert producer.flush(20) == 0
    TRANSFORMERS[transformer](running.kafka, source, target, f"{topic}-group")
    assert committed(running.kafka, target) == [b"seen %d" % number for number in range(TRANSFORMED)]
    reader = confluent_kafka.Consumer({"bootstrap.servers": running.kafka, "group.id": f"{topic}-group"})
    [found] = reader.committed([confluent_kafka.TopicPartition(source, 0)], 20)
    reader.close()
    assert found.offset == TRANSFORMED


def test_a_second_producer_fences_the_first(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    first = confluent_producer(running.kafka, topic)
    first.begin_transaction()
    first.produce(topic, b"fenced")
    assert first.flush(20) == 0
    second = confluent_producer(running.kafka, topic)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(20)
    assert caught.value.args[0].fatal()
    assert "fenced" in str(caught.value)
    second.begin_transaction()
    second.produce(topic, b"kept")
    second.commit_transaction(20)
    assert committed(running.kafka, topic) == [b"kept"]


def test_a_transaction_that_takes_too_long_is_aborted(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    late = confluent_producer(running.kafka, topic, **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 900})
    late.begin_transaction()
    late.produce(topic, b"late")
    assert late.flush(20) == 0
    found = wire.fetch(topic, 1, isolation=0, max_wait_ms=20_000)
    assert (found.high_watermark, found.last_stable_offset) == (2, 2), "the marker"
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        late.commit_transaction(20)
    assert caught.value.args[0].fatal()
    assert committed(running.kafka, topic) == []


def test_an_open_transaction_hides_later_records(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    slow, quick = confluent_producer(running.kafka, f"{topic}-1"), confluent_producer(running.kafka, f"{topic}-2")
    slow.begin_transaction()
    slow.produce(topic, b"slow")
    assert slow.flush(20) == 0
    quick.begin_transaction()
    quick.produce(topic, b"quick")
    quick.commit_transaction(20)
    assert committed(running.kafka, topic) == []
    slow.commit_transaction(20)
    assert committed(running.kafka, topic) == [b"slow", b"quick"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_survives_a_killed_server(restartable: Server, topic: str, commit: bool) -> None:
    with Wire(restartable.kafka) as wire:
        wire.create(topic)
    producer = confluent_producer(restartable.kafka, topic)
    producer.begin_transaction()
    producer.produce(topic, b"before")
    assert producer.flush(20) == 0
    restartable.kill()
    restartable.restart()
    assert committed(restartable.kafka, topic) == []
    producer.produce(topic, b"after")
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    assert committed(restartable.kafka, topic) == ([b"before", b"after"] if commit else [])
