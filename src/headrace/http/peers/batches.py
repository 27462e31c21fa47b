"""Requests to one broker in batches.

The requests of one turn of the event loop go out together. While several batches are on their way, later ones grow.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.aio.tasks import unheard
from headrace.topics.errors import StorageUnavailable

Q = TypeVar("Q")
A = TypeVar("A")

MOST_ITEMS = 500
"""Maximum items of a batch."""
MOST_BYTES = 512 << 10
"""Maximum bytes of a batch. A single item may be larger."""
_MOST_WAITING_BYTES = 16 << 20
"""Maximum bytes of items that wait. More are rejected."""
_AT_ONCE = 4
"""Batches without a response."""


class _Waiting(NamedTuple, Generic[Q, A]):
    item: Q
    size: int
    answer: "asyncio.Future[A]"


class Batches(Generic[Q, A]):
    """Batches of one kind to one broker."""

    def __init__(self, send: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], size_of: Callable[[Q], int]) -> None:
        """`send` returns an answer for each item, or raises StorageUnavailable. `size_of`: bytes of an item."""
        self._send = send
        self._size_of = size_of
        self._waiting: deque[_Waiting[Q, A]] = deque()
        self._waiting_bytes = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def ask(self, item: Q) -> A:
        """Send an item with others, and return its answer. Raises StorageUnavailable."""
        size = self._size_of(item)
        if self._waiting and self._waiting_bytes + size > _MOST_WAITING_BYTES:
            raise StorageUnavailable("too many requests wait for another broker")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append(_Waiting(item, size, answer))
        self._waiting_bytes += size
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        return await answer

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._sending) < _AT_ONCE:
            batch = self._next_batch()
            if not batch:
                continue
            task = asyncio.get_running_loop().create_task(self._deliver(batch), name="batch to a broker")
            unheard(task)
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _next_batch(self) -> list[_Waiting[Q, A]]:
        """Return the oldest items that fit, without abandoned ones."""
        batch: list[_Waiting[Q, A]] = []
        size = 0
        while self._waiting and len(batch) < MOST_ITEMS:
            first = self._waiting[0]
            if batch and size + first.size > MOST_BYTES:
                break
            self._waiting.popleft()
            self._waiting_bytes -= first.size
            if not first.answer.done():
                batch.append(first)
                size += first.size
        return batch

    async def _deliver(self, batch: list[_Waiting[Q, A]]) -> None:
        try:
            answers = await self._send([each.item for each in batch])
        except BaseException as error:
            known = isinstance(error, StorageUnavailable)
            failure = error if known else StorageUnavailable(f"the request to another broker failed: {error!r}")
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(failure)
            if not known:
                raise
            return
        for each, answer in zip(batch, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        self._flush()

    def close(self) -> None:
        """Reject all items."""
        for each in self._waiting:
            if not each.answer.done():
                each.answer.set_exception(StorageUnavailable("the server stops"))
        self._waiting.clear()
        self._waiting_bytes = 0
        for task in tuple(self._sending):
            task.cancel()
