"""A server in a thread of this process: it is the real one, leaves the process alone, and goes by a clock of ours."""

import contextlib
import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, opened

from headrace.protocol.messages import JoinGroupRequest
from headrace.server.config import SettingsError, StartError
from headrace.testing import InProcessServer, MovableClock, ServerFailed


def health(server: InProcessServer) -> bytes:
    with urllib.request.urlopen(server.http + "/healthz", timeout=60) as answer:
        return bytes(answer.read())


def test_a_restart_keeps_addresses_records_and_the_moved_clock() -> None:
    with InProcessServer() as server:
        with Wire(server.kafka) as wire:
            wire.create("kept")
            assert wire.produce("kept", batch(b"one", timestamp=server.clock.now_ms())).error_code == 0
        addresses = server.kafka, server.http
        server.clock.advance(hours=1)
        before = server.clock.now_ms()
        server.restart()
        assert (server.kafka, server.http) == addresses
        assert server.clock.now_ms() >= before
        with Wire(server.kafka) as wire:
            assert [record.value for record in opened(wire.fetch("kept", 0).records)] == [b"one"]
        assert b'"ok"' in health(server)


BIND = """
import errno, socket, sys

for port in sys.argv[1:]:
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", int(port)))
        except OSError as error:
            print(errno.errorcode[error.errno])
        else:
            print("bound")
"""


def ports_of(server: InProcessServer) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in (server.kafka, server.http)]


def bound_here() -> set[int]:
    """Ports of 127.0.0.1 that sockets of this process have bound."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if link.is_socket():
                with socket.socket(fileno=os.dup(int(link.name))) as one:
                    if one.family is socket.AF_INET:
                        found.add(one.getsockname()[1])
    return found


@pytest.mark.parametrize("fixed", [False, True], ids=["chosen", "fixed"])
def test_other_processes_cannot_take_the_ports_of_a_stopped_server(fixed: bool) -> None:
    given: dict[str, Any] = {"listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"} if fixed else {}
    with InProcessServer(**given) as server:
        ports = ports_of(server)
        server.stop()
        # A client would leave connections in TIME_WAIT, which also keep others from binding the port.
        held = ports[1:] if fixed else ports
        command = [sys.executable, "-c", BIND, *map(str, held)]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert tried.stdout.split() == ["EADDRINUSE"] * len(held)
        for port in ports:
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        server.start()
        assert ports_of(server) == ports
        assert b'"ok"' in health(server)
    assert not bound_here() & set(ports)


def test_a_server_that_did_not_start_holds_no_port(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = bound_here()
    with pytest.raises(StartError, match="cannot keep data"):
        InProcessServer(tmp_path / "file").start()
    assert bound_here() <= before


def test_a_given_directory_is_kept_and_a_temporary_one_goes(tmp_path: Path) -> None:
    with InProcessServer(tmp_path / "data") as server:
        assert server.running
    assert (tmp_path / "data").is_dir()
    with InProcessServer() as server:
        data = server.data
        assert data.is_dir()
    assert not data.exists()
    assert not server.running


def test_time_that_passes_ends_a_session() -> None:
    with InProcessServer(group_initial_rebalance_delay_ms=0) as server, Wire(server.kafka) as wire:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[protocol],
        )
        first = wire.ask(join, 3)
        assert first.error_code == 0
        assert wire.generation("g") == first.generation_id
        server.clock.advance(seconds=46)
        # Without members, the next one starts its own generation, alone.
        second = wire.ask(join, 3)
        assert second.error_code == 0
        assert [member.member_id for member in second.members] == [second.member_id]
        assert second.generation_id > first.generation_id


def test_the_process_is_left_alone() -> None:
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    frozen, thresholds, threads = gc.get_freeze_count(), gc.get_threshold(), set(threading.enumerate())
    with InProcessServer():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
        assert gc.get_threshold() == thresholds
        # Some of the objects that pytest froze may be gone.
        assert gc.get_freeze_count() <= frozen
    assert set(threading.enumerate()) <= threads


def test_its_log_is_caught_by_pytest(caplog: pytest.LogCaptureFixture) -> None:
    with InProcessServer():
        pass
    assert any("stopped by the test" in record.getMessage() for record in caplog.records)


def test_two_servers_do_not_know_of_each_other() -> None:
    clock = MovableClock()
    with InProcessServer(clock=clock) as one, InProcessServer() as other:
        with Wire(one.kafka) as wire:
            wire.create("here")
        with Wire(other.kafka) as wire:
            assert wire.metadata("here").topics[0].error_code != 0
        clock.advance(hours=1)
        assert one.clock.now_ms() - other.clock.now_ms() >= 3_599_000


def test_an_external_redis_is_used_and_left_running(shared_valkey: RedisServer) -> None:
    with redis.Redis.from_url(shared_valkey.url) as link:
        link.flushall()
        with InProcessServer(redis=shared_valkey.url) as server:
            assert server.storage == shared_valkey.url
            server.restart()
            with Wire(server.kafka) as wire:
                wire.create("there")
                assert wire.produce("there", batch(b"one", timestamp=server.clock.now_ms())).error_code == 0
        # Named for the topic's id, too: there may be other brokers.
        assert list(link.scan_iter("headrace:there:0@*"))


def test_a_failed_start_reports_its_reason(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'no_such_setting'"):
        InProcessServer(no_such_setting=1)
    with pytest.raises(SettingsError, match=r"oci\.limits"):
        InProcessServer(oci_limits="sometimes")
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="cannot keep data"):
        InProcessServer(tmp_path / "file").start()


def test_misuse_is_reported() -> None:
    server = InProcessServer()
    with pytest.raises(ServerFailed, match="has not been started"):
        _ = server.kafka
    with server, pytest.raises(ServerFailed, match="running already"):
        server.start()
    server.stop()


def test_a_lost_storage_is_reported_at_the_end() -> None:
    server = InProcessServer()
    server.start()
    with redis.Redis.from_url(server.storage) as link:
        link.shutdown(nosave=True)
    deadline = time.monotonic() + 60
    while server.running:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with pytest.raises(ServerFailed, match="ended with status 1: the embedded Valkey"):
        server.close()


UNCLOSED = """
import gc
import urllib.request
from headrace.cli import main
from headrace.testing import InProcessServer
from tests.harness.wire import Wire, batch

with InProcessServer() as server:
    with Wire(server.kafka) as wire:
        wire.create("t")
        assert wire.produce("t", batch(b"one", timestamp=server.clock.now_ms())).error_code == 0
        wire.fetch("t", 0)
    with urllib.request.urlopen(server.http + "/metrics") as answer:
        answer.read()
    assert main.run(["records", "tail", "t", "--from-beginning", "--exit", "--bootstrap", server.kafka]) == 0
    server.restart()
gc.collect()
"""


def test_nothing_is_left_unclosed() -> None:
    """In a separate process: in that of the tests, other tests' clients leave objects."""
    command = [sys.executable, "-W", "error", "-c", UNCLOSED]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2]
    )
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr


KILLED = """
import os, signal
from headrace.testing import InProcessServer

with InProcessServer() as server:
    print(server.data, flush=True)
    server.restart()
    print(server.storage, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_stays_of_a_process_that_is_killed() -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    data, storage = ended.stdout.split()
    deadline = time.monotonic() + 60
    while Path(data).parent.exists():
        assert time.monotonic() < deadline, "the directory is still there"
        time.sleep(0.01)
    with redis.Redis.from_url(storage) as link, pytest.raises(redis.ConnectionError):
        link.ping()
    while any(_target(link).startswith(data) for link in Path("/proc").glob("[0-9]*/cwd")):
        assert time.monotonic() < deadline, "a process is still there"
        time.sleep(0.01)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
