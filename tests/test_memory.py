"""What a serving process makes of its memory."""

import gc
from collections.abc import Iterator

import pytest

from headrace.memory import settle_memory


@pytest.fixture
def settled() -> Iterator[None]:
    before = gc.get_threshold()
    settle_memory()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("settled")
def test_the_collector_walks_few_objects_at_a_time() -> None:
    """A million of them took 155 ms, as a hundred Fetches of 9 900 partitions make; nobody was served meanwhile."""
    walked: list[int] = []

    def about_to_walk(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(each)) for each in range(about["generation"] + 1)))

    gc.callbacks.append(about_to_walk)
    try:
        kept = [[number] for number in range(2_000_000)]
    finally:
        gc.callbacks.remove(about_to_walk)
    assert len(kept) == 2_000_000
    assert 10_000 < max(walked) < 110_000
