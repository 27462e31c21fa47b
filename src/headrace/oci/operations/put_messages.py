"""PutMessages: publish messages, each to the partition that its key decides."""

import msgspec

from headrace.oci.call import Answer, Call
from headrace.oci.errors import REQUEST_TOO_LARGE, OciError, invalid
from headrace.oci.publishing import Publication
from headrace.oci.registry import operation

MOST_VALUE = 1 << 20
"""Bytes of a message's value, decoded."""
MOST_KEY = 256
"""Bytes of its key, decoded."""
MOST_REQUEST = 1 << 20
"""Bytes of all keys and values of a request together, decoded."""


class PutMessagesDetailsEntry(msgspec.Struct, rename="camel"):
    """One message."""

    value: bytes
    key: bytes | None = None


class PutMessagesDetails(msgspec.Struct, rename="camel"):
    """The messages, at least one."""

    messages: list[PutMessagesDetailsEntry]


class PutMessagesResultEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where a message went, or why it went nowhere."""

    partition: str | None = None
    offset: int | None = None
    timestamp: str | None = None
    error: str | None = None
    error_message: str | None = None


class PutMessagesResult(msgspec.Struct, rename="camel"):
    """An entry for each message, in the order of the request."""

    failures: int
    entries: list[PutMessagesResultEntry]


@operation(
    "PutMessages",
    "POST",
    "/streams/{streamId}/messages",
    client="StreamClient",
    body=PutMessagesDetails,
    answer=PutMessagesResult,
    signs_body=False,
)
async def put_messages(call: Call) -> Answer:
    """Publish messages. Each goes to the partition that a hash of its key tells, one without a key to any.

    Messages of one partition are stored together or not at all. When some partitions fail the answer is 200 all the
    same, with `error` and `errorMessage` in their entries; when all do it is 503, or 429 if they were throttled.
    """
    broker, topic = call.door.stream(call.path["streamId"])
    messages = call.body.messages
    _check(messages)
    door = call.door
    publication = Publication(broker, topic, messages, door.random, limits=door.limits, left_out=call.injected.entries)
    await publication.send()
    return Answer(publication.answer())


def _check(messages: list[PutMessagesDetailsEntry]) -> None:
    if not messages:
        raise invalid("Invalid field messages: at least one message is needed")
    total = 0
    for index, message in enumerate(messages):
        size = len(message.value)
        if not 0 < size <= MOST_VALUE:
            if size:
                raise OciError(400, REQUEST_TOO_LARGE)
            raise invalid(f"Invalid field messages[{index}].value: it is empty")
        key = message.key
        if key is not None:
            if len(key) > MOST_KEY:
                raise invalid(f"Invalid field messages[{index}].key: more than {MOST_KEY} bytes")
            size += len(key)
        total += size
    if total > MOST_REQUEST:
        raise OciError(400, REQUEST_TOO_LARGE)
