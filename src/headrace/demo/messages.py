"""Messages between the demo's processes, as JSON lines."""

from typing import IO

import msgspec

from headrace.demo.flights import Figure


class Assigned(msgspec.Struct, tag=True, frozen=True):
    """All partitions of a consumer."""

    partitions: list[int]


class Read(msgspec.Struct, tag=True, frozen=True):
    """Consecutive records that a consumer read."""

    partition: int
    first: int
    carriers: list[str]
    months: list[int]
    delays: list[int | None]


class SparkReady(msgspec.Struct, tag=True, frozen=True):
    """The Spark session has started."""

    version: str
    java: str


class Archived(msgspec.Struct, tag=True, frozen=True):
    """Progress of the archive."""

    rows: int
    lag: int
    version: int
    """Version of the table."""


class Extent(msgspec.Struct, frozen=True):
    """Data of one partition in the table."""

    rows: int
    distinct: int
    """Number of distinct offsets."""
    first: int
    last: int
    checksum: int
    """Sum of the CRC-32 of every value."""


class Queried(msgspec.Struct, tag=True, frozen=True):
    """Spark's result from the table."""

    extents: dict[int, Extent]
    """By partition."""
    figures: list[tuple[str | None, int | None, Figure]]
    """By carrier and month; None: all."""
    version: int
    files: int
    named: list[tuple[str | None, int | None, Figure]]
    """Other table, by airline and month; None: all."""

    @property
    def rows(self) -> int:
        """Rows."""
        return sum(extent.rows for extent in self.extents.values())

    @property
    def distinct(self) -> int:
        """Distinct (partition, offset)."""
        return sum(extent.distinct for extent in self.extents.values())

    @property
    def checksum(self) -> int:
        """Sum of the CRC-32 of every value."""
        return sum(extent.checksum for extent in self.extents.values())


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A process failed; the reason is one line."""

    reason: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The server's ready line."""

    kafka: str
    http: str
    storage: str


class Ended(msgspec.Struct, tag=True, frozen=True):
    """A process's end, reported by its parent. A negative status is a signal."""

    status: int


class Archive(msgspec.Struct, tag=True, frozen=True):
    """Start the archive, the table with airlines' names and the topic of canceled flights."""

    topic: str
    table: str
    named: str
    """The other table."""
    cancelled: str
    """The other topic."""
    redis: str
    kafka: str
    group: str


class Query(msgspec.Struct, tag=True, frozen=True):
    """Stop the archive and read the tables."""

    table: str
    named: str


Told = Assigned | Read | SparkReady | Archived | Queried | Failed
Asked = Archive | Query

_encoder = msgspec.json.Encoder()
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_asked: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)


def tell(out: IO[bytes], message: Told | Asked) -> None:
    """Write and flush a message: it is delivered even if this process is then killed."""
    out.write(_encoder.encode(message) + b"\n")
    out.flush()


def told(line: bytes) -> Told:
    """Parse a child's line. Raises msgspec.ValidationError, DecodeError."""
    return _told.decode(line)


def asked(line: bytes) -> Asked:
    """Parse a parent's line. Raises as `told`."""
    return _asked.decode(line)
