"""Settings of one listener (`listener.name.NAME.*`): each has certificates, authorities and logins of its own."""

import datetime as dt
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs
from tests.security.tls.test_listeners import context, handshake

from headrace.security.tls.files import GeneratedFiles, create
from headrace.server.config import SettingsError, StartError
from headrace.testing import InProcessServer

NAME, PASSWORD = "jane", "secret"
NOW = dt.datetime.now(dt.UTC)
LISTENERS = "OPEN://127.0.0.1:0,STRICT://127.0.0.1:0,LOGIN://127.0.0.1:0,BOTH://127.0.0.1:0,QUIET://127.0.0.1:0"
PROTOCOLS = "OPEN:SSL,STRICT:SSL,LOGIN:SASL_SSL,BOTH:SASL_SSL,QUIET:SASL_SSL"


class Secured(msgspec.Struct):
    """A server with five listeners, of two authorities."""

    server: InProcessServer
    own: GeneratedFiles
    other: GeneratedFiles
    lines: list[Any]
    """What it has said at its start."""

    def address(self, listener: str) -> str:
        return self.server.kafka if listener == "OPEN" else self.server.listeners[listener]

    def asks(
        self, listener: str, authority: Path, certificate: Path | None = None, mechanism: str = "", patience_s: int = 60
    ) -> None:
        """Log in as jane where a mechanism is given, and be served; raises KafkaException."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "SASL_SSL" if mechanism else "SSL",
            "ssl.ca.location": str(authority),
            "log_level": 0,
        }
        if certificate is not None:
            settings |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
        if mechanism:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": NAME, "sasl.password": PASSWORD}
        # librdkafka retries until its timeout, after any error.
        assert AdminClient(settings).list_topics(timeout=patience_s).brokers


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("listeners")
    own, other = create(folder / "own", (), NAME, NOW), create(folder / "other", (), NAME, NOW)
    first = folder / "first"
    first.write_text(f"{NAME}:{PASSWORD}\n")
    settings: dict[str, Any] = {
        "listeners": LISTENERS,
        "listener_security_protocol_map": PROTOCOLS,
        "ssl_keystore_location": own.server,
        "ssl_truststore_location": own.authority,
        "ssl_client_auth": "required",
        "listener.name.open.ssl.client.auth": "none",
        "listener.name.strict.ssl.keystore.location": other.server,
        "listener.name.strict.ssl.truststore.location": other.authority,
        "listener.name.strict.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/U",
        "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.both.ssl.client.auth": "required",
        "listener.name.quiet.ssl.client.auth": "required",
    }
    with capture_logs() as lines, InProcessServer(bootstrap_user=first, **settings) as server:
        yield Secured(server, own, other, lines)


def test_each_listener_has_its_own_certificates_and_authorities(secured: Secured) -> None:
    own, other = secured.own, secured.other
    secured.asks("OPEN", own.authority)
    secured.asks("STRICT", other.authority, other.client)
    # The shared certificate is not that of this listener, on either side.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(secured.address("STRICT"), context(other, own.client))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(secured.address("STRICT"), context(own, other.client))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(secured.address("STRICT"), context(other))
    admitted = [(line["listener"], line["principal"]) for line in secured.lines if line["event"] == "logged in"]
    assert ("STRICT", "User:JANE") in admitted


def test_where_clients_log_in_only_the_prefix_asks_for_a_certificate(secured: Secured) -> None:
    own = secured.own
    secured.asks("LOGIN", own.authority, mechanism="SCRAM-SHA-512")
    secured.asks("BOTH", own.authority, own.client, mechanism="SCRAM-SHA-512")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(secured.address("BOTH"), context(own))
    told = [line for line in secured.lines if "listener.name.login.ssl.client.auth" in line["event"]]
    assert [line["listener"] for line in told] == ["LOGIN"]


def test_a_certificate_is_no_login_where_one_is_asked_for(secured: Secured) -> None:
    own = secured.own
    # Only this client connects: clients of librdkafka keep connecting while they close.
    with handshake(secured.address("QUIET"), context(own, own.client)) as connected:
        # Metadata of version 1, for all topics: not before a login.
        connected.sendall(bytes.fromhex("00000010 0003 0001 00000002 0002 6d65 ffffffff".replace(" ", "")))
        connected.settimeout(60)
        received = b""
        try:
            while more := connected.recv(4096):
                received += more
        except (ConnectionError, ssl.SSLError):
            pass
        except TimeoutError:
            pytest.fail("the connection was neither served nor closed")
    assert b"127.0.0.1" not in received
    assert not [line for line in secured.lines if line["event"] == "logged in" and line["listener"] == "QUIET"]


def test_each_listener_has_its_own_mechanisms(secured: Secured) -> None:
    own = secured.own
    with pytest.raises(KafkaException):
        secured.asks("LOGIN", own.authority, mechanism="PLAIN", patience_s=2)
    secured.asks("BOTH", own.authority, own.client, mechanism="PLAIN")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"listener.name.cert.ssl.client.auth": "none"}, "there is no listener CERT; listeners has SSL"),
        (
            {"listener.name.SSL.ssl.client.auth": "none"},
            "write the listener's name in lower case, listener.name.ssl.ss",
        ),
        ({"listener.name.ssl.num.partitions": "3"}, "a listener has no num.partitions of its own; it may have ssl.key"),
        ({"listener.name.ssl": "3"}, "listener.name.ssl: expected listener.name.NAME.KEY, such as"),
        ({"listener.name.ssl.ssl.client.auth": "maybe"}, "listener.name.ssl.ssl.client.auth=maybe: "),
    ],
)
def test_what_is_of_no_listener_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        InProcessServer(listeners="SSL://127.0.0.1:0", **settings)


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("ssl.client.auth", "required", "ssl.client.auth=required needs the authorities whose .* at LOGIN: add"),
        ("ssl.keystore.location", "/nowhere.pem", "ssl.keystore.location=/nowhere.pem: No such file"),
        ("sasl.enabled.mechanisms", "OAUTHBEARER", "sasl.enabled.mechanisms has OAUTHBEARER, which needs the keys"),
    ],
)
def test_a_listener_without_what_it_takes_does_not_start(secured: Secured, key: str, text: str, told: str) -> None:
    own: dict[str, Any] = {f"listener.name.login.{key}": text}
    with (
        pytest.raises(StartError, match=told),
        InProcessServer(
            listeners="LOGIN://127.0.0.1:0",
            listener_security_protocol_map="LOGIN:SASL_SSL",
            ssl_keystore_location=secured.own.server,
            **own,
        ),
    ):
        pass


def test_a_listener_without_client_certificates_is_not_opened_to_others(secured: Secured) -> None:
    own: dict[str, Any] = {"listener.name.partners.ssl.client.auth": "none"}
    with (
        pytest.raises(StartError, match=r"listeners=PARTNERS://0\.0\.0\.0:0 is open to"),
        InProcessServer(
            listeners="PARTNERS://0.0.0.0:0",
            listener_security_protocol_map="PARTNERS:SSL",
            ssl_keystore_location=secured.own.server,
            ssl_truststore_location=secured.own.authority,
            ssl_client_auth="required",
            **own,
        ),
    ):
        pass
