"""What the broker asks of its storage. `store` has the real thing; `app` puts the two together.

All calls raise `topics.errors` classes: `Fenced`, `StorageFull`, `StorageUnavailable`, or what they name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.groups.model import GroupChange, StoredGroup
from headrace.topics.model import Append, Appended, PartitionState, StoredBatch, Topic

AppendDone = Callable[[Appended | Exception], None]


class LogStorage(Protocol):
    """Topics and their logs."""

    async def load_topics(self) -> list[Topic]:
        """Every topic, in name order."""

    async def create_topic(self, topic: Topic) -> None:
        """Raises TopicExists when the name is taken."""

    async def replace_topic(self, topic: Topic) -> None:
        """Store a changed topic (configuration, more partitions) under its name."""

    async def delete_topic(self, topic: Topic) -> None:
        """Remove the registry entry first, then the streams and side keys."""

    async def open_partition(self, stream: str) -> PartitionState:
        """Fence older servers off the partition and tell where its log starts and ends. Creates what is missing."""

    def append(self, stream: str, append: Append, done: AppendDone) -> None:
        """Send an append now.

        `done` is called before this returns where the answer is certain, else from the connection's reader, in order
        and without a task between. Appends go out in the order of the calls; those of one event loop turn leave in one
        write. The errors given to `done`: OutOfOrderSequence, InvalidProducerEpoch, StorageFull, StorageUnavailable,
        Fenced.
        """

    async def settle(self) -> None:
        """Return when every append given before has its answer, those included that waited to be sent."""

    async def read(self, stream: str, offset: int, count: int, end: int | None = None) -> list[StoredBatch]:
        """At most `count` batches that end at or before offset `end` (None: no such bound).

        The first is the one that holds `offset`, or the next one after it.
        """

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        """The first batch that has a record with this timestamp (ms) or a later one."""

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        """The first batch that holds the log's largest timestamp."""

    async def trim(self, stream: str, *, before_ms: int | None, max_bytes: int | None) -> int:
        """Retention: drop leading batches older than `before_ms` and beyond `max_bytes`; the new log start."""

    async def delete_records(self, stream: str, before_offset: int) -> int:
        """Move the log start up to `before_offset`, also into the middle of a batch; the new log start."""

    async def size(self, stream: str) -> int:
        """Bytes of the record batches in the log."""

    async def allocate_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids nobody was given before."""


class GroupStorage(Protocol):
    """Consumer groups: members and positions."""

    async def load_groups(self) -> list[StoredGroup]:
        """Every group with its members and positions."""

    async def save_group(self, group: str, changes: Sequence[GroupChange]) -> None:
        """Apply all changes atomically, durable when this returns."""

    async def mirror_position(self, stream: str, group: str, offset: int) -> None:
        """Show a position as the Redis consumer group's last delivered id: `<offset>-18446744073709551615`."""


class DocumentStorage(Protocol):
    """Small values that doors keep, such as the OCI door's stream pools: by kind and id, whatever is in them."""

    async def load_documents(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind by id. A kind is a word of letters, digits, `.`, `_` and `-`."""

    async def save_documents(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        """Apply all changes atomically, over several kinds too; durable when this returns.

        Args:
            changes: (kind, id) -> the document from now on; None removes it.
        """


class Storage(LogStorage, GroupStorage, DocumentStorage, Protocol):
    """All that one virtual cluster keeps. Documents, producer ids and the fence are common to all clusters."""


class ClusterStorage(Storage, Protocol):
    """The storage of a server with several virtual clusters; itself it is the default one's."""

    def in_cluster(self, name: str) -> Storage:
        """The storage as another virtual cluster sees it: topics and groups of its own."""

    async def move_topic(self, topic: Topic, source: str, target: str) -> None:
        """Take a topic from one virtual cluster to another; its streams stay. Raises UnknownTopic, TopicExists."""
