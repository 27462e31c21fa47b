"""Listeners with TLS: real clients, own and foreign certificates, and handshakes that never end."""

import asyncio
import contextlib
import datetime as dt
import shutil
import socket
import ssl
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs
from tests.harness.waiting import wait_for

from headrace.broker.admin.audit import MOST_LINES, WINDOW_MS
from headrace.kafka.server.connection import Connection
from headrace.kafka.server.listener import KafkaListener
from headrace.security.tls import handshakes
from headrace.security.tls.files import GeneratedFiles, create
from headrace.server.config import StartError
from headrace.testing import InProcessServer

with warnings.catch_warnings():
    # It reads its own schema files by a call that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> GeneratedFiles:
    return create(tmp_path_factory.mktemp("own"), (), "jane", NOW)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> GeneratedFiles:
    """Of another authority."""
    return create(tmp_path_factory.mktemp("foreign"), (), "jane", NOW)


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> GeneratedFiles:
    """Of an authority that is trusted, and too old."""
    return create(tmp_path_factory.mktemp("expired"), (), "jane", NOW - dt.timedelta(days=400))


@pytest.fixture(scope="module")
def server(own: GeneratedFiles, expired: GeneratedFiles) -> Iterator[InProcessServer]:
    trusted = own.authority.with_name("trusted.pem")
    trusted.write_bytes(own.authority.read_bytes() + expired.authority.read_bytes())
    with InProcessServer(
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,CERT://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SSL:SSL,CERT:SSL",
        ssl_keystore_location=own.server,
        ssl_truststore_location=trusted,
        ssl_client_auth="requested",
        https=True,
    ) as running:
        yield running


def configuration(address: str, made: GeneratedFiles, certificate: Path | None = None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(made.authority),
        "log_level": 0,
    }
    if certificate is not None:
        settings |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
    return settings


def context(made: GeneratedFiles, certificate: Path | None = None) -> ssl.SSLContext:
    made_context = ssl.create_default_context(cafile=made.authority)
    if certificate is not None:
        made_context.load_cert_chain(certificate)
    return made_context


def handshake(address: str, with_context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection whose handshake is through; raises ssl.SSLError or ConnectionError where the server ends it."""
    host, port = address.rsplit(":", 1)
    raw = socket.create_connection((host, int(port)), 60)
    with contextlib.ExitStack() as stack:
        stack.callback(raw.close)
        secured = with_context.wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
        stack.callback(secured.close)
        secured.do_handshake()
        # ApiVersions 0: with TLS 1.3 a client hears of a certificate that is refused only after its own handshake.
        secured.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
        if not secured.recv(4):
            raise ConnectionResetError("the server closed the connection")
        stack.pop_all()
        return secured


def test_clients_of_three_libraries_write_and_read(server: InProcessServer, own: GeneratedFiles) -> None:
    address = server.listeners["SSL"]
    producer = Producer(configuration(address, own, own.client))
    producer.produce("tls", b"a" * 300_000)
    assert producer.flush(60) == 0
    other = KafkaProducer(
        bootstrap_servers=address, security_protocol="SSL", ssl_cafile=str(own.authority), ssl_check_hostname=True
    )
    other.send("tls", b"b" * 300_000).get(60)
    other.close()

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            "tls",
            bootstrap_servers=address,
            security_protocol="SSL",
            ssl_context=context(own),
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in range(2)]
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == [b"a" * 300_000, b"b" * 300_000]


def test_each_listener_advertises_its_own_address(server: InProcessServer, own: GeneratedFiles) -> None:
    for name, address in server.listeners.items():
        brokers = AdminClient(configuration(address, own)).list_topics(timeout=60).brokers.values()
        assert [f"{each.host}:{each.port}" for each in brokers] == [address], name
    plain = AdminClient({"bootstrap.servers": server.kafka}).list_topics(timeout=60).brokers.values()
    assert [f"{each.host}:{each.port}" for each in plain] == [server.kafka]


def test_pages_are_served_with_tls_too(server: InProcessServer, own: GeneratedFiles) -> None:
    assert server.http.startswith("https://")
    with urllib.request.urlopen(server.http + "/healthz", context=context(own), timeout=60) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(server.http + "/healthz", timeout=60)


def test_clients_that_rest_do_not_hold_up_the_end(own: GeneratedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than a busy machine takes: a connection that is waited for is logged all the same.
    monkeypatch.setattr("headrace.http.listener._GRACE_S", 30)
    with contextlib.ExitStack() as stack, capture_logs() as lines:
        running = stack.enter_context(
            InProcessServer(listeners="SSL://127.0.0.1:0", ssl_keystore_location=own.server, https=True)
        )
        resting = []
        for address in (running.kafka, *[running.http.removeprefix("https://")] * 3):
            host, port = address.rsplit(":", 1)
            raw = socket.create_connection((host, int(port)), 60)
            stack.callback(raw.close)
            secured = context(own).wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False)
            resting.append(stack.enter_context(secured))
        for secured in resting[2:]:
            secured.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"reachable" not in answer:
                answer += (more := secured.recv(4096))
                assert more, answer
        running.close()
        # Each is notified, and none is waited for, although no client has responded yet.
        assert [secured.recv(1) for secured in resting] == [b""] * 4
    assert not [line for line in lines if line["event"] == "connections closed with unsent responses"]


def test_a_client_sees_through_a_server_of_another_authority(server: InProcessServer, foreign: GeneratedFiles) -> None:
    with pytest.raises(KafkaException):
        AdminClient(configuration(server.listeners["SSL"], foreign)).list_topics(timeout=2)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_foreign_and_expired_certificates_are_refused(
    server: InProcessServer,
    own: GeneratedFiles,
    foreign: GeneratedFiles,
    expired: GeneratedFiles,
    version: ssl.TLSVersion,
) -> None:
    for refused in (foreign.client, expired.client, foreign.server):
        with_it = context(own, refused)
        with_it.minimum_version = with_it.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(server.listeners["SSL"], with_it)
    with handshake(server.listeners["SSL"], context(own, own.client)) as secured:
        assert secured.session_reused is False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_with_a_rejected_certificate_gets_an_alert(
    server: InProcessServer, own: GeneratedFiles, foreign: GeneratedFiles, version: ssl.TLSVersion
) -> None:
    with_it = context(own, foreign.client)
    with_it.minimum_version = with_it.maximum_version = version
    with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
        handshake(server.listeners["SSL"], with_it)


def test_a_flood_of_bad_handshakes_is_logged_in_few_lines(own: GeneratedFiles, foreign: GeneratedFiles) -> None:
    settings: dict[str, Any] = {"ssl_truststore_location": own.authority, "ssl_client_auth": "required"}
    with (
        InProcessServer(listeners="SSL://127.0.0.1:0", ssl_keystore_location=own.server, **settings) as running,
        capture_logs() as lines,
    ):

        def told(event: str) -> int:
            return sum(line["event"] == event for line in lines)

        for _ in range(MOST_LINES + 15):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(running.kafka, context(own, foreign.client))
        wait_for(lambda: told("handshake failed") == MOST_LINES, "the first lines")
        running.clock.advance(seconds=WINDOW_MS // 1000 + 1)
        wait_for(lambda: told("handshake failed, more of the same") > 0, "the count")
        assert told("handshake failed") == MOST_LINES


def test_old_versions_of_tls_are_refused(server: InProcessServer, own: GeneratedFiles) -> None:
    old = context(own)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(server.listeners["SSL"], old)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
    ],
    ids=["Kafka", "HTTP", "a hello of nothing"],
)
def test_an_invalid_handshake_ends_the_connection(server: InProcessServer, sent: bytes) -> None:
    for address in (server.listeners["SSL"], server.http.removeprefix("https://")):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 60) as raw, contextlib.suppress(ConnectionError):
            raw.sendall(sent)
            while raw.recv(4096):
                pass


def test_half_a_handshake_is_counted_and_blocks_no_client(own: GeneratedFiles) -> None:
    with InProcessServer(
        listeners="SSL://127.0.0.1:0", ssl_keystore_location=own.server, max_connections_per_ip=3
    ) as running:
        host, port = running.kafka.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(2)]
            silent[0].sendall(b"\x16\x03\x01")
            stack.enter_context(handshake(running.kafka, context(own)))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(running.kafka, context(own))

        # Those who left are counted no more.
        def let_in() -> bool:
            try:
                handshake(running.kafka, context(own)).close()
            except (ssl.SSLError, ConnectionError):
                return False
            return True

        wait_for(let_in, "a place for one more")


def test_a_handshake_that_never_ends_is_ended(own: GeneratedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    assert handshakes.HANDSHAKE_S <= 10
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.1)
    with (
        capture_logs() as lines,
        InProcessServer(listeners="SSL://127.0.0.1:0", ssl_keystore_location=own.server, https=True) as running,
    ):
        for address in (running.kafka, running.http.removeprefix("https://")):
            host, port = address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), 60) as raw, contextlib.suppress(ConnectionError):
                raw.sendall(b"\x16\x03\x01")
                assert raw.recv(1) == b""
        wait_for(lambda: sum("not over within" in line.get("reason", "") for line in lines) == 2, "a line of each")


def test_certificates_are_read_again_and_a_removed_authority_is_refused(
    own: GeneratedFiles, foreign: GeneratedFiles, tmp_path: Path
) -> None:
    keystore, truststore = tmp_path / "server.pem", tmp_path / "ca.pem"
    shutil.copy(own.server, keystore)
    shutil.copy(own.authority, truststore)
    with InProcessServer(
        listeners="SSL://127.0.0.1:0",
        ssl_keystore_location=keystore,
        ssl_truststore_location=truststore,
        ssl_client_auth="required",
    ) as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(running.kafka, context(own))
        with handshake(running.kafka, context(own, own.client)) as secured:
            session = secured.session
        truststore.write_bytes(foreign.authority.read_bytes())
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(running.kafka, context(own, own.client))
        assert session is not None
        assert not session.has_ticket
        keystore.write_bytes(b"half a file")
        handshake(running.kafka, context(own, foreign.client)).close()
        keystore.write_bytes(foreign.server.read_bytes())
        handshake(running.kafka, context(foreign, foreign.client)).close()
        with pytest.raises(ssl.SSLError):
            handshake(running.kafka, context(own, foreign.client))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "SSL needs a certificate: headrace tls create DIR makes one"),
        ({"ssl_keystore_location": "/nowhere.pem"}, "ssl.keystore.location=/nowhere.pem: No such file"),
        ({"ssl_keystore_location": "{ca}"}, "expected a private key without a passphrase and its certificates"),
        ({"ssl_keystore_location": "{server}", "ssl_client_auth": "required"}, "ssl.client.auth=required needs"),
        (
            {"ssl_keystore_location": "{server}", "ssl_truststore_location": __file__},
            "expected certificates of authorities as PEM",
        ),
        (
            {"ssl_keystore_location": "{server}", "ssl_principal_mapping_rules": "x"},
            "ssl.principal.mapping.rules=x: expected DEFAULT or RULE",
        ),
        ({"listeners": "SSL://0.0.0.0:0", "ssl_keystore_location": "{server}"}, "listeners=SSL://0.0.0.0:0 is open to"),
    ],
)
def test_a_server_without_what_it_takes_does_not_start(
    own: GeneratedFiles, settings: dict[str, str], told: str
) -> None:
    given: dict[str, Any] = {"listeners": "SSL://127.0.0.1:0"} | {
        name: text.format(ca=own.authority, server=own.server) for name, text in settings.items()
    }
    with pytest.raises(StartError, match=told), InProcessServer(**given):
        pass


def test_a_certificate_names_the_principal(own: GeneratedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    admit = KafkaListener.admit

    def noting(listener: KafkaListener, connection: Connection) -> None:
        admit(listener, connection)
        seen.append(str(connection.principal))

    monkeypatch.setattr(KafkaListener, "admit", noting)
    with InProcessServer(
        listeners="SSL://127.0.0.1:0",
        ssl_keystore_location=own.server,
        ssl_truststore_location=own.authority,
        ssl_client_auth="requested",
        ssl_principal_mapping_rules="RULE:^CN=(.*)$/$1/U",
    ) as running:
        handshake(running.kafka, context(own, own.client)).close()
        handshake(running.kafka, context(own)).close()
    assert seen == ["User:JANE", "User:ANONYMOUS"]
