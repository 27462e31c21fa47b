"""Whatever bytes arrive, decoding gives a message or a DecodeError."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.protocol import messages
from headrace.protocol.errors import DecodeError, UnsupportedVersionError
from headrace.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchResponse,
    JoinGroupRequest,
    MetadataRequest,
    ProduceRequest,
    SaslHandshakeRequest,
)
from headrace.protocol.notation import MessageTable
from headrace.protocol.wire import varint

FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)

CASES = [
    pytest.param(table, version, id=f"{table.root.name}-{version}")
    for table in messages.TABLES
    for version in range(table.versions.low, table.versions.high + 1)
]


def every_byte(encoded: bytes) -> range:
    """Positions in a message: all of a short one, a few hundred of a long one."""
    return range(0, len(encoded), 1 + len(encoded) // 300)


@pytest.mark.parametrize(("table", "version"), CASES)
def test_refuses_prefixes_and_trailing_bytes(table: MessageTable, version: int, messages_of: Any) -> None:
    """A response ends exactly where its bytes end; what follows a request is passed over, as Kafka does."""
    cls = getattr(messages, table.root.name)

    @FEW
    @given(messages_of(table, version))
    def refuses(message: Any) -> None:
        encoded = b"".join(message.encode(version))
        for stop in every_byte(encoded):
            with pytest.raises(DecodeError):
                cls.decode(encoded[:stop], 0, version)
        if table.root.name.endswith("Request"):
            assert cls.decode(encoded + b"\0", 0, version) == cls.decode(encoded, 0, version)
        else:
            with pytest.raises(DecodeError, match="1 bytes left over"):
                cls.decode(encoded + b"\0", 0, version)

    refuses()


@pytest.mark.parametrize(("table", "version"), CASES)
def test_survives_damage(table: MessageTable, version: int, messages_of: Any) -> None:
    """A message with damaged bytes, and plain noise, decode to something that encodes again, or raise DecodeError."""
    cls = getattr(messages, table.root.name)

    def attempt(noise: bytes) -> None:
        try:
            message = cls.decode(noise, 0, version)
        except DecodeError:
            return
        message.encode(version)

    @FEW
    @given(messages_of(table, version), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), st.binary(max_size=80))
    def survives(message: Any, replacement: int, noise: bytes) -> None:
        encoded = b"".join(message.encode(version))
        for place in every_byte(encoded):
            attempt(encoded[:place] + bytes([replacement]) + encoded[place + 1 :])
        attempt(noise)

    survives()


@pytest.mark.parametrize(("table", "version"), CASES)
def test_reads_any_buffer_at_any_position(table: MessageTable, version: int, messages_of: Any) -> None:
    cls = getattr(messages, table.root.name)

    @FEW
    @given(messages_of(table, version), st.binary(max_size=9))
    def reads(message: Any, before: bytes) -> None:
        encoded = before + b"".join(message.encode(version))
        for buffer in (encoded, bytearray(encoded), memoryview(encoded), memoryview(b"xy" + encoded + b"z")[2:-1]):
            assert cls.decode(buffer, len(before), version) == message

    reads()


def tag(number: int, value: bytes) -> bytes:
    return varint(number) + varint(len(value)) + value


def test_skips_unknown_tags() -> None:
    """Next to known ones, in nested structures, in any number, and of any size."""
    unknown = tag(77, b"x" * 300)
    body = b"\x02a\x02b" + b"\x02" + unknown + tag(100_000, b"")

    assert ApiVersionsRequest.decode(body, 0, 3) == ApiVersionsRequest(
        client_software_name="a", client_software_version="b"
    )

    topic = bytes(16) + b"\x02t" + b"\x01" + unknown
    request = b"\x02" + topic + b"\x01\x00" + varint(200) + tag(9, b"y") * 200
    assert [item.name for item in MetadataRequest.decode(request, 0, 12).topics or []] == ["t"]

    response = b"\0\0" + b"\x01" + bytes(4) + b"\x03" + tag(1, (5).to_bytes(8, "big")) + unknown + tag(3, b"\x01")
    assert ApiVersionsResponse.decode(response, 0, 3) == ApiVersionsResponse(
        finalized_features_epoch=5, zk_migration_ready=True
    )


@pytest.mark.parametrize(
    "section",
    [
        tag(1, bytes(7)),
        tag(1, bytes(9)),
        b"\x01\x08" + bytes(3),
        b"\x05\x7f",
        b"\x05" + varint(2**32 - 1),
        b"\x05\xff\xff\xff\xff\x7f",
        b"\x05\xff\xff\xff\xff\xff\x01",
        b"\x05\x80",
    ],
)
def test_refuses_tags_of_a_wrong_size(section: bytes) -> None:
    with pytest.raises(DecodeError):
        ApiVersionsResponse.decode(b"\0\0\x01" + bytes(4) + b"\x01" + section, 0, 3)


def test_records_are_views() -> None:
    """No copy: the records lie in the buffer that was decoded."""
    partition = ProduceRequest.PartitionProduceData(index=3, records=b"r" * 1000)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    for version in (3, 9):
        buffer = bytearray(b"".join(ProduceRequest(topic_data=[topic]).encode(version)))
        records = ProduceRequest.decode(buffer, 0, version).topic_data[0].partition_data[0].records
        assert records is not None
        assert records.obj is buffer
        assert records == b"r" * 1000


def test_null_and_empty_differ() -> None:
    """Metadata asks for all topics with null and for none with an empty list."""
    for version in range(1, 14):
        topics: list[MetadataRequest.MetadataRequestTopic] | None
        for topics in (None, []):
            request = MetadataRequest(topics=topics)
            assert MetadataRequest.decode(b"".join(request.encode(version)), 0, version).topics == topics
    partition = FetchResponse.PartitionData()
    aborted: list[FetchResponse.AbortedTransaction] | None
    for aborted in (None, []):
        partition.aborted_transactions = aborted
        response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[partition])])
        for version in (4, 12):
            decoded = FetchResponse.decode(b"".join(response.encode(version)), 0, version)
            assert decoded.responses[0].partitions[0].aborted_transactions == aborted


def test_does_not_allocate_what_a_count_promises() -> None:
    """A count is held against the bytes that are left before a list grows."""
    tracemalloc.start()
    try:
        for body in (b"\x7f\xff\xff\xff" + bytes(100), b"\x00\x00\x00\x64" + bytes(100), b"\xff\xff\xff\xfe"):
            with pytest.raises(DecodeError, match=r"MetadataRequest\.topics"):
                MetadataRequest.decode(body, 0, 1)
        for body in (varint(2**31) + bytes(100), varint(120) + bytes(100), varint(2**32 - 1)):
            with pytest.raises(DecodeError, match=r"MetadataRequest\.topics"):
                MetadataRequest.decode(body, 0, 9)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff\xff", "mechanism: null or negative"),
        (b"\xff\xfe", "mechanism: null or negative"),
        (b"\x00\x50ab", "mechanism: length 80, but 2 bytes are left"),
        (b"\x00\x01\xff", "utf-8"),
        (b"\x00", "SaslHandshakeRequest v1"),
        (b"", "SaslHandshakeRequest v1"),
    ],
)
def test_says_what_is_wrong(body: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        SaslHandshakeRequest.decode(body, 0, 1)


def test_refuses_null_where_there_is_none() -> None:
    with pytest.raises(DecodeError, match=r"JoinGroupRequest.group_id: null"):
        JoinGroupRequest.decode(b"\0" + bytes(40), 0, 6)


def test_refuses_versions_it_does_not_have() -> None:
    for version in (-1, 14, 2**15):
        with pytest.raises(UnsupportedVersionError):
            ProduceRequest.decode(b"", 0, version)
        with pytest.raises(UnsupportedVersionError):
            ProduceRequest().encode(version)


def test_librdkafkas_request_for_all_topics_is_understood() -> None:
    """Captured from librdkafka 2.16: a count of four bytes where version 12 has one, so three bytes are left over."""
    request = MetadataRequest.decode(bytes.fromhex("00000000010000"), 0, 12)
    assert request.topics is None
    assert request.allow_auto_topic_creation is False


def test_tagged_fields_count_as_elements() -> None:
    """As they take as long: a message may not have more of both together than it is said to."""
    body = b"".join(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")]).encode(12))
    tagged = body[:-1] + varint(5) + b"\x63\0" * 5
    assert MetadataRequest.decode(tagged, 0, 12, 6) == MetadataRequest.decode(body, 0, 12)
    with pytest.raises(DecodeError, match="tagged fields: 1 more elements than a message may have"):
        MetadataRequest.decode(tagged, 0, 12, 5)
