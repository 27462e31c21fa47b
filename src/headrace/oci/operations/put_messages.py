"""PutMessages."""

import asyncio
import contextlib
from functools import partial

import msgspec

from headrace.oci.api.publisher import Publication
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.request_parser import BodyReader
from headrace.oci.api.required_acls import live_stream
from headrace.oci.errors import REQUEST_TOO_LARGE, OciError, invalid
from headrace.records import accelerator
from headrace.records.fallback.messages import Shares
from headrace.records.partition_batches import share
from headrace.records.traceparents import NAME, with_header
from headrace.security.access.required_acls import Operation

MOST_VALUE = 1 << 20
"""Maximum bytes of a message's decoded value."""
MOST_KEY = 256
"""Maximum bytes of a message's decoded key."""
MOST_REQUEST = 1 << 20
"""Maximum bytes of all decoded keys and values of a request."""
LARGE_BODY = 256 << 10
"""Minimum bytes of a body that is parsed in a thread, to keep the event loop free."""
MOST_UNUSUAL = 8 << 20
"""Maximum bytes of a body that is not plain objects of `key` and `value` in base64, because parsing it is slower."""
_WAITS = 4 << 10
"""Minimum bytes of a body that waits for its turn under load."""
_AT_ONCE = 1000
"""Messages of such a body parsed without yielding."""


class PutMessagesDetailsEntry(msgspec.Struct, rename="camel", gc=False):
    """One message."""

    value: bytes
    key: bytes | None = None


class PutMessagesDetails(msgspec.Struct, rename="camel"):
    """At least one message."""

    messages: list[PutMessagesDetailsEntry]


class PutMessagesResultEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """The location of a message, or its error."""

    partition: str | None = None
    offset: int | None = None
    timestamp: str | None = None
    error: str | None = None
    error_message: str | None = None


class PutMessagesResult(msgspec.Struct, rename="camel"):
    """One entry per message, in the order of the request."""

    failures: int
    entries: list[PutMessagesResultEntry]


_BODY = BodyReader(PutMessagesDetails)


@operation(
    "PutMessages",
    "POST",
    "/streams/{streamId}/messages",
    client="StreamClient",
    needs=(live_stream(Operation.WRITE),),
    body=PutMessagesDetails,
    raw_body=True,
    answer=PutMessagesResult,
    signs_body=False,
    produces=True,
)
async def put_messages(call: Call) -> Answer:
    """Publish messages. A hash of its key determines the partition of a message; without a key it is random.

    The hash is the CRC-32 modulo the number of partitions, as in librdkafka. The service does not publish its own hash.
    The timestamp is the server's time.

    A value has 1 byte to 1 MiB, and a key at most 256 bytes. All keys and values of a request have at most 1 MiB.

    The messages of one partition are stored together or not at all. If some partitions fail, the response has status
    200, and the entries of their messages have `error` and `errorMessage`. If all partitions fail, the response is an
    error: 429 if all were throttled, otherwise that of a failed partition, usually 503.

    A compacted topic rejects messages without a key, and a topic can reject those without a registered schema. Their
    entries have the reason, and the status is 200. The other messages of the same partition are not stored either.
    """
    broker, topic = call.service.stream(call.path["streamId"])
    service = call.service
    left_out = call.injected.entries
    seed = service.random.getrandbits(64)
    count = len(topic.partitions)
    now_ms = broker.clock.now_ms()
    large = len(call.body) > LARGE_BODY
    # Hundreds of bodies may arrive in one turn of the event loop.
    pace = broker.lane.pace() if len(call.body) > _WAITS and not large else None
    if pace is not None and pace.over:
        await pace.rest()
    reading = partial(_shares, call.body, count, now_ms, seed, left_out)
    shares = await asyncio.to_thread(reading) if large else reading()
    parent = service.traceparent()
    if parent is not None:
        shares = shares[0], [(place, with_header(batch, NAME, parent), size) for place, batch, size in shares[1]]
    publication = Publication(broker, topic, shares, service.limits, service.puts)
    await publication.send()
    if pace is not None and pace.over:
        await pace.rest()
    return Answer(await asyncio.to_thread(publication.answer) if large else publication.answer())


def _shares(body: bytes, partitions: int, now_ms: int, seed: int, left_out: int) -> Shares:
    """Return a body's messages by partition. Raises OciError 400."""
    shares = accelerator.publish(body, partitions, now_ms, seed, left_out, MOST_VALUE, MOST_REQUEST)
    if shares is None:
        # Unusual form, or above a limit. After the checks, build the batches from the usual form, because building them
        # in Python would block the event loop.
        details = _read_unusual(body)
        usual = msgspec.json.encode(details)
        shares = accelerator.publish(usual, partitions, now_ms, seed, left_out, MOST_VALUE, MOST_REQUEST)
        if shares is None:
            messages = [(message.key, message.value) for message in details.messages]
            shares = share(messages, partitions, now_ms, seed, left_out)
    return shares


class _Unread(msgspec.Struct, gc=False):
    messages: list[msgspec.Raw]


_unread = msgspec.json.Decoder(_Unread).decode


def _read_unusual(body: bytes) -> PutMessagesDetails:
    if len(body) > MOST_UNUSUAL:
        raise OciError(400, REQUEST_TOO_LARGE)
    if len(body) > LARGE_BODY:
        # In pieces. The second pass, for errors, has the true index.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, OciError):
            found = _unread(body).messages
            entries: list[PutMessagesDetailsEntry] = []
            for start in range(0, len(found), _AT_ONCE):
                piece = b",".join(found[start : start + _AT_ONCE])
                entries += _BODY.read(b'{"messages":[%b]}' % piece).messages
            details = PutMessagesDetails(entries)
            _check(entries)
            return details
    read: PutMessagesDetails = _BODY.read(body)
    _check(read.messages)
    return read


def _check(messages: list[PutMessagesDetailsEntry]) -> None:
    if not messages:
        raise invalid("Invalid field messages: at least one message is needed")
    total = 0
    for index, message in enumerate(messages):
        size = len(message.value)
        if size > MOST_VALUE:
            raise OciError(400, REQUEST_TOO_LARGE)
        if not size:
            raise invalid(f"Invalid field messages[{index}].value: it is empty")
        key = message.key
        if key is not None:
            if len(key) > MOST_KEY:
                raise invalid(f"Invalid field messages[{index}].key: more than {MOST_KEY} bytes")
            size += len(key)
        total += size
    if total > MOST_REQUEST:
        raise OciError(400, REQUEST_TOO_LARGE)
