"""Check what the members of a share group were given, and what the server accepted from them.

A record is delivered to a member, which acknowledges it. Only a response without an error means that the server has
accepted it. After a fault a record may be delivered again, but not after it was accepted.

A client has records of earlier fetches in its queue. A member whose lock was lost may thus be given a record that
another member has accepted. If the record is below the start offset, the server ignores the acknowledgement and returns
no error, as Kafka does: the record is accepted late. A response may also be late, and then the server refuses the
acknowledgement. A record that a member is given in its third poll after the acceptance, or later, and that is accepted
again, is an anomaly.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

Place = tuple[int, int]
"""Partition and offset."""
_QUEUED_POLLS = 3
"""Polls that empty the queue of a client."""
_SHOWN = 5
"""Anomalies of which a report has all events."""


class Deliveries:
    """Of one topic to one share group."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """Nothing was delivered yet."""
        self._now = now
        self.numbers: dict[int, set[int]] = defaultdict(set)
        """Partition -> numbers of the records that a member was given."""
        self.given = 0
        """Deliveries."""
        self._lock = threading.Lock()
        self._polls: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_QUEUED_POLLS))
        """Member -> when its last polls began."""
        self._delivered: Counter[Place] = Counter()
        self._accepted: dict[Place, float] = {}
        """When the server first accepted a record."""
        self._late: set[Place] = set()
        self._again: set[tuple[str, Place]] = set()
        """Members and records that they were given some polls after the acceptance."""
        self._unknown: set[Place] = set()
        self._events: dict[Place, list[str]] = defaultdict(list)
        self._found: dict[Place, str] = {}

    def polls(self, member: str) -> None:
        """Note that a member begins to poll."""
        with self._lock:
            self._polls[member].append(self._now())

    def delivered(self, member: str, place: Place, number: int, count: int) -> None:
        """Note that a member was given a record. `count`: the delivery count that the server sent."""
        with self._lock:
            self.given += 1
            self._delivered[place] += 1
            self.numbers[place[0]].add(number)
            self._note(place, f"delivery {count} to {member}")
            polls = self._polls[member]
            if count < 1:
                self._found[place] = f"{place} was delivered with the count {count}"
            elif len(polls) == _QUEUED_POLLS and polls[0] > self._accepted.get(place, polls[0]):
                self._again.add((member, place))

    def accepted(self, member: str, places: Iterable[Place]) -> None:
        """Note that the server has accepted these."""
        with self._lock:
            for place in places:
                if place in self._accepted:
                    self._late.add(place)
                self._accepted.setdefault(place, self._now())
                self._note(place, f"accepted from {member}")
                if (member, place) in self._again:
                    self._found[place] = f"{place} was fetched after it was accepted, and accepted again"

    def unknown(self, member: str, places: Iterable[Place]) -> None:
        """Note that the server did not accept these, or that its response was lost."""
        with self._lock:
            for place in places:
                self._unknown.add(place)
                self._note(place, f"not accepted from {member}")

    def _note(self, place: Place, event: str) -> None:
        self._events[place].append(f"{self._now() % 1_000:.3f} {event}")

    def again(self, places: Sequence[Place]) -> None:
        """Note what a new member was given when everything had been acknowledged."""
        with self._lock:
            for place in places:
                if place in self._accepted:
                    self._found[place] = f"{place} was delivered after it was accepted"

    def unseen(self, acknowledged: Sequence[Mapping[int, int]]) -> int:
        """Return how many acknowledged records no member was given yet."""
        with self._lock:
            return sum(len(numbers.keys() - self.numbers[place]) for place, numbers in enumerate(acknowledged))

    def open(self) -> int:
        """Return how many delivered records the server has not accepted, as far as the members know."""
        with self._lock:
            return sum(place not in self._accepted and place not in self._unknown for place in self._delivered)

    @property
    def twice(self) -> int:
        """How many deliveries were repeated."""
        with self._lock:
            return self.given - len(self._delivered)

    @property
    def late(self) -> int:
        """How many records were accepted again from a client's queue."""
        with self._lock:
            return len(self._late)

    def check(self, acknowledged: Sequence[Mapping[int, int]]) -> None:
        """Raises AssertionError for a record that was never delivered, or was accepted again."""
        unseen = self.unseen(acknowledged)
        with self._lock:
            shown = [
                f"{text} ({', '.join(self._events[place])})" for place, text in sorted(self._found.items())[:_SHOWN]
            ]
            assert not shown, f"{len(self._found)} anomalies of deliveries: {'; '.join(shown)}"
            assert not unseen, f"{unseen} acknowledged records were never delivered"
