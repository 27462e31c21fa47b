"""Where the plain recipe would lose or repeat records: lost answers, new owners, seeks, crashes."""

import time

import pytest
import redis
from confluent_kafka import Message, Producer
from tests.harness.member import Member, commit, position
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire, batch, fetch_request, opened

from headrace.kafka.errors import Code
from headrace.storage.layout.native import id_of, offset_at
from headrace.testing import Server, server

from .conftest import Link, MakeMember, add, last_delivered, offsets_of

# Lost answers


def test_an_answer_that_was_lost_is_fetched_again(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 5)
    reader = member().join()
    assert offsets_of(reader, 0) == offsets
    assert offsets_of(reader, 0) == offsets
    more = add(link, stream, 2, 3_000)
    assert offsets_of(reader, offsets[-1] + 1) == more
    assert offsets_of(reader, offsets[-1] + 1) == more
    assert link.xpending(stream, topic)["pending"] == 7


def test_a_client_that_disconnects_during_a_fetch_loses_nothing(
    running: Server, topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 500)
    reader = member().join()
    at, found = 0, list[int]()
    while at <= offsets[-1]:
        for _ in range(3):
            with Wire(running.kafka, client_id=f"{topic}-client-1") as hasty:
                hasty.send(fetch_request([(topic, 0, at)], partition_max_bytes=2_000), 12)
        records = reader.read(at, partition_max_bytes=2_000)
        found += [record.offset for record in records]
        at = found[-1] + 1
    assert found == offsets


# Owners that change


def test_two_members_share_and_hand_over(
    running: Server, topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 6)
    first = member().join()
    assert offsets_of(first, 0) == offsets
    first.commit(offsets[2])
    second = member()
    second.send_join()
    first.send_join()
    leads = first.joined()
    second.joined()
    first.send_sync({second.member_id: {topic: [0]}} if leads.leader == first.member_id else None)
    second.send_sync({second.member_id: {topic: [0]}} if leads.leader == second.member_id else None)
    first.synced()
    second.synced()
    start = second.committed()
    assert start == offsets[2]
    assert offsets_of(second, start) == offsets[2:]
    assert [one["name"] for one in link.xinfo_consumers(stream, topic)] == [second.member_id]
    # The one before is no member's any more: it reads without the group.
    assert offsets_of(first, offsets[4]) == offsets[4:]
    assert link.xpending(stream, topic)["pending"] == 4
    assert second.commit(offsets[-1] + 1) == 0
    assert link.xpending(stream, topic)["pending"] == 0


def test_a_member_that_rejoins_begins_at_the_committed_offset(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    assert offsets_of(reader, 0) == offsets
    reader.commit(offsets[1])
    reader.join()
    assert offsets_of(reader, reader.committed()) == offsets[1:]


def test_step_7_a_restart_loses_nothing(link: Link, running: Server) -> None:
    """Positions, members and what is pending are in Redis; the member goes on where it was."""
    with server(num_partitions=1, group_initial_rebalance_delay_ms=0) as mine, Wire(mine.kafka) as wire:
        wire.create("kept", headrace_storage="native")
        with redis.Redis.from_url(mine.storage, decode_responses=True) as own:
            offsets = add(own, "headrace:kept:0", 10)
        with Member(mine.kafka, "group", "kept", client_id="mine") as reader:
            reader.join()
            assert offsets_of(reader, 0) == offsets
            assert reader.commit(offsets[4], note="half") == 0
            generation, member_id = reader.generation, reader.member_id
        mine.kill()
        mine.start()
        with Member(mine.kafka, "group", "kept", client_id="mine") as reader, Wire(mine.kafka) as other:
            reader.generation, reader.member_id = generation, member_id
            assert reader.heartbeat() == 0
            assert position(reader.control, "group", "kept") == (offsets[4], "half")
            # It has read to the end and goes on there; or its last answer was lost and it asks for that again.
            assert offsets_of(reader, offsets[-1] + 1) == []
            assert offsets_of(reader, offsets[7]) == offsets[7:]
            new = other.produce("kept", batch(b"new")).base_offset
            assert offsets_of(reader, offsets[-1] + 1) == [new]
            assert reader.commit(new + 1) == 0
            assert reader.committed() == new + 1


# Seeks


def test_a_seek_back_reads_without_the_group_until_its_next(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 8)
    reader = member().join()
    assert offsets_of(reader, 0) == offsets
    reader.commit(offsets[6])
    assert offsets_of(reader, offsets[2]) == offsets[2:]
    assert last_delivered(link, stream, topic) == id_of(offsets[-1])
    assert link.xpending(stream, topic)["pending"] == 2
    assert reader.committed() == offsets[6]
    more = add(link, stream, 2, 5_000)
    assert offsets_of(reader, offsets[2]) == offsets[2:], "it ends where the group's next begins"
    assert offsets_of(reader, offsets[-1] + 1) == more
    assert link.xpending(stream, topic)["pending"] == 4


def test_a_seek_forward_moves_the_group_only_by_a_commit(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 8)
    reader = member().join()
    assert offsets_of(reader, 0, partition_max_bytes=1) == offsets[:1]
    before = last_delivered(link, stream, topic)
    more = add(link, stream, 4, 5_000)
    assert offsets_of(reader, more[1]) == more[1:]
    assert last_delivered(link, stream, topic) == before
    assert reader.committed() == offsets[0]
    assert reader.commit(more[2]) == 0
    assert last_delivered(link, stream, topic) == id_of(more[1]) or reader.committed() == more[2]
    assert reader.committed() == more[2]
    assert offsets_of(reader, more[2]) == more[2:]
    assert link.xpending(stream, topic)["pending"] == 2


def test_a_commit_that_goes_back_delivers_again(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    assert offsets_of(reader, 0) == offsets
    assert reader.commit(offsets[5]) == 0
    assert reader.commit(offsets[2]) == 0
    assert reader.committed() == offsets[2]
    assert offsets_of(reader, offsets[2]) == offsets[2:]
    assert reader.commit(offsets[-1] + 1) == 0
    assert link.xpending(stream, topic)["pending"] == 0


# Fetches without a member


def test_a_fetch_of_no_member_leaves_no_trace(topic: str, stream: str, link: Link, wire: Wire) -> None:
    offsets = add(link, stream, 4)
    answer = wire.fetch(topic, 0)
    assert [record.offset for record in opened(answer.records)] == offsets
    assert link.xinfo_groups(stream) == []


def test_two_groups_with_one_client_id_are_recorded_at_commit(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 4)
    one = member(group=f"{topic}-one", client_id="the-same").join()
    other = member(group=f"{topic}-other", client_id="the-same").join()
    for reader in (one, other):
        assert offsets_of(reader, 0) == offsets
    assert link.xinfo_groups(stream) == []
    assert one.commit(offsets[2]) == 0
    assert one.committed() == offsets[2]
    assert last_delivered(link, stream, one.group) == id_of(offsets[1]) or one.committed() == offsets[2]
    assert offsets_of(one, offsets[2]) == offsets[2:]
    assert other.committed() == -1


# Bounds


def test_pending_entries_are_bounded() -> None:
    with (
        server(num_partitions=1, group_initial_rebalance_delay_ms=0, headrace_native_max_pending=10) as mine,
        Wire(mine.kafka) as wire,
        Member(mine.kafka, "group", "much", client_id="mine") as reader,
    ):
        wire.create("much", headrace_storage="native")
        with redis.Redis.from_url(mine.storage, decode_responses=True) as own:
            offsets = add(own, "headrace:much:0", 50)
            reader.join()
            at, found = 0, list[int]()
            while len(found) < 50:
                found += offsets_of(reader, at, partition_max_bytes=300)
                at = found[-1] + 1
            assert found == offsets
            assert own.xpending("headrace:much:0", "group")["pending"] < 30
            assert reader.committed() == offsets[0]
            assert reader.commit(offsets[40]) == 0
            assert reader.committed() == offsets[40]
            assert own.xpending("headrace:much:0", "group")["pending"] == 0
            assert offsets_of(reader, offsets[40]) == offsets[40:]
            assert commit(wire, "other", "much", offsets[3]) == 0


@pytest.mark.parametrize("asked", [1 << 52, 1 << 61])
def test_an_offset_beyond_the_end_is_out_of_range(
    topic: str, stream: str, link: Link, member: MakeMember, wire: Wire, asked: int
) -> None:
    add(link, stream, 2)
    assert wire.fetch(topic, asked).error_code == Code.OFFSET_OUT_OF_RANGE
    assert member().join().fetch(asked).error_code == Code.OFFSET_OUT_OF_RANGE


# Crashes


def test_kill_9_of_the_server_loses_and_doubles_nothing() -> None:
    with server(num_partitions=1) as mine:
        with Wire(mine.kafka) as wire:
            wire.create("crash", headrace_storage="native")
        acknowledged: dict[bytes, int] = {}
        refused: list[object] = []

        def report(error: object, message: Message) -> None:
            value, offset = message.value(), message.offset()
            if error is not None or value is None or offset is None:
                refused.append(error)
            else:
                acknowledged[value] = offset

        producer = Producer(
            {"bootstrap.servers": mine.kafka, "enable.idempotence": True, "linger.ms": 1, "log_level": 2}
            | {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
        )
        sent = 0
        for turn in range(3):
            for _ in range(3_000):
                producer.produce("crash", b"%d" % sent, on_delivery=report)
                sent += 1
                producer.poll(0)
            if turn < 2:
                while len(acknowledged) < 3_000 * turn + 500:
                    producer.poll(0.01)
                mine.kill()
                mine.start()
        assert producer.flush(60) == 0
        assert refused == []
        with redis.Redis.from_url(mine.storage) as own:
            entries = own.xrange("headrace:crash:0")
        found = [(fields[b"value"], offset_at(entry)) for entry, fields in entries]
        assert [value for value, _ in found] == [b"%d" % number for number in range(sent)], "in order, once each"
        assert dict(found) == acknowledged, "where each was acknowledged"


def test_redis_killed_under_a_consumer() -> None:
    """Positions and what is pending survive with the append-only file; the member goes on without a restart."""
    options = {"appendonly": "yes", "appendfsync": "always"}
    with (
        RedisServer(options=options) as store,
        server(redis=store.url, num_partitions=1, group_initial_rebalance_delay_ms=0) as mine,
    ):
        with Wire(mine.kafka) as wire:
            wire.create("shaken", headrace_storage="native")
        with redis.Redis.from_url(store.url, decode_responses=True) as own:
            offsets = add(own, "headrace:shaken:0", 10)
        with Member(mine.kafka, "group", "shaken", client_id="mine") as reader:
            reader.join()
            assert offsets_of(reader, 0) == offsets
            assert reader.commit(offsets[3]) == 0
            store.kill()
            assert reader.fetch(offsets[-1] + 1).error_code == Code.KAFKA_STORAGE_ERROR
            store.start()
            with redis.Redis.from_url(store.url, decode_responses=True) as own:
                more = add(own, "headrace:shaken:0", 3, 5_000)
                deadline = time.monotonic() + 60
                while (answer := reader.fetch(offsets[-1] + 1)).error_code or not opened(answer.records):
                    assert time.monotonic() < deadline
                assert [record.offset for record in opened(answer.records)] == more
                assert reader.committed() == offsets[3]
                assert own.xpending("headrace:shaken:0", "group")["pending"] == 10
                # Waiting works again as well.
                reader.reader.send(fetch_request([("shaken", 0, more[-1] + 1)], max_wait_ms=10_000), 12)
                own.xadd("headrace:shaken:0", {"value": "woken"})
                answer = reader.reader.receive().responses[0].partitions[0]
                assert [record.value for record in opened(answer.records)] == [b"woken"]


def test_a_commit_after_a_seek_back_takes_the_group_back(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    """Also where a Redis program has moved the group, and no commit says that this one goes back."""
    offsets = add(link, stream, 8)
    link.xgroup_create(stream, topic, id_of(offsets[-1]))
    reader = member().join()
    assert reader.committed() == offsets[-1] + 1
    assert offsets_of(reader, offsets[-1] + 1) == []
    assert offsets_of(reader, offsets[2]) == offsets[2:]
    assert reader.commit(offsets[4]) == 0
    assert reader.committed() == offsets[4]
    assert offsets_of(reader, offsets[4]) == offsets[4:]
    assert link.xpending(stream, topic)["pending"] == 4
