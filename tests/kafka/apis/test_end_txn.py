"""EndTxn, and transactions from InitProducerId to their end, in both versions of the protocol."""

from collections.abc import Iterator

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactional import all_of, values
from tests.kafka.transactions import TransactionalProducer, begun

from headrace.kafka.errors import Code
from headrace.testing import InProcessServer

VERSIONS = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(scope="module")
def coordinating() -> Iterator[InProcessServer]:
    with InProcessServer(auto_create_topics_enable=False) as started:
        yield started


@pytest.fixture
def wire(coordinating: InProcessServer) -> Iterator[Wire]:
    with Wire(coordinating.kafka) as client:
        yield client


def send(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    if producer.version == 1:
        assert producer.add(topic) == {(topic, 0): Code.NONE}
    assert producer.send(topic, value) == Code.NONE


@VERSIONS
def test_committed_records_appear_and_aborted_ones_do_not(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    producer = begun(wire, topic, version)
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        send(producer, topic, value)
        before = wire.fetch(topic, 0, isolation=1, max_wait_ms=0)
        assert value not in values(before)
        assert producer.end(commit=commit) == Code.NONE
    found = wire.fetch(topic, 0, isolation=1)
    assert found.last_stable_offset == found.high_watermark == 6
    records, listed = all_of(wire, topic, 1)
    assert (records, [first for _, first in listed]) == ([b"a", b"b", b"c"], [2]), "a client filters"


@VERSIONS
def test_a_second_producer_fences_the_first(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    first = begun(wire, topic, version)
    send(first, topic, b"fenced")
    second = begun(wire, topic, version)
    assert second.producer_id == first.producer_id
    assert second.epoch > first.epoch
    assert first.send(topic, b"late") == Code.INVALID_PRODUCER_EPOCH
    assert first.end(commit=True) == Code.PRODUCER_FENCED
    send(second, topic, b"new")
    assert second.end(commit=True) == Code.NONE
    records, listed = all_of(wire, topic, 1)
    assert records == [b"fenced", b"new"]
    assert [offset for _, offset in listed] == [0]


def test_a_batch_needs_its_partition_in_the_transaction(wire: Wire, topic: str) -> None:
    wire.create(topic, 2)
    producer = begun(wire, topic, 1)
    assert producer.send(topic, b"x", version=9) == Code.INVALID_TXN_STATE
    assert producer.add(topic) == {(topic, 0): Code.NONE}
    assert producer.send(topic, b"x", partition=1, version=9) == Code.INVALID_TXN_STATE
    assert producer.send(topic, b"x", partition=1, version=11) == Code.TRANSACTION_ABORTABLE
    assert producer.send(topic, b"x", version=9) == Code.NONE
    assert producer.end(commit=True) == Code.NONE
    assert producer.send(topic, b"late", version=9) == Code.INVALID_TXN_STATE
    assert values(wire.fetch(topic, 0, isolation=1)) == [b"x"]


@pytest.mark.parametrize("version", [9, 11, 12])
def test_a_batch_needs_the_producer_of_its_transactional_id(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    producer = begun(wire, topic, 2 if version == 12 else 1)
    producer.producer_id += 1_000
    assert producer.send(topic, b"x", version=version) == Code.INVALID_PRODUCER_ID_MAPPING
    producer.transactional_id = "unknown"
    assert producer.send(topic, b"x", version=version) == Code.INVALID_PRODUCER_ID_MAPPING
    assert values(wire.fetch(topic, 0)) == []


@VERSIONS
def test_an_end_is_repeated_and_never_contradicted(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    producer = begun(wire, topic, version)
    send(producer, topic, b"x")
    known = producer.producer_id, producer.epoch
    assert producer.end(commit=True) == Code.NONE
    after = producer.producer_id, producer.epoch
    assert after == (known[0], known[1] + (version - 1))
    producer.producer_id, producer.epoch = known
    assert producer.end(commit=True) == Code.NONE
    assert (producer.producer_id, producer.epoch) == after
    producer.producer_id, producer.epoch = known
    assert producer.end(commit=False) == Code.INVALID_TXN_STATE
    assert wire.fetch(topic, 0, isolation=1).high_watermark == 2, "one marker"


def test_an_end_without_a_transaction(wire: Wire, topic: str) -> None:
    producer = begun(wire, topic, 2)
    assert producer.end(commit=True) == Code.INVALID_TXN_STATE
    assert producer.end(commit=False, version=3) == Code.INVALID_TXN_STATE
    epoch = producer.epoch
    assert producer.end(commit=False) == Code.NONE
    assert producer.epoch == epoch + 1
    producer.producer_id += 1_000
    assert producer.end(commit=False) == Code.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", range(6))
def test_versions_of_end_txn(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    producer = begun(wire, topic, 1)
    send(producer, topic, b"x")
    first = producer.epoch
    producer.epoch -= 1
    fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True, version=version) == fenced
    producer.epoch = first
    assert producer.end(commit=True, version=version) == Code.NONE
    assert values(wire.fetch(topic, 0, isolation=1)) == [b"x"]


def test_a_transaction_times_out(wire: Wire, topic: str) -> None:
    wire.create(topic)
    producer = TransactionalProducer(wire, topic, 1, timeout_ms=300)
    assert producer.initialize() == Code.NONE
    send(producer, topic, b"x")
    found = wire.fetch(topic, 1, isolation=0, max_wait_ms=10_000)
    assert found.high_watermark == 2
    assert found.last_stable_offset == 2
    assert producer.end(commit=True) == Code.PRODUCER_FENCED
    assert all_of(wire, topic, 1)[1] == {(producer.producer_id, 0)}


def test_a_deleted_topic_does_not_hold_up_its_transaction(wire: Wire, topic: str) -> None:
    gone = wire.create(f"{topic}-gone")
    wire.create(topic)
    producer = begun(wire, topic, 1)
    for name in (topic, gone):
        send(producer, name, b"x")
    wire.delete(gone)
    assert producer.end(commit=True) == Code.NONE
    assert values(wire.fetch(topic, 0, isolation=1)) == [b"x"]
    send(producer, topic, b"y")
    assert producer.end(commit=True) == Code.NONE
