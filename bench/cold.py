"""How long a consumer waits for old records: 500 x 1 KiB at a random offset, from the archive, by one Fetch.

A topic of which nothing is in Redis any more: its table has files of 20 000 records in row groups of about 4 MiB, as
the archive writes them. Each fetch is one request on one connection, whose answer is read and not decoded.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.harness.archive import Archiver
from tests.harness.wire import Wire, batches

from bench.machine import describe
from bench.payloads import values
from bench.table import Cell, table
from headrace.records.batch import peek
from headrace.records.build import build
from headrace.testing import InProcessServer

TOPIC, SIZE, RECORDS, PER_BATCH = "cold", 1024, 500, 60
TARGET_MS = 10.0
T0 = 1_700_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, help="records in the archive (800 000; quick: 20 000)")
    parser.add_argument("--fetches", type=int, help="fetches that are measured (300; quick: 20)")


def fill(server: InProcessServer, records: int, folder: Path) -> None:
    """A topic whose records are in the archive only."""
    pool = values(SIZE, PER_BATCH * 8)
    with Wire(server.kafka) as wire:
        wire.create(TOPIC, 1, remote_storage_enable="true", retention_ms=-1, local_retention_ms=1)
        for first in range(0, records, PER_BATCH):
            batch = build([(None, pool[(first + n) % len(pool)], T0 + first + n, ()) for n in range(PER_BATCH)])
            assert wire.produce(TOPIC, bytes(batch)).error_code == 0
        end = wire.offset(TOPIC, -1).offset
    Archiver(server.storage, TOPIC, folder).archive(end, rows_per_file=20_000, group=4_096)
    while True:
        server.clock.advance(minutes=6)
        with Wire(server.kafka) as wire:
            if wire.offset(TOPIC, -4, version=8).offset == end:
                return


def fetch_ms(wire: Wire, offset: int) -> float:
    """One fetch of 500 records."""
    begun = time.perf_counter()
    found = wire.fetch(TOPIC, offset, partition_max_bytes=RECORDS * (SIZE + 12))
    took = (time.perf_counter() - begun) * 1_000
    got = sum(peek(one).count for one in batches(found.records))
    assert found.error_code == 0, found.error_code
    assert got > RECORDS * 0.9, got
    return took


def run(options: argparse.Namespace) -> None:
    records = options.records or (20_000 if options.quick else 800_000)
    fetches = options.fetches or (20 if options.quick else 300)
    print(describe(records=f"{records:,}"), end="\n\n", flush=True)
    with tempfile.TemporaryDirectory() as folder, InProcessServer(headrace_cache_bytes=0) as server:
        fill(server, records, Path(folder) / "table")
        chance = random.Random(1)
        with Wire(server.kafka) as wire:
            fetch_ms(wire, 0)
            anywhere = [fetch_ms(wire, chance.randrange(records - 2 * RECORDS)) for _ in range(fetches)]
            following = [fetch_ms(wire, first) for first in range(0, min(records - 2 * RECORDS, 100_000), RECORDS)]
        rows: list[list[Cell]] = [
            [what, statistics.median(found), statistics.quantiles(found, n=20)[-1], TARGET_MS]
            for what, found in (("at a random offset", anywhere), ("one after the other", following))
        ]
    print(table(["500 x 1 KiB from the archive", "p50 ms", "p95 ms", "p50 asked for"], rows))
