"""The answers of one connection as they leave: in the order of its requests, counted while its client takes none.

What has left is the client's. What the kernel did not take counts against the broker's budget for reads, so that
clients which ask and never read cannot fill the memory with answers.
"""

import asyncio
from time import perf_counter
from typing import Any

import structlog

from headrace.broker.runtime.budget import ReadBudget
from headrace.kafka.server.memory_pool import MemoryPool
from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.request_scheduler import PRODUCE, Order
from headrace.metrics.counters import TICKS, ListenerCounters
from headrace.security.tls import handshakes

_log = structlog.get_logger("headrace.kafka.server")

_SMALL = 2_048
"""Chunks below so many bytes are joined before they are written."""


def write(transport: asyncio.Transport, chunks: list[Any]) -> None:
    """Write the chunks of the answers that are due, in one go."""
    if len(chunks) == 1:
        chunk = chunks[0]
        if len(chunk) <= handshakes.PIECE:  # as nearly all are
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
    """Join neighbouring small chunks, so that a vectored write has few entries; large ones pass uncopied."""
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
"""Bytes that the kernel did not take at once before the client counts as one that does not read."""


class Answers:
    """Those that are due, and those that were written and not taken."""

    __slots__ = ("_counted", "_logs_requests", "_memory", "_order", "held")

    def __init__(self, order: Order, memory: MemoryPool, counted: ListenerCounters, *, logs_requests: bool) -> None:
        """None is due.

        Args:
            order: the connection's requests.
            memory: what they are counted in.
            counted: what the listener's connections count together.
            logs_requests: whether each request has a line in the log.
        """
        self._order = order
        self._memory = memory
        self._counted = counted
        self._logs_requests = logs_requests
        self.held = 0
        """Bytes of the broker's budget for reads, by answers that the client has not taken."""

    def leave(self, transport: asyncio.Transport, reads: ReadBudget) -> bool:
        """Write what is due; False: the client has taken too little for too long, and is to be dropped."""
        out: list[Any] = []
        order = self._order
        waiting = order.waiting
        apis = self._counted.apis
        now = perf_counter()
        served = held = answered = 0
        while waiting and waiting[0].done:
            context = waiting.popleft()
            served += context.size
            if not context.kept:  # else `ended` gives it back
                held += context.held
            answered += context.answered
            out += context.chunks
            context.chunks = []
            # As `Durations.add`, without the call.
            api = apis[context.api_key]
            took = int((now - context.began) * TICKS)
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
        """Count answers that the client does not take, small ones too; so many bytes of them are `held` already."""
        more = max(0, answered - held)
        reads.take(more)
        self.held += held + more
        return more <= UNWRITTEN or reads.used <= reads.limit

    def taken(self, reads: ReadBudget) -> None:
        """The client has taken all that was written."""
        held, self.held = self.held, 0
        if held:
            reads.release(held)

    def drop(self, reads: ReadBudget) -> None:
        """The client is gone: nothing leaves any more, and nobody waits for what is under way.

        What storage was given keeps its memory: else clients that come again and again would fill it with that.
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
    """A request was answered; `now` as `RequestContext.began`."""
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
