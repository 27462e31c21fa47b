"""A share partition of a log: decisions count after their write, and locks end in time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.harness.logs import appended, opened
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.sharing.partition import ShareLog
from headrace.broker.sharing.share import ShareFound
from headrace.broker.topics.live import LiveTopic
from headrace.groups.configs import GroupConfig
from headrace.groups.sharing import partition as sharing
from headrace.groups.sharing.partition import AckBatch, AckProblem
from headrace.groups.sharing.state import NOT_BEGUN, ShareState
from headrace.records.build import build
from headrace.testing.clock import ManualClock
from headrace.topics.errors import Fenced, NotLeader, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append

STREAM, GROUP = "t:0", "g"
ACCEPT, RELEASE, REJECT = b"\1", b"\2", b"\3"


class DeadLetters(DeadLetterTopics):
    """A dead letter topic that takes everything, or is missing."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(self._no_topic, "default", lambda: None, Decompression(), clock)
        self.taken: list[tuple[int, int, int]] = []
        self.missing = False

    @staticmethod
    def _no_topic(name: str) -> LiveTopic:
        raise AssertionError(name)

    async def copy(self, group: str, log: LeaderPartition, letters: sharing.DeadLetters, config: GroupConfig) -> int:
        assert (group, config.dead_letter_topic) == (GROUP, "dlq")
        await asyncio.sleep(0)
        if self.missing:
            raise UnknownTopic("no topic 'dlq'")
        self.taken.append(letters)
        return letters.last + 1


class World:
    """One log of four batches with two records each, and a share partition of it."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.clock = ManualClock()
        self.config = GroupConfig(share_record_lock_duration_ms=10_000)
        self.log: LeaderPartition
        self.share: ShareLog
        self.woken: list[int] = []
        self.topics = DeadLetters(self.clock)

    async def open(self, state: ShareState | None = None, batches: int = 4) -> None:
        self.log = await opened(self.storage, STREAM)
        for _ in range(batches):
            made = build([(None, b"x", 1, ()), (None, b"y", 1, ())])
            await appended(self.log, Append(made, 2, 1, -1, -1, -1))
        await self.storage.shares.init(STREAM, GROUP, state or ShareState(1, 0))
        self.share = self.new()
        await self.share.ready()

    def new(self) -> ShareLog:
        share = ShareLog(
            GROUP, self.log, self.storage.shares, lambda: self.config, self.clock, self._begin, self.topics
        )
        share.watchers.watch(self.woken.append)
        return share

    async def _begin(self, log: LeaderPartition, config: GroupConfig) -> int:
        del config
        return log.log_end - 2

    async def altering(self, log: LeaderPartition, config: GroupConfig) -> int:
        del config
        await self.storage.shares.init(STREAM, "other", ShareState(2, 5))
        return log.log_end

    async def fetch(self, member: str, records: int = 500, *, exact: bool = False) -> list[tuple[int, int, int]]:
        found: ShareFound = await self.share.fetch(member, records, 1 << 20, exact=exact)
        return [(each.first, each.last, each.delivery_count) for each in found.acquired]

    async def ack(self, member: str, first: int, last: int, kind: bytes = ACCEPT) -> AckProblem | Exception | None:
        return await self.share.acknowledge(member, [AckBatch(first, last, kind)], renewing=True)

    @property
    def stored(self) -> ShareState:
        return self.storage.shares.stored[STREAM, GROUP]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.open()
    yield made
    made.share.close()
    made.log.close()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_acknowledgement_counts_once_it_is_stored(world: World) -> None:
    assert await world.fetch("a", 2) == [(0, 1, 1)]
    world.storage.shares.answers = asyncio.Event()
    waiting = asyncio.ensure_future(world.ack("a", 0, 1))
    await settled()
    assert not waiting.done()
    # One that comes during the write leaves with the next one.
    assert await world.fetch("b", 2) == [(2, 3, 1)]
    later = asyncio.ensure_future(world.ack("b", 2, 3))
    world.storage.shares.answers.set()
    assert await waiting is None
    assert await later is None
    assert [state.spso for state in world.storage.shares.saved] == [2, 4]


async def test_a_write_without_an_outcome_counts_as_nothing(world: World) -> None:
    await world.fetch("a", 2)
    world.storage.shares.error = StorageUnavailable("no answer")
    assert isinstance(await world.ack("a", 0, 1), StorageUnavailable)
    world.storage.shares.error = None
    assert await world.fetch("b", 2) == [(2, 3, 1)], "they are acquired until their lock ends"
    assert await world.ack("a", 0, 1) is None
    assert world.stored.spso == 2


async def test_a_lock_ends_and_wakes_who_waits(world: World) -> None:
    assert await world.fetch("a") == [(0, 7, 1)]
    assert not world.share.has_some()
    world.clock.advance(10_000)
    await settled()
    assert world.woken
    assert world.share.has_some()
    assert await world.ack("a", 0, 0) is AckProblem.INVALID_RECORD_STATE
    assert await world.fetch("b") == [(0, 7, 2)]


async def test_the_end_of_a_lock_is_stored_again_after_a_refusal(world: World) -> None:
    await world.fetch("a", 2)
    world.storage.shares.error = StorageUnavailable("no answer")
    world.clock.advance(10_000)
    await settled()
    assert await world.fetch("b", 2) == [(2, 3, 1)]
    world.storage.shares.error = None
    world.clock.advance(1_000)
    await settled()
    assert await world.fetch("b", 2) == [(0, 1, 2)]


async def test_a_member_that_is_gone_holds_nothing(world: World) -> None:
    await world.fetch("a")
    world.share.release("a")
    await settled()
    assert await world.fetch("b") == [(0, 7, 2)]


async def test_another_state_epoch_is_read_again(world: World) -> None:
    """Offsets were altered behind this leader (trap 26)."""
    await world.fetch("a")
    await world.storage.shares.init(STREAM, GROUP, ShareState(2, 6))
    assert isinstance(await world.ack("a", 0, 7), Fenced)
    assert not world.share.is_ready
    await world.share.ready()
    assert await world.fetch("a") == [(6, 7, 1)]
    assert world.stored == ShareState(2, 6)


async def test_another_leader_epoch_is_another_state(world: World) -> None:
    await world.fetch("a")
    world.log.leader_epoch += 1
    assert not world.share.is_ready
    assert await world.fetch("a") == []
    assert isinstance(await world.ack("a", 0, 7), NotLeader)
    await world.share.ready()
    assert await world.fetch("b") == [(0, 7, 1)]


async def test_a_group_without_a_state_is_not_served(world: World) -> None:
    del world.storage.shares.stored[STREAM, GROUP]
    with pytest.raises(UnknownTopic):
        await world.new().ready()


async def test_the_first_offset_is_resolved_once_and_stored() -> None:
    world = World()
    await world.open(ShareState(1, NOT_BEGUN))
    assert world.stored == ShareState(1, 6)
    assert await world.fetch("a") == [(6, 7, 1)]
    world.share.close()


async def test_other_settings_apply_at_once(world: World) -> None:
    assert await world.fetch("a", 2) == [(0, 1, 1)]
    world.config = GroupConfig(share_partition_max_record_locks=2, share_delivery_count_limit=1)
    assert await world.fetch("a") == []
    assert await world.ack("a", 0, 0, RELEASE) is None
    assert world.stored.spso == 1, "it has had its only delivery"


async def test_it_retires_after_its_last_write(world: World) -> None:
    done: list[int] = []
    await world.fetch("a")
    world.storage.shares.answers = asyncio.Event()
    world.share.release("a")
    world.share.retire(lambda: done.append(1))
    await settled()
    assert not done
    world.storage.shares.answers.set()
    await settled()
    assert done == [1]
    assert world.stored.runs[0].count == 1, "deliveries of released records are stored"
    world.share.retire(lambda: done.append(2))
    assert done == [1, 2]


async def test_closing_wakes_who_waits(world: World) -> None:
    await world.fetch("a")
    world.storage.shares.answers = asyncio.Event()
    waiting = []
    for first in (0, 2):
        waiting.append(asyncio.ensure_future(world.ack("a", first, first + 1)))
        await settled()
    world.share.close()
    assert 0 in world.woken
    assert isinstance(await waiting[1], UnknownTopic)
    world.storage.shares.answers.set()
    await waiting[0]


async def test_dead_letters_are_done_after_their_copies(world: World) -> None:
    world.config = GroupConfig(dead_letter_topic="dlq", share_delivery_count_limit=2)
    await world.fetch("a")
    assert await world.ack("a", 0, 1, REJECT) is None
    assert world.storage.shares.saved[-1].encode() == "1 0 2x1,6a1"
    await settled()
    assert world.topics.taken == [(0, 1, 1)]
    assert world.stored.encode() == "1 2 6a1"
    world.share.release("a")
    await settled()
    assert await world.fetch("b") == [(2, 2, 2)]
    world.clock.advance(30_000)
    await settled()
    assert world.topics.taken == [(0, 1, 1), (2, 2, 2)]
    assert world.stored.encode() == "1 3 5a1"


async def test_dead_letters_wait_for_a_missing_topic_and_the_next_session(world: World) -> None:
    world.config = GroupConfig(dead_letter_topic="dlq")
    world.topics.missing = True
    await world.fetch("a")
    assert await world.ack("a", 0, 1, REJECT) is None
    await settled()
    assert world.topics.waiting == 2
    assert world.topics.counters.failures == 1
    done: list[int] = []
    world.share.release("a")
    world.share.retire(lambda: done.append(1))
    await settled()
    assert done == [1]
    world.share.close()
    assert world.stored.encode() == "1 0 2x1,6a1"
    world.topics.missing = False
    world.share = world.new()
    await world.share.ready()
    await settled()
    assert world.topics.taken == [(0, 1, 1)]
    assert world.stored.encode() == "1 2 6a1"


async def test_it_retires_after_dead_letters_are_copied(world: World) -> None:
    world.config = GroupConfig(dead_letter_topic="dlq")
    await world.fetch("a")
    rejecting = asyncio.ensure_future(world.ack("a", 0, 1, REJECT))
    await asyncio.sleep(0)
    world.share.retire(world.share.close)
    assert await rejecting is None
    await settled()
    assert world.topics.taken == [(0, 1, 1)]
    assert world.stored.encode() == "1 2 6a1"


async def test_a_read_that_fails_does_not_wake_members_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that waits would read again, fail again, and so on without a pause."""

    async def unavailable(*_: object, **__: object) -> None:
        await asyncio.sleep(0)
        raise StorageUnavailable("no answer")

    monkeypatch.setattr(world.log, "cached", lambda _: False)
    monkeypatch.setattr(world.log, "read_stored", unavailable)
    for _ in range(3):
        with pytest.raises(StorageUnavailable):
            await world.fetch("a")
        assert world.woken == []
    world.clock.advance(1_000)
    assert world.woken == [1]
    monkeypatch.undo()
    assert await world.fetch("a") == [(0, 7, 1)]


async def test_records_that_no_member_gets_are_not_counted_as_delivered(world: World) -> None:
    """Responses that come too late would give records up otherwise."""
    for _ in range(10):
        found = await world.share.fetch("a", 4, 1 << 20, exact=True)
        assert [tuple(each) for each in found.acquired] == [(0, 3, 1)]
        await world.share.give_back("a", found.acquired)
    assert world.storage.shares.saved == []
    assert await world.fetch("b", 4, exact=True) == [(0, 3, 1)]
    await world.ack("b", 0, 3, RELEASE)
    found = await world.share.fetch("a", 4, 1 << 20, exact=True)
    await world.share.give_back("b", found.acquired)
    assert await world.fetch("c", 4, exact=True) == [(4, 7, 1)], "another member cannot give them back"


async def test_what_is_closed_while_it_is_loaded_serves_no_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next session opens another one, and records would have two holders."""
    other, load = world.new(), world.storage.shares.load
    answer = asyncio.Event()

    async def slow(stream: str, group: str) -> tuple[int, ShareState | None]:
        found = await load(stream, group)
        await answer.wait()
        return found

    monkeypatch.setattr(world.storage.shares, "load", slow)
    waiting = asyncio.ensure_future(other.ready())
    await settled()
    other.close()
    answer.set()
    with pytest.raises(UnknownTopic):
        await waiting
    assert not (await other.fetch("b", 500, 1 << 20, exact=False)).acquired
    with pytest.raises(UnknownTopic):
        await other.ready()


async def test_each_lock_ends_in_its_time(world: World) -> None:
    await world.fetch("a", 2)
    world.clock.advance(6_000)
    assert await world.fetch("b", 2) == [(2, 3, 1)]
    world.clock.advance(4_000)
    await settled()
    assert await world.fetch("c", 2) == [(0, 1, 2)]
    world.clock.advance(6_000)
    await settled()
    assert await world.fetch("d", 2) == [(2, 3, 2)]


async def test_records_below_the_log_start_are_done_at_once(world: World) -> None:
    await world.fetch("a", 2)
    await world.ack("a", 1, 1)
    await world.log.delete_before(4)
    assert (world.share.start, world.share.lag) == (4, 4)
    assert await world.ack("a", 0, 1) is None
    assert await world.fetch("b", 2) == [(4, 5, 1)]
    assert await world.ack("b", 4, 5) is None
    assert world.stored.spso == 6


async def test_another_leader_epoch_during_the_load_is_not_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state may be that of an earlier leader, which still wrote."""
    other, load = world.new(), world.storage.shares.load

    async def overtaken(stream: str, group: str) -> tuple[int, ShareState | None]:
        found = await load(stream, group)
        world.log.leader_epoch += 1
        return found

    with monkeypatch.context() as patched:
        patched.setattr(world.storage.shares, "load", overtaken)
        with pytest.raises(NotLeader):
            await other.ready()
    await other.ready()
    assert other.is_ready
    other.close()


async def test_a_read_that_another_leader_epoch_overtakes_acquires_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, answer = world.log.read_stored, asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        found = await read(*args, **kwargs)
        await answer.wait()
        return found

    monkeypatch.setattr(world.log, "cached", lambda _: False)
    monkeypatch.setattr(world.log, "read_stored", slow)
    reading = asyncio.ensure_future(world.fetch("a"))
    await settled()
    world.log.leader_epoch += 1
    await world.share.ready()
    answer.set()
    assert await reading == []
    assert await world.fetch("b") == [(0, 7, 1)]


async def test_an_offset_that_is_altered_before_the_first_fetch_counts() -> None:
    world = World()
    await world.open()
    other = ShareLog(
        "other", world.log, world.storage.shares, lambda: world.config, world.clock, world.altering, world.topics
    )
    await world.storage.shares.init(STREAM, "other", ShareState(1, NOT_BEGUN))
    with pytest.raises(StorageUnavailable):
        await other.ready()
    await other.ready()
    assert other.start == 5
    other.close()
    world.share.close()
    world.log.close()
