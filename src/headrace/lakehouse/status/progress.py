"""Where a running archive stands, as it tells whoever watches it."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Standing(NamedTuple):
    """How far a table is, in offsets of all partitions together."""

    archived: int
    end: int


@dataclass(frozen=True)
class TopicProgress:
    """Where one topic's table stands after a batch."""

    lag: int
    """Records in the log that the table does not have."""
    version: int
    """Of the table."""
    fences: dict[int, int] = field(default_factory=dict)
    """The next offset to archive, by partition."""
    batch_rows: int = 0
    batch_bytes: int = 0
    """Parquet written by the batch."""
    batch_files: int = 0
    unreadable: tuple[str, ...] = ()
    """A line for each stored batch that this batch could not read and left out."""
    batch_dead: int = 0
    """Records whose values the batch could not decode, and put into the table beside."""
    dead_table: str = ""
    """That table."""
    dead_reason: str = ""
    """Why the first of them is there."""


@dataclass(frozen=True)
class Progress:
    """Where the archive stands after a batch."""

    rows: int = 0
    """Archived since it was started, of all topics."""
    dead: int = 0
    """Set aside since it was started: their values could not be decoded."""
    batch_s: float = 0.0
    """Duration of the batch."""
    topics: dict[str, TopicProgress] = field(default_factory=dict)
    group_failed: bool = False
    """Whether the group could not be brought to where the tables are; the next batch tries again."""

    @property
    def batch_rows(self) -> int:
        """Records that the batch brought."""
        return sum(topic.batch_rows for topic in self.topics.values())

    @property
    def batch_dead(self) -> int:
        """Records that the batch set aside."""
        return sum(topic.batch_dead for topic in self.topics.values())

    @property
    def batch_bytes(self) -> int:
        """Parquet that the batch wrote."""
        return sum(topic.batch_bytes for topic in self.topics.values())

    @property
    def batch_files(self) -> int:
        """Files that the batch added."""
        return sum(topic.batch_files for topic in self.topics.values())

    @property
    def lag(self) -> int:
        """Records in the logs that the tables do not have."""
        return sum(topic.lag for topic in self.topics.values())

    @property
    def unreadable(self) -> tuple[str, ...]:
        """A line for each stored batch, of any topic, that this batch could not read and left out."""
        return tuple(line for topic in self.topics.values() for line in topic.unreadable)
