import pytest
from tests.harness.groups import GroupContext

from headrace.groups.model import GroupSettings


@pytest.fixture
def ctx() -> GroupContext:
    return GroupContext()


@pytest.fixture
def small() -> GroupContext:
    """A group of at most two members."""
    return GroupContext(GroupSettings(max_size=2))
