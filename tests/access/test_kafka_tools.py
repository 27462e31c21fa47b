"""Kafka's own `kafka-acls` manages access rules here: `make test-security`; Maven fetches it."""

import subprocess
from pathlib import Path

import pytest
from tests.harness.apache_kafka import jars

from headrace.broker.access_settings import STANDARD_AUTHORIZER
from headrace.testing import server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]


def test_kafka_acls_adds_lists_and_removes(tmp_path: Path) -> None:
    with server(
        authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS", oci_auth="verify",
        oci_auth_keys=tmp_path,
    ) as started:  # fmt: skip

        def kafka_acls(*arguments: str) -> str:
            command = ["java", "-cp", jars(), "org.apache.kafka.tools.AclCommand", "--bootstrap-server", started.kafka]
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        kafka_acls("--add", "--allow-principal", "User:jane", "--consumer", "--topic", "orders", "--group", "billing")
        kafka_acls(
            "--add", "--deny-principal", "User:bob", "--operation", "All", "--topic", "logs-",
            "--resource-pattern-type", "prefixed",
        )  # fmt: skip
        listed = kafka_acls("--list")
        assert "name=orders, patternType=LITERAL" in listed
        assert "name=logs-, patternType=PREFIXED" in listed
        assert "principal=User:bob, host=*, operation=ALL, permissionType=DENY" in listed
        assert "name=logs-" in kafka_acls("--list", "--topic", "logs-1", "--resource-pattern-type", "match")
        kafka_acls("--remove", "--force", "--topic", "orders")
        left = kafka_acls("--list")
        assert "orders" not in left
        assert "name=billing" in left
