"""`headrace quotas`: lists the settings, and suggests the nearest valid name for a wrong one."""

import pytest
from tests.cli.conftest import CommandLine

from headrace.cli.command import Status


def test_quotas_are_set_listed_and_deleted(headrace: CommandLine) -> None:
    set_ = headrace.run("quotas", "set", "--user", "jane", "--client-id", "*", "producer_byte_rate=1e6")
    assert set_ == "user jane, client-id (default): producer_byte_rate 1000000\n"
    headrace.run("quotas", "set", "--user", "jane", "request_percentage=12.5", "consumer_byte_rate=7")
    headrace.run("quotas", "set", "--ip", "203.0.113.7", "connection_creation_rate=5")
    assert headrace.json("quotas", "list") == [
        {"ip": "203.0.113.7", "quota": "connection_creation_rate", "limit": 5},
        {"user": "jane", "quota": "consumer_byte_rate", "limit": 7},
        {"user": "jane", "quota": "request_percentage", "limit": 12.5},
        {"user": "jane", "client-id": "*", "quota": "producer_byte_rate", "limit": 1_000_000},
    ]
    assert len(headrace.json("quotas", "list", "--client-id", "*")) == 1
    table = headrace.run("quotas", "list", "--user", "jane").splitlines()
    assert table[0].split() == ["user", "client", "id", "address", "quota", "limit"]
    assert len(table) == 2 + 3
    # Those of the user alone, and of it the one that is named.
    gone = headrace.run("quotas", "delete", "--user", "jane", "consumer_byte_rate", "--yes")
    assert gone == "deleted user jane: consumer_byte_rate 7\n"
    headrace.run("quotas", "delete", "--user", "jane", "--yes")
    headrace.run("quotas", "delete", "--ip", "203.0.113.7", "--yes")
    assert [each["quota"] for each in headrace.json("quotas", "list")] == ["producer_byte_rate"]
    headrace.run("quotas", "delete", "--user", "jane", "--client-id", "*")
    assert headrace.json("quotas", "list") == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("set", "producer_byte_rate=1"), Status.USAGE, "name the entity"),
        (("set", "--user", "a", "--ip", "::1", "producer_byte_rate=1"), Status.USAGE, "should not be combined"),
        (("set", "--user", "a", "producer_bytes_rate=1"), Status.USAGE, "did you mean producer_byte_rate?"),
        (("set", "--ip", "::1", "producer_byte_rate=1"), Status.USAGE, "may have connection_creation_rate"),
        (("set", "--user", "a", "producer_byte_rate=much"), Status.USAGE, "expected a number, found 'much'"),
        (("set", "--user", "a", "producer_byte_rate=0"), Status.USAGE, "must be greater than 0"),
        (("delete", "--user", "nobody"), Status.MISSING, "user nobody has no quotas"),
        (("delete", "--user", "nobody", "producer_byte_rate"), Status.MISSING, "has no quota 'producer_byte_rate'"),
    ],
)
def test_what_cannot_be_done_is_said(headrace: CommandLine, arguments: tuple[str, ...], status: int, said: str) -> None:
    headrace.run("quotas", *arguments, status=status)
    assert said in headrace.err
