"""Fetch (1), versions 4-12.

Behavior
- Whole batches, also for an offset in the middle of one: the client drops what it has. The first batch found is
  returned even when it is larger than the limits (KIP-74).
- Waits for `min_bytes` up to `max_wait_ms`, woken by appends. No polling.
- No fetch sessions: the session id in the answer is always 0, so every fetch names all its partitions (KIP-227).
- No transactions: the last stable offset is the high watermark, and no transaction was ever aborted.

Version notes
- 5: log start. 7: sessions. 9: the client's leader epoch is checked. 10: zstd. 11: rack. 12: flexible.
"""

from struct import Struct

from headrace.access.needs import Operation
from headrace.broker.broker import Broker
from headrace.broker.fetch import Ask, Found
from headrace.broker.reading import count_records
from headrace.kafka.codec.messages import FetchRequest, FetchResponse
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import topics
from headrace.kafka.registry import register
from headrace.records.batch import peek
from headrace.records.compression import ZSTD
from headrace.topics.errors import TopicError

READ_COMMITTED = 1
_ZSTD_FROM = 10
_LENGTH = Struct(">i")

PartitionData = FetchResponse.PartitionData


@register(
    FetchRequest, 4, 12, needs=(topics(Operation.READ, lambda request, _: (topic.topic for topic in request.topics)),)
)
def handle(request: FetchRequest, exchange: Exchange) -> None:
    """Read records from the partitions named, waiting if there are too few."""
    broker = exchange.broker
    if request.session_epoch > 0 and request.session_id:
        # We never gave out a session: the client has to name everything again.
        exchange.answer(FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[]))
        return
    asks = [_ask(exchange, topic.topic, wanted) for topic in request.topics for wanted in topic.partitions]

    def done(found: list[Found]) -> None:
        exchange.held = sum(answer.size for answer in found)
        if exchange.version < _ZSTD_FROM:
            for answer in found:
                _refuse_zstd(answer)
        exchange.answer(_response(broker, request, found))

    fetch = broker.fetch(
        asks,
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, broker.settings.fetch_max_bytes),
        max_wait_ms=request.max_wait_ms,
        done=done,
    )
    if not exchange.done:
        exchange.cancel = fetch.cancel


def _ask(exchange: Exchange, name: str, wanted: FetchRequest.FetchPartition) -> Ask:
    broker = exchange.broker
    try:
        partition = broker.topics.partition(name, wanted.partition)
    except TopicError as error:
        return Ask(error, wanted.fetch_offset, wanted.partition_max_bytes)
    epoch = wanted.current_leader_epoch
    if epoch >= 0 and epoch != partition.leader_epoch:
        code = Code.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else Code.UNKNOWN_LEADER_EPOCH
        return Ask(
            RequestError(code, f"leader epoch {epoch}, now {partition.leader_epoch}"),
            wanted.fetch_offset,
            wanted.partition_max_bytes,
        )
    reader = broker.reader(partition, exchange.client_id or "", f"/{exchange.outlet.client_host}")
    return Ask(reader, wanted.fetch_offset, wanted.partition_max_bytes)


def _refuse_zstd(found: Found) -> None:
    """A client this old cannot open zstd: it is told so, instead of stumbling over the bytes (KIP-110)."""
    data = b"".join(found.chunks)
    position = 0
    while position < len(data):
        size = _LENGTH.unpack_from(data, position + 8)[0] + 12
        if peek(data[position : position + size]).codec == ZSTD:
            error = RequestError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Fetch version 10 or later")
            found.error, found.chunks = error, []
            return
        position += size


def _response(broker: Broker, request: FetchRequest, found: list[Found]) -> FetchResponse:
    committed = request.isolation_level == READ_COMMITTED
    answers = iter(found)
    responses = []
    for topic in request.topics:
        partitions = []
        counted = broker.topics.get(topic.topic).counted if broker.topics.has(topic.topic) else None
        for wanted in topic.partitions:
            answer = next(answers)
            if answer.size and counted is not None:
                counted.bytes_out += answer.size
                counted.records_out += count_records(answer.chunks)
            partitions.append(
                PartitionData(
                    partition_index=wanted.partition,
                    error_code=code_of(answer.error),
                    high_watermark=answer.log_end,
                    last_stable_offset=answer.log_end,
                    log_start_offset=answer.log_start,
                    aborted_transactions=[] if committed else None,
                    records=answer.chunks,
                )
            )
        responses.append(FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=partitions))
    return FetchResponse(session_id=0, responses=responses)
