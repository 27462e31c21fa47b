"""A member of a classic group while the server runs."""

from headrace.groups.events import Join, Sync
from headrace.groups.model import StoredMember

Protocols = tuple[tuple[str, bytes], ...]


class Member:
    """State of one member, with its waiting requests."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "held_join",
        "held_sync",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(self, member_id: str, join: Join) -> None:
        self.member_id = member_id
        self.instance_id = join.instance_id
        self.client_id = join.client_id
        self.client_host = join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.protocols: Protocols = join.protocols
        self.assignment = b""
        self.is_new = True
        self.held_join: Join | None = None
        self.held_sync: Sync | None = None

    @classmethod
    def restore(cls, stored: StoredMember) -> "Member":
        """Return the stored member."""
        member = cls.__new__(cls)
        member.member_id = stored.member_id
        member.instance_id = stored.instance_id
        member.client_id = stored.client_id
        member.client_host = stored.client_host
        member.session_timeout_ms = stored.session_timeout_ms
        member.rebalance_timeout_ms = stored.rebalance_timeout_ms
        member.protocols = stored.protocols
        member.assignment = stored.assignment
        member.is_new = False
        member.held_join = None
        member.held_sync = None
        return member

    def stored(self) -> StoredMember:
        """Return its stored form."""
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=self.assignment,
        )

    @property
    def waits(self) -> bool:
        """Whether a request is held. Silence then proves nothing."""
        return self.held_join is not None or self.held_sync is not None

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata for a protocol, or empty bytes."""
        # No generator: groups may have thousands of members.
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """Return its preferred protocol among those of all members."""
        return next(name for name, _ in self.protocols if name in candidates)
