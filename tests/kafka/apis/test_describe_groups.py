"""DescribeGroups while a group moves: the previous coordinator does not report it as dead."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.kafka.apis.describe_groups import handle
from headrace.kafka.errors import Code
from headrace.membership.view import View
from headrace.protocol.messages import DescribeGroupsRequest


@pytest.mark.parametrize(
    ("handed_over", "told"), [(False, (Code.NONE, "Dead")), (True, (Code.COORDINATOR_NOT_AVAILABLE, ""))]
)
async def test_a_group_that_is_not_here_is_dead_or_was_handed_over(handed_over: bool, told: tuple[Code, str]) -> None:
    ownership = Ownership(1)
    ownership.adopt(View(1), inside=True)

    async def ready(_: str) -> None:
        pass

    async def reserve_parts(sizes: dict[str, int]) -> set[str]:
        if handed_over:
            ownership.adopt(View(2), inside=True)
        return set(sizes)

    groups = SimpleNamespace(ready=ready, size=lambda _: 0, exists=lambda _: False, describe=lambda _: None)
    broker = SimpleNamespace(groups=groups, ownership=ownership)
    pace = CooperativeScheduler().pace
    context: Any = SimpleNamespace(broker=broker, pace=pace, reserve_parts=reserve_parts, done=False, version=5)
    later = handle(DescribeGroupsRequest(groups=["g"]), context)
    assert later is not None
    [group] = (await later).groups
    assert (group.error_code, group.group_state) == told
