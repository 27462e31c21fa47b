"""What each operation says it needs, asked of a server's real calls."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.oci.conftest import COMPARTMENT, Api

from headrace.oci import operations
from headrace.oci.api import registry
from headrace.oci.api.registry import OPERATIONS, Answer, Call, operation
from headrace.security.access.required_acls import ANYBODY
from headrace.testing import InProcessServer

operations.load()
Seen = dict[str, set[str]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Operation -> what its calls needed; filled by servers that are started from here on."""
    found: Seen = defaultdict(set)

    def watched(each: registry.Operation) -> registry.Operation:
        async def handler(call: Call) -> Answer:
            for rule, resource in each.needed(call):
                where = "default" if resource.cluster == "default" else "pool"
                found[each.name].add(f"{rule.operation.value} {resource.type.value} {where}/{resource.name}")
            return await each.handler(call)

        return msgspec.structs.replace(each, handler=handler)

    for name, each in list(OPERATIONS.items()):
        monkeypatch.setitem(OPERATIONS, name, watched(each))
    return found


@pytest.fixture
def own(seen: Seen) -> Iterator[Api]:
    with InProcessServer(oci_auth="off") as server:
        api = Api(server.http)
        yield api
        api.close()


def test_every_call_states_its_topic_group_and_cluster(own: Api, seen: Seen) -> None:
    pool = own.done("POST", "/streampools", {"name": "pool", "compartmentId": COMPARTMENT})["id"]
    in_pool = own.done("POST", "/streams", {"name": "inside", "partitions": 1, "streamPoolId": pool})["id"]
    stream = own.done("POST", "/streams", {"name": "outside", "partitions": 1, "compartmentId": COMPARTMENT})["id"]
    assert seen["CreateStreamPool"] == {"Create Cluster default/kafka-cluster"}
    assert seen["CreateStream"] == {"Create Topic pool/inside", "Create Topic default/outside"}

    own.put(in_pool, (b"k", b"v"))
    assert own.values(in_pool, own.cursor(in_pool)) == [b"v"]
    assert seen["PutMessages"] == {"Write Topic pool/inside"}
    assert seen["CreateCursor"] == seen["GetMessages"] == {"Read Topic pool/inside"}

    own.put(stream, (b"k", b"v"))
    cursor = own.group_cursor(stream, "readers")
    cursor = own.get(stream, cursor).next_cursor
    assert own.consumer("commit", stream, cursor).status == 200
    assert own.consumer("heartbeat", stream, cursor).status == 200
    own.done("GET", f"/streams/{stream}/groups/readers")
    group = {"Read Topic default/outside", "Read Group default/readers"}
    assert seen["CreateGroupCursor"] == seen["ConsumerCommit"] == seen["ConsumerHeartbeat"] == group
    assert seen["GetMessages"] == {"Read Topic pool/inside", *group}
    assert seen["GetGroup"] == {"Describe Topic default/outside", "Describe Group default/readers"}

    own.done("PUT", f"/streams/{stream}", {"freeformTags": {"a": "b"}})
    assert seen["UpdateStream"] == {"Alter Topic default/outside"}
    own.done("PUT", f"/streams/{stream}", {"streamPoolId": pool})
    moving = {f"{each} Topic default/outside" for each in ("Alter", "Read", "Delete")}
    assert seen["UpdateStream"] == {*moving, "Create Topic pool/outside"}
    own.done("GET", f"/streams/{stream}")
    assert seen["GetStream"] == {"Describe Topic pool/outside"}
    assert own.call("DELETE", f"/streams/{stream}").status == 204
    assert seen["DeleteStream"] == {"Delete Topic pool/outside"}
    own.done("PUT", f"/streampools/{pool}", {"freeformTags": {"a": "b"}})
    assert seen["UpdateStreamPool"] == {"AlterConfigs Cluster pool/kafka-cluster"}
    assert own.call("GET", "/workRequests").status == 200
    assert seen["ListWorkRequests"] == {"Describe Cluster default/kafka-cluster"}


def test_nothing_is_registered_without_saying_what_it_needs() -> None:
    with pytest.raises(TypeError, match="needs"):
        operation("New", "GET", "/new", client="StreamClient")  # type: ignore[call-arg]
    assert [name for name, each in OPERATIONS.items() if each.needs == ANYBODY] == []


def test_a_cursor_of_another_stream_names_no_group(own: Api, seen: Seen) -> None:
    streams: list[Any] = [
        own.done("POST", "/streams", {"name": name, "partitions": 1, "compartmentId": COMPARTMENT})["id"]
        for name in ("one", "other")
    ]
    cursor = own.group_cursor(streams[0], "readers")
    assert own.get(streams[1], cursor).status == 400
    assert seen["GetMessages"] == {"Read Topic default/other"}
