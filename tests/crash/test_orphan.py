"""SIGKILL of the server alone: its Valkey lives on, an orphan, and the next start takes it over or replaces it."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import redis
from tests.harness.ledger import Ledger
from tests.harness.waiting import wait_for

from headrace.testing import Server, ServerFailed

pytestmark = pytest.mark.crash

TAKEN_OVER = "reused the running Valkey"
BUSY_S = 2.0
BUSY_LOOP = """
local begun = redis.call('TIME')
local now
repeat
  now = redis.call('TIME')
until (now[1] - begun[1]) + (now[2] - begun[2]) / 1e6 > tonumber(ARGV[1])
return 'done'
"""


@contextlib.contextmanager
def in_script(storage: str) -> Iterator[None]:
    """The storage runs a script for some seconds, and answers no client."""
    with redis.Redis.from_url(storage, single_connection_client=True) as link:
        assert link.connection is not None
        link.connection.send_command("EVAL", BUSY_LOOP, 0, str(BUSY_S))
        yield
        assert link.connection.read_response() == b"done"


def kept_by_a_restart(started: Server, ledger: Ledger) -> None:
    """Start again, send more, and hold everything against the account."""
    started.start()
    ledger.send(1_000)
    ledger.settle()
    assert ledger.refused == {}
    assert ledger.acknowledged_count == sum(ledger.sent)
    ledger.check(started.kafka)


def test_an_orphan_is_taken_over_under_load(started: Server, chance: random.Random) -> None:
    with Ledger(started.kafka, "kept", partitions=3, value_bytes=1_024, batch_size=1 << 20) as ledger:
        pid = started.storage_pid
        for _ in range(3):
            # Unanswered appends of the dead server lie in the orphan's socket: it may still write them.
            ledger.send(chance.randrange(10_000, 40_000))
            started.kill()
            kept_by_a_restart(started, ledger)
            assert started.storage_pid == pid
        wait_for(lambda: started.log().count(TAKEN_OVER) == 3, "word of each time")


def test_an_orphan_in_the_middle_of_a_script_is_waited_for(started: Server) -> None:
    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        ledger.send(1_000)
        ledger.settle()
        pid = started.storage_pid
        with in_script(started.storage):
            started.kill()
            kept_by_a_restart(started, ledger)
        assert started.storage_pid == pid
        started.logged(TAKEN_OVER)


def test_an_orphan_that_rewrites_its_file_is_taken_over(started: Server) -> None:
    with Ledger(started.kafka, "kept", partitions=3, value_bytes=1_024) as ledger:
        ledger.send(50_000)
        ledger.settle()
        with redis.Redis.from_url(started.storage) as link:
            # Slow enough to be under way for longer than a start takes.
            link.config_set("rdb-key-save-delay", 5_000_000)
            link.bgrewriteaof()
            started.kill()
            kept_by_a_restart(started, ledger)
            assert link.info("persistence")["aof_rewrite_in_progress"] == 1
            started.logged(TAKEN_OVER)
            # And what it wrote, when it dies half way, is not what is read afterwards.
            os.kill(started.storage_pid, signal.SIGKILL)
        assert started.wait() == 1
        kept_by_a_restart(started, ledger)


def test_an_orphan_that_hangs_is_replaced(started: Server) -> None:
    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        ledger.send(1_000)
        ledger.settle()
        pid = started.storage_pid
        os.kill(pid, signal.SIGSTOP)
        started.kill()
        kept_by_a_restart(started, ledger)
        assert started.storage_pid != pid
        started.logged("the running Valkey does not respond and is replaced")


def goes_on_without(started: Server, pid: int) -> bool:
    """Whether a server goes on with another Valkey than this one, which is dead; else it has ended.

    Its log does not show it: a line may come after the ready line that it was written before.
    """

    def has_another() -> bool:
        try:
            return started.storage_pid != pid
        except redis.RedisError:
            return False

    wait_for(lambda: not started.running or has_another(), "its end, or another Valkey")
    return started.running


def test_an_orphan_that_dies_during_the_start_loses_nothing(started: Server, chance: random.Random) -> None:
    started.stop()
    begun = time.monotonic()
    started.start()
    duration_s = time.monotonic() - begun
    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        for _ in range(3):
            ledger.send(5_000)
            pid = started.storage_pid
            started.kill()
            # From before the start looks for it to after it has been taken over.
            dying = threading.Timer(duration_s * chance.uniform(0.4, 1.2), os.kill, (pid, signal.SIGKILL))
            dying.start()
            before = len(started.log())
            try:
                started.start()
                ready = True
            except ServerFailed:
                ready = False
            dying.join()
            if not ready:
                print("the start failed")
                told = started.log().splitlines()[-1]
                assert told.startswith("headrace: "), told
                assert "Valkey" in told, told
            elif goes_on_without(started, pid):
                print("replaced")
                started.kill()
                started.kill_storage()
            else:
                print("taken over, and lost again")
                assert started.wait() == 1
                started.logged(TAKEN_OVER, before)
            kept_by_a_restart(started, ledger)
