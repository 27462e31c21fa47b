"""Ends of leader epochs, for requests that name a partition more than once."""

from traceback import walk_tb
from typing import cast

import pytest

from headrace.broker.partition.partition import Partition
from headrace.kafka.apis.offset_for_leader_epoch import Ends
from headrace.topics.errors import StorageUnavailable


class Unreachable:
    """A partition whose storage does not answer."""

    async def ask_end(self) -> None:
        raise StorageUnavailable("no answer")


async def test_a_request_that_names_a_partition_without_an_answer_often_keeps_one_error_as_it_is() -> None:
    """An error that is raised again has one more line in its traceback each time."""
    ends, partition = Ends(), cast("Partition", Unreachable())
    lengths: set[int] = set()
    for _ in range(1_000):
        with pytest.raises(StorageUnavailable, match="no answer") as refused:
            await ends.ask(partition)
        lengths.add(len(list(walk_tb(refused.value.__traceback__))))
    [kept] = ends.asked.values()
    assert len(list(walk_tb(kept.__traceback__ if kept else None))) == 2, "where it was raised, and where it was kept"
    assert len(lengths) == 1
