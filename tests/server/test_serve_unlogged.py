"""A server whose log cannot be written: stderr is on a full disk, which costs only log lines."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import redis
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.testing import Addresses, Server


@contextlib.contextmanager
def running(data: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", Addresses]]:
    """A server with stderr on a device that is always full; what it prints on stdout is read."""
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(
            Server(data, [*arguments, "--log-level", "debug"]).command(),
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        )
    with process:
        assert process.stdout is not None
        try:
            yield process, Addresses.parse(process.stdout.readline())
        finally:
            process.terminate()


def test_it_still_ends_when_its_valkey_dies(tmp_path: Path) -> None:
    with running(tmp_path / "data") as (process, addresses), Wire(addresses.kafka) as client:
        client.create("flights")
        assert client.produce("flights", batch(b"one")).error_code == Code.NONE
        with redis.Redis.from_url(addresses.storage) as link:
            os.kill(link.info("server")["process_id"], signal.SIGKILL)
        # Not 120 either, which is Python's when it cannot write at exit.
        assert process.wait(60) == 1


def test_a_refused_start_still_has_its_exit_status(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with Path("/dev/full").open("wb") as full:
        command = Server(tmp_path / "data").command()
        assert subprocess.run(command, stderr=full, stdout=full, timeout=60, check=False).returncode == 1


def test_it_answers_without_redis_and_comes_back_with_it(tmp_path: Path) -> None:
    kept = {"appendonly": "yes", "appendfsync": "no"}
    with (
        RedisServer(options=kept) as external,
        running(tmp_path / "data", "--redis", external.url) as (process, addresses),
        Wire(addresses.kafka) as client,
    ):
        client.create("flights")
        assert client.produce("flights", batch(b"one")).error_code == Code.NONE
        external.kill()
        # The client of the test gives up long before the 60 s that this took.
        refused = client.produce("flights", batch(b"two")).error_code
        assert refused in (Code.KAFKA_STORAGE_ERROR, Code.NOT_LEADER_OR_FOLLOWER, Code.COORDINATOR_NOT_AVAILABLE)
        external.start()
        while client.produce("flights", batch(b"three")).error_code != Code.NONE:
            assert process.poll() is None
