"""Native topics compared with log topics and the ceiling: redis-benchmark with XADD to the same Valkey.

One partition, records of 100 bytes, confluent-kafka in this process; acks=all, idempotent, linger.ms=5. A group commits
every 10,000 records, so its figure includes XREADGROUP and XACK. redis-benchmark has 50 connections, without pipelining
(its default) and with 16 requests in flight on each. Ratios are relative to the run without pipelining; the goal is a
quarter of it.
"""

import argparse
import csv
import shutil
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.machine import client_library, describe
from bench.table import Cell, ratio, table
from headrace.testing import Server, server

SIZE = 100
_COMMIT_EVERY = 10_000
_AIM = 0.25
_LIMIT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=300_000, metavar="N", help="records of each cell (300000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, of which the median counts (3)")


def run(options: argparse.Namespace) -> None:
    records, rounds = (options.records // 10, 1) if options.quick else (options.records, options.rounds)
    print(describe(records=f"{records:,} of {SIZE} B", rounds=rounds, client=client_library()))
    print()
    found: dict[str, list[float | None]] = {}
    for _ in range(rounds):
        with server() as started:
            for name, rate in _round(started, records):
                found.setdefault(name, []).append(rate)
    medians = {name: _median(rates) for name, rates in found.items()}
    ceiling = medians["redis-benchmark XADD"]
    rows: list[list[Cell]] = []
    for name, rate in medians.items():
        mb_s = None if rate is None else rate * SIZE / 1e6
        rows.append([name, rate, mb_s, ratio(rate, ceiling), _AIM if name.startswith("native") else ""])
    print(table(["what", "records/s", "MB/s", "x XADD", "aim"], rows))


def _median(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return statistics.median(known) if known else None


def _round(started: Server, records: int) -> list[tuple[str, float | None]]:
    found: list[tuple[str, float | None]] = [
        ("redis-benchmark XADD", _ceiling(started.storage, records // 3, 1)),
        ("redis-benchmark XADD, 16 at once", _ceiling(started.storage, records, 16)),
    ]
    for storage in ("native", "log"):
        topic = f"bench-{storage}-{uuid.uuid4().hex[:6]}"
        admin = AdminClient({"bootstrap.servers": started.kafka})
        admin.create_topics([NewTopic(topic, 1, config={"headrace.storage": storage})])[topic].result(60)
        found.append((f"{storage} produce", _rate(records, partial(_produce, started.kafka, topic, records))))
        found.append((f"{storage} consume", _rate(records, partial(_read, started.kafka, topic, records))))
        found.append((f"{storage} consume, group", _rate(records, partial(_read, started.kafka, topic, records, "g"))))
    return found


def _rate(records: int, work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return records / (time.perf_counter() - began)


def _produce(kafka: str, topic: str, records: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    value = bytes(number * 7919 % 251 for number in range(SIZE))
    for start in range(0, records, _COMMIT_EVERY):
        producer.produce_batch(topic, [{"value": value}] * min(_COMMIT_EVERY, records - start), partition=0)
    if producer.flush(_LIMIT_S):
        raise SystemExit("records were not acknowledged")


def _read(kafka: str, topic: str, records: int, group: str | None = None) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"{topic}-{group}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 1,
        }
    )
    if group is None:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    else:
        consumer.subscribe([topic])
    received, committed, end = 0, 0, time.monotonic() + _LIMIT_S
    while received < records:
        found = consumer.consume(_COMMIT_EVERY, timeout=0.05)
        if found and (error := found[0].error()):
            raise KafkaException(error)
        received += len(found)
        if group is not None and received - committed >= _COMMIT_EVERY:
            consumer.commit(asynchronous=True)
            committed = received
        if time.monotonic() > end:
            raise SystemExit(f"{received} of {records} records arrived")
    if group is not None:
        consumer.commit(asynchronous=False)
    consumer.close()


def _ceiling(storage: str, requests: int, at_once: int) -> float | None:
    """XADDs per second by redis-benchmark; None where it is not installed."""
    program = shutil.which("redis-benchmark")
    if program is None:
        return None
    place = ["-s", urlsplit(storage).path]
    command = [program, *place, "-n", str(requests), "-P", str(at_once), "--csv"]
    done = subprocess.run(
        [*command, "XADD", "bench:ceiling", "*", "value", "v" * SIZE], capture_output=True, text=True, check=True
    )
    with redis.Redis.from_url(storage) as link:
        link.delete("bench:ceiling")
    *_, row = csv.reader(done.stdout.splitlines())
    return float(row[1])
