"""Clients that ask a broker for positions which has just lost their group: they go on where the group had come to."""

import inspect
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.clients import Record
from tests.harness.wire import Wire

from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.groups.errors import GroupError
from headrace.kafka.apis import offset_fetch
from headrace.testing import InProcessServer

from .conftest import ADAPTERS

PATIENCE_S = 60
REFUSALS = 3


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[GroupError]:
    """Respond to requests for offsets with each of these errors in turn; joins are accepted."""
    refusals: list[GroupError] = []
    ready = GroupCoordinator.ready

    async def refused() -> GroupError:
        return refusals.pop()

    def asked(self: GroupCoordinator, name: str) -> Any:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        if refusals and frame.f_back.f_code.co_filename == offset_fetch.__file__:
            return refused()
        return ready(self, name)

    monkeypatch.setattr(GroupCoordinator, "ready", asked)
    monkeypatch.setattr(GroupCoordinator, "moved_lately", lambda _: True)
    return refusals


@pytest.fixture
def running() -> Iterator[InProcessServer]:
    with InProcessServer(num_partitions=1) as started:
        yield started


def test_a_member_goes_on_where_its_group_had_come_to(
    client_name: str, running: InProcessServer, refusing: list[GroupError], topic: str
) -> None:
    client = ADAPTERS[client_name](running.kafka)
    with Wire(running.kafka) as wire:
        wire.create(topic, partitions=1)
    client.send(topic, [Record(value=b"before")], partition=0)
    with client.member("g", topic) as first:
        assert _polled(first) == [b"before"]
        first.commit()
    client.send(topic, [Record(value=b"behind")], partition=0)
    refusing += [GroupError.NOT_COORDINATOR] * REFUSALS
    # A client that ignores the errors would begin at the end.
    with client.member("g", topic, reset="latest") as second:
        assert _polled(second) == [b"behind"]
    assert refusing == []


def _polled(member: Any) -> list[bytes]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if got := member.poll(0.1):
            return [record.value for record in got]
    return []
