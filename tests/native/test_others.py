"""What others do to the Redis Streams of native topics: trim, delete, destroy groups, write something else."""

import redis
from tests.harness.member import position
from tests.harness.wire import Wire, batch, fetch_request, opened

from headrace.kafka.errors import Code
from headrace.storage.layout.native import id_of, offset_at
from headrace.testing import Server, server

from .conftest import Link, MakeMember, add, offsets_of


def test_a_trimmed_entry_pins_nothing(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    offsets_of(reader, 0)
    link.xtrim(stream, minid=id_of(offsets[2]), approximate=False)
    assert reader.committed() == offsets[2]
    link.xdel(stream, id_of(offsets[2]), id_of(offsets[3]))
    assert reader.committed() == offsets[4]
    reader.leave()
    second = member().join()
    assert offsets_of(second, second.committed()) == offsets[4:]
    assert second.commit(offsets[-1] + 1) == 0
    assert link.xpending(stream, topic)["pending"] == 0


def test_xtrim_of_read_entries_disturbs_no_consumer(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    assert offsets_of(reader, 0) == offsets
    assert offsets_of(reader, offsets[-1] + 1) == []
    link.xtrim(stream, maxlen=0, approximate=False)
    more = add(link, stream, 2, 5_000)
    assert offsets_of(reader, offsets[-1] + 1) == more


def test_xtrim_of_what_was_not_read_is_an_offset_out_of_range(
    topic: str, stream: str, link: Link, member: MakeMember, wire: Wire
) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    assert offsets_of(reader, 0, partition_max_bytes=1) == offsets[:1]
    more = add(link, stream, 4, 5_000)
    link.xtrim(stream, maxlen=2, approximate=False)
    assert wire.fetch(topic, offsets[1]).error_code == Code.OFFSET_OUT_OF_RANGE
    start = wire.offset(topic, -2).offset
    assert start == more[2]
    assert offsets_of(reader, start) == more[2:]


def test_xdel_in_the_middle_is_a_gap(topic: str, stream: str, link: Link, member: MakeMember, wire: Wire) -> None:
    offsets = add(link, stream, 6)
    link.xdel(stream, id_of(offsets[2]))
    kept = [offset for offset in offsets if offset != offsets[2]]
    reader = member().join()
    assert offsets_of(reader, wire.offset(topic, -2).offset) == kept
    assert [record.offset for record in opened(wire.fetch(topic, offsets[2]).records)] == offsets[3:]


def test_a_group_that_was_destroyed_is_made_again(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    assert offsets_of(reader, 0, partition_max_bytes=1) == offsets[:1]
    reader.commit(offsets[1])
    link.xgroup_destroy(stream, topic)
    assert reader.committed() == offsets[1]
    assert offsets_of(reader, offsets[1]) == offsets[1:]
    link.xgroup_destroy(stream, topic)
    assert reader.commit(offsets[3]) == 0
    assert reader.committed() == offsets[3]


def test_a_lost_stream_begins_again(topic: str, stream: str, link: Link, member: MakeMember, wire: Wire) -> None:
    offsets = add(link, stream, 4)
    reader = member().join()
    assert offsets_of(reader, 0) == offsets
    link.delete(stream)
    assert reader.fetch(offsets[-1] + 1).error_code in (Code.NONE, Code.OFFSET_OUT_OF_RANGE)
    new = wire.produce(topic, batch(b"new")).base_offset
    assert new > offsets[-1]
    assert offsets_of(reader, wire.offset(topic, -2).offset) == [new]
    assert reader.commit(new + 1) == 0


def test_a_key_that_is_no_longer_a_stream_is_reported_and_repaired(
    topic: str, stream: str, link: Link, member: MakeMember, wire: Wire
) -> None:
    add(link, stream, 2)
    reader = member().join()
    reader.read(0)
    link.delete(stream)
    link.set(stream, "nonsense")
    assert wire.produce(topic, batch(b"x")).error_code == Code.KAFKA_STORAGE_ERROR
    assert wire.fetch(topic, 0).error_code == Code.KAFKA_STORAGE_ERROR
    assert reader.fetch(0).error_code == Code.KAFKA_STORAGE_ERROR
    assert reader.commit(5) == 0
    assert position(reader.control, topic, topic)[0] == 5
    link.delete(stream)
    new = wire.produce(topic, batch(b"x")).base_offset
    assert new >= 0
    assert offsets_of(reader, new) == [new]


def test_metadata_next_to_the_stream_may_be_lost(topic: str, stream: str, link: Link, wire: Wire) -> None:
    first = wire.produce(topic, batch(b"one")).base_offset
    link.delete(f"{{{stream}}}:state", f"{{{stream}}}:groups", f"{{{stream}}}:producers")
    answer = wire.produce(topic, batch(b"two"))
    for _ in range(50):
        if answer.error_code == 0:
            break
        assert answer.error_code == Code.KAFKA_STORAGE_ERROR
        answer = wire.produce(topic, batch(b"two"))
    assert answer.base_offset > first
    assert [record.value for record in opened(wire.fetch(topic, 0).records)] == [b"one", b"two"]


def test_entries_without_an_offset_are_passed_over_and_reported(
    running: Server, topic: str, stream: str, link: Link, member: MakeMember, wire: Wire
) -> None:
    link.xadd(stream, {"value": "a"}, id="1000-0")
    for sequence in range(1_024, 1_030):
        link.xadd(stream, {"value": "unfit"}, id=f"1000-{sequence}")
    link.xadd(stream, {"value": "b"}, id="1001-0")
    reader = member().join()
    wanted = [1000 << 10, 1001 << 10]
    assert offsets_of(reader, 0) == wanted
    assert [record.offset for record in opened(wire.fetch(topic, 0).records)] == wanted
    assert [record.offset for record in opened(wire.fetch(topic, wanted[0] + 1).records)] == wanted[1:]
    running.logged("entries skipped")
    assert reader.commit(wanted[1] + 1) == 0
    assert link.xpending(stream, topic)["pending"] == 0


def test_nothing_but_entries_without_an_offset(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    for sequence in range(1_024, 1_300):
        link.xadd(stream, {"value": "unfit"}, id=f"1000-{sequence}")
    reader = member().join()
    assert offsets_of(reader, 0) == []
    add(link, stream, 1, 2_000)
    assert offsets_of(reader, 0) == [2000 << 10]


def test_entries_removed_after_the_read_ones_are_reported_later(
    topic: str, stream: str, link: Link, member: MakeMember, wire: Wire
) -> None:
    offsets = [offset_at(link.xadd(stream, {"value": "v" * 900}, id=f"{1 + n}-0").encode()) for n in range(40)]
    reader = member().join()
    read = offsets_of(reader, 0, partition_max_bytes=5_000)
    assert read == offsets[: len(read)]
    pending = link.xpending(stream, topic)["pending"]
    link.xtrim(stream, maxlen=3, approximate=False)
    at = read[-1] + 1
    while (answer := reader.fetch(at, partition_max_bytes=5_000)).error_code == 0:
        found = [record.offset for record in opened(answer.records) if record.offset >= at]
        assert found == offsets[len(read) : len(read) + len(found)], "nothing is passed over in silence"
        assert found
        read += found
        at = found[-1] + 1
    assert answer.error_code == Code.OFFSET_OUT_OF_RANGE
    assert len(read) >= pending
    start = wire.offset(topic, -2).offset
    assert offsets_of(reader, start) == offsets[-3:]


def test_a_server_starts_where_a_key_is_no_stream_and_heals_with_it() -> None:
    with server(num_partitions=1) as mine:
        with Wire(mine.kafka) as wire:
            wire.create("odd", headrace_storage="native")
            wire.create("fine", headrace_storage="native")
        with redis.Redis.from_url(mine.storage, decode_responses=True) as own:
            own.set("headrace:odd:0", "nonsense")
            mine.restart()
        with Wire(mine.kafka) as wire, redis.Redis.from_url(mine.storage, decode_responses=True) as own:
            assert wire.produce("odd", batch(b"x")).error_code == Code.KAFKA_STORAGE_ERROR
            assert wire.fetch("odd", 0).error_code == Code.KAFKA_STORAGE_ERROR
            assert wire.offset("odd", -1).error_code == Code.KAFKA_STORAGE_ERROR
            assert wire.produce("fine", batch(b"x")).error_code == 0
            mine.logged("no Redis Stream")
            own.delete("headrace:odd:0")
            new = wire.produce("odd", batch(b"x")).base_offset
            assert [record.offset for record in opened(wire.fetch("odd", 0).records)] == [new]
            # Waiting fetches are woken again, too.
            wire.send(fetch_request([("odd", 0, new + 1)], max_wait_ms=20_000), 12)
            own.xadd("headrace:odd:0", {"value": "woken"})
            answer = wire.receive().responses[0].partitions[0]
            assert [record.value for record in opened(answer.records)] == [b"woken"]
