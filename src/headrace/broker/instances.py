"""Balanced groups as doors use them: cursors in, records and cursors out."""

from headrace.broker.groups import GroupTable
from headrace.broker.reading import Sink
from headrace.broker.topics import LiveTopic
from headrace.groups.balanced.errors import InstanceError, InstanceProblem
from headrace.groups.balanced.model import GroupCursor, Reservation, Start, StartKind

__all__ = ["GroupCursor", "InstanceError", "InstanceProblem", "Instances", "Reservation", "Sink", "Start", "StartKind"]

MOST_GROUPS = 50
"""Groups that a topic may have (OCI Streaming)."""


class Instances:
    """What the instances of balanced groups ask for. Every call raises InstanceError."""

    def __init__(self, groups: GroupTable) -> None:
        self._groups = groups

    async def create_cursor(
        self,
        topic: LiveTopic,
        group: str,
        instance: str,
        start: Start,
        timeout_ms: int,
        commit_on_get: bool,
        max_groups: int | None = MOST_GROUPS,
    ) -> GroupCursor:
        """A cursor for an instance; makes the group if it is missing.

        Args:
            topic: the topic; a group of the same name on another topic is another one.
            group: its name, 1 to 255 bytes.
            instance: the instance's name, 1 to 255 bytes. A name that is in the group already is that instance,
                restarted: it keeps its partitions, goes on from committed positions, and older cursors can no longer
                commit.
            start: where a new group begins; not used when the group exists.
            timeout_ms: silence after which the instance is out.
            commit_on_get: whether each get commits what the one before delivered.
            max_groups: how many groups the topic may have; None: any number.

        Raises:
            InstanceError: TOO_MANY_GROUPS; GROUP_IN_USE, for a new group under the name of a classic one that has
                members; UNAVAILABLE.
        """
        raise NotImplementedError

    async def get(self, topic: LiveTopic, cursor: GroupCursor, sink: Sink, max_offsets: int) -> GroupCursor:
        """Rebalance if needed, commit what the cursor carries if it says so, then read into `sink`.

        Args:
            topic: the group's topic.
            cursor: from any earlier answer to this instance.
            sink: takes the records. Left empty: no partition that the instance holds has an unread one.
            max_offsets: the most (partition, offset) pairs that the next cursor may carry.

        Returns:
            The next cursor. The same request may be sent again: it gives the same records.

        Raises:
            InstanceError: UNRESERVED_PARTITION, UNKNOWN_GROUP, GROUP_IN_USE, BEHIND_LOG_START, INVALID_CURSOR,
                UNAVAILABLE. The sink's content is then void.
            UnknownTopic: the topic was deleted meanwhile.
        """
        raise NotImplementedError

    async def commit(self, topic: LiveTopic, cursor: GroupCursor) -> GroupCursor:
        """Commit what the cursor carries and keep the instance alive; the next cursor, which carries nothing.

        Raises:
            InstanceError: as `get`, but for BEHIND_LOG_START.
        """
        raise NotImplementedError

    async def heartbeat(self, topic: LiveTopic, cursor: GroupCursor) -> GroupCursor:
        """Keep the instance alive, or take it in; commits nothing. The next cursor, which carries the same.

        Raises:
            InstanceError: UNKNOWN_GROUP, GROUP_IN_USE, INVALID_CURSOR, UNAVAILABLE.
        """
        raise NotImplementedError

    async def update(self, topic: LiveTopic, group: str, start: Start) -> None:
        """Set the whole group to a new start. What was delivered before can no longer be committed.

        Raises:
            InstanceError: UNKNOWN_GROUP; GROUP_IN_USE while classic members are in it; UNAVAILABLE.
        """
        raise NotImplementedError

    def describe(self, topic: LiveTopic, group: str) -> list[Reservation]:
        """Every partition of the topic with its position and holder. Raises InstanceError UNKNOWN_GROUP."""
        raise NotImplementedError

    def groups_of(self, topic: LiveTopic) -> list[str]:
        """Names of the topic's balanced groups, sorted."""
        raise NotImplementedError
