"""Operations that Redis leaves unanswered."""

import asyncio
import inspect

import pytest

from headrace.oci.api import timeouts
from headrace.oci.api.timeouts import Unanswered
from headrace.oci.errors import OciError


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "MOST_S", 0.001)


async def test_it_continues_and_its_client_gets_a_retriable_error() -> None:
    waiting, answered, ended = Unanswered(), asyncio.Event(), asyncio.Event()

    async def operation() -> None:
        await answered.wait()
        ended.set()

    with pytest.raises(OciError, match="still under way") as refused:
        await waiting.wait(operation(), 10)
    assert refused.value.status == 503
    answered.set()
    await ended.wait()


async def test_a_completed_answer_is_returned_unchanged() -> None:
    async def fails() -> None:
        raise OciError(409, "it is there")

    async def done() -> int:
        return 7

    assert await Unanswered().wait(done(), 0) == 7
    with pytest.raises(OciError, match="it is there"):
        await Unanswered().wait(fails(), 0)


@pytest.mark.parametrize("bound", ["MOST_LEFT", "MOST_BYTES"])
async def test_no_other_begins_while_too_much_goes_on(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(timeouts, bound, 1)
    waiting, answered = Unanswered(), asyncio.Event()

    async def operation() -> None:
        await answered.wait()
        raise ValueError("which nobody hears")

    with pytest.raises(OciError, match="still under way"):
        await waiting.wait(operation(), 10)
    second = operation()
    with pytest.raises(OciError, match="nothing was done"):
        await waiting.wait(second, 10)
    assert inspect.getcoroutinestate(second) == inspect.CORO_CLOSED
    answered.set()
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="nobody hears"):
        await waiting.wait(operation(), 10)


async def test_it_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "MOST_S", 60)
    ended = asyncio.Event()

    async def operation() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asking = asyncio.create_task(Unanswered().wait(operation(), 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    await ended.wait()
