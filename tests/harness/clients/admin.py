"""What `tests/clients/test_admin.py` asks of a library's admin client, whichever it is."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Literal, Self

import msgspec

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""
Spec = Literal["earliest", "latest", "max_timestamp"] | int
"""What ListOffsets looks for; a number is a timestamp (ms)."""


class Group(msgspec.Struct, frozen=True):
    """A described group."""

    state: str
    """As Kafka spells it, in lower case: `stable`, `empty`, `dead`."""
    members: dict[str, frozenset[Place]]
    """Member id -> what is assigned to it."""


class Admin(ABC):
    """One library's admin client. Every call raises ClientFailed with the protocol's code."""

    name: ClassVar[str]

    @abstractmethod
    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        """Create a topic."""

    @abstractmethod
    def delete(self, topic: str) -> None:
        """Delete a topic."""

    @abstractmethod
    def topics(self) -> set[str]:
        """The names of all topics."""

    @abstractmethod
    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition."""

    @abstractmethod
    def configs(self, topic: str) -> dict[str, str]:
        """A topic's whole configuration."""

    @abstractmethod
    def offset(self, place: Place, spec: Spec) -> tuple[int, int]:
        """An offset and its timestamp, -1 for none."""

    @abstractmethod
    def groups(self) -> set[str]:
        """The names of all groups."""

    @abstractmethod
    def group(self, name: str) -> Group:
        """Describe a group."""

    @abstractmethod
    def committed(self, group: str) -> dict[Place, int]:
        """Every position of a group."""

    @abstractmethod
    def move(self, group: str, positions: dict[Place, int]) -> None:
        """Commit positions for a group without members."""

    @abstractmethod
    def delete_group(self, name: str) -> None:
        """Delete a group."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
