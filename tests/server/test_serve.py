"""`headrace serve` as a process: how it starts, stops, refuses to start, and what it says then."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.ledger import Ledger
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, fetch_request

from headrace.protocol.messages import DescribeGroupsRequest, JoinGroupRequest
from headrace.testing import Addresses, Server, server

STOP_S = 45.0


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself, in an environment without our variables."""
    command = [sys.executable, "-m", "headrace", "serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments]
    environment = {"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def refused(ended: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line that says why the server did not start."""
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return line


@contextmanager
def process(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A server whose output the test reads itself, ended if it still runs."""
    command = [sys.executable, "-m", "headrace", "serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()


def first_line(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline()


def answers(address: str) -> bool:
    host, port = address.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5):
        return True


def health(started: Server) -> tuple[int, dict[str, Any]]:
    """Status and body of `/healthz`."""
    try:
        with urllib.request.urlopen(started.http + "/healthz", timeout=60) as answer:
            return answer.status, msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, msgspec.json.decode(error.read())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, so that the socket is in the data directory."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as path:
        yield Path(path)


# Ready


def test_one_line_says_where_every_listener_answers(folder: Path) -> None:
    begun = time.monotonic()
    with process("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", str(folder / "data")) as running:
        line = first_line(running)
        print(f"ready after {time.monotonic() - begun:.2f} s")
        told = Addresses.parse(line)
        assert line == f"ready kafka={told.kafka} http={told.http} storage={told.storage}\n"
        assert told.storage == f"unix://{folder}/data/sock"
        for address in (told.kafka, told.http):
            assert not address.endswith(":0")
            assert answers(address)
        running.send_signal(signal.SIGTERM)
        rest, _ = running.communicate(timeout=60)
        assert (rest, running.returncode) == ("", 0)


def test_more_listeners_stand_behind_it(folder: Path) -> None:
    two = ("--set", "listeners=PLAINTEXT://127.0.0.1:0,SECOND://[::1]:0")
    protocols = ("--set", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT")
    with process(*two, *protocols, "--http", "127.0.0.1:0", "--data", str(folder / "data")) as running:
        line = first_line(running)
        told = Addresses.parse(line)
        second = told.listeners["SECOND"]
        assert line == f"ready kafka={told.kafka} http={told.http} storage={told.storage} listener.SECOND={second}\n"
        for address, host in ((told.kafka, "127.0.0.1"), (second.replace("[::1]", "::1"), "::1")):
            with Wire(address) as client:
                (broker,) = client.metadata().brokers
            assert (broker.host, str(broker.port)) == (host, address.rsplit(":", 1)[1])


def test_on_every_interface_it_answers_on_loopback_too(folder: Path) -> None:
    everywhere = ("--kafka", "0.0.0.0:0", "--http", "0.0.0.0:0", "--set", "headrace.insecure=true")
    with process(*everywhere, "--data", str(folder / "data")) as running:
        told = Addresses.parse(first_line(running))
        assert told.kafka.startswith("0.0.0.0:")
        assert told.http.startswith("http://0.0.0.0:")
        reached = told.kafka.replace("0.0.0.0", "127.0.0.1")
        assert answers(told.http.replace("0.0.0.0", "127.0.0.1"))
        with Wire(reached) as client:
            # Clients cannot connect to 0.0.0.0: the server returns the address of their connection.
            (broker,) = client.metadata().brokers
            assert f"{broker.host}:{broker.port}" == reached


def test_the_advertised_address_is_returned(folder: Path) -> None:
    with Server(folder / "data", ["--advertise", "broker.example.org:19092"]) as started, Wire(started.kafka) as client:
        (broker,) = client.metadata().brokers
        assert f"{broker.host}:{broker.port}" == "broker.example.org:19092"


def test_a_data_directory_with_a_very_long_name(folder: Path) -> None:
    data = folder / ("x" * 200)
    with Server(data) as started:
        socket_file = Path(started.storage.removeprefix("unix://"))
        assert not socket_file.is_relative_to(data)
        assert socket_file.parent.stat().st_mode & 0o777 == 0o700
        with Ledger(started.kafka, "kept") as ledger:
            ledger.send(100)
            ledger.settle()
            started.kill()
            started.start()
            ledger.check(started.kafka)
        started.stop()
    assert not socket_file.parent.exists()


# Stop


@contextmanager
def clients_that_wait(started: Server) -> Iterator[None]:
    """A long poll, a join that is held, an idle connection, half a request, and a browser's idle connection."""
    with ExitStack() as stack:
        waiting, other = (stack.enter_context(Wire(started.kafka)) for _ in range(2))
        other.create("polled")
        waiting.send(fetch_request([("polled", 0, 0)], max_wait_ms=60_000), 12)
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
        join = JoinGroupRequest(
            group_id="held",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[protocol],
        )
        waiting.send(join, 3)
        while not other.ask(DescribeGroupsRequest(groups=["held"]), 5).groups[0].members:
            pass
        other.send_bytes(b"\x00\x00")
        host, port = started.http.removeprefix("http://").rsplit(":", 1)
        browser = stack.enter_context(socket.create_connection((host, int(port)), 5))
        browser.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert browser.recv(4096).startswith(b"HTTP/1.1 200")
        yield


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_with_waiting_clients(number: signal.Signals) -> None:
    with server(group_initial_rebalance_delay_ms=60_000) as started, clients_that_wait(started):
        begun = time.monotonic()
        os.kill(started.pid, number)
        assert started.wait() == 0
        assert time.monotonic() - begun < STOP_S
        assert "Traceback" not in started.log()


# Refused


def test_the_oci_listener_is_not_opened_to_other_machines_unverified(folder: Path) -> None:
    data = ("--data", str(folder / "data"))
    line = refused(serve(*data, "--http", "0.0.0.0:0"), 2)
    assert line.startswith(
        "headrace: --http 0.0.0.0 is open to other machines, and oci.auth=parse accepts every client"
    )
    assert "--set headrace.insecure=true" in line
    assert not (folder / "data").exists()


def test_the_kafka_listener_has_the_same_rule(folder: Path) -> None:
    line = refused(serve("--data", str(folder / "data"), "--kafka", "0.0.0.0:0"), 2)
    assert line.startswith("headrace: --kafka 0.0.0.0 is open to other machines, and its clients need no password")
    assert "--set headrace.insecure=true" in line
    assert not (folder / "data").exists()


def test_verifying_needs_a_directory_of_keys(folder: Path) -> None:
    verify = ("--data", str(folder / "data"), "--http", "0.0.0.0:0", "--set", "oci.auth=verify")
    assert refused(serve(*verify), 2) == "headrace: oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
    line = refused(serve(*verify, "--set", f"oci.auth.keys={folder}/none"), 2)
    assert line.startswith(f"headrace: oci.auth.keys={folder}/none is no directory")
    keys = ("--set", f"oci.auth.keys={folder}")
    line = refused(serve(*verify, *keys, "--set", f"oci.auth.tokens={folder}/none"), 2)
    assert line.startswith(f"headrace: oci.auth.tokens={folder}/none is no file")
    line = refused(serve(*verify, *keys, "--kafka", "0.0.0.0:0"), 2)
    assert line.startswith("headrace: Kafka clients have to log in at 0.0.0.0 with oci.auth=verify")
    with Server(folder / "data", ["--set", "oci.auth=verify", "--set", f"oci.auth.keys={folder}"]) as started:
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            urllib.request.urlopen(started.http + "/20180418/streams/x/messages?cursor=y", timeout=60)
        with caught.value as error:
            assert msgspec.json.decode(error.read())["code"] == "NotAuthenticated"


def test_a_data_directory_in_use_is_refused_naming_who_uses_it(folder: Path) -> None:
    with Server(folder / "data") as first:
        line = refused(serve("--data", str(first.data)), 1)
        assert str(first.data) in line
        assert str(first.pid) in line
        assert "--data" in line
        # A repeated command: its addresses are taken, too, and other ones would not help.
        again = serve("--data", str(first.data), "--kafka", first.kafka, "--http", first.http.removeprefix("http://"))
        assert refused(again, 1) == line
        assert health(first)[0] == 200


@pytest.mark.parametrize("option", ["--kafka", "--http"])
def test_a_busy_port_is_named(folder: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(serve("--data", str(folder / "data"), option, address), 1)
    assert address in line
    assert option in line
    assert not (folder / "data").exists()


def test_a_host_that_is_not_ours_is_named(folder: Path) -> None:
    assert "203.0.113.1:9092" in refused(serve("--data", str(folder / "data"), "--kafka", "203.0.113.1:9092"), 1)
    assert "nowhere.invalid:9092" in refused(
        serve("--data", str(folder / "data"), "--kafka", "nowhere.invalid:9092"), 1
    )


@pytest.mark.parametrize("arguments", [["--nonsense", "1"], ["--set", "num.partition=1"], ["--kafka", "nonsense"]])
def test_what_it_does_not_know_stops_the_start(arguments: list[str]) -> None:
    assert "nonsense" in (line := refused(serve(*arguments), 2)) or "num.partition" in line


def test_a_data_directory_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    line = refused(serve("--data", str(folder / "file" / "data")), 1)
    assert f"cannot keep data in {folder}/file/data" in line
    line = refused(serve("--data", str(folder / "file")), 1)
    assert f"cannot keep data in {folder}/file: there is something else of that name" in line


def test_a_data_directory_that_cannot_be_written_is_named() -> None:
    # Not even root writes there.
    assert "cannot keep data in /proc/headrace" in refused(serve("--data", "/proc/headrace"), 1)


# Health


def test_health_follows_the_storage() -> None:
    with server() as started:
        status, body = health(started)
        assert (status, body["status"], body["storage"]) == (200, "ok", "reachable")
        pid = started.storage_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: health(started)[0] == 503, "a check of the stopped storage")
            body = health(started)[1]
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (body["status"], body["storage"]) == ("failing", "unreachable")
        assert "did not answer" in body["detail"]
        wait_for(lambda: health(started)[0] == 200, "a check of the storage that answers again")


def test_a_copy_of_the_data_is_as_good_as_the_data(folder: Path) -> None:
    with Server(folder / "data") as started, Ledger(started.kafka, "kept") as ledger:
        ledger.send(1_000)
        ledger.settle()
        started.stop()
        shutil.copytree(folder / "data", folder / "copy")
        with Server(folder / "copy") as copied:
            ledger.check(copied.kafka)
