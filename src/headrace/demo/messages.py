"""What the processes of the demo tell each other: JSON lines on their standard input and output."""

from typing import IO

import msgspec

from headrace.demo.flights import Figure


class Assigned(msgspec.Struct, tag=True, frozen=True):
    """A reader's share of the partitions changed; these are all that it has now."""

    partitions: list[int]


class Read(msgspec.Struct, tag=True, frozen=True):
    """Records that a reader got, of one partition, with offsets in one row from `first` on."""

    partition: int
    first: int
    carriers: list[str]
    months: list[int]
    delays: list[int | None]


class SparkReady(msgspec.Struct, tag=True, frozen=True):
    """The Spark session stands."""

    version: str
    java: str


class Archived(msgspec.Struct, tag=True, frozen=True):
    """Where the archive stands."""

    rows: int
    lag: int
    version: int
    """Of the table."""


class Extent(msgspec.Struct, frozen=True):
    """What the table has of one partition."""

    rows: int
    distinct: int
    """Different offsets."""
    first: int
    last: int
    checksum: int
    """The sum of the CRC-32 of every value."""


class Queried(msgspec.Struct, tag=True, frozen=True):
    """What Spark reads in the table."""

    extents: dict[int, Extent]
    """By partition."""
    figures: list[tuple[str | None, int | None, Figure]]
    """By carrier and month, None for all."""
    version: int
    files: int
    named: list[tuple[str | None, int | None, Figure]]
    """Of the other table, by the name of the airline and month, None for all."""

    @property
    def rows(self) -> int:
        """In all."""
        return sum(extent.rows for extent in self.extents.values())

    @property
    def distinct(self) -> int:
        """Different (partition, offset)."""
        return sum(extent.distinct for extent in self.extents.values())

    @property
    def checksum(self) -> int:
        """The sum of the CRC-32 of every value."""
        return sum(extent.checksum for extent in self.extents.values())


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The process cannot go on, and why, in one line."""

    reason: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The server's ready line."""

    kafka: str
    http: str
    storage: str


class Ended(msgspec.Struct, tag=True, frozen=True):
    """A process has ended; made by whoever started it. Below zero: the signal that ended it."""

    status: int


class Archive(msgspec.Struct, tag=True, frozen=True):
    """To the Spark process: begin to archive, and beside it to write flights with their airlines' names."""

    topic: str
    table: str
    named: str
    """The other table."""
    redis: str
    kafka: str
    group: str


class Query(msgspec.Struct, tag=True, frozen=True):
    """To the Spark process: end the archive, and read the tables."""

    table: str
    named: str


Told = Assigned | Read | SparkReady | Archived | Queried | Failed
Asked = Archive | Query

_encoder = msgspec.json.Encoder()
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_asked: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)


def tell(out: IO[bytes], message: Told | Asked) -> None:
    """Write one message and flush: when this returns, the other process gets it, even if this one is killed."""
    out.write(_encoder.encode(message) + b"\n")
    out.flush()


def told(line: bytes) -> Told:
    """Read a line of a child. Raises msgspec.ValidationError or DecodeError."""
    return _told.decode(line)


def asked(line: bytes) -> Asked:
    """Read a line of the parent. Raises msgspec.ValidationError or DecodeError."""
    return _asked.decode(line)
