"""The page of users: who was given a password logs in with it."""

from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka.admin import AdminClient, ScramMechanism
from structlog.testing import capture_logs
from tests.console.visiting import EVIL, Visit, ask, safe

from headrace.testing import InProcessServer


def mechanisms(server: InProcessServer, name: str) -> set[ScramMechanism]:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    described: Any = admin.describe_user_scram_credentials([name])
    found = described[name].result(60)
    return {each.mechanism for each in found.scram_credential_infos}


@pytest.mark.parametrize("name", ["jane", EVIL, "a b", "Ж", "x" * 256])
def test_a_user_is_created_changed_and_deleted(server: InProcessServer, name: str) -> None:
    visit = Visit(server)
    visit.ask("/users")
    with capture_logs() as logged:
        done = visit.done("/users", {"name": name, "password": "first é", "again": "first é"})
    assert "The password was saved." in done.text
    assert {each["operation"] for each in logged if each["event"] == "changed"} == {"AlterUserScramCredentials"}
    assert "first" not in str(logged)
    assert "SCRAM-SHA-256, SCRAM-SHA-512" in done.text
    assert mechanisms(server, name) == {ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512}
    if ":" not in name:
        assert Visit.of(server, name, "first é").ask("/users").status == 200
        visit.done("/users", {"name": name, "password": "second", "again": "second"})
        assert Visit.of(server, name, "first é").ask("/users").status == 401
        assert Visit.of(server, name, "second").ask("/users").status == 200
    row = urlencode({"name": name})
    page = safe(visit.ask("/users"))
    assert f'name="row" value="{row}"' in page
    assert "The user was deleted." in visit.done("/users/delete", {"row": row}).text
    assert "does not exist" in visit.wrong("/users/delete", {"row": row})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": ""}, "Username must not be empty"),
        ({"name": "x" * 257}, "Username must not be longer than 256"),
        ({"password": ""}, "Password: expected at least one character."),
        ({"password": "x" * 1025}, "Password: expected at most 1,024 characters, found 1,025."),
        ({"again": "other"}, "The passwords differ."),
    ],
)
def test_a_rejected_user_keeps_the_name_and_no_password(
    server: InProcessServer, given: dict[str, str], reason: str
) -> None:
    visit = Visit(server)
    visit.ask("/users")
    fields = {"name": "rejected", "password": "s3cret", "again": "s3cret"} | given
    assert visit.wrong("/users", fields) == reason
    page = visit.post("/users", fields).html
    assert f'name="name" value="{fields["name"]}"' in page
    assert "s3cret" not in page


def test_forged_forms_create_and_delete_no_user(server: InProcessServer) -> None:
    visit = Visit(server)
    visit.ask("/users")
    fields = {"name": "forged", "password": "p", "again": "p"}
    answers = [
        visit.post("/users", fields | {"token": "0" * 64}),
        visit.post("/users", fields, sec_fetch_site="cross-site"),
        visit.post("/users", fields, cookie=""),
        visit.post("/users", fields | {"password": "x" * (1 << 20)}),
        visit.post("/users/delete", {"row": "name=forged", "token": ""}),
    ]
    assert [each.status for each in answers] == [403] * 5
    assert "forged" not in ask(server, "/users").text
    for row in ("", "&" * 3000, "name", "=", "name=%00"):
        assert visit.post("/users/delete", {"row": row}).status == 400


def test_a_read_only_console_lists_users_without_forms() -> None:
    with InProcessServer(oci_auth="off") as server:
        page = ask(server, "/users").html
        assert "<form method" not in page
        assert "No user has a password." in page
        assert "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer" in page
        assert Visit(server).post("/users", {"name": "n"}).status == 403
