"""Input that is no request: its connection is closed with a line in the log, and every other one carries on."""

import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Self

import pytest
from tests.harness.raw import RawClient
from tests.harness.wire import Wire, batch, opened, produce_request

from headrace.client.channel import ConnectionEnded
from headrace.kafka import apis
from headrace.kafka.server.registry import APIS
from headrace.protocol.messages import ApiVersionsRequest, MetadataRequest, ProduceRequest
from headrace.testing import Server, server

apis.load()  # as the listener does

SEED = 20_261_121
SOFTWARE = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


class Bystander:
    """Another client, which produces and fetches up to a hundred times a second while others misbehave.

    Not as often as it can: one test waits ten seconds for a repeated line of the log.
    """

    def __init__(self, address: str, topic: str) -> None:
        self._wire = Wire(address)
        self._topic = self._wire.create(topic)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.rounds = 0
        self.failure: BaseException | None = None

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.01):
                placed = self._wire.produce(self._topic, batch(b"%d" % self.rounds))
                assert (placed.error_code, placed.base_offset) == (0, self.rounds)
                found = opened(self._wire.fetch(self._topic, self.rounds).records)
                assert [record.value for record in found] == [b"%d" % self.rounds]
                self.rounds += 1
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._wire.close()

    def check(self) -> None:
        """Raise what went wrong; wait for one more round."""
        rounds = self.rounds
        while self.rounds <= rounds and self.failure is None:
            self._thread.join(0.001)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def bystander(running: Server, topic: str) -> Iterator[Bystander]:
    with Bystander(running.kafka, topic) as busy:
        yield busy
        busy.check()
        assert busy.rounds


def frame(body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">i", len(body) if length is None else length) + body


def head(key: int, version: int, client: bytes = b"\x00\x03raw") -> bytes:
    return struct.pack(">hhi", key, version, 1) + client


METADATA = b"".join(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")]).encode(1))
PRODUCE = b"".join(produce_request("t", batch(b"x")).encode(8))

EMPTY = [ProduceRequest.PartitionProduceData(index=number, records=None) for number in range(1_000)]
PRODUCE_NOTHING = b"".join(
    ProduceRequest(
        acks=1, timeout_ms=1_000, topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=EMPTY)]
    ).encode(8)
)

ENDS: dict[str, tuple[bytes, str]] = {
    "frame over the limit": (struct.pack(">i", 2**31 - 1), "socket.request.max.bytes"),
    "frame just over the limit": (struct.pack(">i", (4 << 20) + 1), "socket.request.max.bytes"),
    "negative size": (struct.pack(">i", -1), "a frame of -1 bytes"),
    "most negative size": (struct.pack(">i", -(2**31)), "a frame of"),
    "size 0": (struct.pack(">i", 0), "a frame of 0 bytes"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "a frame of"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "this looks like TLS"),
    "a header cut off": (frame(b"\x00\x03\x00"), "malformed"),
    "a client id longer than the frame": (frame(head(3, 1, b"\x7f\xff")), "malformed"),
    "a client id of negative length": (frame(head(3, 1, b"\xff\xf0raw")), "malformed"),
    "a client id that is no UTF-8": (frame(head(3, 1, b"\x00\x02\xff\xfe") + METADATA), "malformed"),
    "no body": (frame(head(3, 1)), "malformed"),
    "a body cut off": (frame(head(3, 1) + METADATA[:-1]), "malformed"),
    "an array longer than the frame": (frame(head(3, 1) + struct.pack(">i", 2**31 - 1)), "malformed"),
    "an array of negative length": (frame(head(3, 1) + struct.pack(">i", -7)), "malformed"),
    "a string longer than the frame": (frame(head(3, 1) + struct.pack(">ih", 1, 32_767)), "malformed"),
    "records longer than the frame": (frame(head(0, 8) + PRODUCE[:-70]), "malformed"),
    "very many partitions without a batch": (frame(head(0, 8) + PRODUCE_NOTHING), "more elements than a message may"),
    "an endless varint": (frame(head(3, 12) + b"\x00" + b"\xff" * 40), "malformed"),
    "unknown API": (frame(head(9_999, 0)), "API key 9999"),
    "negative API": (frame(head(-1, 0)), "API key -1"),
    "an API of brokers among themselves": (frame(head(4, 0)), "API key 4"),
    "unsupported version": (frame(head(3, 1_000) + b"\x00"), "version 1000 is not served"),
}


@pytest.mark.parametrize("fault", sorted(ENDS))
def test_an_invalid_request_ends_its_connection(running: Server, bystander: Bystander, fault: str) -> None:
    data, reason = ENDS[fault]
    before = len(running.log())
    with RawClient(running.kafka) as client:
        client.send_bytes(data)
        assert client.ends()
    running.logged(reason, before)
    bystander.check()


def test_answers_before_the_fault_still_arrive(running: Server, bystander: Bystander, topic: str) -> None:
    with Wire(running.kafka) as client:
        client.create(f"{topic}-own")
        client.send(SOFTWARE, 3)
        client.send(produce_request(f"{topic}-own", batch(b"x")), 9)
        client.send(MetadataRequest(topics=[]), 12)
        client.send_bytes(ENDS["a body cut off"][0])
        assert client.receive().error_code == 0
        assert client.receive().responses[0].partition_responses[0].base_offset == 0
        assert client.receive().brokers
        with pytest.raises(ConnectionEnded):
            client.receive_frame()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 12, 30])
def test_a_request_that_stops_in_the_middle(running: Server, bystander: Bystander, cut: int) -> None:
    with RawClient(running.kafka) as client:
        client.send_bytes(frame(head(3, 1) + METADATA)[:cut])
    bystander.check()


def test_a_large_request_that_stops_in_the_middle(running: Server, bystander: Bystander) -> None:
    for _ in range(5):
        with RawClient(running.kafka) as client:
            client.send_bytes(frame(head(0, 8) + bytes(1_000_000), 4 << 20))
    bystander.check()


def test_a_connection_that_is_reset(running: Server, bystander: Bystander) -> None:
    for _ in range(5):
        with RawClient(running.kafka) as client:
            client.send(MetadataRequest(topics=None), 12)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    bystander.check()


def test_a_client_that_does_not_read_its_answers(running: Server, bystander: Bystander) -> None:
    """It is read from no more once much is waiting for it; others do not notice."""
    many = frame(head(18, 0)) * 1_000_000
    with RawClient(running.kafka, timeout_s=0.5) as client, pytest.raises(TimeoutError):
        client.send_bytes(many)
    bystander.check()


@pytest.fixture
def flooded(topic: str) -> Iterator[tuple[Server, Bystander]]:
    """A server for tests whose client uses up its share of the log: others look for their lines there."""
    with server() as started, Bystander(started.kafka, topic) as busy:
        yield started, busy


def test_random_bytes(flooded: tuple[Server, Bystander]) -> None:
    """Whatever comes, an answer or the end of the connection follows, and the server stays."""
    running, bystander = flooded
    chance = random.Random(SEED)
    before = len(running.log())
    for _ in range(150):
        with RawClient(running.kafka, timeout_s=0.02) as client:
            body = chance.randbytes(chance.randrange(1, 200))
            client.send_bytes(frame(body) if chance.random() < 0.7 else body)
            try:
                client.receive_frame()
            except (ConnectionEnded, TimeoutError):
                continue
    bystander.check()
    assert "Traceback" not in running.log()[before:]
    assert "request failed" not in running.log()[before:]


def test_requests_with_random_bodies(flooded: tuple[Server, Bystander]) -> None:
    running, bystander = flooded
    chance = random.Random(SEED)
    before = len(running.log())
    for _ in range(300):
        api = APIS[chance.choice(sorted(APIS))]
        version = chance.randrange(max(api.oldest, api.refused_below), api.newest + 1)
        with RawClient(running.kafka, timeout_s=0.02) as client:
            tags = b"\x00" if chance.random() < 0.5 else b""
            small = bytes(chance.choice((0, 0, 0, 1, 2, 3, 255)) for _ in range(chance.randrange(0, 60)))
            client.send_bytes(frame(head(api.key, version) + tags + small))
            try:
                client.receive_frame()
            except (ConnectionEnded, TimeoutError):
                continue
    bystander.check()
    assert "request failed" not in running.log()[before:], "the server's own fault, not the client's"
