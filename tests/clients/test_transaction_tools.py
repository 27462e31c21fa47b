"""Kafka's command line tools and transactions: kafka-transactions, and tools that write, read and delete records."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka import Producer
from tests.harness.apache_kafka import tool

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]
ID = "payments"


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        yield started


def begun(bootstrap: str, topic: str) -> Producer:
    """A producer with one record in an open transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": ID, "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    assert producer.flush(30) == 0
    return producer


def transactions(bootstrap: str, *words: str) -> list[dict[str, str]]:
    """The rows that kafka-transactions prints, by the columns of its header."""
    lines = tool("TransactionsCommand", "--bootstrap-server", bootstrap, *words).splitlines()
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines if line.strip()]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


def forget(running: Server) -> None:
    """Lose the coordinator's document, as a restore from an old backup would."""
    with redis.from_url(running.storage) as storage:
        found = [key for key in storage.scan_iter("headrace:*transaction*") if ID.encode() in key]
        assert storage.delete(*found) == 1
        for key in storage.scan_iter("headrace:*transactions*", _type="set"):
            storage.srem(key, ID)
    running.kill()
    running.start()


def test_kafka_transactions_shows_transactions_and_aborts_a_hanging_one(running: Server) -> None:
    producer = begun(running.kafka, "orders")
    partition = ("--topic", "orders", "--partition", "0")
    (listed,) = transactions(running.kafka, "list")
    assert listed["TransactionalId"] == ID
    assert listed["TransactionState"] == "Ongoing"
    pattern = ("list", "--transactional-id-pattern")
    assert transactions(running.kafka, *pattern, "pay.*s") == [listed]
    assert transactions(running.kafka, *pattern, "pay") == [], "it matches whole ids"
    (described,) = transactions(running.kafka, "describe", "--transactional-id", ID)
    assert (described["TopicPartitions"], described["TransactionTimeoutMs"]) == ("orders-0", "900000")
    assert described["ProducerId"] == listed["ProducerId"]
    (written,) = transactions(running.kafka, "describe-producers", *partition)
    assert (written["ProducerId"], written["CurrentTransactionStartOffset"]) == (listed["ProducerId"], "0")
    hanging = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    assert transactions(running.kafka, *hanging) == [], "the coordinator will end it"

    forget(running)
    (found,) = transactions(running.kafka, *hanging)
    assert (found["Topic"], found["Partition"], found["ProducerId"]) == ("orders", "0", listed["ProducerId"])
    assert transactions(running.kafka, "abort", *partition, "--start-offset", found["StartOffset"]) == []
    assert transactions(running.kafka, *hanging) == []
    (ended,) = transactions(running.kafka, "describe-producers", *partition)
    assert ended["CurrentTransactionStartOffset"] == "None"
    del producer


def test_tools_write_read_and_delete_records_of_transactions(running: Server, tmp_path: Path) -> None:
    brings = ("--bootstrap-server", running.kafka)
    sent = tool(
        "ProducerPerformance", *brings, "--topic", "load", "--num-records", "5000", "--record-size", "100",
        "--throughput", "-1", "--transactional-id", "load", "--transaction-duration-ms", "20",
    )  # fmt: skip
    assert sent.startswith("5000 records sent")
    producer = begun(running.kafka, "load")

    def read(isolation: str) -> int:
        printed = tool(
            "consumer.ConsoleConsumer", *brings, "--topic", "load", "--partition", "0", "--offset", "earliest",
            "--isolation-level", isolation, "--formatter-property", "print.offset=true", "--timeout-ms", "15000",
        )  # fmt: skip
        return sum(line.startswith("Offset:") for line in printed.splitlines())

    def place(when: str) -> int:
        return int(tool("GetOffsetShell", *brings, "--topic", "load", "--time", when).strip().rpartition(":")[2])

    end = place("latest")
    assert end > 5_001, "markers have offsets"
    assert (read("read_committed"), read("read_uncommitted")) == (5_000, 5_001)
    file = tmp_path / "until.json"
    file.write_text(json.dumps({"partitions": [{"topic": "load", "partition": 0, "offset": -1}]}))
    assert f"low_watermark: {end}" in tool("DeleteRecordsCommand", *brings, "--offset-json-file", str(file))
    assert (place("earliest"), place("latest")) == (end, end), "an open transaction does not keep records, as in Kafka"
    producer.produce("load", b"two")
    producer.commit_transaction(30)
    assert (read("read_committed"), place("latest")) == (1, end + 2)
