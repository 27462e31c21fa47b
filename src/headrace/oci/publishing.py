"""Messages of one request on their way into the log: a record batch for each partition that they touch."""

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from struct import Struct
from typing import Protocol
from zlib import crc32

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.topics import LiveTopic
from headrace.oci.errors import OciError, of_topic_error
from headrace.oci.limits import BYTES_TEXT, Limits, throttled
from headrace.oci.times import text_of
from headrace.records.batch import MAX_TIMESTAMP_AT
from headrace.records.build import build
from headrace.topics.errors import StorageUnavailable, TopicError
from headrace.topics.model import Appended

MOST_BATCH = 64 << 20
"""Bytes of a batch, in place of the topic's max.message.bytes, which bounds Kafka's clients: this door has limits of
its own, and a mebibyte of messages of one byte takes more as records than as messages."""

_INT64 = Struct(">q")


class Message(Protocol):
    """A message as it was sent."""

    @property
    def key(self) -> bytes | None:
        """What decides its partition; None: chance does."""

    @property
    def value(self) -> bytes:
        """Its content."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 modulo partitions, as librdkafka's default partitioner has it."""
    return crc32(key) % partitions


class _Share(msgspec.Struct):
    """What goes to one partition."""

    partition: int
    places: list[int]
    """Indexes in the request."""
    timestamp: str = ""
    base_offset: int = -1
    error: OciError | None = None


class Publication:
    """One request's messages."""

    def __init__(
        self,
        broker: Broker,
        topic: LiveTopic,
        messages: Sequence[Message],
        random: Random,
        *,
        limits: Limits | None = None,
        left_out: int = 0,
    ) -> None:
        """Share them out among the partitions.

        Args:
            broker: where the topic is.
            topic: the stream's.
            messages: in the order of the request.
            random: decides about messages without key.
            limits: what may be written; None: everything.
            left_out: so many of the first messages are told to be throttled, a fault that was asked for.
        """
        self._broker = broker
        self._topic = topic
        self._messages = messages
        self._limits = limits
        self._left_out = min(left_out, len(messages))
        self._shares = self._share(random)
        self._waiting = len(self._shares)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _share(self, random: Random) -> list[_Share]:
        count = len(self._topic.partitions)
        if count == 1:
            places = list(range(self._left_out, len(self._messages)))
            return [_Share(0, places)] if places else []
        shares: dict[int, _Share] = {}
        for place in range(self._left_out, len(self._messages)):
            key = self._messages[place].key
            index = int(random.random() * count) if key is None else partition_of(key, count)
            share = shares.get(index)
            if share is None:
                share = shares[index] = _Share(index, [])
            share.places.append(place)
        return list(shares.values())

    async def send(self) -> None:
        """Append every share, each as a whole.

        Raises:
            OciError: no partition took its share: 503, or 429 when all of them were throttled.
        """
        now_ms = self._broker.clock.now_ms()
        for share in self._shares:
            self._append(share, now_ms)
        if self._waiting:
            await self._done
        errors = [share.error for share in self._shares if share.error is not None]
        if errors and len(errors) == len(self._shares):
            raise min(errors, key=lambda error: error.status == 429)

    def _append(self, share: _Share, now_ms: int) -> None:
        messages = self._messages
        if self._limits is not None:
            size = sum(len(messages[place].value) + len(messages[place].key or b"") for place in share.places)
            wait_ms = self._limits.write(self._topic.topic.id.bytes, share.partition, size, now_ms)
            if wait_ms:
                self._settled(share, throttled(BYTES_TEXT.format(ms=wait_ms), wait_ms))
                return
        batch = build([(messages[place].key, messages[place].value, now_ms, ()) for place in share.places])
        try:
            self._broker.append(
                self._topic.topic.name, share.partition, batch, partial(self._appended, share), most_bytes=MOST_BATCH
            )
        except TopicError as error:
            self._settled(share, of_topic_error(error))
        # With LogAppendTime the log has put its own time there.
        share.timestamp = text_of(_INT64.unpack_from(batch, MAX_TIMESTAMP_AT)[0])

    def _appended(self, share: _Share, result: Appended | Exception) -> None:
        if isinstance(result, Appended):
            share.base_offset = result.base_offset
            self._settled(share)
        else:
            known = result if isinstance(result, TopicError) else StorageUnavailable(str(result))
            self._settled(share, of_topic_error(known))

    def _settled(self, share: _Share, error: OciError | None = None) -> None:
        share.error = error
        self._waiting -= 1
        if not self._waiting and not self._done.done():
            self._done.set_result(None)

    def answer(self) -> bytes:
        """PutMessagesResult as JSON."""
        entries = [""] * len(self._messages)
        failures = self._left_out
        if failures:
            entries[:failures] = [_failure("429", BYTES_TEXT.format(ms=1000))] * failures
        for share in self._shares:
            if share.error is None:
                head = f'{{"partition":"{share.partition}","offset":'
                tail = f',"timestamp":"{share.timestamp}"}}'
                for offset, place in enumerate(share.places, share.base_offset):
                    entries[place] = f"{head}{offset}{tail}"
            else:
                failures += len(share.places)
                text = _failure(str(share.error.status), share.error.message)
                for place in share.places:
                    entries[place] = text
        return f'{{"failures":{failures},"entries":[{",".join(entries)}]}}'.encode()


def _failure(error: str, message: str) -> str:
    return msgspec.json.encode({"error": error, "errorMessage": message}).decode()
