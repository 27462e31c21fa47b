"""Requests that a client sends before it has the answers to those before: served one by one, as by Kafka.

A connection has one request in flight. Only a Produce may follow a Produce that has no answer yet.
"""

import contextlib
import select

import pytest
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, fetch_request, opened, produce_request
from tests.kafka.server.test_timeout_responses import join

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.protocol.message import Message
from headrace.testing import Server

FOR_EVER_MS = 2**31 - 1


def software() -> Message:
    return m.ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


def has_answer(wire: Wire) -> bool:
    return bool(select.select([wire.socket], [], [], 0)[0])


def test_a_produce_waits_for_the_fetch_before_it(wire: Wire, topic: str, running: Server) -> None:
    wire.create(topic)
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=FOR_EVER_MS), 12)
    wire.send(produce_request(topic, batch(b"behind")), 9)
    wire.send(software(), 3)
    assert wire.is_silent(0.3)
    with Wire(running.kafka) as other:
        assert other.produce(topic, batch(b"it ends")).base_offset == 0
    fetched, produced, versions = (wire.receive() for _ in range(3))
    assert [record.value for record in opened(fetched.responses[0].partitions[0].records)] == [b"it ends"]
    assert produced.responses[0].partition_responses[0].base_offset == 1
    assert versions.error_code == 0


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (software(), 3),
        (m.MetadataRequest(topics=[]), 12),
        (m.HeartbeatRequest(group_id="none", generation_id=1, member_id="none"), 4),
        (fetch_request([("none", 0, 0)], max_wait_ms=0), 12),
        (m.ListGroupsRequest(), 4),
        (join("none", member_id="none"), 9),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else "",
)
def test_every_request_waits_for_a_fetch_and_gets_its_answer_behind_it(
    wire: Wire, topic: str, running: Server, request_: Message, version: int
) -> None:
    wire.create(topic)
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=FOR_EVER_MS), 12)
    wire.send(request_, version)
    assert wire.is_silent(0.3)
    with Wire(running.kafka) as other:
        other.produce(topic, batch(b"it ends"))
    assert wire.receive().responses[0].topic == topic
    assert type(wire.receive()).__name__.removesuffix("Response") == type(request_).__name__.removesuffix("Request")


def test_fetches_sent_ahead_wait_one_after_the_other(wire: Wire, topic: str) -> None:
    """librdkafka and others count on `max_wait_ms` of each from when it is served."""
    wire.create(topic)
    for _ in range(3):
        wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=200), 12)
    for left in (True, True, False):
        assert wire.receive().responses[0].partitions[0].records in {None, b""}
        assert not left or not has_answer(wire)


def test_a_join_that_waits_holds_up_the_heartbeats_behind_it(wire: Wire, topic: str, running: Server) -> None:
    with Wire(running.kafka) as other:
        first = other.ask(join(topic), 3)
        wire.send(join(topic), 3)
        beat = m.HeartbeatRequest(group_id=topic, generation_id=1, member_id="nobody")
        wire.send(beat, 4)
        assert wire.is_silent(0.3)
        # The first member joins again, which is what the second one waits for.
        again = other.ask(join(topic, first.member_id), 3)
        assert again.error_code == 0
        joined, beaten = wire.receive(), wire.receive()
        assert (joined.error_code, joined.generation_id) == (0, again.generation_id)
        assert beaten.error_code == Code.UNKNOWN_MEMBER_ID


def test_batches_sent_ahead_are_on_their_way_together(wire: Wire, topic: str) -> None:
    wire.create(topic)
    frames = [produce_request(topic, batch(b"%d" % number)) for number in range(300)]
    for each in frames:
        wire.send(each, 9)
    wire.send(m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)]), 12)
    wire.send(produce_request(topic, batch(b"last")), 9)
    offsets = [wire.receive().responses[0].partition_responses[0].base_offset for _ in frames]
    assert offsets == list(range(300))
    assert wire.receive().topics[0].error_code == 0
    assert wire.receive().responses[0].partition_responses[0].base_offset == 300


def test_an_error_among_batches_sent_ahead_keeps_its_place(wire: Wire, topic: str) -> None:
    wire.create(topic)
    damaged = bytearray(batch(b"damaged"))
    damaged[-1] ^= 1
    sent = [produce_request(topic, batch(b"a")), produce_request(topic, bytes(damaged)),
            produce_request(f"{topic}-none", batch(b"b")), produce_request(topic, batch(b"c"))]  # fmt: skip
    for each in sent:
        wire.send(each, 9)
    codes = [wire.receive().responses[0].partition_responses[0].error_code for _ in sent]
    assert codes == [0, Code.CORRUPT_MESSAGE, Code.UNKNOWN_TOPIC_OR_PARTITION, 0]


def test_without_acks_nothing_is_between_the_answers(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for number in range(100):
        wire.send(produce_request(topic, batch(b"quiet"), acks=0), 9, answered=False)
        wire.send(produce_request(topic, batch(b"told")), 9)
        if not number % 10:
            wire.send(software(), 3)
    offsets, versions = [], 0
    for number in range(100):
        offsets.append(wire.receive().responses[0].partition_responses[0].base_offset)
        if not number % 10:
            versions += wire.receive().error_code == 0
    assert offsets == list(range(1, 200, 2))
    assert versions == 10


def test_large_and_small_requests_behind_one_that_waits_are_served_in_order(
    wire: Wire, topic: str, running: Server
) -> None:
    wire.create(topic)
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=FOR_EVER_MS), 12)
    large, small = bytes(1_000_000), b"s"
    for value in (large, small, large, small):
        wire.send(produce_request(topic, batch(value)), 9)
    wire.send(software(), 3)
    with Wire(running.kafka) as other:
        other.produce(topic, batch(b"it ends"))
    wire.receive()
    assert [wire.receive().responses[0].partition_responses[0].base_offset for _ in range(4)] == [1, 2, 3, 4]
    assert wire.receive().error_code == 0


def test_a_client_that_leaves_after_a_waiting_fetch_blocks_no_other(topic: str, running: Server) -> None:
    with Wire(running.kafka) as other:
        other.create(topic)
        for _ in range(50):
            with Wire(running.kafka) as wire, contextlib.suppress(OSError):
                wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=FOR_EVER_MS), 12)
                wire.send(software(), 3)
        assert other.produce(topic, batch(b"x")).error_code == 0
        wait_for(lambda: other.ask(software(), 3).error_code == 0, "an answer")
