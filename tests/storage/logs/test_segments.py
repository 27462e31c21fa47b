"""Cleaned segments that are made by hand: read by the leader and by others, trimmed, replaced, recovered, dropped."""

import asyncio
import random
from typing import Any

import pytest
import redis
import structlog
from tests.harness.cleaned import clean, fill, offsets_in
from tests.harness.owning import STREAM, Owner, batch
from tests.storage.conftest import Start

from headrace.broker.partition.cache import Buffer
from headrace.records.batch import peek
from headrace.storage.layout.keys import (
    aborted_of,
    clean_of,
    foreign_of,
    producers_of,
    segment_of,
    state_of,
    transactions_of,
)
from headrace.storage.layout.scripts import script
from headrace.storage.logs.log_view import Searching
from headrace.topics.errors import Fenced, OffsetOutOfRange, TopicError
from headrace.topics.model import StoredBatch
from headrace.topics.segments import NEVER_CLEANED, CleanedBatch, CleanedLog

BATCHES = 40
END = 2 * BATCHES


def bases(found: list[StoredBatch]) -> list[int]:
    return [each.base_offset for each in found]


def base_offsets(chunks: list[Buffer]) -> list[int]:
    return [peek(bytes(each)).base_offset for each in chunks]


async def read_on(log: Searching, offset: int, end: int, count: int) -> list[StoredBatch]:
    """All batches of a log, read as a reader does."""
    found: list[StoredBatch] = []
    while offset < end and (some := await log.read(STREAM, offset, count, end)):
        found += some
        offset = some[-1].next_offset
    return found


async def cleaned_owner(start: Start, seed: int, *, up_to: int = 60, rows: int = 7) -> tuple[Owner, list[int]]:
    """A log of which a random half is left in segments, and the base offsets of its batches."""
    chance = random.Random(seed)
    owner = await start()
    await fill(owner, BATCHES)
    left = await clean(owner, up_to, lambda _: chance.random() < 0.5, rows=rows)
    return owner, [*left, *range(up_to, END, 2)]


@pytest.mark.parametrize("seed", range(3))
async def test_readers_find_what_is_left_of_a_log(start: Start, link: Any, seed: int) -> None:
    owner, left = await cleaned_owner(start, seed)
    assert link.xlen(STREAM) == BATCHES - 30
    logs = owner.storage.logs
    for log in (logs, await logs.look(STREAM)):
        for count in (1, 3, 100):
            assert bases(await read_on(log, 0, END, count)) == left
        for offset in range(END):
            following = [base for base in left if base + 1 >= offset]
            found = await log.read(STREAM, offset, 1, END)
            assert bases(found) == following[:1]
    assert offsets_in(await read_on(logs, 0, END, 9)) == [each for base in left for each in (base, base + 1)]


@pytest.mark.parametrize("seed", range(3))
async def test_a_response_has_batches_after_gaps(start: Start, seed: int) -> None:
    _, left = await cleaned_owner(start, seed)
    # Nothing of a log that was opened again is in memory.
    partition = (await start(2)).partition
    offset, found = 0, []
    reads = 0
    while not partition.at_end(offset):
        chunks, _ = await partition.read_stored(offset, 1 << 20)
        assert chunks, offset
        found += base_offsets(chunks)
        offset = found[-1] + 2
        reads += 1
    assert found == left
    # A response ends with a segment, and at first with a few batches.
    assert reads < len(left)


@pytest.mark.parametrize("seed", range(3))
async def test_a_timestamp_is_found_in_segments(start: Start, seed: int) -> None:
    owner, left = await cleaned_owner(start, seed)
    logs = owner.storage.logs
    for log in (logs, await logs.look(STREAM)):
        for timestamp in range(-1, END + 8):
            wanted = next((base for base in left if base + 5 >= timestamp), None)
            found = await log.find_timestamp(STREAM, timestamp)
            assert (None if found is None else found.base_offset) == wanted
        newest = await log.find_max_timestamp(STREAM)
        assert newest is not None
        assert newest.base_offset == END - 2


async def test_a_timestamp_is_found_after_a_segment_of_which_nothing_is_left(start: Start) -> None:
    owner = await start()
    await fill(owner, BATCHES)
    # The first segment has offsets 0 to 5 up to its end at 40.
    await clean(owner, 40, lambda stored: stored.base_offset < 6)
    await owner.partition.delete_before(10)
    logs = owner.storage.logs
    for log in (logs, await logs.look(STREAM)):
        for timestamp in (0, 8, 20, 45):
            found = await log.find_timestamp(STREAM, timestamp)
            assert found is not None
            assert found.base_offset == 40
        newest = await log.find_max_timestamp(STREAM)
        assert newest is not None
        assert newest.base_offset == END - 2


async def test_the_next_leader_knows_the_segments(start: Start, link: Any) -> None:
    owner, left = await cleaned_owner(start, 1)
    before = owner.storage.logs.segments.cleaned(STREAM)
    size = await owner.partition.size()
    following = await start(2)
    logs = following.storage.logs
    assert logs.segments.cleaned(STREAM) == before
    assert (following.partition.local_start, following.partition.log_end) == (0, END)
    assert bases(await read_on(logs, 0, END, 5)) == left
    assert await following.partition.size() == size
    assert size == sum(len(each.batch) for each in await read_on(logs, 0, END, 5))
    # The earlier one, which does not know of it yet, changes nothing.
    contents = {key: link.dump(key) for key in link.scan_iter()}
    with pytest.raises(Fenced):
        await owner.storage.logs.segments.advance(STREAM, before.next_number, 60, 62, [])
    with pytest.raises(Fenced):
        await owner.storage.logs.segments.write(STREAM, before.next_number, [])
    with pytest.raises(Fenced):
        await owner.storage.logs.segments.swap(STREAM, [before.segments[0].number], None)
    assert {key: link.dump(key) for key in link.scan_iter()} == contents


async def test_a_reader_with_an_outdated_list_looks_again(start: Start) -> None:
    owner = await start()
    await fill(owner, BATCHES)
    logs = owner.storage.logs
    outdated = await logs.look(STREAM)
    await clean(owner, 20, lambda each: each.base_offset % 4 == 0)
    assert bases(await outdated.read(STREAM, 0, 2)) == [0, 4]
    outdated = await logs.look(STREAM)
    (segment,) = logs.segments.cleaned(STREAM).segments
    rewritten = [CleanedBatch(each.next_offset, each.batch, 5) for each in await logs.read(STREAM, 8, 1)]
    await logs.segments.write(STREAM, logs.segments.cleaned(STREAM).next_number, rewritten)
    assert bases(await outdated.read(STREAM, 0, 9)) == [0, 4, 8, 12, 16]
    await logs.segments.swap(STREAM, [segment.number], logs.segments.cleaned(STREAM).next_number - 1)
    for log in (logs, outdated):
        assert bases(await read_on(log, 0, END, 9)) == [8, *range(20, END, 2)]


async def test_a_deposed_leader_that_knows_nothing_reads_no_gap(start: Start) -> None:
    owner = await start()
    await fill(owner, BATCHES)
    following = await start(2)
    await following.partition.save_producers()
    await clean(following, 60, lambda each: each.base_offset % 6 == 0)
    left = [*range(0, 60, 6), *range(60, END, 2)]
    assert bases(await read_on(owner.storage.logs, 0, END, 4)) == left


async def test_a_reader_misses_nothing_while_the_log_is_cleaned(start: Start) -> None:
    """The batches at multiples of 10 are always live."""
    owner = await start()
    await fill(owner, 300)
    logs, end = owner.storage.logs, 600
    look = await logs.look(STREAM)

    async def cleaning() -> None:
        chance = random.Random(1)
        for step in range(50):
            await clean(owner, (step + 1) * 10, lambda each: each.base_offset % 10 == 0 or chance.random() < 0.5)
            segment = chance.choice(logs.segments.cleaned(STREAM).segments)
            found = await logs.segments.read(STREAM, segment.number, 0, 100)
            kept = [each for each in found if each.base_offset % 10 == 0]
            number = logs.segments.cleaned(STREAM).next_number
            await logs.segments.write(STREAM, number, [CleanedBatch(each.next_offset, each.batch, 5) for each in kept])
            await logs.segments.swap(STREAM, [segment.number], number)

    task = asyncio.create_task(cleaning())
    reads = 0
    while not task.done() or reads < 4:
        for log in (logs, look):
            found = bases(await read_on(log, 0, end, 3))
            assert {base for base in found if base % 10 == 0} == set(range(0, end, 10))
            assert found == sorted(set(found))
            reads += 1
    await task


@pytest.mark.parametrize("start_at", [0, 9, 20, 33, 59, 60, 67, 80])
async def test_the_log_start_moves_into_segments_and_beyond(start: Start, link: Any, start_at: int) -> None:
    owner, left = await cleaned_owner(start, 2)
    await owner.partition.delete_before(start_at)
    assert owner.partition.log_start == start_at
    for log in (owner, await start(2)):
        cleaned = log.storage.logs.segments.cleaned(STREAM)
        assert all(each.end > start_at for each in cleaned.segments)
        found = await read_on(log.storage.logs, start_at, END, 5)
        assert bases(found) == [base for base in left if base + 1 >= start_at]
        present = {int(key.rpartition(b":")[2]) for key in link.scan_iter(f"{clean_of(STREAM)}:*")}
        assert present == {each.number for each in cleaned.segments}
        assert await log.partition.size() >= sum(len(each.batch) for each in found)
        assert await log.append(batch(END)) is not None


async def test_retention_removes_whole_segments_and_then_batches(start: Start) -> None:
    owner, _ = await cleaned_owner(start, 3)
    partition, logs = owner.partition, owner.storage.logs
    segments = logs.segments.cleaned(STREAM).segments
    await partition.trim(segments[0].newest + 1, None)
    assert partition.log_start == segments[1].first
    # The last time of the second one is within retention, so it stays.
    await partition.trim(segments[1].newest, None)
    assert partition.log_start == segments[1].first
    size = await partition.size()
    await partition.trim(None, size - segments[1].size)
    assert logs.segments.cleaned(STREAM).segments == segments[2:]
    await partition.trim(70, None)
    assert (logs.segments.cleaned(STREAM).segments, partition.log_start) == ((), 66)


async def test_a_written_segment_that_replaces_none_is_removed(start: Start, link: Any) -> None:
    owner, left = await cleaned_owner(start, 4)
    logs = owner.storage.logs
    number = logs.segments.cleaned(STREAM).next_number
    (some,) = await logs.read(STREAM, 0, 1)
    await logs.segments.write(STREAM, number, [CleanedBatch(some.next_offset, some.batch, 5)])
    following = await start(2)
    assert link.exists(segment_of(STREAM, number))
    await following.storage.logs.segments.close(STREAM)
    assert not link.exists(segment_of(STREAM, number))
    assert not link.hexists(clean_of(STREAM), "writing")
    assert bases(await read_on(following.storage.logs, 0, END, 5)) == left
    assert following.storage.logs.segments.cleaned(STREAM).next_number == number + 1


async def test_a_pass_that_does_not_fit_the_log_changes_nothing(start: Start, link: Any) -> None:
    owner, _ = await cleaned_owner(start, 5)
    logs, number = owner.storage.logs, owner.storage.logs.segments.cleaned(STREAM).next_number
    await owner.append(batch(END))
    contents = {key: link.dump(key) for key in link.scan_iter()}
    # Elsewhere, within a batch, backwards, beyond the snapshot.
    for start_at, end in ((58, 62), (60, 63), (60, 60), (60, END + 1), (62, 64)):
        with pytest.raises(OffsetOutOfRange):
            await logs.segments.advance(STREAM, number, start_at, end, [])
    some = CleanedBatch(62, (await logs.read(STREAM, 60, 1))[0].batch, 65)
    for other in (number + 1, 0):
        with pytest.raises(OffsetOutOfRange):
            await logs.segments.advance(STREAM, other, 60, 62, [some])
    with pytest.raises(OffsetOutOfRange):
        await logs.segments.swap(STREAM, [0], number)
    with pytest.raises(OffsetOutOfRange):
        await logs.segments.swap(STREAM, [number], None)
    assert {key: link.dump(key) for key in link.scan_iter()} == contents
    await logs.segments.advance(STREAM, logs.segments.cleaned(STREAM).segments[-1].number, 60, 62, [some])
    assert logs.segments.cleaned(STREAM).segments[-1].end == 62
    await owner.partition.save_producers()
    with pytest.raises(OffsetOutOfRange):  # the last batch stays
        await logs.segments.advance(STREAM, number, 62, END + 1, [])


async def test_a_lost_state_is_made_again_with_the_segments(start: Start, link: Any) -> None:
    owner, left = await cleaned_owner(start, 6)
    await owner.crash()
    link.delete(state_of(STREAM))
    following = await start(2)
    assert (following.partition.log_start, following.partition.log_end) == (0, END)
    assert bases(await read_on(following.storage.logs, 0, END, 5)) == left


async def test_a_lost_list_of_segments_is_made_again(start: Start, link: Any) -> None:
    owner, left = await cleaned_owner(start, 6)
    logs = owner.storage.logs
    (some,) = await logs.read(STREAM, 0, 1)
    number = logs.segments.cleaned(STREAM).next_number
    await logs.segments.write(STREAM, number, [CleanedBatch(some.next_offset, some.batch, 5)])
    before = logs.segments.cleaned(STREAM)
    link.delete(clean_of(STREAM))
    # Before the next leader, readers find all that is left: with the list in memory, with a new one, and by time.
    look = await logs.look(STREAM)
    for log in (logs, look):
        assert bases(await read_on(log, 0, END, 5)) == left
        found = await log.find_timestamp(STREAM, left[3] + 5)
        assert found is not None
        assert found.base_offset == left[3]
    # A reader that was here before the log was cleaned reads the list itself.
    look.cleaned = NEVER_CLEANED
    assert bases(await read_on(look, 0, END, 5)) == left
    await owner.crash()
    with structlog.testing.capture_logs() as logged:
        following = await start(2)
    assert [each["key"] for each in logged if each["log_level"] == "error"] == [clean_of(STREAM)]
    assert (following.partition.log_start, following.partition.log_end) == (0, END)
    assert bases(await read_on(following.storage.logs, 0, END, 5)) == left
    assert following.storage.logs.segments.cleaned(STREAM) == before
    assert not link.exists(segment_of(STREAM, number))
    assert link.hexists(clean_of(STREAM), "rows")


async def test_a_log_without_its_list_is_trimmed_cleaned_and_removed(start: Start, link: Any) -> None:
    owner, left = await cleaned_owner(start, 6)
    logs = owner.storage.logs
    link.delete(clean_of(STREAM))
    await clean(owner, 64, lambda _: True)
    assert link.hget(clean_of(STREAM), "end") == b"64"
    link.delete(clean_of(STREAM))
    await owner.partition.delete_before(20)
    assert bases(await read_on(logs, 20, END, 5)) == [base for base in left if base + 1 >= 20]
    link.delete(clean_of(STREAM))
    await logs.drop(STREAM)
    assert [key for key in link.scan_iter() if STREAM.encode() in key] == []


async def test_a_list_of_an_earlier_server_gets_its_copy(start: Start, link: Any) -> None:
    owner, left = await cleaned_owner(start, 6)
    await owner.crash()
    link.hdel(state_of(STREAM), "c")
    following = await start(2)
    link.delete(clean_of(STREAM))
    assert bases(await read_on(await following.storage.logs.look(STREAM), 0, END, 5)) == left


async def test_a_copy_that_headrace_did_not_write_is_an_error(start: Start, link: Any) -> None:
    owner, _ = await cleaned_owner(start, 6)
    link.hset(state_of(STREAM), "c", "sixty")
    with pytest.raises(TopicError, match="field c"):
        await owner.storage.logs.open(STREAM, lambda _: None)


async def test_nothing_is_left_of_a_deleted_log(start: Start, link: Any) -> None:
    owner, _ = await cleaned_owner(start, 7)
    logs = owner.storage.logs
    (some,) = await logs.read(STREAM, 0, 1)
    await logs.segments.write(
        STREAM, logs.segments.cleaned(STREAM).next_number, [CleanedBatch(some.next_offset, some.batch, 5)]
    )
    await logs.drop(STREAM)
    assert [key for key in link.scan_iter() if STREAM.encode() in key] == []
    assert logs.segments.cleaned(STREAM) == CleanedLog()


async def test_a_log_that_was_removed_in_part_is_removed_by_the_next_try(start: Start, link: Any) -> None:
    await cleaned_owner(start, 4)
    keys = [STREAM, state_of(STREAM), producers_of(STREAM), foreign_of(STREAM)]
    keys += [transactions_of(STREAM), aborted_of(STREAM), clean_of(STREAM)]
    drop = script("drop").text
    # As while Redis Cluster moves the slot, and a segment is not there any more.
    link.acl_setuser("mover", enabled=True, nopass=True, keys=keys, commands=["+@all"])
    own = link.connection_pool
    login = {**own.connection_kwargs, "username": "mover", "password": "any"}
    pool = redis.ConnectionPool(own.connection_class, **login)
    try:
        with redis.Redis(connection_pool=pool) as mover, pytest.raises(redis.ResponseError):
            mover.eval(drop, len(keys), *keys, 9)
    finally:
        pool.disconnect()
        link.acl_deluser("mover")
    assert link.eval(drop, len(keys), *keys, 9)
    assert list(link.scan_iter(f"*{STREAM}*")) == []
