"""DeleteGroups: only groups without members are deleted."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, committed, join, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DeleteGroupsRequest,
)


@pytest.mark.parametrize("version", range(3))
def test_only_groups_without_members_are_deleted(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    empty, stable = f"{topic}-empty", f"{topic}-stable"
    commit(wire, empty, {(topic, 0): 1})
    sync(wire, stable, join(wire, stable))
    answer = wire.ask(DeleteGroupsRequest(groups_names=[empty, stable, f"{topic}-unknown"]), version)
    codes = [one.error_code for one in answer.results]
    assert codes == [0, Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND]
    assert committed(wire, empty, topic) == (-1, "", 0)
