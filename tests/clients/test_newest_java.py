"""Java's own clients, which use the newest version of everything."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.clients.secured.programs import Java
from tests.harness.wire import Wire

from headrace.kafka import single_batch
from headrace.protocol import produce
from headrace.testing import InProcessServer

TOPIC = "orders"
BY_ID = 13


@pytest.mark.maven
def test_they_name_topics_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their batches take the shortcut, too."""
    versions: list[int] = []

    def noted(*frame: Any) -> Any:
        found = produce.read(*frame)
        versions.append(-1 if found is None else found[0])
        return found

    monkeypatch.setattr(single_batch, "read", noted)
    java = Java(tmp_path)
    with InProcessServer() as server:
        with Wire(server.kafka) as wire:
            wire.create(TOPIC)
        command, _ = java.following(server.kafka, TOPIC)
        done = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, timeout=240, check=False)
        with Wire(server.kafka) as wire:
            assert wire.offset(TOPIC, -1).offset == 2
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, '["one", "two"]'), done.stderr
    assert versions
    assert set(versions) == {BY_ID}
