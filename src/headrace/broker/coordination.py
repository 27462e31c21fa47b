"""Which groups this server coordinates, and what has to be known to take one over."""

from collections.abc import Awaitable, Callable

from headrace.broker.ownership import Ownership


class Coordination:
    """The groups of one virtual cluster."""

    def __init__(self, ownership: Ownership, cluster: str, has_topic: Callable[[str], Awaitable[bool]]) -> None:
        """Begin.

        Args:
            ownership: what is this server's.
            cluster: the virtual cluster's name.
            has_topic: tells whether there is a topic, asking storage for one that is not known here.
        """
        self._ownership = ownership
        self._cluster = cluster
        self.has_topic = has_topic

    @property
    def shared(self) -> bool:
        """Whether there may be other brokers."""
        return self._ownership.shared

    @property
    def number(self) -> int | None:
        """The number of the view; None: this server is alone."""
        return self._ownership.number

    @property
    def unbroken(self) -> bool:
        """Whether there was no view between this one and the one that this server went by before it."""
        return self._ownership.unbroken

    def owns(self, group: str) -> bool:
        """Whether this server coordinates a group."""
        return self._ownership.owns(self._ownership.group_key(self._cluster, group))

    @property
    def certain(self) -> bool:
        """Whether nobody can have taken its groups over by now."""
        return self._ownership.certain()
