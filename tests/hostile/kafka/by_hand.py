"""Attacks that message tables do not contain: found by experiment, or by client behavior other than requests."""

from contextlib import closing
from struct import Struct
from uuid import UUID

import cramjam
from redis import Redis

from headrace.kafka.server.in_flight_requests import LARGE
from headrace.protocol import messages as m
from headrace.records.accelerator import crc32c
from headrace.records.build import build
from headrace.records.compression import SNAPPY, ZSTD
from headrace.records.streams import MOST_DECOMPRESSED
from headrace.testing.process import Server
from tests.harness.wire import Wire, fetch_request, produce_request
from tests.hostile.kafka.corpus import GROUP, IDS, MIB, TOPIC, WIDE, WIDE_PARTITIONS, Attack, encoded

TINY, BOMBS, NATIVE, HUGE, HEADERS, OTHERS = (
    "hostile-tiny", "hostile-bombs", "hostile-native", "hostile-huge", "hostile-headers", "hostile-others",
)  # fmt: skip
_MOST_HEADERS = 99_000
"""About as many as one batch for a native topic may have."""
_PRODUCER = 7
"""Of whom the native topic has one batch, so that all but the next one are out of order: Redis takes none of them."""
_SIZE = Struct(">i")
_COUNT_AT, _CRC_AT, _COVERED_FROM = 57, 17, 21


def prepare(server: Server) -> None:
    """Topics that hurt: of 100 MB, which memory does not hold; of tiny batches; of batches that grow when opened."""
    with Wire(server.kafka, timeout_s=60) as wire:
        wire.create(TOPIC)
        wire.create(WIDE, WIDE_PARTITIONS)
        IDS.update({name: wire.topic_id(name) for name in (TOPIC, WIDE)})
        wire.create(TINY)
        wire.create(BOMBS, 4)
        wire.create(NATIVE, headrace_storage="native")
        first = build([(None, b"", 1_000, ())], producer_id=_PRODUCER, producer_epoch=0, base_sequence=0)
        assert wire.produce(NATIVE, first).error_code == 0
        wire.create(HEADERS, headrace_storage="native")
        for _ in range(40):
            assert wire.produce(HEADERS, headers_bomb(_MOST_HEADERS)).error_code == 0
        wire.create(OTHERS, 3, headrace_storage="native")
        add_by_others(server)
        wire.create(HUGE, headrace_storage="native", max_message_bytes=16 * MIB)
        for _ in range(20):
            assert wire.produce(HUGE, build([(None, bytes(15 * MIB), 1_000, ())])).error_code == 0
        large = bytes(1_000_000)
        for _ in range(100):
            assert wire.produce(TOPIC, build([(None, large, 1_000, ())])).error_code == 0
        tiny = bytes(build([(None, b"", 1_000, ())]))
        for _ in range(100):
            for _ in range(200):
                wire.send(produce_request(TINY, bytearray(tiny)), 9)
            for _ in range(200):
                wire.receive()
        for partition, bomb in enumerate((headers_bomb(MIB * 30), records_bomb(MIB), records_bomb(MIB, late=True))):
            assert wire.produce(BOMBS, bomb, partition=partition).error_code == 0
        commit = m.OffsetCommitRequest.OffsetCommitRequestPartition
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=WIDE,
            partitions=[
                commit(partition_index=each, committed_offset=0, committed_metadata="x" * 4000)
                for each in range(WIDE_PARTITIONS)
            ],
        )
        wire.ask(m.OffsetCommitRequest(group_id=GROUP, topics=[topic]), 8)


def add_by_others(server: Server) -> None:
    """Entries that no producer of ours makes: 5 MB of headers, of headers in another form, and of many fields."""
    pairs, fields = b'["",""],' * 650_000, {b"f%d" % number: b"" for number in range(300_000)}
    as_object = b",".join(b'"%d":""' % number for number in range(400_000))
    with closing(Redis.from_url(server.storage)) as redis:
        for partition, entry in enumerate(
            ({"headers": b'[%b["",""]]' % pairs, "value": b""}, {"headers": b"{%b}" % as_object, "value": b""}, fields)
        ):
            redis.xadd(f"headrace:{OTHERS}:{partition}", entry)  # type: ignore[arg-type]


def _compressed(count: int, section: bytes) -> bytearray:
    """A batch of `count` records whose section is given opened."""
    return _coded(ZSTD, count, bytes(cramjam.zstd.compress(section)))


def _coded(codec: int, count: int, compressed: bytes) -> bytearray:
    """A batch of `count` records with this section, whatever it opens to."""
    batch = bytearray(build([(None, b"", 1_000, ())]))[:61] + compressed
    Struct(">i").pack_into(batch, 8, len(batch) - 12)
    Struct(">h").pack_into(batch, 21, codec)
    Struct(">i").pack_into(batch, 23, count - 1)
    Struct(">i").pack_into(batch, _COUNT_AT, count)
    Struct(">I").pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_COVERED_FROM:]))
    return batch


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def blocks_bomb() -> bytearray:
    """A batch of a mebibyte of snappy blocks with nothing in them."""
    return _coded(SNAPPY, 1, b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + b"\0\0\0\1\0" * 200_000)


def headers_bomb(count: int, value: bytes = b"") -> bytearray:
    """A batch of a few kilobytes with one record of so many headers without a name."""
    body = b"\0\0\0\1\1" + _varint(count) + (b"\0" + _varint(len(value)) + value) * count
    return _compressed(1, _varint(len(body)) + body)


def records_bomb(count: int, *, late: bool = False) -> bytearray:
    """A batch of so many empty records; `late`: only the last of them has a later time."""
    out = bytearray()
    for number in range(count):
        body = b"\0" + _varint(2 if late and number == count - 1 else 0) + _varint(number) + b"\1\1\0"
        out += _varint(len(body)) + body
    return _compressed(count, bytes(out))


def _by_time(*places: tuple[str, int, int]) -> bytes:
    partition = m.ListOffsetsRequest.ListOffsetsPartition
    return encoded(
        m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name=topic, partitions=[partition(partition_index=index, timestamp=at)]
                )
                for topic, index, at in places
            ],
        ),
        7,
    )


def _creation(*topics: tuple[str, int], validate_only: bool = False) -> bytes:
    made = [
        m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=-1)
        for name, count in topics
    ]
    return encoded(m.CreateTopicsRequest(topics=made, timeout_ms=1, validate_only=validate_only), 7)


def _fetch(topic: str | UUID, times: int = 1, partition: int = 0) -> bytes:
    limit = 64 << 20
    request = fetch_request([(topic, partition, 0)] * times, max_bytes=limit, partition_max_bytes=limit)
    return encoded(request, 12 if isinstance(topic, str) else 18)


def _fetch_of_many(max_wait_ms: int) -> bytes:
    """As many partitions as there are, in fewer bytes than what has a turn of its own."""
    made = encoded(fetch_request([(WIDE, each, 0) for each in range(WIDE_PARTITIONS)], max_wait_ms=max_wait_ms), 12)
    assert len(made) < LARGE
    return made


def _metadata_of_many() -> bytes:
    """As many names as go into fewer bytes than what has a turn of its own."""
    names = [m.MetadataRequest.MetadataRequestTopic(name=f"n{number}") for number in range(700)]
    made = encoded(m.MetadataRequest(topics=names, allow_auto_topic_creation=False), 12)
    assert len(made) < LARGE
    return made


def _produce_to_many() -> bytes:
    """As many batches as there are partitions, each as short as may be."""
    tiny = bytes(build([(None, b"", 1_000, ())]))
    data = [m.ProduceRequest.PartitionProduceData(index=each, records=tiny) for each in range(WIDE_PARTITIONS)]
    topic = m.ProduceRequest.TopicProduceData(name=WIDE, partition_data=data)
    return encoded(m.ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[topic]), 9)


def _headers(count: int) -> bytes:
    return encoded(produce_request(NATIVE, headers_bomb(_MOST_HEADERS)), 9) * count


def _long_headers() -> bytes:
    """As many as there may be, which are 16 MiB."""
    return encoded(produce_request(NATIVE, headers_bomb(_MOST_HEADERS, b"\xff" * 160)), 9)


def _large_record() -> bytes:
    """Many records, which keep Redis busy, and one of 16 MiB, of a producer whose turn it is not: it does not stay."""
    record = (None, bytes(MOST_DECOMPRESSED - 100), 1_000, ())
    large = build([record], codec=ZSTD, producer_id=_PRODUCER, producer_epoch=0, base_sequence=1_000)
    return b"".join(encoded(produce_request(NATIVE, each), 9) for each in (records_bomb(20_000), large))


def _batches_together() -> bytes:
    """One request of them, each for the same partition."""
    batch = headers_bomb(_MOST_HEADERS, b"\xff" * 160)
    data = [m.ProduceRequest.PartitionProduceData(index=0, records=batch)] * 8
    topic = m.ProduceRequest.TopicProduceData(name=NATIVE, partition_data=data)
    return encoded(m.ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic]), 9)


def _subscription() -> bytes:
    """A mebibyte of names of one letter."""
    count = MIB // 3
    return Struct(">hi").pack(0, count) + b"\0\1t" * count


def _joins_of_groups() -> bytes:
    """As many new groups as there may be, but a few."""
    return b"".join(encoded(_join(20, group=f"hostile-group-{number}"), 3) for number in range(12_000))


def _join(metadata_bytes: int, metadata: bytes = b"", group: str = "hostile-large") -> m.JoinGroupRequest:
    metadata = metadata or bytes(metadata_bytes)
    return m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def attacks() -> list[Attack]:
    """All of them."""
    names = [m.MetadataRequest.MetadataRequestTopic(name=f"hostile-made-{number}") for number in range(300)]
    configs = [
        m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
        for name in (TOPIC, WIDE, TINY, BOMBS)
    ]
    asked = encoded(m.MetadataRequest(topics=names, allow_auto_topic_creation=True), 12)
    told = encoded(m.DescribeConfigsRequest(resources=configs), 4)
    begun = _SIZE.pack(100 << 20) + encoded(produce_request(TOPIC, bytes(MIB)), 9)[_SIZE.size :]
    return [
        Attack("one partition thirty times", 1, _fetch(TOPIC, 30)),
        Attack("one partition thirty times, by its id", 1, lambda: _fetch(IDS[TOPIC], 30)),
        Attack("25 answers sent ahead, unread", 1, _fetch(TOPIC) * 25, reads=False),
        Attack("25 clients that do not read", 1, _fetch(TOPIC), connections=25, reads=False),
        Attack("tiny batches", 1, _fetch(TINY)),
        Attack("tiny batches, unread", 1, _fetch(TINY) * 100, connections=4, reads=False),
        Attack("one record of many headers", 2, _by_time((BOMBS, 0, 1))),
        Attack("many records", 2, _by_time((BOMBS, 1, 1), (BOMBS, 2, 1_001))),
        Attack("the latest of many records", 2, _by_time((BOMBS, 1, -3), (BOMBS, 2, -3))),
        Attack("ten clients look by time", 2, _by_time((BOMBS, 2, 1_001)), connections=10),
        Attack("headers in a native topic", 0, lambda: encoded(produce_request(NATIVE, headers_bomb(MIB)), 9)),
        Attack("records in a native topic", 0, lambda: encoded(produce_request(NATIVE, records_bomb(MIB)), 9)),
        Attack("batches full of headers in a row", 0, lambda: _headers(20), answers=20),
        Attack("eight clients with long headers", 0, _long_headers, connections=8),
        Attack("forty clients with a large record in a few bytes", 0, _large_record, connections=40, answers=2),
        Attack("batches full of long headers in one", 0, _batches_together),
        Attack("entries full of headers", 1, _fetch(HEADERS)),
        *(
            Attack(f"{connections} fetch {what} of others", 1, _fetch(OTHERS, partition=partition), connections)
            for connections in (1, 10)
            for partition, what in enumerate(("headers", "an object of headers", "many fields"))
        ),
        Attack("ten clients fetch entries full of headers", 1, _fetch(HEADERS), connections=10),
        Attack("blocks in a native topic", 0, lambda: encoded(produce_request(NATIVE, blocks_bomb()), 9)),
        Attack("huge native entries", 1, _fetch(HUGE)),
        Attack("huge native entries, unread", 1, _fetch(HUGE) * 4, connections=4, reads=False),
        Attack("a million partitions", 19, _creation(("hostile-million", 1_000_000))),
        Attack("a million partitions, tried", 19, _creation(("hostile-million", 1_000_000), validate_only=True)),
        Attack("one name very often", 19, _creation(*[("hostile-same", 1)] * 15_000)),
        Attack("many names", 19, _creation(*[(f"hostile-{number:05}", 1) for number in range(500)])),
        Attack("topics made by asking", 3, asked),
        Attack("all topics", 3, encoded(m.MetadataRequest(topics=None), 12), connections=20),
        Attack("60 MiB of metadata", 11, lambda: encoded(_join(60 * MIB), 9)),
        Attack("10 000 members at once", 11, lambda: encoded(_join(20), 3) * 20, connections=500, reads=False),
        Attack("as many groups", 11, _joins_of_groups, connections=1, reads=False),
        Attack("a subscription to very much", 11, lambda: encoded(_join(MIB, _subscription()), 3)),
        Attack("300 fetch from many partitions", 1, _fetch_of_many(0), connections=300),
        Attack("300 wait for many partitions", 1, _fetch_of_many(500), connections=300),
        Attack("300 produce to many partitions", 0, _produce_to_many(), connections=300),
        Attack("300 ask for many topics", 3, _metadata_of_many(), connections=300),
        Attack("begun and not ended", 0, begun, connections=12, reads=False),
        Attack("all that is told of topics", 32, told * 20, answers=20),
    ]
