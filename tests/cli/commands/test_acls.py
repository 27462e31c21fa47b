"""`headrace acls`, and the guide about access rules, whose commands are run as they stand."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.cli.conftest import CommandLine

from headrace.cli.command import Status
from headrace.testing import Server, server

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "acls.md").read_text("utf-8")
BLOCKS = [
    block.replace("\\\n", " ")
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    if not kind
]
SETTINGS = dict(each.split("=", 1) for each in re.findall(r"--set (\S+)", BLOCKS[0]))


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as the guide starts one."""
    given: dict[str, Any] = {name.replace(".", "_"): text for name, text in SETTINGS.items()}
    with server(**(given | {"oci_auth_keys": tmp_path_factory.mktemp("keys")})) as started:
        yield started


@pytest.fixture
def rules(ruled: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(ruled.kafka, capsys, monkeypatch)


def test_the_guides_commands_do_what_it_says(rules: CommandLine) -> None:
    assert SETTINGS["super.users"] == "User:ANONYMOUS"
    told = {line: rules.run(*shlex.split(line)[1:]) for line in BLOCKS[1].strip().splitlines()}
    assert len(told) == 7
    listed = next(text for line, text in told.items() if line.endswith("acls list"))
    assert len(listed.splitlines()) == 2 + 4
    assert "prefixed" in listed
    left = rules.json("acls", "list")
    assert {each["principal"] for each in left} == {"User:jane"}
    assert {(each["resource"], each["name"], each["pattern"], each["operation"]) for each in left} == {
        ("topic", "orders", "literal", "read"),
        ("topic", "orders", "literal", "describe"),
        ("group", "billing-", "prefixed", "read"),
    }
    # What is about a resource is found by its name, prefixes included.
    assert [each["name"] for each in rules.json("acls", "list", "--group", "billing-eu")] == ["billing-"]
    rules.run("acls", "delete", "--principal", "User:jane")
    assert rules.json("acls", "list") == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("create", "--principal", "User:a", "--operation", "read"), Status.USAGE, "name the resource of the ACL"),
        (("delete",), Status.USAGE, "name the ACLs"),
        (("delete", "--principal", "User:nobody"), Status.MISSING, "there is no such access rule"),
        (
            ("create", "--principal", "alice", "--operation", "read", "--topic", "t"),
            Status.FAILED,
            "expected a principal such as User:alice, found 'alice'",
        ),
    ],
)
def test_what_cannot_be_done_is_said(rules: CommandLine, arguments: tuple[str, ...], status: int, said: str) -> None:
    rules.run("acls", *arguments, status=status)
    assert said in rules.err


def test_without_access_rules_the_commands_say_so(headrace: CommandLine) -> None:
    headrace.run("acls", "list", status=Status.FAILED)
    assert "no access rules hold at this server" in headrace.err
    headrace.run("acls", "create", "--principal", "User:a", "--operation", "read", "--topic", "t", status=Status.FAILED)
    assert "no access rules hold at this server: it has to be started with --set authorizer.class.name=" in headrace.err


def test_a_user_who_may_not_list_users_gets_an_error(tmp_path: Path) -> None:
    """In processes of their own: the client library breaks its process' memory when it is refused that."""
    given: dict[str, Any] = {name.replace(".", "_"): text for name, text in SETTINGS.items()}
    with server(**(given | {"oci_auth_keys": tmp_path, "super_users": "User:nobody"})) as started:
        for asked in (["list"], ["delete", "eve"]):
            ended = subprocess.run(
                [sys.executable, "-m", "headrace", "users", *asked, "--bootstrap", started.kafka],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (
                ended.stderr == "headrace: cannot list users: User:ANONYMOUS may not Describe Cluster kafka-cluster\n"
            )
            assert ended.returncode == Status.REFUSED


def test_librdkafkas_admin_client_manages_rules(ruled: Server) -> None:
    admin = AdminClient({"bootstrap.servers": ruled.kafka})
    anything: Any = None
    made = AclBinding(
        ResourceType.TOPIC, "by-client", ResourcePatternType.PREFIXED, "User:bob", "10.0.0.1", AclOperation.ALL,
        AclPermissionType.DENY,
    )  # fmt: skip
    about = AclBindingFilter(
        ResourceType.TOPIC, "by-client-1", ResourcePatternType.MATCH, anything, anything, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    for future in admin.create_acls([made]).values():
        assert future.result(60) is None
    assert admin.describe_acls(about).result(60) == [made]
    for future in admin.delete_acls([about]).values():
        assert future.result(60) == [made]
    assert admin.describe_acls(about).result(60) == []
