"""What the process with Spark in it tells the one that watches: a line of JSON each."""

import msgspec

from headrace.lakehouse.status.counters import Progress, Standing


class SparkReady(msgspec.Struct, frozen=True, tag=True):
    """Spark has started."""

    spark: str
    java: str


class Batch(msgspec.Struct, frozen=True, tag=True):
    """A batch is done; the first one of a process says where the tables stand."""

    progress: Progress


class Stand(msgspec.Struct, frozen=True, tag=True):
    """How far the tables and the logs are just now, by topic."""

    topics: dict[str, Standing]


class Note(msgspec.Struct, frozen=True, tag=True):
    """A line for a person."""

    text: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """It is done, or stopped as it was asked to."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot go on."""

    text: str
    passing: bool
    """Whether another process may do better."""
    missing: bool = False
    """Whether a topic that was named is not there."""


Told = SparkReady | Batch | Stand | Note | Ended | Failed


class Wanted(msgspec.Struct, frozen=True):
    """What the process is to do; the first line that it reads. Its input's end means: drain and stop."""

    settings: dict[str, object]
    """`headrace.spark.archive.ArchiveSettings`, by name."""
    once: bool


_encoder = msgspec.json.Encoder()
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_wanted = msgspec.json.Decoder(Wanted)


def line(message: Told | Wanted) -> bytes:
    """A message as it is sent."""
    return _encoder.encode(message) + b"\n"


def told(text: bytes) -> Told:
    """The inverse of `line`; raises msgspec.MsgspecError."""
    return _told.decode(text)


def wanted(text: bytes) -> Wanted:
    """The inverse of `line`; raises msgspec.MsgspecError."""
    return _wanted.decode(text)
