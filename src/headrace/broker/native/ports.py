"""What native topics ask of the storage, beside `broker.ports`. `headrace.store.native` has the real thing.

All calls raise `topics.errors` classes: `Fenced`, `StorageFull`, `StorageUnavailable` (`NotAStream` for a key that is
no stream any more), or what they name.
"""

from collections.abc import Callable
from typing import Protocol

from headrace.broker.ports import AppendDone
from headrace.topics.model import Append, Topic
from headrace.topics.native import Entered, Extent, GroupLag, NativeRead, NativeStream


class NativeStorage(Protocol):
    """Plain streams and their consumer groups."""

    async def open_native(self, stream: NativeStream, *, must_exist: bool = False) -> Extent:
        """Fence older servers off a partition; where it starts and ends."""

    async def drop_streams(self, topic: Topic) -> None:
        """Remove a topic's streams and what is kept beside them; adopted ones stay, and so does the registry."""

    async def native_extent(self, stream: NativeStream) -> Extent:
        """Where the log starts and ends just now."""

    async def native_size(self, stream: NativeStream) -> int:
        """Bytes that the stream takes in Redis, about; 0 when it is gone."""

    async def ahead_ms(self, stream: NativeStream) -> int:
        """How many ms a record's timestamp has been ahead of its offset's at most."""

    def append_native(self, stream: NativeStream, append: Append, done: AppendDone) -> None:
        """Append the records of a batch, all or none. Raises CorruptBatch when they cannot be read."""

    async def read_native(
        self, stream: NativeStream, offset: int, count: int, limit: int, before: int | None = None
    ) -> NativeRead:
        """At most `count` entries from `offset` on, below `before`, as batches of about `limit` bytes at most."""

    async def read_last(self, stream: NativeStream, before: int, count: int, limit: int) -> NativeRead:
        """The last `count` entries below an offset, in order."""

    async def read_new(self, stream: NativeStream, group: str, member: str, count: int, limit: int) -> NativeRead:
        """Entries nobody in the group was given yet; they are pending for `member` then. Raises GroupGone."""

    async def read_pending(
        self, stream: NativeStream, group: str, member: str, offset: int, count: int, limit: int, before: int
    ) -> NativeRead:
        """Entries from `offset` on, below `before`, that are pending for `member`. Raises GroupGone."""

    async def is_gap(self, stream: NativeStream, start: int | str, end: int) -> bool:
        """Whether no entry lies from an offset, or behind an id, to before another offset."""

    async def trim_native(
        self,
        stream: NativeStream,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
    ) -> Extent:
        """Retention by time and bytes, or up to an offset."""

    def watch(self, stream: NativeStream, after: int, woken: Callable[[int | None], None]) -> None:
        """Call `woken` once when there is an entry at or after an offset, whoever adds it.

        It is told where the log ends then, or None when that has to be asked.
        """

    def unwatch(self, stream: NativeStream) -> None:
        """Stop that."""

    async def enter(self, stream: NativeStream, group: str, member: str, create_at: int) -> Entered:
        """A member begins to read: the group is there, and what earlier owners left pending is the member's."""

    async def commit_native(self, stream: NativeStream, group: str, offset: int, kind: str = "") -> tuple[int, bool]:
        """Acknowledge below an offset; entries acknowledged, and whether the group was moved."""

    async def native_position(self, stream: NativeStream, group: str, committed: int | None) -> int | None:
        """Where a group stands, whoever moved it; None when it has not begun."""

    async def leave(self, stream: NativeStream, group: str, member: str) -> bool:
        """Remove a member's consumer where nothing is pending for it."""

    async def forget_group(self, stream: NativeStream, group: str) -> bool:
        """Destroy the Redis group unless a Redis program is in it."""

    async def group_lags(self, stream: NativeStream) -> list[GroupLag]:
        """Every Redis consumer group of the stream, with its lag."""
