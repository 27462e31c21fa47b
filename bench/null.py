"""A Kafka broker that does nothing: the ceiling of the load generator and of the loopback, in the same run.

It takes record batches without looking at them and forgets them, and serves logs that are one batch over and over.
With `--relay` it keeps what it gets in memory and hands it on at once, the least that produce-to-consume can take.
It runs as a process of its own, so that it shares the cores with the load generator as a server does:
`python -m bench.null [--relay] [--log RECORDS VALUE_BYTES BATCH_RECORDS CODEC]`.
"""

import argparse
import asyncio
import signal
import socket
from bisect import bisect_right
from struct import Struct
from typing import Any, cast
from uuid import NAMESPACE_DNS, UUID, uuid5

import uvloop

from bench.payloads import batch
from headrace.protocol.headers import decode_request_header, encode_response_header
from headrace.protocol.message import Message
from headrace.protocol.messages import (
    REQUESTS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from headrace.records.batch import peek

# The versions that the server has too: both are spoken to in the same words.
OFFERED: dict[type[Message], tuple[int, int]] = {
    ApiVersionsRequest: (0, 4),
    FetchRequest: (4, 12),
    FindCoordinatorRequest: (0, 4),
    InitProducerIdRequest: (0, 4),
    ListOffsetsRequest: (1, 7),
    MetadataRequest: (0, 12),
    ProduceRequest: (3, 9),
}
HOST = "127.0.0.1"
_SIZE = Struct(">i")
_EARLIEST = -2
_BUFFER = 8 << 20


class Log:
    """One partition: batches that were relayed, or one batch in place of all."""

    def __init__(self, sample: bytes | None, records: int) -> None:
        self.sample = memoryview(sample or b"")
        self.span = peek(sample).span if sample else 0
        self.end = records
        self.ends: list[int] = []
        self.batches: list[bytes] = []

    def append(self, data: memoryview, *, keep: bool) -> int:
        """Take a batch; its base offset."""
        base = self.end
        self.end += peek(data).span
        if keep:
            self.ends.append(self.end)
            self.batches.append(_prefix(base, data) + data[16:])
        return base

    def read(self, offset: int, max_bytes: int) -> list[Any]:
        """Whole batches from the one that holds `offset`, at least one where there is one."""
        chunks: list[Any] = []
        if self.span:
            base, size = offset - offset % self.span, 0
            while base < self.end and (not chunks or size + len(self.sample) <= max_bytes):
                chunks += [_prefix(base, self.sample), self.sample[16:]]
                base, size = base + self.span, size + len(self.sample)
        elif offset < self.end:
            chunks += self.batches[bisect_right(self.ends, offset) :]
        return chunks


def _prefix(base_offset: int, batch: memoryview) -> bytes:
    """The first 16 bytes of a batch, with this base offset."""
    return base_offset.to_bytes(8, "big") + batch[8:16]


class NullBroker:
    """Logs by topic and partition, made when first asked for."""

    def __init__(self, *, partitions: int, relay: bool, sample: bytes | None = None, records: int = 0) -> None:
        self.partitions = partitions
        self.relay = relay
        self.port = 0
        self._sample = sample
        self._records = records
        self._logs: dict[tuple[str, int], Log] = {}
        self.waiting: list[_Held] = []

    def log(self, topic: str, partition: int) -> Log:
        found = self._logs.get((topic, partition))
        if found is None:
            # A whole number of batches: what a consumer counts is what is there.
            found = self._logs[topic, partition] = Log(self._sample, self._records)
        return found

    def answer(self, request: Any) -> Message:
        """The answer to anything but a fetch."""
        match request:
            case ProduceRequest():
                return self._produce(request)
            case ListOffsetsRequest():
                return self._offsets(request)
            case MetadataRequest():
                return self._metadata(request)
            case InitProducerIdRequest():
                return InitProducerIdResponse(producer_id=1, producer_epoch=0)
            case FindCoordinatorRequest():
                found = [
                    FindCoordinatorResponse.Coordinator(key=key, node_id=1, host=HOST, port=self.port)
                    for key in request.coordinator_keys
                ]
                return FindCoordinatorResponse(coordinators=found, node_id=1, host=HOST, port=self.port)
        offered = [
            ApiVersionsResponse.ApiVersion(api_key=kind.API_KEY, min_version=oldest, max_version=newest)
            for kind, (oldest, newest) in OFFERED.items()
        ]
        return ApiVersionsResponse(api_keys=offered)

    def _produce(self, request: ProduceRequest) -> ProduceResponse:
        responses = []
        for topic in request.topic_data:
            answers = []
            for part in topic.partition_data:
                data = cast("memoryview", part.records)
                base = self.log(topic.name, part.index).append(data, keep=self.relay)
                answers.append(ProduceResponse.PartitionProduceResponse(index=part.index, base_offset=base))
            responses.append(ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceResponse(responses=responses)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = [
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index,
                    offset=0 if part.timestamp == _EARLIEST else self.log(topic.name, part.partition_index).end,
                    leader_epoch=0,
                )
                for part in topic.partitions
            ]
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
            )
            for index in range(self.partitions)
        ]
        topics = [
            MetadataResponse.MetadataResponseTopic(name=name, topic_id=_id_of(name), partitions=partitions)
            for name in (topic.name or "" for topic in request.topics or ())
        ]
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=HOST, port=self.port)
        return MetadataResponse(brokers=[broker], cluster_id="null", controller_id=1, topics=topics)

    def fetch(self, request: FetchRequest) -> tuple[FetchResponse, bool]:
        """What there is, and whether that is anything."""
        left, found = request.max_bytes, False
        responses = []
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                log = self.log(topic.topic, wanted.partition)
                chunks = log.read(wanted.fetch_offset, min(left, wanted.partition_max_bytes)) if left > 0 else []
                found = found or bool(chunks)
                left -= sum(map(len, chunks))
                parts.append(
                    FetchResponse.PartitionData(
                        partition_index=wanted.partition,
                        high_watermark=log.end,
                        last_stable_offset=log.end,
                        log_start_offset=0,
                        aborted_transactions=None,
                        records=chunks,
                    )
                )
            responses.append(FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=parts))
        return FetchResponse(responses=responses), found

    def wake(self) -> None:
        """Answer held fetches that have something now."""
        waiting, self.waiting = self.waiting, []
        for held in waiting:
            held.look()


def _id_of(topic: str) -> UUID:
    return uuid5(NAMESPACE_DNS, topic)


class _Held:
    """A fetch that waits for records, or for its time to pass."""

    def __init__(self, connection: "Connection", request: FetchRequest, version: int, correlation_id: int) -> None:
        self._connection = connection
        self._request = request
        self._place = (version, correlation_id)
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        response, found = self._connection.broker.fetch(self._request)
        if found:
            self._answer(response)
            return
        if self._timer is None:
            wait_s = self._request.max_wait_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)
        self._connection.broker.waiting.append(self)

    def _expire(self) -> None:
        self._connection.broker.waiting.remove(self)
        self._answer(self._connection.broker.fetch(self._request)[0])

    def _answer(self, response: FetchResponse) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.send(response, FetchRequest.API_KEY, *self._place)


class Connection(asyncio.BufferedProtocol):
    """A client; its frames are read over and over into the same memory."""

    def __init__(self, broker: NullBroker) -> None:
        self.broker = broker
        self._buffer = bytearray(_BUFFER)
        self._filled = 0
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        end, position = self._filled + nbytes, 0
        view = memoryview(self._buffer)[:end]
        while end - position >= 4:
            size: int = _SIZE.unpack_from(view, position)[0]
            if size + 4 > _BUFFER:
                raise ValueError(f"a request of {size} bytes is more than a load generator sends")
            if end - position - 4 < size:
                break
            self._take(view[position + 4 : position + 4 + size])
            position += 4 + size
        rest = end - position
        if position:
            self._buffer[:rest] = bytes(view[position:])
        self._filled = rest

    def _take(self, frame: memoryview) -> None:
        key, version, correlation_id, _, position = decode_request_header(frame, 0)
        request = REQUESTS[key].decode(frame, position, version)
        if isinstance(request, FetchRequest):
            _Held(self, request, version, correlation_id).look()
            return
        self.send(self.broker.answer(request), key, version, correlation_id)
        if self.broker.relay and key == ProduceRequest.API_KEY:
            self.broker.wake()

    def send(self, response: Message, key: int, version: int, correlation_id: int) -> None:
        if not self._transport.is_closing():
            chunks = [encode_response_header(key, version, correlation_id), *response.encode(version)]
            self._transport.writelines([_SIZE.pack(sum(map(len, chunks))), *chunks])


async def serve(broker: NullBroker) -> None:
    """Serve on a free port of the loopback, which is printed, until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: Connection(broker), HOST, 0)
    broker.port = server.sockets[0].getsockname()[1]
    print(f"ready {HOST}:{broker.port}", flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--log", type=int, nargs=4, metavar=("RECORDS", "VALUE_BYTES", "BATCH_RECORDS", "CODEC"))
    options = parser.parse_args()
    records, sample = 0, None
    if options.log:
        records, size, count, codec = options.log
        sample = batch(size, count, codec)
    uvloop.run(serve(NullBroker(partitions=options.partitions, relay=options.relay, sample=sample, records=records)))


if __name__ == "__main__":
    main()
