"""Java's transactional clients, which use the second version of the protocol (KIP-890)."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.apache_kafka import jars
from tests.harness.wire import Wire

from headrace.broker.coordinator.transactions import TransactionCoordinator
from headrace.testing import InProcessServer
from headrace.transactions.effects import Result
from headrace.transactions.events import Add, End, Request, Verify
from headrace.transactions.model import TV2

PROGRAM = Path(__file__).parent / "transactions" / "Transactions.java"


@pytest.mark.maven
def test_records_and_offsets_are_written_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[type[Request], int]] = set()
    send = TransactionCoordinator.request

    async def noted(
        self: TransactionCoordinator, name: str, event: Request, given_up: Callable[[], bool] = lambda: False
    ) -> Result:
        seen.add((type(event), event.version if isinstance(event, Add | End) else 0))
        return await send(self, name, event, given_up)

    monkeypatch.setattr(TransactionCoordinator, "request", noted)
    with InProcessServer() as server:
        with Wire(server.kafka) as wire:
            source, target = wire.create("source"), wire.create("target")
        command = ["java", "-cp", jars(), str(PROGRAM), server.kafka, source, target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    fenced, _, values = done.stdout.splitlines()[-1].partition(" ")
    wanted = [f"{transaction}-{number}" for transaction in range(20) if transaction % 4 != 3 for number in range(5)]
    assert (fenced, values.split(",")) == ("true", [*wanted, "kept"])
    assert {(Add, TV2), (End, TV2)} <= seen
    assert not any(kind is Verify or version == 1 for kind, version in seen), "the second version only"
