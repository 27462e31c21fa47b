"""A Redis program in the same group as Kafka members: no entry goes to both, and none is left out."""

import random
import threading

import pytest
import redis
from tests.harness.wire import Wire, batch

from headrace.storage.layout.native import offset_at
from headrace.testing import Server

from .conftest import Link, MakeMember

ENTRIES = 2_000


class Program(threading.Thread):
    """Reads with XREADGROUP and acknowledges, until it is stopped and nothing is left."""

    def __init__(self, url: str, stream: str, group: str, seed: int) -> None:
        super().__init__()
        self.taken: list[int] = []
        self.stopping = threading.Event()
        self._url, self._stream, self._group = url, stream, group
        self._random = random.Random(seed)

    def run(self) -> None:
        with redis.Redis.from_url(self._url, decode_responses=True) as link:
            while True:
                stopping = self.stopping.is_set()
                found = link.xreadgroup(
                    self._group, "program", {self._stream: ">"}, count=self._random.randint(1, 30), block=20
                )
                entries = [entry for entry, _ in found[0][1]] if found else []
                if entries:
                    self.taken += [offset_at(entry.encode()) for entry in entries]
                    link.xack(self._stream, self._group, *entries)
                elif stopping:
                    return


@pytest.mark.parametrize("seed", range(3))
def test_no_entry_goes_to_both_and_none_is_left_out(
    running: Server, topic: str, stream: str, link: Link, member: MakeMember, seed: int
) -> None:
    chance = random.Random(seed)
    added: list[int] = []

    def add() -> None:
        with Wire(running.kafka) as wire:
            while len(added) < ENTRIES:
                if chance.random() < 0.5:
                    count = chance.randint(1, 40)
                    first = wire.produce(topic, batch(*[b"x"] * count)).base_offset
                    added.extend(range(first, first + count))
                else:
                    added.append(offset_at(link.xadd(stream, {"a": "b"}).encode()))

    reader = member().join()
    reader.read(0)
    program = Program(running.storage, stream, topic, seed)
    writer = threading.Thread(target=add)
    program.start()
    writer.start()
    read: list[int] = []
    at = 0

    def poll() -> bool:
        nonlocal at
        found = [
            record.offset
            for record in reader.read(at, max_wait_ms=50, partition_max_bytes=chance.choice([1, 500, 9_000]))
        ]
        if found:
            read.extend(found)
            at = found[-1] + 1
            if chance.random() < 0.3:
                assert reader.commit(at) == 0
        return bool(found)

    while writer.is_alive():
        poll()
        if chance.random() < 0.02:
            # The member goes and comes back: what it had not committed is given again.
            assert reader.commit(at) == 0
            reader.leave()
            reader.member_id = ""
            reader.join()
            at = max(at, reader.committed())
    writer.join()
    program.stopping.set()
    program.join()
    while poll():
        pass
    assert len(read) == len(set(read))
    assert not set(read) & set(program.taken), f"seed {seed}"
    assert sorted({*read, *program.taken}) == sorted(added), f"seed {seed}"
    assert read, "the member had its share"
    assert program.taken, "and so had the program"
    assert reader.commit(at) == 0
    assert link.xpending(stream, topic)["pending"] == 0


def test_a_program_takes_over_by_xautoclaim_only_if_it_wants_to(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = [offset_at(link.xadd(stream, {"a": str(n)}, id=f"{n + 1}-0").encode()) for n in range(4)]
    reader = member().join()
    assert [record.offset for record in reader.read(0)] == offsets
    claimed = link.xautoclaim(stream, topic, "program", min_idle_time=0, count=2)[1]
    assert [offset_at(entry.encode()) for entry, _ in claimed] == offsets[:2]
    assert reader.commit(offsets[-1] + 1) == 0
    pending = link.xpending_range(stream, topic, "-", "+", 10)
    assert [entry["consumer"] for entry in pending] == ["program", "program"]
    assert reader.committed() == offsets[0]
