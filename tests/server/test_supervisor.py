"""`headrace serve --brokers N`: several processes over one embedded Valkey."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.ledger import Ledger
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.broker.config.settings import BrokerSettings
from headrace.oci.settings import OciSettings
from headrace.security.access.listeners import Listener, Protocol
from headrace.server.config import SettingsError, load
from headrace.server.supervisor import decode_task, encode, tasks
from headrace.testing import Server, server
from headrace.text.addresses import Address

PARTITIONS = 6
SETTINGS: dict[str, Any] = {"broker_session_timeout_ms": 3_000, "broker_heartbeat_interval_ms": 300}


def processes(parent: int) -> list[int]:
    """The processes of the brokers."""
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split())
    found = []
    for child in children:
        # One may end between the two looks.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"headrace.cli.commands.broker" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def nodes(kafka: str) -> list[int]:
    """The live brokers, as one of them lists them; none while it does not respond."""
    try:
        with Wire(kafka) as wire:
            return [each.node_id for each in wire.metadata().brokers]
    except OSError:
        return []


def create(started: Server, topic: str) -> None:
    first, *others = started.kafka.split(",")
    with Wire(first) as wire:
        wire.create(topic, PARTITIONS)
    for place in others:
        with Wire(place) as wire:
            wait_for(lambda wire=wire: len(wire.metadata(topic).topics[0].partitions) == PARTITIONS, "the topic")  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.crash
def test_brokers_of_one_machine_share_the_work_and_outlive_each_other(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(data=data, arguments=["--brokers", "3"], **SETTINGS) as started:
        places = started.kafka.split(",")
        assert len(places) == len(set(started.http.split(","))) == 3
        wait_for(lambda: all(nodes(place) == [1, 2, 3] for place in places), "three brokers")
        create(started, "kept")
        with Ledger(started.kafka, "kept", partitions=PARTITIONS, socket_timeout_ms=2_000) as ledger:
            ledger.send(2_000)
            ledger.settle()
            # One dies: it is started again, at the address that it had.
            victim = processes(started.pid)[0]
            os.kill(victim, signal.SIGKILL)
            ledger.send(2_000)
            ledger.settle()
            wait_for(lambda: len(processes(started.pid)) == 3 and victim not in processes(started.pid), "another one")
            wait_for(lambda: all(nodes(place) == [1, 2, 3] for place in places), "three brokers again")
            ledger.send(2_000)
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(started.kafka)
        # Who started them dies: they end too, and the next one on the same data begins where they were.
        left = processes(started.pid)
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in left), "the brokers to end")
        with server(data=data, arguments=["--brokers", "2"], **SETTINGS) as again:
            ledger.check(again.kafka)


def test_a_data_directory_is_served_by_one_broker_or_by_several(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ledgers = []
    for topic, arguments in (("by-one", []), ("by-two", ["--brokers", "2"]), ("by-one-again", [])):
        with server(data=data, arguments=arguments) as started:
            create(started, topic)
            with Ledger(started.kafka, topic, partitions=PARTITIONS) as ledger:
                ledger.send(100)
                ledger.settle()
            ledgers.append(ledger)
            for each in ledgers:
                each.check(started.kafka)


def taken_in_a_row(count: int, stack: contextlib.ExitStack) -> int:
    """Return the first of that many consecutive ports that are in use."""
    while True:
        held = contextlib.ExitStack()
        try:
            first = 0
            for number in range(count):
                listener = held.enter_context(socket.socket())
                listener.bind(("127.0.0.1", first + number if first else 0))
                listener.listen()
                first = first or listener.getsockname()[1]
        except (OSError, OverflowError):
            held.close()
            continue
        stack.push(held)
        return first


def test_a_refused_start_is_reported_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first = taken_in_a_row(3, stack)
        command = [sys.executable, "-m", "headrace", "serve", "--brokers", "3", "--log-level", "error"]
        command += ["--kafka", f"127.0.0.1:{first}", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("headrace: cannot listen on 127.0.0.1:")


def test_each_broker_has_an_id_and_ports_of_its_own() -> None:
    options, settings, oci = load({"brokers": "3", "kafka": "127.0.0.1:9092", "http": "127.0.0.1:0"}, environ={})
    own = BrokerSettings.of(settings.given | {"node.id": "5"})
    made = [decode_task(encode(each)) for each in tasks("unix:///x", options, own, oci)]
    assert [each.settings["node.id"] for each in made] == ["5", "6", "7"]
    for place, each in enumerate(made):
        address = Address("127.0.0.1", 9092 + place)
        assert (each.options.kafka, each.options.http) == (address, Address("127.0.0.1", 0))
        assert each.options.listeners == (Listener("PLAINTEXT", Protocol.PLAINTEXT, address, None),)
        assert (each.options.redis, each.options.disk, each.oci) == ("unix:///x", options.data, OciSettings.of())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"brokers": "0"}, "--brokers 0: expected a number from 1 to 64, found '0'"),
        ({"brokers": "many"}, "--brokers many: expected a number from 1 to 64, found 'many'"),
        ({"brokers": "2", "redis": "redis://localhost"}, "is about the embedded Valkey: with --redis start each"),
    ],
)
def test_nonsense_is_reported(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(flags, environ={})
