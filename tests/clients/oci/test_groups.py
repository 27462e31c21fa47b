"""Consumer groups with the SDK, as the product documentation describes them; time passes by a clock that is moved."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

import oci
from headrace.testing import MovableClock
from headrace.testing.oci import GroupReader, OciClients, put

models = oci.streaming.models
Client = Any
Start = Callable[..., GroupReader]


@pytest.fixture
def reader(client: Client, stream: Any) -> Start:
    """Starts an instance of the group `g` on the stream of one partition."""

    def start(name: str | None = None, *, group: str = "g", **details: Any) -> GroupReader:
        return GroupReader(client, stream.id, group, name, **details)

    return start


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def refused(call: Callable[..., object], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*arguments)
    return caught.value.status, caught.value.code, caught.value.message


def reservations(client: Client, stream: Any, group: str = "g") -> list[tuple[int, str | None]]:
    """(last committed offset, instance) of every partition."""
    found = client.get_group(stream.id, group).data
    assert (found.stream_id, found.group_name) == (stream.id, group)
    assert [each.partition for each in found.reservations] == [str(number) for number in range(stream.partitions)]
    return [(each.committed_offset, each.reserved_instance) for each in found.reservations]


def fill(client: Client, stream: Any, each: int = 10) -> dict[int, int]:
    """Put messages until every partition has at least so many; how many each has."""
    counts = dict.fromkeys(range(stream.partitions), 0)
    while min(counts.values()) < each:
        for entry in put(client, stream.id, *["v"] * 10 * stream.partitions):
            counts[int(entry.partition)] += 1
    return counts


def settle(readers: list[GroupReader]) -> list[set[int]]:
    """Read and commit with all instances until the assignment is stable, and return it."""
    for _ in range(4):
        shares = [reader.partitions(10) for reader in readers]
    return shares


def test_the_example_of_the_documentation(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *numbers(1, 300))
    a = reader("A")
    assert a.values(100) == numbers(1, 100)
    assert a.values(100) == numbers(101, 200)  # this get committed 1 to 100
    headrace_clock.advance(seconds=30.5)
    b = reader("B")

    assert b.values(100) == numbers(101, 200)


def test_within_its_timeout_an_instance_keeps_its_partition(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *numbers(1, 300))
    a, b = reader("A"), reader("B")
    assert a.values(100) == numbers(1, 100)
    for _ in range(3):
        headrace_clock.advance(seconds=15)
        assert b.values(100) == []
        a.heartbeat()

    assert a.values(100) == numbers(101, 200)


def test_the_first_get_has_messages_already(client: Client, wide: Any) -> None:
    counts = fill(client, wide)
    a = GroupReader(client, wide.id, "g")
    got = 0
    while found := a.get():
        got += len(found)

    assert got == sum(counts.values())


def test_shares_of_eight_partitions_among_four(client: Client, wide: Any) -> None:
    fill(client, wide, 60)
    readers = [GroupReader(client, wide.id, "g", name) for name in "ABCD"]
    shares = settle(readers)

    owners = [owner for _, owner in reservations(client, wide)]
    assert sorted(owners.count(name) for name in "ABCD") == [2, 2, 2, 2]
    assert all(len(share) <= 2 for share in shares)


def test_shares_of_ten_partitions_among_four(client: Client, headrace_oci: OciClients) -> None:
    ten = headrace_oci.create_stream("ten", 10)
    fill(client, ten, 60)
    readers = [GroupReader(client, ten.id, "g", name) for name in "ABCD"]
    settle(readers)

    owners = [owner for _, owner in reservations(client, ten)]
    assert sorted(owners.count(name) for name in "ABCD") == [2, 2, 3, 3]


def test_a_surplus_instance_gets_nothing_and_takes_over(
    client: Client, headrace_oci: OciClients, headrace_clock: MovableClock
) -> None:
    two = headrace_oci.create_stream("two", 2)
    fill(client, two, 60)
    a, b, c = (GroupReader(client, two.id, "g", name) for name in "ABC")
    settle([a, b])
    before = reservations(client, two)
    assert {owner for _, owner in before} == {"A", "B"}
    for _ in range(3):
        assert c.get(10) == []
    assert [owner for _, owner in reservations(client, two)] == [owner for _, owner in before]

    for _ in range(3):  # B is silent
        headrace_clock.advance(seconds=12)
        a.heartbeat()
        c.heartbeat()
    assert c.partitions(10)
    assert {owner for _, owner in reservations(client, two)} == {"A", "C"}


def test_no_message_twice_while_all_instances_live(client: Client, wide: Any) -> None:
    counts = fill(client, wide, 40)
    seen: list[tuple[str, int]] = []
    readers: list[GroupReader] = []
    while True:
        if len(readers) < 5:
            readers.append(GroupReader(client, wide.id, "g", f"reader {len(readers)}"))
        found = [message for reader in readers for message in reader.get(7)]
        seen += [(message.partition, message.offset) for message in found]
        if not found and len(readers) == 5:
            break

    assert len(seen) == len(set(seen)) == sum(counts.values())


def test_a_member_that_starts_again_goes_on_from_the_last_commit(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, *numbers(1, 30))
    old = reader("A")
    assert old.values(10) == numbers(1, 10)
    assert old.values(10) == numbers(11, 20)
    new = reader("A", start="LATEST")

    assert new.values(10) == numbers(11, 20)
    assert refused(old.commit) == (400, "InvalidParameter", "Trying to commit unreserved partition 0")


def test_the_same_get_sent_twice_loses_nothing(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, *numbers(1, 30))
    a = reader("A")
    assert a.values(10) == numbers(1, 10)
    cursor = a.cursor
    assert a.values(10) == numbers(11, 20)
    a.cursor = cursor  # the answer was lost

    assert a.values(10) == numbers(11, 20)
    assert a.values(10) == numbers(21, 30)
    a.commit()
    assert reservations(client, stream) == [(29, "A")]


@pytest.mark.parametrize("commit_on_get", [True, False])
def test_a_slow_instance_alone_in_its_group_is_not_refused(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock, *, commit_on_get: bool
) -> None:
    """A published consumer: `timeoutInMs` 1000, and more than a second between two requests."""
    put(client, stream.id, *numbers(1, 30))
    a = reader("A", timeout_in_ms=1_000, commit_on_get=commit_on_get)
    seen = []
    for _ in range(3):
        seen += a.values(10)
        headrace_clock.advance(seconds=1.1)
        a.heartbeat()
        headrace_clock.advance(seconds=1.1)
        if not commit_on_get:
            a.commit()
            headrace_clock.advance(seconds=1.1)
    assert seen == numbers(1, 30)
    assert a.values(10) == []
    assert reservations(client, stream) == [(29, "A")]


def test_without_commit_on_get_only_commit_commits(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *numbers(1, 30))
    a = reader("A", commit_on_get=False)
    assert a.values(10) == numbers(1, 10)
    assert a.values(10) == numbers(11, 20)
    assert reservations(client, stream) == [(-1, "A")]
    a.commit()
    assert reservations(client, stream) == [(19, "A")]
    assert a.values(10) == numbers(21, 30)
    headrace_clock.advance(seconds=31)

    assert reader("B").values(10) == numbers(21, 30)
    assert refused(a.commit) == (400, "InvalidParameter", "Trying to commit unreserved partition 0")


def test_heartbeats_between_gets(client: Client, stream: Any, reader: Start, headrace_clock: MovableClock) -> None:
    put(client, stream.id, *numbers(1, 30))
    a = reader("A")
    beats = GroupReader.__new__(GroupReader)
    beats.__dict__.update(a.__dict__)  # a second chain, from the creation cursor
    got: list[str] = []
    for _ in range(3):
        beats.heartbeat()
        got += a.values(10)
        headrace_clock.advance(seconds=20)
        beats.heartbeat()
        headrace_clock.advance(seconds=20)

    assert got == numbers(1, 30)
    assert reservations(client, stream) == [(19, "A")]


def test_a_timeout_of_ones_own(client: Client, stream: Any, reader: Start, headrace_clock: MovableClock) -> None:
    put(client, stream.id, *numbers(1, 30))
    a = reader("A", timeout_in_ms=120_000)
    assert a.values(10) == numbers(1, 10)
    headrace_clock.advance(seconds=110)
    assert reader("B").values(10) == []
    headrace_clock.advance(seconds=11)
    assert reader("B").values(10) == numbers(1, 10)


def test_the_start_is_fixed_when_the_cursor_is_made(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, "before")
    latest = reader("A", start="LATEST")
    put(client, stream.id, "after")

    assert latest.values() == ["after"]


def test_a_start_by_time(client: Client, stream: Any, reader: Start, headrace_clock: MovableClock) -> None:
    put(client, stream.id, "old")
    headrace_clock.advance(minutes=10)
    now = dt.datetime.fromtimestamp(headrace_clock.now_ms() / 1000, dt.UTC)
    put(client, stream.id, "new")
    future = reader("A", group="future", start="AT_TIME", time=now + dt.timedelta(minutes=5))

    assert reader("A", start="AT_TIME", time=now).values() == ["new"]
    assert future.values() == []
    headrace_clock.advance(minutes=4)
    future = reader("A", group="future")  # its start is kept, whatever is asked now
    put(client, stream.id, "too early")
    assert future.values() == []
    headrace_clock.advance(minutes=2)
    put(client, stream.id, "in time")
    assert reader("B", group="future").values() == ["in time"]


def test_an_existing_group_goes_on_whatever_the_type(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *numbers(1, 20))
    a = reader("A")
    assert a.values(10) == numbers(1, 10)
    a.commit()
    headrace_clock.advance(seconds=31)

    assert reader("B", start="LATEST").values() == numbers(11, 20)


def test_update_group_moves_all_instances(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, *numbers(1, 20))
    a = reader("A")
    assert a.values() == numbers(1, 20)
    client.update_group(stream.id, "g", models.UpdateGroupDetails(type="TRIM_HORIZON"))
    assert reservations(client, stream) == [(-1, "A")]
    assert a.values() == numbers(1, 20)
    client.update_group(stream.id, "g", models.UpdateGroupDetails(type="LATEST"))
    put(client, stream.id, "new")
    assert a.values() == ["new"]


def test_update_group_by_time(client: Client, stream: Any, reader: Start, headrace_clock: MovableClock) -> None:
    put(client, stream.id, "old")
    headrace_clock.advance(minutes=10)
    (entry,) = put(client, stream.id, "newer")
    put(client, stream.id, "newest")
    a = reader("A")
    assert a.values() == ["old", "newer", "newest"]
    details = models.UpdateGroupDetails(type="AT_TIME", time=entry.timestamp)
    client.update_group(stream.id, "g", details)

    assert a.values() == ["newer", "newest"]


def test_get_group_shows_until_when(client: Client, stream: Any, reader: Start, headrace_clock: MovableClock) -> None:
    put(client, stream.id, *numbers(1, 20))
    a = reader("A", timeout_in_ms=60_000)
    assert reservations(client, stream) == [(-1, None)]
    a.get(10)
    (shown,) = client.get_group(stream.id, "g").data.reservations
    left = shown.time_reserved_until.timestamp() * 1000 - headrace_clock.now_ms()
    assert 50_000 < left <= 60_000
    a.get(10)
    assert reservations(client, stream) == [(9, "A")]


def test_names_with_spaces_and_slashes(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, "v")
    name = "g 1/x?y=ü&%2F"
    assert reader("an instance/with: anything", group=name).values() == ["v"]
    # The SDK encodes all but the slash.
    assert reservations(client, stream, name) == [(-1, "an instance/with: anything")]
    client.update_group(stream.id, name, models.UpdateGroupDetails(type="LATEST"))


def test_an_unknown_group(client: Client, stream: Any) -> None:
    assert refused(client.get_group, stream.id, "nobody")[:2] == (404, "NotAuthorizedOrNotFound")
    start = models.UpdateGroupDetails(type="LATEST")
    assert refused(client.update_group, stream.id, "nobody", start)[:2] == (404, "NotAuthorizedOrNotFound")


def test_fifty_groups_and_no_more(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, "v")
    for number in range(50):
        reader("A", group=f"group {number}")

    assert refused(lambda: reader("A", group="one more"))[:2] == (400, "LimitExceeded")
    assert reader("A", group="group 7").values() == ["v"]


def test_a_group_cursor_expires(client: Client, stream: Any, reader: Start, headrace_clock: MovableClock) -> None:
    put(client, stream.id, "v")
    a = reader("A")
    headrace_clock.advance(minutes=5, seconds=1)
    expired = (400, "InvalidParameter", "The cursor is expired. Create a new one.")

    for call in (a.get, a.heartbeat, a.commit):
        assert refused(call) == expired


def test_a_chain_of_gets_goes_on_for_hours(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    a = reader("A", timeout_in_ms=300_000)
    for number in range(60):
        headrace_clock.advance(minutes=4)
        put(client, stream.id, str(number))
        assert a.values() == [str(number)]


def test_an_instance_without_a_name_has_one_of_its_own(client: Client, stream: Any, reader: Start) -> None:
    put(client, stream.id, *numbers(1, 20))
    a, b = reader(), reader()
    assert a.values(10) == numbers(1, 10)
    assert b.values(10) == []
    ((_, owner),) = reservations(client, stream)
    assert owner


def test_a_group_of_at_time_without_a_time(reader: Start) -> None:
    assert refused(lambda: reader("A", start="AT_TIME"))[0] == 400


def test_an_unused_group_disappears_after_the_retention_period(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, "v")
    assert reader("A").values() == ["v"]
    headrace_clock.advance(hours=23)
    assert reservations(client, stream)
    headrace_clock.advance(hours=2)

    assert refused(client.get_group, stream.id, "g")[:2] == (404, "NotAuthorizedOrNotFound")


def test_an_offset_before_the_log_start_is_an_error(
    client: Client, stream: Any, reader: Start, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *numbers(1, 20))
    a = reader("A", timeout_in_ms=300_000)
    assert a.values(10) == numbers(1, 10)
    for _ in range(25 * 15):
        headrace_clock.advance(minutes=4)
        a.heartbeat()
    a.commit()
    expected = (400, "InvalidParameter", "The cursor is outside the retention period and is now invalid.")
    assert refused(a.get) == expected
    client.update_group(stream.id, "g", models.UpdateGroupDetails(type="TRIM_HORIZON"))
    put(client, stream.id, "fresh")
    assert a.values() == ["fresh"]
