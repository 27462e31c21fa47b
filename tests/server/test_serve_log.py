"""Log lines for operators: changes with their principal, logins, disconnects and refused clients."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from tests.harness.member import Member
from tests.harness.wire import Wire
from tests.oci.conftest import Api

from headrace.testing import Server, server


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(
        arguments=["--log-format", "json"],
        group_initial_rebalance_delay_ms=0,
        group_min_session_timeout_ms=10,
        oci_auth="off",
    ) as started:
        yield started


def lines(running: Server, event: str, **fields: object) -> list[dict[str, Any]]:
    """Every line of this event with these fields, once there is one."""
    while True:
        whole, _, _ = running.log().rpartition("\n")  # behind it a line may be under way
        found = [json.loads(line) for line in whole.splitlines()]
        wanted = [line for line in found if line["event"] == event and fields.items() <= line.items()]
        if wanted:
            return wanted
        assert running.running


def test_topics_from_beginning_to_end(running: Server) -> None:
    admin = AdminClient({"bootstrap.servers": running.kafka, "client.id": "night-shift"})
    by = {"client": "127.0.0.1", "client_id": "night-shift"}
    admin.create_topics([NewTopic("log-flights", 2, config={"retention.ms": "5000"})])["log-flights"].result(60)
    (created,) = lines(running, "topic created", topic="log-flights")
    assert created.items() >= (by | {"partitions": 2, "level": "info"}).items()
    assert "retention.ms" in created["config"]
    entry = ConfigEntry("retention.ms", "6000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("TOPIC", "log-flights", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    (altered,) = lines(running, "topic altered", topic="log-flights")
    assert altered.items() >= by.items()
    assert altered["changed"] == {"retention.ms": "6000"}
    admin.create_partitions([NewPartitions("log-flights", 5)])["log-flights"].result(60)
    (grown,) = lines(running, "topic altered", topic="log-flights", partitions=5)
    assert grown.items() >= (by | {"before": 2}).items()
    admin.delete_topics(["log-flights"])["log-flights"].result(60)
    (deleted,) = lines(running, "topic deleted", topic="log-flights")
    assert deleted.items() >= by.items()


def test_changes_by_oci_are_logged_with_the_request(running: Server) -> None:
    api = Api(running.http)
    made = {"name": "log-stream", "partitions": 1, "compartmentId": "ocid1.compartment.oc1..a"}
    reply = api.call("POST", "/streams", made, {"opc-request-id": "the-one-that-made-it"})
    assert reply.status == 200
    api.close()
    (created,) = lines(running, "topic created", topic="log-stream")
    assert created["request"] == reply.headers["opc-request-id"]
    assert created["client"] == "127.0.0.1"


def test_members_come_and_go(running: Server) -> None:
    with Wire(running.kafka) as wire:
        topic = wire.create("log-members")
    with Member(running.kafka, "log-leaving", topic, client_id="reader") as member:
        member.join()
        (joined,) = lines(running, "member joined", group="log-leaving")
        assert joined.items() >= {"member": member.member_id, "client_id": "reader", "host": "/127.0.0.1"}.items()
        assert (joined["generation"], joined["members"]) == (member.generation - 1, 1)
        member.leave()
        (left,) = lines(running, "member left", group="log-leaving")
        assert left.items() >= {"member": member.member_id, "members": 0}.items()


def test_members_that_fall_silent_expire(running: Server) -> None:
    with Wire(running.kafka) as wire:
        topic = wire.create("log-silent")
    with Member(running.kafka, "log-silent", topic, session_ms=2_000) as member:
        member.join()
        (expired,) = lines(running, "member expired", group="log-silent")
        assert expired["member"] == member.member_id
        assert expired["reason"] == "no heartbeat for 2 s"


def test_instances_of_oci_come_and_go(running: Server) -> None:
    api = Api(running.http)
    made = api.done("POST", "/streams", {"name": "log-i", "partitions": 1, "compartmentId": "ocid1.compartment.oc1..a"})
    cursor = api.group_cursor(made["id"], "log-instances", instanceName="a", timeoutInMs=1_000)
    assert api.get(made["id"], cursor).status == 200
    api.close()
    # Where a second goes by between the two requests it expires twice.
    joined, *_ = lines(running, "member joined", group="log-instances")
    assert joined["member"] == "log-i/a"
    expired, *_ = lines(running, "member expired", group="log-instances")
    assert expired["reason"] == "no request within its timeout"


def test_at_debug_every_connection_and_request_has_a_line() -> None:
    with server(arguments=["--log-format", "json", "--log-level", "debug"], oci_auth="off") as started:
        with Wire(started.kafka, client_id="curious") as wire:
            wire.create("log-debug")
            wire.metadata("log-debug")
        assert lines(started, "connection opened", client="127.0.0.1")
        (asked,) = lines(started, "request", api="Metadata", client_id="curious")
        assert asked["ms"] >= 0
        assert lines(started, "connection ended by the client")
        api = Api(started.http)
        api.call("GET", "/streams?compartmentId=ocid1.compartment.oc1..a")
        api.close()
        (listed,) = lines(started, "request", operation="ListStreams")
        assert listed["status"] == 200
