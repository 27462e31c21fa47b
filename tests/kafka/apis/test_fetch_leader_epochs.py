"""A Fetch that waits while its log is recovered gets an error, as in Kafka, instead of new records."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, fetch_request

from headrace.kafka.errors import Code
from headrace.testing import InProcessServer

TOPIC = "t"
WAIT_MS = 30_000


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def server(store: RedisServer) -> Iterator[InProcessServer]:
    with InProcessServer(redis=store.url) as started:
        yield started


@pytest.fixture
def wire(server: InProcessServer) -> Iterator[Wire]:
    with Wire(server.kafka) as client:
        client.create(TOPIC)
        yield client


def leader_epoch(wire: Wire) -> int:
    """Return the announced leader epoch; the announcement comes a moment after the topic is created."""
    found = -1
    while found < 0:
        found = wire.metadata(TOPIC).topics[0].partitions[0].leader_epoch
    return found


def open_anew(store: RedisServer, wire: Wire) -> int:
    """Have the log recovered; return its epoch."""
    before = leader_epoch(wire)
    with redis.Redis.from_url(store.url) as link:
        link.client_kill_filter(_type="normal", skipme=True)
    while (epoch := leader_epoch(wire)) == before:
        """It is opened soon."""
    return epoch


def waited_for(server: InProcessServer, store: RedisServer, wire: Wire, epoch: int) -> Any:
    """Return the response of a Fetch for a record that follows a recovery of the log; `epoch`: the client's."""
    with Wire(server.kafka) as waiting, ThreadPoolExecutor(1) as pool:
        waiting.metadata(TOPIC)
        asked = fetch_request([(TOPIC, 0, 0)], max_wait_ms=WAIT_MS, epoch=epoch)
        answer = pool.submit(waiting.ask, asked, 12)
        open_anew(store, wire)
        while wire.produce(TOPIC, batch(b"x")).error_code:
            """Until the connection is there again."""
        return answer.result().responses[0].partitions[0]


def test_a_client_that_knows_the_epoch_before_is_given_nothing(
    server: InProcessServer, store: RedisServer, wire: Wire
) -> None:
    found = waited_for(server, store, wire, leader_epoch(wire))
    assert found.error_code == Code.FENCED_LEADER_EPOCH
    assert not found.records


def test_a_client_that_knows_none_is_given_the_record(server: InProcessServer, store: RedisServer, wire: Wire) -> None:
    found = waited_for(server, store, wire, -1)
    assert found.error_code == Code.NONE
    assert found.records
