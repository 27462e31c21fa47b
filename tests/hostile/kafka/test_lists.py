"""Descriptions of thousands of ACLs, users, quotas or partitions for hundreds of clients affect no other client."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.broker.admin.acl_authorizer import MOST_ACLS, MOST_MEANT
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.kafka import apis
from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.testing import server
from headrace.testing.process import Server
from tests.harness.wire import Wire
from tests.hostile.http.bystander import Bystander
from tests.hostile.kafka.attacking import carry_out
from tests.hostile.kafka.corpus import Attack, encoded

apis.load()
CLIENTS = 300
RULES, USERS, QUOTAS, PARTITIONS = MOST_ACLS - 10, 9_000, 900, 9_000
TOPIC, LITERAL, READ, ALLOW = 2, 3, 3, 3
_AT_ONCE = 900
EVERY_RULE = m.DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)
ASKED = {
    "rules": (EVERY_RULE, 3),
    "quotas": (m.DescribeClientQuotasRequest(components=[], strict=False), 1),
    "users": (m.DescribeUserScramCredentialsRequest(users=None), 0),
    "sizes": (m.DescribeLogDirsRequest(topics=None), 5),
    "topics": (m.MetadataRequest(topics=None), 1),
    "pages of topics": (m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2_000, cursor=None), 0),
}


def _rules(first: int, count: int) -> m.CreateAclsRequest:
    """As long as they may be."""
    creation = m.CreateAclsRequest.AclCreation
    return m.CreateAclsRequest(
        creations=[
            creation(
                resource_type=TOPIC,
                resource_name=f"{number:0>240}",
                resource_pattern_type=LITERAL,
                principal=f"User:{number:0>1000}",
                host="*",
                operation=READ,
                permission_type=ALLOW,
            )
            for number in range(first, first + count)
        ]
    )


def _filter(name: str | None, pattern: int = 1) -> m.DeleteAclsRequest.DeleteAclsFilter:
    return m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def _fill_rules(wire: Wire) -> None:
    for first in range(0, RULES, _AT_ONCE):
        made = wire.ask(_rules(first, min(_AT_ONCE, RULES - first)), 3)
        assert {each.error_code for each in made.results} == {0}


def _fill(wire: Wire) -> None:
    _fill_rules(wire)
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    for first in range(0, USERS, _AT_ONCE):
        users = [
            upsertion(name=f"{each:0>250}", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32)
            for each in range(first, first + _AT_ONCE)
        ]
        kept = wire.ask(m.AlterUserScramCredentialsRequest(deletions=[], upsertions=users), 0)
        assert {each.error_code for each in kept.results} == {0}
    quota = m.AlterClientQuotasRequest
    limit = [quota.OpData(key="request_percentage", value=10_000.0, remove=False)]
    entries = [
        quota.EntryData(entity=[quota.EntityData(entity_type="user", entity_name=f"{each:0>250}")], ops=limit)
        for each in range(QUOTAS)
    ]
    set_ = wire.ask(quota(entries=entries, validate_only=False), 1)
    assert {each.error_code for each in set_.entries} == {0}
    wire.create("wide", PARTITIONS)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Bystander]]:
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "oci.auth": "verify",
        "oci.auth.keys": tmp_path_factory.mktemp("keys"),
    }
    arguments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with server(arguments=arguments) as started:
        with Wire(started.kafka, timeout_s=120) as wire:
            _fill(wire)
        with closing(Bystander(started, http=False)) as bystander:
            yield started, bystander
        assert "Traceback" not in started.log()


@pytest.mark.parametrize("what", ASKED)
def test_lists_for_hundreds_at_once_affect_no_other_client(crowded: tuple[Server, Bystander], what: str) -> None:
    started, bystander = crowded
    request, version = ASKED[what]
    attack = Attack(what, request.API_KEY, encoded(request, version), connections=CLIENTS)
    print(bystander.harmless(lambda: carry_out(attack, started)))


def test_thousands_of_filters_affect_no_other_client(crowded: tuple[Server, Bystander]) -> None:
    """Each of them is about all rules, and none means one."""
    started, bystander = crowded
    names = [f"nothing-{number}" for number in range(2_000)]
    asked = m.DeleteAclsRequest(filters=[*map(_filter, names), *[_filter("nothing", 2)] * 7_000])
    attack = Attack("filters", asked.API_KEY, encoded(asked, 3))
    assert len(attack.made()) < 1 << 20
    print(bystander.harmless(lambda: carry_out(attack, started)))


def test_filters_that_mean_very_much_together_delete_nothing(crowded: tuple[Server, Bystander]) -> None:
    started, bystander = crowded
    assert MOST_MEANT < 2 * RULES
    with Wire(started.kafka, timeout_s=60) as wire:
        before = len(wire.ask(EVERY_RULE, 3).resources)

        def attack() -> None:
            answer = wire.ask(m.DeleteAclsRequest(filters=[_filter(None)] * 9_000), 3)
            assert {each.error_code for each in answer.filter_results} == {Code.INVALID_REQUEST}

        print(bystander.harmless(attack))
        assert len(wire.ask(EVERY_RULE, 3).resources) == before == RULES


def test_all_rules_created_and_deleted_at_once_affect_no_other_client(crowded: tuple[Server, Bystander]) -> None:
    started, bystander = crowded
    creation = m.CreateAclsRequest.AclCreation
    short = [
        creation(
            resource_type=TOPIC,
            resource_name=f"{number}",
            resource_pattern_type=LITERAL,
            principal="User:short",
            host="*",
            operation=READ,
            permission_type=ALLOW,
        )
        for number in range(RULES)
    ]
    with Wire(started.kafka, timeout_s=60) as wire:
        wire.ask(m.DeleteAclsRequest(filters=[_filter(None)]), 3)

        def attack() -> None:
            made = wire.ask(m.CreateAclsRequest(creations=short), 3)
            assert {each.error_code for each in made.results} == {0}
            [gone] = wire.ask(m.DeleteAclsRequest(filters=[_filter(None)]), 3).filter_results
            assert len(gone.matching_acls) == RULES

        try:
            print(bystander.harmless(attack))
        finally:
            # Other tests ask for those that were there.
            wire.ask(m.DeleteAclsRequest(filters=[_filter(None)]), 3)
            _fill_rules(wire)
