"""The embedded Valkey alone, by the server's own scripts over one connection: no server is faster than its storage."""

import asyncio
from uuid import uuid4

import msgspec
import redis.asyncio
import uvloop

from bench.processes import cpu_s
from headrace.records.batch import peek
from headrace.store.storage import RedisStorage
from headrace.testing.valkey import running_valkey
from headrace.topics.model import Append, Appended, Topic

_PARTITIONS = 4
_IN_FLIGHT_BYTES = 16 << 20
_READ_BYTES = 4 << 20


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What the storage alone does with batches of a size, per second and per GB of their bytes."""

    append_mb_s: float
    append_cpu_s_gb: float
    read_mb_s: float
    read_cpu_s_gb: float


def measure(batch: bytes, total_bytes: int) -> Ceiling:
    """Append copies of a batch, `total_bytes` in all, and read them back; on a Valkey of its own, gone afterwards."""
    return uvloop.run(_measure(batch, max(_PARTITIONS, total_bytes // len(batch))))


async def _measure(batch: bytes, count: int) -> Ceiling:
    gigabytes = count * len(batch) / 1e9
    async with running_valkey() as valkey:
        storage = await RedisStorage.open(valkey.url, redis.asyncio.from_url(valkey.url), epoch=1)
        try:
            streams = tuple(f"headrace:bench:{number}" for number in range(_PARTITIONS))
            await storage.create_topic(Topic(name="bench", id=uuid4(), streams=streams, config={}, created_ms=0))
            spent = []
            for work in (_append(storage, streams, batch, count), _read(storage, streams, len(batch))):
                cpu, clock = cpu_s(valkey.pid), asyncio.get_running_loop().time()
                await work
                spent.append((asyncio.get_running_loop().time() - clock, cpu_s(valkey.pid) - cpu))
        finally:
            await storage.close()
    (append_s, append_cpu_s), (read_s, read_cpu_s) = spent
    return Ceiling(
        append_mb_s=gigabytes * 1e3 / append_s,
        append_cpu_s_gb=append_cpu_s / gigabytes,
        read_mb_s=gigabytes * 1e3 / read_s,
        read_cpu_s_gb=read_cpu_s / gigabytes,
    )


async def _append(storage: RedisStorage, streams: tuple[str, ...], batch: bytes, count: int) -> None:
    header = peek(batch)
    append = Append(batch=batch, span=header.span, max_timestamp=header.max_timestamp)
    window = asyncio.Semaphore(max(1, _IN_FLIGHT_BYTES // len(batch)))
    failures: list[Exception] = []

    def done(answer: Appended | Exception) -> None:
        window.release()
        if isinstance(answer, Exception):
            failures.append(answer)

    for number in range(count):
        await window.acquire()
        storage.append(streams[number % len(streams)], append, done)
    for _ in range(max(1, _IN_FLIGHT_BYTES // len(batch))):
        await window.acquire()
    if failures:
        raise failures[0]


async def _read(storage: RedisStorage, streams: tuple[str, ...], size: int) -> None:
    async def read(stream: str) -> None:
        offset = 0
        while found := await storage.read(stream, offset, max(1, _READ_BYTES // len(streams) // size)):
            offset = found[-1].next_offset

    await asyncio.gather(*(read(stream) for stream in streams))
