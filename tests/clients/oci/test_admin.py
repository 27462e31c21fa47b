"""Streams, stream pools, connect harnesses and work requests with the SDK: its calls, composites, pages and waiters."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import oci
from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients, put

models = oci.streaming.models
Admin = Any
Composite = oci.streaming.StreamAdminClientCompositeOperations
AT_ONCE = {"max_interval_seconds": 0.02, "max_wait_seconds": 20}


def refused(call: Callable[..., object], *arguments: Any, **options: Any) -> tuple[int, str]:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*arguments, **options)
    return caught.value.status, caught.value.code


def pages(listing: Callable[..., Any], *arguments: Any, **options: Any) -> list[list[str]]:
    """Names on each page of a list."""
    found = []
    page: dict[str, str] = {}
    while True:
        answer = listing(*arguments, **options, **page)
        found.append([each.name for each in answer.data])
        if not answer.has_next_page:
            return found
        page = {"page": answer.next_page}


def test_the_life_of_a_stream(admin: Admin, headrace_oci: OciClients) -> None:
    details = models.CreateStreamDetails(
        name="s",
        partitions=3,
        compartment_id=headrace_oci.compartment_id,
        retention_in_hours=48,
        freeform_tags={"team": "blue"},
        defined_tags={"costs": {"center": "42"}},
    )
    created = admin.create_stream(details)
    stream = created.data
    assert created.status == 200
    assert (stream.name, stream.partitions, stream.retention_in_hours) == ("s", 3, 48)
    assert (stream.compartment_id, stream.lifecycle_state) == (headrace_oci.compartment_id, "ACTIVE")
    assert (stream.freeform_tags, stream.defined_tags) == ({"team": "blue"}, {"costs": {"center": "42"}})
    assert stream.messages_endpoint == headrace_oci.endpoint
    assert stream.time_created.tzinfo is not None

    found = admin.get_stream(stream.id)
    assert found.data == stream
    assert found.headers["etag"] == created.headers["etag"]

    update = models.UpdateStreamDetails(freeform_tags={"team": "red"})
    assert refused(admin.update_stream, stream.id, update, if_match="another") == (412, "NoEtagMatch")
    updated = admin.update_stream(stream.id, update, if_match=found.headers["etag"])
    assert updated.data.freeform_tags == {"team": "red"}
    assert updated.data.defined_tags == {"costs": {"center": "42"}}
    assert updated.headers["etag"] != found.headers["etag"]

    deleted = admin.delete_stream(stream.id)
    assert (deleted.status, deleted.data) == (204, None)
    assert admin.get_stream(stream.id).data.lifecycle_state == "DELETED"
    assert refused(put, headrace_oci.stream_client(), stream.id, "v") == (404, "NotAuthorizedOrNotFound")
    assert admin.list_streams(compartment_id=headrace_oci.compartment_id, lifecycle_state="ACTIVE").data == []


def test_a_name_is_used_once_in_a_pool(admin: Admin, headrace_oci: OciClients) -> None:
    stream = headrace_oci.create_stream("s")
    pool = admin.create_stream_pool(
        models.CreateStreamPoolDetails(name="p", compartment_id=headrace_oci.compartment_id)
    ).data
    again = models.CreateStreamDetails(name="s", partitions=1, compartment_id=headrace_oci.compartment_id)
    status, code = refused(admin.create_stream, again)
    assert status == 409
    assert code != "IncorrectState"  # SDKs would try that again
    other = headrace_oci.create_stream("s", stream_pool_id=pool.id)
    assert other.id != stream.id
    admin.delete_stream(stream.id)
    assert headrace_oci.create_stream("s").id != stream.id


def test_pages_and_orders_of_a_list(admin: Admin, headrace_oci: OciClients) -> None:
    names = ["banana", "apple", "date", "cherry", "elder"]
    for name in names:
        headrace_oci.create_stream(name)
    here = {"compartment_id": headrace_oci.compartment_id}

    assert pages(admin.list_streams, **here, limit=2) == [["elder", "cherry"], ["date", "apple"], ["banana"]]
    assert pages(admin.list_streams, **here, limit=3, sort_by="NAME") == [sorted(names)[:3], sorted(names)[3:]]
    assert pages(admin.list_streams, **here, sort_by="NAME", sort_order="DESC") == [sorted(names, reverse=True)]
    assert pages(admin.list_streams, **here, name="date") == [["date"]]
    every = oci.pagination.list_call_get_all_results(admin.list_streams, **here, limit=1).data
    assert sorted(each.name for each in every) == sorted(names)
    assert admin.list_streams(compartment_id="ocid1.compartment.oc1..elsewhere").data == []
    assert refused(admin.list_streams, **here, limit=51) == (400, "InvalidParameter")
    assert refused(admin.list_streams)[0] == 400


def test_the_life_of_a_pool(admin: Admin, headrace_oci: OciClients) -> None:
    details = models.CreateStreamPoolDetails(
        name="p",
        compartment_id=headrace_oci.compartment_id,
        kafka_settings=models.KafkaSettings(auto_create_topics_enable=True, log_retention_hours=72, num_partitions=4),
    )
    pool = admin.create_stream_pool(details, opc_retry_token="token").data
    assert admin.create_stream_pool(details, opc_retry_token="token").data.id == pool.id
    assert pool.lifecycle_state == "ACTIVE"
    assert pool.kafka_settings.num_partitions == 4
    assert pool.kafka_settings.log_retention_hours == 72
    assert pool.kafka_settings.bootstrap_servers
    assert pool.custom_encryption_key.key_state == "NONE"
    stream = headrace_oci.create_stream("in-the-pool", stream_pool_id=pool.id)
    assert stream.stream_pool_id == pool.id
    assert [each.name for each in admin.list_streams(stream_pool_id=pool.id).data] == ["in-the-pool"]
    assert [each.name for each in admin.list_stream_pools(headrace_oci.compartment_id, name="p").data] == ["p"]

    elsewhere = models.ChangeStreamPoolCompartmentDetails(compartment_id="ocid1.compartment.oc1..there")
    admin.change_stream_pool_compartment(pool.id, elsewhere)
    assert admin.get_stream_pool(pool.id).data.compartment_id == "ocid1.compartment.oc1..there"
    renamed = admin.update_stream_pool(pool.id, models.UpdateStreamPoolDetails(name="q")).data
    assert renamed.name == "q"

    admin.delete_stream_pool(pool.id)
    assert admin.get_stream_pool(pool.id).data.lifecycle_state == "DELETED"
    assert admin.get_stream(stream.id).data.lifecycle_state == "DELETED"


def test_a_stream_moves_to_another_pool(admin: Admin, headrace_oci: OciClients) -> None:
    client = headrace_oci.stream_client()
    stream = headrace_oci.create_stream("s")
    put(client, stream.id, "kept")
    pool = admin.create_stream_pool(
        models.CreateStreamPoolDetails(name="p", compartment_id=headrace_oci.compartment_id)
    ).data
    moved = admin.update_stream(stream.id, models.UpdateStreamDetails(stream_pool_id=pool.id)).data
    assert (moved.id, moved.stream_pool_id) == (stream.id, pool.id)
    start = client.create_cursor(stream.id, models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")).data.value

    assert len(client.get_messages(stream.id, start).data) == 1


def test_the_life_of_a_connect_harness(admin: Admin, headrace_oci: OciClients) -> None:
    details = models.CreateConnectHarnessDetails(name="h", compartment_id=headrace_oci.compartment_id)
    harness = admin.create_connect_harness(details).data
    assert harness.lifecycle_state == "ACTIVE"
    assert [each.id for each in admin.list_connect_harnesses(headrace_oci.compartment_id).data] == [harness.id]
    tagged = models.UpdateConnectHarnessDetails(freeform_tags={"a": "b"})
    assert admin.update_connect_harness(harness.id, tagged).data.freeform_tags == {"a": "b"}
    admin.delete_connect_harness(harness.id)
    assert admin.get_connect_harness(harness.id).data.lifecycle_state == "DELETED"


def test_work_requests(admin: Admin, headrace_oci: OciClients) -> None:
    details = models.CreateStreamDetails(name="s", partitions=1, compartment_id=headrace_oci.compartment_id)
    created = admin.create_stream(details)
    request = admin.get_work_request(created.headers["opc-work-request-id"]).data

    assert (request.operation_type, request.status, request.percent_complete) == ("CREATE_STREAM", "SUCCEEDED", 100.0)
    assert [(one.identifier, one.action_type) for one in request.resources] == [(created.data.id, "CREATED")]
    listed = admin.list_work_requests(resource_id=created.data.id).data.items
    assert [one.id for one in listed] == [request.id]
    assert admin.list_work_request_errors(request.id).data.items == []
    assert isinstance(admin.list_work_request_logs(request.id).data.items, list)


def test_what_does_not_exist(admin: Admin) -> None:
    unknown = (404, "NotAuthorizedOrNotFound")
    assert refused(admin.get_stream, "ocid1.stream.oc1.local.nothing") == unknown
    assert refused(admin.delete_stream, "nothing") == unknown
    assert refused(admin.get_stream_pool, "ocid1.streampool.oc1.local.nothing") == unknown
    assert refused(admin.get_connect_harness, "nothing") == unknown
    assert refused(admin.get_work_request, "nothing") == unknown


def test_details_that_are_not_taken(admin: Admin, headrace_oci: OciClients) -> None:
    def create(**details: Any) -> object:
        details = {"name": "s", "partitions": 1, "compartment_id": headrace_oci.compartment_id} | details
        return admin.create_stream(models.CreateStreamDetails(**details))

    assert refused(create, partitions=0) == (400, "InvalidParameter")
    assert refused(create, retention_in_hours=23) == (400, "InvalidParameter")
    assert refused(create, retention_in_hours=169) == (400, "InvalidParameter")
    assert refused(create, compartment_id=None)[0] == 400
    assert refused(create, stream_pool_id="ocid1.streampool.oc1..x")[0] == 400


def test_composite_operations_wait(admin: Admin, headrace_oci: OciClients) -> None:
    composite = Composite(admin)
    details = models.CreateStreamDetails(name="s", partitions=1, compartment_id=headrace_oci.compartment_id)
    created = composite.create_stream_and_wait_for_state(details, ["SUCCEEDED"], waiter_kwargs=AT_ONCE)
    assert created.data.status == "SUCCEEDED"
    stream_id = created.data.resources[0].identifier
    assert admin.get_stream(stream_id).data.lifecycle_state == "ACTIVE"
    deleted = composite.delete_stream_and_wait_for_state(stream_id, ["SUCCEEDED"], waiter_kwargs=AT_ONCE)
    assert deleted.data.operation_type == "DELETE_STREAM"


@pytest.fixture
def slow() -> Iterator[InProcessServer]:
    """A server where each change takes ten minutes; the time that the test takes comes on top."""
    with InProcessServer(oci_lifecycle_delay_ms=600_000) as started:
        yield started


def test_waiters_see_every_state(slow: InProcessServer) -> None:
    clients = OciClients(slow.http)
    admin = clients.admin_client()
    seen: list[str] = []

    def pass_time(_: int, answer: Any) -> None:
        seen.append(answer.data.lifecycle_state)
        slow.clock.advance(seconds=210)

    created = clients.create_stream("s")
    assert created.lifecycle_state == "CREATING"
    oci.wait_until(admin, admin.get_stream(created.id), "lifecycle_state", "ACTIVE", wait_callback=pass_time, **AT_ONCE)
    admin.delete_stream(created.id)
    oci.wait_until(
        admin, admin.get_stream(created.id), "lifecycle_state", "DELETED", wait_callback=pass_time, **AT_ONCE
    )
    assert seen == ["CREATING"] * 3 + ["DELETING"] * 3
    assert admin.get_stream(created.id).data.lifecycle_state == "DELETED"


def test_a_composite_operation_waits_through_the_states(slow: InProcessServer) -> None:
    clients = OciClients(slow.http)
    composite = Composite(clients.admin_client())
    details = models.CreateStreamDetails(name="s", partitions=1, compartment_id=clients.compartment_id)
    seen: list[str] = []

    def pass_time(_: int, answer: Any) -> None:
        seen.append(answer.data.status)
        slow.clock.advance(seconds=210)

    created = composite.create_stream_and_wait_for_state(
        details, ["SUCCEEDED"], waiter_kwargs=AT_ONCE | {"wait_callback": pass_time}
    )

    assert seen == ["ACCEPTED", "IN_PROGRESS", "IN_PROGRESS"]
    assert created.data.percent_complete == 100.0


def test_without_work_requests_older_examples_run() -> None:
    """A waiter for ACTIVE, which no work request ever is, returns at once when the answer names none."""
    with InProcessServer(oci_work_requests=False) as started:
        clients = OciClients(started.http)
        composite = Composite(clients.admin_client())
        details = models.CreateStreamDetails(name="s", partitions=1, compartment_id=clients.compartment_id)
        created = composite.create_stream_and_wait_for_state(details, ["ACTIVE"], waiter_kwargs=AT_ONCE)
        assert created.data.lifecycle_state == "ACTIVE"


def test_everything_survives_a_restart() -> None:
    with InProcessServer() as started:
        clients = OciClients(started.http)
        admin = clients.admin_client()
        pool = admin.create_stream_pool(
            models.CreateStreamPoolDetails(name="p", compartment_id=clients.compartment_id)
        ).data
        made = [
            clients.create_stream("s", 2, freeform_tags={"a": "b"}, retention_in_hours=36),
            clients.create_stream("t", stream_pool_id=pool.id),
        ]
        gone = clients.create_stream("gone")
        admin.delete_stream(gone.id)
        etags = [admin.get_stream(stream.id).headers["etag"] for stream in made]
        harness = admin.create_connect_harness(
            models.CreateConnectHarnessDetails(name="h", compartment_id=clients.compartment_id)
        ).data
        started.restart()

        assert [admin.get_stream(stream.id).data for stream in made] == made
        assert [admin.get_stream(stream.id).headers["etag"] for stream in made] == etags
        assert admin.get_stream(gone.id).data.lifecycle_state == "DELETED"
        assert admin.get_stream_pool(pool.id).data == pool
        assert admin.get_connect_harness(harness.id).data == harness
