"""The page of ACLs: Kafka's admin client lists what the forms added, and the other way round."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
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
from tests.console.visiting import EVIL, Visit, ask, safe

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.testing import InProcessServer

FIELDS = {
    "principal": "User:jane", "permission": "Allow", "operation": "Read", "type": "Topic", "pattern": "LITERAL",
    "name": "orders", "host": "*",
}  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with InProcessServer(
        oci_auth="verify",
        oci_auth_keys=tmp_path_factory.mktemp("keys"),
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:ANONYMOUS",
        console_write=True,
        connection_failed_authentication_delay_ms=0,
    ) as server:
        yield server


@pytest.fixture
def visit(guarded: InProcessServer) -> Visit:
    visit = Visit(guarded)
    visit.ask("/acls")
    return visit


def listed(server: InProcessServer, name: str) -> list[AclBinding]:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    everyone: Any = None
    wanted = AclBindingFilter(
        ResourceType.ANY, name, ResourcePatternType.ANY, everyone, everyone, AclOperation.ANY, AclPermissionType.ANY
    )
    found: list[AclBinding] = admin.describe_acls(wanted).result(60)
    return found


def test_an_acl_is_added_and_removed(guarded: InProcessServer, visit: Visit) -> None:
    with capture_logs() as logged:
        page = visit.done("/acls", FIELDS | {"host": "", "pattern": "PREFIXED", "permission": "Deny"})
    assert "The ACL was added." in page.text
    [line] = (each for each in logged if each["event"] == "changed")
    assert (line["operation"], line["principal"]) == ("CreateAcls", "User:ANONYMOUS")
    [acl] = listed(guarded, "orders")
    assert (acl.principal, acl.host, acl.operation) == ("User:jane", "*", AclOperation.READ)
    assert (acl.resource_pattern_type, acl.permission_type) == (ResourcePatternType.PREFIXED, AclPermissionType.DENY)
    assert "User:jane Deny Read Topic orders prefixed *" in page.text
    row = urlencode(FIELDS | {"pattern": "PREFIXED", "permission": "Deny"})
    assert "The ACL was removed." in visit.done("/acls/delete", {"row": row}).text
    assert listed(guarded, "orders") == []
    assert visit.wrong("/acls/delete", {"row": row}).startswith("This ACL does not exist: deny User:jane Read")


def test_the_cluster_and_all_operations_and_hostile_names(guarded: InProcessServer, visit: Visit) -> None:
    visit.done("/acls", FIELDS | {"type": "Cluster", "name": "", "operation": "All"})
    [acl] = (each for each in listed(guarded, "kafka-cluster") if each.principal == "User:jane")
    assert (acl.restype, acl.operation) == (ResourceType.BROKER, AclOperation.ALL)
    fields = FIELDS | {"principal": f"User:{EVIL}", "name": EVIL}
    page = safe(visit.done("/acls", fields))
    assert len(listed(guarded, EVIL)) == 1
    row = urlencode(fields)
    assert row.replace("&", "&amp;") in page
    visit.done("/acls/delete", {"row": row})
    assert listed(guarded, EVIL) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"principal": "jane"}, "expected a principal such as User:alice, found 'jane'"),
        ({"principal": ""}, "expected a principal such as User:alice, found ''"),
        ({"name": ""}, "the resource has no name"),
        ({"name": "x" * 250}, "the resource's name has 250 characters"),
        ({"type": "Cluster", "name": "mine"}, "the only resource of type Cluster is kafka-cluster, found 'mine'"),
        ({"operation": EVIL}, "Operation: expected one of "),
        ({"type": ""}, "Resource type: expected one of "),
        ({"pattern": "ANY"}, "Pattern: expected one of LITERAL, PREFIXED, found 'ANY'."),
        ({"permission": "Maybe"}, "Permission: expected Allow or Deny, found 'Maybe'."),
    ],
)
def test_a_rejected_acl_stays_in_the_form(visit: Visit, given: dict[str, str], reason: str) -> None:
    assert visit.wrong("/acls", FIELDS | {"host": "10.0.0.1"} | given).startswith(reason)
    assert 'name="host" value="10.0.0.1"' in visit.post("/acls", FIELDS | {"host": "10.0.0.1"} | given).html
    if reason.split(":", maxsplit=1)[0] in {"Operation", "Permission", "Pattern"}:
        assert visit.wrong("/acls/delete", {"row": urlencode(FIELDS | given)}).startswith(reason)


def test_only_alter_on_the_cluster_may_change_acls_users_and_no_quotas(guarded: InProcessServer) -> None:
    admin = AdminClient({"bootstrap.servers": guarded.kafka})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"pw")])["bob"].result(60)

    def allow(operation: AclOperation) -> None:
        acl = AclBinding(
            ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:bob", "*", operation,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        admin.create_acls([acl])[acl].result(60)

    bob = Visit.of(guarded, "bob", "pw")
    bob.ask("/login")
    for path in ("/users", "/acls"):
        assert bob.ask(path).body == b"User:bob may not Describe Cluster kafka-cluster.\n"
    assert bob.ask("/quotas").body == b"User:bob may not DescribeConfigs Cluster kafka-cluster.\n"
    allow(AclOperation.DESCRIBE)
    for path in ("/users", "/acls"):
        page = bob.ask(path)
        assert (page.status, f'method="post" action="{path}' in page.html) == (200, False)
    posts = {
        "/acls": FIELDS, "/acls/delete": {"row": urlencode(FIELDS)},
        "/users": {"name": "eve", "password": "p", "again": "p"}, "/users/delete": {"row": "name=bob"},
    }  # fmt: skip
    for path, fields in posts.items():
        assert bob.post(path, fields).body == b"User:bob may not Alter Cluster kafka-cluster.\n"
    allow(AclOperation.ALTER)
    quota = {"user": "bob", "key": "request_percentage", "value": "5"}
    for path in ("/quotas", "/quotas/delete"):
        assert bob.post(path, quota).body == b"User:bob may not AlterConfigs Cluster kafka-cluster.\n"
    bob.ask("/acls")
    bob.done("/acls", FIELDS | {"name": "bobs"})
    assert len(listed(guarded, "bobs")) == 1


def test_forged_forms_change_no_acl(guarded: InProcessServer, visit: Visit) -> None:
    fields = FIELDS | {"name": "forged"}
    answers = [
        visit.post("/acls", fields | {"token": "0" * 64}),
        visit.post("/acls", fields, sec_fetch_site="cross-site"),
        visit.post("/acls", fields, cookie=""),
        visit.post("/acls", fields | {"host": "x" * (1 << 20)}),
        visit.post("/acls/delete", {"row": urlencode(fields)}, origin="http://evil.example"),
    ]
    assert [each.status for each in answers] == [403] * 5
    assert listed(guarded, "forged") == []


def test_without_an_authorizer_the_page_says_what_to_configure(server: InProcessServer, tmp_path: Path) -> None:
    page = ask(server, "/acls")
    assert "No authorizer is configured" in page.text
    assert f"--set authorizer.class.name={STANDARD_AUTHORIZER}" in page.text
    visit = Visit(server)
    visit.ask("/users")
    assert visit.wrong("/acls", FIELDS) == "No Authorizer is configured."
