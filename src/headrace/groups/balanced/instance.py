"""A member of a balanced section while the server runs."""

from headrace.groups.balanced.model import GroupCursor
from headrace.groups.model import StoredInstance


class Instance:
    """What the section knows of one member."""

    __slots__ = (
        "commit_on_get",
        "commits",
        "extended_ms",
        "incarnation",
        "joined",
        "last_get",
        "lost",
        "name",
        "seen_ms",
        "served",
        "timeout_ms",
        "told",
    )

    def __init__(self, cursor: GroupCursor, ticks_ms: int) -> None:
        self.name = cursor.instance
        self.joined = 0
        self.begin(cursor.incarnation, cursor.timeout_ms, cursor.commit_on_get, ticks_ms)

    @classmethod
    def restore(cls, stored: StoredInstance, ticks_ms: int) -> "Instance":
        """The member as it was stored; its wait begins anew, and what it has in hand is not known."""
        member = cls.__new__(cls)
        member.name = stored.name
        member.joined = stored.joined
        member.begin(stored.incarnation, stored.timeout_ms, stored.commit_on_get, ticks_ms)
        member.lost = dict(stored.lost)
        member.told = False
        return member

    def begin(self, incarnation: int, timeout_ms: int, commit_on_get: bool, ticks_ms: int) -> None:
        """A life of the instance begins, with nothing in hand: it comes in, or a newer cursor takes over."""
        self.incarnation = incarnation
        self.timeout_ms = timeout_ms
        self.commit_on_get = commit_on_get
        self.seen_ms = ticks_ms
        """When (ticks) its last request came."""
        self.extended_ms = ticks_ms
        """When (ticks) it last committed, or said by a heartbeat that it is at work on what it has in hand."""
        self.lost: dict[int, int] = {}
        self.told = True
        """Whether its cursors have told what it has in hand; not so after a restart of the server."""
        self.served = -1
        """The partition whose records it was given last: the next answer begins behind it."""
        self.last_get: tuple[GroupCursor, int, int] | None = None
        """Cursor, `commits` and `served` of its last get, to know a repeated one by."""
        self.commits = 0
        """How many of its requests moved a position."""

    def stored(self) -> StoredInstance:
        """The form in which it survives a restart."""
        return StoredInstance(
            name=self.name,
            incarnation=self.incarnation,
            timeout_ms=self.timeout_ms,
            commit_on_get=self.commit_on_get,
            joined=self.joined,
            lost=dict(self.lost),
        )

    def is_silent(self, ticks_ms: int) -> bool:
        """Whether its last request lies further back than its timeout."""
        return ticks_ms - self.seen_ms > self.timeout_ms
