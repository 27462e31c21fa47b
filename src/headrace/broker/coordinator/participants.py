"""Ends of transactions at their partitions and groups, on this and on other brokers.

The owner of a participant is looked up for each call, because it may change between two of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.remote_transactions import (
    RemoteEnd,
    RemoteEnded,
    TransactionPeers,
    json_bytes,
    packed,
)
from headrace.broker.partition.participant import transaction_ended
from headrace.broker.runtime.clock import Clock
from headrace.broker.topics.live import LiveTopic
from headrace.groups.effects import EndOffsetsResult
from headrace.groups.effects import Result as GroupResult
from headrace.groups.errors import GroupError
from headrace.groups.events import EndOffsets
from headrace.records.markers import NUMBERS, Marker
from headrace.topics.errors import InvalidProducerEpoch, StorageUnavailable, TopicError
from headrace.transactions.effects import EndParticipants
from headrace.transactions.model import GroupId, Participant, PartitionId

MOST_BYTES = 128 << 10
"""Largest part of a transaction's participants in one message to another broker, in bytes of JSON."""
_AT_ONCE = 500
"""Participants that end at the same time."""
_ONE_S, _ALL_MS = 5.0, 15_000
"""Maximum seconds for one participant on this broker, and milliseconds after which no more are called."""
_REMOTE_S, _REMOTE_MS = 0.5, 2_000
"""The same for another broker's call. Others wait for the same response."""
_log = structlog.get_logger("headrace.broker.coordinator")

Peers = Callable[[], TransactionPeers | None]
"""Returns the connection with the other brokers. None: not connected."""
AskGroup = Callable[[str, EndOffsets], Awaitable[GroupResult]]
"""Sends a request to a group."""


class KnownTopics(Protocol):
    """Topics by name in the virtual cluster, and by ID in all of them."""

    def named(self, name: str) -> LiveTopic:
        """Return a topic. Raises UnknownTopic."""

    def anywhere(self, topic_id: UUID) -> LiveTopic | None:
        """Return a topic, or None if it was deleted. Raises StorageUnavailable if this is not certain."""


class ClusterParticipants:
    """Participants of the transactions of one virtual cluster. Implements `transaction_runner.Participants`."""

    def __init__(self, ownership: Ownership, cluster: str, clock: Clock, peers: Peers) -> None:
        """Call `connect` before the first request."""
        self._ownership = ownership
        self._cluster = cluster
        self._clock = clock
        self._peers = peers
        self._topics: KnownTopics
        self._ask_group: AskGroup

    def connect(self, topics: KnownTopics, ask_group: AskGroup) -> None:
        """Use these topics and groups."""
        self._topics = topics
        self._ask_group = ask_group

    async def end(self, call: EndParticipants) -> Collection[Participant]:
        """See `transaction_runner.Participants`."""
        ended: list[Participant] = []
        errors: list[str] = []
        places: dict[int, list[Participant]] = {}
        await self._look_up(call.participants, places, ended, errors)
        here = places.pop(self._ownership.node_id, [])
        calls = [self._end_here(call, here, _ONE_S, _ALL_MS)]
        calls += (self._end_there(call, node_id, part) for node_id, some in places.items() for part in _parts(some))
        for some, reasons in await asyncio.gather(*calls):
            ended += some
            errors += reasons
        if errors:
            _log.warning(
                "participants have not ended a transaction yet",
                producer_id=call.producer_id,
                participants=len(call.participants) - len(ended),
                reason=errors[0],
            )
        return ended

    async def end_for_other(self, call: RemoteEnd) -> RemoteEnded:
        """End a transaction of another broker's coordinator at participants of this broker."""
        command = EndParticipants(
            producer_id=call.producer_id,
            epoch=call.epoch,
            commit=call.commit,
            number=call.number,
            copies=1,
            version=1,
            participants=tuple(call.participants.as_list()),
        )
        ended, errors = await self._end_here(command, command.participants, _REMOTE_S, _REMOTE_MS)
        return RemoteEnded(packed(ended), errors[0] if errors else "")

    async def _look_up(
        self,
        participants: Sequence[Participant],
        places: dict[int, list[Participant]],
        ended: list[Participant],
        errors: list[str],
    ) -> None:
        """Sort participants by the node ID of their broker. Those of deleted topics have ended."""
        missing = self._sort(participants, places, errors)
        peers = self._peers()
        if missing and (self._ownership.others or peers is not None):
            # Another broker may have created or moved the topic, and may be dead by now.
            try:
                if peers is None or not await peers.is_current():
                    raise StorageUnavailable("it is not known whether the topic was deleted")
            except StorageUnavailable as error:
                errors.append(str(error))
                return
            missing = self._sort(missing, places, errors)
        ended += missing

    def _sort(
        self, participants: Sequence[Participant], places: dict[int, list[Participant]], errors: list[str]
    ) -> list[Participant]:
        """Return those of unknown topics."""
        missing: list[Participant] = []
        for each in participants:
            try:
                node_id = self._node_of(each)
            except TopicError as error:
                errors.append(str(error))
                continue
            if node_id is None:
                missing.append(each)
            else:
                places.setdefault(node_id, []).append(each)
        return missing

    def _node_of(self, participant: Participant) -> int | None:
        """Return the node ID of a participant's broker. None: its topic is unknown. -1: no broker is alive."""
        if isinstance(participant, GroupId):
            return self._ownership.owner_of(self._ownership.group_key(self._cluster, participant.name))
        live = self._topics.anywhere(participant.topic_id)
        if live is None:
            return None
        leader = live.partition(participant.index).leader
        return self._ownership.node_id if leader is None else leader

    async def _end_there(
        self, call: EndParticipants, node_id: int, participants: list[Participant]
    ) -> tuple[list[Participant], list[str]]:
        member, peers = self._ownership.member(node_id), self._peers()
        if member is None or peers is None:
            return [], [f"broker {node_id} is not alive"]
        message = RemoteEnd(self._cluster, call.producer_id, call.epoch, call.commit, call.number, packed(participants))
        try:
            response = await peers.end(member, message)
        except StorageUnavailable as error:
            return [], [str(error)]
        asked = frozenset(participants)
        ended = [each for each in response.participants.as_list() if each in asked]
        return ended, [response.reason] if len(ended) < len(asked) else []

    async def _end_here(
        self, call: EndParticipants, participants: Sequence[Participant], one_s: float, all_ms: int
    ) -> tuple[list[Participant], list[str]]:
        until_ms = self._clock.ticks_ms() + all_ms
        ended: list[Participant] = []
        errors: list[str] = []
        async for part in in_slices(participants, partial(self._end_one, call, one_s), _AT_ONCE):
            ended += (each for each, error in part if not error)
            errors += (error for _, error in part if error)
            if self._clock.ticks_ms() >= until_ms:
                break
        return ended, errors

    async def _end_one(self, call: EndParticipants, limit_s: float, participant: Participant) -> str:
        """Return why a participant has not ended the transaction. Empty: it has."""
        try:
            async with asyncio.timeout(limit_s):
                if isinstance(participant, GroupId):
                    return await self._end_group(call, participant)
                await self._end_partition(call, participant)
        except InvalidProducerEpoch:
            # A later epoch, for example of an administrator's marker, has ended it.
            return ""
        except (TopicError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return ""

    async def _end_partition(self, call: EndParticipants, participant: PartitionId) -> None:
        live = self._topics.anywhere(participant.topic_id)
        if live is None:
            raise StorageUnavailable("the topic is not known here")
        partition = live.partition(participant.index)
        partition.check_led()
        if partition.log is None:
            # Converted to a native topic, which has no transactions.
            return
        marker = Marker(call.producer_id, call.epoch, call.commit, call.number % NUMBERS)
        await transaction_ended(partition.log, marker)

    async def _end_group(self, call: EndParticipants, participant: GroupId) -> str:
        event = EndOffsets(
            token=object(),
            producer_id=call.producer_id,
            producer_epoch=call.epoch,
            commit=call.commit,
            number=call.number,
        )
        result = await self._ask_group(participant.name, event)
        assert isinstance(result, EndOffsetsResult)
        if result.error is None or result.error is GroupError.INVALID_PRODUCER_EPOCH:
            return ""
        return f"group {participant.name!r}: {result.error.name}"


def _parts(participants: list[Participant]) -> Iterator[list[Participant]]:
    """Split participants by `MOST_BYTES`."""
    part: list[Participant] = []
    size = 0
    for each in participants:
        size += json_bytes(each)
        if part and size > MOST_BYTES:
            yield part
            part, size = [], json_bytes(each)
        part.append(each)
    if part:
        yield part
