"""The view, heartbeats and changes: what the scripts keep, and what they refuse."""

import asyncio
import contextlib
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.membership.participant import Proposal
from headrace.membership.view import Leader, Member, View, joined, without
from headrace.storage.brokers import RedisMembership, raise_layout
from headrace.storage.fence import Fence
from headrace.storage.layout import LAYOUT_VERSION, TRANSACTIONS_LAYOUT_VERSION
from headrace.storage.layout.keys import Keyspace
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Topic

KEYS = Keyspace()


def member(node_id: int, incarnation: str = "a") -> Member:
    return Member(node_id=node_id, incarnation=incarnation, process=f"pid {node_id}", host="here", port=9092)


@pytest.fixture
async def client(any_redis: RedisServer) -> Any:
    async with redis.asyncio.from_url(any_redis.url) as made:
        await made.flushall()
        yield made


@pytest.fixture
def membership(client: Any) -> RedisMembership:
    return RedisMembership(client, Fence(0))


async def changed(membership: RedisMembership, *members: Member) -> View:
    view, _, _ = await membership.beat(member(9, "onlooker"), 1, None)
    expected = 0 if view is None else view.number
    return await membership.change(Proposal(expected, expected, members))


async def test_of_two_proposals_one_is_taken_and_both_see_which(membership: RedisMembership) -> None:
    first = await membership.change(Proposal(0, 0, (member(1),)))
    again = await membership.change(Proposal(0, 0, (member(2),)))
    assert again == first == View(first.number, (member(1),))
    assert (await membership.beat(member(1), 1, None))[0] == first
    both = await membership.change(Proposal(first.number, first.number, joined(first.members, member(2))))
    late = await membership.change(Proposal(first.number, first.number, without(first.members, [member(1)])))
    assert late == both == View(both.number, (member(1), member(2)), first.number)
    assert both.number > first.number
    assert (await membership.beat(member(1), 2, first))[0] == both


async def test_brokers_without_transactions_cannot_read_the_members_once_there_are_some(
    membership: RedisMembership, client: Any
) -> None:
    """One that runs, and was declared dead, would join again: it reads the layout version only when it starts."""
    await client.set(KEYS.version, LAYOUT_VERSION)
    before = await changed(membership, member(1))
    older = msgspec.json.Decoder(tuple[Member, ...])
    assert older.decode(await client.hget(KEYS.view, "members")) == before.members
    await raise_layout(client, KEYS)
    await raise_layout(client, KEYS)
    assert int(await client.get(KEYS.version)) == TRANSACTIONS_LAYOUT_VERSION
    assert (await membership.beat(member(1), 1, None))[0] == before, "the members stay the same"
    after = await membership.change(Proposal(before.number, before.number, (member(1), member(2))))
    assert after.members == (member(1), member(2))
    assert (await membership.beat(member(1), 2, before))[0] == after
    for _ in range(2):
        with pytest.raises(msgspec.ValidationError):
            older.decode(await client.hget(KEYS.view, "members"))
        # A failover may lose the membership.
        await client.delete(KEYS.view)
        await membership.change(Proposal(0, after.number, (member(2),)))


async def test_the_layout_of_a_server_without_members_is_raised(client: Any) -> None:
    await client.set(KEYS.version, LAYOUT_VERSION)
    await raise_layout(client, KEYS)
    assert int(await client.get(KEYS.version)) == TRANSACTIONS_LAYOUT_VERSION
    assert not await client.exists(KEYS.view)


async def test_numbers_never_repeat_even_where_redis_has_lost_them(membership: RedisMembership, client: Any) -> None:
    first = await changed(membership, member(1))
    await client.flushall()
    second = await membership.change(Proposal(0, first.number + 5_000, (member(1),)))
    assert second.number > first.number + 5_000
    assert second.before == 0
    assert not second.follows(View(first.number + 5_000, ()))
    assert int(await client.get(KEYS.epoch)) == second.number


async def test_producer_ids_never_repeat_even_where_redis_has_lost_them(
    open_storage: Any, membership: RedisMembership, client: Any
) -> None:
    """Else a batch of the second producer was acknowledged as a repeated one of the first, and not stored."""
    view = await changed(membership, member(1))
    storage = await open_storage(view.number)
    given = [await storage.topics.allocate_producer_ids(1_000) for _ in range(3)]
    assert given[2] - given[1] >= 1_000 <= given[1] - given[0]
    # A replica without the last ones takes over, no sooner than a few milliseconds later.
    await client.set(KEYS.producer_ids, given[0])
    last = given[2] + 1_000
    while (await _milliseconds(client) - _FROM_MS) * 1_000 < last:
        pass
    assert await storage.topics.allocate_producer_ids(1_000) >= last


_FROM_MS = 1_767_225_600_000
"""The beginning of 2026."""


async def _milliseconds(client: Any) -> int:
    seconds, microseconds = await client.time()
    return int(seconds * 1_000 + microseconds // 1_000)


async def test_who_is_not_in_the_view_has_no_heartbeats_in_it(membership: RedisMembership, client: Any) -> None:
    await changed(membership, member(1), member(2))
    for each in (1, 2):
        await membership.beat(member(each), 7, None)
    await changed(membership, member(2))
    assert await client.hgetall(KEYS.heartbeats) == {b"2:a": b"7"}


async def test_changes_of_topics_are_announced_with_a_membership(open_storage: Any, client: Any) -> None:
    storage = await open_storage(1)
    await storage.documents.save({("kind", "one"): b"1"})
    assert not await client.exists(KEYS.changes)
    membership = RedisMembership(client, storage.fence)
    view = await changed(membership, member(1))
    membership.enter(view.number)
    last = await membership.last_change()
    await storage.documents.save({("kind", "one"): b"2", ("other", "two"): b"3"})
    await membership.publish({"headrace:t:0": Leader(10, 2)})
    await membership.publish({"headrace:t:0": Leader(9, 3)})
    found = [change for _, change in await membership.changes(last, 10)]
    assert [(each.kind, each.name) for each in found] == [("documents", "kind other"), ("leaders", "headrace:t:0 10:2")]
    assert await membership.leaders() == {"headrace:t:0": Leader(10, 2)}
    # Again: others may have forgotten it with a topic that moved.
    await membership.publish({"headrace:t:0": Leader(10, 2)})
    found = [change for _, change in await membership.changes(last, 10)]
    assert [each.name for each in found if each.kind == "leaders"] == ["headrace:t:0 10:2"] * 2


async def test_who_led_a_deleted_topic_is_not_kept(open_storage: Any, client: Any) -> None:
    storage = await open_storage(1)
    membership = RedisMembership(client, storage.fence)
    streams = ("headrace:t:0@a", "headrace:t:1@a")
    topic = Topic(name="t", id=UUID(int=1), streams=streams, config={}, created_ms=0)
    await storage.topics.create(topic)
    await membership.publish({stream: Leader(10, 2) for stream in (*streams, "headrace:other:0@b")})
    await storage.topics.delete(topic)
    assert await membership.leaders() == {"headrace:other:0@b": Leader(10, 2)}


@pytest.mark.parametrize(("asked", "told"), [("writelines", StorageUnavailable), ("decode", AttributeError)])
async def test_a_connection_closed_while_it_is_sent_by_is_no_fault_of_ours(asked: str, told: type[Exception]) -> None:
    """redis-py takes its writer away then; any other attribute that is missing is a fault."""

    class Closing:
        async def evalsha(self, *_: Any) -> None:
            attrgetter(asked)(None)

    membership = RedisMembership(cast("redis.asyncio.Redis", Closing()), Fence(0))
    with pytest.raises(told):
        await membership.beat(member(1), 1, None)


def test_a_transport_closed_while_it_is_written_to_is_no_fault_of_ours() -> None:
    """A Redis that dies: uvloop's transports refuse with a RuntimeError, which redis-py hands on."""
    uvloop = pytest.importorskip("uvloop")

    class Closing:
        async def evalsha(self, *_: Any) -> None:
            listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
            async with listener:
                _reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                writer.writelines([b"EVALSHA"])

    async def beat() -> None:
        with pytest.raises(StorageUnavailable, match="the connection was closed"):
            await RedisMembership(cast("redis.asyncio.Redis", Closing()), Fence(0)).beat(member(1), 1, None)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(beat())


async def test_any_other_runtime_error_is_a_fault() -> None:
    class Broken:
        async def evalsha(self, *_: Any) -> None:
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        await RedisMembership(cast("redis.asyncio.Redis", Broken()), Fence(0)).beat(member(1), 1, None)


async def test_a_change_that_is_lost_or_dropped_is_not_there(membership: RedisMembership, client: Any) -> None:
    await changed(membership, member(1))
    change = await membership.last_change()
    assert await membership.has_change(change)
    await client.delete(KEYS.changes)
    # A stream that was deleted gives the ids of one millisecond once more.
    made_ms, now_ms = int(change.partition("-")[0]), 0
    while now_ms <= made_ms:
        seconds, us = await client.time()
        now_ms = seconds * 1_000 + us // 1_000
    await changed(membership, member(1), member(2))
    assert not await membership.has_change(change)


async def test_nothing_precedes_all_changes_until_the_first_are_dropped(
    membership: RedisMembership, client: Any
) -> None:
    await changed(membership, member(1))
    await changed(membership, member(1), member(2))
    assert await membership.has_change("0-0")
    await client.xtrim(KEYS.changes, maxlen=1, approximate=False)
    assert not await membership.has_change("0-0")
