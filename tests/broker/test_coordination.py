"""Groups where there are other brokers: taken over by the view, and held only while it is certain that it holds."""

import asyncio
from typing import Any

import pytest
from tests.harness.memory import MemoryGroups, MemoryStorage

from headrace.broker.coordination import Coordination
from headrace.broker.groups import GroupTable
from headrace.broker.ownership import Ownership
from headrace.groups.errors import GroupError
from headrace.groups.model import Position, SavePositions, StoredGroup, TopicPartition
from headrace.groups.settings import GroupSettings
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock


class Groups(MemoryGroups):
    """A storage that knows whose members it takes fetches for."""

    def __init__(self, shared: MemoryStorage) -> None:
        super().__init__(shared)
        self.mine: set[str] = set()

    async def load_one(self, name: str, view: int) -> StoredGroup:
        self.mine.add(name)
        return await super().load_one(name, view)

    def forget(self, group: str) -> None:
        self.mine.discard(group)


class Site:
    """One broker's groups, in a view that a test chooses."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.groups = Groups(MemoryStorage())
        self.ownership = Ownership(1)
        self.looking = asyncio.Event()
        self.may_find = asyncio.Event()
        self.go_by(1, 1)
        coordination = Coordination(self.ownership, "default", self._has_topic)
        self.table = GroupTable(self.groups, self.clock, GroupSettings(), lambda _: None, coordination)

    def go_by(self, number: int, *nodes: int) -> None:
        members = tuple(Member(node_id=node, incarnation="a", process="", host="here", port=node) for node in nodes)
        self.ownership.adopt(View(number, members), inside=1 in nodes)

    async def _has_topic(self, _: str) -> bool:
        self.looking.set()
        await self.may_find.wait()
        return True


@pytest.fixture
async def site() -> Any:
    made = Site()
    await made.groups.save("g", [SavePositions({TopicPartition("t", 0): Position(offset=5)})])
    yield made
    await made.table.stop()


@pytest.mark.parametrize("nodes", [(2,), (1,)])
async def test_a_group_that_was_loaded_by_a_view_that_is_over_is_forgotten(site: Site, nodes: tuple[int, ...]) -> None:
    """Fetches of its members would go by what they had then."""
    asked = asyncio.ensure_future(site.table.ready("g"))
    await site.looking.wait()
    assert site.groups.mine == {"g"}
    site.go_by(2, *nodes)
    site.may_find.set()
    assert await asked is GroupError.COORDINATOR_NOT_AVAILABLE
    assert site.groups.mine == set()
    assert not site.table.exists("g")


async def test_a_group_that_is_taken_over_is_kept(site: Site) -> None:
    site.may_find.set()
    assert await site.table.ready("g") is None
    assert site.groups.mine == {"g"}
    assert site.table.exists("g")
