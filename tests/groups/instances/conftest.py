import pytest
from tests.harness.instances import InstanceContext


@pytest.fixture
def ctx() -> InstanceContext:
    """A topic of one partition."""
    return InstanceContext()


@pytest.fixture
def four() -> InstanceContext:
    """A topic of four partitions with ten records each."""
    ctx = InstanceContext(4)
    for partition in range(4):
        ctx.publish(partition, 10)
    return ctx
