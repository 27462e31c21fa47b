"""SIGKILL while a consumer group reads and commits: its members, positions and generation afterwards."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.ledger import Ledger

from headrace.storage.layout import registry
from headrace.storage.layout.keys import Keyspace
from headrace.testing import Server

pytestmark = pytest.mark.crash

GROUP, TOPIC, PARTITIONS = "readers", "read", 3
RECORDS = 3_000
PATIENCE_S = 90


class Member:
    """A librdkafka consumer that commits after every few records and keeps account of both."""

    def __init__(self, kafka: str, session_ms: int = 6_000) -> None:
        """`session_ms`: by default the least that the server lets a member ask for."""
        self._acknowledged = [0] * PARTITIONS
        """Positions of the last commits that were acknowledged."""
        self._asked: list[dict[int, int]] = []
        """Commits that have no answer yet."""
        self.commits = 0
        self.read: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """Offsets as they came."""
        self.consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": session_ms,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                # librdkafka 2.16 may lose the metadata that it waits for before it joins, if the server goes as it
                # starts. It asks again at this interval only: five minutes by default.
                "topic.metadata.refresh.interval.ms": 5_000,
                "log_level": 2,
                "on_commit": self._on_commit,
            }
        )
        self.consumer.subscribe([TOPIC])

    def turn(self) -> None:
        """Take a few records and ask for a commit of what was taken, without waiting for the answer."""
        taken: dict[int, int] = {}
        for message in self.consumer.consume(20, timeout=0.02):
            # An error here is librdkafka saying that the server is away.
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.read[partition].append(offset)
                taken[partition] = offset + 1
        if taken:
            places = [TopicPartition(TOPIC, partition, offset) for partition, offset in taken.items()]
            self._asked.append(taken)
            self.consumer.commit(offsets=places, asynchronous=True)

    def _on_commit(self, error: object, places: list[TopicPartition]) -> None:
        asked = {place.partition: place.offset for place in places}
        if asked in self._asked:
            self._asked.remove(asked)
        if error is None:
            self.commits += 1
            for place in places:
                if place.error is None:
                    self._acknowledged[place.partition] = place.offset

    @property
    def committed(self) -> list[int]:
        """Positions that the server must have at least.

        librdkafka repeats a commit that got no answer, also behind a later one that did: then the earlier position
        is the group's, as it would be in Apache Kafka.
        """
        found = list(self._acknowledged)
        for asked in self._asked:
            for partition, offset in asked.items():
                found[partition] = min(found[partition], offset)
        return found

    @property
    def assigned(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    @property
    def count(self) -> int:
        return sum(map(len, self.read))


@contextmanager
def members(kafka: str, count: int, session_ms: int = 6_000) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        made = [Member(kafka, session_ms) for _ in range(count)]
        for member in made:
            stack.enter_context(closing(member.consumer))
        yield made


def turn_until(group: list[Member], done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        for member in group:
            member.turn()


def kill_both(started: Server) -> None:
    storage_pid = started.storage_pid
    started.kill()
    os.kill(storage_pid, signal.SIGKILL)


def generation(started: Server) -> int:
    with redis.Redis.from_url(started.storage) as link:
        header: Any = link.hget(Keyspace().group(GROUP), "header")
    return registry.header(header).generation


def positions(started: Server) -> list[int]:
    """What the group has committed, by partition; 0 where nothing."""
    admin = AdminClient({"bootstrap.servers": started.kafka})
    places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, places)]).values()
    found = sorted(asked.result(60).topic_partitions, key=lambda place: place.partition)
    return [max(0, place.offset) for place in found]


def produce(started: Server) -> None:
    with Ledger(started.kafka, TOPIC, partitions=PARTITIONS) as ledger:
        ledger.send(RECORDS)
        ledger.settle()


def commits_of(group: list[Member]) -> int:
    return sum(member.commits for member in group)


def crash_between_commits(started: Server, group: list[Member], chance: random.Random) -> None:
    """Positions acknowledged before are there afterwards, and the generation is the same."""
    before = generation(started)
    goal = commits_of(group) + chance.randrange(1, 15)
    turn_until(group, lambda: commits_of(group) >= goal, "commits")
    kill_both(started)
    for member in group:
        member.turn()
    started.start()
    acknowledged = [max(member.committed[number] for member in group) for number in range(PARTITIONS)]
    kept = positions(started)
    print(f"acknowledged {acknowledged}, kept {kept}, generation {before}")
    assert all(offset >= least for offset, least in zip(kept, acknowledged, strict=True))
    # Membership did not change: the members need not even join again.
    assert generation(started) == before


@pytest.mark.parametrize("size", [1, 2])
def test_members_go_on_where_they_were(started: Server, size: int, chance: random.Random) -> None:
    admin = AdminClient({"bootstrap.servers": started.kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE_S)
    # No member may be removed on a slow machine: it would have to join again, and read some records twice.
    with members(started.kafka, size, session_ms=60_000) as group:
        turn_until(group, lambda: all(member.assigned for member in group), "an assignment")
        # Not before: who came first might have had all partitions for a moment, and read some of it.
        produce(started)
        assigned = [member.assigned for member in group]
        for _ in range(2):
            crash_between_commits(started, group, chance)
        produce(started)
        turn_until(group, lambda: sum(member.count for member in group) >= 2 * RECORDS, "all records")
        assert [member.assigned for member in group] == assigned
        for number in range(PARTITIONS):
            (reader,) = [member for member in group if number in member.assigned]
            assert reader.read[number] == list(range(2 * RECORDS // PARTITIONS))
        # Commits asked for while the server was away have failed; those of now are accepted from the same members.
        before = [member.commits for member in group]
        produce(started)
        turn_until(
            group,
            lambda: all(member.commits > earlier for member, earlier in zip(group, before, strict=True)),
            "commits after the restart",
        )


def crash_while_joining(started: Server, first: Member, chance: random.Random) -> list[int]:
    """A member joins and leaves; the generations after a crash somewhere in between and after the group has settled."""
    comer = Member(started.kafka)
    with closing(comer.consumer):
        both = [first, comer]
        # Somewhere from before the new member's request to after the end of the rebalance.
        moment = time.monotonic() + chance.random() * 0.6
        turn_until(both, lambda: time.monotonic() > moment, "the moment")
        kill_both(started)
        started.start()
        after_start = generation(started)

        def shared() -> bool:
            # A member that was removed on a busy machine keeps its old partitions until it gets an error.
            mine, its = first.assigned, comer.assigned
            return bool(its) and not mine & its and mine | its == set(range(PARTITIONS))

        turn_until(both, shared, "an assignment")
        return [after_start, generation(started)]


def test_a_rebalance_cut_short_is_finished_after_the_restart(started: Server, chance: random.Random) -> None:
    produce(started)
    with members(started.kafka, 1) as group:
        (first,) = group
        turn_until(group, lambda: first.commits >= 3, "commits")
        generations = [generation(started)]
        for _ in range(3):
            generations += crash_while_joining(started, first, chance)
        print(f"generations {generations}")
        assert generations == sorted(generations)
        turn_until(group, lambda: first.assigned == set(range(PARTITIONS)), "the partitions of the one that left")
        produce(started)
        ends = [2 * RECORDS // PARTITIONS] * PARTITIONS
        turn_until(group, lambda: first.committed == ends, "commits of everything")
        assert positions(started) == ends
