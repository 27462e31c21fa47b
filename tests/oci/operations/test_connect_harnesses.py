"""Connect harnesses with Oracle's own client."""

from typing import Any

import pytest
from tests.oci.conftest import Api
from tests.oci.harnesses import M, error, make

import oci
from headrace.testing.inprocess import InProcessServer
from headrace.testing.oci import OciClients


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
