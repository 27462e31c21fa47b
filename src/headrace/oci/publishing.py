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
from headrace.oci.errors import of_topic_error
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
    result: Appended | Exception | None = None


class Publication:
    """One request's messages."""

    def __init__(self, broker: Broker, topic: LiveTopic, messages: Sequence[Message], random: Random) -> None:
        """Share them out among the partitions."""
        self._broker = broker
        self._topic = topic
        self._messages = messages
        self._shares = self._share(random)
        self._waiting = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _share(self, random: Random) -> list[_Share]:
        count = len(self._topic.partitions)
        if count == 1:
            return [_Share(0, list(range(len(self._messages))))]
        shares: dict[int, _Share] = {}
        for place, message in enumerate(self._messages):
            key = message.key
            index = int(random.random() * count) if key is None else partition_of(key, count)
            share = shares.get(index)
            if share is None:
                share = shares[index] = _Share(index, [])
            share.places.append(place)
        return list(shares.values())

    @property
    def touched(self) -> int:
        """How many partitions have a share."""
        return len(self._shares)

    async def send(self) -> dict[int, TopicError]:
        """Append every share; the partitions that failed, and why."""
        now_ms = self._broker.clock.now_ms()
        self._waiting = len(self._shares)
        for share in self._shares:
            self._append(share, now_ms)
        await self._done
        return {share.partition: _error(share.result) for share in self._shares if isinstance(share.result, Exception)}

    def _append(self, share: _Share, now_ms: int) -> None:
        messages = self._messages
        batch = build([(messages[place].key, messages[place].value, now_ms, ()) for place in share.places])
        try:
            self._broker.append(
                self._topic.topic.name, share.partition, batch, partial(self._appended, share), most_bytes=MOST_BATCH
            )
        except TopicError as error:
            self._appended(share, error)
        # With LogAppendTime the log has put its own time there.
        share.timestamp = text_of(_INT64.unpack_from(batch, MAX_TIMESTAMP_AT)[0])

    def _appended(self, share: _Share, result: Appended | Exception) -> None:
        share.result = result
        self._waiting -= 1
        if not self._waiting and not self._done.done():
            self._done.set_result(None)

    def answer(self) -> bytes:
        """PutMessagesResult as JSON."""
        entries = [""] * len(self._messages)
        failures = 0
        for share in self._shares:
            result = share.result
            if isinstance(result, Appended):
                for offset, place in enumerate(share.places, result.base_offset):
                    entries[place] = (
                        f'{{"partition":"{share.partition}","offset":{offset},"timestamp":"{share.timestamp}"}}'
                    )
            else:
                failures += len(share.places)
                text = _failure(result)
                for place in share.places:
                    entries[place] = text
        return f'{{"failures":{failures},"entries":[{",".join(entries)}]}}'.encode()


def _error(result: Exception) -> TopicError:
    return result if isinstance(result, TopicError) else StorageUnavailable(str(result))


def _failure(result: Exception | None) -> str:
    error = of_topic_error(_error(result or StorageUnavailable("no answer")))
    return msgspec.json.encode({"error": str(error.status), "errorMessage": error.message}).decode()
