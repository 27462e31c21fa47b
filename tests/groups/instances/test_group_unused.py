"""A group that no API used for the topic's retention time disappears."""

import pytest
from tests.harness.instances import RETENTION_MS, TIMEOUT_MS, InstanceContext, Log

from headrace.groups.classic.states import GroupState
from headrace.groups.errors import InstanceProblem


def test_an_unused_group_goes_with_everything_it_has(ctx: InstanceContext) -> None:
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(RETENTION_MS - 1)
    assert not ctx.storage.nothing
    ctx.sleep(1)

    assert ctx.storage.nothing
    assert ctx.timers == {}
    assert ctx.group.state is GroupState.DEAD
    ctx.refused(InstanceProblem.UNKNOWN_GROUP, lambda: ctx.get(cursor))


@pytest.mark.parametrize("verb", ["get", "beat", "create", "commit_cursor"])
def test_every_request_is_a_use(ctx: InstanceContext, verb: str) -> None:
    cursor = ctx.create("a")
    for _ in range(5):
        ctx.sleep(RETENTION_MS - 1)
        getattr(ctx, verb)("a" if verb == "create" else cursor)
    ctx.sleep(RETENTION_MS - 1)
    assert not ctx.storage.nothing
    ctx.sleep(1)
    assert ctx.storage.nothing


def test_a_restart_of_the_server_does_not_shorten_the_time(ctx: InstanceContext) -> None:
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(RETENTION_MS // 2)
    ctx.beat(cursor)
    stored_ms = ctx.now_ms
    for _ in range(30):
        ctx.sleep(TIMEOUT_MS // 2)
        ctx.beat(cursor)
    # Not every use is stored.
    assert ctx.storage.sections["flights"].used_ms == stored_ms
    ctx.restart()
    ctx.sleep(RETENTION_MS - 1)
    assert not ctx.storage.nothing
    # When it was used last is stored coarsely: it may stay a little longer, never shorter.
    ctx.sleep(600_001)
    assert ctx.storage.nothing


def test_an_instance_that_does_nothing_but_wait_for_its_timeout_keeps_its_group(ctx: InstanceContext) -> None:
    cursor = ctx.get(ctx.create("a", timeout_ms=2**31 - 1)).cursor
    ctx.sleep(3 * RETENTION_MS)
    ctx.publish(0)

    assert ctx.get(cursor).by_partition() == {0: [0]}


def test_without_retention_a_group_stays(ctx: InstanceContext) -> None:
    ctx.retention_ms = -1
    ctx.get(ctx.create("a"))
    ctx.sleep(1000 * RETENTION_MS)
    assert not ctx.storage.nothing
    ctx.restart()
    ctx.sleep(1000 * RETENTION_MS)
    assert not ctx.storage.nothing


def test_each_section_goes_by_itself(ctx: InstanceContext) -> None:
    ctx.logs["weather"] = [Log()]
    ctx.create("a")
    ctx.sleep(RETENTION_MS // 2)
    other = ctx.create("a", topic="weather")
    ctx.sleep(RETENTION_MS // 2)

    assert set(ctx.whole.balanced) == {"weather"}
    assert ctx.at() == -1
    assert ctx.get(other, topic="weather").records == ()


def test_positions_that_kafka_commits_keep_the_group(ctx: InstanceContext) -> None:
    ctx.create("a")
    ctx.sleep(RETENTION_MS - TIMEOUT_MS)
    ctx.commit("", -1, offset=7)
    ctx.sleep(TIMEOUT_MS)
    assert ctx.at() == 7
    ctx.sleep(RETENTION_MS - TIMEOUT_MS)
    assert ctx.storage.nothing


def test_a_recreated_group_ignores_old_cursors(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    for _ in range(3):
        ctx.create("a")
    old = ctx.get(ctx.create("a")).cursor
    ctx.drop_topic("flights")
    ctx.sleep(1)
    new = ctx.create("b")
    for _ in range(5):
        ctx.refused(InstanceProblem.INVALID_CURSOR, lambda: ctx.get(old))
        ctx.refused(InstanceProblem.INVALID_CURSOR, lambda: ctx.beat(old))
        ctx.refused(InstanceProblem.INVALID_CURSOR, lambda: ctx.commit_cursor(old))
        # Also when as many cursors were created as there had been.
        ctx.create("a")
        ctx.restart()
    assert ctx.shares() == {}
    assert len(ctx.get(new).records) == 10
