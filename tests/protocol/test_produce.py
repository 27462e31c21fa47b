"""The shortcut for plain Produce requests, held against the message tables."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.wire import batch

from headrace.protocol import produce
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import decode_request_header, encode_request_header, encode_response_header
from headrace.protocol.messages import ProduceRequest, ProduceResponse
from headrace.records.errors import BatchError
from headrace.records.fallback.header import check

VERSIONS = range(3, 14)
IDS_FROM = 13
Topic, Partition = ProduceRequest.TopicProduceData, ProduceRequest.PartitionProduceData

mostly = st.sampled_from
names = st.text(st.characters(codec="ascii"), max_size=140) | st.text(max_size=20)
batches = st.builds(
    lambda values, sequence: batch(*values, timestamp=1_000, producer_id=7, producer_epoch=0, base_sequence=sequence),
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.integers(0, 2**31 - 1),
)
partitions = st.builds(
    Partition, index=st.integers(-1, 5), records=batches | batches | batches | st.binary(max_size=300) | st.none()
)
topics = st.builds(
    Topic,
    name=names,
    topic_id=st.uuids(),
    partition_data=st.lists(partitions, min_size=1, max_size=1) | st.lists(partitions, max_size=2),
)
requests = st.builds(
    ProduceRequest,
    transactional_id=mostly([None, None, "", "t", "ö"]) | names,
    acks=mostly([-1, -1, 1, 1, 0, 2]),
    timeout_ms=st.integers(-1, 2**31 - 1),
    topic_data=st.lists(topics, min_size=1, max_size=1) | st.lists(topics, max_size=2),
)
client_ids = mostly([None, "", "rdkafka", "ö"])


def frame(request: ProduceRequest, version: int, client_id: str | None) -> bytes:
    header = encode_request_header(0, version, 77, client_id)
    return header + b"".join(bytes(chunk) for chunk in request.encode(version))


def by_tables(data: bytes) -> Any:
    """What `read` has to say of a plain request, out of the tables; None when it is not plain. Raises DecodeError."""
    key, version, correlation_id, client_id, position = decode_request_header(data, 0)
    if key != 0 or version not in VERSIONS:
        return None
    request = ProduceRequest.decode(data, position, version)
    if request.acks not in {-1, 1} or len(request.topic_data) != 1:
        return None
    (topic,) = request.topic_data
    texts = (client_id or "", topic.name, request.transactional_id or "")
    if len(topic.partition_data) != 1 or not all(text.isascii() for text in texts):
        return None
    (partition,) = topic.partition_data
    if partition.records is None or partition.index < 0:
        return None
    records = bytes(partition.records)
    try:
        header = check(records)
    except BatchError:
        return None
    named = topic.name if version < IDS_FROM else topic.topic_id.bytes
    beside = request.acks, request.timeout_ms, request.transactional_id
    return version, correlation_id, named, partition.index, records, header, *beside


def by_shortcut(data: bytes) -> Any:
    """What the shortcut reads out of the middle of a buffer, the same whether it is its own or not."""
    buffer = bytearray(b"before" + data + b"behind")
    found = produce.read(buffer, 6, 6 + len(data), False)
    owned = produce.read(memoryview(buffer), 6, 6 + len(data), True)
    assert found == owned
    if found is None:
        return None
    assert owned is not None
    assert type(found[4]) is bytearray
    # A copy stays as it is, a view into the frame does not.
    buffer[6:] = bytes(len(data) + 6)
    assert not any(owned[4])
    return *found[:4], bytes(found[4]), *found[5:]


compiled = pytest.mark.skipif(not hasattr(produce, "_produce"), reason="no C extension here")


@compiled
@given(request=requests, version=st.sampled_from(VERSIONS), client_id=client_ids)
def test_what_is_read_is_what_the_tables_say(request: ProduceRequest, version: int, client_id: str | None) -> None:
    data = frame(request, version, client_id)
    assert by_shortcut(data) == by_tables(data)


@compiled
@pytest.mark.parametrize("transactional_id", [None, "", "an id", "i" * 1_024])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_commonest_request_is_read(version: int, transactional_id: str | None) -> None:
    """So that the property above is not one of None alone."""
    records = batch(b"x" * 20_000)
    topic_id = UUID(int=7 << 64)
    topic = Topic(name="t" * 120, topic_id=topic_id, partition_data=[Partition(index=3, records=records)])
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[topic])
    named = "t" * 120 if version < IDS_FROM else topic_id.bytes
    expected = (version, 77, named, 3, records, check(records), -1, 30_000, transactional_id)
    assert by_shortcut(frame(request, version, "rdkafka")) == expected


@pytest.mark.generated
@compiled
@settings(max_examples=1_000)
@given(
    request=requests,
    version=st.sampled_from(VERSIONS),
    change=st.tuples(st.integers(0, 400), st.integers(0, 255)),
    cut=st.integers(0, 400) | st.none(),
    more=mostly([b"", b"", b"\0"]),
)
def test_any_other_bytes_are_left_to_the_tables(
    request: ProduceRequest, version: int, change: tuple[int, int], cut: int | None, more: bytes
) -> None:
    data = bytearray(frame(request, version, "rdkafka"))
    place, value = change
    data[place % len(data)] = value
    found = by_shortcut(bytes(data[:cut]) + more)
    if found is not None:
        # It may leave to the tables what it could have read, but never read what they refuse, or read it differently.
        try:
            assert found == by_tables(bytes(data[:cut]) + more)
        except DecodeError:
            pytest.fail("the tables refuse what the shortcut has read")


@compiled
def test_only_buffers_are_read() -> None:
    with pytest.raises(TypeError):
        produce.read("text", 0, 4, False)  # type: ignore[arg-type]


@compiled
@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 9), (5, 4), (9, 9), (-3, -1)])
def test_nothing_outside_of_the_buffer_is_read(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="no frame"):
        produce.read(b"8 bytes.", start, stop, False)


@pytest.mark.parametrize("accepted", [produce.accepted, produce.plain_accepted])
@given(
    version=st.sampled_from(VERSIONS),
    topic=st.text(min_size=0, max_size=249) | st.text(min_size=120, max_size=130),
    topic_id=st.uuids(),
    partition=st.integers(0, 2**31 - 1),
    offsets=st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1)),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
)
def test_the_answer_is_what_the_tables_say(
    accepted: Callable[..., bytes],
    version: int,
    topic: str,
    topic_id: UUID,
    partition: int,
    offsets: tuple[int, int, int],
    correlation_id: int,
) -> None:
    base_offset, log_append_time, log_start = offsets
    answer = ProduceResponse.PartitionProduceResponse(
        index=partition, base_offset=base_offset, log_append_time_ms=log_append_time, log_start_offset=log_start
    )
    response = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name=topic, topic_id=topic_id, partition_responses=[answer])]
    )
    body = b"".join(bytes(chunk) for chunk in response.encode(version))
    expected = encode_response_header(0, version, correlation_id) + body
    named = topic if version < IDS_FROM else topic_id.bytes
    found = accepted(version, correlation_id, named, partition, *offsets)
    assert found == len(expected).to_bytes(4, "big") + expected


@compiled
@pytest.mark.parametrize("topic", ["a name", b"15 bytes of it.", bytearray(16)])
def test_only_an_id_is_an_id(topic: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        produce.accepted(IDS_FROM, 1, topic, 0, 0, -1, 0)
