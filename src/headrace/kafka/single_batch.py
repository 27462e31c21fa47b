"""Produce with one batch for one partition, which is what nearly every client sends: without the codec's structures."""

from headrace.kafka.produce_response import Answer, is_native, log_refused, most_ms, refuse, unsettled, without_the_rest
from headrace.kafka.server.registry import Served
from headrace.kafka.server.request_context import ResponseChannel
from headrace.protocol.messages import ProduceRequest, ProduceResponse
from headrace.protocol.produce import accepted, read
from headrace.records.fallback.header import HeaderFields
from headrace.topics.errors import TopicError
from headrace.topics.model import Appended

_NOTHING = memoryview(b"")
_ATTRIBUTES, _CODEC = 5, 7
"""Where a batch's header has its attributes, and which of their bits name a codec."""


class SingleBatch(Served, eq=False):
    """A Produce request with one batch for one partition."""

    topic: str = ""
    index: int = 0
    batch: bytearray | memoryview = _NOTHING
    header: HeaderFields | None = None
    wait_ms: int = 0
    log_append_ms: int = -1
    log_start: int = -1

    def serve(self) -> None:
        """As `Served.serve`."""
        broker = self.channel.broker
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
                self.channel.took_long()
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
        """As `Late.due_ms`."""
        return self.seen_ms + most_ms(self.wait_ms)

    def give_up(self) -> None:
        """As `Exchange.give_up`."""
        answer = unsettled(self.index)
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))

    def _settle(self, result: Appended | Exception) -> None:
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
        answer = Answer(index=self.index)
        if type(result) is Appended:
            answer.base_offset = result.base_offset
            answer.log_append_time_ms = self.log_append_ms
            answer.log_start_offset = self.log_start
        else:
            refuse(answer, result)  # type: ignore[arg-type]
            log_refused(self, self.topic, self.index, result)  # type: ignore[arg-type]
        topic = ProduceResponse.TopicProduceResponse(name=self.topic, partition_responses=[answer])
        self.answer(ProduceResponse(responses=[topic]))


def shortcut(channel: ResponseChannel, buffer: memoryview, start: int, stop: int, owned: bool) -> SingleBatch | None:
    """As `server.registry.Shortcut.begin`."""
    one = read(buffer, start, stop, owned)
    if one is None:
        return None
    version, correlation_id, topic, index, batch, header, wait_ms = one
    if header[_ATTRIBUTES] & _CODEC and channel.broker.lane.crowded and is_native(channel.broker, topic):
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
