"""Rounds of one fault each, during transactions and cleaning: `python -m tests.cluster.rounds --transactions`.

Producers move numbers from one topic to another, each in a transaction with its offsets, and write a compacted topic,
see `transfers`. A pass of the cleaner is due every second. A consumer reads all that is committed without a break.

A round adds numbers, and lets one thing happen, see `accidents`. When everything runs again, all numbers must be moved
and all transactions must end. Then `committed` checks what readers find. Brokers, clients and topics stay for the next
round. After an anomaly it gets other topics and clients.
"""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from redis import RedisError
from tests.cluster.accidents import Happening
from tests.cluster.committed import Record, Target, check_again, check_committed, check_kept, moved, values_of_keys
from tests.cluster.stall import evidence, offsets
from tests.cluster.transfers import Feed, Follower, Movers, Topics, committed_records
from tests.harness.brokers import Brokers
from tests.harness.waiting import wait_for

from headrace.testing import ServerFailed

PARTITIONS = 6
DELETE_RETENTION_MS = 3_000
"""Time for which the compacted topic keeps a deletion."""
PATIENCE_S = 150.0
_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": f"{DELETE_RETENTION_MS}",
}


class TransactionRounds:
    """Makes rounds over brokers that are there for all of them."""

    def __init__(self, over: Brokers, happening: Happening) -> None:
        """Nothing runs yet."""
        self._over, self._happening = over, happening
        self._load: Load | None = None

    def round(self, seed: int) -> "TransactionRound":
        """The one of a seed. Run it before the next one is made."""
        return TransactionRound(self, seed)

    def load(self, seed: int) -> "Load":
        """What runs, or a new one."""
        if self._load is None:
            self._load = Load(self._over, self._happening, seed)
        return self._load

    def abandon(self) -> None:
        """The next round begins with other topics."""
        load, self._load = self._load, None
        if load is not None:
            load.close()

    def close(self) -> None:
        """End what runs, and delete its topics."""
        load = self._load
        self.abandon()
        if load is not None:
            load.delete()


class TransactionRound:
    """One fault."""

    def __init__(self, rounds: TransactionRounds, seed: int) -> None:
        self.happened: list[str] = []
        self.saw: Counter[str] = Counter()
        self._rounds, self._seed = rounds, seed

    def run(self) -> None:
        """Raises AssertionError where something was that must not be."""
        try:
            load = self._rounds.load(self._seed)
            with load.counted(self.saw):
                began = time.monotonic()
                load.happen(self.happened, random.Random(self._seed))
                self.saw["s until all ran"] = round(time.monotonic() - began)
                load.check()
        except BaseException as error:
            with contextlib.suppress(AssertionError):  # the first one is reported
                self._rounds.abandon()
            if isinstance(error, (KafkaException, RedisError, ServerFailed, OSError)):
                raise AssertionError(repr(error)) from error
            raise


class Load:
    """Topics and their clients."""

    def __init__(self, over: Brokers, happening: Happening, seed: int) -> None:
        """They begin at once."""
        kafka = over.kafka
        self._over, self._happening = over, happening
        self._topics = Topics(f"moves-{seed}-from", f"moves-{seed}-to", f"moves-{seed}-kept")
        self._admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
        source, target, kept = self._topics
        made = [NewTopic(source, PARTITIONS, 1), NewTopic(target, PARTITIONS, 1)]
        made.append(NewTopic(kept, PARTITIONS, 1, config=_CONFIG))
        for future in self._admin.create_topics(made).values():
            future.result(30)
        for topic in self._topics:
            over.led(topic, PARTITIONS)
        self._target = Target(PARTITIONS)
        self._starts = [0] * PARTITIONS
        """Offsets in the target up to which the records were checked."""
        self._checked = [0] * PARTITIONS
        """Records in the compacted topic that the consumer has read, and that were checked."""
        self._ends: dict[str, list[int]] = {}
        """The ends of the topics that transactions write."""
        self._feed = Feed(kafka, source)
        self._follower = Follower(kafka, [target, kept], PARTITIONS)
        self._movers = Movers(kafka, self._topics, PARTITIONS, seed)

    def close(self) -> None:
        """End the clients."""
        try:
            self._movers.stop()
        finally:
            self._follower.stop()

    def delete(self) -> None:
        """Delete the topics."""
        for future in self._admin.delete_topics([*self._topics]).values():
            future.result(30)

    @contextlib.contextmanager
    def counted(self, saw: Counter[str]) -> Iterator[None]:
        """Add what happens in this context."""
        before = self._counts()
        try:
            yield
        finally:
            after = self._counts()
            after.subtract(before)
            saw.update(after)

    def _counts(self) -> Counter[str]:
        outcomes, failed = self._movers.outcomes, self._movers.failed
        return Counter(
            {
                "numbers": self._feed.numbers,
                "committed": len(outcomes.committed),
                "aborted": len(outcomes.aborted),
                "of unknown outcome": outcomes.unknown,
                "errors": failed.total(),
                "of them calls that never returned": failed["stuck"],
                "passes": sum(each.log().count("log cleaned") for each in self._over.servers.values()),
            }
        )

    def happen(self, happened: list[str], chance: random.Random) -> None:
        """Write numbers, and let something happen to those who move them."""
        accidents = self._happening(self._topics, self._topics.ids, chance)
        with self._feed.flowing(lambda: self._movers.outcomes.numbers):
            try:
                time.sleep(chance.choice([0.2, 0.5, 1.0]))
                happened.append(chance.choice(accidents.acts)())
                time.sleep(chance.choice([0.0, 0.5, 2.0]))
            finally:
                accidents.mend()

    def check(self) -> None:
        """Wait until all has ended, and check what readers find. Raises AssertionError."""
        try:
            self._settle()
            wait_for(self._are_stable, "all transactions to end")
            wait_for(self._has_followed, "the consumer to read all")
        except AssertionError as error:
            state = evidence(self._over, self._topics.group, self._topics, PARTITIONS)
            told = f"{error}: {self._left()} are left\n{state}\n{self._follower.positions}\n{self._movers.places()}"
            raise AssertionError(told) from None
        assert not self._follower.told, self._follower.told
        self._check_target()
        self._check_kept()

    def _settle(self) -> None:
        """Wait until all numbers are moved, for as long as some are."""
        least, deadline = self._left(), time.monotonic() + PATIENCE_S
        while least:
            assert time.monotonic() < deadline, "no number is moved any more"
            time.sleep(0.2)
            if (left := self._left()) < least:
                least, deadline = left, time.monotonic() + PATIENCE_S

    def _left(self) -> int:
        """Numbers whose offsets are not committed."""
        reader = Consumer({"bootstrap.servers": self._over.kafka, "group.id": self._topics.group, "log_level": 0})
        places = [TopicPartition(self._topics.source, partition) for partition in range(PARTITIONS)]
        try:
            done = sum(max(0, each.offset) for each in reader.committed(places, 30))
        except KafkaException:
            return self._feed.numbers
        finally:
            reader.close()
        return self._feed.numbers - done

    def _are_stable(self) -> bool:
        """Whether no partition has an open transaction."""
        time.sleep(0.1)
        # An older client of librdkafka 2.16 repeats the leader epochs that it knows, whatever the answer.
        admin = AdminClient({"bootstrap.servers": self._over.kafka, "log_level": 0})
        try:
            found = {topic: offsets(admin, topic, PARTITIONS) for topic in self._topics[1:]}
        except (KafkaException, TimeoutError):
            return False
        self._ends = {topic: ends for topic, (_, ends) in found.items()}
        return all(stable == ends for stable, ends in found.values())

    def _has_followed(self) -> bool:
        read = self._follower.positions
        return all(
            read[topic, partition] >= end for topic, ends in self._ends.items() for partition, end in enumerate(ends)
        )

    def _check_target(self) -> None:
        topic = self._topics.target
        found = committed_records(self._over.kafka, topic, self._starts)
        for partition, log in enumerate(found):
            followed = self._follower.records[topic, partition]
            before = [each for offset, each in followed.items() if offset >= self._starts[partition]]
            assert log == before, f"{topic} {partition}: read {_range(log)} now, and {_range(before)} before"
            if log:
                self._starts[partition] = log[-1].offset + 1
        self._target.add([moved(each.value for each in log if each.value is not None) for log in found])
        self._target.check(self._feed.numbers, self._movers.outcomes)

    def _check_kept(self) -> None:
        topic, outcomes, committed = self._topics.kept, self._movers.outcomes, self._target.transactions
        for partition in range(PARTITIONS):
            followed = [*self._follower.records[topic, partition].values()]
            check_committed(followed[self._checked[partition] :], committed)
            self._checked[partition] = len(followed)
        began = time.monotonic()
        found = committed_records(self._over.kafka, topic, [0] * PARTITIONS)
        while time.monotonic() - began > DELETE_RETENTION_MS / 2_000:
            # A slow reader may get a record, but not its deletion: the cleaner removes both in the meantime.
            began = time.monotonic()
            found = committed_records(self._over.kafka, topic, [0] * PARTITIONS)
        for partition, log in enumerate(found):
            place = topic, partition
            check_again(self._follower.records[place], self._follower.positions[place], log, f"{topic} {partition}")
        check_kept(found, committed, values_of_keys(committed, outcomes))


def _range(log: Sequence[Record]) -> str:
    return f"{len(log)} records from {log[0].offset} to {log[-1].offset}" if log else "no record"
