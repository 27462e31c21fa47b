"""Groups where there are other brokers: taken over by the view, and held only while it is certain that it holds."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
import structlog
from tests.broker.members import join
from tests.harness.memory import MemoryGroups, MemoryStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.coordination import Coordination
from headrace.broker.coordinator.coordinator import Unready
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.runtime.clock import RunningClock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.effects import CommitResult, HeartbeatResult, JoinResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, Heartbeat, Sync
from headrace.groups.model import (
    GroupChange,
    GroupSettings,
    OffsetAndMetadata,
    SaveOffsets,
    StoredGroup,
    TopicPartition,
)
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable

PLACE = TopicPartition("t", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


class Groups(MemoryGroups):
    """A storage that knows whose members it takes fetches for."""

    def __init__(self, shared: MemoryStorage) -> None:
        super().__init__(shared)
        self.mine: set[str] = set()
        self.failing: dict[str, Exception] = {}
        """Group -> why it cannot be loaded."""
        self.asked = 0
        self.refusing = False

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        if self.refusing:
            raise StorageUnavailable("its shard is away")
        await super().save(group, changes, view)

    async def load_one(self, name: str, view: int | None = None) -> StoredGroup:
        self.asked += 1
        if name in self.failing:
            raise self.failing[name]
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
        self.known: UUID | None = None
        """The id of the topic, as this broker knows it."""
        self.stored: UUID | None = NEW
        self.looking = asyncio.Event()
        self.may_find = asyncio.Event()
        self.go_by(1, 1)
        coordination = Coordination(self.ownership, "default", lambda _: self.known, self._stored_topic_id)
        self.running = RunningClock(self.clock)
        self.table = GroupCoordinator(self.groups, self.running, GroupSettings(), lambda _: None, coordination)

    def go_by(self, number: int, *nodes: int, missed: int | None = None) -> None:
        """`missed`: the number of a view between, which this broker has not seen."""
        before = missed or self.ownership.number or 0
        members = tuple(Member(node_id=node, incarnation="a", process="", host="here", port=node) for node in nodes)
        self.ownership.adopt(View(number, members, before), inside=1 in nodes)

    async def _stored_topic_id(self, _: str) -> UUID | None:
        self.looking.set()
        await self.may_find.wait()
        return self.stored


@pytest.fixture
async def site() -> Any:
    made = Site()
    await made.groups.save("g", [SaveOffsets({PLACE: OffsetAndMetadata(offset=5)})])
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


async def test_why_a_group_is_not_here_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_name: str, _view: int) -> StoredGroup:
        raise StorageUnavailable("Redis answered: READONLY")

    monkeypatch.setattr(site.groups, "load_one", refused)
    with pytest.raises(Unready, match="Redis answered: READONLY"):
        await site.table.bring("g")
    site.go_by(2, 2)
    with pytest.raises(Unready, match="another broker"):
        await site.table.bring("g")


async def test_positions_in_a_topic_that_is_deleted_while_the_group_is_taken_over_go(site: Site) -> None:
    """Where the topic is created again the group would begin there, and miss what is before."""
    asked = asyncio.ensure_future(site.table.ready("g"))
    await site.looking.wait()
    await site.table.topic_deleted(DropTopic("t"), CooperativeScheduler().pace())
    site.may_find.set()
    assert await asked is None
    while site.table.positions("g"):
        await asyncio.sleep(0)
    assert (await site.groups.load_one("g", 1)).positions == {}


@pytest.mark.parametrize("known", [None, NEW])
async def test_positions_in_an_earlier_topic_of_the_name_go_when_the_group_is_taken_over(
    site: Site, known: UUID | None
) -> None:
    """The topic was deleted and created again while the group had no coordinator; its consumers would skip records."""
    site.known = known
    other = TopicPartition("t", 1)
    await site.groups.save("g", [SaveOffsets({PLACE: OffsetAndMetadata(offset=5, topic_id=OLD)})])
    await site.groups.save("g", [SaveOffsets({other: OffsetAndMetadata(offset=6, topic_id=NEW)})])
    site.may_find.set()
    assert await site.table.ready("g") is None
    assert site.table.positions("g") == {other: OffsetAndMetadata(offset=6, topic_id=NEW)}, (
        "told before storage has dropped it"
    )
    while PLACE in (await site.groups.load_one("g", 1)).positions:
        await asyncio.sleep(0)
    assert site.table.positions("g") == {other: OffsetAndMetadata(offset=6, topic_id=NEW)}


async def test_positions_in_a_topic_that_this_broker_has_not_heard_of_yet_stay(site: Site) -> None:
    """The previous coordinator had; this one still has the deleted topic."""
    site.known = OLD
    kept = {PLACE: OffsetAndMetadata(offset=5, topic_id=NEW)}
    await site.groups.save("g", [SaveOffsets(kept)])
    site.may_find.set()
    assert await site.table.ready("g") is None
    assert site.table.positions("g") == kept
    await site.table.topic_deleted(DropTopic("t", OLD), CooperativeScheduler().pace())
    for _ in range(5):
        await asyncio.sleep(0)
    assert (await site.groups.load_one("g", 1)).positions == kept


async def test_positions_of_an_older_server_say_no_topic_and_stay(site: Site) -> None:
    site.known = NEW
    assert await site.table.ready("g") is None
    assert site.table.positions("g") == {PLACE: OffsetAndMetadata(offset=5)}


async def test_positions_that_say_no_topic_stay_where_others_are_of_an_earlier_one(site: Site) -> None:
    """An older server committed them in the topic that has the name now."""
    site.known = NEW
    other = TopicPartition("t", 1)
    await site.groups.save("g", [SaveOffsets({other: OffsetAndMetadata(offset=6, topic_id=OLD)})])
    site.may_find.set()
    assert await site.table.ready("g") is None
    while other in (kept := (await site.groups.load_one("g", 1)).positions):
        await asyncio.sleep(0)
    assert site.table.positions("g") == kept == {PLACE: OffsetAndMetadata(offset=5)}


@pytest.mark.parametrize("said", [None, OLD])
async def test_a_position_in_a_topic_that_is_made_while_storage_refuses_a_drop_stays(
    site: Site, said: UUID | None
) -> None:
    """The drop was of what there was when the name had no topic."""
    site.stored = None
    other = TopicPartition("t", 1)
    await site.groups.save(
        "g", [SaveOffsets({place: OffsetAndMetadata(offset=5, topic_id=said) for place in (PLACE, other)})]
    )
    site.may_find.set()
    site.groups.refusing = True
    assert await site.table.ready("g") is None
    await _pass(site, 0)
    assert site.table.positions("g") == {}
    site.groups.refusing = False
    site.known = NEW
    await _commit(site)
    assert {place: each.offset for place, each in site.table.positions("g").items()} == {PLACE: 8}
    await _pass(site, 2_000)
    while len(kept := (await site.groups.load_one("g", 1)).positions) > 1:
        await _pass(site, 0)
    assert [(place, each.offset, each.topic_id) for place, each in kept.items()] == [(PLACE, 8, NEW)]
    assert site.table.positions("g") == kept


async def test_a_position_in_a_topic_that_comes_back_while_storage_refuses_a_drop_stays(site: Site) -> None:
    """It moved to another virtual cluster and back, and has its id still."""
    site.known = NEW
    site.may_find.set()
    await _commit(site)
    site.known, site.groups.refusing = None, True
    await site.table.topic_deleted(DropTopic("t", NEW), CooperativeScheduler().pace())
    await _pass(site, 0)
    site.known, site.groups.refusing = NEW, False
    await _commit(site)
    await _pass(site, 2_000)
    assert site.table.positions("g")[PLACE].offset == 8
    assert (await site.groups.load_one("g", 1)).positions[PLACE].offset == 8


@pytest.mark.parametrize("later", [None, NEW])
async def test_a_commit_in_a_topic_that_goes_while_the_group_is_loaded_is_refused(
    site: Site, later: UUID | None
) -> None:
    """The offset would be the next topic's position, whose consumers would skip records."""
    await site.groups.save("g", [SaveOffsets({TopicPartition("t", 1): OffsetAndMetadata(offset=5, topic_id=NEW)})])
    site.known = OLD
    committing = asyncio.ensure_future(_commit(site))
    await site.looking.wait()
    site.known = site.stored = later
    site.may_find.set()
    assert (await committing).partitions == {PLACE: GroupError.UNKNOWN_TOPIC_OR_PARTITION}
    await _pass(site, 0)
    assert all(each.offset == 5 for each in (await site.groups.load_one("g", 1)).positions.values())


async def _commit(site: Site, offset: int = 8, given_up: Callable[[], bool] = lambda: False) -> CommitResult:
    positions = {PLACE: OffsetAndMetadata(offset=offset)}
    commit = Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=positions)
    result = await site.table.request("g", commit, given_up)
    assert isinstance(result, CommitResult)
    return result


async def test_a_commit_is_of_the_topic_that_there_is(site: Site) -> None:
    site.known = NEW
    await _commit(site)
    kept = (await site.groups.load_one("g", 1)).positions[PLACE]
    assert (kept.offset, kept.topic_id) == (8, NEW)


async def test_requests_given_up_before_the_group_is_ready_are_not_processed(site: Site) -> None:
    """A member may have joined again under its old name."""
    site.may_find.set()
    joined = await site.table.request("new", join("a"), lambda: True)
    assert isinstance(joined, JoinResult)
    assert joined.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert not site.table.exists("new")


async def test_a_commit_that_was_given_up_before_the_group_is_loaded_does_not_come_behind_a_newer_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, load_one = asyncio.Event(), site.groups.load_one

    async def late(name: str, view: int) -> StoredGroup:
        await may_load.wait()
        return await load_one(name, view)

    monkeypatch.setattr(site.groups, "load_one", late)
    site.known = NEW
    site.may_find.set()
    given_up = False
    older = asyncio.ensure_future(_commit(site, 7, lambda: given_up))
    for _ in range(3):
        await asyncio.sleep(0)
    given_up = True
    may_load.set()
    while not site.table.exists("g"):
        await asyncio.sleep(0)
    newer = asyncio.ensure_future(_commit(site, 8))
    assert (await newer).partitions == {PLACE: None}
    told = await older
    assert site.table.positions("g")[PLACE].offset == 8
    assert told.partitions == {PLACE: GroupError.COORDINATOR_NOT_AVAILABLE}


async def test_an_abandoned_load_fails_silently(site: Site) -> None:
    """The request was canceled by the change of membership that it fails for."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    asked = asyncio.ensure_future(site.table.ready("g"))
    await site.looking.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    del asked  # it knows of the loading
    site.go_by(2, 2)
    site.may_find.set()
    while site.groups.mine:
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert told == []


async def test_a_group_that_is_taken_over_is_kept(site: Site) -> None:
    site.may_find.set()
    assert await site.table.ready("g") is None
    assert site.groups.mine == {"g"}
    assert site.table.exists("g")
    held = site.table.runner("g")
    site.go_by(2, 1)
    site.table.adopt()
    assert site.table.runner("g") is held


async def test_a_group_that_another_broker_may_have_had_is_loaded_again(site: Site) -> None:
    """It came and went between two views that this broker went by, and what it stored was written over."""
    place = TopicPartition("t", 0)
    site.may_find.set()
    assert await site.table.ready("g") is None
    assert site.table.positions("g") == {place: OffsetAndMetadata(offset=5)}
    await site.groups.save("g", [SaveOffsets({place: OffsetAndMetadata(offset=9)})])
    site.go_by(3, 1, missed=2)
    site.table.adopt()
    assert await site.table.ready("g") is None
    assert site.table.positions("g") == {place: OffsetAndMetadata(offset=9)}
    assert site.groups.mine == {"g"}


async def test_groups_are_taken_over_by_a_broker_that_is_not_certain_yet(site: Site) -> None:
    """The broker has just joined; lists of groups and the removal of members wait for no request."""
    site.may_find.set()
    certain, asked = False, asyncio.Event()

    def told() -> bool:
        asked.set()
        return certain

    site.ownership.certain = told
    site.table.adopt()
    await asked.wait()
    certain = True
    await _until_there(site, {"g"})


async def test_a_group_whose_shard_is_away_for_minutes_is_taken_over_when_that_is_back(site: Site) -> None:
    site.may_find.set()
    site.groups.failing["g"] = StorageUnavailable("its shard is away")
    site.table.adopt()
    for _ in range(600):
        await _pass(site, 200)
    assert 110 <= site.groups.asked <= 130, "about once a second"
    site.groups.failing.clear()
    await _until_there(site, {"g"})


async def test_groups_of_others_are_not_tried_again(site: Site) -> None:
    site.may_find.set()
    site.groups.failing["g"] = StorageUnavailable("its shard is away")
    site.table.adopt()
    await _pass(site, 200)
    site.go_by(2, 2)
    site.table.adopt()
    asked = site.groups.asked
    for _ in range(50):
        await _pass(site, 200)
    assert site.groups.asked == asked


async def test_a_group_that_cannot_be_read_keeps_no_other_one_out(site: Site) -> None:
    site.may_find.set()
    others = {f"h{number}" for number in range(100)}
    for name in others:
        await site.groups.save(name, [SaveOffsets({TopicPartition("t", 0): OffsetAndMetadata(offset=5)})])
    site.groups.failing["g"] = ValueError("damaged")
    with structlog.testing.capture_logs() as logged:
        site.table.adopt()
        await _until_there(site, others)
        for _ in range(20):
            await _pass(site, 200)
    assert [(line["log_level"], line["group"]) for line in logged] == [("error", "g")]
    assert "a group could not be loaded" in logged[0]["event"]


async def _pass(site: Site, ms: int) -> None:
    """Let time pass, and what comes of it happen."""
    site.clock.advance(ms)
    for _ in range(10):
        await asyncio.sleep(0)


async def _until_there(site: Site, groups: set[str]) -> None:
    async with asyncio.timeout(30):
        while not groups <= set(site.table.names()):
            await _pass(site, 200)


async def _member(site: Site) -> JoinResult:
    """A group with one member, whose session is 10 seconds."""
    site.may_find.set()
    joining = asyncio.ensure_future(site.table.request("new", join()))
    while not joining.done():
        site.clock.advance(100)
        await asyncio.sleep(0)
    joined = joining.result()
    assert isinstance(joined, JoinResult)
    sync = Sync(
        token=object(),
        generation=joined.generation,
        member_id=joined.member_id,
        instance_id=None,
        protocol_type=None,
        protocol=None,
        assignments={joined.member_id: b""},
    )
    await site.table.request("new", sync)
    return joined


async def _heartbeat(site: Site, joined: JoinResult) -> GroupError | None:
    beat = Heartbeat(token=object(), member_id=joined.member_id, instance_id=None, generation=joined.generation)
    result = await site.table.request("new", beat)
    assert isinstance(result, HeartbeatResult)
    return result.error


async def test_no_member_expires_while_the_server_is_paused(site: Site) -> None:
    joined = await _member(site)
    site.clock.stand_still(3_600_000)
    site.clock.advance(9_000)
    assert await _heartbeat(site, joined) is None
    site.clock.advance(10_001)
    while site.table.names() and await _heartbeat(site, joined) is None:
        await asyncio.sleep(0)
    assert await _heartbeat(site, joined) is GroupError.UNKNOWN_MEMBER_ID


async def test_no_member_expires_while_others_may_lead_the_group(site: Site) -> None:
    """A server that has just been woken does not know yet that it was missed; nor does one without Redis."""
    joined = await _member(site)
    certain = False
    site.ownership.certain = lambda: certain
    with structlog.testing.capture_logs() as logged:
        site.clock.advance(60_000)
        await asyncio.sleep(0)
    # A server of other tests may log something.
    assert [line for line in logged if line["event"].startswith("member")] == []
    # No other broker has joined.
    certain = True
    assert await _heartbeat(site, joined) is None
    certain = False
    site.clock.advance(60_000)
    # Another broker has joined.
    site.go_by(2, 2)
    with structlog.testing.capture_logs() as logged:
        site.table.adopt()
        site.clock.advance(60_000)
        await asyncio.sleep(0)
    assert [line["event"] for line in logged if line["event"].startswith("member")] == []
    assert not site.table.exists("new")


async def test_members_are_waited_for_again_after_a_time_in_which_they_were_refused(site: Site) -> None:
    """They learn of it late, and have to find the coordinator first."""
    joined, certain = await _member(site), False
    site.ownership.certain = lambda: certain
    site.clock.advance(60_000)
    certain = True
    site.clock.advance(3_000)
    assert await _heartbeat(site, joined) is None
    site.clock.advance(9_000)
    assert await _heartbeat(site, joined) is None
    # Refused for a moment only, shortly before its session is over.
    site.clock.advance(9_500)
    certain = False
    assert await _heartbeat(site, joined) is GroupError.NOT_COORDINATOR
    certain = True
    site.clock.advance(3_000)
    assert await _heartbeat(site, joined) is None


async def test_a_member_that_does_not_come_back_after_such_a_time_is_dismissed(site: Site) -> None:
    joined, certain = await _member(site), False
    site.ownership.certain = lambda: certain
    site.clock.advance(60_000)
    certain = True
    site.clock.advance(9_000)
    # Repeated rejected requests do not postpone it.
    certain = False
    assert await site.table.ready("another") is GroupError.NOT_COORDINATOR
    certain = True
    site.clock.advance(1_001)
    assert await _heartbeat(site, joined) is GroupError.UNKNOWN_MEMBER_ID
