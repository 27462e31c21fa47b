"""`oci.kafka=strict` and Java's own producer: it fails with its defaults, as in the cloud."""

import subprocess
from pathlib import Path

import pytest
from tests.clients.secured.programs import Java

from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients

TOPIC = "orders"


@pytest.mark.maven
def test_a_producer_fails_by_default_and_works_without_idempotence(tmp_path: Path) -> None:
    java = Java(tmp_path)
    with InProcessServer(oci_kafka="strict") as server:
        OciClients(server.http).create_stream(TOPIC)
        command, _ = java.following(server.kafka, TOPIC)
        failed = subprocess.run(command, input="one\n", capture_output=True, text=True, timeout=240, check=False)
        with (tmp_path / "plain.properties").open("a") as properties:
            properties.write("enable.idempotence=false\n")
        worked = subprocess.run(command, input="one\n", capture_output=True, text=True, timeout=240, check=False)
    assert failed.returncode != 0
    assert "does not support INIT_PRODUCER_ID" in failed.stderr
    assert (worked.returncode, worked.stdout.splitlines()[-1]) == (0, '["one"]'), worked.stderr
