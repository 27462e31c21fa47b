"""Who leads a log, as brokers tell each other."""

from collections.abc import Mapping
from typing import NamedTuple, Self


class Leader(NamedTuple):
    """Who has opened a log, as that broker itself has told. A later one has a higher epoch."""

    epoch: int
    """Leader epoch, which no other opening ever has; -1: nobody has told."""
    node_id: int
    """-1: it is not known, or gone."""

    @classmethod
    def of(cls, text: str) -> Self:
        """The leader that `text` was; of one that was told without its node id only the epoch is known."""
        epoch, _, node = text.partition(":")
        return cls(int(epoch), int(node or -1))

    @property
    def text(self) -> str:
        """As it is stored and told."""
        return f"{self.epoch}:{self.node_id}"


def pairs(leaders: Mapping[str, Leader]) -> list[str]:
    """Streams and leaders, in turn."""
    return [part for stream, leader in leaders.items() for part in (stream, leader.text)]


def leaders(told: str) -> dict[str, Leader]:
    """By stream, of what `pairs` made, with spaces between."""
    parts = told.split(" ")
    return {stream: Leader.of(text) for stream, text in zip(parts[::2], parts[1::2], strict=True)}
