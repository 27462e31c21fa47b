import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import Addresses, Server, ServerFailed, server

# Where Python finds Headrace is not ours to forget.
ALONE = {"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`headrace serve` that is expected to end by itself, in an environment without our variables."""
    command = [sys.executable, "-m", "headrace", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ALONE)


def test_it_says_when_it_is_ready_and_stops_with_status_0(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as started:
        assert not started.kafka.endswith(":0")
        assert started.http.startswith("http://127.0.0.1:")
        assert started.storage.startswith("unix://")
        started.stop()


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = serve("--kafka", address, "--http", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert address in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        ended = serve("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", str(first.data))
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert str(first.data) in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dat", "x"], "no such option '--dat'"),
        (["--set", "num.partition=1"], "did you mean num.partitions?"),
        (["--set", "log.cleanup.policy=compact"], "cannot be compacted"),
        (["--http", "https://127.0.0.1:0"], "--http https:// needs a certificate"),
        (
            [
                "--http",
                "https://127.0.0.1:0",
                "--set",
                "ssl.keystore.location=x.pem",
                "--set",
                "ssl.client.auth=required",
            ],
            "ssl.client.auth=required needs the authorities",
        ),
        (["--config", "/nowhere.toml"], "cannot read the configuration file /nowhere.toml"),
    ],
)
def test_nothing_unknown_starts_a_server(arguments: list[str], message: str) -> None:
    ended = serve("--kafka", "127.0.0.1:0", *arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_clients_get_the_advertised_address(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415  # after the server: its import takes a while

    with Server(tmp_path / "data", ["--advertise", "broker.example.org:19092"]) as started:
        (broker,) = AdminClient({"bootstrap.servers": started.kafka}).list_topics(timeout=60).brokers.values()
    assert f"{broker.host}:{broker.port}" == "broker.example.org:19092"


def test_the_ready_line_is_read_strictly() -> None:
    line = "ready kafka=127.0.0.1:9092 http=http://127.0.0.1:8080 storage=unix:///x/s?db=0\n"
    assert Addresses.parse(line) == Addresses("127.0.0.1:9092", "http://127.0.0.1:8080", "unix:///x/s?db=0")
    for wrong in ("ready\n", "started kafka=a http=b storage=c\n", "ready kafka=a http=b\n"):
        with pytest.raises(ValueError, match="not a ready line"):
            Addresses.parse(wrong)


def test_a_server_that_cannot_start_fails_the_fixture_with_its_log() -> None:
    with pytest.raises(ServerFailed, match="ended with status 2 before it was ready"), server(arguments=["--nonsense"]):
        pass


def test_an_unknown_setting_of_the_fixture_is_a_mistake_in_the_test() -> None:
    with pytest.raises(TypeError, match="num_partition"), server(num_partition=1):
        pass
