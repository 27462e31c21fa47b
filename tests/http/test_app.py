"""The reset call: everything is removed, can be created again, and the call works only if it is enabled."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from starlette.requests import Request
from starlette.types import Scope
from tests.harness.wire import Wire
from tests.oci.conftest import COMPARTMENT, Api

from headrace.http.app import RESET_PATH, ResetCall
from headrace.protocol.messages import ListGroupsRequest, MetadataRequest
from headrace.testing import InProcessServer


def resettable() -> InProcessServer:
    return InProcessServer(oci_auth="off", headrace_testing_reset=True)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with resettable() as started:
        yield started


def reset(server: InProcessServer) -> None:
    api = Api(server.http)
    reply = api.call("DELETE", RESET_PATH, base="")
    assert (reply.status, reply.body) == (204, b"")
    api.close()


def everything(server: InProcessServer) -> dict[str, object]:
    """Return all resources, as clients see them."""
    api = Api(server.http)
    found: dict[str, object] = {}
    for name in ("streams", "streampools", "connectharnesses"):
        listed = api.done("GET", f"/{name}?compartmentId={COMPARTMENT}")
        found[name] = [each["name"] for each in listed if each["lifecycleState"] != "DELETED"]
        found[f"{name} gone"] = [each["name"] for each in listed if each["lifecycleState"] == "DELETED"]
    found["work requests"] = api.done("GET", f"/workRequests?compartmentId={COMPARTMENT}")["items"]
    api.close()
    with Wire(server.kafka) as wire:
        found["topics"] = [
            each.name for each in wire.ask(MetadataRequest(topics=None), 9).topics if not each.is_internal
        ]
        found["groups"] = [each.group_id for each in wire.ask(ListGroupsRequest(), 4).groups]
    return found


def fill(server: InProcessServer) -> None:
    """Something of everything."""
    api = Api(server.http)
    pool = api.done("POST", "/streampools", {"name": "other", "compartmentId": COMPARTMENT})["id"]
    inside = api.done("POST", "/streams", {"name": "inside", "partitions": 1, "streamPoolId": pool})["id"]
    stream = api.done("POST", "/streams", {"name": "s", "partitions": 2, "compartmentId": COMPARTMENT})["id"]
    gone = api.done("POST", "/streams", {"name": "gone", "partitions": 1, "compartmentId": COMPARTMENT})["id"]
    assert api.call("DELETE", f"/streams/{gone}").status == 204
    api.done("POST", "/connectharnesses", {"name": "h", "compartmentId": COMPARTMENT})
    for each in (stream, inside):
        api.put(each, (b"k", b"v"))
        cursor = api.group_cursor(each, "oci-group", instanceName="i")
        assert api.get(each, cursor).status == 200
    producer = Producer({"bootstrap.servers": server.kafka})
    producer.produce("t", b"value")
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    try:
        while (message := consumer.poll(60)) is not None and message.error():
            pass
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    api.close()


def test_nothing_is_left_and_the_same_can_be_made_again(server: InProcessServer) -> None:
    reset(server)
    empty = everything(server)
    assert not any(found for name, found in empty.items() if name != "streampools"), empty
    for _ in range(2):
        fill(server)
        full = everything(server)
        for name in ("streams", "streampools", "connectharnesses", "streams gone", "work requests", "topics", "groups"):
            assert full[name], name
        reset(server)
        assert everything(server) == empty


def test_it_stays_empty_over_a_restart(server: InProcessServer) -> None:
    reset(server)
    empty = everything(server)
    fill(server)
    reset(server)
    server.restart()
    assert everything(server) == empty


def test_records_of_before_do_not_come_back(server: InProcessServer) -> None:
    reset(server)
    for value in (b"first", b"second"):
        api = Api(server.http)
        made = api.done("POST", "/streams", {"name": "again", "partitions": 1, "compartmentId": COMPARTMENT})["id"]
        api.put(made, (None, value))
        assert api.values(made, api.cursor(made)) == [value]
        api.close()
        reset(server)


def test_a_member_present_during_the_reset_comes_back() -> None:
    # Its clients may ask for their topic, and so create it, a moment after they were closed: they get their own server.
    with resettable() as server:
        _comes_back(server)


def _comes_back(server: InProcessServer) -> None:
    producer = Producer({"bootstrap.servers": server.kafka})
    config = {
        "bootstrap.servers": server.kafka,
        "group.id": "stays",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 100,
        "allow.auto.create.topics": True,
    }
    consumer = Consumer(config)
    consumer.subscribe(["kept"])
    try:
        for round_ in (b"before", b"after"):
            producer.produce("kept", round_)
            assert producer.flush(60) == 0
            while (message := consumer.poll(60)) is None or message.error():
                assert message is not None, round_
            assert message.value() == round_
            if round_ == b"before":
                reset(server)
    finally:
        consumer.close()


def test_without_the_setting_nothing_happens() -> None:
    with InProcessServer(oci_auth="off") as plain:
        api = Api(plain.http)
        api.done("POST", "/streams", {"name": "s", "partitions": 1, "compartmentId": COMPARTMENT})
        reply = api.call("DELETE", RESET_PATH, base="")
        assert (reply.status, reply.json["code"]) == (403, "NotAllowed")
        assert "headrace.testing.reset=true" in reply.json["message"]
        assert len(api.done("GET", f"/streams?compartmentId={COMPARTMENT}")) == 1
        assert api.call("GET", RESET_PATH, base="").status == 405
        api.close()


@pytest.mark.parametrize(("peer", "here"), [("10.0.0.1", "127.0.0.1"), ("127.0.0.1", "10.0.0.1"), ("", "127.0.0.1")])
async def test_off_loopback_nothing_happens(peer: str, here: str) -> None:
    async def never() -> None:
        raise AssertionError("it was done")

    call = ResetCall(never, lambda address: address.startswith("127."), on=True)
    client = (peer, 1) if peer else None
    scope: Scope = {"type": "http", "method": "DELETE", "headers": [], "client": client, "server": (here, 8080)}
    answer = await call.answer(Request(scope))
    assert answer.status_code == 403
    assert json.loads(bytes(answer.body))["code"] == "NotAllowed"
