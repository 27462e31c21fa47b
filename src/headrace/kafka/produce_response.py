"""Produce requests in flight: appending their batches, and their partitions' responses.

Nearly every client sends one batch for one partition. Such a request is decoded and answered without the codec's
structures. `BatchAppend` has the logic common to all batches.
"""

import asyncio
from abc import abstractmethod

import msgspec

from headrace.broker.broker import Broker
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
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetsExhausted,
    StorageFull,
    StorageUnavailable,
    TopicError,
)
from headrace.topics.model import Appended

Answer = ProduceResponse.PartitionProduceResponse
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
"""Errors of storage or leadership, not of a batch; they are not logged for each batch."""
_NEVER_MS = 1 << 62
_MOST_TOLD = 500
"""Maximum logged characters of client input."""
_MOST_LINES = 10
"""Maximum logged refused batches of a request."""


_NOTHING = memoryview(b"")
_ATTRIBUTES, _CODEC = 5, 7
"""Offset of the attributes in a batch header, and the mask of the codec."""


class Placing:
    """A Produce request whose batches are being placed in turns, even if its client leaves.

    With acks=0 clients leave right after sending.
    """

    __slots__ = ()

    stays = True

    def due_ms(self, context: RequestContext) -> int:
        """Same as `Late.due_ms`: never, or later requests would overtake it."""
        return _NEVER_MS

    def answer(self, context: RequestContext) -> None:
        """Same as `Late.answer`."""
        raise AssertionError("it is never due")


class Pending:
    """A Produce request whose partitions are being stored.

    A partition without a result gets a timeout error.
    """

    __slots__ = ("_context", "_failed", "_kept", "_left", "_response", "_settled", "_silent", "_told", "_wait_ms")

    stays = False
    """As `Late.stays`: this class does the accounting."""

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
        """Start a request.

        Args:
            context: the request.
            response: the response so far.
            left: number of partitions without a result.
            silent: whether there is no response (acks=0).
            wait_ms: timeout for replicas; 0: do not wait.
            settled: completed with the response, in place of sending it.
        """
        self._context = context
        self._response = response
        self._left = left
        self._silent = silent
        self._failed = ""
        self._told = 0
        self._settled = settled
        self._wait_ms = wait_ms
        self._kept = 0  # bytes of the request that only this object releases

    def due_ms(self, context: RequestContext) -> int:
        """Same as `Late.due_ms`."""
        return context.seen_ms + most_ms(self._wait_ms)

    def answer(self, context: RequestContext) -> None:
        """Answer the partitions without a result, as `Late.answer`."""
        if self._silent:
            context.finish_without_response()
        else:
            context.answer(self._response)

    def settle(self, topic: str, answer: Answer, result: Appended | Exception) -> None:
        """Set the result of one partition; the last one sends the response."""
        if type(result) is not Appended:
            self._failed = str(result)[:_MOST_TOLD]
            if self._told < _MOST_LINES:
                self._told += 1
                log_refused(self._context, topic, answer.index, result)  # type: ignore[arg-type]
        self.given()

    def expect(self) -> None:
        """Count one more partition."""
        self._left += 1

    def abandon(self) -> None:
        """Give up the response; the request is counted until its partitions complete."""
        if self._left:
            self._kept, self._context.kept = self._context.kept, 0

    def given(self) -> None:
        """Count one partition as complete."""
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
    """One batch to append, and its part of the response.

    It is the only batch of its request (`SingleBatch`) or one of several (`PartitionAppend`).
    """

    __slots__ = ()

    channel: ResponseChannel
    version: int
    topic: str
    index: int
    batch: bytearray | memoryview
    header: HeaderFields | None
    """Batch header, if checked."""
    wait_ms: int
    log_append_ms: int
    log_start: int

    def serve(self) -> None:
        """Append the batch; `settle` always gets the result."""
        broker = self.channel.broker
        index = self.index
        try:
            live = self.channel.broker.topics.get(self.topic)
            partitions = live.partitions
            if 0 <= index < len(partitions):
                self.log_start = partitions[index].log_start  # type: ignore[misc]  # a slot of the subclasses
            # The stored and the returned timestamp must be equal.
            now_ms = broker.clock.now_ms()
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
            )
        except TopicError as error:
            self.settle(error)

    @abstractmethod
    def settle(self, result: Appended | Exception) -> None:
        """Set the result of the batch."""
        raise NotImplementedError

    def fill(self, answer: Answer, result: Appended | Exception) -> None:
        """Fill the response of a partition from the result."""
        if type(result) is Appended:
            answer.error_code, answer.error_message = 0, None
            answer.base_offset = result.base_offset
            answer.log_append_time_ms = self.log_append_ms
            answer.log_start_offset = self.log_start
        else:
            refuse(answer, result)  # type: ignore[arg-type]


class PartitionAppend(BatchAppend, msgspec.Struct, eq=False):
    """One of several batches of a request."""

    pending: Pending
    channel: ResponseChannel
    version: int
    topic: str
    index: int
    answer: Answer
    wait_ms: int
    batch: bytearray | memoryview = _NOTHING
    header: HeaderFields | None = None
    log_append_ms: int = -1

    @property
    def log_start(self) -> int:
        """Log start offset; set even before the batch has a result."""
        return self.answer.log_start_offset

    @log_start.setter
    def log_start(self, offset: int) -> None:
        self.answer.log_start_offset = offset

    def settle(self, result: Appended | Exception) -> None:
        """Same as `BatchAppend.settle`."""
        self.fill(self.answer, result)
        self.pending.settle(self.topic, self.answer, result)


class SingleBatch(BatchAppend, Served, eq=False):
    """A Produce request with one batch for one partition."""

    topic: str = ""
    index: int = 0
    batch: bytearray | memoryview = _NOTHING
    header: HeaderFields | None = None
    wait_ms: int = 0
    log_append_ms: int = -1
    log_start: int = -1

    def serve(self) -> None:
        """As `Served.serve`: append the batch now."""
        self.append(self.channel.broker.clock.now_ms())

    def due_ms(self) -> int:
        """Same as `Late.due_ms`."""
        return self.seen_ms + most_ms(self.wait_ms)

    def give_up(self) -> None:
        """Answer that the request timed out."""
        answer = unsettled(self.index)
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))

    def settle(self, result: Appended | Exception) -> None:
        """Same as `BatchAppend.settle`."""
        if self.done:  # it timed out
            self.channel.ended(self)
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
            # Same as `finish`, without the call: the most common path.
            self.chunks = [frame]
            self.done = True
            self.channel.finished(self)
            return
        answer = unsettled(self.index)
        self.fill(answer, result)
        if type(result) is not Appended:
            log_refused(self, self.topic, self.index, result)  # type: ignore[arg-type]
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))


def log_refused(context: RequestContext, topic: str, partition: int, error: Exception) -> None:
    """Log a refused batch."""
    if not isinstance(error, _TOLD_ELSEWHERE):
        audit, client = context.broker.access.audit, context.channel.client_host
        audit.batch_refused(str(context.principal), client, topic, partition, error)


def most_ms(wait_ms: int) -> int:
    """Return the timeout of a request that waits `wait_ms` for replicas."""
    return max(wait_ms or UNSAID_MS, LEAST_MS)


def unsettled(partition: int) -> Answer:
    """Return the response of a partition without a result."""
    return Answer(
        index=partition,
        error_code=Code.REQUEST_TIMED_OUT,
        error_message=MESSAGE,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
    )


def refuse(answer: Answer, error: Exception) -> None:
    """Fill in the error response of a partition."""
    answer.error_code = code_of(error)
    answer.error_message = str(error)
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1


def opens_batches(broker: Broker, topic: str) -> bool:
    """Return whether batches of the topic are expanded before they are stored, which is slow."""
    return broker.topics.has(topic) and broker.topics.get(topic).entry_per_record


def without_the_rest(batch: bytearray | memoryview, size: int) -> bytearray | memoryview:
    """Return a batch that does not keep the whole request of `size` bytes in memory.

    If the batch is the smaller part it is copied: caches count the batch only.
    """
    if type(batch) is bytearray or 2 * len(batch) >= size:
        return batch
    return bytearray(batch)


def shortcut(channel: ResponseChannel, buffer: memoryview, start: int, stop: int, owned: bool) -> SingleBatch | None:
    """Same as `server.registry.Shortcut.begin`."""
    one = read(buffer, start, stop, owned)
    if one is None:
        return None
    version, correlation_id, topic, index, batch, header, wait_ms = one
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
        index=index,
        batch=batch,
        header=header,
        wait_ms=wait_ms,
    )
