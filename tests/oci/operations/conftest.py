from collections.abc import Iterator

import pytest

from headrace.testing.inprocess import InProcessServer


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started
