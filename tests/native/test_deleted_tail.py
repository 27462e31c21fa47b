"""The last entries of a native topic are deleted or not served: readers reach the log end all the same."""

import pytest
from tests.harness.wire import Wire, batch, batches

from headrace.kafka.errors import Code
from headrace.records.batch import peek
from headrace.testing import Server

from .conftest import Link, MakeMember, add
from .test_oci import Stream


def follow(reader: object, offset: int, end: int) -> tuple[list[int], int]:
    """Fetch from an offset until the end; the offsets of all records, and how many fetches it took."""
    found: list[int] = []
    fetches = 0
    while offset < end:
        fetches += 1
        assert fetches < 20, (offset, end)
        answer = reader.fetch(offset)  # type: ignore[attr-defined]
        assert answer.error_code == Code.NONE
        for each in batches(answer.records):
            header = peek(each)
            assert header.base_offset + header.span > offset
            offset = header.base_offset + header.span
            found.append(header.count)
    assert offset == end
    return found, fetches


class Alone:
    """A reader in no group."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self._wire, self._topic = wire, topic

    def fetch(self, offset: int) -> object:
        return self._wire.fetch(self._topic, offset, max_wait_ms=100)


@pytest.fixture(params=["alone", "member"])
def reader(request: pytest.FixtureRequest, wire: Wire, topic: str, member: MakeMember) -> object:
    return Alone(wire, topic) if request.param == "alone" else member().join()


# Milliseconds between the entries: several thousand are more offsets than one batch may span.
@pytest.mark.parametrize("step", [1, 40_000_000])
def test_deleted_last_entries(wire: Wire, topic: str, stream: str, link: Link, reader: object, step: int) -> None:
    ids = [f"{1_000 + n * step}-0" for n in range(6)]
    for entry in ids:
        link.xadd(stream, {"value": "x"}, id=entry)
    link.xdel(stream, *ids[3:])
    end = wire.offset(topic, -1).offset
    assert end == (1_000 + 5 * step << 10) + 1
    found, _ = follow(reader, wire.offset(topic, -2).offset, end)
    assert sum(found) == 3
    # What comes later is read from there on.
    later = add(link, stream, 2, first_ms=1_000 + 6 * step)
    found, _ = follow(reader, end, later[-1] + 1)
    assert sum(found) == 2


def test_a_deleted_window_between_others(wire: Wire, topic: str, stream: str, link: Link, reader: object) -> None:
    ids = [f"{1_000 + n}-0" for n in range(3_000)]
    with link.pipeline() as pipe:
        for entry in ids:
            pipe.xadd(stream, {"value": "x"}, id=entry)
        pipe.xdel(stream, *ids[1:-1])
        pipe.execute()
    found, _ = follow(reader, wire.offset(topic, -2).offset, wire.offset(topic, -1).offset)
    assert sum(found) == 2


@pytest.mark.parametrize("sequence", [5_000, 2**64 - 1])
def test_last_entries_that_have_no_offset(
    wire: Wire, topic: str, stream: str, link: Link, reader: object, sequence: int
) -> None:
    add(link, stream, 2)
    for ms in range(2_000, 2_010):
        link.xadd(stream, {"value": "x"}, id=f"{ms}-{sequence}")
    found, _ = follow(reader, wire.offset(topic, -2).offset, wire.offset(topic, -1).offset)
    assert sum(found) == 2


def test_last_entries_that_are_too_large(wire: Wire, topic: str, stream: str, link: Link, reader: object) -> None:
    add(link, stream, 2)
    link.xadd(stream, {"first": "x" * (5 << 20), "second": "y"}, id="5000-0")
    found, _ = follow(reader, wire.offset(topic, -2).offset, wire.offset(topic, -1).offset)
    assert sum(found) == 2


def test_an_entry_beyond_all_offsets(wire: Wire, topic: str, stream: str, link: Link, reader: object) -> None:
    add(link, stream, 2)
    link.xadd(stream, {"value": "x"}, id=f"{2**60}-0")
    end = wire.offset(topic, -1).offset
    assert end == 2**62
    found, _ = follow(reader, wire.offset(topic, -2).offset, end)
    assert sum(found) == 2


def test_a_fetch_that_waits_hears_of_entries_that_come_and_go(
    wire: Wire, topic: str, stream: str, link: Link, reader: object
) -> None:
    [offset] = add(link, stream, 1)
    follow(reader, 0, offset + 1)
    with link.pipeline() as pipe:
        pipe.xadd(stream, {"value": "x"}, id="9000-0")
        pipe.xdel(stream, "9000-0")
        pipe.execute()
    found, _ = follow(reader, offset + 1, wire.offset(topic, -1).offset)
    assert sum(found) == 0


def test_trimmed_to_nothing(wire: Wire, topic: str, stream: str, link: Link) -> None:
    offsets = add(link, stream, 4)
    link.xtrim(stream, maxlen=0)
    assert wire.offset(topic, -1).offset == wire.offset(topic, -2).offset == offsets[-1] + 1
    # Records at the offset were removed: as in Kafka the client gets an error, and begins at the log start offset.
    assert wire.fetch(topic, offsets[1]).error_code == Code.OFFSET_OUT_OF_RANGE
    follow(Alone(wire, topic), offsets[-1] + 1, wire.offset(topic, -1).offset)


def test_the_end_can_be_committed(wire: Wire, topic: str, stream: str, link: Link, member: MakeMember) -> None:
    offsets = add(link, stream, 4)
    link.xdel(stream, "1002-0", "1003-0")
    first = member().join()
    end = wire.offset(topic, -1).offset
    assert sum(follow(first, wire.offset(topic, -2).offset, end)[0]) == 2
    assert first.commit(end) == 0
    assert first.committed() == end
    [group] = link.xinfo_groups(stream)
    assert group["pending"] == 0
    first.leave()
    # The next owner goes on there, and is given what is new.
    second = member().join()
    assert second.committed() == end == offsets[-1] + 1
    [later] = add(link, stream, 1, first_ms=2_000)
    assert sum(follow(second, end, later + 1)[0]) == 1
    assert second.commit(later + 1) == 0
    assert link.xinfo_groups(stream)[0]["lag"] in (0, None)


def test_entries_of_a_program_in_the_group_are_not_skipped(
    topic: str, stream: str, link: Link, member: MakeMember
) -> None:
    [offset] = add(link, stream, 1)
    reader = member().join()
    follow(reader, 0, offset + 1)
    assert reader.commit(offset + 1) == 0
    link.xadd(stream, {"value": "x"}, id="3000-0")
    link.xreadgroup(topic, "program", {stream: ">"})
    # The program may still fail, and the entry be claimed by a member.
    assert not batches(reader.fetch(offset + 1, max_wait_ms=100).records)


def test_a_cursor_passes_deleted_messages(running: Server, wire: Wire, topic: str, stream: str, link: Link) -> None:
    add(link, stream, 4)
    link.xdel(stream, "1002-0", "1003-0")
    messages = Stream(running, topic)
    found, cursor = messages.get(messages.cursor(topic))
    assert len(found) == 2
    assert messages.get(cursor)[0] == []
    wire.produce(topic, batch(b"later"))
    values = []
    for _ in range(3):
        found, cursor = messages.get(cursor)
        values += [value for _, value in found]
    assert values == [b"later"]


def test_an_empty_batch_is_as_kafka_leaves_it(wire: Wire, topic: str, stream: str, link: Link) -> None:
    offsets = add(link, stream, 2)
    link.xdel(stream, "1001-0")
    [left] = batches(wire.fetch(topic, offsets[0] + 1).records)
    header = peek(left)
    assert (header.base_offset, header.span, header.count) == (offsets[0] + 1, offsets[1] - offsets[0], 0)
    assert len(left) == 61
    assert (header.producer_id, header.base_timestamp, header.max_timestamp) == (-1, -1, -1)
