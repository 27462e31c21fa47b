"""Fetch (1), versions 4-18.

Behavior
- Returns whole batches, even if the fetch offset is in the middle of one. The first batch is returned even if it
  exceeds the limits (KIP-74).
- A partition that is named more than once is read once. Responses are smaller while clients leave theirs unread.
- Waits up to `max_wait_ms` for `min_bytes`. Appends end the wait.
- A client over its quota gets an empty response with a throttle time. The quota also limits the bytes read.
- There are no fetch sessions. The session id is always 0, so each fetch names all its partitions (KIP-227).
- Committed records end at the last stable offset. Their aborted transactions are listed as of the response.

Version notes
- 5: log start offset. 7: sessions. 9: the client's leader epoch is checked, again after a wait. 10: zstd. 11: rack. 12:
  flexible.
- 13: topics by ID (KIP-516). An unknown ID is UNKNOWN_TOPIC_ID for its partitions.
- 14: an error of followers. 15, 17, 18: fields of followers, ignored.
- 16: a partition that another broker leads has that leader and its address (KIP-951).
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any
from uuid import UUID

from headrace.broker.broker import Broker
from headrace.broker.fetch import DelayedFetch, FetchDone, Found, PartitionFetch
from headrace.broker.partition.cache import codecs, count_records
from headrace.broker.partition.source import Isolation, Readable
from headrace.broker.topics.live import LiveTopic
from headrace.kafka.current_leader import MOVED, CurrentLeaders
from headrace.kafka.denied import No, Place, parts
from headrace.kafka.errors import Code, RequestError, check_epoch, code_of
from headrace.kafka.required_acls import referred_names, topics
from headrace.kafka.server.registry import WaitsFor, register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_RECORDS
from headrace.protocol.messages import FetchRequest, FetchResponse
from headrace.records.compression import ZSTD
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError

_ZSTD_FROM = 10
_IDS_FROM = 13
_LEADERS_FROM = 16
_MANY = 200
"""Responses with more partitions are built in pieces."""
_WAITING_BYTES = 300
"""Memory for each partition while a fetch waits."""
_CROWDED_MS = 100
"""Maximum wait in ms if `RequestContext.may_wait` refuses a longer one."""

PartitionData = FetchResponse.PartitionData
Asked = tuple[str | UUID, int]
"""Name or id of a topic, and index of a partition."""


def _referred(topic: FetchRequest.FetchTopic, context: RequestContext) -> str | UUID:
    return topic.topic if context.version < _IDS_FROM else topic.topic_id


def _names(request: FetchRequest, context: RequestContext) -> Iterable[str]:
    if context.version < _IDS_FROM:
        return [topic.topic for topic in request.topics]
    return referred_names((topic.topic_id for topic in request.topics), context)


NEEDS = (topics(Operation.READ, _names),)


def _places(topic: FetchRequest.FetchTopic, _: FetchRequest, context: RequestContext) -> Iterator[Place]:
    return ((ResourceType.TOPIC, name) for name in referred_names((_referred(topic, context),), context))


def _no(topic: FetchRequest.FetchTopic, no: No, _: RequestContext) -> FetchResponse.FetchableTopicResponse:
    refused = [
        PartitionData(
            partition_index=asked.partition,
            error_code=no.code,
            high_watermark=-1,
            aborted_transactions=[],
            records=[],
        )
        for asked in topic.partitions
    ]
    return FetchResponse.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=refused)


@register(
    FetchRequest,
    4,
    18,
    needs=NEEDS,
    refusal=parts("topics", _places, _no, "responses"),
    bound=OF_RECORDS,
    waits_for=WaitsFor.RECORDS,
    urgent=True,
)
def handle(request: FetchRequest, context: RequestContext) -> Coroutine[Any, Any, FetchResponse] | None:
    """Read records from partitions, and wait if there are too few."""
    broker = context.broker
    if request.session_epoch > 0 and request.session_id:
        # The server creates no sessions, so the client must send a full request.
        context.answer(FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[]))
        return None
    wanted = _Wanted(request, context)
    if len(wanted.partitions) > _MANY:
        return _many(wanted, request, context)
    asks = [_ask(context, topic, asked, wanted.isolation) for (topic, _), asked in wanted.partitions.items()]

    def done(found: list[Found]) -> None:
        if _throttled(context, found):
            context.answer(wanted.response([]))
            return
        _taken(context, found)
        context.answer(
            wanted.response([wanted.answer(broker, *each) for each in zip(wanted.partitions, found, strict=True)])
        )

    fetch = _begin(context, request, asks, done)
    if not context.done:
        context.cancel = fetch.cancel
    return None


async def _many(wanted: "_Wanted", request: FetchRequest, context: RequestContext) -> FetchResponse:
    pace = context.pace()
    asks = [
        _ask(context, topic, asked, wanted.isolation)
        async for (topic, _), asked in pace.each(wanted.partitions.items())
    ]
    answered: asyncio.Future[list[Found]] = asyncio.get_running_loop().create_future()

    def done(found: list[Found]) -> None:
        throttled = _throttled(context, found)
        if not throttled:
            _taken(context, found)
        if not answered.done():
            answered.set_result([] if throttled else found)

    fetch = _begin(context, request, asks, done)
    context.cancel = fetch.cancel
    try:
        found = await answered
    except asyncio.CancelledError:
        fetch.cancel()  # cancellation does not reach a fetch otherwise
        raise
    if not found:
        return wanted.response([])
    places = zip(wanted.partitions, found, strict=True)
    return wanted.response([wanted.answer(context.broker, *each) async for each in pace.each(places)])


def _begin(context: RequestContext, request: FetchRequest, asks: list[PartitionFetch], done: FetchDone) -> DelayedFetch:
    broker = context.broker
    most = min(request.max_bytes, broker.settings.fetch_max_bytes)
    if context.account is not None and context.account.most_bytes is not None:
        most = min(most, context.account.most_bytes)
    context.channel.fetches += 1
    may_wait = context.may_wait(len(asks) * _WAITING_BYTES)
    max_wait_ms = request.max_wait_ms if may_wait else min(request.max_wait_ms, _CROWDED_MS)

    def answered(found: list[Found]) -> None:
        context.waited = fetch.waited
        done(found)

    fetch = DelayedFetch(
        asks,
        min_bytes=min(request.min_bytes, most),
        max_bytes=most,
        deadline_ms=broker.clock.ticks_ms() + max_wait_ms,
        # The limits may allow only one partition, so each fetch of a client starts with another one.
        first=context.channel.fetches,
        clock=broker.clock,
        wakeups=broker.wakeups,
        budget=broker.reads,
        done=answered,
    )
    fetch.start()
    return fetch


def _throttled(context: RequestContext, found: list[Found]) -> bool:
    """Return whether the quota delays these records. Release their memory if so, as Kafka does."""
    size = sum(answer.size for answer in found)
    if context.account is None or not context.account.fetched(size):
        return False
    context.broker.reads.release(size)
    return True


def _taken(context: RequestContext, found: list[Found]) -> None:
    context.held += sum(answer.size for answer in found)
    if context.version < _ZSTD_FROM:
        for answer in found:
            _refuse_zstd(answer)


class _Wanted:
    """The partitions of a request. As in Kafka, the last entry of a duplicate counts."""

    def __init__(self, request: FetchRequest, context: RequestContext) -> None:
        self._context = context
        self._leaders: CurrentLeaders | None = None
        self.partitions: dict[Asked, FetchRequest.FetchPartition] = {
            (referred, asked.partition): asked
            for topic in request.topics
            for referred in (_referred(topic, context),)
            for asked in topic.partitions
        }
        self.isolation = Isolation.of(request.isolation_level)

    def answer(self, broker: Broker, place: Asked, found: Found) -> tuple[str | UUID, PartitionData]:
        topic, index = place
        if found.size and self.partitions[place].current_leader_epoch >= 0:
            self._check_epoch(broker, place, found)
        live = broker.topics.find_referred(topic) if found.size or found.error is not None else None
        if found.size and live is not None:
            counted = live.counted
            if live.tracer is not None:
                live.tracer.handed_out(live.topic.name, index, found.chunks)
            counted.bytes_out += found.size
            counted.records_out += count_records(found.chunks, has_gaps=found.has_gaps)
        code = code_of(found.error)
        return topic, PartitionData(
            partition_index=index,
            error_code=code,
            current_leader=self._leader(live, index) if code in MOVED else None,
            high_watermark=found.log_end,
            last_stable_offset=found.stable_end,
            log_start_offset=found.log_start,
            aborted_transactions=self._aborted(found),
            records=found.chunks,
        )

    def _aborted(self, found: Found) -> list[FetchResponse.AbortedTransaction] | None:
        if self.isolation is not Isolation.READ_COMMITTED:
            return None
        return [
            FetchResponse.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in found.aborted
        ]

    def _leader(self, live: LiveTopic | None, index: int) -> FetchResponse.LeaderIdAndEpoch | None:
        if self._context.version < _LEADERS_FROM:
            return None
        self._leaders = self._leaders or CurrentLeaders(self._context, FetchResponse)
        found: FetchResponse.LeaderIdAndEpoch | None = self._leaders.find(live, index)
        return found

    def _check_epoch(self, broker: Broker, place: Asked, found: Found) -> None:
        """Replace records by an error if the leader epoch changed while the fetch waited.

        librdkafka may then reset its fetch offset to the end of its epoch, and would read these records twice.
        """
        try:
            topic, index = place
            check_epoch(
                broker.topics.referred(topic).partition(index).leader_epoch, self.partitions[place].current_leader_epoch
            )
        except (TopicError, RequestError) as error:
            found.error, found.chunks, found.size = error, [], 0

    def response(self, answers: list[tuple[str | UUID, PartitionData]]) -> FetchResponse:
        by_topic: dict[str | UUID, list[PartitionData]] = {}
        for topic, answer in answers:
            by_topic.setdefault(topic, []).append(answer)
        return FetchResponse(
            session_id=0,
            responses=[
                FetchResponse.FetchableTopicResponse(topic=topic, partitions=partitions)
                if isinstance(topic, str)
                else FetchResponse.FetchableTopicResponse(topic_id=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
            node_endpoints=[] if self._leaders is None else self._leaders.endpoints(),
        )


def _ask(
    context: RequestContext, topic: str | UUID, wanted: FetchRequest.FetchPartition, isolation: Isolation
) -> PartitionFetch:
    broker = context.broker
    try:
        live = broker.topics.referred(topic)
        partition = live.partition(wanted.partition)
        partition.check_led()
        check_epoch(partition.leader_epoch, wanted.current_leader_epoch)
    except (TopicError, RequestError) as error:
        return PartitionFetch(error, wanted.fetch_offset, wanted.partition_max_bytes)
    reader: Readable | None = partition.log
    if reader is None:
        # A native topic is read for the group of the client's member.
        reader = broker.native_groups.reader(partition, context.client_id or "", f"/{context.channel.client_host}")
    # Tracing and the zstd check need separate batches.
    join = live.tracer is None and context.version >= _ZSTD_FROM
    return PartitionFetch(
        reader, wanted.fetch_offset, wanted.partition_max_bytes, live.config.max_message_bytes, join, isolation
    )


def _refuse_zstd(found: Found) -> None:
    """Refuse zstd batches to clients that cannot decompress them (KIP-110)."""
    if any(codec == ZSTD for codec in codecs(found.chunks)):
        error = RequestError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Fetch version 10 or later")
        found.error, found.chunks, found.size = error, [], 0
