"""The page of quotas: Kafka's requests describe what the forms set."""

from urllib.parse import urlencode

import pytest
from tests.console.visiting import EVIL, Visit, ask, safe
from tests.kafka.quota_admin import Admin

from headrace.testing import InProcessServer


@pytest.fixture
def visit(server: InProcessServer) -> Visit:
    visit = Visit(server)
    visit.ask("/quotas")
    return visit


def described(server: InProcessServer) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    with Admin(server.kafka) as admin:
        entries = admin.described().entries
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in entries
    }


@pytest.mark.parametrize(
    ("entity", "key", "parts"),
    [
        ({"user": "jane"}, "producer_byte_rate", (("user", "jane"),)),
        ({"user": "jane", "client-id": "app"}, "consumer_byte_rate", (("user", "jane"), ("client-id", "app"))),
        ({"default.user": "1"}, "request_percentage", (("user", None),)),
        ({"client-id": EVIL}, "controller_mutation_rate", (("client-id", EVIL),)),
        ({"ip": "10.0.0.1"}, "connection_creation_rate", (("ip", "10.0.0.1"),)),
        ({"default.ip": "1"}, "connection_creation_rate", (("ip", None),)),
    ],
)
def test_a_quota_is_set_and_removed(
    server: InProcessServer, visit: Visit, entity: dict[str, str], key: str, parts: tuple[tuple[str, str | None], ...]
) -> None:
    page = visit.done("/quotas", entity | {"key": key, "value": "1000"})
    assert "The quota was set." in page.text
    assert f"{key} 1,000" in page.text
    assert described(server)[parts] == {key: 1000.0}
    row = urlencode({**entity, "key": key})
    assert f'name="row" value="{row.replace("&", "&amp;")}"' in safe(page)
    assert "The quota was removed." in visit.done("/quotas/delete", {"row": row}).text
    assert parts not in described(server)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"value": "much"}, "Value: expected a number, found 'much'."),
        ({"value": "nan"}, "Value: expected a number, found 'nan'."),
        ({"value": "1" * 400}, "Value: expected a number, found "),
        ({"value": "-1"}, "Value: expected a number, found '-1'."),
        ({"value": "0"}, "Quota producer_byte_rate must be greater than 0"),
        ({"value": "1.5"}, "producer_byte_rate cannot be a fractional value."),
        ({"key": EVIL}, "Invalid configuration key "),
        ({"user": ""}, "Invalid empty client quota entity"),
        ({"ip": "10.0.0.1"}, "Invalid quota entity combination"),
        ({"user": "", "ip": "example", "key": "connection_creation_rate"}, "example is not a valid IP"),
        ({"default.user": "1"}, "The default applies to every other user. Clear the name 'jane'."),
        ({"user": "x" * 257}, "a name may not be longer than 256 characters"),
    ],
)
def test_a_rejected_quota_stays_in_the_form(
    server: InProcessServer, visit: Visit, given: dict[str, str], reason: str
) -> None:
    fields = {"user": "jane", "client-id": "kept", "key": "producer_byte_rate", "value": "5"} | given
    if ("ip" in given and not given.get("user", "x")) or given == {"user": ""}:
        fields["client-id"] = ""
    assert visit.wrong("/quotas", fields).startswith(reason)
    assert f'name="client-id" value="{fields["client-id"]}"' in visit.post("/quotas", fields).html
    assert described(server) == {}


def test_forged_forms_set_nothing(server: InProcessServer, visit: Visit) -> None:
    fields = {"user": "forged", "key": "request_percentage", "value": "5"}
    answers = [
        visit.post("/quotas", fields | {"token": "0" * 64}),
        visit.post("/quotas", fields, sec_fetch_site="cross-site"),
        visit.post("/quotas", fields, cookie=""),
        visit.post("/quotas", fields | {"value": "x" * (1 << 20)}),
        ask(server, "/quotas/delete", "POST", "row=user%3Dforged"),
    ]
    assert [each.status for each in answers] == [403] * 5
    assert described(server) == {}
    assert visit.post("/quotas/delete", {}).status == 400
