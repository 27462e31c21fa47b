"""The demo from end to end, on its first flights. The whole of it is `make run ARGS=--exit`."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.demo.processes import MARKER

FLIGHTS = 12_000


@pytest.fixture
def place() -> Iterator[Path]:
    """A path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as parent:
        yield Path(parent)


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    # On free ports: at a well-known one, clients of another test's demo would make their topic in this one's server.
    ports = ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command = [sys.executable, "-m", "headrace", "demo", "--flights", str(FLIGHTS), *ports, *arguments]
    environment = {**os.environ, "TMPDIR": str(place), "HEADRACE_REDIS": "redis://127.0.0.1:1/0"}
    return subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def left(place: Path) -> list[str]:
    """Command lines of the processes that have their data or their current directory there, after a moment to go."""
    deadline = time.monotonic() + 120
    while (found := living(place)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def living(place: Path) -> list[str]:
    """The same at this moment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = (process / "cwd").readlink()
            line = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if here.is_relative_to(place) or str(place) in line:
            found.append(line)
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_figure_agrees(place: Path) -> None:
    with start(place, "--exit", "--rate", "0") as demo:
        output, _ = demo.communicate(timeout=800)
    assert demo.returncode == 0, output
    assert "Every figure agreed." in output
    assert "killed with SIGKILL" in output
    assert re.search(r"reader-4 has partitions \d", output)
    assert "DIFFERS" not in output
    table = DeltaTable(place / ".headrace-demo" / "flights-table")
    assert sum(table.get_add_actions(flatten=True).column("num_records").to_pylist()) == FLIGHTS
    assert {entry.name for entry in place.iterdir()} == {".headrace-demo"}
    assert left(place) == []


@pytest.mark.demo_cluster
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_every_figure_agrees_on_a_cluster_too(place: Path) -> None:
    """Three brokers over a Redis Cluster, one of them killed besides the reader; then no process is left."""
    with start(place, "--cluster", "--exit", "--rate", "4000") as demo:
        output, _ = demo.communicate(timeout=1100)
    assert demo.returncode == 0, output
    assert "Every figure agreed." in output
    assert "Redis Cluster of 3 primaries with a replica each" in output
    assert re.search(r"reader-\d \(partitions .*\) killed with SIGKILL", output)
    assert "broker-2 killed with SIGKILL" in output
    assert "DIFFERS" not in output
    assert left(place) == []


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_interrupted_it_leaves_no_process_behind(place: Path, number: signal.Signals) -> None:
    with start(place, "--rate", "1000") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "reader-2 has partitions" in line:
                break
        demo.send_signal(number)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert left(place) == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_without_its_server_it_fails_and_leaves_no_process_behind(place: Path) -> None:
    with start(place, "--exit", "--rate", "1000") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "reader-2 has partitions" in line:
                break
        os.kill(int((place / ".headrace-demo" / "lock").read_text()), signal.SIGKILL)
        rest = demo.stdout.read()
    assert demo.returncode == 1, rest
    assert "headrace: server was ended by SIGKILL" in rest
    assert left(place) == []


def test_anybody_elses_directory_is_not_emptied(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "precious").touch()
    with start(place, "--data", "mine") as demo:
        output, _ = demo.communicate(timeout=240)
    assert (demo.returncode, [entry.name for entry in (place / "mine").iterdir()]) == (1, ["precious"])
    assert MARKER not in output
    assert output.startswith("headrace: mine was not made by `headrace demo`")
