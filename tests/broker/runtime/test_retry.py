"""What is tried again while storage is away."""

import asyncio

import pytest

from headrace.broker.runtime.retry import PATIENCE_S, retry_while_unavailable
from headrace.topics.errors import LockLost, StorageUnavailable


async def test_a_step_is_made_again_once_storage_is_back() -> None:
    tries = 0

    async def step() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StorageUnavailable("away")
        return "done"

    assert await retry_while_unavailable(step) == "done"


async def test_slow_failures_do_not_prolong_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that hangs fails a step only when its connection is given up, seconds later."""
    loop = asyncio.get_running_loop()
    time, passed = loop.time, 0.0

    async def step() -> None:
        nonlocal passed
        passed += 3
        raise StorageUnavailable("away")

    monkeypatch.setattr(loop, "time", lambda: time() + passed)
    with pytest.raises(StorageUnavailable):
        await retry_while_unavailable(step)
    assert passed < PATIENCE_S + 3


async def test_a_lost_lock_ends_it_at_once() -> None:
    tries = 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        raise LockLost("nothing was written")

    with pytest.raises(LockLost):
        await retry_while_unavailable(step)
    assert tries == 1
