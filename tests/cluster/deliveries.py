"""Check what the members of a share group were given, and what the server accepted from them.

A record is delivered to a member, which acknowledges it. Only a response without an error means that the server has
accepted it. After a fault a record may be delivered again, but not after it was accepted.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

Place = tuple[int, int]
"""Partition and offset."""


class Deliveries:
    """Of one topic to one share group."""

    def __init__(self) -> None:
        """Nothing was delivered yet."""
        self.numbers: dict[int, set[int]] = defaultdict(set)
        """Partition -> numbers of the records that a member was given."""
        self.given = 0
        """Deliveries."""
        self._lock = threading.Lock()
        self._delivered: Counter[Place] = Counter()
        self._accepted: Counter[Place] = Counter()
        self._unknown: set[Place] = set()
        self._found: list[str] = []

    def delivered(self, place: Place, number: int, count: int) -> None:
        """A member was given a record. `count`: the delivery count that the server sent."""
        with self._lock:
            self.given += 1
            self._delivered[place] += 1
            self.numbers[place[0]].add(number)
            if count < 1:
                self._found.append(f"{place} was delivered with the count {count}")

    def accepted(self, places: Iterable[Place]) -> None:
        """The server has accepted these."""
        with self._lock:
            self._accepted.update(places)

    def unknown(self, places: Iterable[Place]) -> None:
        """The server did not accept these, or its response was lost."""
        with self._lock:
            self._unknown.update(places)

    def again(self, places: Sequence[Place]) -> None:
        """Note what a new member was given when everything had been acknowledged."""
        with self._lock:
            self._found += [f"{place} was delivered after it was accepted" for place in places if self._accepted[place]]

    def unseen(self, acknowledged: Sequence[Mapping[int, int]]) -> int:
        """Return how many acknowledged records no member was given yet."""
        with self._lock:
            return sum(len(numbers.keys() - self.numbers[place]) for place, numbers in enumerate(acknowledged))

    def open(self) -> int:
        """Return how many delivered records the server has not accepted, as far as the members know."""
        with self._lock:
            return sum(not self._accepted[place] and place not in self._unknown for place in self._delivered)

    @property
    def twice(self) -> int:
        """How many deliveries were repeated."""
        with self._lock:
            return self.given - len(self._delivered)

    def check(self, acknowledged: Sequence[Mapping[int, int]]) -> None:
        """Raises AssertionError for a record that was never delivered, or was accepted from two deliveries."""
        unseen = self.unseen(acknowledged)
        with self._lock:
            found = [f"{place} was accepted {times} times" for place, times in self._accepted.items() if times > 1]
            found += self._found
            assert not found, f"{len(found)} anomalies of deliveries: {'; '.join(found[:10])}"
            assert not unseen, f"{unseen} acknowledged records were never delivered"
