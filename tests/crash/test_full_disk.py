"""A disk that is full: whatever is asked of the server then, no acknowledged record is lost when all is killed.

The server's directory is a small file system of its own. That takes a namespace, so a scenario is a process.
"""

import contextlib
import errno
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.crash.test_produce import Strike
from tests.harness.lanes import TABLE, Table
from tests.harness.ledger import Ledger

from headrace.testing import Server

pytestmark = pytest.mark.crash

DISK_BYTES = 400 << 20
PATIENCE_S = 120
REQUESTS = ("nothing", "create", "delete", "commit", "retention", "expiry", "stop")
EXPIRY_MS = 5_000
SETTINGS = {
    "log.retention.check.interval.ms": 100, "producer.id.expiration.ms": EXPIRY_MS, "num.partitions": 1,
}  # fmt: skip
OLD_AFTER_MS = 3_000
"""The disk is full by then."""


def _mounts() -> bool:
    return Table.read(TABLE.read_text()).requirements["mounts"].missing() is None


@pytest.mark.skipif(not _mounts(), reason="no process may mount a file system here")
@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("journal", ["journal", "no journal"])
def test_no_acknowledged_record_is_lost(request_: str, journal: str) -> None:
    command = ["unshare", "-rm", sys.executable, "-m", "tests.crash.test_full_disk", request_, journal]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(done.stdout.decode())
    assert done.returncode == 0


def scenario(disk: Path, request: str, journal: bool) -> None:
    """Fill the disk, produce until that is refused, ask for something else, kill both, free the disk, start."""
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    if not journal:
        settings += ["--set", "headrace.journal.bytes=0"]
    if request == "expiry":
        settings += ["--log-level", "debug"]
    running = Server(disk / "data", settings)
    running.log_file = disk.parent / "server.log"
    timeout = {"message_timeout_ms": 1_500}
    with (
        running,
        Ledger(running.kafka, "small", **timeout, linger_ms=0) as small,
        Ledger(running.kafka, "large", value_bytes=200_000, **timeout) as large,
    ):
        admin = AdminClient({"bootstrap.servers": running.kafka})
        for ledger in (small, large):
            ledger.send(20)
            ledger.settle()
        for done in admin.create_topics([NewTopic("made", 1)]).values():
            done.result(PATIENCE_S)
        if request == "retention":
            put_aging(admin, running.kafka)
        # Heard of so late, its producer is forgotten once the disk is full.
        small.send(1)
        small.settle()
        fill(disk)
        full_from = len(running.log())
        deadline = time.monotonic() + PATIENCE_S
        for ledger in (small, large):
            while not ledger.refused:
                ledger.send(5)
                time.sleep(0.01)
                assert time.monotonic() < deadline, f"never refused: {ledger}"
        ask(admin, running, request, full_from)
        for ledger in (small, large):
            ledger.send(20)
        print(f"{request}: small {small}, large {large}")
        if running.running:
            Strike(running, "server and storage", random.Random())()
        (disk / "filling").unlink()
        running.start()
        for ledger in (small, large):
            ledger.settle()
            ledger.check(running.kafka)
            # And it goes on.
            before = ledger.acknowledged_count
            while ledger.acknowledged_count == before:
                ledger.send(1)
                ledger.settle()
            ledger.check(running.kafka)


def ask(admin: AdminClient, running: Server, request: str, full_from: int) -> None:
    """Something else than producing; whether it is granted does not matter.

    `full_from`: so many characters are in the log from before the disk was full.
    """
    with contextlib.suppress(KafkaException, TimeoutError):
        if request == "create":
            admin.create_topics([NewTopic("another", 3)])["another"].result(5)
        elif request == "delete":
            admin.delete_topics(["made"])["made"].result(5)
        elif request == "commit":
            place = ConsumerGroupTopicPartitions("g", [TopicPartition("small", 0, 1)])
            for done in admin.alter_consumer_group_offsets([place]).values():
                done.result(5)
    if request == "retention":
        await_lines(running, r'"topic": "aging".*"event": "(log trimmed|retention not enforced)"')
    if request == "expiry":
        await_lines(running, r'"topic": "small".*"event": "idle producer states expired"', full_from)
        # Answered behind what was to be written of that. Redis may have taken it: its file's last page may have room.
        with contextlib.suppress(KafkaException):
            for done in admin.delete_records([TopicPartition("small", 0, 0)]).values():
                done.result(PATIENCE_S)
    if request == "stop":
        with contextlib.suppress(Exception):
            running.stop()


def put_aging(admin: AdminClient, kafka: str) -> None:
    """Put a record in topic `aging` that retention is to take before long."""
    for done in admin.create_topics([NewTopic("aging", 1, config={"retention.ms": "1"})]).values():
        done.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce("aging", b"x", timestamp=int(time.time() * 1000) + OLD_AFTER_MS)
    assert producer.flush(PATIENCE_S) == 0


def await_lines(running: Server, lines: str, start: int = 0) -> None:
    """Wait until the log has such lines after its first characters, or until the server is gone.

    Of retention there is one when it has come to the record, perhaps before the disk was full: then Redis refuses the
    trim before it looks what there is to take.
    """
    deadline = time.monotonic() + PATIENCE_S
    while running.running and not re.search(lines, running.log()[start:]):
        assert time.monotonic() < deadline, f"nobody ever said {lines}"
        time.sleep(0.01)


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb") as file:
        while True:
            found = os.statvfs(disk)
            try:
                os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize)
            except OSError as error:
                # Valkey stores the records that the journal had acknowledged.
                if error.errno != errno.ENOSPC:
                    raise
            else:
                return


def main(request: str, journal: str) -> None:
    with tempfile.TemporaryDirectory(prefix="full-") as name:
        disk = Path(name, "disk")
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "full", disk], check=True)
        try:
            scenario(disk, request, journal == "journal")
        except BaseException:
            print(Path(name, "server.log").read_text()[-6_000:])
            raise
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
