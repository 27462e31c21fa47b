"""A group with instances on a manual clock: their requests, and logs of offsets and times.

Built on `harness.groups`: classic members may use the same group. The server's part is simplified: effects run in
order, a get reads the requested records and reports them. The invariants are checked after every event.
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from headrace.groups.classic.states import GroupState
from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.events import Event
from headrace.groups.group import Group
from headrace.groups.instances.events import (
    Beat,
    CommitCursor,
    CreateCursor,
    CursorResult,
    Delivered,
    Get,
    InstanceRefused,
    InstanceRequest,
    Plan,
    ReadFrom,
    TopicFacts,
    Update,
)
from headrace.groups.instances.model import GroupCursor, Reservation, StartKind
from headrace.groups.model import GroupSettings, StoredStart, TopicPartition
from tests.harness.groups import GroupContext

TIMEOUT_MS = 30_000
RETENTION_MS = 24 * 3_600_000
TOPIC = "flights"


class ServerGone(Exception):
    """The server went down before it answered."""


@dataclass
class Log:
    """One partition's records: only their times are kept, an offset is a place in the list."""

    times: list[int] = field(default_factory=list)
    start: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    """Leader epochs, each with its first offset."""

    def kept(self, offset: int, leader_epoch: int) -> int:
        """How far the log is what it was under a leader epoch."""
        later = (first for epoch, first in self.epochs if epoch > leader_epoch)
        return offset if leader_epoch < 0 else min(offset, next(later, offset))

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return len(self.times)

    def find(self, time_ms: int) -> int | None:
        """The first record with this time or a later one."""
        return next((offset for offset in range(self.start, self.end) if self.times[offset] >= time_ms), None)


@dataclass(frozen=True)
class Got:
    """The answer to a get."""

    cursor: GroupCursor
    records: tuple[tuple[int, int], ...]
    """(partition, offset) in the order of the answer."""

    def by_partition(self) -> dict[int, list[int]]:
        """Partition -> the offsets delivered."""
        found: dict[int, list[int]] = {}
        for partition, offset in self.records:
            found.setdefault(partition, []).append(offset)
        return found

    @property
    def partitions(self) -> list[int]:
        """The partitions that records came from."""
        return sorted(self.by_partition())


class InstanceContext(GroupContext):
    """One group, the logs of its topics, its storage and its timers."""

    def __init__(self, partitions: int = 1, settings: GroupSettings | None = None, name: str = "group") -> None:
        super().__init__(settings, name)
        self.logs: dict[str, list[Log]] = {TOPIC: [Log() for _ in range(partitions)]}
        self.retention_ms = RETENTION_MS
        self.topic_id: UUID | None = None
        """Sent with every request."""

    # the logs

    def publish(self, partition: int = 0, count: int = 1, *, time_ms: int | None = None, topic: str = TOPIC) -> None:
        """Append records."""
        self.logs[topic][partition].times += [self.now_ms if time_ms is None else time_ms] * count

    def trim(self, partition: int, log_start: int, topic: str = TOPIC) -> None:
        """Retention takes records away."""
        self.logs[topic][partition].start = log_start

    def lose(self, partition: int, log_end: int, topic: str = TOPIC) -> None:
        """Redis returns without the last records, and the log is recovered."""
        log = self.logs[topic][partition]
        del log.times[log_end:]
        epoch = log.epochs[-1][0] + 1
        log.epochs = [*(each for each in log.epochs if each[1] < log_end), (epoch, log_end)]

    def reopen(self, partition: int, topic: str = TOPIC) -> None:
        """The log is recovered without loss, as after each start of a server."""
        self.lose(partition, self.logs[topic][partition].end, topic)

    # verbs

    def create(
        self,
        instance: str,
        start: StartKind = StartKind.TRIM_HORIZON,
        time_ms: int | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        commit_on_get: bool = True,
        topic: str = TOPIC,
        known: bool | None = None,
    ) -> GroupCursor:
        """Send a CreateGroupCursor. `known`: whether the sender thinks that the section exists; asked if None."""
        if known is None:
            known = topic in self.whole.balanced
        request = CreateCursor(
            token=None,
            topic=self.facts(topic),
            instance=instance,
            timeout_ms=timeout_ms,
            commit_on_get=commit_on_get,
            starts=None if known else self._starts(topic, start, time_ms),
            leader_epochs=() if known else self._epochs(topic),
        )
        return self._cursor(request)

    def get(self, cursor: GroupCursor, limit: int = 10**9, *, most_offsets: int = 100, topic: str = TOPIC) -> Got:
        """Send a GetMessages for at most `limit` records."""
        return self.answer_get(self.begin_get(cursor, topic), limit, most_offsets=most_offsets, topic=topic)

    def begin_get(self, cursor: GroupCursor, topic: str = TOPIC) -> Plan:
        """The first half of a get: return the records to read."""
        plan = self.ask(Get(token=None, topic=self.facts(topic), cursor=cursor))
        assert isinstance(plan, Plan)
        return plan

    def answer_get(self, plan: Plan, limit: int = 10**9, *, most_offsets: int = 100, topic: str = TOPIC) -> Got:
        """The second half: read, and say what goes out."""
        offsets = dict(plan.cursor.offsets)
        records: list[tuple[int, int]] = []
        delivered: list[tuple[int, int]] = []
        epochs: list[tuple[int, int]] = []
        cuts: list[tuple[int, int, int]] = []
        for each in plan.reads:
            if each.partition not in offsets and len(offsets) >= most_offsets:
                continue
            log = self.logs[topic][each.partition]
            epoch, kept = log.epochs[-1][0], log.kept(each.reached, each.leader_epoch)
            if kept < each.reached:
                cuts.append((each.partition, kept, epoch))
                continue
            first = self._beginning(log, each)
            if first is None or len(records) >= limit:
                continue
            end = min(log.end, first + limit - len(records))
            if end > first:
                records += [(each.partition, offset) for offset in range(first, end)]
                delivered.append((each.partition, end))
                epochs.append((each.partition, epoch))
                offsets[each.partition] = end
        self.send(Delivered(topic, plan.read, tuple(delivered), tuple(epochs), tuple(cuts)))
        return Got(msgspec.structs.replace(plan.cursor, offsets=tuple(offsets.items())), tuple(records))

    def _beginning(self, log: Log, each: ReadFrom) -> int | None:
        if each.offset >= log.end:
            return None
        if each.not_before_ms is not None:
            found = log.find(each.not_before_ms)
            return None if found is None else max(found, each.offset)
        if each.offset < log.start:
            if not each.follows_log_start:
                raise InstanceError(InstanceProblem.BEHIND_LOG_START, "behind", each.partition)
            return log.start
        return each.offset

    def commit_cursor(self, cursor: GroupCursor, topic: str = TOPIC) -> GroupCursor:
        """Send a ConsumerCommit."""
        return self._cursor(CommitCursor(token=None, topic=self.facts(topic), cursor=cursor))

    def beat(self, cursor: GroupCursor, topic: str = TOPIC) -> GroupCursor:
        """Send a ConsumerHeartbeat."""
        return self._cursor(Beat(token=None, topic=self.facts(topic), cursor=cursor))

    def update(self, start: StartKind, time_ms: int | None = None, *, topic: str = TOPIC) -> None:
        """Send an UpdateGroup."""
        starts = self._starts(topic, start, time_ms)
        self.ask(Update(token=None, topic=self.facts(topic), starts=starts, leader_epochs=self._epochs(topic)))

    def refused(self, problem: InstanceProblem, request: Any) -> InstanceError:
        """Call `request`, which must be refused for this reason."""
        try:
            answer = request()
        except InstanceError as error:
            refusal = error
        else:
            raise AssertionError(f"answered: {answer}")
        assert refusal.kind is problem, f"{refusal.kind}: {refusal}"
        return refusal

    # what is so

    def facts(self, topic: str = TOPIC) -> TopicFacts:
        """The description of a topic in each request."""
        return TopicFacts(topic, len(self.logs[topic]), self.retention_ms, self.topic_id)

    def reservations(self, topic: str = TOPIC) -> list[Reservation]:
        """GetGroup."""
        found = self.whole.reservations(topic, self.now)
        assert found is not None
        return found

    def shares(self, topic: str = TOPIC) -> dict[str, list[int]]:
        """Instance -> the partitions it holds."""
        return self.whole.balanced[topic].shares()

    def counts(self, topic: str = TOPIC) -> list[int]:
        """How many partitions each instance has, fewest first."""
        return sorted(len(held) for held in self.shares(topic).values())

    def committed(self, partition: int = 0, topic: str = TOPIC) -> int | None:
        """GetGroup's committed position: None before the first commit."""
        return self.reservations(topic)[partition].committed

    def at(self, partition: int = 0, topic: str = TOPIC) -> int:
        """The group's position by OffsetFetch."""
        position = self.storage.positions.get(TopicPartition(topic, partition))
        return -1 if position is None else position.offset

    # machinery

    def ask(self, request: InstanceRequest) -> Any:
        """Send a request; its result. Raises InstanceError when it is refused."""
        ticket = self._ticket()
        request = msgspec.structs.replace(request, token=ticket)
        self._request(ticket, request)
        if ticket.lost:
            raise ServerGone
        if isinstance(ticket.result, InstanceRefused):
            raise ticket.result.error()
        return ticket.result

    def _cursor(self, request: InstanceRequest) -> GroupCursor:
        result = self.ask(request)
        assert isinstance(result, CursorResult)
        return result.cursor

    def _epochs(self, topic: str) -> tuple[int, ...]:
        return tuple(log.epochs[-1][0] for log in self.logs[topic])

    def _starts(self, topic: str, start: StartKind, time_ms: int | None) -> tuple[StoredStart, ...]:
        return tuple(self._start(log, start, time_ms) for log in self.logs[topic])

    @staticmethod
    def _start(log: Log, start: StartKind, time_ms: int | None) -> StoredStart:
        if start is StartKind.TRIM_HORIZON:
            return StoredStart(log.start, start)
        if start is StartKind.LATEST:
            return StoredStart(log.end, start)
        assert time_ms is not None
        found = log.find(time_ms)
        return StoredStart(log.end, start, time_ms) if found is None else StoredStart(found, start)

    def send(self, event: Event) -> None:
        """Hand the group an event, carry out its effects, and check what must always hold."""
        if self.group.state is GroupState.DEAD:
            # The server has forgotten it, and makes a new one under its name.
            self._take_up(Group(self.whole.name, self.settings))
        super().send(event)

    def _check(self) -> None:
        super()._check()
        assert self._as_stored() == self._as_is(), "something has changed that storage does not know"
        for topic in self.whole.balanced:
            self._check_section(topic)

    def _as_stored(self) -> list[Any]:
        return [msgspec.structs.replace(section, used_ms=0) for section in self.storage.stored.balanced]

    def _as_is(self) -> list[Any]:
        sections = self.whole.balanced
        return [msgspec.structs.replace(sections[topic].stored(), used_ms=0) for topic in sorted(sections)]

    def _check_section(self, topic: str) -> None:
        reservations = self.reservations(topic)
        shares = self.shares(topic)
        assert all(self.at(each.partition, topic) >= 0 for each in reservations), "a partition has no position"
        if not shares:
            assert all(each.instance is None for each in reservations), "somebody who is gone holds a partition"
            return
        assert all(each.instance is not None for each in reservations), "a partition is free"
        assert sum(len(held) for held in shares.values()) == len(reservations), "a partition is held twice"
        if self.whole.balanced[topic].is_settled:
            counts = self.counts(topic)
            assert counts[-1] - counts[0] <= 1, f"shares: {counts}"
