"""Logins and changes are logged, each in one line of the same form."""

from typing import Any

from structlog.testing import capture_logs
from tests.harness.guarded import ROOT, guarded
from tests.harness.wire import Wire, batch

from headrace.broker.admin.audit import MOST_LINES
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    DeleteAclsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    IncrementalAlterConfigsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from headrace.testing import InProcessServer

TOPIC, OPERATION_READ, ALLOW, ANY = 2, 3, 3, 1


def changes(wire: Any) -> None:
    """One of each kind."""
    wire.create("orders")
    wire.ask(
        CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="orders", count=2, assignments=None)],
            timeout_ms=5_000,
            validate_only=False,
        ),
        3,
    )
    config = IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    wire.ask(
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=TOPIC, resource_name="orders", configs=[config]
                )
            ],
            validate_only=False,
        ),
        1,
    )
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    wire.ask(
        DeleteRecordsRequest(
            topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="orders", partitions=[partition])], timeout_ms=5_000
        ),
        2,
    )
    committed = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    for group in ("billing", "accounting"):
        wire.ask(
            OffsetCommitRequest(
                group_id=group,
                topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[committed])],
            ),
            8,
        )
    deleted = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    wire.ask(
        OffsetDeleteRequest(
            group_id="billing",
            topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name="orders", partitions=[deleted])],
        ),
        0,
    )
    wire.ask(DeleteGroupsRequest(groups_names=["accounting"]), 2)
    creation = CreateAclsRequest.AclCreation(
        resource_type=TOPIC,
        resource_name="orders",
        principal="User:jane",
        host="*",
        operation=OPERATION_READ,
        permission_type=ALLOW,
    )
    wire.ask(CreateAclsRequest(creations=[creation]), 3)
    wanted = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter="orders",
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    wire.ask(DeleteAclsRequest(filters=[wanted]), 3)
    wire.ask(
        AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequest.EntryData(
                    entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="jane")],
                    ops=[
                        AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e6, remove=False),
                        AlterClientQuotasRequest.OpData(key="request_percentage", value=0.0, remove=True),
                    ],
                )
            ],
            validate_only=False,
        ),
        1,
    )
    wire.delete("orders")


def test_logins_and_changes_are_logged_with_user_address_and_request() -> None:
    with guarded() as server, capture_logs() as lines:
        with server.connect(ROOT) as wire:
            changes(wire)
        told = [line for line in lines if line["event"] in {"logged in", "changed"}]
    assert {(line["principal"], line["client"]) for line in told} == {(f"User:{ROOT}", "127.0.0.1")}
    assert (told[0]["event"], told[0]["reason"]) == ("logged in", "PLAIN")
    assert [(line["operation"], line["reason"]) for line in told[1:]] == [
        ("CreateTopics", "topic orders created, 1 partitions"),
        ("CreatePartitions", "topic orders has 2 partitions"),
        ("IncrementalAlterConfigs", "configuration of topic orders: retention.ms"),
        ("DeleteRecords", "records of orders-0 before 0 deleted"),
        ("OffsetDelete", "positions of group billing deleted: 1 partitions"),
        ("DeleteGroups", "group accounting deleted"),
        ("CreateAcls", "access rule of default created: allow User:jane Read Topic LITERAL:orders from *"),
        ("DeleteAcls", "access rule of default deleted: allow User:jane Read Topic LITERAL:orders from *"),
        ("AlterClientQuotas", "quotas of user jane: producer_byte_rate=1000000, request_percentage=none"),
        ("DeleteTopics", "topic orders deleted"),
    ]
    assert all(isinstance(line["request"], int) for line in told[1:])


def test_repeated_rejected_batches_of_a_client_are_logged_rarely() -> None:
    with InProcessServer() as server, Wire(server.kafka) as wire, capture_logs() as lines:
        wire.create("orders")
        producer = wire.producer_id()
        wire.produce("orders", batch(b"0", producer_id=producer, producer_epoch=0, base_sequence=0))
        for sequence in range(3, 33):
            late = batch(b"x", producer_id=producer, producer_epoch=0, base_sequence=sequence)
            assert wire.produce("orders", late).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    told = [(line["topic"], line["partition"]) for line in lines if line["event"] == "batch refused"]
    assert told == [("orders", 0)] * MOST_LINES
