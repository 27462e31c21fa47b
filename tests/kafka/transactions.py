"""A transactional producer on the wire, of either version of the protocol."""

from typing import Any

from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from headrace.records.build import build

RETRIED = {Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_ENOUGH_REPLICAS}


class TransactionalProducer:
    """A producer of one transactional id. `version` is that of the protocol: 1, or 2 (KIP-890)."""

    def __init__(self, wire: Wire, transactional_id: str, version: int = 1, timeout_ms: int = 60_000) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def initialize(self, version: int = 4, *, again: bool = False) -> Code:
        """Get a producer id. `again`: with the known one (KIP-360)."""
        while True:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
            )
            if again:
                request.producer_id, request.producer_epoch = self.producer_id, self.epoch
            answer = self.wire.ask(request, version)
            if answer.error_code not in RETRIED:
                break
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return Code(answer.error_code)

    def add(self, *topics: str, partitions: tuple[int, ...] = (0,), version: int = 3) -> dict[tuple[str, int], Code]:
        """AddPartitionsToTxn, again while the previous transaction ends."""
        while True:
            asked = [
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
                for topic in topics
            ]
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=asked,
            )
            answer = self.wire.ask(request, version)
            codes = {
                (topic.name, one.partition_index): Code(one.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            }
            if not RETRIED & set(codes.values()):
                return codes

    def send(self, topic: str, value: bytes, *, partition: int = 0, version: int | None = None) -> Code:
        """Produce one record in a transactional batch."""
        place = topic, partition
        sequence = self.sequences.get(place, 0)
        made = build(
            [(None, value, 1_000, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        code = self.produce(topic, partition, made, (12 if self.version == 2 else 11) if version is None else version)
        if code == Code.NONE:
            self.sequences[place] = sequence + 1
        return code

    def produce(self, topic: str, partition: int, made: Any, version: int) -> Code:
        """Produce a batch."""
        while True:
            data = ProduceRequest.PartitionProduceData(index=partition, records=bytearray(made))
            named = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
            request = ProduceRequest(
                transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=[named]
            )
            [answer] = self.wire.ask(request, version).responses[0].partition_responses
            if answer.error_code not in RETRIED:
                return Code(answer.error_code)

    def end(self, *, commit: bool, version: int | None = None) -> Code:
        """EndTxn. In the second version, the next transaction has another epoch."""
        version = (5 if self.version == 2 else 4) if version is None else version
        while True:
            request = EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            answer = self.wire.ask(request, version)
            if answer.error_code not in RETRIED:
                break
        if answer.error_code == 0 and version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return Code(answer.error_code)

    def add_offsets(self, group: str, version: int = 3) -> Code:
        """AddOffsetsToTxn."""
        while True:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            answer = self.wire.ask(request, version)
            if answer.error_code not in RETRIED:
                return Code(answer.error_code)

    def commit(self, group: str, topic: str, offset: int, *, version: int | None = None, **member: Any) -> Code:
        """TxnOffsetCommit of one partition."""
        while True:
            asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_metadata=""
            )
            named = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[asked])
            request = TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[named],
                **member,
            )
            answer = self.wire.ask(request, (5 if self.version == 2 else 3) if version is None else version)
            [found] = answer.topics[0].partitions
            if found.error_code not in RETRIED:
                return Code(found.error_code)


def begun(wire: Wire, name: str, version: int = 1) -> TransactionalProducer:
    """Return a producer with a producer ID."""
    producer = TransactionalProducer(wire, name, version)
    assert producer.initialize() == Code.NONE
    return producer


def begun_in(wire: Wire, topic: str, name: str) -> TransactionalProducer:
    """Return a producer with an open transaction of one record in a new topic."""
    wire.create(topic)
    producer = begun(wire, name, 2)
    assert producer.send(topic, b"value") == Code.NONE
    return producer
