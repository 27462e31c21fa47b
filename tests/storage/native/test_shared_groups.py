"""Members of a share group and a Redis program in one group of a native topic, on real servers."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from tests.harness.plain import KEY, STREAM
from tests.harness.redis import RedisServer

from headrace.storage.layout.native import offset_at
from headrace.storage.storage import RedisStorage
from headrace.topics.native import Acknowledgement, Delivered, Limits, Outcome

GROUP = "group"

ENTRIES = 4_000
LOCK_MS = 150
SLACK_S = 0.005
"""Redis rounds its clock."""


class Hands:
    """Who has what, by the numbers of deliveries and the clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: dict[int, tuple[str, float]] = {}
        self.deliveries: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.spent: set[int] = set()
        self.twice: list[tuple[int, str, str]] = []
        self.wrong: list[tuple[int, int, int]] = []

    def take(self, who: str, began: float, counts: dict[int, int | None]) -> None:
        """A consumer got entries by a request that began then; a program does not see numbers of deliveries."""
        ended = time.monotonic()
        with self._lock:
            for offset, count in counts.items():
                owner, until = self._owner.get(offset, ("", 0.0))
                if owner and ended < until - SLACK_S:
                    self.twice.append((offset, owner, who))
                self._owner[offset] = who, began + LOCK_MS / 1000
                self.deliveries[offset] += 1
                if count is not None and count != self.deliveries[offset]:
                    self.wrong.append((offset, count, self.deliveries[offset]))

    def leave(self, who: str, offsets: Sequence[int]) -> list[int]:
        """Before the request: another may have them the moment after. Return those that no other has had since."""
        with self._lock:
            held = [offset for offset in offsets if self._owner.get(offset, ("", 0.0))[0] == who]
            for offset in held:
                del self._owner[offset]
            return held

    def leave_all(self, who: str) -> None:
        with self._lock:
            self._owner = {offset: owner for offset, owner in self._owner.items() if owner[0] != who}

    def finish(self, offsets: Sequence[int]) -> None:
        with self._lock:
            self.done.update(offsets)

    def complete(self) -> bool:
        with self._lock:
            return len(self.done.keys() | self.spent) == ENTRIES


class Program(threading.Thread):
    """Reads with XREADGROUP, takes over with XAUTOCLAIM after the lock, acknowledges most, until it is stopped."""

    def __init__(self, url: str, hands: Hands, seed: int) -> None:
        super().__init__()
        self.stopping = threading.Event()
        self.taken = 0
        self._url, self._hands, self._chance = url, hands, random.Random(seed)

    def run(self) -> None:
        with redis.Redis.from_url(self._url, decode_responses=True) as link:
            while not self.stopping.is_set():
                began = time.monotonic()
                found = link.xreadgroup(GROUP, "program", {KEY: ">"}, count=self._chance.randint(1, 20), block=5)
                self._handle(link, began, [entry for entry, _ in found[0][1]] if found else [])
                began = time.monotonic()
                self._handle(
                    link, began, [entry for entry, _ in link.xautoclaim(KEY, GROUP, "program", LOCK_MS, count=10)[1]]
                )

    def _handle(self, link: Any, began: float, entries: list[str]) -> None:
        offsets = [offset_at(entry.encode()) for entry in entries]
        self._hands.take("program", began, dict.fromkeys(offsets))
        self.taken += len(offsets)
        for entry, offset in zip(entries, offsets, strict=True):
            if self._chance.random() < 0.95:
                held = self._hands.leave("program", [offset])
                if link.xack(KEY, GROUP, entry):
                    self._hands.finish(held)


def each_of(ranges: Sequence[Delivered]) -> dict[int, int]:
    """Each offset with its number of deliveries."""
    return {offset: each.deliveries for each in ranges for offset in range(each.first, each.last + 1)}


async def work(storage: RedisStorage, name: str, hands: Hands, chance: random.Random, until: float) -> None:
    """A member that acknowledges, releases, is late, or ends and comes back."""
    limits = Limits(LOCK_MS, deliveries=50, window=400)
    shares = storage.native.shares
    while not hands.complete() and time.monotonic() < until:
        began = time.monotonic()
        count, limit = chance.choice([1, 5, 50]), chance.choice([100, 10_000])
        read = await shares.acquire(STREAM, GROUP, name, limits, count, limit, create_at=0)
        held = list(each_of(read.acquired))
        hands.spent |= {offset for each in read.spent for offset in range(each.first, each.last + 1)}
        hands.take(
            name, began, {each: one.deliveries for one in read.acquired for each in range(one.first, one.last + 1)}
        )
        if not held:
            await asyncio.sleep(0.002)
            continue
        fate = chance.random()
        if fate < 0.02:
            continue  # it forgets them
        if fate < 0.04:
            hands.leave_all(name)
            hands.spent |= each_of(await shares.release(STREAM, GROUP, name, limits)).keys()
            continue
        if fate < 0.06:
            await asyncio.sleep(LOCK_MS * 1.2 / 1000)  # it is late: the others have them by now
        middle = chance.randint(0, len(held))
        for some, outcome in (
            (held[:middle], Outcome.DONE),
            (held[middle:], chance.choice((Outcome.DONE, Outcome.RELEASE, Outcome.RENEW))),
        ):
            if not some:
                continue
            mine = hands.leave(name, some)
            given = [Acknowledgement(offset, offset, outcome) for offset in some]
            answered = await shares.acknowledge(STREAM, GROUP, name, limits, given)
            hands.spent |= each_of(answered or ()).keys()
            if answered is not None and outcome is Outcome.DONE:
                hands.finish(mine)


@pytest.mark.parametrize("seed", range(2))
async def test_members_and_a_program_share_one_group(
    storage: RedisStorage, any_redis: RedisServer, raw: Any, seed: int
) -> None:
    chance, hands = random.Random(seed), Hands()
    with raw.pipeline(transaction=False) as many:
        for number in range(ENTRIES):
            # The first half has neighboring offsets, and the other is a second apart.
            ms = 1 + number // 700 if number < ENTRIES // 2 else 1_000 * number
            many.xadd(KEY, {"value": "v"}, id=f"{ms}-{number % 700}")
        ids = {offset_at(entry_id.encode()) for entry_id in many.execute()}
    await storage.native.shares.begin(STREAM, GROUP, 0)
    program = Program(any_redis.url, hands, seed)
    program.start()
    until = time.monotonic() + 30
    try:
        await asyncio.gather(
            *(work(storage, f"member-{number}", hands, random.Random(chance.random()), until) for number in range(4))
        )
    finally:
        program.stopping.set()
        program.join()
    assert hands.done.keys() | hands.spent == ids, f"seed {seed}: none is lost"
    assert not hands.twice, f"seed {seed}: none has two owners"
    assert not hands.wrong, f"seed {seed}: numbers of deliveries"
    assert max(hands.done.values()) == 1, f"seed {seed}: none is done twice"
    assert 0 < program.taken < sum(hands.deliveries.values()), "both had their share"
