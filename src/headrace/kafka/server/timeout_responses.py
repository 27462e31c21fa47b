"""Answers that a request takes too long, in the form in which its API refuses."""

from collections.abc import Iterable, Reversible
from copy import copy
from typing import Any

import msgspec

from headrace.kafka.denied import No, Place, Refused, drained
from headrace.kafka.server.registry import Api
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import LEAST_MS, MESSAGE, Bound


class _Everything(Refused):
    """Whatever a request names is refused for one reason."""

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
    """What becomes of a request of one API that is waited for no longer; see `Late`."""

    api: Api
    bound: Bound
    """That of the API."""
    request: Any

    @property
    def stays(self) -> bool:
        """As `Late.stays`."""
        return self.bound.stays

    def due_ms(self, context: RequestContext) -> int | None:
        """As `Late.due_ms`."""
        return self.bound.due_ms(self.request, context)

    def answer(self, context: RequestContext) -> None:
        """Answer that it takes too long."""
        # Its handler goes on with the request: what is taken out is a copy's.
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
    """Those that storage has left waiting for too long, in order; those that are new are seen from `now_ms` (ticks) on.

    `waiting`: of one connection, in the order in which they came.
    """
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
