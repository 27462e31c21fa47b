"""MirrorMaker 2 copies a topic, and the offsets of its group, from one server to another, exactly once."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.harness.apache_kafka import java_command, program_jars
from tests.harness.ports import free_ports
from tests.harness.wire import Wire

from headrace.testing import server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]
LOGS = Path(__file__).parent / "programs" / "log4j2.properties"
SETTINGS = """clusters=first,second
first.bootstrap.servers={first}
second.bootstrap.servers={second}
first->second.enabled=true
second->first.enabled=false
topics=orders
groups=billing
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
config.storage.replication.factor=1
status.storage.replication.factor=1
emit.checkpoints.interval.seconds=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
offset.lag.max=0
refresh.topics.interval.seconds=1
refresh.groups.interval.seconds=1
first.consumer.isolation.level=read_committed
second.exactly.once.source.support=enabled
dedicated.mode.enable.internal.rest=true
listeners=http://127.0.0.1:{port}
"""
COUNT, READ = 200, 50
PATIENCE_S = 200
COPY = "first.orders"


def write(kafka: str) -> None:
    """One transaction of each two is aborted."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "shop", "linger.ms": 0})
    producer.init_transactions(30)
    for start in range(0, COUNT, 50):
        for commit in (False, True):
            producer.begin_transaction()
            for number in range(start, start + 50):
                producer.produce("orders", f"order {number}" if commit else "aborted")
            assert producer.flush(30) == 0
            (producer.commit_transaction if commit else producer.abort_transaction)(30)


def consumer(kafka: str, group: str) -> Consumer:
    given = {"bootstrap.servers": kafka, "group.id": group, "isolation.level": "read_committed"}
    return Consumer({**given, "enable.auto.commit": False, "enable.auto.offset.store": False})


def read(kafka: str, topic: str, count: int, group: str = "test", start: int = 0) -> list[str]:
    """The next records, and commit after them."""
    reader = consumer(kafka, group)
    try:
        reader.assign([TopicPartition(topic, 0, start)])
        deadline, last = time.monotonic() + PATIENCE_S, None
        found: list[str] = []
        while len(found) < count and time.monotonic() < deadline:
            for last in reader.consume(count - len(found), timeout=1):
                if last.error() is None:
                    found.append((last.value() or b"").decode())
        if last is not None:
            reader.commit(message=last, asynchronous=False)
        return found
    finally:
        reader.close()


@contextmanager
def mirror_maker(folder: Path, first: str, second: str) -> Iterator[Path]:
    """It runs, and is killed. Its log."""
    settings, log = folder / "mirror.properties", folder / "mirror.log"
    settings.write_text(SETTINGS.format(first=first, second=second, port=free_ports(1)[0]))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    words = (f"-Dlog4j2.configurationFile={LOGS}", main, str(settings), "--clusters", "second")
    with (
        log.open("ab") as sink,
        subprocess.Popen(
            java_command(*words, classes=program_jars(), heap_mib=384), stdout=sink, stderr=sink
        ) as process,
    ):
        try:
            yield log
        finally:
            process.kill()


def test_committed_records_and_offsets_of_a_group_are_copied_by_a_program_that_is_killed(tmp_path: Path) -> None:
    with server(num_partitions=1) as first, server(num_partitions=1) as second:
        with Wire(first.kafka) as wire:
            wire.create("orders")
        write(first.kafka)
        wanted = [f"order {number}" for number in range(COUNT)]
        assert read(first.kafka, "orders", READ, "billing") == wanted[:READ]
        with mirror_maker(tmp_path, first.kafka, second.kafka) as log:
            assert read(second.kafka, COPY, COUNT) == wanted, log.read_text()[-8_000:]
            billing = consumer(second.kafka, "billing")
            deadline = time.monotonic() + PATIENCE_S
            while (offset := billing.committed([TopicPartition(COPY, 0)], timeout=30)[0].offset) < 0:
                assert time.monotonic() < deadline, log.read_text()[-8_000:]
            billing.close()
        write(first.kafka)
        with mirror_maker(tmp_path, first.kafka, second.kafka) as log:
            assert read(second.kafka, COPY, 2 * COUNT) == 2 * wanted, log.read_text()[-8_000:]
        # The translated offset may be earlier than exact, and never later.
        assert offset >= 0
        left = read(second.kafka, COPY, COUNT - READ, start=offset)
        assert wanted[READ] in left
