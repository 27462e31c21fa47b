"""Fetch (1), versions 4-12.

Behavior
- Whole batches, also for an offset in the middle of one: the client drops what it has. The first batch found is
  returned even when it is larger than the limits (KIP-74).
- A partition that is named more than once is read once. Answers get smaller when clients leave theirs untaken.
- Waits for `min_bytes` up to `max_wait_ms`, woken by appends. No polling.
- A client beyond its quota gets nothing, and the time to wait; what is read is bounded by its quota too.
- No fetch sessions: the session id in the answer is always 0, so every fetch names all its partitions (KIP-227).
- No transactions: the last stable offset is the high watermark, and no transaction was ever aborted.

Version notes
- 5: log start. 7: sessions. 9: the client's leader epoch is checked, also once a fetch has waited. 10: zstd. 11: rack.
  12: flexible.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.fetch import DelayedFetch, FetchDone, Found, PartitionFetch
from headrace.broker.partition.cache import codecs, count_records
from headrace.broker.partition.source import Isolation, Readable
from headrace.kafka.denied import No, Place, parts
from headrace.kafka.errors import Code, RequestError, check_epoch, code_of
from headrace.kafka.required_acls import topics
from headrace.kafka.server.registry import WaitsFor, register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_RECORDS
from headrace.protocol.messages import FetchRequest, FetchResponse
from headrace.records.compression import ZSTD
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError

_ZSTD_FROM = 10
_MANY = 200
"""Partitions from which on an answer is made in pieces."""
_WAITING_BYTES = 300
"""What each of them takes while it is waited for records."""
_CROWDED_MS = 100
"""How long is waited for records at most while too much waits already (`RequestContext.may_wait`)."""

PartitionData = FetchResponse.PartitionData


NEEDS = (topics(Operation.READ, lambda request, _: [topic.topic for topic in request.topics]),)


def _places(topic: FetchRequest.FetchTopic, _: FetchRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.TOPIC, topic.topic


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
    return FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=refused)


@register(
    FetchRequest,
    4,
    12,
    needs=NEEDS,
    refusal=parts("topics", _places, _no, "responses"),
    bound=OF_RECORDS,
    waits_for=WaitsFor.RECORDS,
    urgent=True,
)
def handle(request: FetchRequest, context: RequestContext) -> Coroutine[Any, Any, FetchResponse] | None:
    """Read records from the partitions named, waiting if there are too few."""
    broker = context.broker
    if request.session_epoch > 0 and request.session_id:
        # We never gave out a session: the client has to name everything again.
        context.answer(FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[]))
        return None
    wanted = _Wanted(request)
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
    """As `handle` for so many partitions that naming them takes long."""
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
        fetch.cancel()  # of one that was given up nobody else says that its client has gone
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
    fetch = DelayedFetch(
        asks,
        min_bytes=min(request.min_bytes, most),
        max_bytes=most,
        deadline_ms=broker.clock.ticks_ms() + max_wait_ms,
        # There may be room for one partition only: each fetch of a client begins with another.
        first=context.channel.fetches,
        clock=broker.clock,
        wakeups=broker.wakeups,
        budget=broker.reads,
        done=done,
    )
    fetch.start()
    return fetch


def _throttled(context: RequestContext, found: list[Found]) -> bool:
    """Whether the client has to wait before it gets so much: then what was read is given back, as in Kafka."""
    size = sum(answer.size for answer in found)
    if context.account is None or not context.account.fetched(size):
        return False
    context.broker.reads.release(size)
    return True


def _taken(context: RequestContext, found: list[Found]) -> None:
    """What was read is the client's from here on, if it can open it."""
    context.held += sum(answer.size for answer in found)
    if context.version < _ZSTD_FROM:
        for answer in found:
            _refuse_zstd(answer)


class _Wanted:
    """The partitions of a request, each once: as it is named last, as in Kafka."""

    def __init__(self, request: FetchRequest) -> None:
        self.partitions: dict[tuple[str, int], FetchRequest.FetchPartition] = {
            (topic.topic, asked.partition): asked for topic in request.topics for asked in topic.partitions
        }
        self.isolation = Isolation.of(request.isolation_level)
        self._aborted: list[FetchResponse.AbortedTransaction] | None = None
        if self.isolation is Isolation.READ_COMMITTED:
            self._aborted = []

    def answer(self, broker: Broker, place: tuple[str, int], found: Found) -> tuple[str, PartitionData]:
        """A partition's topic and answer."""
        topic, index = place
        if found.size and self.partitions[place].current_leader_epoch >= 0:
            self._check_epoch(broker, place, found)
        if found.size and broker.topics.has(topic):
            live = broker.topics.get(topic)
            counted = live.counted
            if live.tracer is not None:
                live.tracer.handed_out(topic, index, found.chunks)
            counted.bytes_out += found.size
            counted.records_out += count_records(found.chunks, has_gaps=found.has_gaps)
        return topic, PartitionData(
            partition_index=index,
            error_code=code_of(found.error),
            high_watermark=found.log_end,
            last_stable_offset=found.stable_end,
            log_start_offset=found.log_start,
            aborted_transactions=self._aborted,
            records=found.chunks,
        )

    def _check_epoch(self, broker: Broker, place: tuple[str, int], found: Found) -> None:
        """Give nothing of a log whose leader changed while the fetch waited: the client may be about to go back.

        librdkafka then asks where its epoch ended and begins there again, and would have been given it twice.
        """
        try:
            check_epoch(broker.topics.partition(*place).leader_epoch, self.partitions[place].current_leader_epoch)
        except (TopicError, RequestError) as error:
            found.error, found.chunks, found.size = error, [], 0

    @staticmethod
    def response(answers: list[tuple[str, PartitionData]]) -> FetchResponse:
        """The answers by topic."""
        by_topic: dict[str, list[PartitionData]] = {}
        for topic, answer in answers:
            by_topic.setdefault(topic, []).append(answer)
        return FetchResponse(
            session_id=0,
            responses=[
                FetchResponse.FetchableTopicResponse(topic=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
        )


def _ask(
    context: RequestContext, name: str, wanted: FetchRequest.FetchPartition, isolation: Isolation
) -> PartitionFetch:
    broker = context.broker
    try:
        live = broker.topics.get(name)
        partition = live.partition(wanted.partition)
        partition.check_led()
        check_epoch(partition.leader_epoch, wanted.current_leader_epoch)
    except (TopicError, RequestError) as error:
        return PartitionFetch(error, wanted.fetch_offset, wanted.partition_max_bytes)
    reader: Readable | None = partition.log
    if reader is None:
        # A plain stream is read for the group whose member the client is.
        reader = broker.native_groups.reader(partition, context.client_id or "", f"/{context.channel.client_host}")
    # Whoever looks into batches wants each by itself.
    join = live.tracer is None and context.version >= _ZSTD_FROM
    return PartitionFetch(
        reader, wanted.fetch_offset, wanted.partition_max_bytes, live.config.max_message_bytes, join, isolation
    )


def _refuse_zstd(found: Found) -> None:
    """Refuse zstd batches to clients that cannot decompress them (KIP-110)."""
    if any(codec == ZSTD for codec in codecs(found.chunks)):
        error = RequestError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Fetch version 10 or later")
        found.error, found.chunks, found.size = error, [], 0
