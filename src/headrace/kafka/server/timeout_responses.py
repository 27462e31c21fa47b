"""Timeout responses."""

from collections.abc import Iterable, Reversible
from copy import copy
from typing import Any

import msgspec

from headrace.kafka.denied import No, Place, Refused, drained
from headrace.kafka.server.registry import Api
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import LEAST_MS, MESSAGE, Bound


class _Everything(Refused):
    """Refuses each resource for the same reason."""

    def __init__(self, no: No) -> None:
        super().__init__()
        self._no = no

    def first(self, places: Iterable[Place]) -> No | None:
        return self._no

    def get(self, place: Place, default: Any = None) -> No:
        return self._no

    def values(self) -> Any:
        return [self._no]


class TimeoutResponses(msgspec.Struct, eq=False):
    """`Late` of a request of one API."""

    api: Api
    bound: Bound
    """Of the API."""
    request: Any

    @property
    def stays(self) -> bool:
        """See `Late.stays`."""
        return self.bound.stays

    def due_ms(self, context: RequestContext) -> int | None:
        """See `Late.due_ms`."""
        return self.bound.due_ms(self.request, context)

    def answer(self, context: RequestContext) -> None:
        """See `Late.answer`."""
        # The handler continues with the request, so change a copy.
        refused = _Everything(No(self.bound.code_for(self.request), MESSAGE))
        rest = drained(self.api.take_out(copy(self.request), context, refused))
        answer = rest.answer
        if answer is None:
            assert self.api.refusal is not None
            assert self.api.refusal.begin is not None
            assert rest.add is not None
            answer = self.api.refusal.begin(context)
            rest.add(answer)
        context.answer(answer)


def overdue_among(waiting: Reversible[RequestContext], now_ms: int) -> list[RequestContext]:
    """Return overdue requests in order of arrival. New ones start to wait at `now_ms` (ticks)."""
    _see(waiting, now_ms)
    overdue = []
    for context in waiting:
        if now_ms - context.seen_ms < LEAST_MS:
            break
        if not context.done and (due_ms := context.due_ms()) is not None and due_ms <= now_ms:
            overdue.append(context)
    return overdue


def _see(waiting: Reversible[RequestContext], now_ms: int) -> None:
    for context in reversed(waiting):
        if context.seen_ms >= 0:
            break
        context.seen_ms = now_ms
