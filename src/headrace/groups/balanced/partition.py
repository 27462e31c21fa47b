"""One partition of a balanced section while the server runs: who has it, who shall have it, what is in flight."""

from headrace.groups.model import StoredOwner, StoredStart


class Holding:
    """A partition's owner and what hangs on it.

    A tenure is the time one owner has it without a break; `granted` names it. A tenure that has lapsed continues if its
    instance returns before the partition was granted to another one.
    """

    __slots__ = (
        "delivered",
        "exposed",
        "granted",
        "lapsed",
        "leader_epoch",
        "owner",
        "readers",
        "since_ms",
        "start",
        "target",
        "valid_from",
    )

    def __init__(
        self,
        start: StoredStart | None,
        owner: StoredOwner | None = None,
        valid_from: int = 0,
        *,
        exposed: bool = False,
    ) -> None:
        self.start = start
        """Where it began, as long as nothing was committed."""
        self.owner = None if owner is None else owner.instance
        self.granted = 0 if owner is None else owner.generation
        """The generation in which the owner got it."""
        self.lapsed: tuple[str, int] | None = None
        """Name and incarnation of the instance whose tenure has lapsed, while no instance owns the partition."""
        self.valid_from = valid_from
        """Offsets of older cursors cannot be committed: the position or the log was replaced in this generation."""
        self.exposed = exposed
        """Whether cursors may exist whose offsets in this partition are valid."""
        self.target: str | None = None
        """Who shall have it instead of the owner."""
        self.since_ms = 0
        """Since when (ticks) the owner is to give it up."""
        self.delivered = -1
        """Next offset after what was delivered in this tenure; -1: nothing was, as far as is known."""
        self.readers = 0
        """Gets of this tenure that are reading it now."""
        self.leader_epoch = -1
        """The leader epoch of the log when something was last read from it, as storage has it with the position, whose
        own may be later. -1: not known."""

    def stored_owner(self) -> StoredOwner | None:
        """The form in which the owner survives a restart."""
        return None if self.owner is None else StoredOwner(self.owner, self.granted)

    def grant(self, owner: str, incarnation: int, generation: int) -> None:
        """Give the partition to an instance, by this generation. A tenure that has lapsed continues."""
        self.owner, self.target = owner, None
        if self.lapsed != (owner, incarnation):
            self.begin_tenure(generation)
        self.lapsed = None

    def begin_tenure(self, generation: int) -> None:
        """The owner has the partition from this generation on, with nothing in flight."""
        self.granted = generation
        self.forget_flight()

    def invalidate(self, generation: int) -> None:
        """Start over with this generation: no offset that was delivered before it can be committed."""
        self.valid_from = generation
        self.exposed = False
        self.begin_tenure(generation)

    def release(self) -> None:
        """The tenure ends; for whom it is meant stays known."""
        self.owner = self.lapsed = None
        self.forget_flight()

    def lapse(self, incarnation: int) -> None:
        """The owner is silent: the partition is free, and still the owner's until another instance takes it."""
        assert self.owner is not None
        self.lapsed, self.owner = (self.owner, incarnation), None

    def belongs_to(self, name: str, incarnation: int) -> bool:
        """Whether an instance owns the partition, or did when it fell silent."""
        return self.owner == name or self.lapsed == (name, incarnation)

    def forget_flight(self) -> None:
        """What is in flight can no longer be committed."""
        self.delivered, self.readers = -1, 0

    def aim(self, target: str | None, ticks_ms: int) -> None:
        """Decide who shall have it next; None: the owner keeps it."""
        if self.target is None and target is not None:
            self.since_ms = ticks_ms
        self.target = target

    def in_flight(self, position: int) -> bool:
        """Whether records behind `position` are with the owner, or on their way to it."""
        return self.readers > 0 or self.delivered > position
