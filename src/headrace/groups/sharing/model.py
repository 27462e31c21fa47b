"""What is stored of a share group in the group's main hash, besides its header."""

from uuid import UUID

import msgspec

SHARER_FIELD = "sharer:"
SHARED_FIELD = "shared:"


class StoredSharer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored member of a share group (KIP-932)."""

    member_id: str
    rack_id: str | None = None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Subscribed names."""
    epoch: int
    previous_epoch: int
    """Always accepted too, because a response may be lost."""
    assigned: dict[str, tuple[int, ...]] = {}
    """Topic -> partitions of its last assignment."""

    @property
    def field(self) -> str:
        """Name in the group's main hash, which older servers skip and delete whole."""
        return f"{SHARER_FIELD}{self.member_id}"


class StoredShareTopic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic with states of the group's share partitions. They outlive its members."""

    topic: str
    topic_id: UUID
    partitions: int
    """Number of partitions with states."""
    epoch: int
    """State epoch of the partitions."""
    altered: dict[int, int] = {}
    """Partition -> its state epoch, if its offset was altered later."""
    begins: dict[int, int] = {}
    """Partition -> the altered offset. Its state may not have been stored."""

    @property
    def field(self) -> str:
        """Name in the group's main hash."""
        return f"{SHARED_FIELD}{self.topic}"

    def state_epoch(self, partition: int) -> int:
        """Return the state epoch of a partition. A stored state with a lower one is outdated."""
        return self.altered.get(partition, self.epoch)
