"""Requests from one read of a socket are answered together, with a storage that responds on demand."""

import asyncio
import gc
import warnings
from time import perf_counter
from typing import Any, cast

import pytest
from tests.harness.memory import MemoryLogs, MemoryStorage
from tests.harness.wire import batch, produce_request

from headrace.broker.broker import Broker
from headrace.broker.runtime.scheduler import PACKED_S, TURN_S
from headrace.kafka.server.connection import Connection
from headrace.kafka.server.listener import KafkaListener
from headrace.protocol.headers import encode_request_header
from headrace.protocol.messages import ApiVersionsRequest, ListGroupsRequest, ProduceRequest
from headrace.security.quotas.entities import Entity, Key
from headrace.server import config
from headrace.testing.clock import ManualClock
from headrace.topics.model import Append, PlaceDone


class WaitingLogs(MemoryLogs):
    """Accepts batches; answers at once, or on `answer` if it is `slow`."""

    slow = False

    def place(self, stream: str, append: Append, base_offset: int, done: PlaceDone) -> None:
        super().place(stream, append, base_offset, done)
        if not self.slow:
            self.answer()

    @property
    def ends(self) -> dict[str, int]:
        """The log ends of those that have something."""
        return {stream: log.end for stream, log in self.logs.items() if log.end}


class Recorder:
    """A transport that keeps what is written to it, write by write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.reading = True
        self.closed = False
        self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, chunks: list[bytes]) -> None:
        self.writes.append(b"".join(chunks))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    @property
    def answers(self) -> list[list[int]]:
        """The correlation ids of the answers in each write."""
        found = []
        for written in self.writes:
            ids, at = [], 0
            while at < len(written):
                ids.append(int.from_bytes(written[at + 4 : at + 8], "big"))
                at += 4 + int.from_bytes(written[at : at + 4], "big")
            found.append(ids)
        return found


class Client:
    def __init__(self, storage: WaitingLogs, listener: KafkaListener) -> None:
        self.storage = storage
        self.listener = listener
        self.connection = Connection(listener)
        self.transport = Recorder()
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    def read(self, data: bytes) -> None:
        """The kernel has this for the connection; as much at once as it has room for."""
        while data:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            del buffer
            self.connection.buffer_updated(size)
            data = data[size:]


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    # How long a turn takes says more about what else the machine does.
    monkeypatch.setattr("headrace.kafka.server.in_flight_requests.SLICE_S", 60)
    storage = MemoryStorage()
    logs = storage.logs = WaitingLogs(storage)
    _, configured, _ = config.load({"data": None, "redis": None}, [], environ={})
    broker = Broker(
        storage,
        configured,
        ManualClock(1_700_000_000_000),
        cluster_id="test",
        stream_of=lambda name, _, index: f"{name}-{index}",
    )
    await broker.topics.create_if_missing("t", 2)
    return Client(logs, KafkaListener(broker, max_request_bytes=1 << 20))


def frame(request: Any, version: int, number: int, behind: bytes = b"") -> bytes:
    body = encode_request_header(request.API_KEY, version, number, "test")
    body += b"".join(bytes(chunk) for chunk in request.encode(version)) + behind
    return len(body).to_bytes(4, "big") + body


def produce(number: int, *values: bytes, partition: int = 0) -> bytes:
    return frame(produce_request("t", batch(*values), partition=partition), 9, number)


class Untaking(Recorder):
    """A transport whose client reads nothing, or as much as `taken` says."""

    taken = 0

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes) -> None:
        super().write(data)
        self._connection.pause_writing()

    def writelines(self, chunks: list[bytes]) -> None:
        self.write(b"".join(chunks))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes)) - self.taken


@pytest.mark.parametrize(("each_s", "closed"), [(0, True), (6_000, True), (100_000, False)])
async def test_who_takes_next_to_nothing_while_others_wait_is_closed(client: Client, each_s: int, closed: bool) -> None:
    reads = client.listener.broker.reads
    other = Client(client.storage, client.listener)
    transport = other.transport = Untaking(other.connection)
    other.connection.connection_made(cast("asyncio.Transport", transport))
    other.read(frame(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3, 1) * 1_600)
    reads.limit = reads.used
    assert reads.used > 400_000
    # A reader waits from now on.
    waiting = asyncio.ensure_future(reads.acquire(1 << 20))
    clock = cast("ManualClock", client.listener.broker.clock)
    for _ in range(13):
        await asyncio.sleep(0)
        clock.advance(1_000)
        transport.taken += min(each_s, transport.get_write_buffer_size())
        if not transport.get_write_buffer_size():
            other.connection.resume_writing()
    assert (transport.aborted, waiting.done()) == (closed, not closed)
    waiting.cancel()
    other.connection.connection_lost(None)


async def test_small_unread_answers_stay_in_their_budget(client: Client) -> None:
    reads = client.listener.broker.reads
    reads.limit = 2 << 20
    asked = frame(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3, 1)
    others = []
    for _ in range(40):
        other = Client(client.storage, client.listener)
        other.transport = Untaking(other.connection)
        other.connection.connection_made(cast("asyncio.Transport", other.transport))
        other.read(asked * 400)
        await asyncio.sleep(0)  # the next one's bytes come in a turn of their own
        if other.transport.aborted:
            other.connection.connection_lost(None)
        else:
            others.append(other)
    assert 5 < len(others) < 40
    assert reads.used == sum(len(data) for each in others for data in each.transport.writes) <= reads.limit
    others.pop().connection.resume_writing()
    for other in others:
        other.connection.connection_lost(None)
    assert reads.used == 0


async def test_a_closed_connection_ends_though_its_client_takes_nothing(client: Client) -> None:
    other = Client(client.storage, client.listener)
    for each in (client, other):
        each.connection.close("idle", expected=True)
        assert each.transport.closed
        assert not each.transport.aborted
    other.connection.connection_lost(None)
    clock = cast("ManualClock", client.listener.broker.clock)
    clock.advance(10_000)
    assert client.transport.aborted
    assert not other.transport.aborted


async def test_one_read_is_one_write(client: Client) -> None:
    client.read(produce(1, b"a") + produce(2, b"b", partition=1) + produce(3, b"c"))
    assert client.transport.answers == [[1, 2, 3]]
    client.read(produce(4, b"d"))
    assert client.transport.answers == [[1, 2, 3], [4]]


async def test_several_partitions_in_one_request(client: Client) -> None:
    both = [ProduceRequest.PartitionProduceData(index=index, records=batch(b"x")) for index in (0, 1)]
    request = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=both)]
    )
    client.read(frame(request, 9, 1))
    assert client.storage.ends == {"t-0": 1, "t-1": 1}
    assert client.transport.answers == [[1]]


async def test_in_a_crowd_what_is_not_urgent_waits_and_nothing_overtakes_it(client: Client) -> None:
    client.listener.broker.lane.begin_turn(perf_counter() - 2 * TURN_S)
    client.read(produce(1, b"a") + frame(ListGroupsRequest(), 4, 2) + produce(3, b"b"))
    assert client.transport.answers == [[1]]
    while len(client.transport.answers) < 2:
        await asyncio.sleep(0)
    assert [number for written in client.transport.answers for number in written] == [1, 2, 3]
    assert client.storage.ends == {"t-0": 2}
    assert client.transport.reading


async def test_a_large_crowd_is_served_one_request_of_each_at_a_time(client: Client) -> None:
    client.listener.broker.lane.begin_turn(perf_counter() - 2 * PACKED_S)
    client.read(produce(1, b"a") + produce(2, b"b") + produce(3, b"c"))
    assert client.transport.answers == [[1]]
    while len(client.transport.answers) < 2:
        await asyncio.sleep(0)
    assert client.transport.answers == [[1], [2, 3]]


async def test_in_a_large_crowd_what_names_more_than_one_partition_waits_and_nothing_overtakes_it(
    client: Client,
) -> None:
    client.listener.broker.lane.begin_turn(perf_counter() - 2 * PACKED_S)
    # A byte behind it is passed over, but no plain request has one.
    client.read(frame(produce_request("t", batch(bytes(2_000))), 9, 1, behind=b"\0"))
    client.read(produce(2, b"b"))
    assert client.transport.answers == []
    while not client.transport.answers:
        await asyncio.sleep(0)
    assert client.transport.answers == [[1, 2]]
    assert client.transport.reading


async def test_a_waiting_request_that_cannot_be_served_gets_an_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the end of the connection, as where one that did not wait cannot."""
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    client.listener.broker.lane.begin_turn(perf_counter() - 2 * TURN_S)
    client.read(frame(ListGroupsRequest(), 4, 1))
    monkeypatch.setattr(Connection, "_serve", lambda *_, **__: 1 // 0)
    while not failed:
        await asyncio.sleep(0)
    assert client.transport.aborted


async def test_a_read_without_appends_is_answered_likewise(client: Client) -> None:
    client.read(frame(ApiVersionsRequest(), 0, 1))
    assert client.transport.answers == [[1]]


async def test_a_frame_in_pieces_is_served_when_it_is_there(client: Client) -> None:
    large = produce(1, bytes(400_000))
    client.read(large[:3])
    client.read(large[3:20])
    client.read(large[20:-1])
    assert client.storage.ends == {}
    client.read(large[-1:] + produce(2, b"b"))
    assert client.transport.answers == [[1], [2]]
    assert client.storage.ends == {"t-0": 2}


async def test_requests_that_depend_on_an_append_follow_it(client: Client) -> None:
    client.storage.slow = True
    client.read(produce(1, b"a") + frame(ListGroupsRequest(), 4, 2) + produce(3, b"b"))
    # Put off, since the client may count on having its records stored first.
    assert client.transport.answers == []
    assert len(client.storage.waiting) == 1
    assert not client.transport.reading
    client.storage.slow = False
    client.storage.answer()
    while not client.transport.reading:
        await asyncio.sleep(0)
    assert [number for written in client.transport.answers for number in written] == [1, 2, 3]
    assert client.storage.ends == {"t-0": 2}
    assert client.transport.reading


@pytest.mark.parametrize("limited", [False, True])
async def test_a_client_that_is_gone_before_its_request_is_begun_leaves_nothing_behind(
    client: Client, limited: bool
) -> None:
    if limited:
        client.listener.broker.quotas.take({Entity((("user", None),)): {Key.REQUESTS: 100.0}})
    with warnings.catch_warnings(record=True) as told:
        # Only these: the collector also finds sockets that clients of other tests have left.
        warnings.simplefilter("always", RuntimeWarning)
        client.read(frame(ListGroupsRequest(), 4, 1))
        client.connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
    assert [str(warning.message) for warning in told] == []


async def test_answers_that_come_later_leave_in_order_and_together(client: Client) -> None:
    client.storage.slow = True
    client.read(produce(1, b"a") + produce(2, b"b"))
    client.read(produce(3, b"c"))
    assert len(client.storage.waiting) == 3
    assert client.transport.answers == []
    client.storage.answer()
    await asyncio.sleep(0)
    assert client.transport.answers == [[1, 2, 3]]


async def test_a_refused_batch_among_others(client: Client) -> None:
    broken = bytearray(produce(2, b"b"))
    broken[-10] ^= 1
    client.read(produce(1, b"a") + bytes(broken) + produce(3, b"c"))
    assert client.transport.answers == [[1, 2, 3]]
    assert client.storage.ends == {"t-0": 2}


async def test_requests_before_garbage_are_stored(client: Client) -> None:
    client.read(produce(1, b"a") + b"\xff\xff\xff\xff")
    assert client.transport.closed
    assert client.storage.ends == {"t-0": 1}
