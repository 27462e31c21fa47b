"""What a group has of topics that were deleted, until storage has it no more: it is told to nobody."""

from collections.abc import Mapping

from headrace.groups.events import DropTopic
from headrace.groups.model import Position, TopicPartition


class Dropping:
    """The drops that one group has before it."""

    def __init__(self) -> None:
        self._drops: dict[DropTopic, None] = {}

    def __bool__(self) -> bool:
        return bool(self._drops)

    def begin(self, drop: DropTopic) -> None:
        """A topic was deleted."""
        self._drops[drop] = None

    def end(self) -> list[DropTopic]:
        """Storage has all of it, or is to be told again; which they were."""
        drops, self._drops = self._drops, {}
        return list(drops)

    def without(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, Position]:
        """Those positions that stay."""
        if not self._drops:
            return positions
        drops: dict[str, list[DropTopic]] = {}
        for drop in self._drops:
            drops.setdefault(drop.topic, []).append(drop)
        return {
            place: position
            for place, position in positions.items()
            if not any(drop.takes(position.topic_id) for drop in drops.get(place.topic, ()))
        }
