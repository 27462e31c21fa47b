"""Append the messages of one request, as one record batch per partition."""

import asyncio
from collections.abc import Mapping
from functools import partial
from struct import Struct
from typing import Protocol

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.topics.live import LiveTopic
from headrace.oci.errors import OciError, of_topic_error
from headrace.oci.limits import BYTES_TEXT, Limits, throttled
from headrace.records import accelerator
from headrace.records.batch import MAX_TIMESTAMP_AT
from headrace.records.fallback.header import Buffer
from headrace.records.fallback.messages import Shares, Told, time_text
from headrace.topics.errors import InvalidRecords, StorageUnavailable, TopicError
from headrace.topics.model import Appended

MOST_BATCH = 64 << 20
"""Maximum bytes of a batch. It replaces max.message.bytes, because 1 MiB of one-byte messages is larger as records."""
LEFT_OUT_MS = 1000
"""Retry delay reported for messages that a fault throttles."""

_INT64 = Struct(">q")


class Placed(msgspec.Struct, frozen=True):
    """The location of an appended batch."""

    base_offset: int
    time_ms: int
    """Its messages' timestamp."""


class AppendRouter(Protocol):
    """Appends batches at partition leaders."""

    async def put(self, broker: Broker, topic: LiveTopic, index: int, batch: bytearray) -> Placed:
        """Append a batch. Raises TopicError."""


class _Share:
    __slots__ = ("base_offset", "error", "partition", "reasons", "time_ms")

    def __init__(self, index: int) -> None:
        self.partition = index
        self.base_offset = -1
        self.time_ms = 0
        self.error: OciError | None = None
        self.reasons: Mapping[int, str] = {}
        """Number of a message of this share -> why it is rejected itself."""

    def told(self) -> Told:
        if self.error is not None:
            return _failure(str(self.error.status), self.error.message), -1, b""
        after = f',"timestamp":"{time_text(self.time_ms)}"}}'
        return b'{"partition":"%d","offset":' % self.partition, self.base_offset, after.encode()


class Publication:
    """One request's messages."""

    def __init__(
        self,
        broker: Broker,
        topic: LiveTopic,
        shares: Shares,
        limits: Limits | None = None,
        puts: AppendRouter | None = None,
    ) -> None:
        """Take over the batches of `shares`."""
        self._broker = broker
        self._topic = topic
        self._places, self._batches = shares
        self._limits = limits
        # Any partition of a plain stream can be written.
        self._puts = None if topic.open_to_all else puts
        self._shares: list[_Share] = []
        self._waiting = len(self._batches)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(self) -> None:
        """Append each share atomically.

        Raises OciError if every share failed: 429 if all were throttled. Messages that are rejected one by one are
        reported in `answer` instead.
        """
        carried = []
        for index, batch, size in self._batches:
            share = _Share(index)
            self._shares.append(share)
            if self._throttled(share, size):
                continue
            if self._puts is None:
                self._append(share, batch)
            else:
                carried.append(self._put(self._puts, share, batch))
        await asyncio.gather(*carried)
        if self._waiting:
            await self._done
        errors = [share.error for share in self._shares if share.error is not None]
        if any(share.reasons for share in self._shares):
            return
        if errors and len(errors) == len(self._shares):
            raise min(errors, key=lambda error: error.status == 429)

    def _throttled(self, share: _Share, size: int) -> bool:
        if self._limits is None:
            return False
        stream = self._topic.topic.id.bytes
        wait_ms = self._limits.write(stream, share.partition, size, self._broker.clock.ticks_ms())
        if wait_ms:
            self._settled(share, throttled(BYTES_TEXT.format(ms=wait_ms), wait_ms))
        return bool(wait_ms)

    async def _put(self, puts: AppendRouter, share: _Share, batch: bytearray) -> None:
        try:
            placed = await puts.put(self._broker, self._topic, share.partition, batch)
        except TopicError as error:
            self._failed(share, error)
        else:
            share.base_offset, share.time_ms = placed.base_offset, placed.time_ms
            self._settled(share)

    def _append(self, share: _Share, batch: bytearray) -> None:
        try:
            self._broker.append(
                self._topic.topic.name, share.partition, batch, partial(self._appended, share), most_bytes=MOST_BATCH
            )
        except TopicError as error:
            self._failed(share, error)
        # With LogAppendTime the log has set the time.
        share.time_ms = _INT64.unpack_from(batch, MAX_TIMESTAMP_AT)[0]

    def _appended(self, share: _Share, result: Appended | Exception) -> None:
        if isinstance(result, Appended):
            share.base_offset = result.base_offset
            self._settled(share)
        else:
            self._failed(share, result if isinstance(result, TopicError) else StorageUnavailable(str(result)))

    def _failed(self, share: _Share, error: TopicError) -> None:
        if isinstance(error, InvalidRecords):
            share.reasons = error.reasons
        self._settled(share, of_topic_error(error))

    def _settled(self, share: _Share, error: OciError | None = None) -> None:
        share.error = error
        self._waiting -= 1
        if not self._waiting and not self._done.done():
            self._done.set_result(None)

    def answer(self) -> bytes:
        """Return the PutMessagesResult as JSON."""
        told: list[Told | None] = [None] * (len(self._topic.partitions) + 1)
        told[0] = _failure("429", BYTES_TEXT.format(ms=LEFT_OUT_MS)), -1, b""
        for share in self._shares:
            told[share.partition + 1] = share.told()
        failures = 0
        if any(share.error is not None for share in self._shares) or self._left_out():
            failed = {-1, *(share.partition for share in self._shares if share.error is not None)}
            failures = sum(place in failed for place in memoryview(self._places).cast("i"))
        places = self._places_of_errors(told)
        return accelerator.receipts(places, told, b'{"failures":%d,"entries":[' % failures, b"]}")

    def _places_of_errors(self, told: list[Told | None]) -> Buffer:
        """Add the reasons of single messages to `told`, and return the places with these messages at them."""
        reasons = {share.partition: share.reasons for share in self._shares if share.reasons}
        if not reasons:
            return self._places
        places = bytearray(self._places)
        counted = dict.fromkeys(reasons, 0)
        with memoryview(places).cast("i") as changed:
            for at, place in enumerate(changed):
                if place not in reasons:
                    continue
                reason = reasons[place].get(counted[place])
                counted[place] += 1
                if reason is not None:
                    told.append((_failure("400", reason), -1, b""))
                    changed[at] = len(told) - 2
        return places

    def _left_out(self) -> bool:
        return memoryview(self._places).cast("i")[0] < 0


def _failure(error: str, message: str) -> bytes:
    return msgspec.json.encode({"error": error, "errorMessage": message})
