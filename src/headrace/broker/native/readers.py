"""A native partition as one Fetch reads it: for a member of a group, or for nobody.

Redis is asked at least once by each fetch, since anybody may have added entries; while it waits, it is told of them.
"""

from headrace.broker.native.delivery import Delivery
from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Watcher


class Reader:
    """A partition as somebody reads it who is in no group."""

    def __init__(self, partition: NativePartition) -> None:
        self.partition = partition
        self._asked = False

    @property
    def log_start(self) -> int:
        """First offset that may be read."""
        return self.partition.log_start

    @property
    def log_end(self) -> int:
        """The offset behind the last record."""
        return self.partition.log_end

    def check_readable(self, offset: int) -> None:
        """Raise UnknownTopic once the topic is deleted."""
        self.partition.check_readable(offset)

    def at_end(self, offset: int) -> bool:
        """Whether a read would find nothing: not before Redis has been asked."""
        return self._asked and self.partition.log_end <= offset

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Never: native topics are read from Redis."""
        return False

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False
    ) -> tuple[list[Buffer], int]:
        """An empty answer: nothing is cached."""
        return [], 0

    async def read_stored(
        self, offset: int, limit: int, *, join: bool = False, first: int | None = None
    ) -> tuple[list[Buffer], int]:
        """Batches from `offset` on; see `NativePartition.read_stored`."""
        self._asked = True
        return await self.partition.read_stored(offset, limit, first=first)

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of new records."""
        self.partition.watch(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling."""
        self.partition.unwatch(watcher)


class GroupReader(Reader):
    """A partition as the member of a group reads it that owns it."""

    def __init__(self, delivery: Delivery, member: str) -> None:
        super().__init__(delivery.partition)
        self._delivery = delivery
        self._member = member

    def at_end(self, offset: int) -> bool:
        """Whether a read would find nothing: not before Redis has been asked."""
        return super().at_end(offset) and self._delivery.at_end(self._member, offset)

    async def read_stored(
        self, offset: int, limit: int, *, join: bool = False, first: int | None = None
    ) -> tuple[list[Buffer], int]:
        """Batches for this member; see `Delivery.read`."""
        self._asked = True
        return await self._delivery.read(self._member, offset, limit, first)
