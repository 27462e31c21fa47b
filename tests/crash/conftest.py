import random
from collections.abc import Iterator

import pytest

from headrace.testing import Server, server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Rounds of chance: as many as `--crash-rounds` says. `LANE=servers` runs the first, in which all is killed."""
    if "round_number" in metafunc.fixturenames:
        rounds = range(metafunc.config.getoption("crash_rounds"))
        metafunc.parametrize(
            "round_number", [pytest.param(each, marks=(pytest.mark.long,) if each else ()) for each in rounds]
        )


@pytest.fixture
def started() -> Iterator[Server]:
    """A server whose topics get three partitions."""
    with server(num_partitions=3) as running:
        yield running


@pytest.fixture
def chance() -> random.Random:
    """Chance by the seed that pytest-randomly prints; to go through a round again put the number printed here."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    return random.Random(seed)
