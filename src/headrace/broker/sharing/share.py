"""Protocols of a partition in a share group, for fetches and acknowledgements, and of share groups on native topics."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import Isolation, Watchers
from headrace.groups.configs import GroupConfig
from headrace.groups.sharing.partition import AckBatch, AckProblem, Acquired
from headrace.metrics.counters import ShareCounters
from headrace.topics.native import SharePosition

_log = structlog.get_logger("headrace.broker.sharing")


class ShareFound(msgspec.Struct, gc=False):
    """Records for a member."""

    chunks: list[Buffer] = []
    size: int = 0
    acquired: list[Acquired] = []
    unfinished: bool = False
    """Whether nothing was found yet, and the fetch should continue in its next turn."""


class Share(Protocol):
    """A partition of a topic in one share group."""

    group: str
    watchers: Watchers
    """Called with 1 when records may be available, and with 0 when the partition is closed."""

    @property
    def log(self) -> Partition:
        """The partition."""

    @property
    def is_ready(self) -> bool:
        """Whether this broker can serve it now."""

    @property
    def isolation(self) -> Isolation:
        """Isolation level of the group's members."""

    async def ready(self) -> None:
        """Load the state if needed. Raises TopicError."""

    def has_some(self) -> bool:
        """Whether a fetch would find records, by the state in memory."""

    async def fetch(self, member: str, most_records: int, most_bytes: int, *, exact: bool) -> ShareFound:
        """Acquire records, at least one if any is available. Raises TopicError.

        `exact`: whether `most_records` is a strict limit.
        """

    async def acknowledge(
        self, member: str, batches: Sequence[AckBatch], *, renewing: bool
    ) -> AckProblem | Exception | None:
        """Apply a member's list of acknowledgements, and return once it counts, or why none of it does.

        `renewing`: whether it may renew locks.
        """

    async def give_back(self, member: str, acquired: Sequence[Acquired]) -> None:
        """Make acquired records available again that the member does not get."""

    def release(self, member: str) -> None:
        """Release all records of a member."""

    def retire(self, done: Callable[[], None]) -> None:
        """Call `done` when all decisions are stored. It may close the partition."""

    def close(self) -> None:
        """End the waits of members."""


class NativeShareGroups(Protocol):
    """Share groups on native topics, whose states are Redis consumer groups."""

    def open(
        self, group: str, partition: Partition, config: Callable[[], GroupConfig], counters: ShareCounters
    ) -> Share:
        """Return a partition for members. Raises UnknownTopic for one of an internal topic."""

    async def begin(self, group: str, partition: Partition, config: GroupConfig, offset: int | None) -> None:
        """Begin a group at an offset. None: as its configuration says, unless it has begun. Raises TopicError."""

    async def drop(self, group: str, partition: Partition) -> None:
        """Forget a group's position, unless Redis programs use its Redis group. Raises TopicError."""

    async def position(self, group: str, partition: Partition) -> SharePosition | None:
        """Return a group's position. None: it has not begun. Raises TopicError."""


def log_given_up(group: str, partition: Partition, count: int, config: GroupConfig) -> None:
    """Log that records reached the delivery limit. Without a dead letter topic, the group has lost them."""
    _log.warning(
        "records reached the delivery limit", group=group, partition=f"{partition.topic}-{partition.index}",
        records=count, limit=config.share_delivery_count_limit, dead_letter_topic=config.dead_letter_topic or None,
    )  # fmt: skip
