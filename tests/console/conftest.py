from collections.abc import Iterator

import pytest

from headrace.testing import InProcessServer


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth="off", console_write=True, group_initial_rebalance_delay_ms=0) as started:
        yield started
