import pytest
from tests.harness.consumers import ConsumerContext


@pytest.fixture
def ctx() -> ConsumerContext:
    return ConsumerContext()
