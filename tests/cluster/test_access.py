"""Two brokers over one Redis: what is allowed, and how much, on one of them is so on the other."""

from pathlib import Path
from typing import Any

from tests.harness.brokers import Brokers, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import batch
from tests.kafka.config_requests import SET, config_of, set_config

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeClientQuotasRequest,
)

TOPIC, WRITE, DENY, ANY, LITERAL = 2, 4, 2, 1, 3


def write_code(found: Brokers, node: int) -> int:
    """Return a broker's error code for a batch; one that is not the leader says so only to authorized clients."""
    code: int = found.asked(node, lambda wire: wire.produce("orders", batch(b"x"))).error_code
    return code


def test_rules_quotas_and_configurations_of_one_broker_hold_at_the_other(tmp_path: Path) -> None:
    def quotas(node: int) -> list[Any]:
        asked = DescribeClientQuotasRequest(components=[], strict=False)
        entries: list[Any] = found.asked(node, lambda wire: wire.ask(asked, 1)).entries
        return entries

    def limit(node: int) -> str:
        found_there = found.asked(node, lambda wire: config_of(wire, "billing", "share.delivery.count.limit"))
        return str(found_there.configs[0].value)

    denied = CreateAclsRequest.AclCreation(
        resource_type=TOPIC,
        resource_name="orders",
        principal="User:ANONYMOUS",
        host="*",
        operation=WRITE,
        permission_type=DENY,
    )
    about = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter="orders",
        pattern_type_filter=LITERAL,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    quota = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=None)],
        ops=[AlterClientQuotasRequest.OpData(key="request_percentage", value=100.0, remove=False)],
    )
    with brokers(
        2,
        authorizer_class_name=STANDARD_AUTHORIZER,
        allow_everyone_if_no_acl_found=True,
        oci_auth="verify",
        oci_auth_keys=tmp_path,
    ) as found:
        found.asked(1, lambda wire: wire.create("orders"))
        wait_for(lambda: all(found.leaders(node, "orders") for node in (1, 2)), "the topic on both")
        assert Code.TOPIC_AUTHORIZATION_FAILED not in {write_code(found, node) for node in (1, 2)}
        [created] = found.asked(1, lambda wire: wire.ask(CreateAclsRequest(creations=[denied]), 3)).results
        assert created.error_code == 0
        # Here before the answer, there soon.
        assert write_code(found, 1) == Code.TOPIC_AUTHORIZATION_FAILED
        wait_for(lambda: write_code(found, 2) == Code.TOPIC_AUTHORIZATION_FAILED, "the rule on the other broker")
        [gone] = found.asked(2, lambda wire: wire.ask(DeleteAclsRequest(filters=[about]), 3)).filter_results
        assert len(gone.matching_acls) == 1
        wait_for(lambda: write_code(found, 1) != Code.TOPIC_AUTHORIZATION_FAILED, "the rule gone on the first")
        altered = AlterClientQuotasRequest(entries=[quota], validate_only=False)
        assert found.asked(1, lambda wire: wire.ask(altered, 1)).entries[0].error_code == 0
        wait_for(lambda: len(quotas(2)) == 1, "the quota on the other broker")
        change = ("share.delivery.count.limit", SET, "7")
        assert found.asked(1, lambda wire: set_config(wire, "billing", change)).error_code == 0
        wait_for(lambda: limit(2) == "7", "the configuration of a group on the other broker")
        # A broker that starts knows them too.
        found.servers[2].restart()
        wait_for(lambda: found.nodes(2) == [1, 2], "both again")
        assert len(quotas(2)) == 1
        assert limit(2) == "7"
