"""Responses of one connection, in request order.

Unsent bytes count against the broker's read budget.
"""

import asyncio
from time import perf_counter
from typing import Any

import structlog

from headrace.broker.runtime.budget import ReadBudget
from headrace.kafka.server.in_flight_requests import PRODUCE, InFlightRequests
from headrace.kafka.server.memory_pool import MemoryPool
from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext
from headrace.metrics.counters import TICKS, ListenerCounters
from headrace.security.tls import handshakes

_log = structlog.get_logger("headrace.kafka.server")

_SMALL = 2_048
"""Chunks below this number of bytes are joined before the write."""


def write(transport: asyncio.Transport, chunks: list[Any]) -> None:
    """Write the chunks of due responses."""
    if len(chunks) == 1:
        chunk = chunks[0]
        if len(chunk) <= handshakes.PIECE:  # usual
            transport.write(chunk)
        else:
            handshakes.write(transport, chunk)
    elif chunks:
        size = sum(map(len, chunks))
        if size < _SMALL:
            transport.write(b"".join(chunks))
        elif size > handshakes.PIECE and handshakes.in_pieces(transport, size):
            for chunk in _coalesce(chunks):
                handshakes.write(transport, chunk)
        else:
            transport.writelines(_coalesce(chunks))


def _coalesce(chunks: list[Any]) -> list[Any]:
    out: list[Any] = []
    small: list[Any] = []
    for chunk in chunks:
        if len(chunk) < _SMALL:
            small.append(chunk)
            continue
        if small:
            out.append(small[0] if len(small) == 1 else b"".join(small))
            small = []
        out.append(chunk)
    if small:
        out.append(small[0] if len(small) == 1 else b"".join(small))
    return out


UNWRITTEN = 64 << 10
"""Bytes not taken by the kernel from which a client counts as not reading."""


class Answers:
    """Due and unsent responses."""

    __slots__ = ("_counted", "_logs_requests", "_memory", "_order", "held")

    def __init__(
        self, order: InFlightRequests, memory: MemoryPool, counted: ListenerCounters, *, logs_requests: bool
    ) -> None:
        self._order = order
        self._memory = memory
        self._counted = counted
        self._logs_requests = logs_requests
        self.held = 0
        """Bytes of the broker's read budget held by unsent responses."""

    def leave(self, transport: asyncio.Transport, reads: ReadBudget) -> bool:
        """Write due responses, or return False if the client reads too little."""
        out: list[Any] = []
        order = self._order
        waiting = order.waiting
        apis = self._counted.apis
        now = perf_counter()
        served = held = answered = 0
        while waiting and waiting[0].done:
            context = waiting.popleft()
            served += context.size
            if not context.kept:  # otherwise `ended` releases it
                held += context.held
            answered += context.answered
            out += context.chunks
            context.chunks = []
            # As `Durations.add`, without the call.
            api = apis[context.api_key]
            took = int((now - context.began - context.waited) * TICKS)
            api.ticks += took
            api.slots[took.bit_length()] += 1
            if self._logs_requests:
                log_answered(context, now)
        order.due_bytes -= answered
        order.waiting_bytes -= served
        self._memory.free(served)
        write(transport, out)
        if order.write_paused:
            return self._hold(reads, held, answered)
        if held:
            reads.release(held)
        return True

    def _hold(self, reads: ReadBudget, held: int, answered: int) -> bool:
        more = max(0, answered - held)
        reads.take(more)
        self.held += held + more
        return more <= UNWRITTEN or reads.used <= reads.limit

    def taken(self, reads: ReadBudget) -> None:
        """Release the budget."""
        held, self.held = self.held, 0
        if held:
            reads.release(held)

    def drop(self, reads: ReadBudget) -> None:
        """Drop the responses of a lost client.

        Requests in storage stay counted, or reconnecting clients could exhaust the memory.
        """
        held, self.held = self.held, 0
        order = self._order
        for context in order.waiting:
            if not context.kept:
                held += context.held
            self._memory.settle(context)
            self._memory.unpark(context)
            if context.cancel is not None:
                context.cancel()
            elif not context.done and (context.api_key == PRODUCE or context.stays):
                context.done = True
                order.keep(context)
        order.waiting.clear()
        reads.release(held)
        free, order.waiting_bytes = order.waiting_bytes - order.kept_bytes, order.kept_bytes
        self._memory.free(free)


def log_answered(context: RequestContext, now: float) -> None:
    """Log an answered request; `now` as `RequestContext.began`."""
    _log.debug(
        "request",
        api=APIS[context.api_key].name,
        version=context.version,
        request=context.correlation_id,
        client=context.channel.client_host,
        client_id=context.client_id,
        bytes=context.size or context.kept,
        ms=round((now - context.began) * 1000, 3),
    )
