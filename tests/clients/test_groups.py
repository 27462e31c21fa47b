"""A group of two through a rebalance, and static members."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.harness.clients import Client, Member, Received, Record
from tests.harness.wire import Wire

PARTITIONS = 4
PATIENCE_S = 60
Eventually = Callable[[Callable[[], object]], None]


class Watch:
    """Poll the members of a group, and keep the records of each.

    All members are polled concurrently, like separate programs: kafka-python drops a join that ends between polls, so
    that two members that are polled in turn may join again for a minute.
    """

    def __init__(self, *members: Member) -> None:
        self.members = list(members)
        self.got: list[tuple[Member, Received]] = []

    def until(self, done: Callable[[], object]) -> None:
        """Poll until it is so."""
        deadline = time.monotonic() + PATIENCE_S
        with ThreadPoolExecutor(len(self.members)) as threads:
            while not done():
                assert time.monotonic() < deadline, (
                    f"owned: {[sorted(one.owned()) for one in self.members]}, got: {self.got}"
                )
                polled = threads.map(lambda member: member.poll(0.2), self.members)
                for member, records in zip(self.members, polled, strict=True):
                    self.got += [(member, record) for record in records]

    def settled(self) -> bool:
        """Every partition has one owner, and every member has partitions."""
        owned = [one.owned() for one in self.members]
        return all(owned) and sorted(part for share in owned for part in share) == list(range(PARTITIONS))

    def seen(self, records: Iterable[bytes]) -> bool:
        """Whether each of the values has come at least once."""
        return {record.value for _, record in self.got} >= set(records)


def fill(client: Client, topic: str, name: str, count: int = 5) -> list[bytes]:
    """Records for every partition; their values."""
    values = []
    for partition in range(PARTITIONS):
        mine = [f"{name} {partition} {number}".encode() for number in range(count)]
        client.send(topic, [Record(value=value) for value in mine], partition=partition)
        values += mine
    return values


def test_a_second_member_joins_and_leaves(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=PARTITIONS)
    first_values = fill(client, topic, "one")
    with client.member(topic, topic) as first:
        watch = Watch(first)
        watch.until(lambda: watch.settled() and watch.seen(first_values))
        first.commit()
        second = client.member(topic, topic)
        watch.members.append(second)
        watch.until(watch.settled)
        shares = {member: member.owned() for member in watch.members}
        assert not shares[first] & shares[second]

        watch.got.clear()
        second_values = fill(client, topic, "two")
        watch.until(lambda: watch.seen(second_values))
        new = [(member, record) for member, record in watch.got if record.value in second_values]
        assert all(record.partition in shares[member] for member, record in new), "each only reads what it owns"
        assert len(new) == len(second_values), "once each, while nobody comes or goes"
        for member in watch.members:
            member.commit()

        watch.members.remove(second)
        second.close()
        watch.until(watch.settled)
        watch.got.clear()
        third_values = fill(client, topic, "three")
        watch.until(lambda: watch.seen(third_values))


def test_members_that_start_together_share_the_partitions(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=PARTITIONS)
    values = fill(client, topic, "one")
    with client.member(topic, topic) as first, client.member(topic, topic) as second:
        watch = Watch(first, second)
        watch.until(lambda: watch.settled() and watch.seen(values))


def test_a_static_member_comes_back_to_its_partitions(
    client: Client, wire: Wire, topic: str, eventually: Eventually
) -> None:
    wire.create(topic, partitions=PARTITIONS)
    with client.member(topic, topic, instance="one") as first:
        second = client.member(topic, topic, instance="two")
        watch = Watch(first, second)
        watch.until(watch.settled)
        generation = wire.generation(topic)
        share = second.owned()
        second.close()
        watch.members[1] = second = client.member(topic, topic, instance="two")
        watch.until(watch.settled)
        assert second.owned() == share
        assert wire.generation(topic) == generation, "no rebalance"
        values = fill(client, topic, "one")
        watch.until(lambda: watch.seen(values))
        second.close()
