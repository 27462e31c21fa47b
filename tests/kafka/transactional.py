"""A server whose coordinator confirms every transaction, and its producers."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.wire import Wire, batches, opened

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
def transactional_server(request: pytest.FixtureRequest) -> Iterator[InProcessServer]:
    """A server whose coordinator confirms every transaction."""
    patch, made = pytest.MonkeyPatch(), LogManager.__init__

    def init(self: LogManager, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._admit = admitted

    patch.setattr(LogManager, "__init__", init)
    with InProcessServer(oci_auth="off", headrace_cache_bytes=request.param) as started:
        yield started
    patch.undo()


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
