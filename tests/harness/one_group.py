"""A group with consumers and OCI instances on a manual clock."""

from msgspec.structs import replace

from headrace.groups.effects import Result
from headrace.groups.errors import InstanceProblem
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
    TopicFacts,
    Update,
)
from headrace.groups.instances.model import GroupCursor, Reservation, StartKind
from headrace.groups.model import StoredBalanced, StoredStart
from tests.harness.mixed_groups import MixedContext

TIMEOUT_MS = 30_000
BEGINNING = StoredStart(0, StartKind.TRIM_HORIZON)


class OneGroupContext(MixedContext):
    """One group on `flights` with four partitions of endless records. Members of all kinds join it."""

    def ask(self, request: InstanceRequest) -> Result:
        """Send a request of an instance."""
        ticket = self._ticket()
        result: Result = self._request(ticket, replace(request, token=ticket)).result
        return result

    def create(self, name: str, *, starts: StoredStart = BEGINNING, timeout_ms: int = TIMEOUT_MS) -> GroupCursor:
        """Send a CreateGroupCursor."""
        known = self.facts_of("flights").name in self.whole.balanced
        result = self.ask(
            CreateCursor(
                token=None,
                topic=self.facts_of("flights"),
                instance=name,
                timeout_ms=timeout_ms,
                commit_on_get=True,
                starts=None if known else (starts,) * self.facts["flights"].partitions,
            )
        )
        assert isinstance(result, CursorResult), result
        return result.cursor

    def plan(self, cursor: GroupCursor) -> Plan:
        """Send a GetMessages, which reads on."""
        result = self.ask(Get(token=None, topic=self.facts_of("flights"), cursor=cursor))
        assert isinstance(result, Plan), result
        return result

    def deliver(self, plan: Plan, count: int) -> GroupCursor:
        """Finish a get with this many records of each partition."""
        offsets = {each.partition: each.offset + count for each in plan.reads} if count else {}
        self.ask(Delivered("flights", plan.read, tuple(offsets.items())))  # type: ignore[arg-type]
        return replace(plan.cursor, offsets=tuple((dict(plan.cursor.offsets) | offsets).items()))

    def get(self, cursor: GroupCursor, count: int = 0) -> GroupCursor:
        """Send a GetMessages for this many records of each partition."""
        return self.deliver(self.plan(cursor), count)

    def commit_cursor(self, cursor: GroupCursor) -> Result:
        """Send a ConsumerCommit."""
        return self.ask(CommitCursor(token=None, topic=self.facts_of("flights"), cursor=cursor))

    def beat_cursor(self, cursor: GroupCursor) -> Result:
        """Send a ConsumerHeartbeat."""
        return self.ask(Beat(token=None, topic=self.facts_of("flights"), cursor=cursor))

    def update(self, offset: int) -> Result:
        """Send an UpdateGroup."""
        starts = (StoredStart(offset, StartKind.LATEST),) * self.facts["flights"].partitions
        return self.ask(Update(token=None, topic=self.facts_of("flights"), starts=starts))

    def problem(self, result: Result) -> InstanceProblem:
        """The problem of a refused request."""
        assert isinstance(result, InstanceRefused), result
        return result.kind

    def facts_of(self, topic: str) -> TopicFacts:
        """The description of a topic in each request of an instance."""
        found = self.facts[topic]
        return TopicFacts(topic, found.partitions, 24 * 3_600_000, found.topic_id)

    @property
    def section(self) -> StoredBalanced:
        """The stored section."""
        (found,) = self.stored.balanced
        return found

    def owned(self, name: str) -> list[int]:
        """Partitions of an instance."""
        owners = self.section.owners
        return [index for index, owner in enumerate(owners) if owner is not None and owner.instance == name]

    def reservations(self) -> list[Reservation]:
        """GetGroup."""
        found = self.whole.reservations("flights", self.now)
        assert found is not None
        return found
