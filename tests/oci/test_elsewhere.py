"""Requests about groups that this server may coordinate no more."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.harness.memory import MemoryStorage

from headrace.access.needs import Resource, ResourceType
from headrace.broker.clusters import Clusters
from headrace.broker.ownership import Ownership
from headrace.broker.settings import BrokerSettings
from headrace.membership.view import Member, View
from headrace.oci.elsewhere import Done, Groups
from headrace.oci.errors import OciError
from headrace.testing.clock import ManualClock


@pytest.mark.parametrize("cluster", ["default", "deleted"])
async def test_whoever_is_refused_in_doubt_is_one_more_for_whom_members_are_waited_for(cluster: str) -> None:
    """As at the Kafka listener: an instance learns late that it may ask again, and keeps its partitions until then."""
    ownership, clock = Ownership(1), ManualClock()
    me = Member(node_id=1, incarnation="a", process="", host="here", port=1)
    ownership.adopt(View(1, (me,)), inside=True)
    storage: Any = MemoryStorage()
    clusters = Clusters(
        storage, BrokerSettings.of({}), clock, cluster_id="c", stream_of=lambda *_: "s", ownership=ownership
    )
    peers: Any = SimpleNamespace(ownership=ownership)
    groups, group = Groups(peers, clusters), Resource(ResourceType.GROUP, "g", cluster)

    async def here() -> Done:
        raise AssertionError("another one may have answered")

    ownership.certain = lambda: False
    clock.advance(5_000)
    with pytest.raises(OciError, match="does not coordinate"):
        await groups.carried(group, here)
    assert clusters.default.groups.doubted_ms == (clock.ticks_ms() if cluster == "default" else None)
