"""Clients are throttled as in Kafka: the response has the time, then the channel is muted (KIP-219)."""

import contextlib
import datetime as dt
import socket
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, ThrottleEvent
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, produce_request
from tests.kafka.quota_admin import Admin

from headrace.protocol.messages import (
    MetadataRequest,
)
from headrace.security.tls.files import create
from headrace.testing.inprocess import InProcessServer

METADATA = MetadataRequest(topics=[], allow_auto_topic_creation=False)


def is_silent(wire: Wire, admin: Wire) -> bool:
    """Return whether a connection has no response, although a later request of another one has."""
    for _ in range(3):
        admin.ask(METADATA, 9)
    return wire.is_silent(0.001)


@pytest.mark.parametrize("partitions", [1, 2], ids=["shortcut", "tables"])
def test_a_throttled_producer_is_not_served(limited: InProcessServer, admin: Admin, partitions: int) -> None:
    name = f"produced-{partitions}"
    admin.create(name, partitions)
    admin.limit({"client-id": name}, producer_byte_rate=1_000)
    with Wire(limited.kafka, client_id=name) as wire:
        request = produce_request(name, batch(bytes(20_000)))
        if partitions == 2:
            [topic] = request.topic_data
            topic.partition_data.append(type(topic.partition_data[0])(index=1, records=batch(b"short")))
        size = len(wire.head(request.API_KEY, 9)) + len(b"".join(request.encode(9)))
        answer = wire.ask(request, 9)
        assert [one.error_code for one in answer.responses[0].partition_responses] == [0] * partitions
        # O * W / (W + X) = T with W = 10 s, for the first request of a client.
        assert answer.throttle_time_ms == round(size - 10_000)
        wire.send(METADATA, 9)
        wire.send(produce_request(name, batch(b"sent ahead")), 9)
        assert is_silent(wire, admin)
        limited.clock.advance(seconds=answer.throttle_time_ms / 1000)
        assert wire.receive().throttle_time_ms == 0
        assert wire.receive().responses[0].partition_responses[0].error_code == 0
    # Others are not slowed down.
    assert admin.ask(produce_request(name, batch(bytes(20_000))), 9).throttle_time_ms == 0


def test_librdkafka_reports_the_throttle_time_of_the_response(limited: InProcessServer, admin: Admin) -> None:
    admin.limit({"client_id": "app"}, producer_byte_rate=1_000)
    told: list[ThrottleEvent] = []
    settings: dict[str, Any] = {"bootstrap.servers": limited.kafka, "client.id": "app", "throttle_cb": told.append}
    producer = Producer(settings)
    producer.produce("throttled", bytes(30_000))
    assert producer.flush(60) == 0

    def heard() -> bool:
        producer.poll(0.01)
        return bool(told)

    wait_for(heard, "word of the time")
    # 30 000 bytes at 1 000 a second over ten: 20 s, in seconds here.
    assert 15 < told[0].throttle_time < 25


def test_without_acknowledgements_a_producer_waits_all_the_same(limited: InProcessServer, admin: Admin) -> None:
    admin.create("unacknowledged")
    admin.limit({"user": "ANONYMOUS", "client-id": "unacknowledged"}, producer_byte_rate=1_000)
    with Wire(limited.kafka, client_id="unacknowledged") as wire:
        wire.send(produce_request("unacknowledged", batch(bytes(20_000)), acks=0), 9, answered=False)
        wire.send(METADATA, 9)
        assert is_silent(wire, admin)
        limited.clock.advance(seconds=30)
        assert wire.receive().brokers


def test_connections_from_an_address_are_made_at_a_rate(limited: InProcessServer, admin: Admin) -> None:
    admin.limit({"ip": "127.0.0.1"}, connection_creation_rate=1)
    made: list[socket.socket] = []
    host, port = limited.kafka.split(":")
    try:
        # Ten at once, or a few more if time has passed.
        made += (socket.create_connection((host, int(port)), 10) for _ in range(40))
        limited.clock.advance(seconds=1)
        assert made[-1].recv(1) == b""
    finally:
        for one in made:
            one.close()
    limited.clock.advance(seconds=12)
    with Wire(limited.kafka) as welcome:
        assert welcome.ask(METADATA, 9).brokers


def test_connections_of_all_clients_take_turns(tmp_path: Path) -> None:
    made = create(tmp_path, (), "jane", dt.datetime.now(dt.UTC))
    with InProcessServer(
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=made.server,
        max_connection_creation_rate=1,
    ) as running:
        with contextlib.ExitStack() as stack:
            # Ten at once, and a few more if time has passed; the last one waits.
            early = [stack.enter_context(Wire(running.kafka)) for _ in range(16)]
            assert early[0].ask(METADATA, 9).brokers
            early[-1].send(METADATA, 9)
            assert is_silent(early[-1], early[0])
            running.clock.advance(seconds=10)
            assert early[-1].receive().brokers
            # Those for whom it would take too long are not kept waiting.
            more = [stack.enter_context(Wire(running.kafka)) for _ in range(40)]
            assert more[-1].socket.recv(1) == b""
            host, port = running.listeners["SSL"].split(":")
            secured = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(10)]
            assert secured[-1].recv(1) == b""
        running.clock.advance(seconds=60)
        with Wire(running.kafka) as welcome:
            assert welcome.ask(METADATA, 9).brokers
