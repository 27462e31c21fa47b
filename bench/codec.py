"""What a Kafka message costs to decode and encode: this codec, kio and kafka-python, in one run.

All three agree byte for byte on every message before anything is timed; the
timings of one row are taken in turns, and the least of each counts.
"""

import argparse
import importlib
import io
import timeit
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kio.schema.index
import kio.serial
from kio.static.constants import EntityType

from bench.machine import describe
from bench.table import Cell, table
from headrace.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Message,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

BATCH = bytes(range(256)) * 64


def produce_request(partitions: int) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=i, records=BATCH) for i in range(partitions)]
    topic = ProduceRequest.TopicProduceData(name="measurements", partition_data=data)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response(partitions: int) -> ProduceResponse:
    answers = [
        ProduceResponse.PartitionProduceResponse(index=i, base_offset=12_345_678, log_start_offset=0)
        for i in range(partitions)
    ]
    topic = ProduceResponse.TopicProduceResponse(name="measurements", partition_responses=answers)
    return ProduceResponse(responses=[topic])


def fetch_request(topics: int, partitions: int) -> FetchRequest:
    parts = [
        FetchRequest.FetchPartition(
            partition=i, current_leader_epoch=0, fetch_offset=10**9, partition_max_bytes=1 << 20
        )
        for i in range(partitions)
    ]
    wanted = [FetchRequest.FetchTopic(topic=f"measurements-{i}", partitions=parts) for i in range(topics)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=wanted)


def fetch_response(partitions: int) -> FetchResponse:
    parts = [
        FetchResponse.PartitionData(
            partition_index=i,
            high_watermark=10**9,
            last_stable_offset=10**9,
            log_start_offset=0,
            aborted_transactions=None,
            records=BATCH,
        )
        for i in range(partitions)
    ]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="measurements", partitions=parts)])


def metadata_response(topics: int, partitions: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=i, host="127.0.0.1", port=9092) for i in range(3)],
        cluster_id="headrace",
        controller_id=1,
        topics=[
            MetadataResponse.MetadataResponseTopic(
                name=f"measurements-{topic}",
                partitions=[
                    MetadataResponse.MetadataResponsePartition(
                        partition_index=i, leader_id=1, leader_epoch=0, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
                    )
                    for i in range(partitions)
                ],
            )
            for topic in range(topics)
        ],
    )


def list_offsets_request() -> ListOffsetsRequest:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=3, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="measurements", partitions=[part])])


def list_offsets_response() -> ListOffsetsResponse:
    part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=3, offset=10**9, leader_epoch=0)
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="measurements", partitions=[part])
    return ListOffsetsResponse(topics=[topic])


ROWS: list[tuple[str, str, Message, int]] = [
    ("decode", "ProduceRequest v9, 1 x 16 KiB", produce_request(1), 9),
    ("decode", "ProduceRequest v9, 10 x 16 KiB", produce_request(10), 9),
    ("decode", "FetchRequest v12, 1 x 1", fetch_request(1, 1), 12),
    ("decode", "FetchRequest v12, 10 x 10", fetch_request(10, 10), 12),
    ("decode", "ListOffsetsRequest v7", list_offsets_request(), 7),
    ("encode", "ProduceResponse v9, 1 partition", produce_response(1), 9),
    ("encode", "ProduceResponse v9, 10 partitions", produce_response(10), 9),
    ("encode", "FetchResponse v12, 1 x 16 KiB", fetch_response(1), 12),
    ("encode", "FetchResponse v12, 10 x 16 KiB", fetch_response(10), 12),
    ("encode", "ListOffsetsResponse v7", list_offsets_response(), 7),
    ("encode", "MetadataResponse v12, 1 x 3", metadata_response(1, 3), 12),
    ("encode", "MetadataResponse v12, 50 x 4", metadata_response(50, 4), 12),
    ("decode", "MetadataResponse v12, 50 x 4", metadata_response(50, 4), 12),
    ("decode", "FetchResponse v12, 10 x 16 KiB", fetch_response(10), 12),
]


def kio_codec(message: Message, version: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Kio's reader and writer of a message."""
    kind: Any = EntityType.request if type(message).__name__.endswith("Request") else EntityType.response
    name = kio.schema.index.api_key_map[message.API_KEY]
    module, _, cls = kio.schema.index.schema_name_map[name][version][kind].partition(":")
    entity: Any = getattr(importlib.import_module(module), cls)
    return kio.serial.entity_reader(entity), kio.serial.entity_writer(entity)


def kafka_python_class(message: Message) -> Any:
    name = type(message).__name__
    for module in (kafka.protocol.consumer, kafka.protocol.producer, kafka.protocol.metadata):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def candidates(operation: str, message: Message, version: int) -> list[Callable[[], Any]]:
    """The operation by ours, kio and kafka-python, after all three were seen to agree."""
    encoded = b"".join(message.encode(version))
    read, write = kio_codec(message, version)
    other = kafka_python_class(message)
    by_kio, _ = read(encoded, 0)
    by_other = other.decode(encoded, version=version)
    by_other._header = None  # noqa: SLF001  # its encoder asks for one, which its decoder leaves out

    def kio_encode() -> bytes:
        buffer = io.BytesIO()
        write(buffer, by_kio)
        return buffer.getvalue()

    def other_encode() -> bytes:
        return bytes(by_other.encode(version=version))

    assert type(message).decode(encoded, 0, version) == message
    assert kio_encode() == encoded
    assert other_encode() == encoded
    if operation == "encode":
        return [lambda: message.encode(version), kio_encode, other_encode]
    decode = type(message).decode
    return [
        lambda: decode(encoded, 0, version),
        lambda: read(encoded, 0),
        lambda: other.decode(encoded, version=version),
    ]


def measure(functions: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Microseconds per call of each, the least of several turns."""
    counts = [max(1, int(0.02 / max(min(timeit.repeat(f, number=1, repeat=5)), 1e-7))) for f in functions]
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, (function, count) in enumerate(zip(functions, counts, strict=True)):
            best[i] = min(best[i], timeit.timeit(function, number=count) / count * 1e6)
    return best


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="rounds of which the best counts (7; quick: 2)")


def run(options: argparse.Namespace) -> None:
    rounds = options.rounds or (2 if options.quick else 7)
    others = {name: version(name) for name in ("kio", "kafka-python")}
    print(describe(best_of=f"{rounds} rounds", **others), end="\n\n", flush=True)
    rows: list[list[Cell]] = []
    for operation, label, message, number in ROWS:
        ours, by_kio, by_other = measure(candidates(operation, message, number), rounds)
        size = sum(map(len, message.encode(number)))
        rows.append([f"{operation} {label}", size, ours, by_kio, by_other, by_kio / ours, by_other / ours])
    print(table(["message", "bytes", "ours us", "kio us", "kafka-python us", "kio/ours", "kafka-python/ours"], rows))
