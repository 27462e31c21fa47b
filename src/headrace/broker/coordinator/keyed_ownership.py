"""Ownership of the machines of one kind, such as the groups or the transactional IDs of a virtual cluster."""

from collections.abc import Callable

from headrace.broker.brokers.ownership import Ownership


class KeyedOwnership:
    """Ownership of one kind of machine in a virtual cluster. `key` returns a machine's key for the rendezvous."""

    def __init__(self, ownership: Ownership, key: Callable[[str], str]) -> None:
        self._ownership = ownership
        self._key = key

    @property
    def shared(self) -> bool:
        """See `coordinator.Ownership`."""
        return self._ownership.shared

    @property
    def number(self) -> int | None:
        """See `coordinator.Ownership`."""
        return self._ownership.number

    @property
    def unbroken(self) -> bool:
        """See `coordinator.Ownership`."""
        return self._ownership.unbroken

    def owns(self, name: str) -> bool:
        """See `coordinator.Ownership`."""
        return self._ownership.owns(self._key(name))

    @property
    def certain(self) -> bool:
        """See `coordinator.Ownership`."""
        return self._ownership.certain()
