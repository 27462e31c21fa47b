"""Stream pools with Oracle's own client: virtual Kafka clusters."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.oci.conftest import Api

import oci
from headrace.testing.inprocess import InProcessServer
from headrace.testing.oci import GroupReader, OciClients, put, text_of

M = oci.streaming.models
COMPARTMENT = "ocid1.compartment.oc1..raw"
DEFAULT = "ocid1.streampool.oc1.local.default"


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(num_partitions=2) as started:
        yield started


def make(clients: OciClients, name: str = "p", **details: Any) -> Any:
    asked = M.CreateStreamPoolDetails(name=name, compartment_id=clients.compartment_id, **details)
    return clients.admin_client().create_stream_pool(asked).data


def kafka_of(server: InProcessServer, clients: OciClients, pool_id: str) -> dict[str, Any]:
    """What a Kafka client of a pool is configured with."""
    return {
        "bootstrap.servers": server.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": f"{clients.config['tenancy']}/{clients.config['user']}/{pool_id}",
        "sasl.password": "token",
    }


def error(caught: "pytest.ExceptionInfo[Any]") -> tuple[int, str]:
    return caught.value.status, caught.value.code


def test_a_pool_to_the_letter(oci_server: InProcessServer, api: Api) -> None:
    asked = {
        "name": "letter",
        "compartmentId": COMPARTMENT,
        "kafkaSettings": {"autoCreateTopicsEnable": True, "numPartitions": 3, "logRetentionHours": 48},
        "customEncryptionKeyDetails": {"kmsKeyId": "ocid1.key.oc1..k"},
        "privateEndpointDetails": {"subnetId": "ocid1.subnet.oc1..s", "nsgIds": ["ocid1.nsg.oc1..n"]},
        "freeformTags": {"a": "b"},
    }
    made = api.call("POST", "/streampools", asked)
    assert made.status == 200
    assert {"etag", "opc-work-request-id"} <= made.headers.keys()
    ocid = made.json["id"]
    expected = {
        "id": ocid,
        "compartmentId": COMPARTMENT,
        "name": "letter",
        "lifecycleState": "ACTIVE",
        "timeCreated": made.json["timeCreated"],
        "isPrivate": True,
        "freeformTags": {"a": "b"},
        "definedTags": {},
        "securityAttributes": {},
    }
    full = {
        "lifecycleStateDetails": None,
        "endpointFqdn": "127.0.0.1",
        "kafkaSettings": {
            "bootstrapServers": oci_server.kafka,
            "autoCreateTopicsEnable": True,
            "numPartitions": 3,
            "logRetentionHours": 48,
        },
        "customEncryptionKey": {"kmsKeyId": "ocid1.key.oc1..k", "keyState": "ACTIVE"},
        "privateEndpointSettings": {
            "subnetId": "ocid1.subnet.oc1..s",
            "privateEndpointIp": None,
            "nsgIds": ["ocid1.nsg.oc1..n"],
        },
    }
    assert made.json == expected | full
    assert api.done("GET", f"/streampools/{ocid}") == expected | full
    assert api.done("GET", f"/streampools?compartmentId={COMPARTMENT}&name=letter") == [expected]
    changed = api.call("PUT", f"/streampools/{ocid}", {"name": "new"}, {"if-match": made.headers["etag"]})
    assert (changed.status, changed.json) == (200, expected | full | {"name": "new"})
    moved = api.call("POST", f"/streampools/{ocid}/actions/changeCompartment", {"compartmentId": "c2"})
    assert (moved.status, moved.body, "opc-work-request-id" in moved.headers) == (204, b"", True)
    deleted = api.call("DELETE", f"/streampools/{ocid}")
    assert (deleted.status, deleted.body, "opc-work-request-id" in deleted.headers) == (204, b"", True)
    gone = api.done("GET", f"/streampools/{ocid}")
    assert gone == expected | full | {"name": "new", "compartmentId": "c2", "lifecycleState": "DELETED"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"compartmentId": "c"}, 400, "MissingParameter"),
        ({"name": "x"}, 400, "MissingParameter"),
        ({"name": "x", "compartmentId": "c", "kafkaSettings": {"numPartitions": 0}}, 400, "InvalidParameter"),
        ({"name": "x", "compartmentId": "c", "kafkaSettings": {"logRetentionHours": 673}}, 400, "InvalidParameter"),
        ({"name": "x", "compartmentId": "c", "kafkaSettings": {"logRetentionHours": 0}}, 400, "InvalidParameter"),
        ({"name": "x", "compartmentId": "c", "customEncryptionKeyDetails": {}}, 400, "MissingParameter"),
    ],
)
def test_pools_that_cannot_be_made(api: Api, body: dict[str, Any], status: int, code: str) -> None:
    assert api.call("POST", "/streampools", body).error[:2] == (status, code)


def test_the_default_pool_is_in_every_compartment(clients: OciClients, admin: Any, server: InProcessServer) -> None:
    (listed,) = admin.list_stream_pools(clients.compartment_id).data
    assert (listed.id, listed.name, listed.compartment_id) == (DEFAULT, "DefaultPool", clients.compartment_id)
    found = admin.get_stream_pool(DEFAULT).data
    assert found.kafka_settings.bootstrap_servers == server.kafka
    assert (found.kafka_settings.num_partitions, found.kafka_settings.auto_create_topics_enable) == (2, True)
    assert found.kafka_settings.log_retention_hours == 168
    assert (found.custom_encryption_key.key_state, found.is_private) == ("NONE", False)
    assert clients.create_stream("s").stream_pool_id == DEFAULT
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        admin.delete_stream_pool(DEFAULT)
    assert error(caught) == (409, "Conflict")


def test_a_pool_is_a_kafka_cluster_of_its_own(clients: OciClients, admin: Any, server: InProcessServer) -> None:
    settings = M.KafkaSettings(auto_create_topics_enable=True, num_partitions=3, log_retention_hours=48)
    pool = make(clients, kafka_settings=settings)
    kafka = kafka_of(server, clients, pool.id)
    inside = AdminClient(kafka)
    outside = AdminClient({"bootstrap.servers": server.kafka})

    made = clients.create_stream("shared-name", 1, stream_pool_id=pool.id)
    outside.create_topics([NewTopic("shared-name", 2)])["shared-name"].result(60)
    assert len(inside.list_topics(timeout=60).topics["shared-name"].partitions) == 1

    producer = Producer(kafka)
    producer.produce("automatic", b"hello")
    assert producer.flush(60) == 0
    assert "automatic" not in outside.list_topics(timeout=60).topics
    listed = {each.name: each for each in admin.list_streams(stream_pool_id=pool.id).data}
    assert set(listed) == {"shared-name", "automatic"}
    automatic = admin.get_stream(listed["automatic"].id).data
    assert (automatic.partitions, automatic.retention_in_hours) == (3, 48)
    assert automatic.compartment_id == clients.compartment_id

    put(clients.stream_client(), made.id, "one")
    moved = admin.update_stream(automatic.id, M.UpdateStreamDetails(stream_pool_id=DEFAULT)).data
    assert moved.stream_pool_id == DEFAULT
    assert "automatic" in outside.list_topics(timeout=60).topics
    assert "automatic" not in inside.list_topics(timeout=60).topics

    admin.delete_stream_pool(pool.id)
    assert admin.get_stream_pool(pool.id).data.lifecycle_state == "DELETED"
    assert admin.get_stream(made.id).data.lifecycle_state == "DELETED"
    assert "shared-name" in outside.list_topics(timeout=60).topics
    outside.delete_topics(["shared-name", "automatic"])["automatic"].result(60)


def test_a_stream_goes_on_in_another_pool(clients: OciClients, admin: Any, server: InProcessServer) -> None:
    """Producers and readers with cursors are not affected; groups stay in the old pool; its old name is free."""
    pool = make(clients)
    stream = clients.stream_client()
    made = clients.create_stream("moves")
    put(stream, made.id, "one")
    cursor = M.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    held = stream.create_cursor(made.id, cursor).data.value
    reader = GroupReader(stream, made.id, "g")
    assert reader.values() == ["one"]
    admin.update_stream(made.id, M.UpdateStreamDetails(stream_pool_id=pool.id))
    put(stream, made.id, "two")
    assert [text_of(each.value) for each in stream.get_messages(made.id, held).data] == ["one", "two"]
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        reader.get()
    assert error(caught)[0] == 400
    assert GroupReader(stream, made.id, "g").values() == ["one", "two"]

    other = clients.create_stream("moves")
    put(stream, other.id, "another")
    server.restart()
    put(stream, made.id, "three")
    for stream_id, expected in ((made.id, ["one", "two", "three"]), (other.id, ["another"])):
        found = stream.get_messages(stream_id, stream.create_cursor(stream_id, cursor).data.value)
        assert [text_of(each.value) for each in found.data] == expected
    producer = Producer(kafka_of(server, clients, pool.id))
    producer.produce("moves", b"four")
    assert producer.flush(60) == 0
    found = stream.get_messages(made.id, stream.create_cursor(made.id, cursor).data.value)
    assert [text_of(each.value) for each in found.data] == ["one", "two", "three", "four"]


def test_settings_of_a_new_pool_and_their_change(clients: OciClients, admin: Any) -> None:
    pool = make(clients)
    assert (pool.kafka_settings.auto_create_topics_enable, pool.kafka_settings.num_partitions) == (False, 1)
    assert pool.kafka_settings.log_retention_hours == 24
    details = M.UpdateStreamPoolDetails(
        kafka_settings=M.KafkaSettings(num_partitions=7), freeform_tags={"a": "b"}, name="renamed"
    )
    changed = admin.update_stream_pool(pool.id, details).data
    assert (changed.name, changed.freeform_tags) == ("renamed", {"a": "b"})
    assert (changed.kafka_settings.num_partitions, changed.kafka_settings.log_retention_hours) == (7, 24)


def test_a_retry_makes_one_pool(clients: OciClients, admin: Any) -> None:
    details = M.CreateStreamPoolDetails(name="once", compartment_id=clients.compartment_id)
    first = admin.create_stream_pool(details, opc_retry_token="again")
    second = admin.create_stream_pool(details, opc_retry_token="again")
    assert first.data == second.data
    assert first.headers["opc-work-request-id"] == second.headers["opc-work-request-id"]
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        admin.create_stream_pool(details, opc_retry_token="another")
    assert error(caught) == (409, "Conflict")


def test_pages_of_pools(clients: OciClients, admin: Any) -> None:
    for number in range(4):
        make(clients, f"p{number}")
    found = oci.pagination.list_call_get_all_results(
        admin.list_stream_pools, clients.compartment_id, limit=2, sort_by="NAME"
    )
    assert [each.name for each in found.data] == ["DefaultPool", "p0", "p1", "p2", "p3"]
    first = admin.list_stream_pools(clients.compartment_id, limit=2)
    assert [each.name for each in first.data] == ["p3", "p2"]
    assert "opc-prev-page" not in first.headers


def test_waiting_for_pools(clients: OciClients, admin: Any) -> None:
    composite = oci.streaming.StreamAdminClientCompositeOperations(admin)
    details = M.CreateStreamPoolDetails(name="w", compartment_id=clients.compartment_id)
    request = composite.create_stream_pool_and_wait_for_state(details, ["SUCCEEDED"]).data
    assert request.operation_type == "CREATE_STREAM_POOL"
    pool_id = request.resources[0].identifier
    assert composite.delete_stream_pool_and_wait_for_state(pool_id, ["SUCCEEDED"]).data.status == "SUCCEEDED"


def test_each_compartment_with_a_pool_of_its_own_over_a_restart() -> None:
    with InProcessServer(oci_pools="compartment") as server:
        here, there = OciClients(server.http), OciClients(server.http)
        admin = here.admin_client()
        assert admin.list_stream_pools(here.compartment_id).data == []
        made = here.create_stream("s"), there.create_stream("s")
        assert made[0].stream_pool_id != made[1].stream_pool_id
        put(here.stream_client(), made[0].id, "one")
        server.restart()
        (pool,) = admin.list_stream_pools(here.compartment_id).data
        assert (pool.id, pool.name) == (made[0].stream_pool_id, "DefaultPool")
        assert admin.get_stream(made[0].id).data == made[0]
        assert [each.id for each in admin.list_streams(compartment_id=there.compartment_id).data] == [made[1].id]
        inside = AdminClient(kafka_of(server, here, pool.id))
        assert {*inside.list_topics(timeout=60).topics} == {"s", "__consumer_offsets"}
        outside = AdminClient({"bootstrap.servers": server.kafka})
        assert {*outside.list_topics(timeout=60).topics} == {"__consumer_offsets"}
