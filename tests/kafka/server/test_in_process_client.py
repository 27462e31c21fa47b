"""Requests from within the server take the path of a listener's: ACLs, quotas, and the audit log."""

import threading
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from structlog.testing import capture_logs
from tests.console.visiting import Answer, Visit, create
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.kafka.quota_admin import Admin

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.protocol.messages import ListOffsetsRequest
from headrace.testing import InProcessServer


def test_acls_and_the_audit_log_name_the_viewer(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    with InProcessServer(
        oci_auth="verify", oci_auth_keys=tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, console_write=True,
        bootstrap_user=first, super_users="User:ANONYMOUS", connection_failed_authentication_delay_ms=0,
    ) as server:  # fmt: skip
        create(server, ("orders", 1), ("hidden", 1))
        kafka = AdminClient({"bootstrap.servers": server.kafka})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        kafka.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"pw")])["bob"].result(60)
        rule = AclBinding(
            ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        kafka.create_acls([rule])[rule].result(60)
        bob = Visit.of(server, "bob", "pw")
        bob.ask("/topics/orders/produce")
        assert bob.done("/topics/orders/produce", {"value": "v"}).status == 200
        with capture_logs() as logged:
            assert bob.ask("/topics/hidden/produce").body == b"User:bob may not Write Topic hidden.\n"
            assert bob.post("/topics/hidden/produce", {"value": "v"}).status == 403
            assert bob.ask("/topics/missing/produce").status == 403
            assert bob.post("/topics/orders/produce", {"partition": "9"}).status == 400
        assert {each["principal"] for each in logged if each["event"] == "not authorized"} == {"User:bob"}
        [line] = (each for each in logged if each["event"] == "batch refused")
        assert (line["principal"], line["client"], line["topic"]) == ("User:bob", "127.0.0.1", "orders")


def test_a_response_beyond_a_quota_is_delayed_by_its_throttle_time() -> None:
    with InProcessServer(console_write=True) as limited, Admin(limited.kafka, client_id="admin") as admin:
        _throttled(limited, admin)


def _throttled(limited: InProcessServer, admin: Admin) -> None:
    create(limited, ("throttled", 1))
    admin.limit({"client-id": "headrace-console"}, producer_byte_rate=1_000)
    visit = Visit(limited)
    visit.ask("/topics/throttled/produce")
    answers: list[Answer] = []

    def post() -> None:
        answers.append(visit.post("/topics/throttled/produce", {"value": "x" * 20_000, "partition": "0"}))

    posting = threading.Thread(target=post)
    posting.start()
    with Wire(limited.kafka) as wire:
        topic = ListOffsetsRequest.ListOffsetsTopic(
            name="throttled", partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
        )

        def is_stored() -> bool:
            [found] = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 5).topics[0].partitions
            return bool(found.offset == 1)

        wait_for(is_stored, "the record")
    assert not answers
    limited.clock.advance(seconds=30)
    posting.join(60)
    assert [each.status for each in answers] == [303]
