"""The assignor `simple` of share groups (KIP-932). Pure and deterministic.

Every partition has a member, and shares are even. With more members than partitions, partitions have several members.
Members keep their partitions where the shares allow it.
"""

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

NAME = "simple"

Item = TypeVar("Item", bound=Hashable)
Bin = TypeVar("Bin", bound=Hashable)

Shares = dict[str, dict[str, tuple[int, ...]]]
"""Member -> topic -> partitions in ascending order. All members are in it."""
_Place = tuple[str, int]


def assign(
    members: Mapping[str, frozenset[str]],
    partitions: Mapping[str, int],
    held: Mapping[str, Mapping[str, Sequence[int]]],
) -> Shares:
    """Return the partitions of each member.

    Args:
        members: topics of each member. Unknown topics are ignored.
        partitions: number of partitions of each topic.
        held: what members have now, by topic. It may be outdated.
    """
    ranked = sorted(members)
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in ranked}
    for readers, topics in _by_readers(ranked, members, partitions).items():
        places = [(topic, index) for topic in topics for index in range(partitions[topic])]
        for member, (topic, index) in _share_out(readers, places, held):
            shares[member].setdefault(topic, []).append(index)
    return {
        member: {topic: tuple(sorted(indexes)) for topic, indexes in sorted(topics.items())}
        for member, topics in shares.items()
    }


def _by_readers(
    ranked: Sequence[str], members: Mapping[str, frozenset[str]], partitions: Mapping[str, int]
) -> dict[tuple[str, ...], list[str]]:
    """Return the topics that have the same members."""
    # Few members have topics of their own: look at those of others once.
    known = {topics: topics & partitions.keys() for topics in set(members.values())}
    readers: dict[str, list[str]] = {}
    for member in ranked:
        for topic in known[members[member]]:
            readers.setdefault(topic, []).append(member)
    found: dict[tuple[str, ...], list[str]] = {}
    for topic in sorted(readers):
        found.setdefault(tuple(readers[topic]), []).append(topic)
    return found


def _share_out(
    readers: Sequence[str], places: Sequence[_Place], held: Mapping[str, Mapping[str, Sequence[int]]]
) -> list[tuple[str, _Place]]:
    if not places:
        return []
    there = set(places)
    have = [
        (member, (topic, index))
        for member in readers
        for topic, indexes in held.get(member, {}).items()
        for index in indexes
        if (topic, index) in there
    ]
    if len(readers) < len(places):
        # Of several holders the first keeps it.
        return [(member, place) for place, member in _spread(places, readers, {p: m for m, p in reversed(have)})]
    return list(_spread(readers, places, dict(reversed(have))))


def _spread(items: Sequence[Item], bins: Sequence[Bin], current: Mapping[Item, Bin]) -> list[tuple[Item, Bin]]:
    """Put each item into one bin. Bins differ by at most one item."""
    least, larger = divmod(len(items), len(bins))
    counts = dict.fromkeys(bins, 0)
    spread: list[tuple[Item, Bin]] = []
    rest: list[Item] = []
    for item in items:
        place = current.get(item)
        if place is None or place not in counts or counts[place] > least or (counts[place] == least and not larger):
            rest.append(item)
            continue
        larger -= counts[place] == least
        counts[place] += 1
        spread.append((item, place))
    heap = [(count, rank) for rank, count in enumerate(counts.values())]
    heapq.heapify(heap)
    for item in rest:
        count, rank = heap[0]
        spread.append((item, bins[rank]))
        heapq.heapreplace(heap, (count + 1, rank))
    return spread
