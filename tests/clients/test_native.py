"""Every client on native topics: the tests of log topics that do not count offsets, and what is particular to these."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.clients import test_fetching, test_groups, test_producing
from tests.harness.clients import CODECS, Client, ClientFailed, Codec, Record
from tests.harness.wire import Wire

from headrace.testing import Server

from .test_restart import committed, take
from .test_round_trip import records

Eventually = Callable[[Callable[[], object]], None]


class NativeWire(Wire):
    """Creates native topics."""

    def create(self, topic: str, partitions: int = 1, **config: object) -> str:
        return super().create(topic, partitions, headrace_storage="native", **config)


@pytest.fixture
def wire(running: Server) -> Iterator[Wire]:
    with NativeWire(running.kafka) as raw:
        yield raw


@pytest.fixture
def link(running: Server) -> Iterator[Any]:
    """A Redis program."""
    with redis.Redis.from_url(running.storage) as client:
        yield client


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_records_come_back(client: Client, wire: Wire, topic: str, codec: Codec, link: Any) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} has no {codec} here")
    wire.create(topic)
    sent = records(client)
    begun_s, _ = link.time()
    client.send(topic, sent, codec=codec)
    ended_s, _ = link.time()
    found = client.read(topic, len(sent))
    assert [(one.key, one.value, one.headers) for one in found] == [(one.key, one.value, one.headers) for one in sent]
    if client.sets_timestamps:
        assert [one.timestamp for one in found] == [one.timestamp for one in sent]
    offsets = [one.offset for one in found]
    assert offsets == sorted(set(offsets))
    assert begun_s - 1 <= (offsets[0] >> 10) / 1000 <= ended_s + 2, "offsets are times of arrival"
    assert link.xlen(f"headrace:{topic}:0") == len(sent)


def test_every_client_reads_what_another_wrote(client: Client, reader: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    sent: list[Record] = []
    for codec in sorted(client.codecs & reader.codecs):
        client.send(topic, records(client), codec=codec)
        sent += records(client)
    found = reader.read(topic, len(sent))
    assert [(one.key, one.value, one.headers) for one in found] == [(one.key, one.value, one.headers) for one in sent]


def test_every_client_reads_what_a_redis_program_adds(client: Client, wire: Wire, topic: str, link: Any) -> None:
    wire.create(topic)
    expected = []
    for number in range(300):
        # With gaps of hours between some: more than the offsets of one batch may lie apart.
        entry = f"{1_000_000 + number * 40_000_000}-{number % 1000}"
        link.xadd(f"headrace:{topic}:0", {"reading": str(number)}, id=entry)
        expected.append(((1_000_000 + number * 40_000_000) << 10 | number % 1000, b"%d" % number))
    found = client.read(topic, 300)
    assert [(one.offset, one.value) for one in found] == expected
    again = client.read(topic, 100, offset=expected[200][0])
    assert [(one.offset, one.value) for one in again] == expected[200:]
    behind_a_gap = client.read(topic, 99, offset=expected[200][0] + 1)
    assert [(one.offset, one.value) for one in behind_a_gap] == expected[201:]


test_a_second_member_joins_and_leaves = test_groups.test_a_second_member_joins_and_leaves
test_members_that_start_together = test_groups.test_members_that_start_together_share_the_partitions
test_a_static_member_comes_back = test_groups.test_a_static_member_comes_back_to_its_partitions
test_records_come_as_soon_as_they_are_there = test_fetching.test_records_come_as_soon_as_they_are_there
test_acks = test_producing.test_acks
test_a_record_of_the_largest_size = test_producing.test_a_record_of_the_largest_size
test_size_counts_after_compression = test_producing.test_size_counts_after_compression
test_a_topic_with_larger_records = test_producing.test_a_topic_with_larger_records
test_many_batches_of_every_codec = test_producing.test_many_batches_of_every_codec_in_one_log


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_idempotent_producers(client: Client, wire: Wire, topic: str, codec: Codec) -> None:
    wire.create(topic)
    sent = [Record(value=b"%d" % number) for number in range(500)]
    for _ in range(2):
        client.send(topic, sent, idempotent=True, codec=codec)
    assert [one.value for one in client.read(topic, 1_000)] == [one.value for one in sent] * 2


def test_a_record_that_is_too_large(client: Client, wire: Wire, topic: str, link: Any) -> None:
    wire.create(topic)
    with pytest.raises(ClientFailed):
        client.send(topic, [Record(value=b"\xa5" * 1_048_589)], largest=2_000_000)
    assert link.exists(f"headrace:{topic}:0") == 0


def test_several_partitions_are_read_apart(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=3)
    for partition in range(3):
        client.send(topic, [Record(value=b"%d" % partition)] * (partition + 1), partition=partition)
    for partition in range(3):
        found = client.read(topic, partition + 1, partition=partition)
        assert [(one.partition, one.value) for one in found] == [(partition, b"%d" % partition)] * (partition + 1)


def test_a_member_goes_on_over_a_restart(
    restarted_client: Client, restartable: Server, topic: str, eventually: Eventually
) -> None:
    client = restarted_client
    with NativeWire(restartable.kafka) as wire:
        wire.create(topic)

    def send(first: int, count: int) -> list[bytes]:
        values = [b"%d" % number for number in range(first, first + count)]
        client.send(topic, [Record(value=value) for value in values])
        return values

    def pending() -> int:
        with redis.Redis.from_url(restartable.storage) as link:
            return int(link.xpending(f"headrace:{topic}:0", topic)["pending"])

    first = send(0, 20)
    with client.member(topic, topic) as member:
        assert take(member, 20) == first
        member.commit()
        eventually(lambda: pending() == 0)
        position = committed(restartable, topic, topic)
        restartable.restart()
        assert committed(restartable, topic, topic) == position
        second = send(20, 20)
        assert take(member, 20) == second, "nothing lost, nothing again"
        member.commit()
        eventually(lambda: pending() == 0)
    third = send(40, 5)
    with client.member(topic, topic) as member:
        assert take(member, 5) == third
