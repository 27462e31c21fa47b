"""Appends, trims and reads on a real Valkey, held against a plain Python list and the model of producer sequences.

Offsets begin at 0, near 10^14, near 10^15 and just below 2^53, where careless Lua would print `1e+15` or round.
"""

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

import pytest
import redis.asyncio
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.harness.valkey import valkey

from headrace.keyspace.keys import Keyspace, producers_of, state_of
from headrace.records.build import build
from headrace.store.connection import Connection
from headrace.store.logs import RedisLogs, load_commands
from headrace.topics.errors import Fenced, StorageFull, TopicError
from headrace.topics.model import Append, Appended, PartitionState, StoredBatch
from headrace.topics.sequences import SEQUENCES, Producer, find_duplicate, last_of, remember

T = TypeVar("T")
Outcome = Appended | type[Exception]

MOST_OFFSET = 2**53 - 1
PRODUCER_EXPIRY_MS = 1_000
FIRST_OFFSETS = [0, 10**14 - 7, 10**15 - 7, 2**53 - 60]

producers = st.integers(0, 1)
spans = st.integers(1, 9)
timestamps = st.integers(-1, 60)


class Kept(NamedTuple):
    """A batch as the model has it."""

    base_offset: int
    next_offset: int
    batch: bytes
    timestamp: int
    time: int
    """The largest of all timestamps up to here; arrival counts where a batch has none."""

    @property
    def stored(self) -> StoredBatch:
        return StoredBatch(self.base_offset, self.next_offset, self.batch)


class Bench:
    """An event loop, a connection to a Valkey and a clock that machines share."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.admin = redis.asyncio.from_url(url)
        self.connection = Connection(url, load_commands())
        self.run(self.connection.open())
        self.url = url
        self.own: Connection | None = None
        self.now_ms = 0
        self.numbers = itertools.count()

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(action)

    def server(self, epoch: int, *, alone: bool = False) -> RedisLogs:
        """A server of this epoch; one that is alone ends the connection of the one before."""
        return RedisLogs(
            self.run(self._connect_alone()) if alone else self.connection,
            Keyspace(),
            epoch,
            producer_expiry_ms=PRODUCER_EXPIRY_MS,
            now_ms=lambda: self.now_ms,
            alone=alone,
        )

    async def _connect_alone(self) -> Connection:
        if self.own is not None:
            await self.own.close()
        self.own = Connection(self.url, load_commands())
        await self.own.open()
        return self.own

    def close(self) -> None:
        if self.own is not None:
            self.run(self.own.close())
        self.run(self.connection.close())
        self.run(self.admin.aclose())
        self.runner.close()


class Log(RuleBasedStateMachine):
    """One partition under everything that may happen to it."""

    bench: Bench
    alone = False

    def __init__(self) -> None:
        super().__init__()
        self.stream = Keyspace().stream("log", next(self.bench.numbers))
        self.epoch = 1
        self.server = self.bench.server(self.epoch, alone=self.alone)
        self.old_server: RedisLogs | None = None
        self.bench.now_ms = 0
        self.log: list[Kept] = []
        self.log_start = self.log_end = 0
        self.time = -1
        self.appended = 0
        self.producers: dict[int, Producer] = {}
        self.last_use: dict[int, int] = {}
        self.sent: dict[int, list[tuple[int, int, int]]] = {}
        self.fill = itertools.count()

    @initialize(first_offset=st.sampled_from(FIRST_OFFSETS))
    def open(self, first_offset: int) -> None:
        self.bench.run(self.server.open_partition(self.stream))
        self.bench.run(self._begin_at(first_offset))
        self.log_start = self.log_end = first_offset

    async def _begin_at(self, offset: int) -> None:
        state = {"n": str(offset), "b": str(offset)}
        await self.bench.admin.hset(state_of(self.stream), mapping=state)  # type: ignore[arg-type]

    def teardown(self) -> None:
        self.bench.run(self._remove())

    async def _remove(self) -> None:
        await self.bench.admin.delete(self.stream, state_of(self.stream), producers_of(self.stream))

    # The model

    def _expect(self, append: Append) -> Outcome:
        """What an append must come to; the model takes it over."""
        if self.log_end + append.span > MOST_OFFSET:
            return StorageFull
        known = None
        if append.producer_id >= 0:
            known = self.producers.get(append.producer_id)
            producer = (known, append.producer_epoch, append.base_sequence, append.span)
            try:
                duplicate = find_duplicate(*producer)
            except TopicError as error:
                return type(error)
            if duplicate is not None:
                return Appended(duplicate.base_offset, duplicate=True)
            self.producers[append.producer_id] = remember(*producer, self.log_end)
            self.last_use[append.producer_id] = self.bench.now_ms
        base_offset = self.log_end
        self.log_end += append.span
        self.time = max(self.time, append.max_timestamp if append.max_timestamp >= 0 else self.bench.now_ms)
        self.appended += len(append.batch)
        batch = bytes(append.batch)
        self.log.append(Kept(base_offset, self.log_end, batch, append.max_timestamp, self.time))
        return Appended(base_offset)

    def _trim_to(self, target: int) -> None:
        self.log_start = max(self.log_start, target)
        self.log = [kept for kept in self.log if kept.next_offset > self.log_start]

    def _size(self) -> int:
        return sum(len(kept.batch) for kept in self.log)

    # Writing

    def _batch(self, span: int, timestamp: int) -> bytearray:
        number = next(self.fill)
        return build([(None, b"%d" % number * (number % 5), timestamp, ())] * span)

    def _send(self, appends: list[Append], server: RedisLogs | None = None) -> list[Outcome]:
        """Send all of them in one turn of the loop; outcomes in the order of the answers."""

        async def send() -> list[Outcome]:
            outcomes: list[Outcome] = []
            answered = asyncio.Event()

            def done(result: Appended | Exception) -> None:
                outcomes.append(result if isinstance(result, Appended) else type(result))
                if len(outcomes) == len(appends):
                    answered.set()

            for append in appends:
                (server or self.server).append(self.stream, append, done)
            await answered.wait()
            return outcomes

        return self.bench.run(send())

    def _check(self, *appends: Append) -> None:
        expected = [self._expect(append) for append in appends]
        assert self._send(list(appends)) == expected

    @rule(several=st.lists(st.tuples(spans, timestamps), min_size=1, max_size=5))
    def append(self, several: list[tuple[int, int]]) -> None:
        self._check(*(Append(self._batch(span, time), span, time) for span, time in several))

    @rule(
        producer=producers,
        several=st.sampled_from([1, 2, 7]).flatmap(lambda count: st.lists(spans, min_size=count, max_size=count)),
        timestamp=timestamps,
        first=st.sampled_from([0, 5, SEQUENCES - 3]),
        again=st.booleans(),
    )
    def append_in_sequence(self, producer: int, several: list[int], timestamp: int, first: int, again: bool) -> None:
        known = self.producers.get(producer)
        epoch = known.epoch if known else 0
        sequence = (known.batches[0].last + 1) % SEQUENCES if known else first
        appends = []
        for span in several:
            appends.append(Append(self._batch(span, timestamp), span, timestamp, producer, epoch, sequence))
            self.sent.setdefault(producer, []).append((epoch, sequence, span))
            sequence = (last_of(sequence, span) + 1) % SEQUENCES
        self._check(*appends)
        if again:
            self.send_all_again(producer)

    def send_all_again(self, producer: int) -> None:
        """More than are remembered: the older ones are refused, the last five get their offsets again."""
        sent = self.sent[producer]
        self._check(
            *(
                Append(self._batch(span, 7), span, 7, producer, epoch, sequence)
                for epoch, sequence, span in reversed(sent[-8:])
            )
        )

    @rule(producer=producers)
    def send_the_last_with_more_records(self, producer: int) -> None:
        sent = self.sent.get(producer, [])
        assume(sent)
        epoch, sequence, span = sent[-1]
        self._check(Append(self._batch(span + 1, 7), span + 1, 7, producer, epoch, sequence))

    @rule(producer=producers, newer=st.integers(-1, 2), step=st.integers(-3, 3), span=spans)
    def append_out_of_sequence(self, producer: int, newer: int, step: int, span: int) -> None:
        known = self.producers.get(producer)
        epoch = max(0, (known.epoch if known else 0) + newer)
        sequence = (known.batches[0].last + 1 + step) % SEQUENCES if known else 3
        self._check(Append(self._batch(span, 7), span, 7, producer, epoch, sequence))

    @rule(producer=producers, span=spans)
    def begin_a_new_producer_epoch(self, producer: int, span: int) -> None:
        known = self.producers.get(producer)
        epoch = known.epoch + 1 if known else 0
        self.sent.setdefault(producer, []).append((epoch, 0, span))
        self._check(Append(self._batch(span, 7), span, 7, producer, epoch, 0))

    # Servers

    @rule(opens=st.booleans())
    def another_server_takes_over(self, opens: bool) -> None:
        self.epoch += 1
        if not self.alone:
            self.old_server = self.server
        self.server = self.bench.server(self.epoch, alone=self.alone)
        if opens:
            self._open()
        else:
            # Its first append fences the older one off just as well.
            self._check(Append(self._batch(1, 7), 1, 7))
            if self.log_end + 1 > MOST_OFFSET:
                self._open()

    def _open(self) -> None:
        state = self.bench.run(self.server.open_partition(self.stream))
        assert state == PartitionState(log_start=self.log_start, next_offset=self.log_end, leader_epoch=0)
        self._forget_producers()

    @rule()
    def the_old_server_writes(self) -> None:
        old = self.old_server
        assume(old is not None)
        assert old is not None
        assert self._send([Append(self._batch(1, 7), 1, 7)], old) == [Fenced]
        for write in (
            old.open_partition(self.stream),
            old.delete_records(self.stream, self.log_end),
            old.trim(self.stream, before_ms=None, max_bytes=0),
        ):
            with pytest.raises(Fenced):
                self.bench.run(write)

    @rule()
    def the_state_is_lost(self) -> None:
        """As when a Redis that evicts keys takes the state hash: the entries tell it again."""
        assume(self.log)
        self.bench.run(self._lose_state())
        self.log_start = self.log[0].base_offset
        self._open()

    async def _lose_state(self) -> None:
        await self.bench.admin.delete(state_of(self.stream))

    # Trimming

    @rule(ms=st.integers(1, 20))
    def time_passes(self, ms: int) -> None:
        self.bench.now_ms += ms

    @rule(producer=producers, late=st.integers(0, 1))
    def a_producer_is_silent_for_long(self, producer: int, late: int) -> None:
        assume(producer in self.last_use)
        due = self.last_use[producer] + PRODUCER_EXPIRY_MS + late
        self.bench.now_ms = max(self.bench.now_ms, due)
        self._trim(None, None)

    @rule(before_ms=st.none() | st.integers(0, 70), data=st.data())
    def enforce_retention(self, before_ms: int | None, data: st.DataObject) -> None:
        edges = [self._bytes_after(batch) + more for batch in self.log for more in (-1, 0, 1)]
        most = data.draw(st.none() | st.sampled_from([0, *edges]), "most")
        self._trim(before_ms, most)

    def _trim(self, before_ms: int | None, most: int | None) -> None:
        kept = self.log
        if before_ms is not None:
            kept = [batch for batch in kept if batch.time >= before_ms]
        if most is not None:
            while kept and self._bytes_after(kept[0]) >= most:
                kept = kept[1:]
        if before_ms is not None or most is not None:
            self._trim_to(kept[0].base_offset if kept else self.log_end)
        log_start = self.bench.run(self.server.trim(self.stream, before_ms=before_ms, max_bytes=most))
        assert log_start == self.log_start
        self._forget_producers()

    def _forget_producers(self) -> None:
        """The silent ones go with every trim, and whenever the partition is opened."""
        forgotten_ms = self.bench.now_ms - PRODUCER_EXPIRY_MS
        self.last_use = {producer: used for producer, used in self.last_use.items() if used >= forgotten_ms}
        self.producers = {producer: known for producer, known in self.producers.items() if producer in self.last_use}
        assert self.bench.run(self._producers()) == {b"%d" % producer for producer in self.producers}

    async def _producers(self) -> set[object]:
        return set(await self.bench.admin.hkeys(producers_of(self.stream)))

    def _bytes_after(self, batch: Kept) -> int:
        return sum(len(later.batch) for later in self.log if later.base_offset > batch.base_offset)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(max(0, self.log_start - 2), self.log_end + 2), "before")
        self._trim_to(min(before, self.log_end))
        assert self.bench.run(self.server.delete_records(self.stream, before)) == self.log_start

    # Reading

    @rule(data=st.data(), count=st.integers(1, 4))
    def read(self, data: st.DataObject, count: int) -> None:
        offset = data.draw(st.integers(self.log_start, self.log_end), "offset")
        expected = [kept.stored for kept in self.log if kept.next_offset > offset][:count]
        assert self.bench.run(self.server.read(self.stream, offset, count)) == expected

    @rule(timestamp=st.integers(0, 65))
    def find_timestamp(self, timestamp: int) -> None:
        expected = next((kept.stored for kept in self.log if kept.timestamp >= timestamp), None)
        assert self.bench.run(self.server.find_timestamp(self.stream, timestamp)) == expected

    @rule()
    def find_max_timestamp(self) -> None:
        largest = max((kept.timestamp for kept in self.log), default=-1)
        expected = next((kept.stored for kept in self.log if kept.timestamp == largest), None) if largest >= 0 else None
        assert self.bench.run(self.server.find_max_timestamp(self.stream)) == expected

    @rule()
    def read_everything(self) -> None:
        stored = self.bench.run(self.server.read(self.stream, self.log_start, 10_000))
        assert stored == [kept.stored for kept in self.log]

    @invariant()
    def offsets_are_dense(self) -> None:
        for before, after in itertools.pairwise(self.log):
            assert before.next_offset == after.base_offset

    @rule()
    def weigh(self) -> None:
        assert self.bench.run(self.server.size(self.stream)) == self._size()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with valkey() as url:
        bench = Bench(url)
        try:
            yield bench
        finally:
            bench.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("alone", [False, True], ids=["by script", "alone"])
def test_a_log_in_valkey_is_a_list_in_python(bench: Bench, alone: bool) -> None:
    class OnThisBench(Log):
        pass

    OnThisBench.bench = bench
    OnThisBench.alone = alone
    run_state_machine_as_test(
        OnThisBench,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
