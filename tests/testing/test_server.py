import urllib.request
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Server, ServerFailed, server


def send(started: Server, value: bytes) -> None:
    """One record, acknowledged."""
    producer = Producer({"bootstrap.servers": started.kafka, "message.timeout.ms": 60_000})
    failures: list[object] = []
    producer.produce("kept", value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(70) == 0
    assert failures == []


def values(started: Server, count: int) -> list[bytes | None]:
    """The first `count` values of the topic."""
    consumer = Consumer({"bootstrap.servers": started.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("kept", 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


@pytest.fixture
def started(tmp_path: Path) -> Server:
    return Server(tmp_path / "data")


def test_a_restart_keeps_ports_and_records(started: Server) -> None:
    with started:
        addresses = started.kafka, started.http
        send(started, b"one")
        started.restart()
        assert (started.kafka, started.http) == addresses
        send(started, b"two")
        assert values(started, 2) == [b"one", b"two"]


def test_records_survive_kill_of_server_and_storage(started: Server) -> None:
    with started:
        send(started, b"one")
        started.kill()
        assert not started.running
        started.start()
        send(started, b"two")
        started.kill_storage()
        started.kill()
        started.start()
        assert values(started, 2) == [b"one", b"two"]


def test_a_server_on_an_external_storage_leaves_it_running() -> None:
    with server() as owner, redis.Redis.from_url(owner.storage) as link:
        owner.kill()
        with server(redis=owner.storage) as guest:
            assert guest.storage == owner.storage
            send(guest, b"one")
            guest.kill()
        assert link.ping()


def test_http_answers_at_its_address() -> None:
    with server() as one, urllib.request.urlopen(one.http + "/healthz", timeout=60) as answer:
        assert answer.status == 200


def test_a_server_that_is_not_running_has_no_address(started: Server) -> None:
    with pytest.raises(ServerFailed, match="has not been started"):
        _ = started.kafka
    started.stop()
