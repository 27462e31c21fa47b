"""Assignors compute which member should own which partition.

They are deterministic: the order of dicts other than `members` has no effect. Racks have none either.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)
Assignment = dict[Who, dict[str, list[int]]]
"""All members -> topic -> partitions in ascending order."""

_Part = tuple[str, int]
_MOST_PASSES = 16
"""Limit of the passes that make shares equal if subscriptions differ."""


def uniform(
    members: Mapping[Who, frozenset[str]],
    partitions: Mapping[str, int],
    held: Mapping[str, Mapping[int, Who]],
    intended: Mapping[str, Mapping[int, Who]],
) -> Assignment[Who]:
    """Return shares of nearly equal size, with few moves.

    If all members have the same topics, sizes differ by at most one, and as few held partitions move as that allows.
    A member keeps its lowest ones, preferably those not intended for another. If topics differ, partitions stay, and
    then move from larger to smaller shares.

    Args:
        members: topics of each member, in the order of joining.
        partitions: number of partitions of each existing topic.
        held: owners by topic and partition.
        intended: previous targets by topic and partition.
    """
    known = {names: tuple(sorted(names & partitions.keys())) for names in set(members.values())}
    result: Assignment[Who] = {who: {} for who in members}
    if len(set(known.values())) > 1:
        subscribed = {who: known[names] for who, names in members.items()}
        shares = _Unequal(subscribed, partitions, held, intended).share_out()
    else:
        topics = [(topic, partitions[topic]) for topic in next(iter(known.values()), ())]
        shares = _equal(list(members), topics, held, intended)
    for (topic, partition), who in sorted(shares.items(), key=_first):
        result[who].setdefault(topic, []).append(partition)
    return result


def range_assignor(
    members: Mapping[Who, frozenset[str]], partitions: Mapping[str, int], instances: Mapping[Who, str] | None = None
) -> Assignment[Who]:
    """Return contiguous partitions of each topic, in the order of instance IDs, then of member IDs.

    Args:
        members: topics of each member.
        partitions: number of partitions of each existing topic.
        instances: instance IDs of static members.
    """
    known: Mapping[Who, str] = instances or {}
    ranked = sorted(members, key=lambda who: (who not in known, str(known.get(who, who))))
    readers: dict[str, list[Who]] = {}
    for who in ranked:
        for topic in members[who]:
            readers.setdefault(topic, []).append(who)
    result: Assignment[Who] = {who: {} for who in members}
    for topic in sorted(readers.keys() & partitions.keys()):
        least, rest = divmod(partitions[topic], len(readers[topic]))
        start = 0
        for rank, who in enumerate(readers[topic]):
            end = start + least + (rank < rest)
            if end > start:
                result[who][topic] = list(range(start, end))
            start = end
    return result


def _first(item: tuple[_Part, object]) -> _Part:
    return item[0]


# The same topics for all members.


def _equal(
    members: Sequence[Who],
    topics: Sequence[tuple[str, int]],
    held: Mapping[str, Mapping[int, Who]],
    intended: Mapping[str, Mapping[int, Who]],
) -> dict[_Part, Who]:
    if not members or not topics:
        return {}
    parts = [(topic, partition) for topic, count in topics for partition in range(count)]
    holders = _members_of(parts, held, members)
    coming = {part: who for part, who in _members_of(parts, intended, members).items() if holders.get(part) != who}
    left = _quotas(members, len(parts), holders, coming)
    shares: dict[_Part, Who] = {}

    def keep(owners: Mapping[_Part, Who], order: Iterable[_Part]) -> None:
        for part in order:
            who = owners[part]
            if left[who] and part not in shares:
                shares[part] = who
                left[who] -= 1

    # The lowest partitions of every topic: topics of one consumer keep the same partitions.
    keep(holders, sorted(holders, key=lambda part: (part in coming, part[1], part[0])))
    keep(coming, sorted(coming))
    # A held one is not available to its next owner yet.
    rest = [part for part in parts if part not in shares and part not in holders]
    rest += [part for part in parts if part not in shares and part in holders]
    heap = [(-count, rank) for rank, count in enumerate(left.values()) if count]
    heapq.heapify(heap)
    for part in rest:
        count, rank = heap[0]
        shares[part] = members[rank]
        if count == -1:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (count + 1, rank))
    return shares


def _members_of(
    parts: Iterable[_Part], owners: Mapping[str, Mapping[int, Who]], members: Iterable[Who]
) -> dict[_Part, Who]:
    known = set(members)
    found = {}
    for part in parts:
        topic, partition = part
        who = owners[topic].get(partition) if topic in owners else None
        if who is not None and who in known:
            found[part] = who
    return found


def _quotas(
    members: Sequence[Who], total: int, holders: Mapping[_Part, Who], coming: Mapping[_Part, Who]
) -> dict[Who, int]:
    """Larger ones go to members with most partitions, then most intended ones, then to the oldest."""
    least, rest = divmod(total, len(members))
    holding, intending = Counter(holders.values()), Counter(coming.values())
    ranked = sorted(members, key=lambda who: (-holding[who], -intending[who]))
    larger = set(ranked[:rest])
    return {who: least + (who in larger) for who in members}


# Different topics.


class _Unequal(Generic[Who]):
    """Shares of members whose topics differ."""

    def __init__(
        self,
        subscribed: Mapping[Who, Sequence[str]],
        partitions: Mapping[str, int],
        held: Mapping[str, Mapping[int, Who]],
        intended: Mapping[str, Mapping[int, Who]],
    ) -> None:
        self._members = list(subscribed)
        self._loads = [0] * len(self._members)
        self._readers: dict[str, list[int]] = {}
        """Topic -> ranks of its subscribers."""
        for rank, topics in enumerate(subscribed.values()):
            for topic in topics:
                self._readers.setdefault(topic, []).append(rank)
        # The topics that most determine the sizes of shares come first.
        self._topics = sorted(
            self._readers,
            key=lambda topic: (-partitions[topic] / len(self._readers[topic]), len(self._readers[topic]), topic),
        )
        self._counts = partitions
        self._held = held
        self._intended = intended
        self._shares: dict[str, list[int]] = {topic: [-1] * partitions[topic] for topic in self._topics}
        """Topic -> rank of each partition's member. -1: none yet."""

    def share_out(self) -> dict[_Part, Who]:
        """Return the member of each partition."""
        ranks = {who: rank for rank, who in enumerate(self._members)}
        for topic in self._topics:
            self._stick(topic, ranks)
        for topic in self._topics:
            self._fill(topic)
        for _ in range(_MOST_PASSES):
            # All topics in each pass: no short circuit.
            if not sum([self._narrow(topic) for topic in self._topics]):
                break
        return {
            (topic, partition): self._members[rank]
            for topic, shares in self._shares.items()
            for partition, rank in enumerate(shares)
        }

    def _stick(self, topic: str, ranks: Mapping[Who, int]) -> None:
        """Keep intended owners, then present ones: while partitions move, the previous target is more even."""
        shares, readers = self._shares[topic], set(self._readers[topic])
        for owners in (self._intended.get(topic, {}), self._held.get(topic, {})):
            for partition, who in owners.items():
                rank = ranks.get(who, -1)
                if partition < len(shares) and shares[partition] < 0 and rank in readers:
                    shares[partition] = rank
                    self._loads[rank] += 1

    def _fill(self, topic: str) -> None:
        shares, loads = self._shares[topic], self._loads
        heap = [(loads[rank], rank) for rank in self._readers[topic]]
        heapq.heapify(heap)
        for partition, former in enumerate(shares):
            if former < 0:
                load, rank = heap[0]
                shares[partition] = rank
                loads[rank] = load + 1
                heapq.heapreplace(heap, (load + 1, rank))

    def _narrow(self, topic: str) -> int:
        """Move partitions of a topic from the largest to the smallest shares. Return how many.

        A member that gets one is too small to give any, and the reverse: the heaps exchange nothing.
        """
        shares, loads, holders = self._shares[topic], self._loads, self._held.get(topic, {})
        readers = self._readers[topic]
        least = min(loads[rank] for rank in readers)
        given: dict[int, list[int]] = {rank: [] for rank in readers if loads[rank] > least + 1}
        for partition, rank in enumerate(shares):
            if rank in given:
                given[rank].append(partition)
        larger = [(-loads[rank], rank) for rank, partitions in given.items() if partitions]
        if not larger:
            return 0
        for rank, partitions in given.items():
            # The last ones move first: those that it does not hold, then the highest.
            who = self._members[rank]
            held = [each for each in partitions if holders.get(each) == who]
            given[rank] = held + [each for each in partitions if holders.get(each) != who]
        smaller = [(loads[rank], rank) for rank in readers]
        heapq.heapify(larger)
        heapq.heapify(smaller)
        moves = 0
        while larger and -larger[0][0] - smaller[0][0] > 1:
            (most, giver), (fewest, taker) = larger[0], smaller[0]
            shares[given[giver].pop()] = taker
            moves += 1
            loads[giver], loads[taker] = -most - 1, fewest + 1
            heapq.heapreplace(smaller, (fewest + 1, taker))
            if given[giver]:
                heapq.heapreplace(larger, (most + 1, giver))
            else:
                heapq.heappop(larger)
        return moves
