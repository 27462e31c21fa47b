"""Where the log of a plain stream ends, and who is told of it."""

from typing import cast

from headrace.broker.native.partition import NativePartition
from headrace.broker.ports import NativeStorage
from headrace.topics.native import Extent, NativeStream


class Stream:
    """Tells of no entry by itself."""

    def watch(self, *_: object) -> None:
        """Nothing comes."""


def test_those_who_wait_are_told_by_whoever_hears_first_of_a_new_end() -> None:
    """Somebody asked for the log end, say, before the entry's own message had its turn."""
    before, after = (Extent(log_start=0, log_end=end, length=end, added=end) for end in (1, 2))
    partition = NativePartition("t", 0, NativeStream("s", 16), before, cast("NativeStorage", Stream()))
    told: list[int] = []
    partition.watch(told.append)
    partition.learn(before)
    assert told == []
    partition.learn(after)
    assert len(told) == 1
