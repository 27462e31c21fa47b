"""Connect harnesses and work requests with Oracle's own client."""

from collections.abc import Iterator
from typing import Any

import pytest

import oci
from headrace.testing.inprocess import InProcessServer
from headrace.testing.oci import OciClients

from .conftest import Api

M = oci.streaming.models


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started


def make(clients: OciClients, name: str = "h", **details: Any) -> Any:
    asked = M.CreateConnectHarnessDetails(name=name, compartment_id=clients.compartment_id, **details)
    return clients.admin_client().create_connect_harness(asked)


def error(caught: "pytest.ExceptionInfo[Any]") -> tuple[int, str]:
    return caught.value.status, caught.value.code


def test_a_connect_harness_to_the_letter(api: Api) -> None:
    made = api.call("POST", "/connectharnesses", {"name": "letter", "compartmentId": "c", "freeformTags": {"a": "b"}})
    assert made.status == 200
    assert {"etag", "opc-work-request-id"} <= made.headers.keys()
    ocid = made.json["id"]
    expected = {
        "name": "letter",
        "id": ocid,
        "compartmentId": "c",
        "lifecycleState": "ACTIVE",
        "timeCreated": made.json["timeCreated"],
        "freeformTags": {"a": "b"},
        "definedTags": {},
    }
    full = expected | {"lifecycleStateDetails": None}
    assert made.json == full
    assert api.done("GET", f"/connectharnesses/{ocid}") == full
    assert api.done("GET", "/connectharnesses?compartmentId=c") == [expected]
    moved = api.call("POST", f"/connectharnesses/{ocid}/actions/changeCompartment", {"compartmentId": "c2"})
    assert (moved.status, moved.body, "opc-work-request-id" in moved.headers) == (204, b"", True)
    deleted = api.call("DELETE", f"/connectharnesses/{ocid}")
    assert (deleted.status, deleted.body, "opc-work-request-id" in deleted.headers) == (204, b"", True)
    assert api.done("GET", f"/connectharnesses/{ocid}") == full | {"compartmentId": "c2", "lifecycleState": "DELETED"}
    assert api.call("DELETE", f"/connectharnesses/{ocid}").error[0] == 404
    assert api.call("GET", "/connectharnesses/ocid1.connectharness.oc1..x").error == (
        404,
        "NotAuthorizedOrNotFound",
        "Unknown connect harness ocid1.connectharness.oc1..x",
    )
    assert api.call("POST", "/connectharnesses", {"name": "x"}).error[:2] == (400, "MissingParameter")
    assert api.call("GET", "/connectharnesses").error[:2] == (400, "MissingParameter")


def test_a_connect_harness_moves_to_no_compartment_that_has_one_of_its_name(api: Api) -> None:
    made, other = (
        api.done("POST", "/connectharnesses", {"name": "moves", "compartmentId": c})["id"] for c in ("a", "b")
    )
    for ocid, compartment in ((made, "b"), (other, "a")):
        moved = api.call("POST", f"/connectharnesses/{ocid}/actions/changeCompartment", {"compartmentId": compartment})
        assert moved.error == (409, "Conflict", "A connect harness named moves exists already in this compartment")
    assert api.call("DELETE", f"/connectharnesses/{other}").status == 204
    moved = api.call("POST", f"/connectharnesses/{made}/actions/changeCompartment", {"compartmentId": "b"})
    assert moved.status == 204


def test_tags_etags_and_names(clients: OciClients, admin: Any) -> None:
    made = make(clients)
    details = M.UpdateConnectHarnessDetails(freeform_tags={"a": "b"})
    changed = admin.update_connect_harness(made.data.id, details, if_match=made.headers["etag"])
    assert changed.data.freeform_tags == {"a": "b"}
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        admin.delete_connect_harness(made.data.id, if_match=made.headers["etag"])
    assert error(caught) == (412, "NoEtagMatch")
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        make(clients)
    assert error(caught) == (409, "Conflict")


def test_a_retry_makes_one_harness(clients: OciClients, admin: Any) -> None:
    details = M.CreateConnectHarnessDetails(name="once", compartment_id=clients.compartment_id)
    first, second = (admin.create_connect_harness(details, opc_retry_token="again") for _ in range(2))
    assert first.data.id == second.data.id
    admin.delete_connect_harness(first.data.id)
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        admin.create_connect_harness(details, opc_retry_token="again")
    assert error(caught) == (409, "InvalidatedRetryToken")


def test_waiting_and_pages(clients: OciClients, admin: Any) -> None:
    composite = oci.streaming.StreamAdminClientCompositeOperations(admin)
    for number in range(3):
        details = M.CreateConnectHarnessDetails(name=f"h{number}", compartment_id=clients.compartment_id)
        composite.create_connect_harness_and_wait_for_state(details, ["SUCCEEDED"])
    found = oci.pagination.list_call_get_all_results(
        admin.list_connect_harnesses, clients.compartment_id, limit=2, sort_by="NAME", sort_order="DESC"
    )
    assert [each.name for each in found.data] == ["h2", "h1", "h0"]
    composite.delete_connect_harness_and_wait_for_state(found.data[0].id, ["SUCCEEDED"])
    listed = admin.list_connect_harnesses(clients.compartment_id, lifecycle_state="DELETED").data
    assert [each.name for each in listed] == ["h2"]


def test_harnesses_survive_a_restart() -> None:
    with InProcessServer() as server:
        clients = OciClients(server.http)
        made = make(clients, freeform_tags={"a": "b"}).data
        server.restart()
        assert clients.admin_client().get_connect_harness(made.id).data == made


# Work requests


def test_a_work_request_to_the_letter(api: Api) -> None:
    made = api.call("POST", "/connectharnesses", {"name": "work", "compartmentId": "c3"})
    ocid = made.headers["opc-work-request-id"]
    assert ocid.startswith("ocid1.streamworkrequest.oc1.local.")
    found = api.done("GET", f"/workRequests/{ocid}")
    harness = made.json["id"]
    assert found == {
        "operationType": "CREATE_CONNECT_HARNESS",
        "status": "SUCCEEDED",
        "id": ocid,
        "compartmentId": "c3",
        "resources": [
            {
                "entityType": "connectharness",
                "actionType": "CREATED",
                "identifier": harness,
                "entityUri": f"/20180418/connectharnesses/{harness}",
            }
        ],
        "percentComplete": 100.0,
        "timeAccepted": found["timeAccepted"],
        "timeStarted": found["timeAccepted"],
        "timeFinished": found["timeAccepted"],
    }
    assert api.done("GET", "/workRequests?compartmentId=c3") == {"items": [found]}
    assert api.done("GET", f"/workRequests/{ocid}/errors") == {"items": []}
    logs = api.done("GET", f"/workRequests/{ocid}/logs")
    assert [each["message"].rpartition(" ")[2] for each in logs["items"]] == ["succeeded", "started", "accepted"]
    assert logs["items"][0].keys() == {"message", "timestamp"}


def test_work_requests_that_are_not_there(api: Api) -> None:
    for tail in ("", "/errors", "/logs"):
        answer = api.call("GET", f"/workRequests/ocid1.streamworkrequest.oc1..x{tail}")
        assert answer.error[:2] == (404, "NotAuthorizedOrNotFound")
    assert api.call("GET", "/workRequests?sortBy=NAME").error[:2] == (400, "InvalidParameter")
    assert api.done("GET", "/workRequests?workRequestId=x") == {"items": []}


def test_which_work_requests_are_listed(clients: OciClients, admin: Any) -> None:
    stream = clients.create_stream("s")
    admin.update_stream(stream.id, M.UpdateStreamDetails(freeform_tags={"a": "b"}))
    deleted = admin.delete_stream(stream.id).headers["opc-work-request-id"]
    harness = make(clients).data
    compartment = clients.compartment_id
    listed = admin.list_work_requests(compartment_id=compartment).data.items
    assert [each.operation_type for each in listed][1:] == ["DELETE_STREAM", "UPDATE_STREAM", "CREATE_STREAM"]
    of_harness = admin.list_work_requests(compartment_id=compartment, resource_id=harness.id).data.items
    assert [each.operation_type for each in of_harness] == ["CREATE_CONNECT_HARNESS"]
    one = admin.list_work_requests(work_request_id=deleted).data.items
    assert [(each.id, each.operation_type) for each in one] == [(deleted, "DELETE_STREAM")]
    first = admin.list_work_requests(compartment_id=compartment, limit=3, sort_by="TIMEACCEPTED", sort_order="ASC")
    assert [each.operation_type for each in first.data.items] == ["CREATE_STREAM", "UPDATE_STREAM", "DELETE_STREAM"]
    rest = admin.list_work_requests(compartment_id=compartment, limit=3, sort_order="ASC", page=first.next_page)
    assert ([each.operation_type for each in rest.data.items], rest.has_next_page) == (
        ["CREATE_CONNECT_HARNESS"],
        False,
    )


def test_a_work_request_takes_its_time_and_is_forgotten_after_a_week() -> None:
    # It is accepted for a tenth of its time. The time that the test takes comes on top.
    with InProcessServer(oci_lifecycle_delay_ms=600_000) as server:
        clients = OciClients(server.http)
        admin = clients.admin_client()
        ocid = make(clients).headers["opc-work-request-id"]
        accepted = admin.get_work_request(ocid).data
        assert (accepted.status, accepted.time_started, accepted.time_finished) == ("ACCEPTED", None, None)
        assert accepted.resources[0].action_type == "IN_PROGRESS"
        server.clock.advance(seconds=300)
        under_way = admin.get_work_request(ocid).data
        assert under_way.status == "IN_PROGRESS"
        assert 50 <= under_way.percent_complete < 70
        assert len(admin.list_work_request_logs(ocid).data.items) == 2
        server.clock.advance(seconds=301)
        assert admin.get_work_request(ocid).data.status == "SUCCEEDED"
        server.clock.advance(hours=7 * 24)
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            admin.get_work_request(ocid)
        assert error(caught) == (404, "NotAuthorizedOrNotFound")
