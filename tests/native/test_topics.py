"""Native topics as such: offsets by time, retention, deletion, groups that are deleted, partitions that are added."""

import time

import pytest
import redis
from tests.harness.wire import Wire, batch, opened

from headrace.kafka.errors import Code
from headrace.protocol.messages import DeleteGroupsRequest, OffsetForLeaderEpochRequest
from headrace.storage.layout.native import offset_at
from headrace.testing import Server, server

from .conftest import Link, MakeMember


def test_an_empty_topic(topic: str, wire: Wire) -> None:
    assert [wire.offset(topic, special).offset for special in (-1, -2, -3)] == [0, 0, -1]
    assert wire.offset(topic, 0).offset == -1
    answer = wire.fetch(topic, 0)
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 0, 0)


def test_a_never_trimmed_topic_starts_at_0_and_ends_behind_its_last_id(
    topic: str, stream: str, link: Link, wire: Wire
) -> None:
    for entry_id in ("976562-511", "1205632705-203", "1234567890123-5"):
        link.xadd(stream, {"value": entry_id}, id=entry_id)
    assert wire.offset(topic, -2).offset == 0
    assert wire.offset(topic, -1).offset == (1234567890123 << 10 | 5) + 1
    found = opened(wire.fetch(topic, 0, partition_max_bytes=1 << 20).records)
    assert [record.offset for record in found] == [999_999_999, 1_234_567_890_123, 1234567890123 << 10 | 5]
    answer = wire.fetch(topic, 5)
    assert (answer.log_start_offset, answer.high_watermark) == (0, (1234567890123 << 10 | 5) + 1)


@pytest.mark.parametrize("records", [0, 1])
@pytest.mark.parametrize("beyond", [1, 3_600_000 << 10, 1 << 62])
def test_records_beyond_the_log_end_cannot_be_deleted(
    topic: str, stream: str, link: Link, wire: Wire, records: int, beyond: int
) -> None:
    """A log that began after its end could never return its next records."""
    for _ in range(records):
        link.xadd(stream, {"value": "x"})
    end = wire.offset(topic, -1).offset
    assert wire.delete_records(topic, end + beyond) == (Code.OFFSET_OUT_OF_RANGE, -1)
    offset = wire.produce(topic, batch(b"next")).base_offset
    assert wire.offset(topic, -2).offset == 0
    assert [record.offset for record in opened(wire.fetch(topic, offset).records)] == [offset]
    assert wire.delete_records(topic, offset + 1) == wire.delete_records(topic, -1) == (0, offset + 1)


def test_the_end_for_lost_record_checks_is_read_from_redis(topic: str, stream: str, link: Link, wire: Wire) -> None:
    """Otherwise a client with newer records would return to the end that the other broker knows."""
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    one = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[asked])
    for _ in range(30):
        end = offset_at(link.xadd(stream, {"value": "x"}).encode()) + 1
        [found] = wire.ask(OffsetForLeaderEpochRequest(topics=[one]), 4).topics[0].partitions
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, end)


def test_a_partition_that_a_client_names_often_is_asked_for_once(topic: str, link: Link, wire: Wire) -> None:
    def asked() -> int:
        return int(link.info("commandstats")["cmdstat_evalsha"]["calls"])

    named = [OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)] * 500
    one = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=named)
    before = asked()
    [found] = wire.ask(OffsetForLeaderEpochRequest(topics=[one, one]), 4).topics[:1]
    assert [(each.error_code, each.end_offset) for each in found.partitions] == [(0, 0)] * 500
    assert asked() - before < 100, "the server does other things, too"


def test_offsets_by_time(topic: str, stream: str, link: Link, wire: Wire) -> None:
    offsets = [
        offset_at(link.xadd(stream, {"value": "x"}, id=f"{1_000 * number}-0").encode()) for number in range(1, 10)
    ]
    for timestamp, expected in ((0, 0), (1_000, 0), (1_001, 1), (5_000, 4), (8_999, 8), (9_000, 8)):
        found = wire.offset(topic, timestamp)
        assert (found.offset, found.timestamp) == (offsets[expected], 1_000 * (expected + 1))
    assert wire.offset(topic, 9_001).offset == -1
    assert (wire.offset(topic, -3).offset, wire.offset(topic, -3).timestamp) == (offsets[8], 9_000)


def test_times_are_those_of_the_records_not_of_their_ids(topic: str, wire: Wire) -> None:
    first = wire.produce(topic, batch(b"a", b"b", b"c", timestamp=5_000, step=1_000)).base_offset
    assert [wire.offset(topic, timestamp).offset for timestamp in (0, 5_001, 7_000, 7_001)] == [
        first,
        first + 1,
        first + 2,
        -1,
    ]
    now = time.time_ns() // 1_000_000
    ahead = wire.produce(topic, batch(b"ahead", timestamp=now + 600_000)).base_offset
    wire.produce(topic, batch(b"behind", timestamp=now - 600_000))
    assert wire.offset(topic, now + 500_000).offset == ahead
    assert wire.offset(topic, -3).offset == ahead


def test_log_append_time(running: Server, wire: Wire, request: pytest.FixtureRequest) -> None:
    topic = wire.create(
        f"append-time-{request.node.callspec.id}", headrace_storage="native", message_timestamp_type="LogAppendTime"
    )
    before = time.time_ns() // 1_000_000
    wire.produce(topic, batch(b"a", timestamp=5))
    [found] = opened(wire.fetch(topic, 0).records)
    assert before - 1 <= found.timestamp <= before + 60_000


def test_retention_by_time_and_bytes() -> None:
    with server(log_retention_check_interval_ms=50, num_partitions=1) as mine, Wire(mine.kafka) as wire:
        wire.create("short", headrace_storage="native", retention_ms=60_000)
        wire.create("small", headrace_storage="native", retention_bytes=1_000)

        with redis.Redis.from_url(mine.storage, decode_responses=True) as link:
            link.xadd("headrace:short:0", {"value": "old"}, id="5000-0")
            new = wire.produce("short", batch(b"new")).base_offset
            for _ in range(5):
                wire.produce("small", batch(*[b"v" * 90] * 10))
            deadline = time.monotonic() + 60
            while link.xlen("headrace:short:0") > 1 or link.xlen("headrace:small:0") > 12:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert link.xlen("headrace:small:0") >= 8
        assert wire.offset("short", -2).offset == (5_000 << 10) + 1
        assert wire.fetch("short", 0).error_code == Code.OFFSET_OUT_OF_RANGE
        assert [record.offset for record in opened(wire.fetch("short", (5_000 << 10) + 1).records)] == [new]


def test_deleting_a_topic_deletes_its_stream(topic: str, stream: str, link: Link, wire: Wire) -> None:
    wire.produce(topic, batch(b"x"))
    assert link.exists(stream)
    wire.delete(topic)
    assert not [key for key in link.keys("*") if topic in key]
    assert wire.fetch(topic, 0).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def delete_group(wire: Wire, group: str) -> int:
    code: int = wire.ask(DeleteGroupsRequest(groups_names=[group]), 2).results[0].error_code
    return code


def test_a_deleted_group_takes_its_redis_group_along_unless_a_program_is_in_it(
    topic: str, stream: str, link: Link, member: MakeMember, wire: Wire
) -> None:
    end = wire.produce(topic, batch(b"x")).base_offset + 1
    for with_program in (False, True):
        reader = member().join()
        reader.read(0)
        reader.commit(end)
        reader.leave()
        if with_program:
            link.xgroup_createconsumer(stream, topic, "program")
        assert delete_group(wire, topic) == 0
        assert bool(link.xinfo_groups(stream)) == with_program
    assert reader.committed() == end, "the Redis group says so"


def test_another_number_of_bits(running: Server, link: Link, wire: Wire, request: pytest.FixtureRequest) -> None:
    topic = wire.create(f"twelve-{request.node.callspec.id}", headrace_storage="native", offset_sequence_bits="12")
    link.xadd(f"headrace:{topic}:0", {"value": "x"}, id="5000-3000")
    [found] = opened(wire.fetch(topic, 0).records)
    assert found.offset == 5000 << 12 | 3000
    produced = wire.produce(topic, batch(b"y")).base_offset
    assert abs((produced >> 12) - time.time_ns() // 1_000_000) < 60_000
