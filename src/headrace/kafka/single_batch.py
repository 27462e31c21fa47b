"""What becomes of a Produce request: its batches on their way to Redis, and the answers of its partitions.

Nearly every client sends one batch for one partition: such a request is read and answered without the codec's
structures. What is true of any batch is in `BatchAppend`.
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
"""What is wrong with the storage, or with whom was asked, and not with a batch is not said once more for each batch."""
_NEVER_MS = 1 << 62
_MOST_TOLD = 500
"""Characters of what a client sent that are logged, and ..."""
_MOST_LINES = 10
"""... refused batches of one request."""


_NOTHING = memoryview(b"")
_ATTRIBUTES, _CODEC = 5, 7
"""Where a batch's header has its attributes, and which of their bits name a codec."""


class Placing:
    """A Produce request whose batches are being placed, turn by turn: that goes on though its client is gone.

    With acks=0 clients leave as soon as they have sent everything.
    """

    __slots__ = ()

    stays = True

    def due_ms(self, context: RequestContext) -> int:
        """As `Late.due_ms`: never, since what was sent behind it would come in between."""
        return _NEVER_MS

    def answer(self, context: RequestContext) -> None:
        """As `Late.answer`."""
        raise AssertionError("it is never due")


class Pending:
    """A Produce request whose partitions are on their way to Redis.

    Until a partition has its result, its answer is that it takes too long.
    """

    __slots__ = ("_context", "_failed", "_kept", "_left", "_response", "_settled", "_silent", "_told", "_wait_ms")

    stays = False
    """As `Late.stays`: what becomes of this API's requests is seen to here."""

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
        """Begin.

        Args:
            context: the request.
            response: its answer, as far as it is known.
            left: how many partitions have no result.
            silent: whether there is no answer (acks=0).
            wait_ms: how long it waits for replicas; 0: for none.
            settled: told when the answer is complete, in place of sending it.
        """
        self._context = context
        self._response = response
        self._left = left
        self._silent = silent
        self._failed = ""
        self._told = 0
        self._settled = settled
        self._wait_ms = wait_ms
        self._kept = 0  # bytes of the request, of which nobody but this will tell that it is through

    def due_ms(self, context: RequestContext) -> int:
        """As `Late.due_ms`."""
        return context.seen_ms + most_ms(self._wait_ms)

    def answer(self, context: RequestContext) -> None:
        """As `Late.answer`: for the partitions that have no result yet."""
        if self._silent:
            context.finish_without_response()
        else:
            context.answer(self._response)

    def settle(self, topic: str, answer: Answer, result: Appended | Exception) -> None:
        """One partition has its answer, which is about this result; the last one sends the response."""
        if type(result) is not Appended:
            self._failed = str(result)[:_MOST_TOLD]
            if self._told < _MOST_LINES:
                self._told += 1
                log_refused(self._context, topic, answer.index, result)  # type: ignore[arg-type]
        self.given()

    def expect(self) -> None:
        """There is one partition more."""
        self._left += 1

    def abandon(self) -> None:
        """Nobody waits any more: the request is counted until those that are under way are through."""
        if self._left:
            self._kept, self._context.kept = self._context.kept, 0

    def given(self) -> None:
        """One of those expected is through."""
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
    """One batch on its way to a partition, and its part of the response.

    It is the only one of its request (`SingleBatch`), or one of several (`PartitionAppend`).
    """

    __slots__ = ()

    channel: ResponseChannel
    version: int
    topic: str
    index: int
    batch: bytearray | memoryview
    header: HeaderFields | None
    """That of the batch, where it has been checked."""
    wait_ms: int
    log_append_ms: int
    log_start: int

    def append(self, now_ms: int) -> None:
        """Append the batch at a time; `settle` gets the result, whatever it is.

        All batches of a request, what is stored and what is answered have one reading of the clock.
        """
        index = self.index
        try:
            live = self.channel.broker.topics.get(self.topic)
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
            )
        except TopicError as error:
            self.settle(error)

    @abstractmethod
    def settle(self, result: Appended | Exception) -> None:
        """Receive the place of the batch, or the reason why it was refused."""

    def fill(self, answer: Answer, result: Appended | Exception) -> None:
        """Make an answer that of this batch with this result."""
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
        """Where the log begins: in the answer already while the batch has no result."""
        return self.answer.log_start_offset

    @log_start.setter
    def log_start(self, offset: int) -> None:
        self.answer.log_start_offset = offset

    def settle(self, result: Appended | Exception) -> None:
        """As `BatchAppend.settle`."""
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
        """As `Late.due_ms`."""
        return self.seen_ms + most_ms(self.wait_ms)

    def give_up(self) -> None:
        """As `RequestContext.give_up`."""
        answer = unsettled(self.index)
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))

    def settle(self, result: Appended | Exception) -> None:
        """As `BatchAppend.settle`."""
        if self.done:  # it was given up
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
            # As `finish`, without the call: every batch of most clients is answered here.
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
    """Have the log tell of a batch that was refused."""
    if not isinstance(error, _TOLD_ELSEWHERE):
        audit, client = context.broker.access.audit, context.channel.client_host
        audit.batch_refused(str(context.principal), client, topic, partition, error)


def most_ms(wait_ms: int) -> int:
    """How long a request is waited for that waits so long for replicas."""
    return max(wait_ms or UNSAID_MS, LEAST_MS)


def unsettled(partition: int) -> Answer:
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


def opens_batches(broker: Broker, topic: str) -> bool:
    """Whether batches for the topic of that name are opened to be stored, which takes long."""
    return broker.topics.has(topic) and broker.topics.get(topic).entry_per_record


def without_the_rest(batch: bytearray | memoryview, size: int) -> bytearray | memoryview:
    """A batch out of a request of so many bytes, all of which what is kept of it would keep.

    Where most of them are others', or nobody's, it gets memory of its own: caches count the batch alone.
    """
    if type(batch) is bytearray or 2 * len(batch) >= size:
        return batch
    return bytearray(batch)


def shortcut(channel: ResponseChannel, buffer: memoryview, start: int, stop: int, owned: bool) -> SingleBatch | None:
    """As `server.registry.Shortcut.begin`."""
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
