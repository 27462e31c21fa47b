"""Requests about transactions to other brokers, in batches. See `broker.coordinator.remote_transactions`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from headrace.broker.coordinator.remote_transactions import (
    CHARACTER_BYTES,
    RemoteAnswer,
    RemoteEnd,
    RemoteEnded,
    RemoteQuestion,
    json_bytes,
)
from headrace.http.peers.batches import Batches
from headrace.http.peers.connections import Lost
from headrace.http.peers.peers import Peers
from headrace.membership.view import Member
from headrace.security.access.principal import ANONYMOUS
from headrace.topics.errors import StorageUnavailable

ENDS: Final = "/headrace/transactions/ends"
QUESTIONS: Final = "/headrace/transactions/questions"
"""Paths for other brokers."""
R = TypeVar("R")
_TIMEOUT_S = 5.0
"""Maximum seconds of a request. The receiver responds earlier, with what it knows by then."""
_OTHERS_BYTES = 128
"""Bytes of the other fields of a message, and of a participant that is no group."""
_ended = msgspec.json.Decoder(list[RemoteEnded])
_answers = msgspec.json.Decoder(list[RemoteAnswer])


class _Link:
    """Requests to one process of a broker."""

    def __init__(self, peers: Peers, member: Member) -> None:
        self.ends = Batches[RemoteEnd, RemoteEnded](
            lambda items: _send(peers, member, ENDS, items, _ended), _size_of_end
        )
        self.questions = Batches[RemoteQuestion, RemoteAnswer](
            lambda items: _send(peers, member, QUESTIONS, items, _answers), _size_of_question
        )

    def close(self) -> None:
        self.ends.close()
        self.questions.close()


class HttpTransactionPeers:
    """The other brokers over HTTP. Implements `TransactionPeers`."""

    def __init__(self, peers: Peers, is_current: Callable[[], Awaitable[bool]]) -> None:
        """`is_current`: see `TransactionPeers.is_current`."""
        self._peers = peers
        self._links: dict[Member, _Link] = {}
        self._is_current = is_current

    async def end(self, member: Member, call: RemoteEnd) -> RemoteEnded:
        """See `TransactionPeers`."""
        return await self._link(member).ends.ask(call)

    async def ask(self, member: Member, question: RemoteQuestion) -> RemoteAnswer:
        """See `TransactionPeers`."""
        return await self._link(member).questions.ask(question)

    async def is_current(self) -> bool:
        """See `TransactionPeers`."""
        return await self._is_current()

    def _link(self, member: Member) -> _Link:
        found = self._links.get(member)
        if found is None:
            alive = set(self._peers.ownership.others)
            for gone in self._links.keys() - alive:
                self._links.pop(gone).close()
            found = self._links[member] = _Link(self._peers, member)
        return found

    def close(self) -> None:
        """Reject all requests that wait."""
        for link in self._links.values():
            link.close()
        self._links.clear()


async def _send(
    peers: Peers, member: Member, path: str, items: Sequence[object], decoder: "msgspec.json.Decoder[list[R]]"
) -> list[R]:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            body = msgspec.json.encode(items)
            response = await peers.ask(member, "POST", path.encode(), body, principal=ANONYMOUS, headers={})
    except TimeoutError as error:
        raise StorageUnavailable(f"broker {member.node_id} does not respond") from error
    except Lost as error:
        raise StorageUnavailable(str(error)) from error
    try:
        if response.status == 200:
            found = decoder.decode(response.body)
            if len(found) == len(items):
                return found
    except msgspec.DecodeError:
        pass
    raise StorageUnavailable(f"broker {member.node_id} responds with status {response.status}")


def _size_of_end(call: RemoteEnd) -> int:
    return _OTHERS_BYTES + CHARACTER_BYTES * len(call.cluster) + sum(map(json_bytes, call.participants.as_list()))


def _size_of_question(question: RemoteQuestion) -> int:
    group = question.participant if isinstance(question.participant, str) else ""
    return _OTHERS_BYTES + CHARACTER_BYTES * len(question.cluster + question.transactional_id + group)
