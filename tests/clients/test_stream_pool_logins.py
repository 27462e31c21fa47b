"""Logins to stream pools at every kind of listener, under every `oci.auth`: as the guide says, and no wider."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

import oci
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients

TOPIC, USER, TOKEN, PASSWORD = "orders", "acme/jane@example.com", "s3cret;>{(token", "pässword"
LISTENERS = {"PLAIN": "PLAINTEXT", "TLS": "SSL", "BARE": "SASL_PLAINTEXT", "LOGIN": "SASL_SSL", "CERT": "SSL"}
ENCRYPTED = {"TLS", "LOGIN", "CERT"}
OPEN = ["PLAIN", "TLS", "BARE", "LOGIN"]


class Running:
    """A server with a listener of each kind, and a stream pool with one stream."""

    def __init__(self, server: InProcessServer, made: GeneratedFiles, mode: str, pool: str) -> None:
        self.server, self.made, self.mode, self.pool = server, made, mode, pool

    def options(self, listener: str, user: str, password: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        """Of confluent-kafka."""
        certificate = {"ssl.certificate.location": str(self.made.client), "ssl.key.location": str(self.made.client)}
        return {
            "bootstrap.servers": self.server.listeners.get(listener, self.server.kafka),
            "security.protocol": "SASL_SSL" if listener in ENCRYPTED else "SASL_PLAINTEXT",
            "ssl.ca.location": str(self.made.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
            **(certificate if listener == "CERT" else {}),
        }

    def topics(self, *login: str) -> list[str]:
        """What a client sees that logs in."""
        topics = AdminClient(self.options(*login)).list_topics(timeout=30).topics
        return sorted(name for name in topics if name != "__consumer_offsets")

    def refused(self, *login: str) -> str:
        """Why a client cannot log in, as it reports it."""
        said: list[str] = []
        client = AdminClient(self.options(*login) | {"error_cb": lambda error: said.append(error.str())})
        while not any("auth" in each.lower() or "sasl" in each.lower() for each in said):
            with pytest.raises(KafkaException):
                client.list_topics(timeout=0.2)
            client.poll(0)
        return " ".join(said)


def opened(folder: Path, made: GeneratedFiles, **settings: Any) -> InProcessServer:
    return InProcessServer(
        folder / "data",
        bootstrap_user=folder / "first",
        listeners=",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        listener_security_protocol_map=",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        ssl_keystore_location=made.server,
        ssl_truststore_location=made.authority,
        connection_failed_authentication_delay_ms=1,
        **{"listener.name.cert.ssl.client.auth": "required"},  # type: ignore[arg-type]
        **settings,
    )


@pytest.fixture(scope="module", params=["parse", "off", "verify"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("logins")
    made = create(folder / "tls", (), "jane", dt.datetime.now(dt.UTC))
    (folder / "first").write_text(f"admin:{PASSWORD}\n", "utf-8")
    (folder / "tokens").write_text(f"{USER} {TOKEN}\n")
    (folder / "keys").mkdir()
    with opened(folder, made) as server:
        clients = OciClients(server.http)
        details = oci.streaming.models.CreateStreamPoolDetails(name="inside", compartment_id=clients.compartment_id)
        pool: str = clients.admin_client().create_stream_pool(details).data.id
        clients.create_stream(TOPIC, stream_pool_id=pool)
    verifying = {"oci_auth_keys": folder / "keys", "oci_auth_tokens": folder / "tokens"}
    more = verifying if request.param == "verify" else {}
    with opened(folder, made, oci_auth=request.param, **more) as server:
        yield Running(server, made, request.param, pool)


@pytest.mark.parametrize("listener", OPEN)
def test_a_pool_login_by_plain_works_at_each_listener(running: Running, listener: str) -> None:
    options = running.options(listener, f"{USER}/{running.pool}", TOKEN)
    producer = Producer(options)
    producer.produce(TOPIC, listener.encode())
    assert producer.flush(60) == 0
    consumer = Consumer(options | {"group.id": listener, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        found: list[bytes | None] = []
        while listener.encode() not in found:
            found += [message.value() for message in consumer.consume(10, 1.0)]
    finally:
        consumer.close()


@pytest.mark.parametrize("listener", OPEN)
def test_the_token_counts_with_verify_only(running: Running, listener: str) -> None:
    login = (listener, f"{USER}/{running.pool}", "another token")
    if running.mode == "verify":
        assert "invalid username or password" in running.refused(*login)
    else:
        assert running.topics(*login) == [TOPIC]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["BARE", "LOGIN"])
def test_users_of_the_server_log_in_as_ever(running: Running, listener: str, mechanism: str) -> None:
    assert running.topics(listener, "admin", PASSWORD, mechanism) == []
    assert "invalid" in running.refused(listener, "admin", "wrong", mechanism).lower()


@pytest.mark.parametrize("listener", ["BARE", "LOGIN"])
def test_names_without_a_pool_need_a_password_under_every_mode(running: Running, listener: str) -> None:
    for name in ("jane", USER, f"{USER}/ocid1.stream.oc1.local.aaaa"):
        assert "invalid username or password" in running.refused(listener, name, TOKEN).lower()
    assert "invalid username or password" in running.refused(
        listener, f"{USER}/ocid1.streampool.oc1.local.nowhere", TOKEN
    )


@pytest.mark.parametrize(("listener", "refused"), [("PLAIN", "UNSUPPORTED"), ("LOGIN", "invalid")])
def test_pools_take_no_other_mechanism(running: Running, listener: str, refused: str) -> None:
    said = running.refused(listener, f"{USER}/{running.pool}", TOKEN, "SCRAM-SHA-256")
    assert refused.lower() in said.lower()


def test_where_a_certificate_is_the_identity_there_is_no_login(running: Running) -> None:
    assert "sasl" in running.refused("CERT", f"{USER}/{running.pool}", TOKEN).lower()
