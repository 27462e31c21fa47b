"""Append batches of PutMessages at the leaders of their partitions.

Each batch has an idempotent producer, so it can be sent again after a lost response, to the same leader or to the next
one. The outcome is unknown only if this server ends before it responds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from struct import Struct
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.connections import Lost
from headrace.http.peers.peers import NotHere, Peers
from headrace.membership.view import Member
from headrace.oci.api.publisher import MOST_BATCH, Placed
from headrace.records.batch import MAX_TIMESTAMP_AT, SEQUENCES, number, peek
from headrace.security.access.principal import ANONYMOUS
from headrace.topics import errors
from headrace.topics.errors import (
    Fenced,
    InvalidProducerEpoch,
    InvalidRecords,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    StorageUnavailable,
    TopicError,
    UnknownTopic,
)
from headrace.topics.model import Appended

PATH = "/headrace/append"
"""Path that accepts batches from other brokers."""
MISDIRECTED = 421
"""Status if this broker is not responsible (RFC 9110, 15.5.20)."""
_MOST_PRODUCERS = 4_096
"""Maximum idle producers."""
_INT64 = Struct(">q")
_ERRORS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TopicError)}


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error for another broker."""

    error: str
    message: str
    reasons: dict[int, str] = {}
    """Those of `InvalidRecords`."""

    def as_error(self) -> TopicError:
        """Return the error that the leader raised."""
        kind = _ERRORS.get(self.error, StorageUnavailable)
        return InvalidRecords(self.message, self.reasons) if kind is InvalidRecords else kind(self.message)


class _Producer(msgspec.Struct):
    """An idempotent producer with at most one batch in flight."""

    id: int
    sequence: int = 0


_Place = tuple[bytes, int]
"""A topic's id and a partition."""


class AppendRouter:
    """Appends batches at leaders."""

    def __init__(
        self, peers: Peers, clusters: VirtualClusters, catching_up: Callable[[], Callable[[], Awaitable[bool]]]
    ) -> None:
        self._peers = peers
        self._clusters = clusters
        self._catching_up = catching_up
        self._idle: dict[_Place, list[_Producer]] = {}
        self._kept = 0

    async def put(self, broker: Broker, topic: LiveTopic, index: int, batch: bytearray) -> Placed:
        """Append a batch. Raises TopicError."""
        partition = topic.partition(index)
        topic_id = topic.topic.id
        place = (topic_id.bytes, index)
        span = peek(batch).span
        producer = await self._producer(broker, place)
        number(batch, producer.id, 0, producer.sequence)

        async def here() -> Placed:
            return await self._append(*await self._holding(broker, topic_id), index, bytearray(batch))

        async def there(member: Member) -> Placed:
            return await self._send(member, *await self._holding(broker, topic_id), index, batch)

        try:
            placed = await self._peers.owner_does(partition.stream, here, there)
        except NotHere as error:
            raise StorageUnavailable(str(error)) from error
        except (InvalidProducerEpoch, OutOfOrderSequence) as error:
            raise StorageUnavailable(f"the log does not fit what was put before: {error}") from error
        producer.sequence = (producer.sequence + span) % SEQUENCES
        self._keep(place, producer)
        return placed

    async def _holding(self, broker: Broker, topic_id: UUID) -> tuple[Broker, LiveTopic]:
        with contextlib.suppress(UnknownTopic):
            return self._clusters.holding(topic_id, broker.cluster)
        # It may have applied half of another broker's move, or the topic was deleted.
        await self._catching_up()()
        return self._clusters.holding(topic_id, broker.cluster)

    async def _producer(self, broker: Broker, place: _Place) -> _Producer:
        idle = self._idle.get(place)
        if idle:
            self._kept -= 1
            return idle.pop()
        return _Producer(await broker.new_producer_id())

    def _keep(self, place: _Place, producer: _Producer) -> None:
        if self._kept >= _MOST_PRODUCERS:
            # Their topics may be deleted.
            self._idle.clear()
            self._kept = 0
        self._idle.setdefault(place, []).append(producer)
        self._kept += 1

    @staticmethod
    async def _append(broker: Broker, topic: LiveTopic, index: int, batch: bytearray) -> Placed:
        try:
            return await append(broker, topic, index, batch)
        except TopicError as error:
            raise _again(error) from error

    async def _send(self, member: Member, broker: Broker, topic: LiveTopic, index: int, batch: bytearray) -> Placed:
        place = {"cluster": broker.cluster, "topic": topic.topic.name, "id": topic.topic.id.hex, "partition": index}
        target = f"{PATH}?{urlencode(place)}".encode()
        try:
            answer = await self._peers.ask(member, "POST", target, batch, principal=ANONYMOUS, headers={})
        except Lost as error:
            raise NotHere(str(error)) from error
        try:
            if answer.status == 200:
                return msgspec.json.decode(answer.body, type=Placed)
            refusal = msgspec.json.decode(answer.body, type=Refusal)
        except msgspec.DecodeError:
            # The other broker is starting or stopping.
            raise NotHere(f"broker {member.node_id} answers {answer.status}") from None
        if answer.status == MISDIRECTED:
            raise NotHere(refusal.message)
        raise _again(refusal.as_error())


async def append(broker: Broker, topic: LiveTopic, index: int, batch: bytearray) -> Placed:
    """Append a batch to a partition of this server. Raises TopicError."""
    done: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()

    def settle(result: Appended | Exception) -> None:
        if not done.done():
            done.set_result(result)

    broker.append(topic.topic.name, index, batch, settle, most_bytes=MOST_BATCH)
    # With LogAppendTime the log has set the time.
    time_ms = _INT64.unpack_from(batch, MAX_TIMESTAMP_AT)[0]
    result = await done
    if isinstance(result, Exception):
        raise result if isinstance(result, TopicError) else StorageUnavailable(str(result))
    return Placed(result.base_offset, time_ms)


def _again(error: TopicError) -> Exception:
    # UnknownTopic: a moved topic's log opens in another cluster.
    hopeful = NotLeader | StorageUnavailable | Fenced | NotEnoughReplicas | NotEnoughReplicasAfterAppend | UnknownTopic
    return NotHere(str(error)) if isinstance(error, hopeful) else error
