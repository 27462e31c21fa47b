"""A group whose storage does not answer for a while."""

import asyncio
from typing import Any

import pytest
from tests.broker.members import PARTITION, commit, stable
from tests.harness.memory import MemoryStorage

from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.groups.effects import CommitResult, HeartbeatResult, JoinResult, Result
from headrace.groups.errors import GroupError
from headrace.groups.events import Event, Heartbeat
from headrace.groups.group import Group
from headrace.testing.clock import ManualClock


def _heartbeat(member: JoinResult, generation: int | None = None) -> Heartbeat:
    said = member.generation if generation is None else generation
    return Heartbeat(token=object(), generation=said, member_id=member.member_id, instance_id=None)


async def _hanging(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> tuple[JoinResult, asyncio.Event, "asyncio.Future[Result]"]:
    """The one member of a group, what storage waits for before it answers, and the member's commit, which waits."""
    member = await stable(table, clock)
    answers = storage.groups.answers = asyncio.Event()
    committing = asyncio.ensure_future(table.request("g", commit(5, member.generation, member.member_id)))
    await asyncio.sleep(0)
    return member, answers, committing


async def _at_once(table: GroupCoordinator, beat: Heartbeat) -> Result:
    """The answer that waits for no storage."""
    asked = asyncio.ensure_future(table.request("g", beat))
    for _ in range(3):
        await asyncio.sleep(0)
    assert asked.done()
    return asked.result()


async def test_while_storage_hangs_members_that_say_so_stay_and_others_go(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    member, answers, committing = await _hanging(table, storage, clock)
    for _ in range(10):
        clock.advance(3_000)
        assert await _at_once(table, _heartbeat(member)) == HeartbeatResult()
    wrong = asyncio.ensure_future(table.request("g", _heartbeat(member, member.generation + 1)))
    await asyncio.sleep(0)
    # A result that storage might still contradict is not sent earlier.
    assert not wrong.done()
    assert not committing.done()
    answers.set()
    committed = await committing
    assert isinstance(committed, CommitResult)
    assert committed.partitions[PARTITION] is None
    assert await wrong == HeartbeatResult(error=GroupError.ILLEGAL_GENERATION)
    assert await table.request("g", _heartbeat(member)) == HeartbeatResult()
    clock.advance(10_000)
    assert await table.request("g", _heartbeat(member)) == HeartbeatResult(error=GroupError.UNKNOWN_MEMBER_ID)


async def test_many_heartbeats_while_storage_hangs_are_one_thing_to_do_later(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, answers, committing = await _hanging(table, storage, clock)
    for _ in range(100):
        assert await _at_once(table, _heartbeat(member)) == HeartbeatResult()
    handled: list[Event] = []
    handle = Group.handle

    def seen(group: Group, event: Event, *times: Any) -> Any:
        handled.append(event)
        return handle(group, event, *times)

    monkeypatch.setattr(Group, "handle", seen)
    answers.set()
    await committing
    assert len(handled) == 1
