"""What a serving process makes of its memory."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.server.process import settle_memory

_LEAVES_MUCH = """
from pathlib import Path
from headrace.broker.config.settings import BrokerSettings
from headrace.server.process import prepared, settle_memory, limit_cache_with_file_reader

def resident():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10

settings = BrokerSettings.of({})
cache = prepared(settings, guest=False)
limit_cache_with_file_reader(cache, settings)
settle_memory(cache.limit)
before = resident()
held = [bytearray(64 << 10) for _ in range(320 << 4)]
most = resident() - before
del held
print(most, resident() - before)
"""


def test_next_to_the_file_freed_memory_is_kept_for_a_small_cache_only() -> None:
    found = subprocess.run([sys.executable, "-c", _LEAVES_MUCH], capture_output=True, text=True, check=True)
    most, left = map(int, found.stdout.split())
    assert most > 300 << 20
    assert left < 100 << 20


@pytest.fixture
def settled() -> Iterator[None]:
    before = gc.get_threshold()
    settle_memory(0)
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("settled")
def test_the_collector_walks_few_objects_at_a_time() -> None:
    """A collection of a million objects, as from a hundred Fetches of 9,900 partitions, took 155 ms without service."""
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
