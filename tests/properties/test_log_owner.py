"""Owner and storage on a real Valkey against a list.

Appends and retries of idempotent producers, reopenings, takeovers, trims, lost connections, a full Redis, crashes with
a journal, and people who write to the stream themselves.

What was acknowledged is there once, at its offset, without a gap before it; nothing else is there twice.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.harness.owning import STREAM, Contents, Owner, batch
from tests.harness.redis import RedisServer

from headrace.broker.partition import recovery
from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence
from headrace.topics.model import Append, Appended

T = TypeVar("T")
LARGE = 70_000


class Sending:
    """A batch of a producer until it is acknowledged."""

    def __init__(self, numbers: list[int], producer: int, epoch: int, sequence: int, size: int) -> None:
        self.numbers = numbers
        self.about = {"producer": producer, "epoch": epoch, "sequence": sequence, "size": size}
        self.answer: asyncio.Future[Appended | Exception] | None = None
        self.offset = -1

    def append(self) -> Append:
        return batch(*self.numbers, **self.about)


class Client:
    """An idempotent producer: at most five batches under way, each sent again until it is acknowledged."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.sequence = 0
        self.waiting: list[Sending] = []
        self.done: list[Sending] = []


class LogMachine(RuleBasedStateMachine):
    url: str
    journal: bool

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.link: Any = redis.Redis.from_url(self.url)
        self.link.config_set("maxmemory", 0)
        self.link.flushall()
        self.view = 1
        self.zombies: list[Owner] = []
        self.clients = [Client(number) for number in range(3)]
        self.numbers = 0
        self.expected: dict[int, int] = {}
        """Offset -> number of all acknowledged records that were not deleted."""
        self.floor = 0
        self.harmed = False
        """Whether records were deleted: then there may be gaps."""
        self.owner = self.do(self.start())

    def do(self, task: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(task)

    def start(self) -> Coroutine[Any, Any, Owner]:
        return Owner.start(self.url, self.view, Path(self.folder.name, "journal") if self.journal else None)

    # Producers

    @rule(client=st.integers(0, 2), spans=st.lists(st.integers(1, 3), min_size=1, max_size=4), large=st.booleans())
    def send(self, client: int, spans: list[int], large: bool) -> None:
        self.do(self._send(self.clients[client], spans, LARGE if large else 8))

    async def _send(self, client: Client, spans: list[int], size: int) -> None:
        for span in spans[: 5 - len(client.waiting)]:
            numbers = list(range(self.numbers, self.numbers + span))
            self.numbers += span
            sending = Sending(numbers, client.number, client.epoch, client.sequence, size)
            client.sequence += span
            client.waiting.append(sending)
            sending.answer = self.owner.send(sending.append())
        await asyncio.sleep(0)

    @rule(count=st.integers(1, 3), large=st.booleans())
    def send_without_an_id(self, count: int, large: bool) -> None:
        """Not retried, so it is there at most once."""

        async def send() -> None:
            number = self.numbers
            self.numbers += count
            answer = await self.owner.append(batch(*range(number, number + count), size=LARGE if large else 8))
            if isinstance(answer, Appended):
                self._expect(answer.base_offset, list(range(number, number + count)))

        self.do(send())

    def _expect(self, offset: int, numbers: list[int]) -> None:
        for place, number in enumerate(numbers):
            assert self.expected.setdefault(offset + place, number) == number, f"offset {offset} was given out twice"

    @rule()
    def settle(self) -> None:
        self.do(self._settle())

    async def _settle(self) -> None:
        """Every batch is acknowledged, sent again as often as that takes, in order."""
        async with asyncio.timeout(60):
            for client in self.clients:
                while client.waiting:
                    await self._round(client)

    async def _round(self, client: Client) -> None:
        answers = [await sending.answer for sending in client.waiting if sending.answer is not None]
        again: list[Sending] = []
        for sending, answer in zip(client.waiting, answers, strict=True):
            if isinstance(answer, Appended):
                sending.offset = answer.base_offset
                self._expect(answer.base_offset, sending.numbers)
                client.done.append(sending)
            else:
                # A later one may be out of order for want of the one before it; the first never is.
                assert again or not isinstance(answer, OutOfOrderSequence | InvalidProducerEpoch), repr(answer)
                again.append(sending)
        client.waiting = again
        if again:
            await asyncio.sleep(0.001)
        for sending in again:
            sending.answer = self.owner.send(sending.append())

    @rule(client=st.integers(0, 2), which=st.integers(1, 5))
    def repeat(self, client: int, which: int) -> None:
        """A client that never saw an answer: one of the last five gets its offset once more."""
        self.settle()
        known = [each for each in self.clients[client].done if each.about["epoch"] == self.clients[client].epoch]
        if len(known) >= which and not self.harmed and known[-which].offset >= self.floor:
            offset = self.do(self.owner.acknowledged(known[-which].append()))
            assert offset == known[-which].offset

    @rule(client=st.integers(0, 2))
    def bump(self, client: int) -> None:
        self.settle()
        self.clients[client].epoch += 1
        self.clients[client].sequence = 0

    # The server

    @rule()
    def save(self) -> None:
        self.do(self.owner.snapshots.save())

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        async def trim() -> None:
            partition = self.owner.partition
            with contextlib.suppress(Exception):
                await partition.delete_before(round(part * partition.log_end))
            self.floor = max(self.floor, partition.log_start)

        self.do(trim())

    @rule()
    def lose_the_connection(self) -> None:
        self.link.client_kill_filter(_type="normal", skipme=True)

    @rule()
    def read(self) -> None:
        """A reader gets what was acknowledged, also where the journal alone has it."""

        async def read() -> None:
            owner = self.owner
            await owner.acknowledged(batch(-3))
            end = owner.partition.log_end
            while True:
                with contextlib.suppress(Exception):
                    found = await self.owner.storage.logs.read(STREAM, end - 1, 1)
                    if found and found[0].next_offset >= end:
                        break
                await asyncio.sleep(0.001)

        async def patiently() -> None:
            async with asyncio.timeout(60):
                await read()

        self.do(patiently())

    @rule()
    def restart(self) -> None:
        async def restart() -> None:
            await self.owner.close()
            await self._forget_zombies()
            self.view += 1
            self.owner = await self.start()

        self.do(restart())
        self._resend()

    @rule()
    def crash(self) -> None:
        async def crash() -> None:
            await self.owner.crash()
            await self._forget_zombies()
            self.view += 1
            self.owner = await self.start()

        self.do(crash())
        self._resend()

    def _resend(self) -> None:
        """Clients send what has no answer again."""

        async def resend() -> None:
            for client in self.clients:
                for sending in client.waiting:
                    assert sending.answer is not None
                    if sending.answer.done() and isinstance(answer := sending.answer.result(), Appended):
                        self._expect(answer.base_offset, sending.numbers)
                        sending.offset = answer.base_offset
                        client.done.append(sending)
                client.waiting = [each for each in client.waiting if each.offset < 0]
                for sending in client.waiting:
                    sending.answer = self.owner.send(sending.append())

        self.do(resend())

    @precondition(lambda self: not self.journal)
    @rule()
    def take_over(self) -> None:
        """Another server opens the log; the first lives on and knows nothing of it."""

        async def take_over() -> None:
            self.zombies.append(self.owner)
            self.view += 1
            self.owner = await self.start()

        self.do(take_over())
        self._resend()

    @precondition(lambda self: bool(getattr(self, "zombies", None)))
    @rule(which=st.integers(0, 5), count=st.integers(1, 3))
    def a_zombie_writes(self, which: int, count: int) -> None:
        async def write() -> None:
            zombie = self.zombies[which % len(self.zombies)]
            answers = [zombie.send(batch(-1)) for _ in range(count)]
            for answer in answers:
                assert isinstance(await answer, Exception)

        self.do(write())

    async def _forget_zombies(self) -> None:
        for zombie in self.zombies:
            await zombie.crash()
        self.zombies = []

    # Redis, and people

    @rule(sends=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=4))
    def a_full_redis(self, sends: list[tuple[int, bool]]) -> None:
        self.link.config_set("maxmemory", 1)
        for client, large in sends:
            self.send(client, [1, 2], large)
        self.do(self.owner.snapshots.save())
        self.trim(0.3)
        self.link.config_set("maxmemory", 0)

    @rule()
    def a_stray_entry(self) -> None:
        self.link.xadd(STREAM, {"what": "ever"})

    @rule()
    def a_stray_entry_that_goes_again(self) -> None:
        self.link.xdel(STREAM, self.link.xadd(STREAM, {"what": "ever"}))

    @rule(count=st.integers(1, 3))
    def somebody_deletes_the_last_entries(self, count: int) -> None:
        self.settle()

        async def settled() -> None:
            await self.owner.acknowledged(batch(-4))
            await self.owner.partition.settle()

        async def patiently() -> None:
            """What producers have sent is written down, else it goes with the entries; a stray entry may delay that."""
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(Exception):
                        return await settled()
                    await asyncio.sleep(0.001)

        self.do(patiently())
        for entry_id, _ in self.link.xrevrange(STREAM, count=count):
            self.link.xdel(STREAM, entry_id)
            self.harmed = True
        with contextlib.suppress(Exception):
            # Deleted once more before anybody has noticed, batches that only a producer knows of would go.
            self.do(settled())

    def teardown(self) -> None:
        try:
            self._check()
        finally:
            self.do(self._end())
            self.loop.close()
            self.link.close()
            self.folder.cleanup()

    async def _end(self) -> None:
        await self._forget_zombies()
        await self.owner.crash()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    def _check(self) -> None:
        self.settle()
        self.do(self.owner.acknowledged(batch(-2)))

        async def settled() -> None:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(Exception):
                        return await self.owner.storage.logs.settle(STREAM)
                    await asyncio.sleep(0.001)

        self.do(settled())
        found = Contents(self.link)
        assert found.strays == 0
        assert [number for number in found.doubled if number >= 0] == []
        assert found.log_start == self.owner.partition.log_start
        wrong = {
            offset: (number, found.by_offset.get(offset))
            for offset, number in self.expected.items()
            if offset >= found.log_start and found.by_offset.get(offset) != number
        }
        if self.harmed:
            # Some were deleted. Nothing else has taken their place.
            wrong = {offset: pair for offset, pair in wrong.items() if pair[1] is not None}
        else:
            assert found.holes == []
        assert wrong == {}
        found.check_rows()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are opened again at once."""
    for name in ("_RETRY_MS", "_FULL_RETRY_MS", "_MOST_RETRY_MS"):
        monkeypatch.setattr(recovery, name, 1)


@pytest.mark.parametrize("journal", [False, True], ids=["", "journal"])
@pytest.mark.usefixtures("quick")
def test_a_log_is_what_was_acknowledged(shared_valkey: RedisServer, journal: bool) -> None:
    machine = type("Machine", (LogMachine,), {"url": shared_valkey.url, "journal": journal})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
