"""Users of a server: logins, creation, and the first user. tests/clients/secured has the clients."""

import datetime as dt
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.harness.waiting import wait_for
from tests.sasl.going_on import goes_on_when_a_login_ends

from headrace.cli.main import run
from headrace.security.tls.files import GeneratedFiles, create
from headrace.server.config import StartError
from headrace.testing import InProcessServer

PASSWORD = "päss wörd, =2C"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class Secured(msgspec.Struct):
    """A server with a user, and what its clients need."""

    server: InProcessServer
    made: GeneratedFiles

    @property
    def address(self) -> str:
        return self.server.listeners["SASL_SSL"]

    def confluent(self, mechanism: str, name: str = "jane", password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.made.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "log_level": 0,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    made = create(folder, (), "jane", dt.datetime.now(dt.UTC))
    first = folder / "first"
    first.write_text(f"jane:{PASSWORD}\n", "utf-8")
    with InProcessServer(
        bootstrap_user=first,
        listeners="PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        ssl_keystore_location=made.server,
        connection_failed_authentication_delay_ms=0,
    ) as running:
        yield Secured(running, made)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("jane", "wrong"), ("nobody", PASSWORD), ("jane ", PASSWORD)])
def test_other_clients_are_rejected(secured: Secured, mechanism: str, name: str, password: str) -> None:
    heard: list[KafkaError] = []
    client = AdminClient(secured.confluent(mechanism, name, password) | {"error_cb": heard.append})

    def refused() -> bool:
        client.poll(0.01)
        return KafkaError._AUTHENTICATION in {each.code() for each in heard}

    wait_for(refused, "word of the refusal")


class Cli:
    """The commands in this process, with a login."""

    def __init__(self, secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", secured.address)
        monkeypatch.setenv("HEADRACE_KAFKA_CA", str(secured.made.authority))

    def __call__(self, who: tuple[str, str], *arguments: str, stdin: str = "") -> tuple[int, str]:
        """The status, and what it said."""
        self._monkeypatch.setenv("HEADRACE_KAFKA_USERNAME", who[0])
        self._monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", who[1])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status = run(arguments)
        told = self._capsys.readouterr()
        return status, told.out + told.err


def test_users_are_made_listed_and_deleted_with_a_login(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = Cli(secured, monkeypatch, capsys)
    jane, joe = ("jane", PASSWORD), ("joe", "sécret")
    made = cli(jane, "users", "create", "joe", "--password-file", "-", stdin="sécret\nmore\n")
    assert made == (0, "user joe has a password\n")
    status, listed = cli(jane, "users", "list", "--json")
    both = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert msgspec.json.decode(listed) == [{"user": name, "mechanisms": both} for name in ("jane", "joe")]
    assert cli(joe, "topics", "list")[0] == 0
    assert cli(jane, "users", "delete", "joe") == (0, "user joe is gone\n")
    status, told = cli(joe, "topics", "list")
    assert (status, "refuses the login" in told) == (5, True)
    assert cli(jane, "users", "delete", "joe")[0] == 4
    empty = tmp_path / "empty"
    empty.touch()
    for unusable in (empty, tmp_path / "none"):
        status, told = cli(jane, "users", "create", "x", "--password-file", str(unusable))
        assert (status, str(unusable) in told) == (2, True)


def test_what_is_in_the_way_of_tls_is_said(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli, jane = Cli(secured, monkeypatch, capsys), ("jane", PASSWORD)
    others = create(tmp_path / "others", (), "jane", dt.datetime.now(dt.UTC)).authority
    none = tmp_path / "none"
    none.touch()
    for authority, expected, told in (
        (others, 3, f"shows a certificate that is not good by {others}"),
        (none, 2, f"cannot read the authority {none}, named by --ca, HEADRACE_KAFKA_CA or a profile: there is no"),
        (tmp_path / "missing", 2, "or a profile: No such file or directory"),
    ):
        status, said = cli(jane, "topics", "list", "--ca", str(authority))
        assert (status, told in said) == (expected, True), said
    plain = secured.server.listeners["SASL_PLAINTEXT"]
    status, said = cli(jane, "topics", "list", "--bootstrap", plain)
    assert (status, "takes connections, but none with TLS" in said) == (3, True), said


def test_reading_a_topic_takes_no_right_to_a_group(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    jane, joe = ("jane", "secret"), ("joe", "secret")
    with InProcessServer(
        bootstrap_user=first,
        listeners="PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        ssl_keystore_location=secured.made.server,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        oci_auth="verify",
        oci_auth_keys=tmp_path,
    ) as running:
        here = Secured(running, secured.made)
        cli = Cli(here, monkeypatch, capsys)
        assert cli(jane, "users", "create", "joe", "--password-file", "-", stdin="secret\n")[0] == 0
        assert cli(jane, "topics", "create", "t")[0] == 0
        assert cli(jane, "acls", "create", "--principal", "User:joe", "--operation", "read", "--topic", "t")[0] == 0
        producer = Producer(here.confluent("PLAIN", *jane))
        producer.produce("t", b"record")
        assert producer.flush(60) == 0
        assert cli(joe, "records", "tail", "t", "--from-beginning", "--exit", "--format", "%v\\n") == (0, "record\n")


def test_a_login_that_ends_is_made_again_behind_the_clients_back(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    with InProcessServer(
        bootstrap_user=first, listeners="SASL_PLAINTEXT://127.0.0.1:0", connections_max_reauth_ms=2_000
    ) as running:
        settings = {
            "bootstrap.servers": running.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "jane",
            "sasl.password": "secret",
            "log_level": 0,
        }
        goes_on_when_a_login_ends(running, settings)


def test_the_first_user_is_made_once_and_survives(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("jane:secret")
    second.write_text("joe:secret")
    data = tmp_path / "d"
    for file in (first, second):
        with InProcessServer(data, bootstrap_user=file) as running:
            client = AdminClient({"bootstrap.servers": running.kafka})
            told = client.describe_user_scram_credentials()
            assert set(told.result(60)) == {"jane"}  # type: ignore[union-attr]


def test_the_first_user_is_a_super_user_for_good(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    given: dict[str, Any] = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "oci_auth": "verify",
        "oci_auth_keys": tmp_path,
        "connection_failed_authentication_delay_ms": 0,
    }

    def admin(running: InProcessServer, name: str) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": running.kafka,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": name,
                "sasl.password": "secret",
            }
        )

    with InProcessServer(tmp_path / "d", bootstrap_user=first, **given) as running:
        jane = admin(running, "jane")
        jane.create_topics([NewTopic("first", 1)])["first"].result(60)
        joe = UserScramCredentialUpsertion("joe", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
        jane.alter_user_scram_credentials([joe])["joe"].result(60)
        other = admin(running, "joe")
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            other.create_topics([NewTopic("second", 1)])["second"].result(60)
    # As the guide says, the file is gone by then.
    with InProcessServer(tmp_path / "d", **given) as running:
        jane, other = admin(running, "jane"), admin(running, "joe")
        jane.create_topics([NewTopic("third", 1)])["third"].result(60)
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            other.create_topics([NewTopic("fourth", 1)])["fourth"].result(60)


@pytest.mark.parametrize("text", ["", "jane", ":secret", "jane:", "jane:secret\njoe:secret", "ANONYMOUS:secret"])
def test_a_first_user_without_a_name_or_a_password_stops_the_start(tmp_path: Path, text: str) -> None:
    first = tmp_path / "first"
    first.write_text(text)
    with (
        pytest.raises(StartError, match="expected one line NAME:PASSWORD") as caught,
        InProcessServer(bootstrap_user=first),
    ):
        pass
    assert "secret" not in str(caught.value)
    first.unlink()
    with pytest.raises(StartError, match="No such file"), InProcessServer(bootstrap_user=first):
        pass
