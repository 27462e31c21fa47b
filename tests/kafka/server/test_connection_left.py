"""Requests of a client that has disconnected: batches with acks=0 are stored, even after a long request."""

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.harness.guarded import ROOT, guarded
from tests.harness.waiting import until, wait_for
from tests.harness.wire import Wire, batch, fetch_request, opened, produce_request

from headrace.broker.logins import Admitted
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.kafka.server import listener as listeners
from headrace.kafka.server.connection import Connection
from headrace.kafka.server.listener import KafkaListener
from headrace.kafka.server.memory_pool import MemoryPool
from headrace.protocol import headers
from headrace.protocol import messages as m
from headrace.protocol.message import Message
from headrace.security.access.principal import Principal
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import InProcessServer

PARTITIONS = 101
"""With that many, a request is appended turn by turn, and delays later ones."""
NAME = "leaving"


def frame(request: Message, version: int = 9) -> bytes:
    body = b"".join([headers.encode_request_header(request.API_KEY, version, 1, NAME), *request.encode(version)])
    return len(body).to_bytes(4, "big") + body


def long(topic: str, acks: int = 0) -> m.ProduceRequest:
    parts = [m.ProduceRequest.PartitionProduceData(index=each, records=batch(b"long")) for each in range(PARTITIONS)]
    named = m.ProduceRequest.TopicProduceData(name=topic, partition_data=parts)
    return m.ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[named])


def short(topic: str, value: bytes, acks: int = 0) -> m.ProduceRequest:
    return produce_request(topic, batch(value), acks=acks)


class Left(InProcessServer):
    """A server whose clients leave."""

    memories: list[MemoryPool]

    def leave(self, made: GeneratedFiles, *sent: Message, says_so: bool = True) -> None:
        """Send requests, and say in the same moment that nothing more comes: only TLS has a word for it."""
        host, port = self.listeners["SSL"].rsplit(":", 1)
        context = ssl.create_default_context(cafile=made.authority)
        with context.wrap_socket(socket.create_connection((host, int(port)), 60), server_hostname="localhost") as link:
            link.sendall(b"".join(map(frame, sent)))
            link.settimeout(0)
            with contextlib.suppress(ssl.SSLError, OSError):
                if says_so:
                    link.unwrap()

    def is_through(self) -> bool:
        """Whether nothing of any request is counted."""
        return not any(memory.used or memory.parked for memory in self.memories)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GeneratedFiles:
    return create(tmp_path_factory.mktemp("made"), (), NAME, dt.datetime.now(dt.UTC))


@pytest.fixture(scope="module")
def server(made: GeneratedFiles) -> Iterator[Left]:
    memories: list[MemoryPool] = []

    def counted(limit: int) -> MemoryPool:
        memories.append(MemoryPool(limit))
        return memories[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listeners, "MemoryPool", counted)
        with Left(
            listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SSL:SSL",
            ssl_keystore_location=made.server,
        ) as running:
            running.memories = memories
            yield running


@pytest.fixture
def wire(server: Left) -> Iterator[Wire]:
    with Wire(server.kafka) as client:
        yield client


@pytest.fixture(params=["log", "native"])
def topic(request: pytest.FixtureRequest, wire: Wire) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    storage = {"headrace_storage": "native"} if request.param == "native" else {}
    return wire.create(name, PARTITIONS, **storage)


def values(wire: Wire, topic: str) -> list[bytes | None]:
    """Of the first partition's records."""
    found: list[bytes | None] = []
    offset = 0
    while records := opened(wire.fetch(topic, offset).records):
        found += [each.value for each in records]
        offset = records[-1].offset + 1
    return found


def test_requests_after_a_long_one_are_stored_in_order(
    server: Left, made: GeneratedFiles, wire: Wire, topic: str
) -> None:
    sent = [b"%d" % number for number in range(100)]
    server.leave(made, long(topic), *(short(topic, each) for each in sent), long(topic), short(topic, b"last"))
    wait_for(lambda: b"last" in values(wire, topic), "the last one")
    assert values(wire, topic) == [b"long", *sent, b"long", b"last"]
    wait_for(server.is_through, "nothing that is counted")


@pytest.mark.parametrize("says_so", [False, True])
def test_so_is_what_was_not_read_when_the_client_left(
    server: Left, made: GeneratedFiles, wire: Wire, topic: str, says_so: bool
) -> None:
    """Event loops drop it where reading was paused."""
    large = bytes(5_000)
    server.leave(made, long(topic), *[short(topic, large)] * 40, short(topic, b"last"), says_so=says_so)
    wait_for(lambda: b"last" in values(wire, topic), "the last one")
    assert values(wire, topic) == [b"long", *[large] * 40, b"last"]
    wait_for(server.is_through, "nothing that is counted")


def test_the_same_after_a_request_with_an_unread_answer(
    server: Left, made: GeneratedFiles, wire: Wire, topic: str
) -> None:
    asked = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    server.leave(made, long(topic, acks=1), asked, short(topic, b"first"), asked, short(topic, b"last"))
    wait_for(lambda: b"last" in values(wire, topic), "the last one")
    assert values(wire, topic) == [b"long", b"first", b"last"]
    wait_for(server.is_through, "nothing that is counted")


def test_what_is_refused_ends_what_is_sent_behind_it_as_ever(server: Left, made: GeneratedFiles, wire: Wire) -> None:
    topic = wire.create("refused", PARTITIONS)
    broken = short(topic, b"broken")
    damaged = bytearray(batch(b"broken"))
    damaged[-1] ^= 1
    broken.topic_data[0].partition_data[0].records = damaged
    server.leave(made, long(topic), short(topic, b"good"), broken, short(topic, b"behind"))
    wait_for(lambda: b"good" in values(wire, topic) and server.is_through(), "nothing that is counted")
    assert values(wire, topic) == [b"long", b"good"]


def test_a_quota_of_who_has_left_keeps_nothing_in_memory(server: Left, made: GeneratedFiles, wire: Wire) -> None:
    topic = wire.create("limited", PARTITIONS)
    part = m.AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=NAME)
    limit = m.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1.0, remove=False)
    entry = m.AlterClientQuotasRequest.EntryData(entity=[part], ops=[limit])
    assert wire.ask(m.AlterClientQuotasRequest(entries=[entry], validate_only=False), 1).entries[0].error_code == 0
    server.leave(made, *(short(topic, b"%d" % number) for number in range(10)))
    # The clock stands.
    wait_for(lambda: values(wire, topic) == [b"%d" % number for number in range(10)], "all of them")
    wait_for(server.is_through, "nothing that is counted")


class Gone:
    """A transport that has ended."""

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True


async def leave(clusters: VirtualClusters, *requests: Message, most: int = 1 << 20) -> None:
    """Send requests as a client that is gone before any other turn of the loop, and wait until they are through.

    `most`: bytes of requests with which the memory is used up.
    """
    listener = KafkaListener(clusters.default, max_request_bytes=1 << 20)
    listener.memory.limit = most
    connection = Connection(listener)
    connection.connection_made(cast("asyncio.Transport", Gone()))
    connection.enter(Admitted(Principal(ROOT), clusters.default), "PLAIN")
    sent = b"".join(map(frame, requests))
    connection.get_buffer(-1)[: len(sent)] = sent
    connection.buffer_updated(len(sent))
    connection.connection_lost(None)
    assert listener.memory.used, "it is counted until it is through"
    await until(lambda: not listener.memory.used)


def test_one_whose_client_leaves_before_its_first_step_is_stored() -> None:
    with guarded() as server, server.connect(ROOT) as wire:
        wire.create("topic", PARTITIONS)
        server.run(leave(server.clusters, long("topic")))
        answer = wire.ask(fetch_request([("topic", index, 0) for index in range(PARTITIONS)]), 12)
        found = [opened(each.records) for topic in answer.responses for each in topic.partitions]
        assert [len(records) for records in found] == [1] * PARTITIONS


def test_what_would_have_an_answer_and_was_not_begun_is_left() -> None:
    """Its producer has none, and sends it again."""
    with guarded() as server, server.connect(ROOT) as wire:
        wire.create("topic", PARTITIONS)
        answered = short("topic", b"answered", acks=1)
        server.run(leave(server.clusters, long("topic"), answered, short("topic", b"last")))
        assert values(wire, "topic") == [b"long", b"last"]


def test_what_was_not_begun_is_left_where_the_memory_is_used_up() -> None:
    """Clients that connect and disconnect would fill it without limit while Redis is paused."""
    with guarded() as server, server.connect(ROOT) as wire:
        wire.create("topic", PARTITIONS)
        server.run(leave(server.clusters, long("topic"), short("topic", b"last"), most=100))
        assert values(wire, "topic") == [b"long"]
