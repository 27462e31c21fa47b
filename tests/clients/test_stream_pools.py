"""Kafka clients that log in as they do at OCI Streaming: the stream pool in the user name is the cluster they see."""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from tests.harness.wire import Wire

import kafka
import oci
from headrace.cli.command import Status
from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.testing import Server, server
from headrace.testing.oci import OciClients

TOPIC = "orders"
USER = "acme/jane@example.com"
TOKEN = "s3cret;>{(token"


# Each library: send a value, read the next values of a group, list the topics.


class Confluent:
    """librdkafka."""

    def __init__(self, address: str, user: str, token: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": token,
            "log_level": 0,
        }

    def send(self, value: bytes) -> None:
        producer = Producer(self._settings)
        producer.produce(TOPIC, value)
        assert producer.flush(60) == 0

    def read(self, count: int) -> list[bytes | None]:
        consumer = Consumer(self._settings | {"group.id": "readers", "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([TOPIC])
            found: list[bytes | None] = []
            while len(found) < count:
                found += [message.value() for message in consumer.consume(count, 1.0)]
            consumer.commit(asynchronous=False)
            return found
        finally:
            consumer.close()

    def topics(self, seconds: float = 60) -> list[str]:
        return sorted({*AdminClient(self._settings).list_topics(timeout=seconds).topics} - {"__consumer_offsets"})


class KafkaPython:
    """kafka-python."""

    def __init__(self, address: str, user: str, token: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": token,
        }

    def send(self, value: bytes) -> None:
        producer = kafka.KafkaProducer(**self._settings)
        try:
            producer.send(TOPIC, value).get(60)
        finally:
            producer.close()

    def read(self, count: int) -> list[bytes | None]:
        consumer = kafka.KafkaConsumer(TOPIC, group_id="readers", auto_offset_reset="earliest", **self._settings)
        try:
            found: list[bytes | None] = []
            while len(found) < count:
                found += [record.value for records in consumer.poll(1_000).values() for record in records]
            consumer.commit()
            return found
        finally:
            consumer.close()

    def topics(self, seconds: float = 60) -> list[str]:
        consumer = kafka.KafkaConsumer(**self._settings, bootstrap_timeout_ms=int(seconds * 1_000))
        try:
            return sorted(consumer.topics())
        finally:
            consumer.close()


class AioKafka:
    """aiokafka."""

    def __init__(self, address: str, user: str, token: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": token,
        }

    def send(self, value: bytes) -> None:
        async def run() -> None:
            async with AIOKafkaProducer(**self._settings) as producer:
                await producer.send_and_wait(TOPIC, value)

        asyncio.run(run())

    def read(self, count: int) -> list[bytes | None]:
        async def run() -> list[bytes | None]:
            consumer = AIOKafkaConsumer(TOPIC, group_id="readers", auto_offset_reset="earliest", **self._settings)
            async with consumer:
                found = [(await consumer.getone()).value for _ in range(count)]
                await consumer.commit()
                return found

        return asyncio.run(run())

    def topics(self, seconds: float = 60) -> list[str]:
        async def run() -> list[str]:
            consumer = AIOKafkaConsumer(**self._settings)
            try:
                await asyncio.wait_for(consumer.start(), seconds)
                return sorted(await consumer.topics())
            finally:
                await consumer.stop()

        return asyncio.run(run())


Library = Callable[[str, str, str], Any]
ERRORS = (KafkaException, kafka.errors.KafkaError, AioKafkaError, TimeoutError)
WHOLE_LOG = ["--log-level", "debug"]
"""Below debug, a reason that comes again within seconds is only counted."""
LIBRARIES = pytest.mark.parametrize("library", [Confluent, KafkaPython, AioKafka])


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(arguments=WHOLE_LOG) as started:
        yield started


@pytest.fixture(scope="module")
def verifying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires a token, and for the OCI API a key; no key exists."""
    folder: Path = tmp_path_factory.mktemp("access")
    (folder / "tokens").write_text(f"{USER} {TOKEN}\n")
    with server(
        arguments=WHOLE_LOG,
        oci_auth="verify",
        oci_auth_keys=folder,
        oci_auth_tokens=folder / "tokens",
        oci_auth_kafka="required",
    ) as started:
        yield started


@pytest.fixture
def clients(running: Server) -> OciClients:
    return OciClients(running.http)


def refused(server: Server, client: Any, reason: str) -> bool:
    """Whether the log says that the server did not let a client in for this reason; clients before it may go on."""
    before = len(server.log())
    while f"login refused: {reason}" not in server.log()[before:]:
        with pytest.raises(ERRORS):
            client.topics(1.0)
    return True


def pool(clients: OciClients, name: str) -> str:
    """A new pool with one stream; its OCID."""
    models = oci.streaming.models
    details = models.CreateStreamPoolDetails(name=name, compartment_id=clients.compartment_id)
    made: str = clients.admin_client().create_stream_pool(details).data.id
    clients.create_stream(TOPIC, stream_pool_id=made)
    return made


@LIBRARIES
def test_two_pools_have_streams_and_groups_of_their_own(running: Server, clients: OciClients, library: Library) -> None:
    pools = [pool(clients, "one"), pool(clients, "two")]
    one, two = (library(running.kafka, f"{USER}/{each}", "any token") for each in pools)
    one.send(b"of one")
    two.send(b"of two")
    assert one.read(1) == [b"of one"]
    assert two.read(1) == [b"of two"]
    one.send(b"more of one")
    # The same group's position, of this pool only.
    assert one.read(1) == [b"more of one"]
    assert one.topics() == two.topics() == [TOPIC]


def test_records_of_kafka_clients_of_a_pool_are_read_over_the_api(running: Server, clients: OciClients) -> None:
    inside, outside = pool(clients, "inside"), pool(clients, "outside")
    Confluent(running.kafka, f"{USER}/{inside}", TOKEN).send(b"written through Kafka")
    admin, client = clients.admin_client(), clients.stream_client()
    found = {}
    for each in (inside, outside):
        (stream,) = admin.list_streams(stream_pool_id=each).data
        at = oci.streaming.models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
        cursor = client.create_cursor(stream.id, at).data.value
        found[each] = [base64.b64decode(one.value) for one in client.get_messages(stream.id, cursor).data]
    assert found == {inside: [b"written through Kafka"], outside: []}


def test_the_default_pool_is_the_cluster_of_clients_that_do_not_log_in(running: Server, clients: OciClients) -> None:
    stream = clients.create_stream("in-the-default-pool")
    logged_in = Confluent(running.kafka, f"{USER}/{stream.stream_pool_id}", TOKEN)
    anonymous = AdminClient({"bootstrap.servers": running.kafka})
    assert "in-the-default-pool" in logged_in.topics()
    assert logged_in.topics() == sorted({*anonymous.list_topics(timeout=60).topics} - {"__consumer_offsets"})


@LIBRARIES
@pytest.mark.parametrize(
    ("user", "reason"),
    [
        (f"{USER}/ocid1.streampool.oc1.local.nowhere", "there is no stream pool ocid1.streampool.oc1.local.nowhere"),
        ("jane", "user name 'jane'"),
    ],
)
def test_another_pool_or_no_pool_is_refused(running: Server, library: Library, user: str, reason: str) -> None:
    assert refused(running, library(running.kafka, user, TOKEN), reason)


@LIBRARIES
def test_a_pool_that_was_deleted_is_refused(running: Server, clients: OciClients, library: Library) -> None:
    gone = pool(clients, "gone")
    assert library(running.kafka, f"{USER}/{gone}", TOKEN).topics() == [TOPIC]
    clients.admin_client().delete_stream_pool(gone)
    assert refused(running, library(running.kafka, f"{USER}/{gone}", TOKEN), f"there is no stream pool {gone}")


@pytest.mark.parametrize("asked", [["list"], ["delete", "eve"]])
def test_the_commands_say_that_the_servers_users_are_not_listed_in_a_pool(
    running: Server, clients: OciClients, asked: list[str]
) -> None:
    """In a process of its own: the client library breaks its process' memory when it is refused that."""
    inside = pool(clients, f"users-{asked[0]}")
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", "users", *asked],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {
            "HEADRACE_BOOTSTRAP": running.kafka,
            "HEADRACE_KAFKA_USERNAME": f"{USER}/{inside}",
            "HEADRACE_KAFKA_PASSWORD": TOKEN,
        },
    )
    assert ended.stderr == (
        "headrace: cannot list users: users are kept for the whole server: not in a virtual cluster\n"
    )
    assert ended.returncode == Status.FAILED


def test_the_servers_users_are_not_managed_from_a_pool(running: Server, clients: OciClients) -> None:
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="admin", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
    )
    altering = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
    with Wire(running.kafka) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        token = f"\0{USER}/{pool(clients, 'managing')}\0{TOKEN}".encode()
        assert client.ask(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0
        assert client.ask(altering, 0).results[0].error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert (
            client.ask(DescribeUserScramCredentialsRequest(users=None), 0).error_code == Code.UNSUPPORTED_SASL_MECHANISM
        )


def test_connections_end_with_their_pool(running: Server, clients: OciClients) -> None:
    short_lived, lasting = pool(clients, "short-lived"), pool(clients, "lasting")
    with Wire(running.kafka) as gone, Wire(running.kafka) as there:
        for client, each in ((gone, short_lived), (there, lasting)):
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            token = f"\0{USER}/{each}\0{TOKEN}".encode()
            assert client.ask(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0
            assert client.fetch(TOPIC, 0).error_code == 0
        clients.admin_client().delete_stream_pool(short_lived)
        with pytest.raises(ConnectionEnded):
            gone.fetch(TOPIC, 0)
        assert there.fetch(TOPIC, 0).error_code == 0


DEFAULT = "ocid1.streampool.oc1.local.default"


@LIBRARIES
def test_tokens_are_verified_where_signatures_are(verifying: Server, library: Library) -> None:
    assert library(verifying.kafka, f"{USER}/{DEFAULT}", TOKEN).topics() == []
    for user, token in ((USER, "another"), ("acme/joe", TOKEN)):
        client = library(verifying.kafka, f"{user}/{DEFAULT}", token)
        assert refused(verifying, client, f"'{user}' has no such auth token")


def test_without_a_required_login_clients_get_no_response(verifying: Server) -> None:
    with Wire(verifying.kafka) as client, pytest.raises(ConnectionEnded):
        client.metadata()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": verifying.kafka, "log_level": 0}).list_topics(timeout=1)
