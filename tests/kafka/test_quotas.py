"""Clients are slowed down as Kafka does it: told for how long, and then not served (KIP-219)."""

import contextlib
import datetime as dt
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, ThrottleEvent
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, fetch_request, produce_request

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterClientQuotasRequest,
    CreateTopicsRequest,
    DescribeClientQuotasRequest,
    MetadataRequest,
)
from headrace.security.tls.files import create
from headrace.testing.inprocess import InProcessServer

Part = AlterClientQuotasRequest.EntityData
Op = AlterClientQuotasRequest.OpData
Component = DescribeClientQuotasRequest.ComponentData
METADATA = MetadataRequest(topics=[], allow_auto_topic_creation=False)
EXACT, DEFAULT, ANY = 0, 1, 2


class Admin(Wire):
    """Sets quotas."""

    def alter(self, entity: dict[str, str | None], validate_only: bool = False, **values: float | None) -> Any:
        """Set quotas of an entity, None takes one away; the answer for it."""
        asked = AlterClientQuotasRequest.EntryData(
            entity=[Part(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()],
            ops=[Op(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        answer = self.ask(AlterClientQuotasRequest(entries=[asked], validate_only=validate_only), 1)
        return answer.entries[0]

    def limit(self, entity: dict[str, str | None], **values: float) -> None:
        """As `alter`, which must go well."""
        answer = self.alter(entity, **values)  # type: ignore[arg-type]
        assert answer.error_code == 0, answer

    def described(self, *components: Component, strict: bool = False, version: int = 1) -> Any:
        """The answer to a question for quotas."""
        return self.ask(DescribeClientQuotasRequest(components=list(components), strict=strict), version)

    def found(self, *components: Component, strict: bool = False) -> dict[str, dict[str, float]]:
        """Quotas by entity, as a text."""
        answer = self.described(*components, strict=strict)
        assert answer.error_code == 0, answer
        return {
            " ".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity): {
                one.key: one.value for one in entry.values
            }
            for entry in answer.entries
        }


@pytest.fixture(scope="module")
def limited() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started


@pytest.fixture
def admin(limited: InProcessServer) -> Iterator[Admin]:
    with Admin(limited.kafka, client_id="admin") as wire:
        yield wire
        # Nobody is limited by what another test has set.
        for entity in wire.described().entries:
            gone = {part.entity_type: part.entity_name for part in entity.entity}
            wire.alter(gone, False, **dict.fromkeys((one.key for one in entity.values), None))


def is_silent(wire: Wire, admin: Wire) -> bool:
    """Whether a connection has no answer, though somebody else who asked later has."""
    for _ in range(3):
        admin.ask(METADATA, 9)
    return wire.is_silent(0.001)


@pytest.mark.parametrize("partitions", [1, 2], ids=["shortcut", "tables"])
def test_a_producer_is_told_to_wait_and_not_served_meanwhile(
    limited: InProcessServer, admin: Admin, partitions: int
) -> None:
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
        # O * W / (W + X) = T with W = 10 s, for the first request of somebody.
        assert answer.throttle_time_ms == round(size - 10_000)
        wire.send(METADATA, 9)
        wire.send(produce_request(name, batch(b"sent ahead")), 9)
        assert is_silent(wire, admin)
        limited.clock.advance(seconds=answer.throttle_time_ms / 1000)
        assert wire.receive().throttle_time_ms == 0
        assert wire.receive().responses[0].partition_responses[0].error_code == 0
    # Others are not slowed down.
    assert admin.ask(produce_request(name, batch(bytes(20_000))), 9).throttle_time_ms == 0


def test_librdkafka_tells_its_user_the_time_it_was_given(limited: InProcessServer, admin: Admin) -> None:
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
        # By then less than all windows have passed, which count all the same: it may be told to wait again.
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
        # 0.11 partitions may be changed at once, and the last change may be larger. Time goes by meanwhile, too.
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


def test_connections_from_an_address_are_made_at_a_rate(limited: InProcessServer, admin: Admin) -> None:
    admin.limit({"ip": "127.0.0.1"}, connection_creation_rate=1)
    made: list[socket.socket] = []
    host, port = limited.kafka.split(":")
    try:
        # Ten at once, or a few more where the time went on meanwhile.
        made += (socket.create_connection((host, int(port)), 10) for _ in range(40))
        limited.clock.advance(seconds=1)
        assert made[-1].recv(1) == b""
    finally:
        for one in made:
            one.close()
    limited.clock.advance(seconds=12)
    with Wire(limited.kafka) as welcome:
        assert welcome.ask(METADATA, 9).brokers


def test_connections_of_everybody_take_their_turns(tmp_path: Path) -> None:
    made = create(tmp_path, (), "jane", dt.datetime.now(dt.UTC))
    with InProcessServer(
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=made.server,
        max_connection_creation_rate=1,
    ) as running:
        with contextlib.ExitStack() as stack:
            # Ten at once, and a few more where the time went on meanwhile; the last one waits.
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


def test_what_is_set_can_be_asked_for(admin: Admin) -> None:
    admin.limit({"user": "jane"}, producer_byte_rate=1_000, request_percentage=12.5)
    admin.limit({"client-id": "app", "user": "jane"}, consumer_byte_rate=7)
    admin.limit({"user": None}, controller_mutation_rate=0.5)
    admin.limit({"ip": "0:0:0:0:0:0:0:1"}, connection_creation_rate=5)
    jane = Component(entity_type="user", match_type=EXACT, match="jane")
    assert admin.found(jane) == {
        "user=jane": {"producer_byte_rate": 1_000, "request_percentage": 12.5},
        "user=jane client-id=app": {"consumer_byte_rate": 7},
    }
    assert list(admin.found(jane, strict=True)) == ["user=jane"]
    assert list(admin.found(Component(entity_type="user", match_type=DEFAULT, match=None))) == ["user=None"]
    anybody = Component(entity_type="user", match_type=ANY, match=None)
    assert list(admin.found(anybody, strict=True)) == ["user=None", "user=jane"]
    assert admin.found(Component(entity_type="ip", match_type=ANY, match=None)) == {
        "ip=::1": {"connection_creation_rate": 5}
    }
    assert len(admin.described(version=0).entries) == 4
    assert admin.alter({"user": "jane"}, producer_byte_rate=None, request_percentage=None).error_code == 0
    assert list(admin.found(jane)) == ["user=jane client-id=app"]
    assert admin.alter({"user": "eve"}, validate_only=True, producer_byte_rate=1).error_code == 0
    assert "user=eve" not in admin.found()


@pytest.mark.parametrize(
    ("entity", "values", "said"),
    [
        ({"user": "jane", "ip": "::1"}, {"producer_byte_rate": 1}, "should not be combined"),
        ({"user": "jane"}, {"producer_byte_rat": 1}, "Invalid configuration key producer_byte_rat"),
        ({"user": "jane"}, {"producer_byte_rate": -1}, "must be greater than 0"),
        ({"user": "j" * 257}, {"producer_byte_rate": 1}, "longer than 256"),
    ],
)
def test_what_cannot_be_set(admin: Admin, entity: dict[str, str | None], values: dict[str, float], said: str) -> None:
    answer = admin.alter(entity, **values)  # type: ignore[arg-type]
    assert answer.error_code == Code.INVALID_REQUEST
    assert said in answer.error_message
    assert admin.found() == {}


@pytest.mark.parametrize(
    ("components", "code", "said"),
    [
        ([Component(entity_type="topic", match_type=ANY, match=None)], Code.UNSUPPORTED_VERSION, "entity type topic"),
        ([Component(entity_type="user", match_type=EXACT, match=None)], Code.INVALID_REQUEST, "match string to null"),
        ([Component(entity_type="user", match_type=7, match=None)], Code.INVALID_REQUEST, "Unknown match type 7"),
        ([Component(entity_type="user", match_type=ANY, match="a")], Code.INVALID_REQUEST, "may have a match string"),
        ([Component(entity_type="", match_type=ANY, match=None)], Code.INVALID_REQUEST, "empty entity type"),
        ([Component(entity_type="user", match_type=ANY, match=None)] * 2, Code.INVALID_REQUEST, "more than once"),
        (
            [Component(entity_type=kind, match_type=ANY, match=None) for kind in ("user", "ip")],
            Code.INVALID_REQUEST,
            "should not be used with user",
        ),
    ],
)
def test_what_cannot_be_asked(admin: Admin, components: list[Component], code: Code, said: str) -> None:
    answer = admin.described(*components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert said in answer.error_message
