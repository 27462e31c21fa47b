"""What one client writes, it and every other reads back byte for byte."""

import time

import pytest
from tests.harness.clients import CODECS, Client, ClientFailed, Codec, Headers, Received, Record
from tests.harness.wire import Wire, batches

from headrace.records.batch import peek

NOW = time.time_ns() // 1_000_000
HEADERS: Headers = (("plain", b"text"), ("empty", b""), ("twice", b"1"), ("twice", b"2"), ("null", None))
Contents = tuple[bytes | None, bytes | None, Headers]

CONTENTS: list[Contents] = [
    (b"key", b"value", ()),
    (None, b"without a key", ()),
    (b"", b"an empty key", ()),
    (b"tombstone", None, ()),
    (b"empty", b"", ()),
    (None, None, ()),
    (None, b"", ()),
    (bytes(range(32, 256)), bytes(range(256)) * 40, ()),
    (b"with headers", b"value", HEADERS),
    ("schlüssel".encode(), "wert € 𝄞".encode(), (("größe", "ß".encode()),)),
    *((b"%d" % (number % 7), b"x" * (number * 3), ()) for number in range(1, 60)),
]


def records(client: Client) -> list[Record]:
    """All that the client can send, each at its own time where the client lets us choose."""
    return [
        Record(
            key=key,
            value=value,
            headers=writable(client, headers),
            timestamp=NOW - place if client.sets_timestamps else None,
        )
        for place, (key, value, headers) in enumerate(CONTENTS)
        if (key, value) not in client.cannot_send
    ]


def writable(client: Client, headers: Headers) -> Headers:
    return tuple(one for one in headers if client.null_headers or one[1] is not None)


def check(found: list[Received], sent: list[Record], writer: Client) -> None:
    """The same bytes at dense offsets, and the times they were given."""
    assert [one.offset for one in found] == list(range(len(sent)))
    assert [(one.key, one.value, one.headers) for one in found] == [(one.key, one.value, one.headers) for one in sent]
    if writer.sets_timestamps:
        assert [one.timestamp for one in found] == [one.timestamp for one in sent]
    else:
        assert all(abs(one.timestamp - NOW) < 600_000 for one in found)


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_records_come_back(client: Client, wire: Wire, topic: str, codec: Codec) -> None:
    wire.create(topic)
    sent = records(client)
    if codec not in client.codecs:
        # kafka-python compresses with lz4, python-snappy and zstandard; where they are missing it cannot even begin.
        with pytest.raises(ClientFailed, match=codec):
            client.send(topic, sent, codec=codec)
        return
    client.send(topic, sent, codec=codec)
    check(client.read(topic, len(sent)), sent, client)
    stored = {CODECS[peek(one).codec] for one in batches(wire.fetch(topic, 0).records)}
    assert codec in stored, "its batches lie there compressed as it was told"


def test_every_client_reads_what_another_wrote(client: Client, reader: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    sent: list[Record] = []
    for codec in sorted(client.codecs & reader.codecs):
        client.send(topic, records(client), codec=codec)
        sent += records(client)
    check(reader.read(topic, len(sent)), sent, client)
