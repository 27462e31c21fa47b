"""Groups at the ends of what is allowed: many partitions, long names, one name on two streams, large messages."""

from collections import Counter
from typing import Any

import pytest

import oci
from headrace.testing import MovableClock
from headrace.testing.oci import GroupReader, OciClients, put

models = oci.streaming.models
LONGEST_CURSOR = 1024


def test_two_hundred_partitions_and_one_reader(client: Any, headrace_oci: OciClients) -> None:
    stream = headrace_oci.create_stream("s", 200)
    put(client, stream.id, *["v"] * 5_000)
    reader = GroupReader(client, stream.id, "g", "A", commit_on_get=False)
    seen: Counter[tuple[str, int]] = Counter()
    while messages := reader.get(300):
        assert len(reader.cursor) <= LONGEST_CURSOR
        seen.update((message.partition, message.offset) for message in messages)
        reader.commit()
        assert len(reader.cursor) <= LONGEST_CURSOR

    assert len(seen) == 5_000
    assert set(seen.values()) == {1}
    committed = {one.partition: one.committed_offset for one in client.get_group(stream.id, "g").data.reservations}
    last = {partition: max(offset for at, offset in seen if at == partition) for partition, _ in seen}
    assert {partition: committed[partition] for partition in last} == last


def test_without_commits_an_instance_still_gets_everything(client: Any, headrace_oci: OciClients) -> None:
    """Its cursor cannot carry 200 offsets: partitions wait for a commit, and none is forgotten."""
    stream = headrace_oci.create_stream("s", 200)
    put(client, stream.id, *["v"] * 2_000)
    reader = GroupReader(client, stream.id, "g" * 255, "é" * 127, commit_on_get=False)
    seen: Counter[tuple[str, int]] = Counter()
    for _ in range(400):
        messages = reader.get()
        assert len(reader.cursor) <= LONGEST_CURSOR
        seen.update((message.partition, message.offset) for message in messages)
        if not messages:
            reader.commit()
            if not (messages := reader.get()):
                break
            seen.update((message.partition, message.offset) for message in messages)

    assert len(seen) == 2_000
    assert set(seen.values()) == {1}


def test_an_instance_with_many_partitions_is_served_all_of_them(client: Any, wide: Any) -> None:
    counts = dict.fromkeys(range(8), 0)
    while min(counts.values()) < 100:
        for entry in put(client, wide.id, *["v"] * 200):
            counts[int(entry.partition)] += 1
    reader = GroupReader(client, wide.id, "g", "A")
    served = [message.partition for _ in range(32) for message in reader.get(10)]

    assert set(served) == {str(number) for number in range(8)}
    assert max(Counter(served).values()) <= 2 * min(Counter(served).values())


def test_one_name_on_two_streams_is_two_groups(
    client: Any, headrace_oci: OciClients, headrace_clock: MovableClock
) -> None:
    one, other = headrace_oci.create_stream("one"), headrace_oci.create_stream("other")
    put(client, one.id, "1", "2")
    put(client, other.id, "3", "4")
    first = GroupReader(client, one.id, "g", "A")
    second = GroupReader(client, other.id, "g", "A", start="LATEST")
    assert first.values() == ["1", "2"]
    assert second.values() == []
    headrace_clock.advance(seconds=20)
    first.heartbeat()
    headrace_clock.advance(seconds=20)

    (kept,) = client.get_group(one.id, "g").data.reservations
    (gone,) = client.get_group(other.id, "g").data.reservations
    assert (kept.reserved_instance, gone.reserved_instance) == ("A", None)
    client.update_group(one.id, "g", models.UpdateGroupDetails(type="TRIM_HORIZON"))
    assert first.values() == ["1", "2"]
    assert second.values() == []


def test_the_largest_messages_come_one_by_one(client: Any, stream: Any) -> None:
    large = "x" * 1_048_576
    for _ in range(3):
        put(client, stream.id, large)
    reader = GroupReader(client, stream.id, "g", "A")

    assert [len(reader.get()) for _ in range(4)] == [1, 1, 1, 0]


def test_messages_in_flight_at_an_update_are_not_committed(client: Any, stream: Any) -> None:
    put(client, stream.id, *(str(number) for number in range(10)))
    reader = GroupReader(client, stream.id, "g", "A", commit_on_get=False)
    assert reader.values(5) == ["0", "1", "2", "3", "4"]
    client.update_group(stream.id, "g", models.UpdateGroupDetails(type="TRIM_HORIZON"))
    reader.commit()
    (shown,) = client.get_group(stream.id, "g").data.reservations
    assert shown.committed_offset == -1
    assert reader.values(2) == ["0", "1"]


@pytest.mark.parametrize("seconds", [25, 60, 280])
def test_timeouts_of_any_length(client: Any, stream: Any, headrace_clock: MovableClock, seconds: int) -> None:
    put(client, stream.id, "v")
    a, b = (GroupReader(client, stream.id, "g", name, timeout_in_ms=seconds * 1000) for name in "AB")
    assert a.values() == ["v"]
    # The time that the test takes comes on top.
    for _ in range(3):
        headrace_clock.advance(seconds * 0.15)
        assert b.values() == []
    headrace_clock.advance(seconds * 0.6)

    assert b.values() == ["v"]


def test_less_than_the_least_timeout_of_the_documentation_is_taken(
    client: Any, stream: Any, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, "v")
    assert GroupReader(client, stream.id, "g", "A", timeout_in_ms=1_000).values() == ["v"]
    headrace_clock.advance(seconds=1.1)
    assert GroupReader(client, stream.id, "g", "B").values() == ["v"]
