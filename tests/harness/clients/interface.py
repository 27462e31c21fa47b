"""What the tests of `tests/clients` ask of a Kafka client, whichever library it is.

An adapter is one file that fills this in with its library's own calls, and one line in `ADAPTERS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Literal, Self

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
Reset = Literal["earliest", "latest", "error"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record to send."""

    key: bytes | None = None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    """Milliseconds since the epoch; None: the client's clock."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A record that came back."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def sent(self) -> Record:
        """The record as its producer gave it."""
        return Record(key=self.key, value=self.value, headers=self.headers, timestamp=self.timestamp)


class ClientFailed(Exception):
    """The client reports an error of the server; `code` is the protocol's number for it, None when it gives none."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


class Member(ABC):
    """A member of a consumer group. It commits only on request, unless its library has no such call."""

    @abstractmethod
    def poll(self, seconds: float, count: int = 500) -> list[Received]:
        """Return up to `count` records within this time, while it takes part in rebalances."""

    @abstractmethod
    def owned(self) -> frozenset[int]:
        """The partitions assigned to it now."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the offsets after the records that `poll` has returned."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, without a commit where that can be chosen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Client(ABC):
    """One library, pointed at one server."""

    name: ClassVar[str]
    codecs: ClassVar[frozenset[Codec]] = frozenset(CODECS)
    """What it can write and read as installed."""
    sets_timestamps: ClassVar[bool] = True
    """Whether a record may be given a timestamp."""
    cannot_send: ClassVar[frozenset[tuple[bytes | None, bytes | None]]] = frozenset()
    """Pairs of key and value that the library itself does not take."""

    null_headers: ClassVar[bool] = True
    """Whether it can write a header without a value."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def send(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: Codec = "none",
        acks: Literal["0", "1", "all"] = "all",
        idempotent: bool = False,
        largest: int = 1_000_000,
    ) -> None:
        """Send and wait until all is acknowledged (acks=0: sent); `largest` is the client's own limit in bytes.

        Raises ClientFailed.
        """

    @abstractmethod
    def read(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        offset: int = 0,
        reset: Reset = "error",
        seconds: float = 60,
    ) -> list[Received]:
        """`count` records of a partition from an offset on, without a group; fewer when the time is over.

        `reset` says what to do when the offset is out of range. Raises ClientFailed.
        """

    @abstractmethod
    def member(self, group: str, topic: str, *, instance: str | None = None, reset: Reset = "earliest") -> Member:
        """Join a group; returns before the group has settled."""
