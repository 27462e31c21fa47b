"""Writes to a log that several brokers consider theirs: paused leaders, replicas, unread requests."""

import asyncio
import os
import random
import signal
from pathlib import Path
from time import time
from typing import Any, Self

import hiredis
import pytest
import redis
from tests.harness.owning import STREAM, Contents, Owner, batch
from tests.harness.rawlog import RawLog, made
from tests.harness.redis import RedisServer
from tests.harness.waiting import until
from tests.storage.conftest import Start

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.runtime.clock import SystemClock
from headrace.topics.errors import Fenced, StorageUnavailable, UnknownTopic
from headrace.topics.model import Appended
from headrace.topics.producer_state import ProducerStateEntry, SentBatch


def process_of(link: Any) -> int:
    return int(link.info("server")["process_id"])


# Requests that Redis has not read yet


@pytest.mark.parametrize("size", [2_000, 200_000])
async def test_unread_appends_of_a_paused_redis_precede_the_next_leader_or_are_refused(
    start: Start, any_redis: RedisServer, link: Any, size: int
) -> None:
    """6 MB that a Redis has not read when its owner reconnects: it reads them after or before, and either is right."""
    owner = await start()
    assert await owner.append(batch(0)) == Appended(0)
    pid = process_of(link)
    os.kill(pid, signal.SIGSTOP)
    try:
        answers = []
        for number in range(1, 1 + (6 << 20) // size):
            answers.append(owner.send(batch(number, producer=7, sequence=number - 1, size=size)))
            await asyncio.sleep(0)
        # The transport writes what the socket takes; Redis has read none of it.
        owner.cut()
        refused = [await answer for answer in answers]
        assert all(isinstance(each, StorageUnavailable) for each in refused)
    finally:
        os.kill(pid, signal.SIGCONT)
    for number in range(1, 1 + len(answers)):
        assert await owner.acknowledged(batch(number, producer=7, sequence=number - 1, size=size)) == number
    found = Contents(link)
    assert found.by_offset == {number: number for number in range(1 + len(answers))}
    assert (found.holes, found.doubled) == ([], [])


async def test_appends_of_a_leader_that_died_unannounced_are_found_after_a_missed_membership(start: Start) -> None:
    """Until the next append nothing else would inform the broker that led the log before and after it."""
    owner = await start()
    assert await owner.append(batch(0)) == Appended(0)
    owner.partition.lead(1)
    await owner.snapshots.save()
    second = await start(view=2)
    assert await second.append(batch(1)) == Appended(1)
    await second.crash()
    owner.partition.lead(3)
    owner.partition.led_elsewhere()
    assert owner.partition.log_end == 1
    await owner.snapshots.save()
    await until(lambda: owner.partition.log_end == 2)
    assert await owner.acknowledged(batch(2)) == 2


async def test_a_log_that_another_broker_has_deleted_leaves_nothing_behind(start: Start) -> None:
    """Brokers that hear of the deletion kept all that they knew of the log: 8 KiB for each partition that they led."""
    owner, second = await start(), await start(view=2)
    await second.storage.logs.drop(STREAM)
    await owner.storage.logs.settle(STREAM)
    owner.partition.close()
    with pytest.raises(UnknownTopic):
        await owner.storage.logs.settle(STREAM)


async def test_a_log_that_has_moved_is_kept_by_who_has_it_now(start: Start) -> None:
    """A topic that is in another virtual cluster by now may be heard of there first: the same broker has it twice."""
    owner = await start()
    first, owner.partition = (
        owner.partition,
        LeaderPartition("t", 0, STREAM, owner.storage.logs, CacheBudget(1 << 20), SystemClock(), owner.snapshots),
    )
    await owner.partition.open()
    first.close()
    # The other one, which knows that the log has a new leader, may have begun to recover it, too.
    assert [await owner.acknowledged(batch(number)) for number in range(3)] == [0, 1, 2]


async def test_a_transaction_that_arrives_after_the_raise_enters_nothing(start: Start, link: Any) -> None:
    """The control of the test above: the same requests, held back until the next owner has opened the log."""
    owner = await start()
    assert await owner.append(batch(0)) == Appended(0)
    term = owner.partition.leader_epoch
    late = link.pipeline(transaction=True)
    for offset in (1, 2, 3):
        late.xadd(STREAM, {"b": made(offset, term), "t": 5, "s": 500}, id=f"{term}-{offset + 1}", nomkstream=True)
    second = await start(view=2)
    assert all(isinstance(each, redis.ResponseError) for each in late.execute(raise_on_error=False))
    assert await second.append(batch(1)) == Appended(1)
    assert Contents(link).by_offset == {0: 0, 1: 1}


# A replica that is promoted without anybody raising the term


class Proxy:
    """Leads connections to one Redis or, from one command to the next, to another."""

    def __init__(self, *sockets: Path) -> None:
        self._sockets = sockets
        self.at = 0
        self._path = sockets[0].parent / "proxy"
        self.url = f"unix://{self._path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links = [await asyncio.open_unix_connection(path) for path in self._sockets]
        asked, waiting = hiredis.Reader(notEnoughData=...), b""
        try:
            while data := await reader.read(1 << 20):
                asked.feed(data)
                waiting += data
                count = complete(asked)
                if asked.has_data():
                    continue
                up, down = links[self.at]
                down.write(waiting)
                waiting = b""
                answered = hiredis.Reader(notEnoughData=...)
                while count > 0:
                    answer = await up.read(1 << 20)
                    answered.feed(answer)
                    count -= complete(answered)
                    writer.write(answer)
        finally:
            for _, down in links:
                down.close()
            writer.close()


def complete(reader: hiredis.Reader) -> int:
    """How many more commands or answers are whole."""
    count = 0
    while reader.gets() is not ...:
        count += 1
    return count


async def test_a_promoted_replica_that_lacks_batches_is_noticed_before_anything_is_acknowledged(
    start: Start, link: Any, any_redis: RedisServer
) -> None:
    """One connection on which another Redis answers from now on: only the length shows it."""
    with RedisServer() as replica, redis.Redis.from_url(replica.url) as other:
        async with Proxy(any_redis.socket, replica.socket) as proxy:
            owner = await start(url=proxy.url)
            for number in range(6):
                assert await owner.append(batch(number)) == Appended(number)
            # As it was two batches ago: replication is asynchronous.
            state = RawLog(link).state
            other.hset(state, mapping=link.hgetall(state))
            for entry_id, fields in link.xrange(STREAM)[:4]:
                other.xadd(STREAM, fields, id=entry_id)
            proxy.at = 1
            answer = await owner.append(batch(6))
            assert isinstance(answer, StorageUnavailable)
            assert "5 entries instead of 7" in str(answer)
            # It is stored: too small a length is reported only afterwards. No client knows of it.
            assert Contents(other).holes == [4, 5]
            proxy.at = 0
            await owner.crash()


# An owner that was stopped and wakes


ROUNDS = 300


async def _rounds(start: Start, link: Any, chance: random.Random, *, raised: bool) -> tuple[int, int, int]:
    """A first owner writes and stops anywhere in what it sends; a second one takes over; the first goes on.

    The first is played by hand, so that it can stop anywhere; `raised`: whether taking over raises the term.

    Returns:
        Holes, records that lie at one offset twice, and acknowledged records that are not there, over all rounds.
    """
    holes = overlaps = lost = 0
    for _ in range(ROUNDS):
        link.flushall()
        raw = RawLog(link)
        first = raw.fill(chance.randrange(3))
        offset = first.log_end + link.xlen(STREAM)
        sends = [(offset + place, chance.randrange(2)) for place in range(chance.randrange(1, 6))]
        stop = chance.randrange(len(sends) + 1)
        acknowledged = {}
        for place, _ in sends[:stop]:
            if raw.put(first.term, place):
                acknowledged[place] = first.term
        # The rest lies somewhere on its way. The next one takes over.
        if raised:
            second = raw.open(view=2)
            end, term = second.log_end, second.term
        else:
            batches = raw.offsets()
            end, term = (batches[-1][1] if batches else 0), first.term
        late = sends[stop:]
        mine = list(range(end, end + chance.randrange(1, 5)))
        while late or mine:
            taken, who = (late, first.term) if late and (not mine or chance.random() < 0.5) else (mine, term)
            place = taken.pop(0)
            base = place[0] if isinstance(place, tuple) else place
            span = 2 if who == first.term and chance.random() < 0.5 and isinstance(place, tuple) else 1
            try:
                if raw.put(who, base, span):
                    acknowledged[base] = who
            except redis.ResponseError:
                continue
        end = 0
        there: dict[int, int] = {}
        for stored in raw.read(0, 1_000):
            holes += max(0, stored.base_offset - end)
            overlaps += max(0, end - stored.base_offset)
            end = stored.next_offset
            there[stored.base_offset] = int.from_bytes(bytes(stored.batch[12:16]), "big")
        lost += sum(there.get(base) != who for base, who in acknowledged.items())
    return holes, overlaps, lost


async def test_an_owner_that_wakes_after_a_takeover_leaves_no_hole_and_no_overlap(start: Start, link: Any) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    assert await _rounds(start, link, random.Random(seed), raised=True) == (0, 0, 0)
    # Without the raise there are some: the test can see them.
    assert sum(await _rounds(start, link, random.Random(seed), raised=False)) > 0


async def fenced(owner: Owner) -> None:
    async with asyncio.timeout(60):
        while not isinstance(await owner.append(batch(-1)), Fenced):
            await asyncio.sleep(0)


async def test_servers_that_take_over_from_each_other(start: Start, link: Any) -> None:
    """Real owners: one is left with batches under way, the next one opens, and the first goes on sending."""
    chance = random.Random(seed := random.getrandbits(32))
    print(f"seed {seed}")
    expected: dict[int, int] = {}
    number = 0
    owner = await start(view=1)
    for view in range(2, 32):
        answers = []
        for _ in range(chance.randrange(1, 8)):
            answers.append((number, owner.send(batch(number, size=chance.choice([8, 5_000, 100_000])))))
            number += 1
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        following = await start(view=view)
        for _ in range(3):
            answers.append((number, owner.send(batch(number))))
            number += 1
        for each, answer in answers:
            found = await answer
            if isinstance(found, Appended):
                assert expected.setdefault(found.base_offset, each) == each
        # It finds out, and takes nothing more.
        assert isinstance(await owner.append(batch(-1)), Exception)
        await fenced(owner)
        owner = following
    found_there = Contents(link)
    assert (found_there.holes, found_there.doubled) == ([], [])
    assert {offset: found_there.by_offset.get(offset) for offset in expected} == expected


# Producers over openings


async def test_producers_found_by_a_recovery_are_known_to_later_ones(start: Start) -> None:
    """Each recovery writes a new snapshot, with the batches after the previous one."""
    owner = await start(view=1)
    assert await owner.append(batch(1, producer=7, sequence=0)) == Appended(0)
    for view in range(2, 6):
        await owner.crash()
        owner = await start(view=view)
        await owner.partition.save_producers()
        assert await owner.append(batch(1, producer=7, sequence=0)) == Appended(0, duplicate=True)


async def test_producers_that_cannot_be_read_are_forgotten_and_the_log_opens(start: Start, link: Any) -> None:
    owner = await start(view=1)
    await owner.append(batch(1, producer=7, sequence=0))
    await owner.append(batch(2, producer=8, sequence=0))
    await owner.partition.save_producers()
    link.hset(RawLog(link).producers, mapping={"7": "what ever", "nobody": "0 0", "9": "1 2 3"})
    again = await start(view=2)
    assert await again.append(batch(2, producer=8, sequence=0)) == Appended(1, duplicate=True)
    assert await again.append(batch(3, producer=8, sequence=1)) == Appended(2)


async def test_producers_written_down_ahead_of_the_offset_are_known_as_they_were(start: Start) -> None:
    """A server that is killed between two pieces: later batches are read again, and known already."""
    owner = await start()
    for sequence in range(3):
        await owner.append(batch(sequence, producer=7, sequence=sequence))
    await owner.partition.save_producers()
    for sequence in range(3, 6):
        await owner.append(batch(sequence, producer=7, sequence=sequence))
    batches = tuple(SentBatch(sequence, sequence, sequence) for sequence in range(5, 0, -1))
    await owner.storage.logs.save_producers(STREAM, None, {7: ProducerStateEntry(0, batches, int(time() * 1000))})
    await owner.crash()
    other = await start(view=2)
    for sequence in range(1, 6):
        repeated = await other.append(batch(sequence, producer=7, sequence=sequence))
        assert repeated == Appended(sequence, duplicate=True)
    assert await other.append(batch(6, producer=7, sequence=6)) == Appended(6)
