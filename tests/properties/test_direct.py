"""What is appended without the script is, to the byte, what the script would have stored and answered."""

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import redis.asyncio
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.harness.valkey import valkey

from headrace.keyspace.keys import Keyspace, producers_of, state_of
from headrace.records.build import build
from headrace.store.appends import AppendQueue
from headrace.store.connection import Connection
from headrace.store.direct import DirectAppends
from headrace.store.logs import RedisLogs, load_commands
from headrace.topics.model import Append, Appended
from headrace.topics.sequences import SEQUENCES

EXPIRY_MS = 50


class Step(NamedTuple):
    """One append: which log, which producer (None: none), how far from where the producer should go on."""

    log: int
    producer: int | None
    span: int
    timestamp: int
    epoch_step: int
    sequence_step: int
    large: bool


in_order = st.just(0)
steps = st.builds(
    Step,
    log=st.integers(0, 1),
    producer=st.none() | st.integers(0, 1),
    span=st.integers(1, 9),
    timestamp=st.integers(-1, 60),
    epoch_step=st.one_of(in_order, in_order, in_order, in_order, st.integers(-1, 1)),
    sequence_step=st.one_of(in_order, in_order, in_order, in_order, st.integers(-9, 3)),
    large=st.booleans(),
)
turns = st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=8)


class Side:
    """One way of appending, on logs of its own."""

    def __init__(self, name: str, connection: Connection, now: list[int], *, alone: bool) -> None:
        self.streams = [f"headrace:{name}:{log}" for log in range(2)]
        self.logs = RedisLogs(
            connection, Keyspace(), 1, producer_expiry_ms=EXPIRY_MS, now_ms=lambda: now[0], alone=alone
        )

    async def open(self, admin: "redis.asyncio.Redis", first_offset: int) -> None:
        for stream in self.streams:
            await admin.delete(stream, state_of(stream), producers_of(stream))
            await self.logs.open_partition(stream)
            await admin.hset(state_of(stream), mapping={"n": first_offset, "b": first_offset})

    async def append(self, turn: list[tuple[int, Append]]) -> list[tuple[int, Any]]:
        """All in one turn of the loop; the answers log by log, in order."""
        answers: list[tuple[int, Any]] = []
        done = asyncio.Event()

        def answered(number: int, result: Appended | Exception) -> None:
            answers.append((number, result if isinstance(result, Appended) else (type(result), str(result))))
            if len(answers) == len(turn):
                done.set()

        for number, (log, append) in enumerate(turn):
            self.logs.append(self.streams[log], append, partial(answered, number))
        await done.wait()
        return sorted(answers, key=lambda answer: answer[0])

    async def stored(self, admin: "redis.asyncio.Redis") -> list[Any]:
        return [
            (
                await admin.xrange(stream),
                await admin.hgetall(state_of(stream)),
                await admin.hgetall(producers_of(stream)),
            )
            for stream in self.streams
        ]


class Bench:
    """An event loop, and both ways side by side on one Valkey."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.admin = redis.asyncio.from_url(url)
        self.now = [0]
        self.connection = Connection(url, load_commands())
        self.run(self.connection.open())
        self.sides = [Side(name, self.connection, self.now, alone=name == "direct") for name in ("script", "direct")]
        assert [type(side.logs._appends) for side in self.sides] == [AppendQueue, DirectAppends]

    def run(self, action: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(action)

    async def transactions(self) -> int:
        stats = await self.admin.info("commandstats")
        return int(stats.get("cmdstat_exec", {}).get("calls", 0))

    def close(self) -> None:
        self.run(self.connection.close())
        self.run(self.admin.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with valkey() as url:
        bench = Bench(url)
        try:
            yield bench
        finally:
            bench.close()


def _appends(turn: list[Step], expected: dict[tuple[int, int], tuple[int, int]]) -> list[tuple[int, Append]]:
    """The batches of a turn; `expected` has each producer's epoch and next sequence, and is kept up."""
    found = []
    for step in turn:
        value = b"x" * (70_000 // step.span if step.large else step.span)
        batch = build([(None, value, step.timestamp, ())] * step.span)
        if step.producer is None:
            found.append((step.log, Append(batch, step.span, step.timestamp)))
            continue
        place = (step.log, step.producer)
        epoch, sequence = expected.get(place, (0, SEQUENCES - 20))
        epoch = max(0, epoch + step.epoch_step)
        if step.epoch_step > 0:
            sequence = 0
        sequence = (sequence + step.sequence_step) % SEQUENCES
        found.append((step.log, Append(batch, step.span, step.timestamp, step.producer, epoch, sequence)))
        if not step.epoch_step < 0 and not step.sequence_step:
            expected[place] = epoch, (sequence + step.span) % SEQUENCES
    return found


@pytest.mark.timeout(300)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=turns, first_offset=st.sampled_from([0, 10**15 - 7, 2**53 - 60]), pause_ms=st.sampled_from([1, 30]))
def test_both_ways_store_and_answer_the_same(
    bench: Bench, turns: list[list[Step]], first_offset: int, pause_ms: int
) -> None:
    bench.now[0] = 0
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    before = bench.run(bench.transactions())
    for side in bench.sides:
        bench.run(side.open(bench.admin, first_offset))
    for number, turn in enumerate(turns):
        bench.now[0] += pause_ms
        appends = _appends(turn, expected)
        by_script, directly = (bench.run(side.append(appends)) for side in bench.sides)
        assert directly == by_script
        if number % 3 == 2:
            for side in bench.sides:
                for stream in side.streams:
                    bench.run(side.logs.trim(stream, before_ms=20, max_bytes=None))
        by_script, directly = (bench.run(side.stored(bench.admin)) for side in bench.sides)
        assert directly == by_script
    event("some went directly" if bench.run(bench.transactions()) > before else "all by script")


def test_what_is_in_order_goes_directly(bench: Bench) -> None:
    """So that the property above is not one of the script alone."""
    side = bench.sides[1]
    bench.run(side.open(bench.admin, 0))
    before = bench.run(bench.transactions())
    for number in range(5):
        batch = build([(None, b"x", 7, ())])
        answers = bench.run(side.append([(0, Append(batch, 1, 7, 3, 0, number)), (1, Append(batch, 1, 7))]))
        assert answers == [(0, Appended(number)), (1, Appended(number))]
    # The first turn is the script's, and what the logs are learnt from.
    assert bench.run(bench.transactions()) - before == 4
