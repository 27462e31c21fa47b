"""Where the log of a plain stream ends, and who is told of it."""

from time import monotonic
from typing import cast

import msgspec

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


def test_an_answer_that_was_overtaken_does_not_say_that_entries_were_lost() -> None:
    """Redis has answered two who asked, and the first of them comes to say so after the second."""
    before, after = (Extent(log_start=0, log_end=end, length=end, added=end, asked=0.0) for end in (1, 2))
    partition = NativePartition("t", 0, NativeStream("s", 16), before, cast("NativeStorage", Stream()))
    partition.learn(after)
    partition.learn(before)
    assert partition.log_end == 2
    partition.learn(msgspec.structs.replace(before, asked=monotonic() + 1))
    assert partition.log_end == 1, "asked for after all that was known: entries are gone"
