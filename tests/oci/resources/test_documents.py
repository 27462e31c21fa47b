"""Changes of the documents, one at a time."""

import asyncio
import inspect

from tests.harness.memory import MemoryStorage

from headrace.oci.resources.documents import Documents
from headrace.oci.settings import OciSettings
from headrace.testing.clock import ManualClock


async def test_a_change_whose_turn_never_comes_is_closed() -> None:
    documents = Documents(MemoryStorage().documents, OciSettings.of({}), ManualClock())
    others = asyncio.all_tasks()
    turn = asyncio.Event()

    async def change() -> None:
        await turn.wait()

    first, second = change(), change()
    asking = [asyncio.create_task(documents.exclusively(each)) for each in (first, second)]
    for _ in range(3):
        await asyncio.sleep(0)
    # As at the end of the loop.
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await asyncio.wait(asking)
    await asyncio.sleep(0)
    assert [inspect.getcoroutinestate(each) for each in (first, second)] == [inspect.CORO_CLOSED] * 2
