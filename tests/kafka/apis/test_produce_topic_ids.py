"""Produce by topic ids (reference: KIP-516), in requests for one batch and for many."""

from uuid import UUID, uuid4

import pytest
from tests.harness.wire import NO_ID, Wire, batch, opened, produce_request

from headrace.kafka.errors import Code
from headrace.protocol.messages import ProduceRequest
from headrace.testing import Server

TRANSACTIONAL = 0x10
MANY = 120
"""Above the partitions that are appended at once."""


def several(*places: tuple[UUID, int]) -> ProduceRequest:
    """One batch for each topic id and partition."""
    return ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                topic_id=topic_id,
                partition_data=[ProduceRequest.PartitionProduceData(index=index, records=batch(b"%d" % index))],
            )
            for topic_id, index in places
        ],
    )


@pytest.mark.parametrize("version", range(10, 14))
def test_offsets_are_dense_in_newer_versions(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    placed = [wire.produce(topic, batch(*[b"x"] * span), version=version) for span in (1, 3, 1)]
    assert [(one.error_code, one.base_offset, one.log_start_offset) for one in placed] == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 4, 0),
    ]
    assert {one.current_leader for one in placed} == {None}


@pytest.mark.parametrize("topic_id", [NO_ID, UUID(int=5)])
@pytest.mark.parametrize("acks", [-1, 1])
def test_an_unknown_id_is_an_error(wire: Wire, topic_id: UUID, acks: int) -> None:
    answer = wire.ask(produce_request("", batch(b"x"), topic_id=topic_id, acks=acks), 13)
    [found] = answer.responses
    assert found.topic_id == topic_id
    [partition] = found.partition_responses
    assert (partition.error_code, partition.base_offset) == (Code.UNKNOWN_TOPIC_ID, -1)


def test_a_request_for_several_topics(wire: Wire, topic: str) -> None:
    wire.create(topic, 2)
    known, unknown = wire.topic_id(topic), uuid4()
    answer = wire.ask(several((known, 0), (unknown, 0), (known, 1)), 13)
    assert [(each.topic_id, each.partition_responses[0].error_code) for each in answer.responses] == [
        (known, 0), (unknown, Code.UNKNOWN_TOPIC_ID), (known, 0),
    ]  # fmt: skip
    assert [record.value for record in opened(wire.fetch(topic, 0).records)] == [b"0"]


def test_a_request_for_many_partitions(wire: Wire, topic: str) -> None:
    wire.create(topic, MANY)
    topic_id = wire.topic_id(topic)
    answer = wire.ask(several(*((topic_id, index) for index in range(MANY)), (UUID(int=5), 0)), 13)
    codes = [each.partition_responses[0].error_code for each in answer.responses]
    assert codes == [0] * MANY + [Code.UNKNOWN_TOPIC_ID]


def test_an_old_id_takes_no_records_for_a_new_topic(wire: Wire, topic: str) -> None:
    wire.create(topic)
    old = wire.topic_id(topic)
    wire.delete(topic)
    wire.create(topic)
    answer = wire.ask(produce_request("", batch(b"x"), topic_id=old), 13)
    assert answer.responses[0].partition_responses[0].error_code == Code.UNKNOWN_TOPIC_ID
    assert wire.offset(topic, -1).offset == 0


def test_a_native_topic(wire: Wire, topic: str) -> None:
    wire.create(topic, headrace_storage="native")
    assert wire.produce(topic, batch(b"x", b"y"), version=13).error_code == 0
    [found] = wire.ask(several((wire.topic_id(topic), 0)), 13).responses
    assert found.partition_responses[0].error_code == 0


def test_without_a_response_an_unknown_id_ends_the_connection(running: Server) -> None:
    with Wire(running.kafka) as client:
        client.send(produce_request("", batch(b"x"), topic_id=uuid4(), acks=0), 13)
        assert client.ends()


def test_without_records_the_error_is_that_of_the_topic(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for topic_id, code in ((wire.topic_id(topic), Code.INVALID_RECORD), (uuid4(), Code.UNKNOWN_TOPIC_ID)):
        answer = wire.ask(produce_request("", None, topic_id=topic_id), 13)
        assert answer.responses[0].partition_responses[0].error_code == code


@pytest.mark.parametrize("version", [12, 13])
def test_transactional_batches_are_refused_as_in_older_versions(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    sent = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    before = wire.produce(topic, sent, version=9)
    after = wire.produce(topic, sent, version=version)
    assert before.error_code == after.error_code != 0
