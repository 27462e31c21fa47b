"""Requests of one connection that were put off: they are counted for as long as they wait.

Kafka goes on with what it has received of a client that has left, until it would have to answer: with acks=0 producers
leave as soon as all is sent. So do we, and over what was to be answered.
"""

from collections.abc import Iterable

from headrace.kafka.server.memory_pool import SMALL_BYTES, MemoryPool
from headrace.kafka.server.request_scheduler import Order


class DeferredRequests:
    """Their bytes, in the memory of all connections."""

    __slots__ = ("_bytes", "_memory", "_order", "left")

    def __init__(self, order: Order, memory: MemoryPool) -> None:
        """Nothing was put off. `order` has them, and tells when one has its turn."""
        self._order = order
        self._memory = memory
        self._bytes = 0
        self.left = False
        """Whether the client has left: what it wants no answer to is served all the same."""

    def add(self, frame: memoryview, now_ms: int, *, owned: bool) -> bool:
        """Put a request off; False: too much waits ahead of requests that are held.

        `now_ms`: the time (ticks); `owned`: its memory is its own.
        """
        order, memory = self._order, self._memory
        order.put_off.append((frame if owned else memoryview(bytearray(frame)), now_ms))
        self._bytes += len(frame)
        memory.add(len(frame))
        memory.parked += order.park_ahead(len(frame))
        return order.ahead <= SMALL_BYTES or not memory.many_parked

    def may_hear(self, now_ms: int) -> bool:
        """As `Order.may_hear`, if those put off are few."""
        return self._bytes <= SMALL_BYTES and not self._memory.full and self._order.may_hear(now_ms)

    def take(self) -> tuple[int, memoryview, int] | None:
        """As `Order.take`: it is not counted here any more."""
        taken = self._order.take()
        if taken is not None:
            size = len(taken[1])
            self._bytes -= size
            self._memory.free(size)
            self._memory.parked -= self._order.unpark_ahead(size)
        return taken

    def leave(self) -> None:
        """The client has left: only Produce requests may be such as want no answer.

        Where the memory is used up none stays: clients that come and leave would fill it beyond all bounds.
        """
        if self._memory.full:
            self.drop()
        else:
            self.left = True
            self._let_go(self._order.leave())

    def drop(self) -> None:
        """Serve none of them any more."""
        self.left = False
        frames = [frame for frame, _ in self._order.put_off]
        self._order.put_off.clear()
        self._let_go(frames)

    def _let_go(self, frames: Iterable[memoryview]) -> None:
        self._memory.parked -= self._order.unpark_ahead(self._order.ahead)
        size = sum(map(len, frames))
        self._bytes -= size
        self._memory.free(size)
