"""Requests about all native topics with very many partitions and groups affect no other client."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from redis import Redis

from headrace.kafka import apis
from headrace.protocol import messages as m
from headrace.testing import server
from headrace.testing.process import Server
from tests.harness.wire import Wire
from tests.hostile.http.bystander import Bystander
from tests.hostile.kafka.attacking import carry_out
from tests.hostile.kafka.corpus import Attack, encoded

apis.load()
CLIENTS = 300
PARTITIONS, GROUPED, GROUPS = 8_000, 300, 100
WIDE, TOLD = "hostile-wide-native", "hostile-told-native"


def _commit(group: str) -> bytes:
    position = m.OffsetCommitRequest.OffsetCommitRequestPartition
    asked = [position(partition_index=each, committed_offset=0, committed_metadata="") for each in range(PARTITIONS)]
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name=WIDE, partitions=asked)
    return encoded(m.OffsetCommitRequest(group_id=group, topics=[topic]), 8)


def _all_positions(group: str) -> bytes:
    asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    return encoded(m.OffsetFetchRequest(groups=[asked]), 8)


def _told() -> bytes:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=TOLD, configuration_keys=["headrace.native"]
    )
    return encoded(m.DescribeConfigsRequest(resources=[resource]), 4)


@pytest.fixture(scope="module")
def wide() -> Iterator[tuple[Server, Bystander]]:
    with server() as started:
        with Wire(started.kafka, timeout_s=120) as wire:
            wire.create(TOLD, GROUPED, headrace_storage="native")
            wire.create(WIDE, PARTITIONS, headrace_storage="native")
        with closing(Redis.from_url(started.storage)) as link, link.pipeline(transaction=False) as many:
            for partition in range(GROUPED):
                many.xadd(f"headrace:{TOLD}:{partition}", {"v": "x"})
                for group in range(GROUPS):
                    many.xgroup_create(f"headrace:{TOLD}:{partition}", f"group-{group}", "$")
            many.execute()
        with closing(Bystander(started, http=False)) as bystander:
            yield started, bystander
        assert "Traceback" not in started.log()


@pytest.mark.parametrize(
    "attack",
    [
        Attack("all positions of a group that has none", 9, _all_positions("none"), connections=CLIENTS),
        Attack("positions in all partitions", 8, _commit("some"), connections=4),
        Attack("all positions", 9, _all_positions("some"), connections=CLIENTS),
        Attack("all that Redis has of a topic", 32, _told(), connections=CLIENTS),
    ],
    ids=lambda attack: attack.name,
)
def test_requests_about_all_partitions_affect_no_other_client(wide: tuple[Server, Bystander], attack: Attack) -> None:
    started, bystander = wide
    print(bystander.harmless(lambda: carry_out(attack, started)))
