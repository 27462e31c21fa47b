"""The lane that long work takes: one slice in some turns of the loop, or several pieces that are short together."""

import asyncio

import pytest

from headrace.broker.runtime.scheduler import CooperativeScheduler


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows."""
    time = [1.0]
    monkeypatch.setattr("headrace.broker.runtime.scheduler.perf_counter", lambda: time[0])
    return time


async def test_short_pieces_go_together(now: list[float]) -> None:
    lane, done = CooperativeScheduler(), []
    for number in range(10):
        lane.later(lambda number=number: done.append(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    assert done == list(range(10))


async def test_long_ones_have_a_turn_each_and_leave_some_to_others(now: list[float]) -> None:
    lane, done = CooperativeScheduler(), []
    seen = []

    def work(number: int) -> None:
        now[0] += 0.004
        done.append(number)

    for number in range(3):
        lane.later(lambda number=number: work(number))  # type: ignore[misc]
    while len(done) < 3:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert seen == [1, 1, 1, 1, 2, 2, 2, 2, 3]


async def test_where_others_have_long_turns_it_leaves_them_none(now: list[float]) -> None:
    lane, done = CooperativeScheduler(), []

    def work(number: int) -> None:
        now[0] += 0.01
        done.append(number)

    for number in range(3):
        lane.later(lambda number=number: work(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    assert done == [0]
    lane.begin_turn(now[0])
    now[0] += 0.01
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [0, 1]


async def test_of_those_that_wait_for_a_turn_one_goes_on_in_each(now: list[float]) -> None:
    lane, done = CooperativeScheduler(), []

    async def work(number: int) -> None:
        await lane.turn()
        done.append(number)

    tasks = [asyncio.ensure_future(work(number)) for number in range(3)]
    seen = []
    while len(done) < 3:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert {1, 2} <= set(seen)
    await asyncio.gather(*tasks)


async def test_one_that_fails_keeps_no_other_waiting(now: list[float]) -> None:
    lane, done = CooperativeScheduler(), []
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    lane.later(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    lane.later(lambda: done.append(1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert done == [1]
    assert len(failed) == 1


async def test_a_turn_of_the_loop_begins_with_its_first_request() -> None:
    lane = CooperativeScheduler()
    lane.begin_turn(5.0)
    assert lane.turn_began == 5.0
    await asyncio.sleep(0)
    assert lane.turn_began == 0


async def test_the_busier_the_server_the_longer_is_a_turn(now: list[float]) -> None:
    """Else what is not urgent would have next to nothing of its time."""
    lane, done = CooperativeScheduler(), []

    def work() -> None:
        now[0] += 1 / 1024  # exact
        done.append(1)

    for _ in range(30):
        lane.later(work)
    await asyncio.sleep(0)
    idle = len(done)
    lane.begin_turn(now[0])
    now[0] += 0.04
    await asyncio.sleep(0)  # the lane's turn comes before this one is known to be over
    await asyncio.sleep(0)
    assert (idle, len(done)) == (3, 3 + 11)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(done) == 3 + 11 + 3


async def test_no_turn_is_longer_than_a_few_slices(now: list[float]) -> None:
    lane, done = CooperativeScheduler(), []

    def work() -> None:
        now[0] += 1 / 1024  # exact
        done.append(1)

    lane.begin_turn(now[0])
    now[0] += 5.0
    for _ in range(100):
        lane.later(work)
    await asyncio.sleep(0)
    assert len(done) == 21


async def test_however_many_begin_in_one_turn_they_take_some_slices_together(now: list[float]) -> None:
    """Hundreds of clients may ask for something long at once."""
    lane, done = CooperativeScheduler(), []

    async def work(number: int) -> None:
        async for _ in lane.pace().each(range(1)):
            now[0] += 0.004
            done.append(number)

    tasks = [asyncio.ensure_future(work(number)) for number in range(50)]
    await asyncio.sleep(0)
    assert len(done) == 5
    # The others wait for their turn, and who comes now has a slice again.
    late = asyncio.ensure_future(work(-1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert -1 in done
    assert len(done) < 10
    await asyncio.gather(*tasks, late)
    assert len(done) == 51


async def test_hundreds_of_long_requests_have_a_bounded_number_of_questions_open() -> None:
    """When their clients disconnect, all of them are cancelled in one turn of the loop."""
    lane, release = CooperativeScheduler(), asyncio.Event()
    open_now, most = 0, 0

    async def ask(item: int) -> int:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            await release.wait()
        finally:
            open_now -= 1
        return item

    async def request() -> list[int]:
        return [answer async for _, answer in lane.a_few_at_once(range(120), ask)]

    requests = [asyncio.ensure_future(request()) for _ in range(300)]
    while open_now < 800:
        await asyncio.sleep(0)
    # A short one waits for none of them.
    short = asyncio.ensure_future(lane.a_few_at_once([7], ask).__anext__())
    for _ in range(100):
        await asyncio.sleep(0)
    assert open_now == 801
    for each in requests[1:]:
        each.cancel()
    release.set()
    assert await short == (7, 7)
    assert await requests[0] == list(range(120))
    assert most == 801
    await asyncio.gather(*requests[1:], return_exceptions=True)
    assert open_now == 0
