"""Produce (0), versions 0-13; 0-2 are advertised and refused.

Behavior
- Stores one record batch per partition byte for byte. The server reads only its header and CRC, unless the topic is
  compacted or validates schemas. Then one rejected record rejects its batch with INVALID_RECORD, and the response lists
  the first 100 rejected records.
- Responds after Redis has responded. As in Kafka, acks=0 gets no response, and an error closes the connection.
- As in Kafka, complete requests with acks=0 are stored even if the client has disconnected, within the memory for
  requests.
- If Redis does not respond: REQUEST_TIMED_OUT after the timeout of the request (acks=all), or after 25 s. The batch is
  stored later. If an idempotent producer sends it again, the response has its offset.
- acks=all waits for the replicas that `min.insync.replicas` requires, at most for the timeout of the request. By
  default that is the primary only, and acks=1 and acks=all have the same effect.
- A partition without records gets the error that a batch would get if the partition or the server accepts none, else
  INVALID_RECORD. `headrace records produce` learns the reason of a refusal by this.

Version notes
- 0-2: old librdkafka compresses only for brokers that list them (KAFKA-18659). Magic 0 and 1 are not supported.
- 7: zstd (KIP-110). 8: error messages per partition (KIP-467). 9: flexible.
- 10: a partition that another broker leads has that leader and its address (KIP-951).
- 11, 12: errors and shortcuts of transactions (KIP-890).
- 13: topics by ID (KIP-516). An unknown ID is UNKNOWN_TOPIC_ID for its partitions.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from itertools import repeat
from typing import Any
from uuid import UUID

from headrace.broker.broker import Broker
from headrace.kafka.denied import No, Place, parts, transaction_of
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import its_transaction, referred_names, topics, transactional_ids
from headrace.kafka.server.registry import SHORTCUTS, Shortcut, register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.single_batch import (
    Answer,
    PartitionAppend,
    Pending,
    Placing,
    opens_batches,
    refuse,
    replicas_ms,
    shortcut,
    topic_response,
    unsettled,
    without_the_rest,
)
from headrace.protocol.messages import ProduceRequest, ProduceResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import InvalidRecord, TopicError

_ACKS = (-1, 0, 1)
_MOST_BYTES = 2**31 - 1
"""Only `socket.request.max.bytes` limits requests with records."""
_ELEMENT_BYTES = 32
"""Memory per topic and per partition. A topic with one partition counts as two, and its batch has at least 61 bytes."""
PRODUCE = ProduceRequest.API_KEY
_IDS_FROM = 13
_MANY = 100
"""Requests with more partitions are appended in pieces."""


def _wait_ms(request: ProduceRequest) -> int:
    return replicas_ms(request.acks, request.timeout_ms, request.transactional_id)


def _referred(topic: ProduceRequest.TopicProduceData, context: RequestContext) -> str | UUID:
    return topic.name if context.version < _IDS_FROM else topic.topic_id


def _names(request: ProduceRequest, context: RequestContext) -> Iterable[str]:
    return referred_names((_referred(topic, context) for topic in request.topic_data), context)


_OF_TRANSACTION = transactional_ids(Operation.WRITE, its_transaction)
NEEDS = (topics(Operation.WRITE, _names), _OF_TRANSACTION)
SHORTCUTS[PRODUCE] = Shortcut(shortcut, needs=(topics(Operation.WRITE, lambda one, _: (one.topic,)), _OF_TRANSACTION))


def _places(
    topic: ProduceRequest.TopicProduceData, request: ProduceRequest, context: RequestContext
) -> Iterator[Place]:
    yield from transaction_of(request)
    for name in referred_names((_referred(topic, context),), context):
        yield ResourceType.TOPIC, name


def _no(
    topic: ProduceRequest.TopicProduceData, no: No, context: RequestContext
) -> ProduceResponse.TopicProduceResponse:
    answers = [Answer(index=data.index) for data in topic.partition_data]
    for answer in answers:
        refuse(answer, RequestError(no.code, no.message))
    return topic_response(topic.name, _id_of(topic, context), answers)


def _id_of(topic: ProduceRequest.TopicProduceData, context: RequestContext) -> UUID | None:
    return None if context.version < _IDS_FROM else topic.topic_id


def _keep(request: ProduceRequest, context: RequestContext) -> bool:
    """Return whether the request has many topics. Then copy it, and hold up later requests."""
    if len(request.topic_data) <= _MANY:
        return False
    _hold_up(context)
    _kept(request, context)
    return True


def _hold_up(context: RequestContext) -> None:
    if not context.alone:
        context.channel.hold_up(context)
        context.late = Placing()


REFUSAL = parts("topic_data", _places, _no, "responses", always=True)


@register(
    ProduceRequest, 0, 13, needs=NEEDS, refusal=REFUSAL, keep=_keep, refused_below=3,
    most_bytes=_MOST_BYTES, element_bytes=_ELEMENT_BYTES, bound=None, urgent=True,
)  # fmt: skip
def handle(request: ProduceRequest, context: RequestContext) -> Coroutine[Any, Any, ProduceResponse | None] | None:
    """Append one batch to each partition."""
    opened = _opened(request, context)
    waits = opened > 0 and context.broker.lane.crowded
    if waits or opened > 1 or context.alone or sum(len(topic.partition_data) for topic in request.topic_data) > _MANY:
        # Later requests of the client may be for the same partitions.
        _hold_up(context)
        return _append_many(_kept(request, context), context, first_waits=opened > 0)
    response = ProduceResponse(responses=[])
    work: list[tuple[ProduceRequest.TopicProduceData, ProduceRequest.PartitionProduceData, Answer]] = []
    for topic in request.topic_data:
        answers = [unsettled(data.index) for data in topic.partition_data]
        work += zip(repeat(topic), topic.partition_data, answers)
        response.responses.append(topic_response(topic.name, _id_of(topic, context), answers))
    if not work and request.acks == 0:
        context.finish_without_response()
    elif not work:
        context.answer(response)
    else:
        pending = Pending(context, response, len(work), silent=request.acks == 0, wait_ms=_wait_ms(request))
        context.late = pending
        now_ms = context.broker.clock.now_ms()
        for topic, data, answer in work:
            _append(request, topic, data, answer, now_ms, context, pending)
    return None


def _kept(request: ProduceRequest, context: RequestContext) -> ProduceRequest:
    """Copy the records, as the read buffer is reused before most of them are appended."""
    if not context.owned:
        for topic in request.topic_data:
            for data in topic.partition_data:
                data.records = data.records if data.records is None else bytearray(data.records)
        context.owned = True
    return request


def _opened(request: ProduceRequest, context: RequestContext) -> int:
    """Return the number of expanded batches. Each may grow from a few kilobytes to 16 MiB."""
    return sum(
        len(topic.partition_data)
        for topic in request.topic_data
        if opens_batches(context.broker, _referred(topic, context))
    )


async def _append_many(
    request: ProduceRequest, context: RequestContext, *, first_waits: bool
) -> ProduceResponse | None:
    """As `handle`, for many batches or expanded ones. `first_waits` delays the first of these."""
    pace = context.pace()
    if first_waits:
        await pace.rest()
    now_ms = context.broker.clock.now_ms()
    response = ProduceResponse(responses=[])
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # One more than the batches, settled after all have been given.
    silent, wait_ms = request.acks == 0, _wait_ms(request)
    pending = Pending(context, response, 1, silent=silent, wait_ms=wait_ms, settled=settled)
    try:
        try:
            async for topic in pace.each(request.topic_data):
                answers: list[Answer] = []
                response.responses.append(topic_response(topic.name, _id_of(topic, context), answers))
                async for data in pace.each(topic.partition_data):
                    answer = unsettled(data.index)
                    answers.append(answer)
                    pending.expect()
                    _append(request, topic, data, answer, now_ms, context, pending)
            # Not earlier: later requests could be appended in between.
            context.late = pending
        finally:
            pending.given()
        await settled
    except asyncio.CancelledError:
        pending.abandon()
        raise
    return None if request.acks == 0 else response


def _without_records(broker: Broker, topic: str | UUID, index: int) -> TopicError:
    try:
        broker.check_writable(topic, index)
    except TopicError as error:
        return error
    return InvalidRecord("no record batch")


def _name(broker: Broker, topic_id: UUID) -> str:
    live = broker.topics.with_id(topic_id.bytes)
    return str(topic_id) if live is None else live.topic.name


def _append(
    request: ProduceRequest,
    topic: ProduceRequest.TopicProduceData,
    data: ProduceRequest.PartitionProduceData,
    answer: Answer,
    now_ms: int,
    context: RequestContext,
    pending: Pending,
) -> None:
    channel, wait_ms = context.channel, _wait_ms(request)
    topic_id = _id_of(topic, context)
    name = topic.name if topic_id is None else _name(context.broker, topic_id)
    transactional_id = request.transactional_id
    append = PartitionAppend(
        pending, channel, context.version, name, data.index, answer, wait_ms, topic_id, transactional_id
    )
    acks, records = request.acks, data.records
    if acks not in _ACKS:
        append.settle(RequestError(Code.INVALID_REQUIRED_ACKS, f"acks={acks}: wanted -1, 0 or 1"))
    elif records is None:
        append.settle(_without_records(context.broker, _referred(topic, context), data.index))
    else:
        # The log keeps these bytes beyond the read buffer, and writes the offset into them.
        append.batch = without_the_rest(records, context.size) if context.owned else bytearray(records)
        append.append(now_ms)
