"""The stream operations with Oracle's own client, and to the letter over bare HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.oci.conftest import Api

import oci
from headrace.testing.inprocess import InProcessServer
from headrace.testing.oci import OciClients, put

M = oci.streaming.models
COMPARTMENT = "ocid1.compartment.oc1..raw"


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """The server of all tests that do not move its clock; requests are not signed."""
    with InProcessServer(oci_auth="off") as started:
        yield started


@pytest.fixture
def api(server: InProcessServer) -> Iterator[Api]:
    made = Api(server.http)
    yield made
    made.close()


def names(listed: Any) -> list[str]:
    return [each.name for each in listed.data]


def error(caught: "pytest.ExceptionInfo[Any]") -> tuple[int, str, str]:
    return caught.value.status, caught.value.code, caught.value.message


# To the letter


def test_a_stream_to_the_letter(api: Api) -> None:
    asked = {
        "name": "letter",
        "partitions": "4",
        "compartmentId": COMPARTMENT,
        "freeformTags": {"team": "blue"},
        "definedTags": {"Operations": {"CostCenter": "42"}},
    }
    made = api.call("POST", "/streams", asked)
    assert made.status == 200
    assert {"etag", "opc-work-request-id", "opc-request-id"} <= made.headers.keys()
    ocid, time_created = made.json["id"], made.json["timeCreated"]
    assert ocid.startswith("ocid1.stream.oc1.local.")
    assert datetime.fromisoformat(time_created).tzinfo == UTC
    assert len(time_created) == len("2018-04-26T01:03:06.051Z")
    expected = {
        "name": "letter",
        "id": ocid,
        "partitions": 4,
        "retentionInHours": 24,
        "compartmentId": COMPARTMENT,
        "streamPoolId": "ocid1.streampool.oc1.local.default",
        "lifecycleState": "ACTIVE",
        "lifecycleStateDetails": None,
        "timeCreated": time_created,
        "messagesEndpoint": api.endpoint,
        "freeformTags": {"team": "blue"},
        "definedTags": {"Operations": {"CostCenter": "42"}},
    }
    assert made.json == expected

    found = api.call("GET", f"/streams/{ocid}")
    assert (found.status, found.headers["etag"]) == (200, made.headers["etag"])
    assert found.json == expected

    listed = api.call("GET", f"/streams?compartmentId={COMPARTMENT}")
    assert listed.status == 200
    del expected["retentionInHours"], expected["lifecycleStateDetails"]
    assert listed.json == [expected]
    assert not {"opc-next-page", "opc-prev-page", "etag"} & listed.headers.keys()

    changed = api.call("PUT", f"/streams/{ocid}", {"freeformTags": {}}, {"if-match": made.headers["etag"]})
    assert (changed.status, changed.json["freeformTags"]) == (200, {})
    assert changed.headers["etag"] != made.headers["etag"]
    moved = api.call("POST", f"/streams/{ocid}/actions/changeCompartment", {"compartmentId": f"{COMPARTMENT}2"})
    assert (moved.status, moved.body) == (204, b"")
    assert "opc-work-request-id" in moved.headers
    deleted = api.call("DELETE", f"/streams/{ocid}")
    assert (deleted.status, deleted.body) == (204, b"")
    assert "opc-work-request-id" in deleted.headers
    gone = api.call("GET", f"/streams/{ocid}").json
    assert (gone["lifecycleState"], gone["compartmentId"]) == ("DELETED", f"{COMPARTMENT}2")


GOOD = {"name": "x", "partitions": 1, "compartmentId": "c"}


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"partitions": 1, "compartmentId": "c"}, 400, "MissingParameter", "name"),
        ({"name": "x", "compartmentId": "c"}, 400, "MissingParameter", "partitions"),
        ({"name": "x", "partitions": 1}, 400, "MissingParameter", "compartmentId or streamPoolId"),
        (GOOD | {"streamPoolId": "p"}, 400, "InvalidParameter", "streamPoolId"),
        (GOOD | {"partitions": 0}, 400, "InvalidParameter", "partitions"),
        (GOOD | {"partitions": "0"}, 400, "InvalidParameter", "partitions"),
        (GOOD | {"partitions": "four"}, 400, "InvalidParameter", "partitions"),
        (GOOD | {"partitions": 1.5}, 400, "InvalidParameter", "partitions"),
        (GOOD | {"partitions": 10**30}, 400, "LimitExceeded", "You exceed"),
        (GOOD | {"partitions": "9" * 9}, 400, "LimitExceeded", "You exceed the number of allowed partitions"),
        (GOOD | {"retentionInHours": 23}, 400, "InvalidParameter", "retentionInHours"),
        (GOOD | {"retentionInHours": 169}, 400, "InvalidParameter", "retentionInHours"),
        (GOOD | {"name": ""}, 400, "InvalidParameter", "name"),
        (GOOD | {"name": "with space"}, 400, "InvalidParameter", "with space"),
        (GOOD | {"name": "x" * 1025}, 400, "InvalidParameter", "name"),
        (GOOD | {"compartmentId": ""}, 400, "InvalidParameter", "compartmentId"),
        (GOOD | {"freeformTags": {"a": 1}}, 400, "InvalidParameter", "freeformTags"),
        (GOOD | {"definedTags": {"a": "b"}}, 400, "InvalidParameter", "definedTags"),
        (
            {"name": "x", "partitions": 1, "streamPoolId": "ocid1.streampool.oc1.local.x"},
            404,
            "NotAuthorizedOrNotFound",
            "Unknown stream pool ocid1.streampool.oc1.local.x",
        ),
    ],
)
def test_streams_that_cannot_be_made(api: Api, body: dict[str, Any], status: int, code: str, words: str) -> None:
    answer = api.call("POST", "/streams", body)
    assert answer.error[:2] == (status, code)
    assert words in answer.error[2]
    assert api.done("GET", f"/streams?{urlencode({'compartmentId': 'c', 'name': 'x'})}") == []


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"compartmentId": "c", "streamPoolId": "p"},
        {"compartmentId": ""},
        {"compartmentId": "c", "limit": 0},
        {"compartmentId": "c", "limit": 51},
        {"compartmentId": "c", "limit": "ten"},
        {"compartmentId": "c", "sortBy": "SIZE"},
        {"compartmentId": "c", "sortOrder": "UP"},
        {"compartmentId": "c", "lifecycleState": "GONE"},
        {"compartmentId": "c", "page": "nonsense"},
        {"compartmentId": "c", "page": ""},
    ],
)
def test_lists_that_cannot_be(api: Api, query: dict[str, Any]) -> None:
    answer = api.call("GET", f"/streams?{urlencode(query)}")
    assert answer.error[:2] == (400, "InvalidParameter" if query else "MissingParameter")


def test_the_endpoint_for_messages_is_where_the_client_found_us(api: Api) -> None:
    made = api.call("POST", "/streams", {**GOOD, "name": "host"}, {"host": "localhost:81"}).json
    assert made["messagesEndpoint"] == "http://localhost:81"
    api.call("DELETE", f"/streams/{made['id']}")


# With Oracle's client


def test_made_put_got_and_deleted(clients: OciClients, admin: Any) -> None:
    made = admin.create_stream(
        M.CreateStreamDetails(name="s", partitions=2, compartment_id=clients.compartment_id, retention_in_hours=48)
    ).data
    assert (made.partitions, made.retention_in_hours, made.lifecycle_state) == (2, 48, "ACTIVE")
    stream = clients.stream_client(made.messages_endpoint)
    put(stream, made.id, "one")
    admin.delete_stream(made.id)
    assert admin.get_stream(made.id).data.lifecycle_state == "DELETED"
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        put(stream, made.id, "two")
    assert error(caught) == (404, "NotAuthorizedOrNotFound", f"Unknown stream {made.id}")


def test_a_name_that_is_taken(clients: OciClients) -> None:
    clients.create_stream("taken", compartment_id=clients.compartment_id)
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        clients.create_stream("taken", compartment_id=clients.compartment_id)
    assert error(caught)[:2] == (409, "Conflict")


def test_an_etag_that_is_not_the_present_one(clients: OciClients, admin: Any) -> None:
    made = clients.create_stream("etag")
    etag = admin.get_stream(made.id).headers["etag"]
    details = M.UpdateStreamDetails(freeform_tags={"a": "b"}, defined_tags={"n": {"k": "v"}})
    changed = admin.update_stream(made.id, details, if_match=etag)
    assert (changed.data.freeform_tags, changed.data.defined_tags) == ({"a": "b"}, {"n": {"k": "v"}})
    elsewhere = M.ChangeStreamCompartmentDetails(compartment_id="c2")
    for change, arguments in (
        (admin.update_stream, (made.id, details)),
        (admin.delete_stream, (made.id,)),
        (admin.change_stream_compartment, (made.id, elsewhere)),
    ):
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            change(*arguments, if_match=etag)
        assert error(caught)[:2] == (412, "NoEtagMatch")
    admin.delete_stream(made.id, if_match=changed.headers["etag"])


def test_pages_of_streams_in_either_order(clients: OciClients, admin: Any) -> None:
    made = [f"s{number:02}" for number in range(12)]
    for name in made:
        clients.create_stream(name)
    compartment = clients.compartment_id
    first = admin.list_streams(compartment_id=compartment)
    assert names(first) == made[:1:-1]
    assert first.has_next_page
    second = admin.list_streams(compartment_id=compartment, page=first.next_page)
    assert (names(second), second.has_next_page) == (made[1::-1], False)
    before = admin.list_streams(compartment_id=compartment, page=second.headers["opc-prev-page"])
    assert names(before) == names(first)
    for order, expected in (("ASC", made), ("DESC", made[::-1])):
        for sort_by in ("NAME", "TIMECREATED"):
            found = oci.pagination.list_call_get_all_results(
                admin.list_streams, compartment_id=compartment, sort_by=sort_by, sort_order=order, limit=5
            )
            assert names(found) == expected
    assert names(admin.list_streams(compartment_id=compartment, sort_by="NAME", limit=3)) == made[:3]


def test_which_streams_are_listed(clients: OciClients, admin: Any, api: Api) -> None:
    kept, gone = clients.create_stream("kept"), clients.create_stream("gone")
    admin.delete_stream(gone.id)
    compartment = clients.compartment_id
    assert names(admin.list_streams(compartment_id=compartment)) == ["gone", "kept"]
    assert names(admin.list_streams(compartment_id=compartment, name="kept")) == ["kept"]
    assert names(admin.list_streams(compartment_id=compartment, id=gone.id)) == ["gone"]
    assert names(admin.list_streams(compartment_id=compartment, lifecycle_state="ACTIVE")) == ["kept"]
    for state in ("deleted", "DELETED", "Deleted"):
        listed = api.done("GET", f"/streams?{urlencode({'compartmentId': compartment, 'lifecycleState': state})}")
        assert [each["name"] for each in listed] == ["gone"]
    in_pool = admin.list_streams(stream_pool_id=kept.stream_pool_id, id=kept.id)
    assert names(in_pool) == ["kept"]
    assert names(admin.list_streams(compartment_id="ocid1.compartment.oc1..nobody")) == []


def test_a_kafka_topic_is_a_stream_of_every_compartment() -> None:
    with InProcessServer() as server:
        kafka = AdminClient({"bootstrap.servers": server.kafka})
        kafka.create_topics([NewTopic("from-kafka", 3)])["from-kafka"].result(60)
        for clients in (OciClients(server.http), OciClients(server.http)):
            admin = clients.admin_client()
            (listed,) = admin.list_streams(compartment_id=clients.compartment_id).data
            assert (listed.name, listed.partitions, listed.compartment_id) == ("from-kafka", 3, clients.compartment_id)
        found = admin.get_stream(listed.id).data
        assert (found.retention_in_hours, found.compartment_id) == (168, clients.config["tenancy"])
        put(clients.stream_client(found.messages_endpoint), found.id, "hello")

        kafka.delete_topics(["from-kafka"])["from-kafka"].result(60)
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            admin.get_stream(listed.id)
        assert error(caught) == (404, "NotAuthorizedOrNotFound", f"Unknown stream {listed.id}")
        assert admin.list_streams(compartment_id=clients.compartment_id).data == []
        kafka.create_topics([NewTopic("from-kafka", 1)])["from-kafka"].result(60)
        (listed,) = admin.list_streams(compartment_id=clients.compartment_id).data
        admin.delete_stream(listed.id)
        assert admin.get_stream(listed.id).data.lifecycle_state == "DELETED"
        assert admin.list_streams(compartment_id=clients.compartment_id).data == []
        assert [each.id for each in admin.list_streams(stream_pool_id=listed.stream_pool_id).data] == [listed.id]
        made = clients.create_stream("from-oci")
        assert "from-oci" in kafka.list_topics(timeout=60).topics
        admin.delete_stream(made.id)
        assert "from-oci" not in kafka.list_topics(timeout=60).topics


# Waiters


def test_waiting_as_the_sdk_does_now(clients: OciClients, admin: Any) -> None:
    composite = oci.streaming.StreamAdminClientCompositeOperations(admin)
    details = M.CreateStreamDetails(name="w", partitions=1, compartment_id=clients.compartment_id)
    request = composite.create_stream_and_wait_for_state(details, ["SUCCEEDED"]).data
    assert (request.operation_type, request.percent_complete) == ("CREATE_STREAM", 100.0)
    stream_id = request.resources[0].identifier
    tags = M.UpdateStreamDetails(freeform_tags={"a": "b"})
    assert composite.update_stream_and_wait_for_state(stream_id, tags, ["SUCCEEDED"]).data.status == "SUCCEEDED"
    request = composite.delete_stream_and_wait_for_state(stream_id, ["SUCCEEDED"]).data
    assert request.resources[0].action_type == "DELETED"


def test_waiting_as_the_old_example_does() -> None:
    """The example that comes with the SDK waits for states of streams; newer ones find no work request and go on."""
    with InProcessServer(oci_work_requests=False) as server:
        clients = OciClients(server.http)
        admin = clients.admin_client()
        composite = oci.streaming.StreamAdminClientCompositeOperations(admin)
        details = M.CreateStreamDetails(name="w", partitions=1, compartment_id=clients.compartment_id)
        made = composite.create_stream_and_wait_for_state(details, ["ACTIVE"])
        assert "opc-work-request-id" not in made.headers
        assert (made.data.name, made.data.lifecycle_state) == ("w", "ACTIVE")
        composite.delete_stream_and_wait_for_state(made.data.id, ["DELETED"])
        assert admin.get_stream(made.data.id).data.lifecycle_state == "DELETED"


def test_waiting_for_get_stream_to_say_deleted(clients: OciClients, admin: Any) -> None:
    made = clients.create_stream("poll")
    admin.delete_stream(made.id)
    answer = oci.wait_until(admin, admin.get_stream(made.id), "lifecycle_state", "DELETED")
    assert answer.data.lifecycle_state == "DELETED"


def test_states_take_their_time_and_go_on_over_a_restart() -> None:
    # The time that the test takes comes on top, its restart included.
    with InProcessServer(oci_lifecycle_delay_ms=100_000) as server:
        clients = OciClients(server.http)
        admin = clients.admin_client()
        created = admin.create_stream(
            M.CreateStreamDetails(name="slow", partitions=1, compartment_id=clients.compartment_id)
        )
        made = created.data
        request_id = created.headers["opc-work-request-id"]
        assert made.lifecycle_state == "CREATING"
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            put(clients.stream_client(), made.id, "early")
        assert error(caught)[:2] == (409, "IncorrectState")
        server.clock.advance(seconds=30)
        assert admin.get_work_request(request_id).data.status == "IN_PROGRESS"
        server.restart()
        assert admin.get_stream(made.id).data.lifecycle_state == "CREATING"
        server.clock.advance(seconds=71)
        assert admin.get_stream(made.id).data.lifecycle_state == "ACTIVE"
        assert admin.get_work_request(request_id).data.status == "SUCCEEDED"
        put(clients.stream_client(), made.id, "in time")
        admin.delete_stream(made.id)
        assert admin.get_stream(made.id).data.lifecycle_state == "DELETING"
        server.clock.advance(seconds=101)
        assert admin.get_stream(made.id).data.lifecycle_state == "DELETED"
        server.clock.advance(hours=90 * 24)
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            admin.get_stream(made.id)
        assert error(caught) == (404, "NotAuthorizedOrNotFound", f"Unknown stream {made.id}")


def test_everything_survives_a_restart() -> None:
    with InProcessServer() as server:
        clients = OciClients(server.http)
        admin = clients.admin_client()
        made = clients.create_stream("kept", 3, retention_in_hours=168, freeform_tags={"a": "b"})
        gone = clients.create_stream("gone")
        admin.delete_stream(gone.id)
        put(clients.stream_client(), made.id, "one")
        before = admin.get_stream(made.id)
        requests = [each.id for each in admin.list_work_requests(compartment_id=clients.compartment_id).data.items]
        server.restart()
        after = admin.get_stream(made.id)
        assert (after.data, after.headers["etag"]) == (before.data, before.headers["etag"])
        assert admin.get_stream(gone.id).data.lifecycle_state == "DELETED"
        found = admin.list_work_requests(compartment_id=clients.compartment_id).data.items
        assert [each.id for each in found] == requests


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/streams?compartmentId=c&sortBy=SIZE", "sortBy: Expected NAME, TIMECREATED"),
        ("/streams?compartmentId=c&sortOrder=up", "sortOrder: Expected ASC, DESC"),
        (
            "/streams?compartmentId=c&lifecycleState=GONE",
            "lifecycleState: Expected CREATING, ACTIVE, UPDATING, DELETING, DELETED, FAILED",
        ),
        ("/workRequests?sortBy=NAME", "sortBy: Expected TIMEACCEPTED"),
    ],
)
def test_a_word_that_is_none_of_those_that_are_taken(api: Api, path: str, message: str) -> None:
    assert api.call("GET", path).error == (400, "InvalidParameter", f"Invalid query parameter {message}")
