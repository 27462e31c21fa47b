"""Members of groups whose partitions the server assigns, on their page."""

import re

from tests.console.visiting import ask, create, safe
from tests.harness.wire import Wire

from headrace.console.views.group_members import standing
from headrace.groups.group import Group
from headrace.groups.model import GroupSettings
from headrace.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from headrace.testing import InProcessServer

Response = ConsumerGroupHeartbeatResponse


def join(wire: Wire, member: str, epoch: int = 0) -> Response:
    request = ConsumerGroupHeartbeatRequest(
        group_id="followers",
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["followed"],
        topic_partitions=[],
    )
    answer: Response = wire.ask(request, 1)
    assert answer.error_code == 0, answer
    return answer


def test_a_member_that_has_to_give_up_partitions_shows_both_numbers(server: InProcessServer) -> None:
    create(server, ("followed", 4))
    with Wire(server.kafka) as wire:
        first = join(wire, "one")
        settled = ask(server, "/groups/followers")
        assert "stable" in settled.text
        assert f"consumer (KIP-848) · epoch {first.member_epoch} · protocol uniform" in settled.text
        assert f"4 partitions, epoch {first.member_epoch}" in settled.text
        join(wire, "two")
    moving = ask(server, "/groups/followers")
    assert "reconciling" in moving.text
    assert f"4 partitions of 2, epoch {first.member_epoch}" in moving.text
    assert "0 partitions of 2" in moving.text
    assert len(re.findall(r'data-k="\d\.next">→ ', safe(moving))) == 2
    assert "followers consumer reconciling 2" in ask(server, "/groups").text


def test_a_classic_group_has_no_progress() -> None:
    assert standing(None).members == {}
    assert standing(Group("g", GroupSettings())).next_owners == {}
