"""One member of a share group."""

from collections.abc import Mapping

from headrace.groups.sharing.events import ShareHeartbeat
from headrace.groups.sharing.model import StoredSharer

_MEMBER_BYTES = 1_000
"""Memory of a member without its topics."""
_TOPIC_BYTES = 100
"""Memory of a subscribed name, besides its characters."""

Assigned = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""


class Sharer:
    """A member with its epoch and its last assignment.

    The assignment is a hint: the member gives nothing up, and the leader of a partition serves any member.
    """

    __slots__ = (
        "assigned",
        "client_host",
        "client_id",
        "epoch",
        "member_id",
        "previous_epoch",
        "rack_id",
        "size",
        "topics",
    )

    def __init__(self, stored: StoredSharer) -> None:
        self.member_id = stored.member_id
        self.rack_id = stored.rack_id
        self.client_id = stored.client_id
        self.client_host = stored.client_host
        self.topics = frozenset(stored.topics)
        self.epoch = stored.epoch
        self.previous_epoch = stored.previous_epoch
        self.assigned: Assigned = stored.assigned
        self.size = charged(self.member_id, self.rack_id, self.topics)
        """Approximate bytes of memory."""

    @classmethod
    def joining(cls, request: ShareHeartbeat) -> "Sharer":
        """Return a new member without an assignment. `update` sets the rest."""
        return cls(
            StoredSharer(
                member_id=request.member_id,
                client_id=request.client_id,
                client_host=request.client_host,
                topics=(),
                epoch=0,
                previous_epoch=0,
            )
        )

    @property
    def stored(self) -> StoredSharer:
        """The stored form."""
        return StoredSharer(
            member_id=self.member_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=tuple(sorted(self.topics)),
            epoch=self.epoch,
            previous_epoch=self.previous_epoch,
            assigned=dict(self.assigned),
        )

    def update(self, request: ShareHeartbeat) -> bool:
        """Apply what the request says about the member. Return whether its subscription changed."""
        if request.member_epoch == 0:
            self.client_id, self.client_host = request.client_id, request.client_host
        if request.rack_id is not None:
            self.rack_id = request.rack_id
        topics = self.topics if request.topics is None else frozenset(request.topics)
        changed = topics != self.topics
        self.topics = topics
        self.size = charged(self.member_id, self.rack_id, topics)
        return changed

    def move_to(self, epoch: int, assigned: Assigned) -> None:
        """Apply a target assignment. A request with the epoch before it is accepted too."""
        self.previous_epoch, self.epoch, self.assigned = self.epoch, epoch, assigned


def charged(member_id: str, rack_id: str | None, topics: frozenset[str] | tuple[str, ...]) -> int:
    """Return the approximate bytes of a member. Clients choose its texts."""
    texts = len(member_id.encode()) + len((rack_id or "").encode())
    return _MEMBER_BYTES + 2 * texts + size_of(topics)


def size_of(topics: frozenset[str] | tuple[str, ...]) -> int:
    """Return the approximate bytes of subscribed names."""
    return sum(map(len, topics)) + _TOPIC_BYTES * len(topics)
