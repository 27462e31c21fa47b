"""Transactions on the wire: produced, ended by an administrator, and fetched by both isolation levels."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactional import Producer, aborted, all_of, values
from tests.oci.conftest import Api, new_stream

from headrace.kafka.errors import Code
from headrace.protocol.messages import DescribeProducersRequest
from headrace.testing import InProcessServer


@pytest.fixture
def wire(transactional_server: InProcessServer) -> Iterator[Wire]:
    with Wire(transactional_server.kafka) as client:
        yield client


@pytest.fixture
def api(transactional_server: InProcessServer) -> Iterator[Api]:
    made = Api(transactional_server.http)
    yield made
    made.close()


def test_committed_records_end_at_the_last_stable_offset(wire: Wire) -> None:
    topic = wire.create("stable")
    first, second = Producer(wire, topic, 1), Producer(wire, topic, 2)
    assert first.send(b"a").base_offset == 0
    assert second.send(b"b").base_offset == 1
    assert Producer(wire, topic, 3).send(b"plain", transactional=False).base_offset == 2
    assert (first.described(), second.described()) == ((0, 0, 0), (0, 0, 1))
    for isolation, listed in ((0, None), (1, [])):
        found = wire.fetch(topic, 0, isolation=isolation, max_wait_ms=0)
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 3, 0)
        assert aborted(found) == listed
        assert wire.offset(topic, -1, isolation=isolation).offset == (3 if isolation == 0 else 0)
    assert first.end(commit=False) == Code.NONE
    assert wire.fetch(topic, 0, isolation=1).last_stable_offset == 1
    assert second.end(commit=True) == Code.NONE
    found = wire.fetch(topic, 0, isolation=1)
    assert (found.high_watermark, found.last_stable_offset, aborted(found)) == (5, 5, [(1, 0)])
    assert all_of(wire, topic, 1) == ([b"a", b"b", b"plain"], {(1, 0)}), "a client filters"
    assert all_of(wire, topic, 0) == ([b"a", b"b", b"plain"], set())
    assert first.described() == (0, 0, -1)
    assert wire.offset(topic, -1, isolation=1).offset == 5


def test_a_transaction_is_listed_for_any_of_its_records(wire: Wire) -> None:
    topic = wire.create("listed")
    producer = Producer(wire, topic, 1)
    for value in (b"a", b"b", b"c"):
        producer.send(value)
    producer.end(commit=False)
    for value in (b"d", b"e"):
        producer.send(value)
    producer.end(commit=True)
    for offset in range(7):
        expected = [(1, 0)] if offset <= 3 else []
        found = wire.fetch(topic, offset, isolation=1)
        assert (aborted(found), found.last_stable_offset) == (expected, 7)
    assert aborted(wire.fetch(topic, 7, isolation=1, max_wait_ms=0)) == []


def test_rejections_are_those_of_kafka(wire: Wire) -> None:
    topic = wire.create("rejected")
    producer = Producer(wire, topic, 1)
    assert producer.send(b"a", named=None).error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert producer.send(b"a", transactional=False).error_code == 0, "a plain batch in a request with an id"
    assert producer.send(b"b", acks=1).error_code == 0
    assert producer.send(b"c", transactional=False).error_code == Code.INVALID_TXN_STATE
    assert producer.end(commit=True, epoch=3) == Code.NONE
    assert producer.send(b"d").error_code == Code.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True, epoch=2) == Code.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True, epoch=3) == Code.NONE
    assert wire.fetch(topic, 0).high_watermark == 3, "an end without a transaction appends nothing"


def test_a_native_topic_and_one_that_does_not_exist_have_no_transactions(wire: Wire) -> None:
    topic = wire.create("native", headrace_storage="native")
    assert Producer(wire, topic, 1).send(b"a").error_code == Code.INVALID_RECORD
    assert Producer(wire, topic, 1).end(commit=True) == Code.INVALID_RECORD
    assert Producer(wire, "none", 1).end(commit=True) == Code.UNKNOWN_TOPIC_OR_PARTITION
    for name, code in ((topic, Code.NONE), ("none", Code.UNKNOWN_TOPIC_OR_PARTITION)):
        asked = DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0])
        [found] = wire.ask(DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
        assert (found.error_code, found.active_producers) == (code, [])


def test_a_waiting_fetch_lists_what_was_aborted(transactional_server: InProcessServer, wire: Wire) -> None:
    """Trap 9 (KAFKA-5376)."""
    topic = wire.create("waits")
    producer = Producer(wire, topic, 1)
    with Wire(transactional_server.kafka) as consumer, ThreadPoolExecutor(1) as thread:
        for number in range(20):
            producer.send(b"x")
            offset = 2 * number
            waiting = thread.submit(consumer.fetch, topic, offset, isolation=1, max_wait_ms=10_000)
            assert producer.end(commit=False) == Code.NONE
            found = waiting.result()
            assert (values(found), aborted(found)) == ([b"x"], [(1, offset)])


def test_oci_shows_committed_records_only(api: Api, wire: Wire) -> None:
    ocid, topic = new_stream(api)
    first, second = Producer(wire, topic, 1), Producer(wire, topic, 2)
    for value in (b"a", b"b"):
        first.send(value)
        second.send(value.upper())
    first.end(commit=False)
    second.end(commit=True)
    first.send(b"c")
    first.end(commit=True)
    first.send(b"open")
    Producer(wire, topic, 3).send(b"later", transactional=False)
    assert api.values(ocid, api.cursor(ocid)) == [b"A", b"B", b"c"]
