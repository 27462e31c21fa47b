"""Kafka's own tools manage access rules and quotas here: `make test LANE=security`; Maven fetches them."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.harness.apache_kafka import jars

from headrace.broker.config.keys import STANDARD_AUTHORIZER
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


def test_kafka_configs_sets_lists_and_deletes_quotas() -> None:
    with server() as started:

        def kafka_configs(*arguments: str) -> str:
            command = ["java", "-cp", jars(), "kafka.admin.ConfigCommand", "--bootstrap-server", started.kafka]
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        jane = ("--entity-type", "users", "--entity-name", "jane")
        kafka_configs("--alter", *jane, "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
        kafka_configs(
            "--alter", "--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default",
            "--add-config", "consumer_byte_rate=4194304",
        )  # fmt: skip
        kafka_configs(
            "--alter", "--entity-type", "ips", "--entity-name", "203.0.113.7", "--add-config",
            "connection_creation_rate=5",
        )  # fmt: skip
        told = kafka_configs("--describe", *jane)
        assert "producer_byte_rate=1048576.0" in told
        assert "request_percentage=12.5" in told
        assert "consumer_byte_rate=4194304.0" in kafka_configs(
            "--describe", "--entity-type", "users", "--entity-type", "clients"
        )
        assert "connection_creation_rate=5.0" in kafka_configs("--describe", "--entity-type", "ips")
        kafka_configs("--alter", *jane, "--delete-config", "producer_byte_rate")
        assert "producer_byte_rate" not in kafka_configs("--describe", *jane)


def test_kafka_topics_describes_a_page_of_partitions_at_a_time() -> None:
    with server() as started:

        def kafka_topics(*arguments: str) -> str:
            command = ["java", "-cp", jars(), "org.apache.kafka.tools.TopicCommand"]
            command += ["--bootstrap-server", started.kafka, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        for name in ("first", "second"):
            kafka_topics("--create", "--topic", name, "--partitions", "5")
        # Without this option the tool describes __consumer_offsets as well, as with Apache Kafka.
        described = kafka_topics("--describe", "--exclude-internal", "--partition-size-limit-per-response", "2")
        assert re.findall(r"Topic: (\w+)\s+Partition: (\d)\s+Leader: 1", described) == [
            (name, str(index)) for name in ("first", "second") for index in range(5)
        ]
