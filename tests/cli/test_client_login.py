"""Client commands that log in, to a server where that is required."""

import json
from collections.abc import Iterator

import pytest

from headrace.cli import main
from headrace.testing import Server, server

USER = "acme/jane/ocid1.streampool.oc1.local.default"


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    """A server that requires a login and accepts any password."""
    with server(oci_auth_kafka="required", num_partitions=1) as started:
        yield started


def run(to: Server, *arguments: str) -> int:
    return main.run([*arguments, "--bootstrap", to.kafka])


def test_a_command_logs_in_with_the_name_it_is_given_and_the_password_of_the_environment(
    closed: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "token")
    assert run(closed, "topics", "create", "inside", "--username", USER) == 0
    monkeypatch.setenv("HEADRACE_KAFKA_USERNAME", USER)
    capsys.readouterr()
    assert run(closed, "topics", "list", "--json") == 0
    assert [each["topic"] for each in json.loads(capsys.readouterr().out)] == ["inside"]
    assert run(closed, "groups", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(closed, "records", "tail", "inside", "--from-beginning", "--exit") == 0


def test_a_refused_login_is_reported_in_the_servers_words(
    closed: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "token")
    assert run(closed, "topics", "list", "--username", "jane") == 5
    told = capsys.readouterr().err
    assert told.startswith(f"headrace: {closed.kafka} refuses the login: ")
    assert "the user name has to be <tenancy>/[<domain>/]<user>/<OCID of a stream pool>" in told
    assert told.count("\n") == 1


def test_without_a_login_it_is_asked_whether_one_is_wanted(closed: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(closed, "topics", "list") == 3
    assert "does it want a login (--username)?" in capsys.readouterr().err


def test_a_name_needs_a_password(closed: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(closed, "topics", "list", "--username", USER) == 2
    assert capsys.readouterr().err == (
        f"headrace: a password is missing for {USER}: put it into HEADRACE_KAFKA_PASSWORD or a profile\n"
    )
