"""`oci.kafka=strict`: Kafka clients are refused what OCI Streaming refuses, with the error that they report there."""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.harness.wire import Wire

import kafka
import oci
from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.kafka.oci_streaming import SUPPORTED, UNSUPPORTED
from headrace.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeLogDirsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients

TOPIC, USER, TOKEN = "orders", "acme/jane", "any token"


@pytest.fixture(scope="module")
def strict() -> Iterator[InProcessServer]:
    with InProcessServer(oci_kafka="strict") as server:
        OciClients(server.http).create_stream(TOPIC)
        yield server


@pytest.fixture(params=["the default pool", "another pool"])
def options(request: pytest.FixtureRequest, strict: InProcessServer) -> dict[str, Any]:
    """Of confluent-kafka: without a login, and with one to a pool."""
    found: dict[str, Any] = {"bootstrap.servers": strict.kafka, "log_level": 0}
    if request.param == "the default pool":
        return found
    clients = OciClients(strict.http)
    pools = clients.admin_client().list_stream_pools(clients.compartment_id, name="another").data
    if not pools:
        details = oci.streaming.models.CreateStreamPoolDetails(name="another", compartment_id=clients.compartment_id)
        pools = [clients.admin_client().create_stream_pool(details).data]
        clients.create_stream(TOPIC, stream_pool_id=pools[0].id)
    login = {"sasl.mechanism": "PLAIN", "sasl.username": f"{USER}/{pools[0].id}", "sasl.password": TOKEN}
    return found | {"security.protocol": "SASL_PLAINTEXT"} | login


def advertised(server: InProcessServer, version: int) -> list[int]:
    with Wire(server.kafka) as client:
        asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        return sorted(each.api_key for each in client.ask(asked, version).api_keys)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_api_versions_advertises_what_is_supported_and_nothing_else(strict: InProcessServer, version: int) -> None:
    assert advertised(strict, version) == sorted(SUPPORTED)
    assert not {key for each in UNSUPPORTED for key in each.apis} & set(advertised(strict, version))


def test_a_version_of_api_versions_that_is_too_new_is_refused_with_the_same_list(strict: InProcessServer) -> None:
    """KIP-511: in the form of version 0."""
    host, port = strict.kafka.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 60) as client, client.makefile("rb") as answers:
        header = struct.pack(">hhihx", ApiVersionsRequest.API_KEY, 99, 7, -1)
        client.sendall(struct.pack(">i", len(header)) + header)
        (size,) = struct.unpack(">i", answers.read(4))
        answer = ApiVersionsResponse.decode(answers.read(size), 4, 0)
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    assert sorted(each.api_key for each in answer.api_keys) == sorted(SUPPORTED)


@pytest.mark.parametrize(
    ("request_", "version"),
    [(InitProducerIdRequest(transactional_id=None), 1), (DescribeLogDirsRequest(topics=None), 1)],
)
def test_a_client_that_asks_all_the_same_loses_its_connection(
    strict: InProcessServer, request_: Any, version: int
) -> None:
    with Wire(strict.kafka) as client, pytest.raises(ConnectionEnded):
        client.ask(request_, version)


def test_a_plain_producer_and_a_group_work(options: dict[str, Any]) -> None:
    producer = Producer(options)
    producer.produce(TOPIC, b"value", b"key")
    assert producer.flush(60) == 0
    consumer = Consumer(options | {"group.id": "readers", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        found: list[Any] = []
        while not found:
            found = consumer.consume(1, 1.0)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    assert found[0].value() == b"value"


def fatal(of: Callable[[], object]) -> KafkaError:
    """Call until librdkafka reports an error."""
    for _ in range(600):
        try:
            of()
        except KafkaException as error:
            found: KafkaError = error.args[0]
            return found
    raise AssertionError("the producer has no error")


def test_an_idempotent_producer_fails(options: dict[str, Any]) -> None:
    producer = Producer(options | {"enable.idempotence": True})
    error = fatal(lambda: producer.poll(0.1))
    assert (error.code(), error.fatal()) == (KafkaError._UNSUPPORTED_FEATURE, True)
    assert "Idempotent producer not supported" in error.str()


def test_a_transactional_producer_fails(options: dict[str, Any]) -> None:
    producer = Producer(options | {"transactional.id": "t"})
    error = fatal(lambda: producer.init_transactions(60))
    assert (error.code(), error.fatal()) == (KafkaError._UNSUPPORTED_FEATURE, True)
    assert "Transactions not supported" in error.str()


@pytest.mark.parametrize("version", [1, 3, 4])
def test_no_coordinator_of_a_transaction_is_found(strict: InProcessServer, version: int) -> None:
    """Java's producer, kafka-python, aiokafka and franz-go look for it before they ask for a producer id."""
    request = FindCoordinatorRequest(key="t", key_type=1, coordinator_keys=["t"])
    with Wire(strict.kafka) as client:
        answer = client.ask(request, version)
    found = answer.coordinators[0] if version == 4 else answer
    assert found.error_code == Code.UNSUPPORTED_VERSION
    assert "OCI Streaming has no transactions (oci.kafka=strict)" in found.error_message


def test_a_transactional_producer_of_aiokafka_fails(strict: InProcessServer) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=strict.kafka, transactional_id="t")
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError, match="UnsupportedVersion"):
        asyncio.run(asyncio.wait_for(start(), 60))


def test_kafka_python_fails_by_default_and_works_without_idempotence(strict: InProcessServer) -> None:
    with pytest.raises(kafka.errors.IncompatibleBrokerVersion, match="InitProducerId"):
        kafka.KafkaProducer(bootstrap_servers=strict.kafka).send(TOPIC, b"value").get(60)
    producer = kafka.KafkaProducer(bootstrap_servers=strict.kafka, enable_idempotence=False)
    try:
        assert producer.send(TOPIC, b"value").get(60).topic == TOPIC
    finally:
        producer.close()


def _incremental(client: AdminClient) -> dict[Any, Any]:
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    return client.incremental_alter_configs([ConfigResource("topic", TOPIC, incremental_configs=[entry])])


def _acls(client: AdminClient) -> dict[Any, Any]:
    every = AclBindingFilter(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        "User:jane",
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return {None: client.describe_acls(every)}


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.create_partitions([NewPartitions(TOPIC, 3)]),
        lambda client: client.delete_records([confluent_kafka.TopicPartition(TOPIC, 0, 1)]),
        _incremental,
        _acls,
        lambda client: client.describe_user_scram_credentials(["jane"]),
    ],
)
def test_admin_requests_that_the_service_lacks_are_unsupported(
    options: dict[str, Any], ask: Callable[[AdminClient], dict[Any, Any]]
) -> None:
    client = AdminClient(options)
    (answer,) = ask(client).values()
    with pytest.raises(KafkaException) as failed:
        answer.result(60)
    assert failed.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_compacted_topics_are_refused_and_others_of_the_request_are_made(options: dict[str, Any], policy: str) -> None:
    client = AdminClient(options)
    name = "".join(each for each in policy if each.isalpha())
    made = client.create_topics(
        [NewTopic(f"{name}-log", 1, 1, config={"cleanup.policy": policy}), NewTopic(f"{name}-plain", 1, 1)]
    )
    made[f"{name}-plain"].result(60)
    with pytest.raises(KafkaException) as failed:
        made[f"{name}-log"].result(60)
    assert failed.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "oci.kafka=strict" in failed.value.args[0].str()
    client.delete_topics([f"{name}-plain"])[f"{name}-plain"].result(60)


def test_a_topic_that_exists_is_reported_so_whatever_its_policy_was_to_be(options: dict[str, Any]) -> None:
    """Kafka Connect goes on with topics that exist, and ends if their configuration is invalid."""
    client = AdminClient(options)
    made = client.create_topics([NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact"})])
    with pytest.raises(KafkaException) as failed:
        made[TOPIC].result(60)
    assert failed.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_topics_are_not_created_automatically(options: dict[str, Any]) -> None:
    said: list[KafkaError | None] = []
    producer = Producer(options | {"message.timeout.ms": 2_000})
    producer.produce("nowhere", b"value", on_delivery=lambda error, _: said.append(error))
    producer.flush(60)
    (error,) = said
    assert error is not None
    assert "nowhere" not in AdminClient(options).list_topics(timeout=60).topics


def test_without_it_everything_is_served_as_before() -> None:
    with InProcessServer() as server:
        assert {22, 35, 37, 44} <= set(advertised(server, 3))
