"""Share sessions: which partitions a member fetches, so that its requests name only changes (KIP-932).

A session belongs to one connection and ends with it. Then all records of the member are available again.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum, auto
from uuid import UUID

Place = tuple[UUID, int]
"""Topic ID and partition."""

FIRST_EPOCH = 0
"""Session epoch of a request that opens a session."""
FINAL_EPOCH = -1
"""Session epoch of a request that ends it."""
_LAST_EPOCH = 2**31 - 1
MOST_OF_SESSION = 50_000
"""Partitions of one session. Some steps of its fetches look at all of them at once."""
MOST_PARTITIONS = 500_000
"""Partitions of all sessions of a virtual cluster on one broker. Each takes about 200 bytes."""


class SessionProblem(Enum):
    """Reason of a refused request, with Kafka's names."""

    SHARE_SESSION_NOT_FOUND = auto()
    INVALID_SHARE_SESSION_EPOCH = auto()
    SHARE_SESSION_LIMIT_REACHED = auto()


class SessionError(Exception):
    """A refused request of a session."""

    def __init__(self, problem: SessionProblem) -> None:
        super().__init__(problem.name)
        self.problem = problem


class ShareSession:
    """The session of one member on one connection."""

    __slots__ = ("ended", "epoch", "group", "member_id", "partitions", "served", "told")

    def __init__(self, group: str, member_id: str) -> None:
        self.group = group
        self.member_id = member_id
        self.ended: Callable[[], None] | None = None
        """Called when it has ended or was replaced, so that its connection forgets it."""
        self.epoch = 1
        """Session epoch of the next request."""
        self.partitions: dict[Place, None] = {}
        """Partitions to fetch, in the order in which they were added."""
        self.served: Place | None = None
        """The partition that was served last: the next fetch begins after it."""
        self.told: dict[Place, int] = {}
        """Partition -> error code of the last response, which is not repeated at once."""

    def in_turn(self) -> list[Place]:
        """Return the partitions, beginning after the one that was served last."""
        places = list(self.partitions)
        if self.served in self.partitions:
            start = places.index(self.served) + 1
            return places[start:] + places[:start]
        return places


class ShareSessions:
    """The share sessions of a virtual cluster on this broker."""

    def __init__(self, limit: Callable[[], int]) -> None:
        """Take the maximum number of sessions (`group.share.max.share.sessions`)."""
        self._limit = limit
        self._groups: Counter[str] = Counter()
        """Sessions of each group."""
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: ShareSession) -> bool:
        return self._sessions.get((session.group, session.member_id)) is session

    def has_any(self, group: str) -> bool:
        """Whether a member of a group has a session."""
        return group in self._groups

    def open(self, group: str, member_id: str) -> ShareSession:
        """Open a session. One of the same member ends without releasing anything. Raises SessionError."""
        before = self._sessions.get((group, member_id))
        if before is not None:
            self.end(before)
        elif len(self._sessions) >= self._limit():
            raise SessionError(SessionProblem.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[group, member_id] = ShareSession(group, member_id)
        self._groups[group] += 1
        return session

    def find(self, group: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of a request, and expect the next epoch unless this is the final one.

        Raises:
            SessionError: there is none, or the epoch is not the expected one.
        """
        session = self._sessions.get((group, member_id))
        if session is None:
            raise SessionError(SessionProblem.SHARE_SESSION_NOT_FOUND)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise SessionError(SessionProblem.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return session

    def add(self, session: ShareSession, places: Iterable[Place]) -> None:
        """Add partitions. Raises SessionError if it has ended, or if it or all together have too many."""
        if session not in self:
            # It ended while its request waited. Its partitions would never be removed.
            raise SessionError(SessionProblem.SHARE_SESSION_NOT_FOUND)
        for place in places:
            if place in session.partitions:
                continue
            if self._partitions >= MOST_PARTITIONS or len(session.partitions) >= MOST_OF_SESSION:
                raise SessionError(SessionProblem.SHARE_SESSION_LIMIT_REACHED)
            session.partitions[place] = None
            self._partitions += 1

    def forget(self, session: ShareSession, places: Iterable[Place]) -> None:
        """Remove partitions. The member keeps the records that it holds."""
        for place in places:
            if place in session.partitions:
                del session.partitions[place]
                session.told.pop(place, None)
                self._partitions -= 1

    def end(self, session: ShareSession) -> None:
        """Forget a session. Do nothing if it has ended or was replaced."""
        if session in self:
            del self._sessions[session.group, session.member_id]
            self.forget(session, tuple(session.partitions))
            if session.ended is not None:
                session.ended()
            self._groups[session.group] -= 1
            if not self._groups[session.group]:
                del self._groups[session.group]
