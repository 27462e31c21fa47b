"""Three brokers that require TLS, a certificate and a login, with ACLs, send requests to each other."""

import contextlib
import datetime as dt
import http.client
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import oci.streaming
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from oci.exceptions import ServiceError
from oci.streaming.models import CreateCursorDetails, CreateGroupCursorDetails, PutMessagesDetails
from oci.streaming.models import PutMessagesDetailsEntry as Entry
from tests.harness.brokers import KEPT
from tests.harness.redis import RedisServer
from tests.harness.waiting import wait_for

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.cli import main
from headrace.http.peers.transactions import ENDS, QUESTIONS
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import Server, server
from headrace.testing.oci import OciClients

pytestmark = pytest.mark.long
PARTITIONS = 6


class Secured(msgspec.Struct):
    """The brokers, and what their clients need."""

    servers: list[Server]
    made: GeneratedFiles
    config: dict[str, Any]

    def kafka(self, broker: Server, name: str = "jane", mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        return {
            "bootstrap.servers": broker.kafka,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.made.authority),
            "ssl.certificate.location": str(self.made.client),
            "ssl.key.location": str(self.made.client),
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": "secret",
            "log_level": 0,
        }

    def oci(self, broker: Server) -> oci.streaming.StreamClient:
        client = oci.streaming.StreamClient(self.config, broker.http, retry_strategy=oci.retry.NoneRetryStrategy())
        self.certify(client)
        return client

    def stream(self, name: str) -> str:
        clients = OciClients(self.servers[0].http)
        clients.config = self.config
        self.certify(clients.admin)
        return str(clients.create_stream(name, PARTITIONS).id)

    def certify(self, client: Any) -> None:
        """Have a client of the SDK believe the servers' authority, and show its own certificate."""
        session = client.base_client.session
        # REQUESTS_CA_BUNDLE would go over what is said here.
        session.trust_env = False
        session.verify, session.cert = str(self.made.authority), str(self.made.client)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    made = create(folder / "certificates", (), "client", dt.datetime.now(dt.UTC))
    assert main.run(["oci-config", str(folder / "profile"), "--keys", str(folder / "keys")]) == 0
    config = oci.config.from_file(str(folder / "profile" / "config"))
    (folder / "first").write_text("jane:secret")
    given: dict[str, Any] = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl_keystore_location": made.server,
        "ssl_truststore_location": made.authority,
        "ssl_client_auth": "required",
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": f"User:{config['tenancy']}/{config['user']}",
        "oci_auth": "verify",
        "oci_auth_keys": folder / "keys",
        # They have to find each other soon, and none of them is to be taken for dead.
        "broker_session_timeout_ms": 60_000,
        "broker_heartbeat_interval_ms": 300,
        "arguments": ["--http", "https://127.0.0.1:0", "--bootstrap-user", str(folder / "first")],
    }
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(None, KEPT))
        started = [stack.enter_context(server(redis=redis.url, node_id=node, **given)) for node in (1, 2, 3)]
        found = Secured(started, made, config)
        for each in found.servers:
            admin = AdminClient(found.kafka(each))
            wait_for(lambda admin=admin: len(admin.list_topics(timeout=60).brokers) == 3, "all three")  # type: ignore[misc]
        yield found


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def test_puts_reach_every_leader_and_groups_their_coordinators(secured: Secured) -> None:
    stream = secured.stream("forwarded")
    sent = {f"value-{number}" for number in range(60)}
    clients = [secured.oci(each) for each in secured.servers]
    for number, value in enumerate(sorted(sent)):
        entry = Entry(key=encoded(f"key-{number}"), value=encoded(value))
        found = clients[number % 3].put_messages(stream, PutMessagesDetails(messages=[entry])).data
        assert found.failures == 0, found
    for client in clients:
        got = set()
        for partition in range(PARTITIONS):
            details = CreateCursorDetails(partition=str(partition), type="TRIM_HORIZON")
            cursor = client.create_cursor(stream, details).data.value
            got |= {b64decode(each.value).decode() for each in client.get_messages(stream, cursor).data}
        assert got == sent
    # Of six groups some have their coordinators elsewhere.
    for number in range(6):
        asked, other = clients[number % 3], clients[(number + 1) % 3]
        details = CreateGroupCursorDetails(group_name=f"group-{number}", instance_name="one", type="TRIM_HORIZON")
        cursor = asked.create_group_cursor(stream, details).data.value
        got = set()
        while got != sent:
            answer = other.get_messages(stream, cursor)
            got |= {b64decode(each.value).decode() for each in answer.data}
            cursor = answer.headers["opc-next-cursor"]


def test_kafka_clients_log_in_at_every_broker_and_are_asked_about_there(secured: Secured) -> None:
    jane = AdminClient(secured.kafka(secured.servers[0]))
    jane.create_topics([NewTopic("flights", PARTITIONS)])["flights"].result(60)
    joe = UserScramCredentialUpsertion("joe", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"secret")
    jane.alter_user_scram_credentials([joe])["joe"].result(60)
    producer = Producer(secured.kafka(secured.servers[1], mechanism="PLAIN"))
    for number in range(60):
        producer.produce("flights", f"{number}")
    assert producer.flush(60) == 0
    consumer = Consumer(secured.kafka(secured.servers[2]) | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["flights"])
    assert {each.value() for each in consumer.consume(60, 60)} == {b"%d" % number for number in range(60)}
    consumer.close()
    for broker in secured.servers:
        other = AdminClient(secured.kafka(broker, "joe"))
        # A new user is known elsewhere within a second or so; until then the login fails and is tried again.
        with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
            other.create_topics([NewTopic("joes", 1)])["joes"].result(60)


def test_connections_between_brokers_are_closed_to_others(secured: Secured) -> None:
    stream = secured.stream("closed")
    context = ssl.create_default_context(cafile=secured.made.authority)
    context.load_cert_chain(secured.made.client)
    place = secured.servers[1].http.removeprefix("https://")
    forged = {"headrace-seal": f"{encoded('{}')}.{'0' * 64}"}
    for method, path, headers in (
        ("POST", "/headrace/append?cluster=default&topic=x&id=0&partition=0", {}),
        ("POST", "/headrace/append?cluster=default&topic=x&id=0&partition=0", forged),
        ("POST", ENDS, {}),
        ("POST", ENDS, forged),
        ("POST", QUESTIONS, forged),
        ("GET", f"/20180418/streams/{stream}/groups/g", forged),
    ):
        connection = http.client.HTTPSConnection(place, timeout=60, context=context)
        connection.request(method, path, b"x" if method == "POST" else None, headers)
        assert connection.getresponse().status == 401
        connection.close()
    stranger = OciClients(secured.servers[2].http)
    client = stranger.stream_client()
    secured.certify(client)
    with pytest.raises(ServiceError) as refused:
        client.put_messages(stream, PutMessagesDetails(messages=[Entry(value=encoded("x"))]))
    assert refused.value.status == 401
