"""What holds for every request: order, versions, headers, silence (reference: Kafka protocol guide, KIP-511)."""

from typing import Any

import pytest
from tests.harness.raw import RawClient
from tests.harness.wire import Wire, batch, fetch_request, opened, produce_request

from headrace.client.channel import ConnectionEnded
from headrace.kafka import apis
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import APIS
from headrace.protocol.messages import (
    REQUESTS,
    ApiVersionsRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from headrace.testing import Server

apis.load()  # as the listener does


SOFTWARE = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


def test_answers_leave_in_the_order_of_the_requests(wire: Wire, topic: str, running: Server) -> None:
    wire.create(topic)
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=30_000), 12)
    wire.send(SOFTWARE, 3)
    wire.send(produce_request(topic, batch(b"behind")), 9)
    wire.send(MetadataRequest(topics=[]), 12)
    with Wire(running.kafka) as other:
        other.produce(topic, batch(b"it ends"))
    fetched, versions, produced, metadata = (wire.receive() for _ in range(4))
    assert [record.value for record in opened(fetched.responses[0].partitions[0].records)] == [b"it ends"]
    assert versions.error_code == produced.responses[0].partition_responses[0].error_code == 0
    assert metadata.brokers


def test_metadata_after_a_waiting_fetch_is_current_when_it_is_sent(wire: Wire, topic: str, running: Server) -> None:
    wire.create(topic)
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=60_000), 12)
    asked = [MetadataRequest.MetadataRequestTopic(name=f"{topic}-late")]
    wire.send(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12)
    with Wire(running.kafka) as other:
        other.create(f"{topic}-late")
        other.produce(topic, batch(b"it ends"))
    wire.receive()
    assert [found.error_code for found in wire.receive().topics] == [Code.NONE]


def test_many_requests_sent_at_once_are_all_answered(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for number in range(500):
        wire.send(produce_request(topic, batch(b"%d" % number)), 9)
    offsets = [wire.receive().responses[0].partition_responses[0].base_offset for _ in range(500)]
    assert offsets == list(range(500))


def test_a_request_sees_what_those_before_it_did(wire: Wire, topic: str) -> None:
    """A client may send ahead: what it asks for comes after what it has changed, without waiting for the answer."""
    wire.create(topic)
    asked = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    latest = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    for number in range(1, 21):
        asked.committed_offset = number
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[asked])]
        wire.send(OffsetCommitRequest(group_id=topic, topics=topics), 8)
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=topic, topics=None)]
        wire.send(OffsetFetchRequest(groups=groups), 8)
        wire.send(produce_request(topic, batch(b"one")), 9)
        wire.send(ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[latest])]), 7)
        wire.send(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"{topic}-{number}")]), 12)
        wire.send(MetadataRequest(topics=None), 12)
        committed, positions, produced, end, created, all_topics = (wire.receive() for _ in range(6))
        assert committed.topics[0].partitions[0].error_code == created.topics[0].error_code == 0
        assert positions.groups[0].topics[0].partitions[0].committed_offset == number
        assert produced.responses[0].partition_responses[0].base_offset == number - 1
        assert end.topics[0].partitions[0].offset == number
        assert f"{topic}-{number}" in {one.name for one in all_topics.topics}


def test_large_requests_behind_one_under_way(wire: Wire, topic: str) -> None:
    """Frames that do not fit the read buffer are put off like small ones, and what they bring is kept whole."""
    wire.create(topic)
    sent = [bytes([number]) * 400_000 for number in range(8)]
    for value in sent:
        wire.send(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"{topic}-{value[0]}")]), 12)
        wire.send(produce_request(topic, batch(value)), 9)
        wire.send(produce_request(topic, batch(value[:100])), 9)
    for _ in sent:
        assert wire.receive().topics[0].error_code == 0
        assert wire.receive().responses[0].partition_responses[0].error_code == 0
        assert wire.receive().responses[0].partition_responses[0].error_code == 0
    found: list[bytes | None] = []
    while len(found) < 16:
        found += [record.value for record in opened(wire.fetch(topic, len(found)).records)]
    assert found == [part for value in sent for part in (value, value[:100])]


def test_requests_may_come_byte_by_byte(wire: Wire) -> None:
    frame = wire.head(SOFTWARE.API_KEY, 3, 7) + b"".join(SOFTWARE.encode(3))
    for byte in len(frame).to_bytes(4, "big") + frame:
        wire.send_bytes(bytes([byte]))
    assert wire.receive_frame()[:4] == (7).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("key", "version"),
    [(0, 2), (0, 99), (1, 3), (1, 99), (2, 0), (3, 99), (8, 1), (9, 99), (11, 99), (19, 1), (22, 9), (0, -1)],
)
def test_a_version_that_is_not_served_ends_the_connection(wire: Wire, running: Server, key: int, version: int) -> None:
    before = len(running.log())
    wire.send_frame(wire.head(key, version) + bytes(64))
    assert wire.ends()
    running.logged(f"version {version} is not served", before)


def test_acks_0_gets_no_answer_where_nothing_is_to_be_done_either(wire: Wire) -> None:
    wire.send(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[]), 9, answered=False)
    # An answer that the client does not wait for would be taken for that of its next request.
    assert wire.metadata().brokers


@pytest.mark.parametrize("version", [0, 3, 9])
def test_produce_without_acks_has_no_answer(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    if version >= 3:
        wire.send(produce_request(topic, batch(b"quiet"), acks=0), version, answered=False)
        assert wire.ask(SOFTWARE, 3).error_code == 0, "the next answer is that of the next request"
        assert [record.value for record in opened(wire.fetch(topic, 0, max_wait_ms=5_000).records)] == [b"quiet"]
    else:
        wire.send_frame(wire.head(0, version) + b"".join(produce_request(topic, batch(b"old")).encode(3))[2:])
        assert wire.ends()


@pytest.mark.parametrize("fault", ["crc", "topic"])
def test_an_error_without_acks_ends_the_connection(wire: Wire, topic: str, running: Server, fault: str) -> None:
    wire.create(topic)
    data = bytearray(batch(b"wrong"))
    if fault == "crc":
        data[-1] ^= 1
    before = len(running.log())
    wire.send(produce_request(topic if fault == "crc" else f"{topic}-gone", bytes(data), acks=0), 9, answered=False)
    with pytest.raises(ConnectionEnded):
        wire.receive_frame()
    running.logged("acks=0", before)


def test_unknown_tagged_fields_are_passed_over(wire: Wire, topic: str) -> None:
    wire.create(topic)
    body = b"".join(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]).encode(12))
    assert body.endswith(b"\x00")
    tagged = body[:-1] + b"\x01" + b"\x63" + b"\x05hello"
    head = wire.head(3, 12, 3)
    assert head.endswith(b"\x00")
    wire.send_frame(head[:-1] + b"\x01\x7f\x02ok" + tagged)
    assert topic.encode() in wire.receive_frame()


@pytest.mark.parametrize("client_id", [None, "", "ein Müller", "x" * 30_000])
def test_client_ids(running: Server, client_id: str | None) -> None:
    with RawClient(running.kafka, client_id=client_id) as client:
        assert client.ask(SOFTWARE, 3).error_code == 0
        assert client.ask(ListGroupsRequest(), 4).error_code == 0


@pytest.mark.parametrize("key", sorted(APIS))
def test_every_version_that_is_offered_is_answered(running: Server, key: int) -> None:
    api = APIS[key]
    # Without acks Produce has no answer.
    not_empty = {SOFTWARE.API_KEY: SOFTWARE, ProduceRequest.API_KEY: ProduceRequest(acks=1)}
    for version in range(max(api.oldest, api.refused_below), api.newest + 1):
        request: Any = not_empty.get(key) or REQUESTS[key]()
        # One connection each: a handshake without a mechanism ends its connection.
        with Wire(running.kafka) as client:
            client.ask(request, version)
