"""ListGroups: groups by their states."""

from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, join, sync

from headrace.protocol.messages import (
    ListGroupsRequest,
)


def test_groups_are_listed_by_state(wire: Wire, topic: str) -> None:
    wire.create(topic)
    empty, stable = f"{topic}-empty", f"{topic}-stable"
    commit(wire, empty, {(topic, 0): 1})
    sync(wire, stable, join(wire, stable))

    def listed(*states: str, types: tuple[str, ...] = (), version: int = 5) -> set[str]:
        answer = wire.ask(ListGroupsRequest(states_filter=list(states), types_filter=list(types)), version)
        assert answer.error_code == 0
        return {one.group_id for one in answer.groups} & {empty, stable}

    assert [listed(version=version) for version in range(6)] == [{empty, stable}] * 6
    assert (listed("Empty"), listed("stable"), listed("Dead")) == ({empty}, {stable}, set())
    assert (listed(types=("classic",)), listed(types=("consumer",))) == ({empty, stable}, set())
