"""Messages between `headrace archive` and its Spark process, as lines of JSON."""

import msgspec

from headrace.lakehouse.status.counters import Progress, Standing


class SparkReady(msgspec.Struct, frozen=True, tag=True):
    """Spark has started."""

    spark: str
    java: str


class Batch(msgspec.Struct, frozen=True, tag=True):
    """A batch is done. The first one of a process has the tables' fences."""

    progress: Progress


class Stand(msgspec.Struct, frozen=True, tag=True):
    """Current progress of tables and logs, by topic."""

    topics: dict[str, Standing]


class Note(msgspec.Struct, frozen=True, tag=True):
    """A line for the user."""

    text: str
    restarting: bool = False
    """Whether Spark is started again."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The archive is complete, or has stopped on request."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The archive cannot continue."""

    text: str
    passing: bool
    """Whether another process may succeed."""
    missing: bool = False
    """Whether a named topic does not exist."""


Told = SparkReady | Batch | Stand | Note | Ended | Failed


class Wanted(msgspec.Struct, frozen=True):
    """The first line of the process's input, at whose end it drains and stops."""

    settings: dict[str, object]
    """Fields of `headrace.spark.archive.ArchiveSettings`, by name."""
    once: bool


_encoder = msgspec.json.Encoder()
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_wanted = msgspec.json.Decoder(Wanted)


def line(message: Told | Wanted) -> bytes:
    """Encode a message."""
    return _encoder.encode(message) + b"\n"


def told(text: bytes) -> Told:
    """Decode a message. Raise msgspec.MsgspecError."""
    return _told.decode(text)


def wanted(text: bytes) -> Wanted:
    """Decode the task. Raise msgspec.MsgspecError."""
    return _wanted.decode(text)
