"""The coordinator's runtime on a machine that is no group: a counter that is reserved for a while."""

import asyncio
from collections.abc import Hashable

import msgspec
import pytest
from tests.harness.waiting import until

from headrace.broker.coordinator.runtime import AT_ONCE, Firing, Runner
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.machines.effects import CancelTimer, Effect, Now, Persist, Reply, SetTimer
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable

LEASE_MS = 1_000


class Add(msgspec.Struct, frozen=True):
    token: Hashable
    number: int


class Expire(msgspec.Struct, frozen=True):
    name: str


Event = Add | Expire


class Counter:
    """The state machine: a sum that is forgotten after a second without additions."""

    def __init__(self, total: int) -> None:
        self.total = total

    def handle(self, event: Event, now: Now) -> list[Effect[int, str, int | str]]:
        if isinstance(event, Expire):
            self.total = 0
            return [Persist((0,)), CancelTimer(event.name)]
        self.total += event.number
        timer: SetTimer[str] = SetTimer("lease", now.ticks_ms + LEASE_MS)
        return [Persist((self.total,)), timer, Reply(event.token, self.total)] if event.number else [Reply(0, "none")]


class Host:
    """A coordinator of counters."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lane = CooperativeScheduler()
        self.firing = Firing()
        self.doubted_ms: int | None = None
        self.settled_names: list[str] = []

    def in_doubt(self) -> bool:
        return False

    def settled(self, runner: "CounterRunner") -> None:
        self.settled_names.append(runner.name)


class CounterRunner(Runner[Event, int | str, int, str]):
    def __init__(self, host: Host) -> None:
        super().__init__("c", host, None)
        self._clock = host.clock
        self.written: list[tuple[tuple[int, ...], bool]] = []
        self.durable = 0
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.refuse = False
        self.begin()

    def restore(self) -> list[Effect[int, str, int | str]]:
        self.machine = Counter(self.durable)
        return [SetTimer("lease", self._clock.ticks_ms() + LEASE_MS)] if self.durable else []

    def handle(self, event: Event, arrived_ms: int) -> list[Effect[int, str, int | str]]:
        return self.machine.handle(event, Now(self._clock.now_ms(), self._clock.ticks_ms()))

    def fired(self, key: str) -> Event:
        return Expire(key)

    def refusal(self, request: Event, reason: str) -> int | str:
        return "moved" if self.moved else f"again: {reason}"

    async def store(self, changes: tuple[int, ...], *, everything: bool) -> None:
        await self.may_write.wait()
        if self.refuse:
            raise StorageUnavailable("away")
        self.written.append((changes, everything))

    def stored(self, changes: tuple[int, ...]) -> None:
        self.durable = changes[-1]


@pytest.fixture
def host(clock: ManualClock) -> Host:
    return Host(clock)


@pytest.fixture
async def runner(host: Host) -> CounterRunner:
    return CounterRunner(host)


def add(runner: CounterRunner, number: int, token: str = "t") -> "asyncio.Future[int | str]":
    return runner.submit(token, Add(token, number))


async def test_a_reply_comes_after_what_it_promises_is_durable_and_before_the_next_event(runner: CounterRunner) -> None:
    runner.may_write.clear()
    first, second = add(runner, 1, "a"), add(runner, 2, "b")
    await asyncio.sleep(0)
    assert not first.done()
    assert runner.writing_since_ms is not None
    assert runner.machine.total == 1, "the second event waits for the write of the first"
    runner.may_write.set()
    assert [await first, await second] == [1, 3]
    assert runner.written == [((1,), False), ((3,), False)]
    assert runner.writing_since_ms is None


async def test_a_refused_write_sends_the_machine_back_and_the_next_one_says_everything(
    runner: CounterRunner, host: Host
) -> None:
    assert await add(runner, 5) == 5
    runner.refuse = True
    waiting = add(runner, 2, "a"), add(runner, 3, "b")
    assert [await each for each in waiting] == ["again: away"] * 2
    assert runner.machine.total == 5
    runner.refuse = False
    assert await add(runner, 1) == 6
    assert runner.written[-1] == ((6,), True)
    assert await add(runner, 1) == 7
    assert runner.written[-1] == ((7,), False)
    assert set(host.settled_names) == {"c"}


async def test_a_timer_is_an_event_and_a_write_moves_it(runner: CounterRunner, clock: ManualClock) -> None:
    assert await add(runner, 5) == 5
    clock.advance(LEASE_MS - 1)
    assert await add(runner, 5) == 10
    clock.advance(LEASE_MS - 1)
    assert runner.machine.total == 10
    assert runner.busy
    clock.advance(1)
    await until(lambda: runner.durable == 0)
    assert not runner.busy


async def test_due_work_waits_a_second_after_a_refusal(runner: CounterRunner, clock: ManualClock) -> None:
    assert await add(runner, 5) == 5
    runner.refuse = True
    clock.advance(LEASE_MS)
    await until(lambda: runner.writing_since_ms is None)
    runner.refuse = False
    clock.advance(LEASE_MS - 1)
    assert runner.durable == 5
    clock.advance(1)
    await until(lambda: runner.durable == 0)


@pytest.mark.parametrize("moved", [True, False])
async def test_its_end_refuses_every_request_that_waits_and_those_after(runner: CounterRunner, *, moved: bool) -> None:
    runner.may_write.clear()
    waiting = add(runner, 1)
    if moved:
        runner.hand_over()
        runner.may_write.set()
    else:
        closing = asyncio.create_task(runner.close())
        await asyncio.sleep(0)
        assert not closing.done(), "a write is under way"
        runner.may_write.set()
        await closing
    refused = "moved" if moved else "again: "
    assert await waiting == refused
    assert await add(runner, 1) == refused
    assert runner.closed


class Many(CounterRunner):
    """One event that answers everyone."""

    def handle(self, event: Event, arrived_ms: int) -> list[Effect[int, str, int | str]]:
        assert isinstance(event, Add)
        return [Reply(number, number) for number in range(event.number)] if event.number > 1 else []


async def test_many_replies_take_several_turns_of_the_loop(host: Host) -> None:
    runner = Many(host)
    waiting = [runner.submit(number, Add(number, 1)) for number in range(3 * AT_ONCE)]
    runner.post(Add("all", len(waiting)))
    assert [each.done() for each in waiting] == [True] * AT_ONCE + [False] * 2 * AT_ONCE
    assert await asyncio.gather(*waiting) == list(range(len(waiting)))
