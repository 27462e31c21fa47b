"""Records that a topic's configuration rejects: the code, and the records that the response lists (KIP-467)."""

import os

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import IncrementalAlterConfigsRequest, ProduceRequest, ProduceResponse
from headrace.records.build import build

Partition = ProduceResponse.PartitionProduceResponse


def made(*keys: bytes | None, codec: int = 0, value: bytes = b"v", sequence: int = -1) -> bytes:
    producer = (77, 0) if sequence >= 0 else (-1, -1)
    rows = [(key, value, 1_700_000_000_000, ()) for key in keys]
    return bytes(build(rows, codec=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence))


@pytest.fixture
def compacted(wire: Wire, topic: str) -> str:
    wire.create(topic, 2, cleanup_policy="compact")
    return topic


def _policy(topic: str, policy: str) -> IncrementalAlterConfigsRequest:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name="cleanup.policy", config_operation=0, value=policy)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[change]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def rejected(answer: Partition, *indexes: int) -> bool:
    return answer.error_code == Code.INVALID_RECORD and [one.batch_index for one in answer.record_errors] == [*indexes]


@pytest.mark.parametrize("codec", range(5))
def test_records_without_key_are_named_and_the_batch_is_not_stored(wire: Wire, compacted: str, codec: int) -> None:
    answer = wire.produce(compacted, made(b"a", None, b"", None, codec=codec))
    assert rejected(answer, 1, 3)
    message = f"Compacted topic cannot accept message without key in topic partition {compacted}-0."
    assert {one.batch_index_error_message for one in answer.record_errors} == {message}
    assert answer.error_message is not None
    assert "2 record errors in total" in answer.error_message
    stored = wire.produce(compacted, made(b"a", b"", codec=codec))
    assert (stored.error_code, stored.base_offset, stored.record_errors) == (0, 0, [])


def test_versions_before_kip_467_get_the_code(wire: Wire, compacted: str) -> None:
    answer = wire.produce(compacted, made(None), version=7)
    assert (answer.error_code, answer.record_errors) == (Code.INVALID_RECORD, [])


def test_several_partitions_of_a_request_are_judged_one_by_one(wire: Wire, compacted: str) -> None:
    data = [
        ProduceRequest.PartitionProduceData(index=index, records=records)
        for index, records in ((0, made(None)), (1, made(b"k")))
    ]
    topic = ProduceRequest.TopicProduceData(name=compacted, partition_data=data)
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5_000, topic_data=[topic])
    first, second = wire.ask(request, 9).responses[0].partition_responses
    assert rejected(first, 0)
    assert (second.error_code, second.base_offset) == (0, 0)


def test_no_sequence_is_used_by_a_rejected_batch(wire: Wire, compacted: str) -> None:
    assert wire.produce(compacted, made(b"k", sequence=0)).base_offset == 0
    assert rejected(wire.produce(compacted, made(None, sequence=1)), 0)
    assert wire.produce(compacted, made(b"k", sequence=1)).base_offset == 1


@pytest.mark.parametrize("codec", [0, 4])
def test_a_large_batch_is_checked_as_well(wire: Wire, compacted: str, codec: int) -> None:
    noise = os.urandom(300_000)
    assert rejected(wire.produce(compacted, made(b"k", None, value=noise, codec=codec)), 1)
    assert wire.produce(compacted, made(b"k", value=noise, codec=codec)).base_offset == 0


def test_checks_begin_and_end_with_the_policy(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert wire.produce(topic, made(None)).error_code == 0
    for policy, code in (("compact", Code.INVALID_RECORD), ("compact,delete", Code.INVALID_RECORD), ("delete", 0)):
        wire.ask(_policy(topic, policy), 1)
        assert wire.produce(topic, made(None)).error_code == code
        assert wire.produce(topic, made(b"k")).error_code == 0
