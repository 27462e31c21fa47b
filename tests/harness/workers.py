"""Which of several workers runs a test: whatever shares something dear stays together, the rest goes where time is."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = "tests/spark/"
"""All of its files share a Spark session, which takes seconds to start and much memory."""
APART = (
    "tests/crash/",
    "tests/demo/",
    "tests/examples/",
    "tests/pipeline/",
    "tests/bench/",
    "tests/server/test_serve_external.py",
)
"""Their tests take long and share nothing. Of every other file one worker has all tests, for the fixtures in it."""


class ByWhatIsShared(LoadScopeScheduling):  # type: ignore[misc]  # xdist says no types
    """Hands out groups of tests in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # largest group first: ours are ordered by their duration

    def _split_scope(self, nodeid: str) -> str:
        """The group of a test."""
        if nodeid.startswith(TOGETHER):
            return TOGETHER
        if nodeid.startswith(APART):
            return nodeid
        return nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Sort what takes longest to the front, so that no worker is left with it at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith((TOGETHER, *APART)))
