"""Track producers' batches that Redis has not answered yet."""

from collections import deque
from typing import NamedTuple

from headrace.topics.model import Append
from headrace.topics.producer_state import is_behind


class _Sent(NamedTuple):
    number: int
    """Sequence number of all sent batches."""
    epoch: int
    sequence: int


class InFlight:
    """In-flight batches of one partition. Replies arrive in order, except across two connections."""

    __slots__ = ("_last", "_of")

    def __init__(self) -> None:
        self._last = 0
        self._of: dict[int, deque[_Sent]] = {}
        """Producer id -> its batches of the epoch that it has used last; only those that none is under way after which
        comes before them: sequences rise, and the first one is the first of all."""

    def send(self, append: Append) -> tuple[int, bool]:
        """Record a batch sent to Redis.

        Returns:
            Its number, and whether an earlier batch of its producer is in flight.
        """
        producer, epoch, sequence = append.producer_id, append.producer_epoch, append.base_sequence
        if producer < 0:
            return 0, False
        self._last += 1
        sent = self._of.get(producer)
        if sent is None or sent[0].epoch != epoch:
            sent = self._of[producer] = deque()
        while sent and is_behind((epoch, sequence), sent[-1].epoch, sent[-1].sequence):
            sent.pop()
        behind = bool(sent) and is_behind((epoch, sent[0].sequence), epoch, sequence)
        sent.append(_Sent(self._last, epoch, sequence))
        return self._last, behind

    def answered(self, producer: int, number: int) -> None:
        """Remove an answered batch."""
        sent = self._of.get(producer)
        if sent is None:
            return
        if sent[0].number == number:
            sent.popleft()
        elif sent[0].number < number:
            # A closed connection did not answer earlier batches.
            self._of[producer] = sent = deque(each for each in sent if each.number != number)
        if not sent:
            del self._of[producer]

    def not_sent(self, producer: int, number: int) -> None:
        """Remove the last batch of a producer, which was not sent."""
        sent = self._of.get(producer)
        if sent and sent[-1].number == number:
            sent.pop()
            if not sent:
                del self._of[producer]
