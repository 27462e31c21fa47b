"""Requests about groups that this server may coordinate no more."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.services import Services
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.connections import PeerAnswer
from headrace.membership.view import Member, View
from headrace.oci.errors import OciError
from headrace.oci.forwarding.group_forwarder import Done, GroupForwarder
from headrace.security.access.required_acls import Resource, ResourceType
from headrace.testing.clock import ManualClock


@pytest.mark.parametrize("cluster", ["default", "deleted"])
async def test_a_client_rejected_in_doubt_is_one_more_to_wait_for(cluster: str) -> None:
    """As at the Kafka listener: an instance learns late that it may ask again, and keeps its partitions until then."""
    ownership, clock = Ownership(1), ManualClock()
    me = Member(node_id=1, incarnation="a", process="", host="here", port=1)
    ownership.adopt(View(1, (me,)), inside=True)
    storage: Any = MemoryStorage()
    settings = BrokerSettings.of({})
    parts = Services(storage.documents, settings, clock, ownership=ownership)
    clusters = VirtualClusters(storage, settings, clock, cluster_id="c", stream_of=lambda *_: "s", parts=parts)
    peers: Any = SimpleNamespace(ownership=ownership)
    groups, group = GroupForwarder(peers, clusters), Resource(ResourceType.GROUP, "g", cluster)

    async def here() -> Done:
        raise AssertionError("another one may have answered")

    ownership.certain = lambda: False
    clock.advance(5_000)
    with pytest.raises(OciError, match="does not know whether it still coordinates the group"):
        await groups.carried(group, here)
    assert clusters.default.groups.doubted_ms == (clock.ticks_ms() if cluster == "default" else None)


async def test_an_unanswerable_client_gets_the_coordinators_error() -> None:
    """With the shard of {meta} without a replica, 421 was all that there was to read."""
    said = "broker 2 does not know whether it still coordinates the group"
    other = Member(node_id=2, incarnation="a", process="", host="here", port=1)
    bodies = [msgspec.json.encode({"code": "MisdirectedRequest", "message": said}), b"<html>"]

    async def owner_does(_key: str, _here: Any, there: Callable[[Member], Awaitable[Done]]) -> Done:
        return await there(other)

    async def ask(*_: Any, **__: Any) -> PeerAnswer:
        return PeerAnswer(421, {}, bodies.pop(0))

    async def here() -> Done:
        raise AssertionError("it is not here")

    peers: Any = SimpleNamespace(ownership=Ownership(1), owner_does=owner_does, ask=ask)
    clusters: Any = SimpleNamespace()
    call: Any = SimpleNamespace(principal=None)
    for told in (said, "broker 2 answers 421"):
        with pytest.raises(OciError, match=f"The coordinator of the group cannot be asked: {told}") as error:
            await GroupForwarder(peers, clusters).answer(
                Resource(ResourceType.GROUP, "g", "default"),
                "GET", b"/", call, request_id="", body=b"", here=here, repeats=True,
            )  # fmt: skip
        assert error.value.status == 503
