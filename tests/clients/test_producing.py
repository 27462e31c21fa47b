"""Producers beyond the round trip: idempotence, acks, sizes, topics that are not there yet."""

from typing import Literal

import pytest
from tests.harness.clients import CODECS, Client, ClientFailed, Codec, Record
from tests.harness.wire import Wire, batches

from headrace.kafka.errors import Code
from headrace.records.batch import peek

DEFAULT_MAX = 1_048_588
Acks = Literal["0", "1", "all"]


def numbered(count: int) -> list[Record]:
    return [Record(key=b"%d" % (number % 3), value=b"%d" % number) for number in range(count)]


def values(client: Client, topic: str, count: int) -> list[bytes | None]:
    return [one.value for one in client.read(topic, count)]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_idempotent_producers(client: Client, wire: Wire, topic: str, codec: Codec) -> None:
    wire.create(topic)
    sent = numbered(500)
    client.send(topic, sent, idempotent=True, codec=codec)
    client.send(topic, sent, idempotent=True, codec=codec)
    assert values(client, topic, 1_000) == [one.value for one in sent] * 2
    headers = [peek(one) for one in batches(wire.fetch(topic, 0).records)]
    assert min(header.producer_id for header in headers) >= 0, "the batches carry their producer"


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(client: Client, wire: Wire, topic: str, acks: Acks) -> None:
    wire.create(topic)
    sent = numbered(200)
    client.send(topic, sent, acks=acks)
    assert values(client, topic, 200) == [one.value for one in sent]


def test_a_record_of_the_largest_size(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    large = Record(value=b"\xa5" * (DEFAULT_MAX - 200))
    client.send(topic, [large], largest=2_000_000)
    assert values(client, topic, 1) == [large.value]


def test_a_record_that_is_too_large(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    with pytest.raises(ClientFailed) as caught:
        client.send(topic, [Record(value=b"\xa5" * (DEFAULT_MAX + 1))], largest=2_000_000)
    assert caught.value.code in {Code.MESSAGE_TOO_LARGE, None}
    assert "arge" in str(caught.value)
    assert wire.offset(topic, -1).offset == 0
    client.send(topic, numbered(1))
    assert wire.offset(topic, -1).offset == 1


def test_size_counts_after_compression(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    large = Record(value=bytes(3_000_000))
    client.send(topic, [large], codec="gzip", largest=4_000_000)
    assert values(client, topic, 1) == [large.value]


def test_a_topic_with_larger_records(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic, max_message_bytes=8_000_000)
    large = [Record(value=bytes([number]) * 5_000_000) for number in range(3)]
    client.send(topic, large, largest=8_000_000)
    assert values(client, topic, 3) == [one.value for one in large], "larger than a fetch's limits, read one by one"


def test_many_batches_of_every_codec_in_one_log(client: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    expected: list[bytes | None] = []
    for codec in CODECS:
        if codec in client.codecs:
            sent = [Record(value=b"%s %d " % (codec.encode(), number) * 50) for number in range(300)]
            client.send(topic, sent, codec=codec)
            expected += [one.value for one in sent]
    assert values(client, topic, len(expected)) == expected


def test_a_missing_topic_is_created(client: Client, wire: Wire, topic: str) -> None:
    client.send(topic, numbered(3))
    assert values(client, topic, 3) == [b"0", b"1", b"2"]
    assert wire.metadata(topic).topics[0].error_code == 0
