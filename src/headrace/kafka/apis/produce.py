"""Produce (0), versions 0-9; 0-2 are advertised and refused.

Behavior
- One record batch per partition, stored byte for byte; only its header and CRC are read.
- Answered when Redis has answered. acks=0 gets no answer, and an error closes the connection, as in Kafka.
- With acks=0 what has come is stored though its client has left, as in Kafka, as long as requests have memory.
- Where Redis does not answer: REQUEST_TIMED_OUT after the request's time-out (acks=all), or 25 s. The batch is stored
  all the same; sent again by an idempotent producer, it is answered with its offset.
- acks=all waits for as many replicas of Redis as min.insync.replicas asks for, for the request's time-out at most;
  where it asks for none beyond the primary, which is the default, acks=1 and acks=all are the same.
- One batch for one partition, which is what nearly every client sends, takes a shortcut around the codec's structures.

Version notes
- 0-2: listed because old librdkafka compresses only for brokers that list them (KAFKA-18659); magic 0 and 1 are gone.
- 7: zstd may be used (KIP-110). 8: error messages per partition (KIP-467). 9: flexible.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from itertools import repeat
from typing import Any

from headrace.access.needs import Operation, ResourceType
from headrace.broker.broker import Broker
from headrace.kafka.bounds import LEAST_MS, MESSAGE, UNSAID_MS
from headrace.kafka.codec.messages import ProduceRequest, ProduceResponse
from headrace.kafka.codec.produce import accepted, read
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.exchange import Exchange, Outlet
from headrace.kafka.needs import its_transaction, topics, transactional_ids
from headrace.kafka.refusing import No, Place, parts, transaction_of
from headrace.kafka.registry import SHORTCUTS, Served, Shortcut, register
from headrace.records.pure import HeaderFields
from headrace.topics.errors import (
    BehindRefused,
    Fenced,
    InvalidRecord,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    StorageFull,
    StorageUnavailable,
    TopicError,
)
from headrace.topics.model import Appended

_ACKS = (-1, 0, 1)
_MOST_BYTES = 2**31 - 1
"""`socket.request.max.bytes` alone bounds what carries records."""
_ELEMENT_BYTES = 32
"""Of topics and partitions: a topic with one partition are two, and its batch alone has 61 bytes."""
_TOLD_ELSEWHERE = (
    BehindRefused,
    StorageUnavailable,
    StorageFull,
    Fenced,
    NotLeader,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
)
"""What is wrong with the storage, or with whom was asked, and not with a batch is not said once more for each batch."""
PRODUCE = ProduceRequest.API_KEY
Answer = ProduceResponse.PartitionProduceResponse
_NOTHING = memoryview(b"")
_MANY = 100
"""Partitions from which on batches are appended in pieces."""
_ATTRIBUTES, _CODEC = 5, 7
"""Where a batch's header has its attributes, and which of their bits name a codec."""
_NEVER_MS = 1 << 62
_MOST_TOLD = 500
"""Characters of what a client sent that are logged, and ..."""
_MOST_LINES = 10
"""... refused batches of one request."""


class _Placing:
    """A Produce request whose batches are being placed, turn by turn: that goes on though its client is gone.

    With acks=0 clients leave as soon as they have sent everything.
    """

    __slots__ = ()

    stays = True

    def due_ms(self, exchange: Exchange) -> int:
        """As `Late.due_ms`: never, since what was sent behind it would come in between."""
        return _NEVER_MS

    def answer(self, exchange: Exchange) -> None:
        """As `Late.answer`."""
        raise AssertionError("it is never due")


class _Pending:
    """A Produce request whose partitions are on their way to Redis.

    Until a partition has its result, its answer is that it takes too long.
    """

    __slots__ = ("_exchange", "_failed", "_kept", "_left", "_response", "_settled", "_silent", "_told", "_wait_ms")

    stays = False
    """As `Late.stays`: what becomes of this API's requests is seen to here."""

    def __init__(
        self,
        exchange: Exchange,
        response: ProduceResponse,
        left: int,
        *,
        silent: bool,
        wait_ms: int,
        settled: "asyncio.Future[None] | None" = None,
    ) -> None:
        """Begin.

        Args:
            exchange: the request.
            response: its answer, as far as it is known.
            left: how many partitions have no result.
            silent: whether there is no answer (acks=0).
            wait_ms: how long it waits for replicas; 0: for none.
            settled: told when the answer is complete, in place of sending it.
        """
        self._exchange = exchange
        self._response = response
        self._left = left
        self._silent = silent
        self._failed = ""
        self._told = 0
        self._settled = settled
        self._wait_ms = wait_ms
        self._kept = 0  # bytes of the request, of which nobody but this will tell that it is through

    def due_ms(self, exchange: Exchange) -> int:
        """As `Late.due_ms`."""
        return exchange.seen_ms + _most_ms(self._wait_ms)

    def answer(self, exchange: Exchange) -> None:
        """As `Late.answer`: for the partitions that have no result yet."""
        if self._silent:
            exchange.say_nothing()
        else:
            exchange.answer(self._response)

    def settle(self, topic: str, answer: Answer, log_append_ms: int, result: Appended | Exception) -> None:
        """One partition has its result; the last one sends the answer."""
        if type(result) is Appended:
            answer.error_code, answer.error_message = 0, None
            answer.base_offset = result.base_offset
            answer.log_append_time_ms = log_append_ms
        else:
            refuse(answer, result)  # type: ignore[arg-type]
            self._failed = str(result)[:_MOST_TOLD]
            if self._told < _MOST_LINES:
                self._told += 1
                _tell(self._exchange, topic, answer.index, result)  # type: ignore[arg-type]
        self.given()

    def expect(self) -> None:
        """There is one partition more."""
        self._left += 1

    def abandon(self) -> None:
        """Nobody waits any more: the request is counted until those that are under way are through."""
        if self._left:
            self._kept, self._exchange.kept = self._exchange.kept, 0

    def given(self) -> None:
        """One of those expected is through."""
        self._left -= 1
        if self._left:
            return
        if self._kept:
            self._exchange.kept = self._kept
            self._exchange.outlet.ended(self._exchange)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        if not self._silent:
            if self._settled is not None:
                return
            self._exchange.answer(self._response)
            return
        self._exchange.say_nothing()
        if self._failed:
            self._exchange.outlet.close(f"acks=0 and a batch was refused: {self._failed}")


class _OneBatch(Served, eq=False):
    """A Produce request with one batch for one partition."""

    topic: str = ""
    index: int = 0
    batch: bytearray | memoryview = _NOTHING
    header: HeaderFields | None = None
    wait_ms: int = 0
    log_append_ms: int = -1
    log_start: int = -1

    def serve(self) -> None:
        broker = self.outlet.broker
        index = self.index
        try:
            live = broker.topics.get(self.topic)
            partitions = live.partitions
            if 0 <= index < len(partitions):
                self.log_start = partitions[index].log_start
            now_ms = broker.clock.now_ms()
            if live.config.log_append_time:
                self.log_append_ms = now_ms
            if live.config.native:
                self.outlet.took_long()
            live.append(
                index,
                self.batch,
                now_ms,
                self._settle,
                zstd_allowed=self.version >= 7,
                header=self.header,
                wait_ms=self.wait_ms,
            )
        except TopicError as error:
            self._settle(error)

    def due_ms(self) -> int:
        return self.seen_ms + _most_ms(self.wait_ms)

    def give_up(self) -> None:
        answer = _unsettled(self.index)
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))

    def _settle(self, result: Appended | Exception) -> None:
        if self.done:  # it was given up
            self.outlet.ended(self)
            return
        if type(result) is Appended and (self.account is None or not self.account.settle()):
            frame = accepted(
                self.version,
                self.correlation_id,
                self.topic,
                self.index,
                result.base_offset,
                self.log_append_ms,
                self.log_start,
            )
            # As `finish`, without the call: every batch of most clients is answered here.
            self.chunks = [frame]
            self.done = True
            self.outlet.finished(self)
            return
        answer = Answer(index=self.index)
        if type(result) is Appended:
            answer.base_offset = result.base_offset
            answer.log_append_time_ms = self.log_append_ms
            answer.log_start_offset = self.log_start
        else:
            refuse(answer, result)  # type: ignore[arg-type]
            _tell(self, self.topic, self.index, result)  # type: ignore[arg-type]
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))


def _shortcut(outlet: Outlet, buffer: memoryview, start: int, stop: int, owned: bool) -> _OneBatch | None:
    one = read(buffer, start, stop, owned)
    if one is None:
        return None
    version, correlation_id, topic, index, batch, header, wait_ms = one
    if header[_ATTRIBUTES] & _CODEC and outlet.broker.lane.crowded and _native(outlet.broker, topic):
        return None
    if owned:
        batch = _without_the_rest(batch, stop - start)
    return _OneBatch(
        outlet,
        PRODUCE,
        version,
        correlation_id,
        None,
        stop - start,
        topic=topic,
        index=index,
        batch=batch,
        header=header,
        wait_ms=wait_ms,
    )


SHORTCUTS[PRODUCE] = Shortcut(_shortcut, needs=(topics(Operation.WRITE, lambda one, _: (one.topic,)),))


def _tell(exchange: Exchange, topic: str, partition: int, error: Exception) -> None:
    if not isinstance(error, _TOLD_ELSEWHERE):
        audit, client = exchange.broker.access.audit, exchange.outlet.client_host
        audit.batch_refused(str(exchange.principal), client, topic, partition, error)


def _wait_ms(request: ProduceRequest) -> int:
    """How long it waits for replicas: as Kafka's, a request's time-out is about acks=all. 0: for none."""
    return max(1, request.timeout_ms) if request.acks == -1 else 0


def _most_ms(wait_ms: int) -> int:
    """How long a request is waited for that waits so long for replicas."""
    return max(wait_ms or UNSAID_MS, LEAST_MS)


def _unsettled(partition: int) -> Answer:
    """The answer for a partition that has no result yet."""
    return Answer(
        index=partition,
        error_code=Code.REQUEST_TIMED_OUT,
        error_message=MESSAGE,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
    )


def refuse(answer: Answer, error: Exception) -> None:
    """Fill in the answer for a partition that took nothing."""
    answer.error_code = code_of(error)
    answer.error_message = str(error)
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1


NEEDS = (
    topics(Operation.WRITE, lambda request, _: (topic.name for topic in request.topic_data)),
    transactional_ids(Operation.WRITE, its_transaction),
)


def _places(topic: ProduceRequest.TopicProduceData, request: ProduceRequest, _: Exchange) -> Iterator[Place]:
    yield from transaction_of(request)
    yield ResourceType.TOPIC, topic.name


def _no(topic: ProduceRequest.TopicProduceData, no: No, _: Exchange) -> ProduceResponse.TopicProduceResponse:
    answers = [Answer(index=data.index) for data in topic.partition_data]
    for answer in answers:
        refuse(answer, RequestError(no.code, no.message))
    return ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=answers)


def _keep(request: ProduceRequest, exchange: Exchange) -> bool:
    """Whether it names many topics, and then with memory of its own, before what is sent behind it."""
    if len(request.topic_data) <= _MANY:
        return False
    _hold_up(exchange)
    _kept(request, exchange)
    return True


def _hold_up(exchange: Exchange) -> None:
    """Serve nothing that was sent behind it before it is through, and go on with it though its client leaves."""
    if not exchange.alone:
        exchange.outlet.hold_up(exchange)
        exchange.late = _Placing()


REFUSAL = parts("topic_data", _places, _no, "responses", always=True)


@register(
    ProduceRequest, 0, 9, needs=NEEDS, refusal=REFUSAL, keep=_keep, refused_below=3,
    most_bytes=_MOST_BYTES, element_bytes=_ELEMENT_BYTES, bound=None,
)  # fmt: skip
def handle(request: ProduceRequest, exchange: Exchange) -> Coroutine[Any, Any, ProduceResponse | None] | None:
    """Append one batch to each partition named."""
    opened = _opened(request, exchange.broker)
    waits = opened > 0 and exchange.broker.lane.crowded
    if waits or opened > 1 or exchange.alone or sum(len(topic.partition_data) for topic in request.topic_data) > _MANY:
        # What the client sent behind it may be for the same partitions: order is kept.
        _hold_up(exchange)
        return _append_many(_kept(request, exchange), exchange, first_waits=opened > 0)
    response = ProduceResponse(responses=[])
    work: list[tuple[str, ProduceRequest.PartitionProduceData, Answer]] = []
    for topic in request.topic_data:
        answers = [_unsettled(data.index) for data in topic.partition_data]
        work += zip(repeat(topic.name), topic.partition_data, answers)
        response.responses.append(ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=answers))
    if not work and request.acks == 0:
        exchange.say_nothing()
    elif not work:
        exchange.answer(response)
    else:
        pending = _Pending(exchange, response, len(work), silent=request.acks == 0, wait_ms=_wait_ms(request))
        exchange.late = pending
        now_ms = exchange.broker.clock.now_ms()
        for name, data, answer in work:
            _append(request, name, data, answer, now_ms, exchange, pending)
    return None


def _kept(request: ProduceRequest, exchange: Exchange) -> ProduceRequest:
    """The request with memory of its own: the read buffer is another's by the time that most of it is appended."""
    if not exchange.owned:
        for topic in request.topic_data:
            for data in topic.partition_data:
                data.records = data.records if data.records is None else bytearray(data.records)
        exchange.owned = True
    return request


def _native(broker: Broker, topic: str) -> bool:
    return broker.topics.has(topic) and broker.topics.get(topic).config.native


def _opened(request: ProduceRequest, broker: Broker) -> int:
    """How many batches are opened, which may make 16 MiB of a few kilobytes: those for native topics."""
    return sum(len(topic.partition_data) for topic in request.topic_data if _native(broker, topic.name))


async def _append_many(request: ProduceRequest, exchange: Exchange, *, first_waits: bool) -> ProduceResponse | None:
    """As `handle` where it takes long: of so many batches, or of those that are opened, whose first one waits, too."""
    pace = exchange.pace()
    if first_waits:
        await pace.rest()
    response = ProduceResponse(responses=[])
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # One more, which is settled when all have been given.
    silent, wait_ms = request.acks == 0, _wait_ms(request)
    pending = _Pending(exchange, response, 1, silent=silent, wait_ms=wait_ms, settled=settled)
    now_ms = exchange.broker.clock.now_ms()
    try:
        try:
            async for topic in pace.each(request.topic_data):
                answers: list[Answer] = []
                named = ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=answers)
                response.responses.append(named)
                async for data in pace.each(topic.partition_data):
                    answer = _unsettled(data.index)
                    answers.append(answer)
                    pending.expect()
                    _append(request, topic.name, data, answer, now_ms, exchange, pending)
            # Not before: what was sent behind it could come in between.
            exchange.late = pending
        finally:
            pending.given()
        await settled
    except asyncio.CancelledError:
        pending.abandon()
        raise
    return None if request.acks == 0 else response


def _without_the_rest(batch: bytearray | memoryview, size: int) -> bytearray | memoryview:
    """A batch out of a request of so many bytes, all of which what is kept of it would keep.

    Where most of them are others', or nobody's, it gets memory of its own: caches count the batch alone.
    """
    if type(batch) is bytearray or 2 * len(batch) >= size:
        return batch
    return bytearray(batch)


def _append(
    request: ProduceRequest,
    name: str,
    data: ProduceRequest.PartitionProduceData,
    answer: Answer,
    now_ms: int,
    exchange: Exchange,
    pending: _Pending,
) -> None:
    """Append the batch of one partition; `pending` gets the result, whatever it is."""
    acks = request.acks
    if acks not in _ACKS:
        error = RequestError(Code.INVALID_REQUIRED_ACKS, f"acks={acks}: wanted -1, 0 or 1")
        pending.settle(name, answer, -1, error)
        return
    records = data.records
    if records is None:
        pending.settle(name, answer, -1, InvalidRecord("no record batch"))
        return
    # What the log keeps must outlive the read buffer, and is stamped with its offset in place.
    batch = _without_the_rest(records, exchange.size) if exchange.owned else bytearray(records)
    try:
        live = exchange.broker.topics.get(name)
        index = data.index
        answer.log_start_offset = live.partitions[index].log_start if 0 <= index < len(live.partitions) else -1
        # What is stored and what is answered are one reading of the clock.
        done = partial(pending.settle, name, answer, now_ms if live.config.log_append_time else -1)
        if live.config.native:
            exchange.outlet.took_long()
        live.append(index, batch, now_ms, done, zstd_allowed=exchange.version >= 7, wait_ms=_wait_ms(request))
    except TopicError as error:
        pending.settle(name, answer, -1, error)
