"""Check what clients observed of a topic for the anomalies of Jepsen's Kafka workload.

Producers number their records in the order of sending, and consumers report the number at each offset. At the end comes
the log itself, and `History.check` names every contradiction: see `Kind`.
https://github.com/jepsen-io/jepsen/blob/main/redpanda/src/jepsen/redpanda/workload/queue.clj has the names.
"""

import enum
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec


class Kind(enum.StrEnum):
    """What may not be."""

    LOST = "lost"
    """It was acknowledged, and the log has not got it at its offset."""
    UNSEEN = "unseen"
    """It was acknowledged, and some audience was never given it."""
    DUPLICATE = "duplicate"
    """The log has it twice."""
    POLL_BACK = "non-monotonic poll"
    """A consumer that kept its partition received an offset at or before an earlier one."""
    POLL_SKIP = "skipped poll"
    """Records were skipped, by the holder of the partition or by all of an audience."""
    SEND_BACK = "non-monotonic send"
    """A later record is before an earlier one, both acknowledged: the order of other records is unknown."""
    TWO = "one offset with two records"
    """Two observations of one offset, by any client."""
    GONE = "taken back"
    """A consumer received it, and the log no longer has it."""
    COMMIT_LOST = "lost commit"
    """A consumer began before an offset whose commit had been acknowledged."""
    RESET = "reset"
    """A consumer got the error that its offset no longer exists."""


_OVERLAP_S = 5.0
"""How long a member that has lost a partition may still commit."""
Log = Sequence[tuple[int, int]]
"""Offset and number of each record of a partition, in order."""


class Anomaly(AssertionError):
    """Something that must not happen; the message says what."""


class Found(msgspec.Struct, frozen=True):
    """One anomaly."""

    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class Audience:
    """Consumers that together must get every record: the members of a group, or a single one."""

    def __init__(self, history: "History", name: str) -> None:
        self.name = name
        self.given = 0
        """How many records in all, those that came twice included."""
        self.seen: dict[int, set[int]] = defaultdict(set)
        """Partition -> numbers of the records that anybody was given."""
        self._history = history
        self._furthest: dict[int, int] = defaultdict(lambda: -1)
        self._last: dict[tuple[str, int], int] = {}
        self._began: dict[str, float] = {}
        self._commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
        """Partition -> when commits were acknowledged, and their offsets."""

    def began(self, reader: str) -> None:
        """From here on this reader may be anywhere that the audience has been: it was assigned partitions, say."""
        with self._history.lock:
            for place in [place for place in self._last if place[0] == reader]:
                del self._last[place]
            self._began[reader] = self._history.now()

    def committed(self, partition: int, offset: int) -> None:
        """The server confirmed a reader's commit of an offset."""
        with self._history.lock:
            self._commits[partition].append((self._history.now(), offset))

    def _least_committed(self, partition: int, began: float) -> int:
        """Return where a reader that began then may begin at the earliest.

        A member that lost a partition may have committed a lower offset shortly before.
        """
        told = [each for each in self._commits[partition] if each[0] < began]
        late = [each for each in told if each[0] > began - _OVERLAP_S]
        return min((offset for _, offset in late or told[-1:]), default=0)

    def polled(self, reader: str, partition: int, offset: int, number: int) -> None:
        """A reader was given a record."""
        history = self._history
        with history.lock:
            place = offset if history.dense else number
            self._judge(f"{self.name}, {reader}, was given {partition}:{place}", reader, partition, place)
            history.observed(partition, offset, number, f"{self.name} was given")
            self._last[reader, partition] = place
            self._furthest[partition] = max(self._furthest[partition], place)
            self.given += 1
            self.seen[partition].add(number)

    def _judge(self, what: str, reader: str, partition: int, place: int) -> None:
        last, furthest = self._last.get((reader, partition)), self._furthest[partition]
        least = self._least_committed(partition, self._began.get(reader, 0)) if last is None else 0
        if place < least:
            self._history.tell(Kind.COMMIT_LOST, f"{what}, and {least} was committed")
        if last is not None and place <= last:
            self._history.tell(Kind.POLL_BACK, f"{what} after {last}")
        elif last is not None and place > last + 1:
            self._history.tell(Kind.POLL_SKIP, f"{what} after {last}")
        elif place > furthest + 1:
            self._history.tell(Kind.POLL_SKIP, f"{what}, and nobody was given what lies behind {furthest}")

    def was_told(self, reader: str, error: object) -> None:
        """Record an unexpected error of a consumer."""
        with self._history.lock:
            self._history.tell(Kind.RESET, f"{self.name}, {reader}, was told {error}")

    @property
    def twice(self) -> int:
        """How many records came again. At least once is what a group promises: no anomaly."""
        with self._history.lock:
            return self.given - sum(map(len, self.seen.values()))


class History:
    """Of one topic, whose partitions are written by one producer each, from the first record on."""

    def __init__(self, *, dense: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        """Nothing was seen yet.

        `dense`: offsets begin at 0 and follow each other. Else, as in a native topic, they only rise, and a record's
        number says which one it is: nothing that was sent may be missing.
        """
        self.dense = dense
        self.now = now
        self.lock = threading.RLock()
        self.audiences: list[Audience] = []
        self._found: list[Found] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def audience(self, name: str) -> Audience:
        """Another one."""
        made = Audience(self, name)
        self.audiences.append(made)
        return made

    def tell(self, kind: Kind, what: str) -> None:
        """Note an anomaly."""
        self._found.append(Found(kind, what))

    def observed(self, partition: int, offset: int, number: int, how: str) -> None:
        """Record the number that a client observed at an offset."""
        before = self._numbers.setdefault((partition, offset), number)
        if before != number:
            self.tell(Kind.TWO, f"{how} {partition}:{offset} as record {number}, which was record {before}")

    def unseen(self, acknowledged: Sequence[Mapping[int, int]]) -> int:
        """How many acknowledged records some audience was not given yet."""
        with self.lock:
            return sum(
                len(told.keys() - each.seen[place])
                for each in self.audiences
                for place, told in enumerate(acknowledged)
            )

    def found(self, acknowledged: Sequence[Mapping[int, int]], logs: Sequence[Log]) -> list[Found]:
        """Return all anomalies.

        Args:
            acknowledged: per partition, number of a record -> acknowledged offset.
            logs: final contents of each partition.
        """
        with self.lock:
            for partition, (told, log) in enumerate(zip(acknowledged, logs, strict=True)):
                self._judge_log(partition, log)
                self._judge_answers(partition, told, log)
            return list(self._found)

    def _judge_log(self, partition: int, log: Log) -> None:
        for due, (offset, number) in enumerate(log):
            self.observed(partition, offset, number, "the log has")
            if self.dense and offset != due:
                self.tell(Kind.LOST, f"partition {partition} has offset {offset} where {due} was due")
        for number, times in Counter(number for _, number in log).items():
            if times > 1:
                self.tell(Kind.DUPLICATE, f"partition {partition} has record {number} {times} times")
        there = {offset for offset, _ in log}
        for (place, offset), number in self._numbers.items():
            if place == partition and offset not in there:
                self.tell(Kind.GONE, f"record {number} was seen at {partition}:{offset}")

    def _judge_answers(self, partition: int, told: Mapping[int, int], log: Log) -> None:
        for (earlier, before), (later, behind) in pairwise(sorted(told.items())):
            if behind <= before:
                self.tell(
                    Kind.SEND_BACK, f"{partition}:{behind} for record {later}, {partition}:{before} for {earlier}"
                )
        there, offsets = {number for _, number in log}, {offset for offset, _ in log}
        for number, offset in told.items():
            self.observed(partition, offset, number, "the producer was told of")
            if number not in there:
                self.tell(Kind.LOST, f"record {number}, acknowledged as {partition}:{offset}")
            elif offset not in offsets:
                self.tell(Kind.LOST, f"record {number} lies elsewhere than at {partition}:{offset}, as acknowledged")
        for each in self.audiences:
            unseen = sorted(told.keys() - each.seen[partition])
            if unseen:
                self.tell(
                    Kind.UNSEEN, f"{len(unseen)} records of partition {partition} by {each.name}, first {unseen[0]}"
                )

    def check(self, acknowledged: Sequence[Mapping[int, int]], logs: Sequence[Log]) -> None:
        """Raises Anomaly where `found` finds anything."""
        found = self.found(acknowledged, logs)
        if found:
            kinds = ", ".join(f"{number} {kind}" for kind, number in Counter(each.kind for each in found).items())
            raise Anomaly(f"{kinds}: " + "; ".join(map(str, found[:10])))
