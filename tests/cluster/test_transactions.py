"""Transactions over three brokers: partitions, groups and coordinators on each of them, and kills between the steps."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.cluster.stall import evidence
from tests.cluster.transfers import committed_values
from tests.harness.brokers import Brokers, OverOneRedis, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.cli.commands.transactions import transactions
from headrace.kafka.errors import Code
from headrace.protocol.messages import FindCoordinatorRequest

PARTITIONS = 6
SESSION_S = 6.0
"""Time until a silent broker is declared dead, by default."""
AFTERWARDS_S = 2.0
"""Time that transactions may take after that, until readers see their ends."""


@pytest.fixture
def three() -> Iterator[OverOneRedis]:
    with brokers(3) as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[OverOneRedis]:
    with brokers(3) as running:
        yield running


def coordinator(three: Brokers, node: int, name: str) -> int:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
    (found,) = three.asked(node, lambda wire: wire.ask(request, 4)).coordinators
    node_id: int = found.node_id if found.error_code == Code.NONE else -1
    return node_id


def spread_topic(three: Brokers) -> str:
    """A topic of which each running broker leads partitions."""
    while True:
        topic = three.new_topic(PARTITIONS)
        if {*three.led(topic, PARTITIONS).values()} == {*three.running}:
            return topic


def coordinated_by(three: Brokers, node: int) -> str:
    """A transactional ID with this coordinator."""
    names = (f"id-{uuid4().hex[:8]}" for _ in range(1_000))
    return next(name for name in names if coordinator(three, node, name) == node)


def group_of(three: Brokers, node: int) -> str:
    names = (f"group-{uuid4().hex[:8]}" for _ in range(1_000))
    return next(name for name in names if three.coordinator(1, name) == node)


def producer_of(kafka: str, name: str, **config: object) -> Producer:
    given = {key.replace("_", "."): value for key, value in config.items()}
    settings = {
        "bootstrap.servers": kafka,
        "transactional.id": name,
        "linger.ms": 0,
        "log_level": 0,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 50,
    }
    producer = Producer({**settings, **given})
    producer.init_transactions(30)
    return producer


def send(producer: Producer, topic: str, name: str) -> None:
    """One record to each partition."""
    for partition in range(PARTITIONS):
        producer.produce(topic, name.encode(), partition=partition)
    assert producer.flush(30) == 0


def end(producer: Producer, *, commit: bool) -> None:
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def send_one(producer: Producer, topic: str, name: str) -> None:
    producer.begin_transaction()
    send(producer, topic, name)
    producer.commit_transaction(30)


def read(kafka: str, topic: str, isolation: str = "read_committed") -> list[list[str]]:
    return [[each.decode() for each in log] for log in committed_values(kafka, topic, PARTITIONS, isolation)]


def stable(three: Brokers, topic: str) -> bool:
    """Whether readers of committed records reach the end of each partition."""
    node = three.running[0]
    for partition, leader in three.leaders(node, topic).items():
        if leader not in three.running:
            return False
        with Wire(three.addresses[leader]) as wire:
            ends = [wire.offset(topic, -1, partition=partition, isolation=isolation) for isolation in (0, 1)]
        if any(each.error_code for each in ends) or ends[0].offset != ends[1].offset:
            return False
    return True


@contextmanager
def unblocked(three: Brokers, topic: str) -> Iterator[None]:
    """What a test kills here leaves no reader of committed records behind for long."""
    began = time.monotonic()
    yield
    wait_for(lambda: stable(three, topic), "the last stable offsets")
    taken = time.monotonic() - began
    assert taken <= SESSION_S + AFTERWARDS_S, f"{taken:.1f} s"


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_transaction_has_partitions_and_offsets_of_all_brokers(shared: Brokers, node: int) -> None:
    topic, name = spread_topic(shared), coordinated_by(shared, node)
    assert [coordinator(shared, each, name) for each in shared.running] == [node] * 3
    groups = [group_of(shared, each) for each in (1, 2, 3) for _ in range(2)]
    producer = producer_of(shared.kafka, name)
    for number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        send(producer, topic, f"{number}")
        for group in groups:
            reader = Consumer({"bootstrap.servers": shared.kafka, "group.id": group})
            position = TopicPartition(topic, 0, 10 + number)
            producer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), 30)
            reader.close()
        end(producer, commit=commit)
    wait_for(lambda: stable(shared, topic), "the ends")
    assert read(shared.kafka, topic) == [["0", "2"]] * PARTITIONS
    assert read(shared.kafka, topic, "read_uncommitted") == [["0", "1", "2"]] * PARTITIONS
    for group in groups:
        with Wire(shared.addresses[shared.coordinator(1, group)]) as wire:
            assert wire.committed(group, topic) == 12


@pytest.mark.parametrize("role", ["coordinator", "leader"])
@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_survives_a_killed_broker(three: Brokers, role: str, commit: bool) -> None:
    topic, name = spread_topic(three), coordinated_by(three, 2)
    producer = producer_of(three.kafka, name)
    producer.begin_transaction()
    send(producer, topic, "before")
    killed = 2 if role == "coordinator" else 3
    with unblocked(three, topic):
        three.servers[killed].kill()
        send(producer, topic, "after")
        end(producer, commit=commit)
    wanted = [["before", "after"] if commit else []] * PARTITIONS
    assert read(three.kafka, topic) == wanted
    three.start(killed)
    three.agree([1, 2, 3])
    three.led(topic, PARTITIONS)
    send_one(producer, topic, "later")
    assert read(three.kafka, topic) == [[*each, "later"] for each in wanted]


@pytest.mark.parametrize("role", ["coordinator", "leader"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_survives_a_killed_broker(three: Brokers, role: str, commit: bool) -> None:
    """A leader that is paused has not ended the transaction, so that it remains decided."""
    topic, name = spread_topic(three), coordinated_by(three, 2)
    producer = producer_of(three.kafka, name)
    producer.begin_transaction()
    send(producer, topic, "decided")
    paused = three.servers[3].pid
    os.kill(paused, signal.SIGSTOP)
    try:
        end(producer, commit=commit)
        with unblocked(three, topic):
            if role == "coordinator":
                three.servers[2].kill()
                os.kill(paused, signal.SIGCONT)
            else:
                three.servers[3].kill()
    finally:
        if three.servers[3].running:
            os.kill(paused, signal.SIGCONT)
    assert read(three.kafka, topic) == [["decided"] if commit else []] * PARTITIONS
    send_one(producer, topic, "later")
    assert read(three.kafka, topic) == [["decided", "later"] if commit else ["later"]] * PARTITIONS


def test_the_transaction_of_a_dead_client_is_aborted_by_the_next_coordinator(three: Brokers) -> None:
    topic, name = spread_topic(three), coordinated_by(three, 2)
    producer = producer_of(three.kafka, name, transaction_timeout_ms=2_000, message_timeout_ms=1_900)
    producer.begin_transaction()
    send(producer, topic, "left")
    three.servers[2].kill()
    wait_for(lambda: stable(three, topic), "the abort")
    assert read(three.kafka, topic) == [[]] * PARTITIONS
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(30)
    assert caught.value.args[0].fatal()


def test_a_broker_joins_during_transactions(three: Brokers) -> None:
    topic = spread_topic(three)
    wanted = [node for node in (1, 2, 3) for _ in range(3)]
    names = [coordinated_by(three, node) for node in wanted]
    three.servers[3].stop()
    three.agree([1, 2])
    three.led(topic, PARTITIONS)
    assert {coordinator(three, 1, name) for name in names} <= {1, 2}
    producers = [producer_of(three.kafka, name) for name in names]
    for name, producer in zip(names, producers, strict=True):
        producer.begin_transaction()
        send(producer, topic, name)
    with unblocked(three, topic):
        three.start(3)
        three.agree([1, 2, 3])
        for producer in producers:
            producer.commit_transaction(30)
    assert [coordinator(three, 1, name) for name in names] == wanted
    assert [sorted(each) for each in read(three.kafka, topic)] == [sorted(names)] * PARTITIONS


def test_a_stalled_round_tells_of_its_transactions(shared: OverOneRedis) -> None:
    topic, name = shared.new_topic(2), f"shown-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": shared.kafka, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    producer.flush(30)
    shown = evidence(shared, name, [topic], 2)
    assert "last stable offsets [0, 0], ends [0, 1]" in shown
    assert f"transactional_id='{name}'" in shown
    assert "Ongoing" in shown
    assert f"group {name}: " in shown
    producer.abort_transaction(30)


def test_the_command_line_finds_the_transactions_of_all_brokers(shared: OverOneRedis) -> None:
    topic = shared.new_topic(3)
    names = [coordinated_by(shared, node) for node in (1, 2, 3) for _ in range(3)]
    for number, name in enumerate(names):
        producer = Producer({"bootstrap.servers": shared.kafka, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=number % 3)
        producer.flush(30)

    def headrace(*words: str) -> str:
        result = CliRunner().invoke(transactions, [*words, "--bootstrap", shared.addresses[1]])
        assert result.exit_code == 0, result.output
        return result.output

    listed = {each["transactional_id"]: each for each in json.loads(headrace("list", "--json"))}
    assert listed.keys() >= {*names}
    for number, name in enumerate(names[:6]):
        assert headrace("describe", name).splitlines()[-1].split() == ["partition", f"{topic}-{number % 3}"]
        headrace("abort", name, "--yes")
    for number, name in enumerate(names[6:]):
        producer_id = str(listed[name]["producer_id"])
        headrace("abort", "--topic", topic, "--partition", str(number), "--producer-id", producer_id, "--yes")
    assert "last stable offsets [6, 6, 6], ends [6, 6, 6]" in evidence(shared, topic, [topic], 3)
