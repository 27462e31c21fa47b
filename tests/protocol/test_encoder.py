"""Chunks, defaults, and values that cannot be written."""

from typing import Any

import msgspec
import pytest

from headrace.protocol.encoder import Encoded, EncodedArray
from headrace.protocol.errors import EncodeError
from headrace.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Chunk,
    FetchResponse,
    HeartbeatRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    Records,
)

BATCHES: list[Chunk] = [b"a" * 100, bytearray(b"b" * 50), memoryview(b"c" * 25)]


def fetch_response(*records: Records | None) -> FetchResponse:
    partitions = [FetchResponse.PartitionData(partition_index=i, records=r) for i, r in enumerate(records)]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 11, 12, 17])
@pytest.mark.parametrize("kind", [list, tuple])
def test_splices_batches_without_copying(version: int, kind: type) -> None:
    """The bytes between the batches are one chunk; the batches themselves are the caller's objects."""
    chunks = fetch_response(kind(BATCHES), b"z" * 300).encode(version)

    assert all(chunk is batch for chunk, batch in zip(chunks[1:4], BATCHES, strict=True))
    assert len(chunks) == (6 if version < 12 else 7)
    whole = b"".join(chunks)
    assert whole == b"".join(fetch_response(b"".join(BATCHES), b"z" * 300).encode(version))


@pytest.mark.parametrize("version", [4, 12])
def test_null_and_empty_records_are_encoded_differently(version: int) -> None:
    response = fetch_response(None, b"", [], ())
    encoded = response.encode(version)
    assert len(encoded) == 1
    decoded = FetchResponse.decode(encoded[0], 0, version)
    assert [partition.records for partition in decoded.responses[0].partitions] == [None, b"", b"", b""]


def test_answers_without_records_are_one_chunk() -> None:
    partition = ProduceResponse.PartitionProduceResponse(base_offset=7)
    topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[partition])
    for version in range(14):
        assert len(ProduceResponse(responses=[topic]).encode(version)) == 1
    assert ApiVersionsRequest().encode(0) == []


def test_has_kafkas_defaults() -> None:
    """Fields not named, and fields the version lacks, are what Kafka's own classes start with."""
    assert ProduceRequest().transactional_id is None
    assert FetchResponse.PartitionData().last_stable_offset == -1
    partition = ProduceResponse.PartitionProduceResponse(log_append_time_ms=5, log_start_offset=6)
    topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[partition])
    old = ProduceResponse.decode(b"".join(ProduceResponse(responses=[topic]).encode(0)), 0, 0)
    assert old.responses[0].partition_responses[0].log_append_time_ms == -1
    assert old.responses[0].partition_responses[0].log_start_offset == -1
    first, second = MetadataResponse(), MetadataResponse()
    first.brokers.append(MetadataResponse.MetadataResponseBroker())
    assert second.brokers == []


def test_writes_tagged_fields_only_when_they_say_something() -> None:
    plain = ApiVersionsResponse().encode(3)
    assert plain == [b"\0\0\x01\0\0\0\0\0"]
    partition = FetchResponse.PartitionData(current_leader=FetchResponse.LeaderIdAndEpoch())
    topic = FetchResponse.FetchableTopicResponse(partitions=[partition])
    without = FetchResponse.FetchableTopicResponse(partitions=[FetchResponse.PartitionData()])
    assert FetchResponse(responses=[topic]).encode(12) == FetchResponse(responses=[without]).encode(12)


@pytest.mark.parametrize(
    "request_",
    [
        HeartbeatRequest(generation_id=2**31),
        HeartbeatRequest(group_id="x" * 40_000),
        HeartbeatRequest(group_id="\ud800"),
        HeartbeatRequest(group_id=None),  # type: ignore[arg-type]
        HeartbeatRequest(generation_id="1"),  # type: ignore[arg-type]
    ],
)
def test_refuses_what_does_not_fit(request_: HeartbeatRequest) -> None:
    with pytest.raises(EncodeError, match="HeartbeatRequest v3"):
        request_.encode(3)


@pytest.mark.parametrize("version", range(14))
def test_what_is_encoded_already_stands_among_what_is_not(version: int) -> None:
    """Whole or in pieces, the message is the same as without."""
    place = MetadataResponse.MetadataResponsePartition(leader_id=3, leader_epoch=1, replica_nodes=[3], isr_nodes=[3])
    first, second = (
        MetadataResponse.MetadataResponseTopic(name=name, partitions=[place] * 3) for name in ("first", "second")
    )
    expected = b"".join(MetadataResponse(topics=[first, second, first]).encode(version))
    part: list[Chunk] = []
    for _ in MetadataResponse.encode_part(first, version, part):
        pass
    kept: Any = Encoded(first, b"".join(part))
    message = MetadataResponse(topics=[kept, second, kept])
    pieces: list[Chunk] = []
    for _ in message.encode_in_pieces(version, pieces):
        pass
    assert b"".join(message.encode(version)) == b"".join(pieces) == expected


@pytest.mark.parametrize("version", range(14))
def test_an_array_that_is_encoded_already_is_the_same(version: int) -> None:
    """Elements that differ in one number, encoded around it; at any depth, and invisible to iteration."""
    place = MetadataResponse.MetadataResponsePartition(
        error_code=5, partition_index=9, leader_id=3, leader_epoch=1, replica_nodes=[0, -1], isr_nodes=[3]
    )
    numbers = [(0, 0), (1, -1), (-1, 7), (1 << 20, 1)]
    before, between, *behind = MetadataResponse.encode_around(place, ("partition_index", "leader_epoch"), version)
    assert len(behind) == (version >= 7), "earlier versions have no epochs"
    data = b"".join(
        before
        + index.to_bytes(4, signed=True)
        + between
        + b"".join(epoch.to_bytes(4, signed=True) + each for each in behind)
        for index, epoch in numbers
    )
    array: Any = EncodedArray(len(numbers), data)
    assert (len(array), list(array)) == (len(numbers), [])
    plain = [msgspec.structs.replace(place, partition_index=index, leader_epoch=epoch) for index, epoch in numbers]
    whole, kept = (
        MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(name="t", partitions=each)] * 2)
        for each in (plain, array)
    )
    expected = b"".join(whole.encode(version))
    pieces: list[Chunk] = []
    for _ in kept.encode_in_pieces(version, pieces):
        pass
    part: list[Chunk] = []
    for _ in MetadataResponse.encode_part(kept.topics[0], version, part):
        pass
    assert b"".join(kept.encode(version)) == b"".join(pieces) == expected
    assert b"".join(part) in expected
