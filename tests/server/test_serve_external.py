"""`headrace serve --redis URL`: one server per keyspace, and what it says of a Redis that keeps nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.harness.ledger import Ledger
from tests.harness.ports import free_ports
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, produce_request

from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.protocol.messages import OffsetCommitRequest, ProduceResponse
from headrace.storage.layout.keys import Keyspace
from headrace.storage.valkey.server import program
from headrace.testing import Server, server

KEPT = ("--appendonly", "yes", "--appendfsync", "no", "--maxmemory-policy", "noeviction")
SESSION_S = 3
"""The default of broker.session.timeout.ms."""


class External:
    """A Valkey of the user's own on a TCP port, started as it pleases him."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        [self.port] = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/3"
        self._command = [os.fspath(program()), "--port", str(self.port), "--dir", os.fspath(folder), *arguments]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url, retry=Retry(ConstantBackoff(0.01), 6_000)) as link:
            while link.info("persistence")["loading"]:
                pass

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headrace-") as path:
        yield Path(path)


@contextlib.contextmanager
def external(folder: Path, *arguments: str) -> Iterator[External]:
    running = External(folder, *arguments)
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def storage(folder: Path) -> Iterator[External]:
    """One that keeps what it acknowledges."""
    with external(folder, *KEPT) as running:
        yield running


@pytest.fixture
def started(storage: External) -> Iterator[Server]:
    with server(redis=storage.url, num_partitions=3) as running:
        yield running


def serve(url: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself."""
    command = [sys.executable, "-m", "headrace", "serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    return subprocess.run([*command, "--redis", url], capture_output=True, text=True, timeout=60, check=False)


def warnings(started: Server) -> list[str]:
    """Return logged warnings, without those about a busy machine."""
    told = [line for line in started.log().splitlines() if "warning" in line.lower()]
    busy = ("Redis is slow", "heartbeat timed out", "was paused")
    return [line for line in told if not any(words in line for words in busy)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--save", ""), "keeps nothing on disk"),
        (("--save", "60", "1"), "writes snapshots only"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "appendfsync everysec"),
        ((*KEPT, "--maxmemory-policy", "allkeys-lru"), "evicts keys when memory is full (allkeys-lru)"),
        (KEPT, None),
    ],
)
def test_it_works_and_warns_of_what_is_not_kept(folder: Path, arguments: tuple[str, ...], expected: str | None) -> None:
    with external(folder, *arguments) as storage, server(redis=storage.url) as started:
        assert started.storage == storage.url
        with Ledger(started.kafka, "kept", partitions=1) as ledger:
            ledger.send(100)
            ledger.settle()
            ledger.check(started.kafka)
        if expected is not None:
            started.logged(expected)
        started.logged("the data directory is not used")
        told = warnings(started)
        assert len(told) == (expected is not None), told


@pytest.mark.parametrize("managed", [True, False])
def test_redis_is_configured_only_if_the_server_may(folder: Path, managed: bool) -> None:
    own = {"save": "60 10000", "auto-aof-rewrite-percentage": "100"}
    expected = {"save": "", "auto-aof-rewrite-percentage": "0"} if managed else own
    with (
        external(folder, *KEPT, "--save", "60 10000") as storage,
        redis.Redis.from_url(storage.url) as link,
        server(redis=storage.url, headrace_redis_manage=managed) as started,
        Ledger(started.kafka, "kept", partitions=1) as ledger,
    ):
        assert link.config_get(*expected) == expected
        ledger.send(100)
        ledger.settle()
        ledger.check(started.kafka)
        assert not warnings(started)


def test_a_redis_that_cannot_be_used_is_refused_with_what_to_try(folder: Path) -> None:
    with external(folder) as storage, redis.Redis.from_url(storage.url) as link:
        link.replicaof("127.0.0.1", 1)
        assert "is a replica, which accepts no records; use its primary" in serve(storage.url).stderr
        link.replicaof("no", "one")
        link.config_set("min-replicas-to-write", 1)
        assert "accepts no writes: NOREPLICAS; connect its replicas" in serve(storage.url).stderr
        link.config_set("min-replicas-to-write", 0)
        with_login = serve(storage.url.replace("//", "//:secret@"))
        assert f"headrace: Redis at {storage.url} has no password, but its URL has one; remove" in with_login.stderr
        sentinel = f"redis+sentinel://127.0.0.1:{storage.port}/main"
        answers = (serve(sentinel).stderr for _ in range(10))
        told = next(answer for answer in answers if "Timeout" not in answer)  # a busy machine's
        assert f"names a primary 'main' (127.0.0.1:{storage.port}: it is no Sentinel)" in told
        link.config_set("requirepass", "se@cret")
        assert f"headrace: Redis at {storage.url} requires a password; set HEADRACE_REDIS=" in serve(storage.url).stderr
        wrong = serve(storage.url.replace("//", "//:other@"))
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert f"headrace: Redis at {storage.url} refuses the user name or the password; " in wrong.stderr


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("ACL", "SETUSER", "default", "-@scripting"), "permissions to run the 'script|load' command"),
        (("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "100mb"), "whole partitions would vanish"),
        (("SET", Keyspace().version, "99"), "the data was written in layout 99, this Headrace knows"),
    ],
)
def test_a_redis_that_would_do_harm_is_refused(storage: External, command: tuple[str, ...], told: str) -> None:
    with redis.Redis.from_url(storage.url) as link:
        link.execute_command(*command)
        ended = serve(storage.url)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert told in ended.stderr
        assert sorted(link.keys()) == ([Keyspace().version.encode()] if command[0] == "SET" else [])


@pytest.mark.parametrize("command", ["hset", "hgetall"])
def test_missing_redis_permissions_are_reported_by_any_step_of_the_start(storage: External, command: str) -> None:
    """A script of ours is refused, or what is read once the server is among the brokers."""
    with redis.Redis.from_url(storage.url) as link:
        link.execute_command("ACL", "SETUSER", "default", f"-{command}")
    ended = serve(storage.url)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"headrace: Redis at {storage.url} denies this user a command: " in ended.stderr


def test_a_redis_whose_scripts_were_renamed_away_is_refused(folder: Path) -> None:
    with external(folder, "--rename-command", "EVALSHA", "") as storage:
        assert "lacks a command: unknown command 'EVALSHA'" in serve(storage.url).stderr


def test_a_second_server_is_refused_with_the_name_of_the_first(storage: External, started: Server) -> None:
    second = serve(storage.url)
    assert second.returncode == 1
    assert second.stdout == ""
    line = second.stderr.splitlines()[-1]
    assert "another server with node.id=1 is alive" in line
    assert f"pid {started.pid}" in line
    assert "--set node.id=N" in line
    assert started.running


def test_after_a_clean_stop_the_next_starts_at_once(storage: External, started: Server) -> None:
    started.stop()
    with redis.Redis.from_url(storage.url) as link:
        assert link.hget(Keyspace().view, "members") == b"[]"
    started.start()
    assert warnings(started) == []


@pytest.mark.crash
def test_after_sigkill_the_next_takes_over_when_the_first_is_missed(storage: External, started: Server) -> None:
    with Ledger(started.kafka, "kept") as ledger:
        ledger.send(1_000)
        ledger.settle()
        started.kill()
        started.start()
        started.logged("another server had node.id=1")
        assert len(warnings(started)) == 1
        ledger.send(1_000)
        ledger.settle()
        ledger.check(started.kafka)


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    """Return a commit of a client that is not a member."""
    place = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="first", partitions=[place])
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic])


def error_of(answer: Any) -> int:
    """The error of a Produce or OffsetCommit answer for one partition."""
    if isinstance(answer, ProduceResponse):
        return answer.responses[0].partition_responses[0].error_code
    code: int = answer.topics[0].partitions[0].error_code
    return code


def wake(started: Server) -> None:
    """End a SIGSTOP; nothing to do when the server has ended."""
    if started.running:
        os.kill(started.pid, signal.SIGCONT)


@pytest.mark.crash
def test_a_server_that_slept_until_it_was_missed_writes_no_more(storage: External, started: Server) -> None:
    with ExitStack() as stack:
        early = stack.enter_context(Ledger(started.kafka, "first"))
        client = stack.enter_context(Wire(started.kafka))
        client.create("second")
        early.send(1_000)
        early.settle()
        assert client.ask(commit_request("old", 500), 8).topics[0].partitions[0].error_code == Code.NONE
        os.kill(started.pid, signal.SIGSTOP)
        # Also when something fails before: who is stopped can be killed, but not stop in order.
        stack.callback(wake, started)
        other = stack.enter_context(server(redis=storage.url))
        late = stack.enter_context(Ledger(other.kafka, "second"))
        late.send(1_000)
        late.settle()
        # Writes that it finds after the pause: to a log and a group without other owners, to a log with one, and to a
        # new group.
        client.send(produce_request("first", batch(b"too late")), 9)
        client.send(produce_request("second", batch(b"too late")), 9)
        client.send(commit_request("old", 700), 8)
        client.send(commit_request("new", 700), 8)
        wake(started)
        for _ in range(4):
            # It may end before it has answered.
            with contextlib.suppress(ConnectionEnded, ConnectionResetError):
                answer = client.receive()
                print(answer)
                assert error_of(answer) != Code.NONE
        assert started.wait() == 1
        (stopping,) = [line for line in started.log().splitlines() if "stopping" in line]
        assert "another server took node.id=1 over" in stopping
        assert f"pid {other.pid}" in stopping
        late.send(1_000)
        late.settle()
        late.check(other.kafka)
        early.check(other.kafka)
        with Wire(other.kafka) as asking:
            assert [asking.committed(group, "first") for group in ("old", "new")] == [500, -1]


@pytest.mark.crash
def test_a_redis_that_comes_back_soon_is_waited_for(storage: External, started: Server) -> None:
    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        for _ in range(2):
            goal = ledger.acknowledged_count + 5_000
            while ledger.acknowledged_count < goal:
                ledger.send(100)
            storage.kill()
            ledger.send(1_000)
            storage.start()
            ledger.settle()
        assert ledger.refused == {}
        assert ledger.acknowledged_count == sum(ledger.sent)
        ledger.check(started.kafka)


@pytest.mark.crash
def test_a_redis_that_hangs_for_a_moment_costs_nothing(storage: External, started: Server) -> None:
    with Ledger(started.kafka, "kept") as ledger:
        ledger.send(1_000)
        storage.send(signal.SIGSTOP)
        wakes = threading.Timer(SESSION_S / 2, storage.send, [signal.SIGCONT])
        wakes.start()
        ledger.send(10_000)
        ledger.settle()
        wakes.join()
        assert ledger.refused == {}
        ledger.check(started.kafka)


def status(started: Server, path: str) -> int:
    try:
        with urllib.request.urlopen(started.http + path, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.crash
def test_a_redis_that_is_away_for_longer_than_a_session_finds_its_server_again(
    storage: External, started: Server
) -> None:
    with Ledger(started.kafka, "kept") as ledger:
        ledger.send(1_000)
        ledger.settle()
        storage.kill()
        away = time.monotonic() + 1.1 * SESSION_S
        ledger.send(1_000)
        wait_for(lambda: status(started, "/healthz") == 503, "a check of the storage")
        while time.monotonic() < away:
            assert status(started, "/healthz") == 503
        assert status(started, "/readyz") == 503
        assert status(started, "/livez") == 200
        storage.start()
        ledger.settle()
        assert ledger.refused == {}
        ledger.check(started.kafka)
        wait_for(lambda: status(started, "/healthz") == 200, "a check of the storage")
        assert status(started, "/readyz") == status(started, "/livez") == 200


def test_a_redis_without_enough_replicas_is_reported_while_it_can_be_read(storage: External, started: Server) -> None:
    def detail() -> str:
        with urllib.request.urlopen(started.http + "/readyz", timeout=60) as answer:
            told: dict[str, str] = json.loads(answer.read())
        assert told["status"] == "ready"
        return told.get("detail", "")

    with redis.Redis.from_url(storage.url) as link:
        assert detail() == ""
        link.config_set("min-replicas-to-write", 1)
        wait_for(lambda: "NOREPLICAS" in detail(), "a check of the storage")
        link.config_set("min-replicas-to-write", 0)
        wait_for(lambda: "NOREPLICAS" not in detail(), "a check of the storage")


def test_a_redis_whose_memory_is_full_is_named_as_such(folder: Path) -> None:
    with external(folder, *KEPT, "--maxmemory", "1mb") as storage:
        ended = serve(storage.url)
        assert ended.returncode == 1
        (line,) = ended.stderr.splitlines()
        assert f"{storage.url} accepts no writes: its memory is full (OOM); raise its maxmemory" in line


def test_a_redis_that_is_not_there_is_named(folder: Path) -> None:
    with external(folder) as storage:
        storage.kill()
        ended = serve(storage.url)
        assert ended.returncode == 1
        (line,) = ended.stderr.splitlines()
        assert storage.url in line
        assert "--redis" in line
