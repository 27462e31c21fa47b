"""What a request counts against quotas: bytes that are fetched, time on the event loop, partitions (KIP-219)."""

import urllib.request

from tests.harness.wire import Wire, batch, fetch_request
from tests.kafka.quota_admin import Admin

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    CreateTopicsRequest,
    MetadataRequest,
)
from headrace.testing.inprocess import InProcessServer

METADATA = MetadataRequest(topics=[], allow_auto_topic_creation=False)


def test_a_consumer_gets_nothing_and_the_time_to_wait(limited: InProcessServer, admin: Admin) -> None:
    admin.create("fetched")
    for _ in range(4):
        admin.produce("fetched", batch(bytes(4_000)))
    admin.limit({"user": None}, consumer_byte_rate=1_000)
    with Wire(limited.kafka, client_id="fetching") as wire:
        first = wire.ask(fetch_request([("fetched", 0, 0)], max_bytes=1 << 20), 12)
        # No more than could be had in all windows, so that it need not wait.
        assert first.throttle_time_ms == 0
        assert 8_000 < len(first.responses[0].partitions[0].records) < 10_000
        second = wire.ask(fetch_request([("fetched", 0, 2)], max_bytes=1 << 20), 12)
        assert second.responses == []
        assert 5_000 < second.throttle_time_ms < 8_000
        # Not all windows have passed by then, but all count: the client may have to wait again.
        while not second.responses:
            assert second.throttle_time_ms > 0
            limited.clock.advance(seconds=second.throttle_time_ms / 1000)
            second = wire.ask(fetch_request([("fetched", 0, 2)], max_bytes=1 << 20), 12)
        assert second.responses[0].partitions[0].records


def test_a_batch_beyond_every_window_is_handed_out_to_who_had_nothing(limited: InProcessServer, admin: Admin) -> None:
    admin.create("enormous")
    admin.produce("enormous", batch(bytes(50_000)))
    admin.limit({"client-id": "enormous"}, consumer_byte_rate=1_000)
    with Wire(limited.kafka, client_id="enormous") as wire:
        answer = wire.ask(fetch_request([("enormous", 0, 0)], max_bytes=1 << 20), 12)
        assert answer.responses[0].partitions[0].records
        assert answer.throttle_time_ms > 35_000


def test_time_on_the_event_loop_is_limited_for_every_request(limited: InProcessServer, admin: Admin) -> None:
    admin.limit({"client-id": None}, request_percentage=0.000_001)
    with Wire(limited.kafka, client_id="busy") as wire:
        assert wire.ask(METADATA, 9).throttle_time_ms == 1_000  # never more than a window, as in Kafka
        wire.send(METADATA, 9)
        limited.clock.advance(seconds=1)
        assert wire.receive().throttle_time_ms > 0
    with urllib.request.urlopen(f"{limited.http}/metrics", timeout=60) as page:
        told = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if "_throttled_" in line)
    assert int(told['headrace_throttled_total{quota="request_percentage"}']) >= 2
    assert float(told['headrace_throttled_seconds_total{quota="request_percentage"}']) >= 2


def created(wire: Wire, name: str, version: int) -> tuple[int, int]:
    """Create a topic of three partitions; the error and the time to wait."""
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=3, replication_factor=-1)
    answer = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), version)
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_partitions_are_created_and_deleted_at_a_rate(limited: InProcessServer, admin: Admin) -> None:
    admin.limit({"client-id": "changing"}, controller_mutation_rate=0.01)
    with Wire(limited.kafka, client_id="changing") as wire:
        # 0.11 partitions may be changed at once, and the last change may be larger. Time passes, too.
        assert created(wire, "changed-1", 7) == (0, 0)
        code, wait_ms = created(wire, "changed-2", 7)
        assert code == Code.THROTTLING_QUOTA_EXCEEDED
        assert 200_000 < wait_ms <= 289_000
        limited.clock.advance(seconds=wait_ms / 1000)
        # Clients from before KIP-599 are not refused: they wait behind it.
        code, wait_ms = created(wire, "changed-2", 5)
        assert code == 0
        assert 200_000 < wait_ms <= 300_000
        limited.clock.advance(seconds=wait_ms / 1000)
        wire.delete("changed-1")
        asked = [MetadataRequest.MetadataRequestTopic(name="changed-by-itself")]
        metadata = wire.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 9)
        assert metadata.topics[0].error_code == 0
        assert metadata.throttle_time_ms > 200_000
