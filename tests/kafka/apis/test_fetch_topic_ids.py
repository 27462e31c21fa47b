"""Fetch by topic ids (reference: KIP-516)."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from tests.harness.wire import NO_ID, Wire, batch, fetch_request, opened

from headrace.kafka.errors import Code
from headrace.protocol.messages import FetchRequest
from headrace.testing import Server

BY_ID = range(13, 19)
LONG_MS = 60_000
MANY = 250
"""Above the partitions of one response that is built at once."""


def values(partition: Any) -> list[bytes | None]:
    return [record.value for record in opened(partition.records)]


@pytest.mark.parametrize("version", BY_ID)
def test_an_id_stands_for_its_topic(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"one", b"two"))
    topic_id = wire.topic_id(topic)
    answer = wire.ask(fetch_request([(topic_id, 0, 0)]), version)
    [found] = answer.responses
    assert (found.topic, found.topic_id) == ("", topic_id)
    [partition] = found.partitions
    assert (partition.error_code, partition.high_watermark, partition.log_start_offset) == (0, 2, 0)
    assert values(partition) == [b"one", b"two"]
    assert partition.current_leader is None
    assert answer.node_endpoints == []


@pytest.mark.parametrize("version", BY_ID)
def test_an_unknown_id_is_an_error_of_its_partitions_at_once(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"x"))
    known, unknown = wire.topic_id(topic), uuid4()
    places = [(unknown, 0, 0), (known, 0, 0), (unknown, 1, 0), (NO_ID, 0, 0)]
    asked = fetch_request(places, max_wait_ms=LONG_MS, min_bytes=10_000_000)
    began = time.monotonic()
    answer = wire.ask(asked, version)
    assert time.monotonic() - began < LONG_MS / 2_000
    codes = {each.topic_id: [one.error_code for one in each.partitions] for each in answer.responses}
    assert codes == {unknown: [Code.UNKNOWN_TOPIC_ID] * 2, known: [0], NO_ID: [Code.UNKNOWN_TOPIC_ID]}
    assert {one.high_watermark for each in answer.responses if each.topic_id != known for one in each.partitions} == {
        -1
    }


def test_a_topic_of_the_same_name_has_another_id(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"old"))
    old = wire.topic_id(topic)
    wire.delete(topic)
    wire.create(topic)
    wire.produce(topic, batch(b"new"))
    answer = wire.ask(fetch_request([(old, 0, 0), (wire.topic_id(topic), 0, 0)]), 18)
    first, second = (each.partitions[0] for each in answer.responses)
    assert first.error_code == Code.UNKNOWN_TOPIC_ID
    assert not first.records
    assert values(second) == [b"new"]


def test_an_unknown_partition_of_a_known_id(wire: Wire, topic: str) -> None:
    wire.create(topic)
    [found] = wire.ask(fetch_request([(wire.topic_id(topic), 7, 0)]), 18).responses
    assert found.partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_by_id_waits_for_records(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    topic_id = wire.topic_id(topic)
    with Wire(running.kafka) as waiting, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(waiting.ask, fetch_request([(topic_id, 0, 0)], max_wait_ms=LONG_MS), 18)
        wire.produce(topic, batch(b"later"), version=13)
        assert values(answer.result().responses[0].partitions[0]) == [b"later"]


def test_many_partitions_by_id(wire: Wire, topic: str) -> None:
    wire.create(topic, MANY)
    wire.produce(topic, batch(b"last"), partition=MANY - 1)
    topic_id, unknown = wire.topic_id(topic), uuid4()
    places = [*((topic_id, index, 0) for index in range(MANY)), *((unknown, index, 0) for index in range(MANY))]
    found = {each.topic_id: each.partitions for each in wire.ask(fetch_request(places), 18).responses}
    assert [one.partition_index for one in found[topic_id]] == list(range(MANY))
    assert {one.error_code for one in found[topic_id]} == {0}
    assert values(found[topic_id][-1]) == [b"last"]
    assert [one.error_code for one in found[unknown]] == [Code.UNKNOWN_TOPIC_ID] * MANY


def test_an_epoch_is_checked_by_id(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"x"))
    known = wire.metadata(topic).topics[0]
    epoch = known.partitions[0].leader_epoch
    for given, code in ((epoch, 0), (epoch + 1, Code.UNKNOWN_LEADER_EPOCH)):
        [found] = wire.ask(fetch_request([(known.topic_id, 0, 0)], epoch=given), 18).responses
        assert found.partitions[0].error_code == code


def test_a_response_has_the_ids_of_its_own_request_only(wire: Wire, other: Wire, topic: str) -> None:
    """A Java consumer closes its fetch session by a request without topics, while its last fetch may still wait."""
    wire.create(topic)
    topic_id = wire.topic_id(topic)
    waiting, closing = fetch_request([(topic_id, 0, 0)], max_wait_ms=LONG_MS), fetch_request([])
    closing.session_epoch = -1
    for request in (waiting, closing):
        wire.send(request, 18)
    other.produce(topic, batch(b"one"))
    first, second = wire.receive(), wire.receive()
    assert [(each.topic_id, len(each.partitions)) for each in first.responses] == [(topic_id, 1)]
    assert (second.error_code, second.responses) == (Code.NONE, [])


def test_a_topic_without_partitions_is_not_in_the_response(wire: Wire, topic: str) -> None:
    wire.create(topic)
    request = fetch_request([])
    request.topics = [FetchRequest.FetchTopic(topic_id=each, partitions=[]) for each in (wire.topic_id(topic), uuid4())]
    answer = wire.ask(request, 18)
    assert (answer.error_code, answer.responses) == (Code.NONE, [])
