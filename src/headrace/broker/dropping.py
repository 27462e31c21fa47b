"""What a group has of topics that were deleted, until storage has it no more: it is told to nobody."""

from collections.abc import Mapping

from headrace.groups.events import DropTopic
from headrace.groups.model import Position, TopicPartition
from headrace.groups.positions import is_of


class Dropping:
    """The drops that one group has before it."""

    def __init__(self) -> None:
        self._drops: list[DropTopic] = []

    def __bool__(self) -> bool:
        return bool(self._drops)

    def begin(self, drop: DropTopic) -> None:
        """A topic was deleted."""
        if drop not in self._drops:
            self._drops.append(drop)

    def end(self) -> list[DropTopic]:
        """Storage has all of it, or is to be told again; which they were."""
        drops, self._drops = self._drops, []
        return drops

    def without(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, Position]:
        """Those positions that stay."""
        if not self._drops:
            return positions
        gone = {
            place
            for drop in self._drops
            for place, position in positions.items()
            if place.topic == drop.topic and is_of(position.topic_id, drop.topic_id)
        }
        return {place: position for place, position in positions.items() if place not in gone}
