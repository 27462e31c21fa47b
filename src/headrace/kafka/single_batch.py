"""Batches of Produce requests from append to response."""

import asyncio
from abc import abstractmethod
from uuid import UUID

import msgspec

from headrace.broker.broker import Broker
from headrace.kafka.current_leader import MOVED, CurrentLeaders
from headrace.kafka.errors import Code, code_of
from headrace.kafka.server.registry import Served
from headrace.kafka.server.request_context import RequestContext, ResponseChannel
from headrace.kafka.server.timeouts import LEAST_MS, MESSAGE, UNSAID_MS
from headrace.protocol.messages import ProduceRequest, ProduceResponse
from headrace.protocol.produce import accepted, read
from headrace.records.fallback.header import HeaderFields
from headrace.topics.errors import (
    BehindRefused,
    Fenced,
    InvalidRecords,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetsExhausted,
    StorageFull,
    StorageUnavailable,
    TopicError,
    TransactionUnverified,
)
from headrace.topics.model import Appended

Answer = ProduceResponse.PartitionProduceResponse
NodeEndpoint = ProduceResponse.NodeEndpoint
_LEADERS_FROM = 10
_ABORTABLE_FROM, _ADDS_FROM = 11, 12
"""First versions with TRANSACTION_ABORTABLE, and of batches that add their partition to a transaction (KIP-890)."""
_TOLD_ELSEWHERE = (
    BehindRefused,
    StorageUnavailable,
    StorageFull,
    OffsetsExhausted,
    Fenced,
    NotLeader,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
)
"""Errors that concern storage or the choice of the broker rather than a batch. They are logged elsewhere."""
_NEVER_MS = 1 << 62
_MOST_TOLD = 500
"""Maximum characters of client input in a log line."""
_MOST_LINES = 10
"""Maximum log lines for refused batches of one request."""


_NOTHING = memoryview(b"")
_ATTRIBUTES, _CODEC = 5, 7
"""Indexes in the batch header, and the attribute bits of the codec."""


class Placing:
    """`Late` of a Produce request whose batches are still being appended.

    It continues without its client, as clients with acks=0 disconnect early.
    """

    __slots__ = ()

    stays = True

    def due_ms(self, context: RequestContext) -> int:
        """Return no deadline: later requests must not come in between."""
        return _NEVER_MS

    def answer(self, context: RequestContext) -> None:
        """Raise AssertionError: it is never due."""
        raise AssertionError("it is never due")


class Pending:
    """A Produce request in flight. Partitions without a result have the timeout response."""

    __slots__ = ("_context", "_failed", "_kept", "_left", "_response", "_settled", "_silent", "_told", "_wait_ms")

    stays = False
    """As `Late.stays`. This class handles lost clients itself."""

    def __init__(
        self,
        context: RequestContext,
        response: ProduceResponse,
        left: int,
        *,
        silent: bool,
        wait_ms: int,
        settled: "asyncio.Future[None] | None" = None,
    ) -> None:
        """Start with `left` partitions without a result.

        `silent`: no response (acks=0). `wait_ms`: timeout for replicas, or 0. `settled`: resolved instead of a send.
        """
        self._context = context
        self._response = response
        self._left = left
        self._silent = silent
        self._failed = ""
        self._told = 0
        self._settled = settled
        self._wait_ms = wait_ms
        self._kept = 0  # bytes of the request to release

    def due_ms(self, context: RequestContext) -> int:
        """See `Late.due_ms`."""
        return context.seen_ms + most_ms(self._wait_ms)

    def answer(self, context: RequestContext) -> None:
        """See `Late.answer`."""
        if self._silent:
            context.finish_without_response()
        else:
            context.answer(self._response)

    def settle(self, topic: str, answer: Answer, result: Appended | Exception) -> None:
        """Record the result of a partition. The last one sends the response."""
        if type(result) is not Appended:
            self._failed = str(result)[:_MOST_TOLD]
            if self._told < _MOST_LINES:
                self._told += 1
                log_refused(self._context, topic, answer.index, result)  # type: ignore[arg-type]
        self.given()

    @property
    def context(self) -> RequestContext:
        """The request."""
        return self._context

    def leads(self, endpoints: list[NodeEndpoint]) -> None:
        """Add addresses of leaders to the response."""
        known = self._response.node_endpoints
        known += (each for each in endpoints if each not in known)

    def expect(self) -> None:
        """Count one more partition."""
        self._left += 1

    def abandon(self) -> None:
        """Keep the request counted until its appends end."""
        if self._left:
            self._kept, self._context.kept = self._context.kept, 0

    def given(self) -> None:
        """Count down an expected partition."""
        self._left -= 1
        if self._left:
            return
        if self._kept:
            self._context.kept = self._kept
            self._context.channel.ended(self._context)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        if not self._silent:
            if self._settled is not None:
                return
            self._context.answer(self._response)
            return
        self._context.finish_without_response()
        if self._failed:
            self._context.channel.close(f"acks=0 and a batch was refused: {self._failed}")


class BatchAppend:
    """The append of one batch."""

    __slots__ = ()

    channel: ResponseChannel
    version: int
    topic: str
    """Its name, or the id that no topic has."""
    topic_id: UUID | None
    """Id by which the request names the topic; None: it names it by name."""
    index: int
    batch: bytearray | memoryview
    header: HeaderFields | None
    """The header, if it has been validated."""
    wait_ms: int
    log_append_ms: int
    log_start: int
    transactional_id: str | None

    def append(self, now_ms: int) -> None:
        """Append the batch; `settle` gets the result. All batches of a request have the same `now_ms`."""
        index = self.index
        try:
            topics, topic_id = self.channel.broker.topics, self.topic_id
            live = topics.get(self.topic) if topic_id is None else topics.by_id(topic_id)
            partitions = live.partitions
            if 0 <= index < len(partitions):
                self.log_start = partitions[index].log_start  # type: ignore[misc]  # a slot of the subclasses
            if live.config.log_append_time:
                self.log_append_ms = now_ms  # type: ignore[misc]
            if live.entry_per_record:
                self.channel.took_long()
            live.append(
                index,
                self.batch,
                now_ms,
                self.settle,
                zstd_allowed=self.version >= 7,
                header=self.header,
                wait_ms=self.wait_ms,
                transactional_id=self.transactional_id,
                adds_partition=self.version >= _ADDS_FROM,
            )
        except TopicError as error:
            self.settle(error)

    @abstractmethod
    def settle(self, result: Appended | Exception) -> None:
        """Handle the result of the append."""

    def fill(self, answer: Answer, result: Appended | Exception, context: RequestContext) -> list[NodeEndpoint]:
        """Write a result into the response. Return the address of the leader, if another broker is it."""
        if type(result) is Appended:
            answer.error_code, answer.error_message = 0, None
            answer.base_offset = result.base_offset
            answer.log_append_time_ms = self.log_append_ms
            answer.log_start_offset = self.log_start
        else:
            refuse(answer, result)  # type: ignore[arg-type]
            if isinstance(result, TransactionUnverified) and self.version >= _ABORTABLE_FROM:
                answer.error_code = Code.TRANSACTION_ABORTABLE
            if answer.error_code in MOVED and self.version >= _LEADERS_FROM:
                return self._name_leader(answer, context)
        return []

    def _name_leader(self, answer: Answer, context: RequestContext) -> list[NodeEndpoint]:
        broker = self.channel.broker
        live = broker.topics.find_referred(self.topic if self.topic_id is None else self.topic_id)
        leaders = CurrentLeaders(context, ProduceResponse)
        answer.current_leader = leaders.find(live, self.index)
        return leaders.endpoints()


class PartitionAppend(BatchAppend, msgspec.Struct, eq=False):
    """One of several batches of a request."""

    pending: Pending
    channel: ResponseChannel
    version: int
    topic: str
    index: int
    answer: Answer
    wait_ms: int
    topic_id: UUID | None = None
    transactional_id: str | None = None
    batch: bytearray | memoryview = _NOTHING
    header: HeaderFields | None = None
    log_append_ms: int = -1

    @property
    def log_start(self) -> int:
        """The log start offset, also before the result."""
        return self.answer.log_start_offset

    @log_start.setter
    def log_start(self, offset: int) -> None:
        self.answer.log_start_offset = offset

    def settle(self, result: Appended | Exception) -> None:
        """See `BatchAppend.settle`."""
        self.pending.leads(self.fill(self.answer, result, self.pending.context))
        self.pending.settle(self.topic, self.answer, result)


class SingleBatch(BatchAppend, Served, eq=False):
    """A Produce request with one batch."""

    topic: str = ""
    topic_id: UUID | None = None
    index: int = 0
    batch: bytearray | memoryview = _NOTHING
    header: HeaderFields | None = None
    wait_ms: int = 0
    log_append_ms: int = -1
    log_start: int = -1
    transactional_id: str | None = None

    def serve(self) -> None:
        """Append the batch."""
        self.append(self.channel.broker.clock.now_ms())

    def due_ms(self) -> int:
        """See `Late.due_ms`."""
        return self.seen_ms + most_ms(self.wait_ms)

    def give_up(self) -> None:
        """See `RequestContext.give_up`."""
        self.answer(ProduceResponse(responses=[topic_response(self.topic, self.topic_id, [unsettled(self.index)])]))

    def settle(self, result: Appended | Exception) -> None:
        """See `BatchAppend.settle`."""
        if self.done:  # timed out
            self.channel.ended(self)
            return
        if type(result) is Appended and (self.account is None or not self.account.settle()):
            frame = accepted(
                self.version,
                self.correlation_id,
                self.topic if self.topic_id is None else self.topic_id.bytes,
                self.index,
                result.base_offset,
                self.log_append_ms,
                self.log_start,
            )
            # As `finish`, without the call, for speed.
            self.chunks = [frame]
            self.done = True
            self.channel.finished(self)
            return
        answer = unsettled(self.index)
        endpoint = self.fill(answer, result, self)
        if type(result) is not Appended:
            log_refused(self, self.topic, self.index, result)  # type: ignore[arg-type]
        topic = topic_response(self.topic, self.topic_id, [answer])
        self.answer(ProduceResponse(responses=[topic], node_endpoints=endpoint))


def topic_response(name: str, topic_id: UUID | None, answers: list[Answer]) -> ProduceResponse.TopicProduceResponse:
    """Return a topic's part of the response, which has its name or its id."""
    if topic_id is None:
        return ProduceResponse.TopicProduceResponse(name=name, partition_responses=answers)
    return ProduceResponse.TopicProduceResponse(topic_id=topic_id, partition_responses=answers)


def log_refused(context: RequestContext, topic: str, partition: int, error: Exception) -> None:
    """Log a refused batch."""
    if not isinstance(error, _TOLD_ELSEWHERE):
        audit, client = context.broker.access.audit, context.channel.client_host
        audit.batch_refused(str(context.principal), client, topic, partition, error)


def replicas_ms(acks: int, timeout_ms: int, transactional_id: str | None) -> int:
    """Return the timeout for replicas in ms, or 0 for none.

    It applies to acks=all, and with a transactional id to acks=1 as well.
    """
    return max(1, timeout_ms) if acks == -1 or transactional_id is not None else 0


def most_ms(wait_ms: int) -> int:
    """Return the timeout in ms."""
    return max(wait_ms or UNSAID_MS, LEAST_MS)


def unsettled(partition: int) -> Answer:
    """Return the response without a result."""
    return Answer(
        index=partition,
        error_code=Code.REQUEST_TIMED_OUT,
        error_message=MESSAGE,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
    )


def refuse(answer: Answer, error: Exception) -> None:
    """Write an error into a response."""
    answer.error_code = code_of(error)
    answer.error_message = str(error)
    if isinstance(error, InvalidRecords):
        answer.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
            for index, reason in error.reasons.items()
        ]
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1


def opens_batches(broker: Broker, topic: str | UUID) -> bool:
    """Return whether the topic's batches are expanded, which takes long."""
    live = broker.topics.find_referred(topic)
    return live is not None and live.entry_per_record


def without_the_rest(batch: bytearray | memoryview, size: int) -> bytearray | memoryview:
    """Copy a batch that is less than half of its request, which it would keep in memory."""
    if type(batch) is bytearray or 2 * len(batch) >= size:
        return batch
    return bytearray(batch)


def shortcut(channel: ResponseChannel, buffer: memoryview, start: int, stop: int, owned: bool) -> SingleBatch | None:
    """See `server.registry.Shortcut.begin`."""
    one = read(buffer, start, stop, owned)
    if one is None:
        return None
    version, correlation_id, topic, index, batch, header, acks, timeout_ms, transactional_id = one
    topic_id = None
    if not isinstance(topic, str):
        live = channel.broker.topics.with_id(topic)
        if live is None:
            return None
        topic, topic_id = live.topic.name, live.topic.id
    if header[_ATTRIBUTES] & _CODEC and channel.broker.lane.crowded and opens_batches(channel.broker, topic):
        return None
    if owned:
        batch = without_the_rest(batch, stop - start)
    return SingleBatch(
        channel,
        ProduceRequest.API_KEY,
        version,
        correlation_id,
        None,
        stop - start,
        topic=topic,
        topic_id=topic_id,
        index=index,
        batch=batch,
        header=header,
        wait_ms=replicas_ms(acks, timeout_ms, transactional_id),
        transactional_id=transactional_id,
    )
