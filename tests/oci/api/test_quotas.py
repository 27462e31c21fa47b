"""Kafka's quotas hold for a principal's requests to the OCI API, too: what would have to wait is answered 429."""

from collections.abc import Iterator

import pytest
from tests.harness.clocks import StandingClock
from tests.harness.wire import batch, produce_request
from tests.kafka.quota_admin import Admin
from tests.oci.conftest import COMPARTMENT, Api, Reply, details, new_stream

from headrace.oci.api.quotas import CLIENT_ID
from headrace.testing import InProcessServer

EVERY_USER: dict[str, str | None] = {"user": None}


@pytest.fixture(scope="module")
def limited() -> Iterator[InProcessServer]:
    with InProcessServer(clock=StandingClock(), oci_auth="off") as started:
        yield started


@pytest.fixture
def admin(limited: InProcessServer) -> Iterator[Admin]:
    with Admin(limited.kafka, client_id="admin") as wire:
        yield wire
        wire.remove_all()
        # What was used is over.
        limited.clock.advance(minutes=10)


@pytest.fixture
def api(limited: InProcessServer) -> Iterator[Api]:
    made = Api(limited.http)
    yield made
    made.close()


def put(api: Api, stream: str, size: int, headers: dict[str, str] | None = None) -> Reply:
    return api.call("POST", f"/streams/{stream}/messages", details((None, bytes(size))), headers)


def test_bytes_written_through_both_apis_share_a_quota(limited: InProcessServer, admin: Admin, api: Api) -> None:
    stream, name = new_stream(api)
    admin.limit(EVERY_USER, producer_byte_rate=1_000)
    with Admin(limited.kafka, client_id="writer") as wire:
        assert wire.ask(produce_request(name, batch(bytes(15_000))), 9).throttle_time_ms > 0
        refused = put(api, stream, 100)
        status, code, message = refused.error
        assert (status, code) == (429, "TooManyRequests")
        assert message.startswith("Request was throttled because bytes limit exhausted, next request can be made in ")
        wait_ms = int(message.split()[-2])
        assert 0 < wait_ms <= 1_000 * int(refused.headers["retry-after"]) < wait_ms + 1_000
        # Nothing of it is stored, and it counts nothing: the time does not move on with each try.
        assert put(api, stream, 100).headers["retry-after"] == refused.headers["retry-after"]
        assert api.values(stream, api.cursor(stream)) == [bytes(15_000)]
        limited.clock.advance(minutes=1)
        assert put(api, stream, 15_000).status == 200
    with Admin(limited.kafka, client_id="another") as wire:
        assert wire.ask(produce_request(name, batch(b"x")), 9).throttle_time_ms > 0
    limited.clock.advance(minutes=1)
    assert put(api, stream, 100).status == 200


def test_bytes_read_hold_up_the_next_read(limited: InProcessServer, admin: Admin, api: Api) -> None:
    stream, _ = new_stream(api)
    for _ in range(2):
        assert put(api, stream, 20_000).status == 200
    cursor = api.group_cursor(stream, "g", instanceName="i")
    admin.limit(EVERY_USER, consumer_byte_rate=1_000)
    first = api.get(stream, cursor, 1)
    assert (first.status, len(first.json)) == (200, 1)
    refused = api.get(stream, first.next_cursor, 1)
    assert refused.error[0] == 429
    assert put(api, stream, 20_000).status == 200
    limited.clock.advance(seconds=int(refused.headers["retry-after"]))
    again = api.get(stream, first.next_cursor, 1)
    assert (again.status, again.json[0]["offset"]) == (200, 1)


def test_time_on_the_event_loop_counts(admin: Admin, api: Api) -> None:
    stream, _ = new_stream(api)
    admin.limit({"client_id": "timed"}, request_percentage=0.000001)
    replies = [api.call("GET", f"/streams/{stream}", headers={CLIENT_ID: "timed"}) for _ in range(3)]
    assert [each.status for each in replies] == [200, 429, 429]
    assert replies[1].headers["retry-after"] == "1"
    # As for Kafka's clients, at most for a window each time.
    assert "requests limit exhausted" in replies[1].error[2]


def test_partitions_that_are_created_and_deleted_count(limited: InProcessServer, admin: Admin, api: Api) -> None:
    admin.limit(EVERY_USER, controller_mutation_rate=1)
    asked = {"name": "mutated", "partitions": 50, "compartmentId": COMPARTMENT}
    assert api.call("POST", "/streams", asked).status == 200
    refused = api.call("POST", "/streams", {**asked, "name": "another", "partitions": "1"})
    assert refused.error[:2] == (429, "TooManyRequests")
    [made] = api.done("GET", f"/streams?compartmentId={COMPARTMENT}&name=mutated")
    assert api.call("DELETE", f"/streams/{made['id']}").error[0] == 429
    assert api.done("GET", f"/streams?compartmentId={COMPARTMENT}&name=another") == []
    limited.clock.advance(minutes=2)
    assert api.call("DELETE", f"/streams/{made['id']}").status == 204
    assert api.call("POST", "/streams", {**asked, "name": "another", "partitions": 1}).error[0] == 429


def test_a_client_id_is_what_an_sdk_says_of_itself(admin: Admin, api: Api) -> None:
    stream, _ = new_stream(api)
    admin.limit({"client_id": "slow"}, producer_byte_rate=1_000)
    slow = {CLIENT_ID: "slow"}
    assert put(api, stream, 20_000, slow).status == 200
    assert put(api, stream, 10, slow).status == 429
    assert put(api, stream, 20_000).status == 200
    assert put(api, stream, 10, {CLIENT_ID: "other"}).status == 200


def test_missing_resources_get_the_usual_error(admin: Admin, api: Api) -> None:
    admin.limit(EVERY_USER, producer_byte_rate=1_000, controller_mutation_rate=1, consumer_byte_rate=1_000)
    nowhere = "ocid1.stream.oc1..aaaa"
    assert put(api, nowhere, 10).status == 404
    assert api.call("DELETE", f"/streams/{nowhere}").status == 404
