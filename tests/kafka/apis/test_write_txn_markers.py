"""Transactions on the wire: produced, ended by an administrator, described, and fetched by both isolation levels."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.harness.wire import Wire, batches, opened
from tests.oci.conftest import Api, new_stream

from headrace.broker.topics.log_manager import LogManager
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DescribeProducersRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
    WriteTxnMarkersRequest,
)
from headrace.records.build import build
from headrace.testing import InProcessServer
from headrace.topics.model import Append


def admitted(topic: str, index: int, append: Append, done: Any) -> None:
    done(1)


@pytest.fixture(scope="module", params=[64 << 20, 0], ids=["memory", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[InProcessServer]:
    """A server whose coordinator confirms every transaction."""
    patch, made = pytest.MonkeyPatch(), LogManager.__init__

    def init(self: LogManager, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._admit = admitted

    patch.setattr(LogManager, "__init__", init)
    with InProcessServer(oci_auth="off", headrace_cache_bytes=request.param) as started:
        yield started
    patch.undo()


@pytest.fixture
def wire(server: InProcessServer) -> Iterator[Wire]:
    with Wire(server.kafka) as client:
        yield client


@pytest.fixture
def api(server: InProcessServer) -> Iterator[Api]:
    made = Api(server.http)
    yield made
    made.close()


class Producer:
    """A transactional producer without a coordinator."""

    def __init__(self, wire: Wire, topic: str, producer_id: int) -> None:
        self.wire = wire
        self.topic = topic
        self.producer_id = producer_id
        self.sequence = 0

    def send(
        self, value: bytes, *, transactional: bool = True, named: str | None = "id", acks: int = -1, epoch: int = 0
    ) -> ProduceResponse.PartitionProduceResponse:
        made = build(
            [(None, value, 1_000, ())],
            producer_id=self.producer_id,
            producer_epoch=epoch,
            base_sequence=self.sequence,
            transactional=transactional,
        )
        data = ProduceRequest.PartitionProduceData(index=0, records=made)
        topic = ProduceRequest.TopicProduceData(name=self.topic, partition_data=[data])
        request = ProduceRequest(transactional_id=named, acks=acks, timeout_ms=30_000, topic_data=[topic])
        answer: ProduceResponse.PartitionProduceResponse
        [answer] = self.wire.ask(request, 9).responses[0].partition_responses
        if answer.error_code == 0:
            self.sequence += 1
        return answer

    def end(self, *, commit: bool, epoch: int = 0) -> Code:
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=self.topic, partition_indexes=[0])
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=self.producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[topic],
            coordinator_epoch=0,
        )
        [result] = self.wire.ask(WriteTxnMarkersRequest(markers=[marker]), 1).markers
        assert (result.producer_id, result.topics[0].name) == (self.producer_id, self.topic)
        return Code(result.topics[0].partitions[0].error_code)

    def described(self) -> tuple[int, int, int]:
        """Epoch, last sequence and start of the open transaction."""
        asked = DescribeProducersRequest.TopicRequest(name=self.topic, partition_indexes=[0])
        [found] = self.wire.ask(DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
        assert found.error_code == 0
        [state] = [each for each in found.active_producers if each.producer_id == self.producer_id]
        return state.producer_epoch, state.last_sequence, state.current_txn_start_offset


def aborted(found: FetchResponse.PartitionData) -> list[tuple[int, int]] | None:
    if found.aborted_transactions is None:
        return None
    return [(each.producer_id, each.first_offset) for each in found.aborted_transactions]


def values(found: FetchResponse.PartitionData) -> list[bytes | None]:
    return [record.value for each in batches(found.records or b"") for record in opened(each)]


def all_of(wire: Wire, topic: str, isolation: int) -> tuple[list[bytes | None], set[tuple[int, int]]]:
    """Every value that a fetch returns, and the aborted transactions that it lists."""
    offset, found, listed = 0, list[bytes | None](), set[tuple[int, int]]()
    while True:
        answer = wire.fetch(topic, offset, isolation=isolation, max_wait_ms=0)
        read = batches(answer.records or b"")
        if not read:
            return found, listed
        for each in read:
            found += [record.value for record in opened(each)]
        listed |= set(aborted(answer) or ())
        last = read[-1]
        offset = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1


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


def test_a_waiting_fetch_lists_what_was_aborted_in_the_meantime(server: InProcessServer, wire: Wire) -> None:
    """Trap 9 (KAFKA-5376)."""
    topic = wire.create("waits")
    producer = Producer(wire, topic, 1)
    with Wire(server.kafka) as consumer, ThreadPoolExecutor(1) as thread:
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
