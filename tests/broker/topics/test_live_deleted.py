"""A deleted topic leaves nothing, and no request waits until it is gone."""

import asyncio
import weakref

import pytest
from tests.broker.world import World

from headrace.topics.errors import UnknownTopic


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("storage", ["log", "native"])
async def test_its_memory_is_free_at_once(world: World, storage: str) -> None:
    """The collector walks all that there is once in 100 million objects; until then it was 5 KiB for each partition."""
    topics = world.broker.topics
    await topics.create("t", 2, {"headrace.storage": storage})
    await world.put(3, topic="t")
    [held, other] = [weakref.ref(each) for each in topics.get("t").partitions]
    partition = topics.partition("t", 0)
    assert (await partition.read_stored(0, 1 << 20))[0]
    del partition
    await topics.delete("t")
    for _ in range(10):
        # What waited for records ends in the next turn of the loop.
        await asyncio.sleep(0)
    assert (held(), other()) == (None, None)


async def test_others_run_during_the_deletion_and_do_not_find_the_topic(world: World) -> None:
    topics = world.broker.topics
    live = await topics.create("t", 1_000, {})
    seen: list[tuple[int, bool]] = []

    async def look() -> None:
        while not seen or seen[-1][0] < len(live.partitions):
            seen.append((sum(each.deleted for each in live.partitions), topics.has("t")))
            await asyncio.sleep(0)

    await asyncio.gather(topics.delete("t"), look())
    between = [found for closed, found in seen if 0 < closed < len(live.partitions)]
    assert len(between) > 5
    assert not any(between)


async def test_reads_and_writes_during_the_deletion_fail(world: World) -> None:
    partition = (await world.topic(200)).partition(199)
    told: list[int] = []
    partition.watch(told.append)
    await world.broker.topics.delete("flights")
    with pytest.raises(UnknownTopic):
        partition.check_readable(0)
    assert told == [0]
    # Like a reader that began before the deletion and continues.
    assert partition.read_cached(0, 1 << 20, whole_first=True) == ([], 0)
    with pytest.raises(UnknownTopic):
        await partition.read_stored(0, 1 << 20)
    assert partition.log is not None
    await partition.log.save_producers()
