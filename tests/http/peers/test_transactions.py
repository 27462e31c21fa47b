"""Requests about transactions of one broker: one link for each process, and one request for each turn."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.broker.coordinator.remote_transactions import RemoteEnd, RemoteEnded, packed
from headrace.http.peers.connections import PeerAnswer
from headrace.http.peers.transactions import ENDS, HttpTransactionPeers
from headrace.membership.view import Member
from headrace.topics.errors import StorageUnavailable
from headrace.transactions.model import GroupId

CALL = RemoteEnd("default", 7, 0, True, 1, packed([GroupId("g")]))


def member(node_id: int, incarnation: str = "a") -> Member:
    return Member(node_id=node_id, incarnation=incarnation, process="", host="h", port=1)


class Others:
    """Brokers that respond once a test allows it."""

    def __init__(self) -> None:
        self.ownership = SimpleNamespace(others=[member(2), member(3)])
        self.asked: list[tuple[Member, str, bytes, int]] = []
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def ask(self, to: Member, method: str, target: bytes, body: bytes, **_: Any) -> PeerAnswer:
        calls = msgspec.json.decode(body, type=list[RemoteEnd])
        self.asked.append((to, method, target, len(calls)))
        await self.may_respond.wait()
        return PeerAnswer(200, {}, msgspec.json.encode([RemoteEnded(each.participants) for each in calls]))

    async def is_current(self) -> bool:
        return True


@pytest.fixture
def others() -> Others:
    return Others()


@pytest.fixture
def peers(others: Others) -> HttpTransactionPeers:
    asking: Any = others
    return HttpTransactionPeers(asking, others.is_current)


async def test_ends_of_one_turn_share_a_request_for_each_broker(others: Others, peers: HttpTransactionPeers) -> None:
    ends = [peers.end(member(node), CALL) for node in (2, 3, 2)]
    assert [each.participants for each in await asyncio.gather(*ends)] == [CALL.participants] * 3
    assert others.asked == [(member(2), "POST", ENDS.encode(), 2), (member(3), "POST", ENDS.encode(), 1)]
    assert await peers.is_current()


async def test_a_process_that_is_gone_leaves_nothing(others: Others, peers: HttpTransactionPeers) -> None:
    others.may_respond.clear()
    old = asyncio.ensure_future(peers.end(member(2), CALL))
    await asyncio.sleep(0.01)
    others.ownership.others = [member(2, "b"), member(3)]
    new = asyncio.ensure_future(peers.end(member(2, "b"), CALL))
    with pytest.raises(StorageUnavailable):
        await old
    others.may_respond.set()
    assert (await new).participants == CALL.participants
    others.may_respond.clear()
    waiting = asyncio.ensure_future(peers.end(member(3), CALL))
    await asyncio.sleep(0.01)
    peers.close()
    with pytest.raises(StorageUnavailable):
        await waiting
