"""Work requests with Oracle's own client."""

from typing import Any

import pytest
from tests.oci.conftest import Api
from tests.oci.harnesses import M, error, make

import oci
from headrace.testing.inprocess import InProcessServer
from headrace.testing.oci import OciClients


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
