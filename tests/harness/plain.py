"""Appends to a native partition without a broker, straight to the storage, and what a Redis program sees of it."""

from typing import Any

from headrace.records.build import build
from headrace.storage.storage import RedisStorage
from headrace.topics.model import Append, Appended
from headrace.topics.native import NativeStream

KEY = "plain"
STREAM = NativeStream(KEY, 10)


def batch(count: int, *, codec: int = 0, producer: int = -1, epoch: int = -1, sequence: int = -1) -> Append:
    made = build(
        [(b"k", b"v%d" % number, 1_000 + number, ()) for number in range(count)],
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return Append(made, count, 999 + count, producer, epoch, sequence)


async def append(storage: RedisStorage, *appends: Append, stream: NativeStream = STREAM) -> list[Appended | Exception]:
    """Send them all at once; what each was answered."""
    answers: list[Appended | Exception] = []
    for each in appends:
        storage.native.append(stream, each, answers.append)
    await storage.ping()
    return answers


async def base(storage: RedisStorage, made: Append, stream: NativeStream = STREAM) -> int:
    [answer] = await append(storage, made, stream=stream)
    assert isinstance(answer, Appended), answer
    return answer.base_offset


def ids(raw: Any) -> list[str]:
    """The ids of its entries, asked by a Redis program."""
    return [entry for entry, _ in raw.xrange(KEY)]
