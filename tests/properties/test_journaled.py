"""Appends through the journal on a real Valkey, held against a model; connections are lost, servers killed between.

Whatever happens, a batch that was acknowledged lies at its offset afterwards, offsets are dense, and each log could
have been made by the rule of `topics.sequences`. What is answered while nothing happens is what that rule says.
"""

import asyncio
import itertools
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import pytest
import redis.asyncio
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from tests.harness.redis import RedisServer

from headrace.keyspace.keys import Keyspace
from headrace.records.build import build
from headrace.store.journal import SMALLEST, Journal
from headrace.store.storage import RedisStorage
from headrace.topics.errors import StorageFull, StorageUnavailable, TopicError
from headrace.topics.model import Append, Appended
from headrace.topics.sequences import Producer, find_duplicate, last_of, remember

T = TypeVar("T")
LOGS = 2
Outcome = Appended | type[Exception]


class Step(NamedTuple):
    """One append: which log, which producer (None: none), how far from where the producer should go on."""

    log: int
    producer: int | None
    span: int
    epoch_step: int
    sequence_step: int
    large: bool
    pause: bool
    """Whether the loop turns before the next one."""


in_order = st.just(0)
steps = st.builds(
    Step,
    log=st.integers(0, LOGS - 1),
    producer=st.none() | st.integers(0, 1),
    span=st.integers(1, 5),
    epoch_step=st.one_of(*[in_order] * 8, st.integers(-1, 1)),
    sequence_step=st.one_of(*[in_order] * 6, st.integers(-9, 3)),
    large=st.one_of(*[st.just(False)] * 4, st.booleans()),
    pause=st.booleans(),
)
FAULTS = ["no connection", "killed connection", "no scripts", "no memory", "server killed", "both killed"]
OTHERS = ["nothing", "nothing", "settle", "forget", "trim", "reopen", "read"]


class Turn(NamedTuple):
    """Appends, and something that happens when so many of them have been given."""

    steps: list[Step]
    what: str
    after: int


turns = st.lists(
    st.builds(
        Turn,
        steps=st.lists(steps, min_size=1, max_size=12),
        what=st.sampled_from(OTHERS * 2 + FAULTS),
        after=st.integers(0, 12),
    ),
    min_size=1,
    max_size=10,
)


class Sent(NamedTuple):
    """A batch of the model's: what makes it known, and what became of it."""

    append: Append
    value: bytes
    """Its bytes but for those that the broker stamps."""


class Log:
    """What a log must hold."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.producers: dict[int, Producer] = {}

    def take(self, sent: Sent) -> Outcome:
        """What an append must come to; the model takes it over."""
        append = sent.append
        if append.producer_id >= 0:
            known = self.producers.get(append.producer_id)
            try:
                again = find_duplicate(known, append.producer_epoch, append.base_sequence, append.span)
            except TopicError as error:
                return type(error)
            if again is not None:
                return Appended(again.base_offset, duplicate=True)
            self.producers[append.producer_id] = remember(
                known, append.producer_epoch, append.base_sequence, append.span, self.end
            )
        self.batches.append((self.end, sent.value))
        self.end += append.span
        return Appended(self.batches[-1][0])


class Bench:
    """An event loop, a Valkey that keeps what it wrote, and one server after another."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.redis = server
        self.folder = folder
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        self.numbers = itertools.count()
        self.epoch = 0
        self.journal = folder / "journal"
        self.admin = redis.asyncio.from_url(server.url)
        self.storage: RedisStorage

    async def start(self) -> None:
        self.epoch += 1
        self.storage = await RedisStorage.open(
            self.redis.url,
            redis.asyncio.from_url(self.redis.url),
            self.epoch,
            alone=True,
            journal=Journal.open(self.journal, SMALLEST),
            journal_bytes=SMALLEST,
        )

    async def kill(self, *, both: bool) -> None:
        """The server is gone now: another one finds the journal as it is at this moment."""
        frozen = self.folder / f"journal-{self.epoch}"
        shutil.copyfile(self.journal, frozen)
        connection = self.storage._connection
        connection._closed = True
        if connection._link is not None:
            connection._link._out.clear()
            connection._link.transport.abort()
        if both:
            self.redis.kill()
        await self.storage.close()
        self.journal.unlink()
        self.journal = frozen
        if both:
            self.redis.start()
        await self.start()

    def close(self) -> None:
        self.run(self.storage.close())
        self.run(self.admin.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with (
        TemporaryDirectory() as folder,
        RedisServer(options={"appendonly": "yes", "appendfsync": "no"}) as server,
    ):
        bench = Bench(server, Path(folder))
        bench.run(bench.start())
        try:
            yield bench
        finally:
            bench.close()


class Run:
    """One example."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.streams = [Keyspace().stream("journaled", next(bench.numbers)) for _ in range(LOGS)]
        self.logs = [Log() for _ in range(LOGS)]
        self.given: dict[bytes, Sent] = {}
        self.fill = itertools.count()
        self.expected: dict[tuple[int, int], tuple[int, int]] = {}
        self.early = 0

    def batch(self, step: Step) -> Sent:
        text = b"%d." % next(self.fill)
        producer, epoch, sequence = -1, -1, -1
        if step.producer is not None:
            place = (step.log, step.producer)
            producer = step.producer
            epoch, sequence = self.expected.get(place, (0, 2**31 - 12))
            epoch = max(0, epoch + step.epoch_step)
            if step.epoch_step > 0:
                sequence = 0
            sequence = (sequence + step.sequence_step) % 2**31
            if step.epoch_step >= 0 and not step.sequence_step:
                self.expected[place] = epoch, (last_of(sequence, step.span) + 1) % 2**31
        value = text.ljust(70_000 // step.span if step.large else 8, b".")
        made = build(
            [(None, value, 5, ())] * step.span, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        )
        sent = Sent(Append(made, step.span, 5, producer, epoch, sequence), bytes(made[16:]))
        self.given[sent.value] = sent
        return sent

    async def begin(self) -> None:
        # The example before may have ended in the middle of something.
        await self.bench.admin.config_set("maxmemory", 0)
        for stream in self.streams:
            await _until_available(partial(self.bench.storage.open_partition, stream))

    async def turn(self, turn: Turn) -> None:
        answers: dict[int, Appended | Exception] = {}
        sent: list[tuple[int, Sent]] = []
        done = asyncio.Event()
        for number, step in enumerate(turn.steps):
            if number == turn.after:
                await self.happen(turn.what)
            one = self.batch(step)
            sent.append((step.log, one))

            def answered(result: Appended | Exception, number: int = number, one: Sent = one) -> None:
                assert number not in answers, "answered twice"
                answers[number] = result
                if isinstance(result, Appended) and not result.duplicate:
                    # As the broker does, at once: what is sent later has it too.
                    _stamp(one.append, result.base_offset)
                if len(answers) == len(turn.steps):
                    done.set()

            self.bench.storage.append(self.streams[step.log], one.append, answered)
            self.early += number in answers
            if step.pause:
                await asyncio.sleep(0)
        if turn.after >= len(turn.steps):
            await self.happen(turn.what)
        if turn.what in FAULTS:
            await self.recover(sent, answers)
        else:
            async with asyncio.timeout(20):
                await done.wait()
            for number, (log, one) in enumerate(sent):
                assert _outcome(answers[number]) == self.logs[log].take(one), (number, one)

    async def happen(self, what: str) -> None:
        bench, storage, admin = self.bench, self.bench.storage, self.bench.admin
        action: dict[str, Callable[[], Awaitable[Any]]] = {
            "nothing": partial(asyncio.sleep, 0),
            "settle": storage.settle,
            "forget": partial(_forget, storage, self.streams[0]),
            "trim": partial(storage.trim, self.streams[1], before_ms=None, max_bytes=None),
            "reopen": partial(storage.open_partition, self.streams[0]),
            "read": partial(storage.read, self.streams[1], 0, 1_000),
            "no connection": partial(_abort, storage),
            "killed connection": partial(admin.client_kill_filter, _type="normal", skipme=True),
            "no scripts": admin.script_flush,
            "no memory": partial(admin.config_set, "maxmemory", 1),
            "server killed": partial(bench.kill, both=False),
            "both killed": partial(bench.kill, both=True),
        }
        await action[what]()

    async def recover(self, sent: list[tuple[int, Sent]], answers: dict[int, Appended | Exception]) -> None:
        """Let the server get over it; take over what it has made of this turn, as far as it may be so."""
        storage = self.bench.storage
        storage._appends.flush()
        await asyncio.sleep(0.002)
        await self.bench.admin.config_set("maxmemory", 0)
        await _until_available(storage.settle)
        for place, stream in enumerate(self.streams):
            opened = await _until_available(partial(storage.open_partition, stream))
            found = [(each.base_offset, bytes(each.batch[16:])) for each in await storage.read(stream, 0, 100_000)]
            log = self.logs[place]
            before = len(log.batches)
            assert found[:before] == log.batches
            of_turn = {one.value for to, one in sent if to == place}
            for offset, value in found[before:]:
                assert value in of_turn, "not of this turn, or not of this log"
                of_turn.discard(value)
                # Dense, and as the rule of sequences has it: each is a new batch.
                assert log.take(self.given[value]) == Appended(offset)
            assert opened.next_offset == log.end
        for number, result in answers.items():
            place, one = sent[number]
            if isinstance(result, Appended) and not result.duplicate:
                assert (result.base_offset, one.value) in self.logs[place].batches, "acknowledged, and not there"
            elif isinstance(result, StorageFull):
                assert all(value != one.value for _, value in self.logs[place].batches)
        # Clients go on from where they find themselves.
        for (place, producer_id), _ in list(self.expected.items()):
            known = self.logs[place].producers.get(producer_id)
            if known is None:
                del self.expected[place, producer_id]
            else:
                self.expected[place, producer_id] = known.epoch, (known.batches[0].last + 1) % 2**31

    async def end(self) -> None:
        await self.bench.storage.settle()
        for stream, log in zip(self.streams, self.logs, strict=True):
            found = await self.bench.storage.read(stream, 0, 100_000)
            assert [(each.base_offset, bytes(each.batch[16:])) for each in found] == log.batches
            assert await self.bench.storage.size(stream) == sum(16 + len(value) for _, value in log.batches)
            await self.bench.storage._drop([stream])


async def _abort(storage: RedisStorage) -> None:
    link = storage._connection._link
    if link is not None:
        link.transport.abort()


async def _forget(storage: RedisStorage, stream: str) -> None:
    storage._appends.forget(stream)


async def _until_available(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Once more while Redis is away, or loads its scripts."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await ask()
            except StorageUnavailable:
                await asyncio.sleep(0.005)


def _stamp(append: Append, base_offset: int) -> None:
    assert isinstance(append.batch, bytearray)
    append.batch[:8] = base_offset.to_bytes(8)
    append.batch[12:16] = (3).to_bytes(4)


def _outcome(result: Appended | Exception) -> Outcome:
    return result if isinstance(result, Appended) else type(result)


@pytest.mark.timeout(300)
@settings(
    max_examples=100,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(turns=turns)
def test_every_acknowledged_batch_is_in_its_place(bench: Bench, turns: list[Turn]) -> None:
    run = Run(bench)
    bench.run(run.begin())
    for turn in turns:
        bench.run(run.turn(turn))
        event(turn.what)
    event("some were acknowledged early" if run.early else "none was acknowledged early")
    bench.run(run.end())


def test_some_are_acknowledged_early(bench: Bench) -> None:
    """So that the property above is not one of Valkey alone."""
    run = Run(bench)
    bench.run(run.begin())
    step = Step(log=0, producer=0, span=1, epoch_step=0, sequence_step=0, large=False, pause=False)
    for _ in range(5):
        bench.run(run.turn(Turn([step] * 10, "nothing", 0)))
    bench.run(run.end())
    assert run.early >= 30
