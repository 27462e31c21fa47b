"""The Kafka consumer-group workflow on a native topic, followed step by step in Redis."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis
from tests.harness.member import commit, position
from tests.harness.wire import fetch_request, opened

from headrace.storage.layout.native import id_before, id_of, offset_at
from headrace.testing import Server

from .conftest import Link, MakeMember, add


class Monitor:
    """MONITOR on the server's Redis: which commands named a stream, by scripts or not."""

    def __init__(self, url: str, stream: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._marker = redis.Redis.from_url(url, decode_responses=True)
        self._monitor: Any = cast("Any", self._client).monitor()
        self._monitor.__enter__()
        self._stream = stream
        self._marks = 0

    def close(self) -> None:
        self._monitor.__exit__(None, None, None)
        self._client.close()
        self._marker.close()

    def seen(self) -> list[str]:
        """The commands on the stream since the last call, in upper case; scripts by the commands they run."""
        self._marks += 1
        mark = f"mark-{self._marks}"
        self._marker.echo(mark)
        found: list[str] = []
        for entry in self._monitor.listen():
            text = entry["command"]
            if text.startswith("ECHO") and mark in text:
                return found
            if self._stream in text.split() and not text.startswith(("EVALSHA", "XREAD COUNT")):
                words = text.upper().split()
                found.append(" ".join(words[:2]) if words[0] in {"XINFO", "XGROUP"} else words[0])
        return found


@pytest.fixture
def monitor(running: Server, stream: str) -> Iterator[Callable[[], list[str]]]:
    """Answers which commands touched the topic's stream since it was asked last."""
    watching = Monitor(running.storage, stream)
    yield watching.seen
    watching.close()


def group_of(link: Link, stream: str, name: str) -> dict[str, object] | None:
    if not link.exists(stream):
        return None
    return next((group for group in link.xinfo_groups(stream) if group["name"] == name), None)


def test_step_1_joining_syncing_and_beating_touch_no_stream(
    topic: str, stream: str, link: Link, member: MakeMember, monitor: Callable[[], list[str]]
) -> None:
    add(link, stream, 3)
    monitor()
    joined = member().join()
    assert joined.heartbeat() == 0
    assert {*monitor()} <= {"EXISTS", "XINFO STREAM"}, "whoever waits for entries may still look at those"
    assert group_of(link, stream, topic) is None


def test_step_2_offset_fetch_reads_xinfo_and_never_creates_the_group(
    topic: str, stream: str, link: Link, member: MakeMember, monitor: Callable[[], list[str]]
) -> None:
    add(link, stream, 3)
    monitor()
    joined = member().join()
    assert joined.committed() == -1
    seen = monitor()
    assert "XINFO GROUPS" in seen
    assert not {name for name in seen if name.startswith("XGROUP") or name in {"XREADGROUP", "XADD", "XACK"}}
    assert group_of(link, stream, topic) is None


def test_step_2_a_group_at_0_with_nothing_pending_has_no_position(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    add(link, stream, 3)
    link.xgroup_create(stream, topic, "0-0")
    assert member().join().committed() == -1


def test_step_2_a_group_that_a_redis_program_moved(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 5)
    link.xgroup_create(stream, topic, "0-0")
    joined = member().join()
    taken = link.xreadgroup(topic, "program", {stream: ">"}, count=3)[0][1]
    assert joined.committed() == offsets[0], "the lowest pending entry"
    link.xack(stream, topic, taken[0][0])
    assert joined.committed() == offsets[1]
    link.xack(stream, topic, *(entry for entry, _ in taken))
    assert joined.committed() == offsets[2] + 1, "nothing pending: behind the last delivered"
    link.xgroup_setid(stream, topic, id_of(offsets[0]))
    assert joined.committed() == offsets[0] + 1


@pytest.mark.parametrize("nth", [0, 1, 3, 5])
def test_step_2_after_a_commit_the_answer_is_exactly_that(
    topic: str, stream: str, link: Link, member: MakeMember, nth: int
) -> None:
    offsets = add(link, stream, 5)
    reader = member().join()
    assert len(reader.read(0)) == 5
    for offset in ([*offsets, offsets[-1] + 1][nth], offsets[0] + 7):
        assert reader.commit(offset, note="so far") == 0
        assert position(reader.control, topic, topic) == (offset, "so far")


@pytest.mark.parametrize("nth", [0, 2, 4])
def test_step_3_the_first_fetch_makes_the_group_just_before_its_offset(
    topic: str, stream: str, link: Link, member: MakeMember, monitor: Callable[[], list[str]], nth: int
) -> None:
    offsets = add(link, stream, 5)
    monitor()
    reader = member().join()
    found = reader.read(offsets[nth])
    assert [record.offset for record in found] == offsets[nth:], "the record at that very offset is served"
    seen = monitor()
    assert "XGROUP CREATE" in seen
    assert "XREADGROUP" in seen


def test_step_3_at_offset_0_the_group_is_made_at_0_0(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    reader = member().join()
    assert reader.read(0) == []
    found = group_of(link, stream, topic)
    assert found is not None
    assert found["last-delivered-id"] == "0-0"
    assert reader.committed() == -1


def test_step_3_the_group_is_at_the_previous_id(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    link.xadd(stream, {"value": "a"}, id="5-1")
    reader = member().join()
    assert reader.read((5 << 10) + 2) == []
    found = group_of(link, stream, topic)
    assert found is not None
    assert found["last-delivered-id"] == id_before((5 << 10) + 2) == "5-1"


def test_step_3_a_group_that_exists_keeps_its_position(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 5)
    link.xgroup_create(stream, topic, id_of(offsets[1]))
    reader = member().join()
    start = reader.committed()
    assert start == offsets[1] + 1
    assert [record.offset for record in reader.read(start)] == offsets[2:]


def test_step_4_later_fetches_read_on(
    topic: str, stream: str, link: Link, member: MakeMember, monitor: Callable[[], list[str]]
) -> None:
    offsets = add(link, stream, 3)
    reader = member().join()
    assert len(reader.read(0)) == 3
    monitor()
    more = add(link, stream, 2, 5_000)
    assert [record.offset for record in reader.read(offsets[-1] + 1)] == more
    seen = [name for name in monitor() if name not in {"XADD", "XINFO STREAM", "EXISTS"}]
    taken, weighed = {"XPENDING", "XREADGROUP"}, {"XINFO CONSUMERS", "XRANGE"}
    assert set(seen) == taken | weighed, "what another broker may have taken; how large what follows is; and that"
    [consumer] = link.xinfo_consumers(stream, topic)
    assert (consumer["name"], consumer["pending"]) == (reader.member_id, 5)


def test_step_4_what_an_answer_has_no_room_for_goes_out_with_the_next(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = [offset_at(link.xadd(stream, {"value": "v" * 1_000}).encode()) for _ in range(100)]
    reader = member().join()
    at, found, fetches = 0, list[int](), 0
    while len(found) < 100:
        records = reader.read(at, partition_max_bytes=3_000)
        assert 1 <= len(records) <= 3
        found += [record.offset for record in records]
        at, fetches = found[-1] + 1, fetches + 1
    assert found == offsets
    assert fetches < 60
    assert link.xpending(stream, topic)["pending"] == 100


def test_step_5_a_commit_acknowledges_what_members_were_given_below_it(
    topic: str, stream: str, link: Link, member: MakeMember, monitor: Callable[[], list[str]]
) -> None:
    offsets = add(link, stream, 6)
    reader = member().join()
    reader.read(0)
    monitor()
    assert reader.commit(offsets[4]) == 0
    assert "XACK" in monitor()
    assert [entry["message_id"] for entry in link.xpending_range(stream, topic, "-", "+", 10)] == [
        id_of(offset) for offset in offsets[4:]
    ]
    found = group_of(link, stream, topic)
    assert found is not None
    assert found["last-delivered-id"] == id_of(offsets[-1])


def test_step_5_what_a_redis_program_holds_only_it_acknowledges(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 2)
    link.xgroup_create(stream, topic, "0-0")
    link.xreadgroup(topic, "program", {stream: ">"}, count=2)
    offsets += add(link, stream, 3, 2_000)
    reader = member().join()
    start = reader.committed()
    assert [record.offset for record in reader.read(start)] == offsets[2:], "no entry goes to both"
    assert reader.commit(offsets[-1] + 1) == 0
    pending = link.xpending_range(stream, topic, "-", "+", 10)
    assert [(entry["consumer"], entry["message_id"]) for entry in pending] == [
        ("program", id_of(offset)) for offset in offsets[:2]
    ]
    assert reader.committed() == offsets[0], "never past what is pending"
    link.xack(stream, topic, *(id_of(offset) for offset in offsets[:2]))
    assert reader.committed() == offsets[-1] + 1


def test_step_6_who_leaves_takes_its_consumer_along_and_the_group_stays(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 3)
    reader = member().join()
    reader.read(0)
    reader.commit(offsets[-1] + 1)
    members = f"headrace:group:{{default/{topic}}}:members"
    assert link.hexists(members, reader.member_id)
    reader.leave()
    assert not link.hexists(members, reader.member_id)
    assert link.xinfo_consumers(stream, topic) == []
    assert group_of(link, stream, topic) is not None
    assert member().join().committed() == offsets[-1] + 1


def test_step_6_a_consumer_with_pending_entries_stays_until_the_next_owner_has_them(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    offsets = add(link, stream, 4)
    first = member().join()
    assert len(first.read(0)) == 4
    first.commit(offsets[1])
    first.leave()
    assert [consumer["pending"] for consumer in link.xinfo_consumers(stream, topic)] == [3]

    second = member().join()
    start = second.committed()
    assert start == offsets[1]
    assert [record.offset for record in second.read(start)] == offsets[1:]
    assert [(one["name"], one["pending"]) for one in link.xinfo_consumers(stream, topic)] == [(second.member_id, 3)]


def test_a_waiting_fetch_is_woken_by_anybodys_xadd(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    reader = member().join()
    reader.read(0)
    reader.reader.send(fetch_request([(topic, 0, 0)], max_wait_ms=600_000), 12)
    link.xadd(stream, {"value": "now"})
    answer = reader.reader.receive()
    assert [record.value for record in opened(answer.responses[0].partitions[0].records)] == [b"now"]


def test_admin_tools_reset_a_group_without_members(topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 5)
    reader = member().join()
    reader.read(0)
    reader.commit(offsets[-1] + 1)
    reader.leave()
    for wanted in (offsets[1], offsets[3], 0, offsets[-1] + 1, offsets[2]):
        assert commit(reader.control, topic, topic, wanted) == 0
        assert position(reader.control, topic, topic)[0] == wanted
        again = member().join()
        assert [record.offset for record in again.read(wanted)] == [one for one in offsets if one >= wanted]
        again.leave()
