import asyncio
import threading

from headrace.broker.coordinator.assignments import Assignments
from headrace.groups.consumers.events import Assign, Assigned
from headrace.groups.consumers.target import Targets

ASSIGN = Assign(
    assignor="uniform",
    members={"A": frozenset({"t"}), "B": frozenset({"t"})},
    partitions={"t": 2},
    owners={},
    targets={},
    instances={},
)


async def computed(assignments: Assignments, assign: Assign = ASSIGN) -> Assigned:
    """The result."""
    done: asyncio.Future[Assigned] = asyncio.get_running_loop().create_future()
    assignments.begin(assign, done.set_result)
    return await done


async def test_a_target_is_computed() -> None:
    assignments = Assignments()
    result = await computed(assignments)
    assert result.assign is ASSIGN
    assert result.targets == {"A": {"t": [0]}, "B": {"t": [1]}}
    await assignments.stop()


async def test_the_event_loop_continues() -> None:
    released = threading.Event()

    def compute(_: Assign) -> Targets:
        assert released.wait(10)
        return {}

    assignments = Assignments(compute)
    computing = asyncio.get_running_loop().create_task(computed(assignments))
    await asyncio.sleep(0)
    released.set()
    assert (await computing).targets == {}
    await assignments.stop()


async def test_a_failure_is_reported() -> None:
    def compute(_: Assign) -> Targets:
        raise ValueError("no")

    assignments = Assignments(compute)
    assert (await computed(assignments)).targets is None
    await assignments.stop()


async def test_stopping_leaves_nothing_behind() -> None:
    released = threading.Event()
    results: list[Assigned] = []

    def compute(_: Assign) -> Targets:
        assert released.wait(10)
        return {}

    assignments = Assignments(compute)
    for _ in range(2):
        assignments.begin(ASSIGN, results.append)
    await asyncio.sleep(0)
    threading.Timer(0.01, released.set).start()
    await assignments.stop()
    assert results == []
