"""Share groups on native topics: members by the wire and by librdkafka, and Redis programs in one group."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import redis
from confluent_kafka import AcknowledgeType, ShareConsumer
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, RELEASE, Sharer, acquired, codes, configure, parts, values

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.storage.layout.native import id_of, offset_at
from headrace.testing import Server
from headrace.topics.native import RELEASED

from .conftest import Link, MakeMember, add

DAY_MS = 86_400_000


@pytest.fixture
def sharer(wire: Wire, topic: str) -> Sharer:
    """A member of the group that is named like the topic, which begins at the first entry."""
    configure(wire, topic, share_auto_offset_reset="earliest")
    member = Sharer(wire, topic, topic)
    assert member.beat().error_code == 0
    return member


@pytest.fixture
def second(running: Server, sharer: Sharer) -> Iterator[Sharer]:
    """Another member, on a connection of its own."""
    with Wire(running.kafka, client_id="second") as other:
        member = Sharer(other, sharer.group, sharer.topic)
        assert member.beat().error_code == 0
        yield member


def waiting(sharer: Sharer, wait_ms: int = 30_000) -> tuple[threading.Thread, list[object]]:
    """A fetch that waits; its answer and the time of it."""
    found: list[object] = []

    def fetch() -> None:
        found.append(sharer.fetch(wait_ms=wait_ms))
        found.append(time.monotonic())

    thread = threading.Thread(target=fetch)
    thread.start()
    time.sleep(0.2)
    return thread, found


def test_entries_of_programs_and_producers_are_acquired(wire: Wire, sharer: Sharer, stream: str, link: Link) -> None:
    added = add(link, stream, 2)
    first = wire.produce(sharer.topic, batch(b"a", b"b", b"c")).base_offset
    answer = sharer.fetch(0)
    assert acquired(answer) == [(added[0], added[0], 1), (added[1], added[1], 1), (first, first + 2, 1)]
    assert values(answer) == [b"v0", b"v1", b"a", b"b", b"c"]
    assert codes(sharer.acknowledge({0: [(added[0], added[0], [ACCEPT]), (first, first + 2, [ACCEPT])]})) == {0: 0}
    assert [each["message_id"] for each in link.xpending_range(stream, sharer.group, "-", "+", 10)] == [id_of(added[1])]


def test_two_entries_a_day_apart_are_two_ranges(sharer: Sharer, stream: str, link: Link) -> None:
    added = [offset_at(link.xadd(stream, {"v": "x"}, id=f"{1 + day * DAY_MS}-0").encode()) for day in range(2)]
    assert acquired(sharer.fetch(0)) == [(offset, offset, 1) for offset in added]
    assert codes(sharer.fetch(acks={0: [(added[0], added[1], [ACCEPT])]})) == {0: Code.INVALID_RECORD_STATE}
    assert codes(sharer.fetch(acks={0: [(offset, offset, [ACCEPT]) for offset in added]})) == {0: 0}


def test_what_another_member_has_cannot_be_acknowledged(
    sharer: Sharer, second: Sharer, stream: str, link: Link
) -> None:
    added = add(link, stream, 2)
    sharer.fetch(0, records=1)
    second.fetch(0, records=1)
    late = sharer.acknowledge({0: [(offset, offset, [ACCEPT]) for offset in added]})
    assert codes(late) == {0: Code.INVALID_RECORD_STATE}
    assert link.xpending(stream, sharer.group)["pending"] == 2


@pytest.mark.parametrize("event", ["program", "producer", "release", "session", "connection", "xack"])
def test_a_waiting_fetch_is_woken(
    running: Server, wire: Wire, sharer: Sharer, second: Sharer, stream: str, link: Link, event: str
) -> None:
    [offset] = add(link, stream, 1)
    second.fetch(0)
    if event in {"program", "producer", "xack"}:
        second.acknowledge({0: [(offset, offset, [ACCEPT])]})
    sharer.fetch(0)
    thread, found = waiting(sharer)
    with Wire(running.kafka) as other:
        began = time.monotonic()
        match event:
            case "program" | "xack":
                link.xadd(stream, {"value": "new"})
            case "producer":
                other.produce(sharer.topic, batch(b"new"))
            case "release":
                second.acknowledge({0: [(offset, offset, [RELEASE])]})
            case "session":
                second.acknowledge({}, epoch=-1)
            case _:
                second.wire.close()
        thread.join()
    answer, ended = found
    assert len(acquired(answer)) == 1
    assert ended - began < 1.0, "milliseconds, on a free machine"  # type: ignore[operator]


def test_a_record_is_delivered_five_times(sharer: Sharer, stream: str, link: Link) -> None:
    [offset] = add(link, stream, 1)
    counts = []
    sharer.fetch(0, records=0)
    while got := acquired(sharer.fetch()):
        counts += [count for _, _, count in got]
        assert codes(sharer.acknowledge({0: [(offset, offset, [RELEASE])]})) == {0: 0}
    assert counts == [1, 2, 3, 4, 5]
    assert link.xlen(stream) == 1
    assert link.xpending(stream, sharer.group)["pending"] == 0


def test_a_program_takes_released_entries_and_its_own_are_taken_after_the_lock(
    wire: Wire, sharer: Sharer, stream: str, link: Link
) -> None:
    added = add(link, stream, 2)
    configure(wire, sharer.group, share_record_lock_duration_ms=15_000)
    sharer.fetch(0, records=1)
    sharer.acknowledge({0: [(added[0], added[0], [RELEASE])]})
    [pending] = link.xpending_range(stream, sharer.group, "-", "+", 10)
    assert (pending["consumer"], pending["times_delivered"]) == (RELEASED, 1)
    assert [entry for entry, _ in link.xautoclaim(stream, sharer.group, "program", 15_000)[1]] == [id_of(added[0])]
    assert acquired(sharer.fetch(records=1)) == [(added[1], added[1], 1)]
    # The program ends: let the time of its lock pass.
    link.xclaim(stream, sharer.group, "program", 0, [id_of(added[0])], idle=15_000, justid=True)
    assert acquired(sharer.fetch(wait_ms=5_000)) == [(added[0], added[0], 3)]


def test_kinds_of_groups_exclude_each_other(wire: Wire, sharer: Sharer, member: MakeMember, topic: str) -> None:
    with pytest.raises(AssertionError):
        member().join()
    classic = member(group=f"{topic}-classic").join()
    classic.read(0)
    other = Sharer(wire, f"{topic}-classic", topic)
    assert other.beat().error_code == Code.GROUP_ID_NOT_FOUND
    assert parts(other.fetch(0))[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION, "it takes nothing of that group"


def test_offsets_are_described_altered_and_deleted(wire: Wire, sharer: Sharer, stream: str, link: Link) -> None:
    added = add(link, stream, 4)
    sharer.fetch(0, records=3)
    sharer.acknowledge({0: [(added[0], added[0], [ACCEPT])]})

    def described() -> tuple[int, int]:
        request = m.DescribeShareGroupOffsetsRequest
        asked = request.DescribeShareGroupOffsetsRequestGroup(group_id=sharer.group, topics=None)
        [group] = wire.ask(request(groups=[asked]), 1).groups
        [part] = group.topics[0].partitions
        return part.start_offset, part.lag

    assert described() == (added[1], 3)
    sharer.acknowledge({}, epoch=-1)
    sharer.beat(-1)
    alter = m.AlterShareGroupOffsetsRequest
    part = alter.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=added[2])
    topics = [alter.AlterShareGroupOffsetsRequestTopic(topic_name=sharer.topic, partitions=[part])]
    answer = wire.ask(alter(group_id=sharer.group, topics=topics), 0)
    assert answer.error_code == answer.responses[0].partitions[0].error_code == 0, answer
    assert described() == (added[2], 2)
    again = Sharer(wire, sharer.group, sharer.topic)
    again.beat()
    assert acquired(again.fetch(0)) == [(offset, offset, 1) for offset in added[2:]]
    again.acknowledge({}, epoch=-1)
    again.beat(-1)
    delete = m.DeleteShareGroupOffsetsRequest
    named = [delete.DeleteShareGroupOffsetsRequestTopic(topic_name=sharer.topic)]
    answer = wire.ask(delete(group_id=sharer.group, topics=named), 0)
    assert answer.responses[0].error_code == 0, answer
    assert link.xinfo_groups(stream) == []


def test_a_deleted_group_has_no_redis_group(wire: Wire, sharer: Sharer, stream: str, link: Link) -> None:
    add(link, stream, 1)
    sharer.fetch(0)
    sharer.acknowledge({}, epoch=-1)
    sharer.beat(-1)
    [deleted] = wire.ask(m.DeleteGroupsRequest(groups_names=[sharer.group]), 2).results
    assert deleted.error_code == 0
    assert link.xinfo_groups(stream) == []
    assert not link.exists(f"{{{stream}}}:groups")


class Program(threading.Thread):
    """Reads with XREADGROUP, acknowledges, and takes over what is released, until it is stopped."""

    def __init__(self, url: str, stream: str, group: str) -> None:
        super().__init__()
        self.done: list[int] = []
        self.stopping = threading.Event()
        self._url, self._stream, self._group = url, stream, group

    def run(self) -> None:
        chance = random.Random(1)
        with redis.Redis.from_url(self._url, decode_responses=True) as link:
            while not self.stopping.is_set():
                count = chance.randint(1, 30)
                found = link.xreadgroup(self._group, "program", {self._stream: ">"}, count=count, block=10)
                self._finish(link, [entry for entry, _ in found[0][1]] if found else [])
                self._finish(
                    link,
                    [entry for entry, _ in link.xautoclaim(self._stream, self._group, "program", 30_000, count=5)[1]],
                )

    def _finish(self, link: Link, entries: list[str]) -> None:
        if entries:
            assert link.xack(self._stream, self._group, *entries) == len(entries)
            self.done += [offset_at(entry.encode()) for entry in entries]


class Librdkafka(threading.Thread):
    """A ShareConsumer that acknowledges each record, and now and then releases it at its first delivery."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        super().__init__()
        self.done: list[int] = []
        self.wrong: list[object] = []
        self.stopping = threading.Event()
        self._chance = random.Random(seed)
        self._consumer = ShareConsumer(
            {"bootstrap.servers": bootstrap, "group.id": topic, "share.acknowledgement.mode": "explicit"}
        )
        self._consumer.subscribe([topic])

    def run(self) -> None:
        while not self.stopping.is_set():
            messages = [each for each in self._consumer.poll(0.1) or () if each.error() is None]
            for message in messages:
                again = message.delivery_count() == 1 and self._chance.random() < 0.05
                kind = AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT
                self._consumer.acknowledge(message, kind)
                if not again:
                    self.done.append(message.offset() or 0)
            if messages:
                self.wrong += [error for error in self._consumer.commit_sync().values() if error is not None]
        self._consumer.close()


def test_librdkafka_and_programs_share_the_work(
    running: Server, wire: Wire, topic: str, stream: str, link: Link
) -> None:
    """Entries of a producer, with neighboring offsets, and of a program."""
    configure(wire, topic, share_auto_offset_reset="earliest")
    workers = [Librdkafka(running.kafka, topic, seed) for seed in range(2)]
    for worker in workers:
        worker.start()
    wait_for(lambda: bool(link.exists(stream) and link.xinfo_groups(stream)), "the group")
    program = Program(running.storage, stream, topic)
    program.start()
    added: list[int] = []
    try:
        for round_number in range(40):
            first = wire.produce(topic, batch(*[b"x" * 100] * 50)).base_offset
            added += range(first, first + 50)
            added += [offset_at(link.xadd(stream, {"value": str(round_number)}).encode()) for _ in range(10)]
        wait_for(lambda: len(program.done) + sum(len(worker.done) for worker in workers) >= len(added), "all entries")
        wait_for(lambda: link.xpending(stream, topic)["pending"] == 0, "all acknowledgements")
    finally:
        program.stopping.set()
        for worker in workers:
            worker.stopping.set()
        program.join()
        for worker in workers:
            worker.join()
    assert not [worker.wrong for worker in workers if worker.wrong]
    done = Counter(program.done)
    for worker in workers:
        done.update(worker.done)
    assert sorted(done) == sorted(added)
    assert set(done.values()) == {1}
    assert program.done
    assert all(worker.done for worker in workers)
