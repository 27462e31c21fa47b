"""Kafka's kafka-configs and the configurations of groups."""

import subprocess
from collections.abc import Iterator

import pytest
from tests.harness.apache_kafka import java_command

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]


@pytest.fixture
def running() -> Iterator[Server]:
    with server() as started:
        yield started


def configs(running: Server, *words: str) -> str:
    """What kafka-configs prints about groups, also when it fails."""
    command = java_command("kafka.admin.ConfigCommand", "--bootstrap-server", running.kafka, "--entity-type", "groups")
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=240, check=False)
    return done.stdout + done.stderr


def test_kafka_configs_changes_and_describes_groups(running: Server) -> None:
    group = ("--entity-name", "billing")
    changed = configs(
        running, *group, "--alter", "--add-config", "consumer.session.timeout.ms=50000,share.auto.offset.reset=earliest"
    )
    assert "Completed updating config for group billing." in changed
    described = configs(running, "--describe")
    assert "Dynamic configs for group billing are:" in described
    assert (
        "consumer.session.timeout.ms=50000 sensitive=false "
        "synonyms={DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000, "
        "DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}"
    ) in described
    assert "share.delivery.count.limit=5" in configs(running, *group, "--describe", "--all")
    refused = configs(running, *group, "--alter", "--add-config", "consumer.session.timeout.ms=100")
    assert "must be greater than or equal to group.consumer.min.session.timeout.ms" in refused
    configs(running, *group, "--alter", "--delete-config", "consumer.session.timeout.ms,share.auto.offset.reset")
    assert "billing" not in configs(running, "--describe")
