"""SIGKILL while an idempotent producer with acks=all runs, which goes on after the restart on the same ports."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.harness.ledger import Ledger, numbers

from headrace.storage.journal.journal import Journal
from headrace.testing import Server

pytestmark = pytest.mark.crash

VICTIMS = ("server and storage", "server", "storage")


class Strike:
    """SIGKILL to one or both, in any order. Made before, so that nothing delays it when its moment comes."""

    def __init__(self, started: Server, victims: str, chance: random.Random, between_s: float = 0) -> None:
        self._started = started
        self._storage_pid = started.storage_pid
        self._victims = victims
        self._server_first = chance.random() < 0.5
        self._between_s = between_s

    def __call__(self) -> None:
        """Afterwards the server is gone in any case."""
        if self._victims == "storage":
            os.kill(self._storage_pid, signal.SIGKILL)
            assert self._started.wait() == 1
            return
        if self._victims == "server and storage" and not self._server_first:
            os.kill(self._storage_pid, signal.SIGKILL)
            time.sleep(self._between_s)
        self._started.kill()
        if self._victims == "server and storage" and self._server_first:
            time.sleep(self._between_s)
            os.kill(self._storage_pid, signal.SIGKILL)


def send_until(ledger: Ledger, acknowledged: int) -> None:
    """Keep the producer busy until so many more are acknowledged: at the end further requests are under way."""
    goal = ledger.acknowledged_count + acknowledged
    while ledger.acknowledged_count < goal:
        ledger.send(100)


def test_acknowledged_records_exist_once_in_order(started: Server, round_number: int, chance: random.Random) -> None:
    victims = VICTIMS[round_number % len(VICTIMS)]
    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        for _ in range(2):
            strike = Strike(started, victims, chance)
            send_until(ledger, chance.randrange(1, 20_000))
            strike()
            ledger.send(chance.randrange(1, 2_000))
            print(f"{victims} died: {ledger}")
            started.start()
        ledger.settle()
        assert ledger.refused == {}
        assert ledger.acknowledged_count == sum(ledger.sent)
        ledger.check(started.kafka)


@pytest.mark.parametrize("victims", VICTIMS)
def test_at_full_speed_too(started: Server, victims: str, chance: random.Random) -> None:
    volume, value_bytes = 150 << 20, 1_024
    count = volume // value_bytes
    with Ledger(
        started.kafka, "fast", partitions=3, value_bytes=value_bytes, batch_size=1 << 20, linger_ms=5
    ) as ledger:
        strike = Strike(started, victims, chance)
        before = chance.randrange(count // 4, count // 2)
        begun = time.perf_counter()
        ledger.send(before)
        rate = before * value_bytes / (time.perf_counter() - begun)
        strike()
        print(f"{victims} died at {rate / 1e6:.0f} MB/s: {ledger}")
        started.start()
        ledger.send(count - before)
        ledger.settle()
        assert ledger.refused == {}
        assert ledger.acknowledged_count == count
        ledger.check(started.kafka)


BATCHES = {
    "100 B": {"value_bytes": 92, "batch_num_messages": 1, "linger_ms": 0},
    "16 KB": {"value_bytes": 1_000, "batch_size": 16_384, "linger_ms": 5},
}
"""Small enough to be acknowledged from the journal; of the first kind some thousand a second, so that it is busy."""


def keep_sending(ledger: Ledger, acknowledged: int) -> None:
    """As `send_until`, with fewer records waiting in the producer: each of them may be a request of its own."""
    goal = ledger.acknowledged_count + acknowledged
    while ledger.acknowledged_count < goal:
        if sum(ledger.sent) - ledger.acknowledged_count < 1_000:
            ledger.send(50)
        else:
            ledger.wait_for(ledger.acknowledged_count + 1)


def in_journal(started: Server) -> int:
    """How many acknowledged batches the dead server may have left there."""
    found = Journal.open(Path(started.data, "journal"), 0)
    count = len(found.in_doubt())
    found.close()
    return count


def test_records_acknowledged_by_the_journal_exist_once_in_order(
    started: Server, round_number: int, chance: random.Random
) -> None:
    batches = list(BATCHES)[round_number % len(BATCHES)]
    victims = VICTIMS[round_number % len(VICTIMS)]
    with Ledger(started.kafka, "kept", partitions=3, **BATCHES[batches]) as ledger:
        for _ in range(2):
            # From none at all to longer than a batch waits for company.
            strike = Strike(started, victims, chance, between_s=chance.choice([0, 0.001, 0.005, 0.02]))
            keep_sending(ledger, chance.randrange(1, 4_000))
            strike()
            ledger.send(chance.randrange(1, 500))
            print(f"{victims} died, {in_journal(started)} batches are in the journal: {ledger}")
            started.start()
        ledger.settle()
        assert ledger.refused == {}
        assert ledger.acknowledged_count == sum(ledger.sent)
        ledger.check(started.kafka)


def test_a_kill_leaves_something_in_the_journal_and_a_restart_stores_it(started: Server, chance: random.Random) -> None:
    """So that the test above is not one of Valkey alone."""
    with Ledger(started.kafka, "kept", partitions=3, **BATCHES["100 B"]) as ledger:
        keep_sending(ledger, 1_000)
        left = 0
        for _ in range(20):
            keep_sending(ledger, chance.randrange(50, 150))
            # Answers from before are not counted below: they are of what Valkey has. And what waits for Valkey itself,
            # were it stopped now, would keep its log's journal from being used.
            ledger.settle()
            # Held up, it takes nothing more from the server, which goes on acknowledging.
            os.kill(pid := started.storage_pid, signal.SIGSTOP)
            keep_sending(ledger, 20)
            started.kill()
            left = in_journal(started)
            # What waits in its socket goes with it: woken up, it would have stored all of them.
            os.kill(pid, signal.SIGKILL)
            started.start()
            if left:
                break
        assert left
        started.logged("journal replayed")
        ledger.settle()
        assert ledger.refused == {}
        ledger.check(started.kafka)


@pytest.mark.parametrize("arguments", [["--fsync", "always"], ["--set", "headrace.journal.bytes=0"]], ids="/".join)
def test_the_rest_of_a_journal_is_stored_after_it_was_disabled(
    tmp_path: Path, arguments: list[str], chance: random.Random
) -> None:
    with Server(tmp_path / "data", ["--set", "num.partitions=3"]) as first:
        with Ledger(first.kafka, "kept", partitions=3, **BATCHES["100 B"]) as ledger:
            keep_sending(ledger, chance.randrange(500, 1_500))
            # What waits for Valkey itself, were it stopped now, would keep its log's journal from being used.
            ledger.settle()
            os.kill(pid := first.storage_pid, signal.SIGSTOP)
            keep_sending(ledger, 20)
            first.kill()
            os.kill(pid, signal.SIGKILL)
            assert in_journal(first) >= 20 // 3
            first.arguments += arguments
            first.start()
            assert not Path(first.data, "journal").exists()
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(first.kafka)
        # And back.
        first.stop()
        del first.arguments[-len(arguments) :]
        first.start()
        assert Path(first.data, "journal").exists()
        ledger.check(first.kafka)


def test_records_the_producer_gave_up_are_there_at_most_once(started: Server, chance: random.Random) -> None:
    with Ledger(started.kafka, "given-up", partitions=3, message_timeout_ms=2_000) as ledger:
        strike = Strike(started, "server and storage", chance)
        send_until(ledger, chance.randrange(1, 20_000))
        strike()
        # All of the others may have been acknowledged just before.
        ledger.send(100)
        ledger.settle()
        print(ledger)
        assert ledger.refused.keys() == {"_MSG_TIMED_OUT"}
        started.start()
        # librdkafka takes a while to ask for a new producer id: more may be given up before it is heard again.
        send_until(ledger, 1_000)
        ledger.settle()
        ledger.check(started.kafka)


def test_a_storage_that_dies_alone_ends_the_server_with_a_clear_line(started: Server) -> None:
    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        ledger.send(100)
        ledger.settle()
        pid = started.storage_pid
        started.kill_storage()
        assert started.wait() == 1
        (stopping,) = [line for line in started.log().splitlines() if "stopping" in line]
        assert f"the embedded Valkey (pid {pid}) ended by SIGKILL" in stopping
        started.start()
        ledger.send(100)
        ledger.settle()
        ledger.check(started.kafka)


def test_a_log_cut_off_by_power_loss_is_a_prefix_of_every_partition(started: Server, chance: random.Random) -> None:
    with Ledger(started.kafka, "cut", partitions=3, linger_ms=0, batch_size=2_000) as ledger:
        ledger.send(3_000)
        ledger.settle()
    whole = numbers(started.kafka, "cut", 3)
    assert [len(found) for found in whole] == [1_000] * 3
    for _ in range(4):
        # Each cut goes deeper than the one before: the starts between append nothing.
        Strike(started, "server and storage", chance)()
        (file,) = Path(started.data, "appendonlydir").glob("*.incr.aof")
        size = file.stat().st_size
        os.truncate(file, chance.randrange(size * 2 // 3, size))
        started.start()
        found = numbers(started.kafka, "cut", 3)
        print(f"cut at {file.name}: {[len(part) for part in found]} records")
        for partition in range(3):
            assert found[partition] == whole[partition][: len(found[partition])]
        whole = found
    with Ledger(started.kafka, "after", partitions=3) as ledger:
        ledger.send(300)
        ledger.settle()
        ledger.check(started.kafka)
