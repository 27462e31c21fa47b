"""Creation and deletion of a topic with the maximum number of partitions affect no other client."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.protocol import messages as m
from headrace.testing import server
from tests.harness.wire import Wire
from tests.hostile.http.bystander import Bystander

PARTITIONS = 9_900


class _Made:
    """Topics that a client makes and deletes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def create(self) -> None:
        """At once."""
        self._wire.create("wide", PARTITIONS)

    def grow(self) -> None:
        """From one partition on."""
        self._wire.create("wide", 1)
        grown = m.CreatePartitionsRequest.CreatePartitionsTopic(name="wide", count=PARTITIONS, assignments=None)
        asked = m.CreatePartitionsRequest(topics=[grown], timeout_ms=60_000, validate_only=False)
        [result] = self._wire.ask(asked, 2).results
        assert result.error_code == 0

    def delete(self) -> None:
        """Whichever way it came."""
        gone = m.DeleteTopicsRequest(topics=[], topic_names=["wide"], timeout_ms=60_000)
        [result] = self._wire.ask(gone, 4).responses
        assert result.error_code == 0


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[_Made, Bystander]]:
    with (
        server() as started,
        closing(Bystander(started)) as bystander,
        Wire(started.kafka, timeout_s=120) as wire,
    ):
        yield _Made(wire), bystander


@pytest.mark.parametrize("way", ["create", "grow"])
def test_creation_and_deletion_of_ten_thousand_partitions_affect_no_other_client(
    made: tuple[_Made, Bystander], way: str
) -> None:
    client, bystander = made

    def attack() -> None:
        getattr(client, way)()
        client.delete()

    print(bystander.harmless(attack))
