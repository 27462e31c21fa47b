"""The cost of record batches: header check, CRC, building, single records, and Arrow columns for Spark.

The C extension and its fallback without a compiler are timed alternately in one run. CPU time is measured, so that a
busy machine does not matter, and the minimum counts. The last column is the ratio. Both must return equal numbers of
rows first.
"""

import argparse
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.machine import describe
from bench.table import Cell, table
from headrace.records import accelerator, arrow, compression
from headrace.records.batch import check, peek
from headrace.records.build import build
from headrace.records.fallback import columns, encode, header
from headrace.records.walk import records

PLAIN = {
    "available": False,
    "crc32c": header.crc32c,
    "check": header.check,
    "peek": header.peek,
    "stamp": header.stamp,
    "encode": encode.encode,
    "records": columns.records,
    "open_columns": columns.PureColumns,
}


@contextmanager
def without_extension() -> Iterator[None]:
    kept = {name: getattr(accelerator, name) for name in PLAIN}
    for name, value in PLAIN.items():
        setattr(accelerator, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(accelerator, name, value)


def both(function: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """CPU seconds with the extension and without, the least of some rounds in turns."""
    fast, slow = [], []
    for _ in range(rounds):
        fast.append(timeit.timeit(function, number=1, timer=time.process_time))
        with without_extension():
            slow.append(timeit.timeit(function, number=1, timer=time.process_time))
    return min(fast), min(slow)


def value(size: int, number: int) -> bytes:
    """JSON-like text that codecs shrink as they shrink real events."""
    text = b'{"flight":%d,"carrier":"UA","origin":"EWR","delay":%d,"tail":"N%dUA"},' % (
        number,
        number % 61,
        number * 7919,
    )
    return (text * (size // len(text) + 1))[:size]


def batches(size: int, codec: int, batch_bytes: int, total: int) -> list[tuple[int, bytearray]]:
    per_batch = max(1, batch_bytes // size)
    made = []
    for base in range(0, total // size, per_batch):
        rows = [(b"k%08d" % at, value(size, at), 1_700_000_000_000 + at, ()) for at in range(base, base + per_batch)]
        made.append((base, build(rows, codec=codec)))
    return made


def rows(found: list[tuple[int, bytearray]], *, headers: bool = False) -> int:
    decoded = arrow.decode(found, topic="t", partition=0, first_offset=0, end_offset=2**60, include_headers=headers)
    return sum(batch.num_rows for batch in decoded)


def line(name: str, fast: float, slow: float, unit: str) -> list[Cell]:
    return [name, unit, fast, slow, max(fast, slow) / min(fast, slow)]


def check_and_stamp(rounds: int) -> Iterator[list[Cell]]:
    buffer = bytearray(build([(None, b"v", 1, ())]))
    for count, size in ((1, 100), (150, 100), (16, 1_024), (10_000, 100)):
        batch = build([(None, value(size, at), 1, ()) for at in range(count)])
        loops = 10_000 if count < 1_000 else 200
        fast, slow = both(partial(repeated, loops, check, batch), rounds)
        yield line(f"check a batch of {len(batch):,} bytes", fast / loops * 1e6, slow / loops * 1e6, "us")
    for name, function in (
        ("peek", lambda: peek(buffer)),
        ("stamp", lambda: accelerator.stamp(buffer, 5, 1)),
    ):
        fast, slow = both(partial(repeated, 20_000, function), rounds)
        yield line(name, fast / 20_000 * 1e6, slow / 20_000 * 1e6, "us")


def repeated(times: int, function: Callable[..., Any], *arguments: Any) -> None:
    for _ in range(times):
        function(*arguments)


def crc(rounds: int) -> Iterator[list[Cell]]:
    data = bytearray(value(1 << 20, 1))
    fast, slow = both(lambda: [accelerator.crc32c(data) for _ in range(50)], rounds)
    yield line("CRC-32C of 1 MiB (not bytes: google's copies)", 50 / 1024 / fast, 50 / 1024 / slow, "GiB/s")


def write_and_walk(rounds: int) -> Iterator[list[Cell]]:
    for size in (100, 1_024):
        made = [(b"k%08d" % at, value(size, at), at, ()) for at in range(2_000)]
        batch = build(made)
        fast, slow = both(partial(build, made), rounds)
        yield line(f"build, {size} B", len(made) / fast / 1e6, len(made) / slow / 1e6, "M rows/s")
        fast, slow = both(partial(records, batch, 0), rounds)
        yield line(f"records one by one, {size} B", len(made) / fast / 1e6, len(made) / slow / 1e6, "M rows/s")


def to_arrow(rounds: int, total: int) -> Iterator[list[Cell]]:
    for size in (100, 1_024):
        for name, codec in compression.CODECS.items():
            for batch_bytes in (16_384, 1_000_000):
                found = batches(size, codec, batch_bytes, total)
                expected = rows(found)
                with without_extension():
                    assert rows(found) == expected
                fast, slow = both(partial(rows, found), rounds)
                label = f"to Arrow, {size} B, {name}, {batch_bytes // 1000} KB batches"
                yield line(label, expected / fast / 1e6, expected / slow / 1e6, "M rows/s")
                yield line(label, expected * size / fast / 1e6, expected * size / slow / 1e6, "MB/s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="rounds of which the best counts (5; quick: 2)")
    parser.add_argument("--megabytes", type=float, help="of values decoded to Arrow in one go (16; quick: 2)")


def run(options: argparse.Namespace) -> None:
    if not accelerator.available:
        raise SystemExit("the C extension has not been built: nothing to compare")
    rounds = options.rounds or (2 if options.quick else 5)
    total = int(1e6 * (options.megabytes or (2 if options.quick else 16)))
    print(describe(best_of=f"{rounds} rounds, CPU time"), end="\n\n", flush=True)
    found = [*check_and_stamp(rounds), *crc(rounds), *write_and_walk(rounds), *to_arrow(rounds, total)]
    print(table(["records", "unit", "extension", "without", "times"], found))
