"""OCI instances of a group as their programs run them: gets whose reads take time, commits and heartbeats."""

from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from headrace.groups.errors import InstanceProblem
from headrace.groups.events import Commit
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
    Taken,
    TopicFacts,
)
from headrace.groups.instances.model import GroupCursor, StartKind
from headrace.groups.model import StoredBalanced, StoredStart, TopicPartition
from tests.harness.consumer_processes import ConsumerContext, Part

FOR_EVER_MS = -1
AGAIN_MS = 500


@dataclass(eq=False)
class InstanceProcess:
    """A program with one instance."""

    ctx: ConsumerContext
    random: Random
    topic: str
    name: str
    timeout_ms: int
    cursor: GroupCursor | None = None
    plan: Plan | None = None
    """A get that the server is still reading for."""
    has_lost: bool = False
    """Whether it was removed since its last get."""
    running: bool = True
    paused_until_ms: int = 0
    next_ms: int = 0

    @property
    def member_id(self) -> str:
        """Its name, as tools show it."""
        return f"{self.topic}/{self.name}"

    @property
    def facts(self) -> TopicFacts:
        """The description of the topic in each request."""
        found = self.ctx.topics[self.topic]
        return TopicFacts(self.topic, found.partitions, FOR_EVER_MS, found.topic_id)

    @property
    def section(self) -> StoredBalanced | None:
        """The stored section."""
        return next((each for each in self.ctx.stored.balanced if each.topic == self.topic), None)

    @property
    def is_member(self) -> bool:
        """Whether the server knows it."""
        return self.section is not None and any(each.name == self.name for each in self.section.instances)

    def parts(self) -> set[Part]:
        """What it may read or commit, with the topic's ID."""
        found = self.ctx.topics.get(self.topic)
        if found is None:
            return set()
        reads = {each.partition for each in self.plan.reads} if self.plan is not None else set()
        cursor = self.cursor if self.plan is None else self.plan.cursor
        for index, offset in () if cursor is None or self.has_lost else cursor.offsets:
            position = self.ctx.storage.positions.get(TopicPartition(self.topic, index))
            if position is None or position.offset < offset:
                reads.add(index)
        return {(found.topic_id, index) for index in reads}

    def interrupt(self) -> None:
        """The server goes down. A get under way gets no response."""
        self.plan = None

    def lose(self) -> None:
        """The server has removed it. It may go on with its cursor, but no longer has its partitions."""
        self.plan, self.has_lost = None, True

    def forget(self) -> None:
        """Drop what it has."""
        self.cursor = self.plan = None
        self.has_lost = False

    def begin(self) -> dict[int, int]:
        """Send the next request. Return the partitions to read with their first offsets, if it is a get."""
        self.next_ms = self.ctx.now_ms + self.random.choice([100, 500, 1_000])
        dice = self.random.random()
        if self.cursor is None:
            self._create()
        elif dice < 0.1:
            self._ask(Beat(token=None, topic=self.facts, cursor=self.cursor))
        elif dice < 0.3:
            result = self._ask(CommitCursor(token=None, topic=self.facts, cursor=self.cursor))
            if isinstance(result, CursorResult):
                self.cursor = result.cursor
        else:
            result = self._ask(Get(token=None, topic=self.facts, cursor=self.cursor))
            if isinstance(result, Plan):
                self.plan, self.has_lost = result, False
                return {each.partition: each.offset for each in result.reads}
        return {}

    def answer(self) -> dict[int, int]:
        """Take the response of a get. Return the end of what was read of each partition."""
        assert self.plan is not None
        plan, self.plan = self.plan, None
        ends = {each.partition: each.offset + self.random.randint(0, 3) for each in plan.reads}
        delivered = {each.partition: ends[each.partition] for each in plan.reads if ends[each.partition] > each.offset}
        ticket = self.ctx.request(Delivered(self.topic, plan.read, tuple(delivered.items())))
        if ticket.lost or not isinstance(ticket.result, Taken):
            # It gets the same again.
            return {}
        offsets = {**dict(plan.cursor.offsets), **delivered}
        self.cursor = replace(plan.cursor, offsets=tuple(offsets.items()))
        return delivered

    def _create(self) -> None:
        starts = (StoredStart(0, StartKind.TRIM_HORIZON),) * self.facts.partitions
        result = self._ask(
            CreateCursor(
                token=None,
                topic=self.facts,
                instance=self.name,
                timeout_ms=self.timeout_ms,
                commit_on_get=True,
                starts=None if self.section is not None else starts,
            )
        )
        if isinstance(result, CursorResult):
            self.cursor = result.cursor

    def _ask(self, request: InstanceRequest | Commit) -> CursorResult | Plan | None:
        """Return the result. None: it was refused, or the server went down."""
        ticket = self.ctx.request(request)
        if ticket.lost:
            return None
        result = ticket.result
        if isinstance(result, InstanceRefused):
            if result.kind in (InstanceProblem.UNAVAILABLE, InstanceProblem.GROUP_IN_USE):
                self.next_ms = self.ctx.now_ms + AGAIN_MS
            else:
                self.forget()
            return None
        assert isinstance(result, CursorResult | Plan)
        return result
