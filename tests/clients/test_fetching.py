"""Consumers beyond the round trip: seeking, resetting, waiting."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.clients import Client, ClientFailed, Record
from tests.harness.wire import Wire, batch

Eventually = Callable[[Callable[[], object]], None]


def fill(wire: Wire, topic: str, *spans: int) -> None:
    """Batches of so many records; each record says its offset."""
    offset = 0
    for span in spans:
        wire.produce(topic, batch(*(b"%d" % number for number in range(offset, offset + span))))
        offset += span


@pytest.mark.parametrize("offset", [0, 1, 4, 5, 7, 99])
def test_reading_from_the_middle_of_a_batch(client: Client, wire: Wire, topic: str, offset: int) -> None:
    wire.create(topic)
    fill(wire, topic, 5, 95)
    found = client.read(topic, 100 - offset, offset=offset)
    assert [one.offset for one in found] == list(range(offset, 100))
    assert [one.value for one in found] == [b"%d" % number for number in range(offset, 100)]


def test_an_offset_out_of_range_goes_back_to_the_earliest(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    fill(wire, topic, 5)
    assert [one.offset for one in client.read(topic, 5, offset=1_000, reset="earliest")] == [0, 1, 2, 3, 4]


def test_an_offset_out_of_range_is_an_error_where_that_is_wanted(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    fill(wire, topic, 5)
    with pytest.raises(ClientFailed):
        client.read(topic, 5, offset=1_000, reset="error", seconds=60)


def test_a_new_group_begins_where_configured(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    fill(wire, topic, 5)
    with client.member(f"{topic}-all", topic, reset="earliest") as member:
        found: list[int] = []
        while len(found) < 5:
            found += [one.offset for one in member.poll(1)]
        assert found == [0, 1, 2, 3, 4]


def send_soon(wire: Wire, topic: str) -> float:
    """Produce a record once the consumer waits again; when that was."""
    wire.fetch(f"{topic}-quiet", 0, max_wait_ms=50)
    begun = time.monotonic()
    wire.produce(topic, batch(b"now"))
    return begun


def test_records_come_as_soon_as_they_are_there(client: Client, wire: Wire, topic: str, eventually: Eventually) -> None:
    """A consumer that waits is woken by the append; it does not sit out its fetch."""
    wire.create(topic)
    wire.create(f"{topic}-quiet")
    fill(wire, topic, 1)
    delays: list[float] = []
    with client.member(topic, topic) as member, ThreadPoolExecutor(1) as background:
        eventually(lambda: member.poll(0.1))
        # Who sits out a fetch is never so fast; who is woken is, once the machine is not busy with something else.
        while len(delays) < 10 or sorted(delays[-10:])[5] >= 0.25:
            sent = background.submit(send_soon, wire, topic)
            eventually(lambda: member.poll(2))
            delays.append(time.monotonic() - sent.result())
            assert len(delays) < 200, delays


def test_several_partitions_are_read_apart(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=3)
    for partition in range(3):
        client.send(topic, [Record(value=b"%d" % partition)] * (partition + 1), partition=partition)
    for partition in range(3):
        found = client.read(topic, partition + 1, partition=partition)
        assert [(one.partition, one.offset, one.value) for one in found] == [
            (partition, offset, b"%d" % partition) for offset in range(partition + 1)
        ]
