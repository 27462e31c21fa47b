"""Restriction of a listener to fewer APIs.

Withheld APIs are not advertised, and a request for one closes the connection. Other APIs can refuse parts of requests.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.kafka.denied import No, Place, Refused, drained
from headrace.kafka.server.registry import APIS, Api
from headrace.kafka.server.request_context import RequestContext

FindParts = Callable[[Any, RequestContext], Iterable[tuple[Place, No]]]
"""Finds the refused parts of a request."""


class Restriction(msgspec.Struct, frozen=True, kw_only=True):
    """Restriction of a listener."""

    reason: str
    """Setting that causes the restriction, for the log."""
    withheld: frozenset[int]
    """Keys of the withheld APIs."""
    parts: Mapping[int, FindParts]
    """API key -> function that finds refused parts of a request."""

    def served(self) -> dict[int, Api]:
        """Return the remaining APIs."""
        return {key: self._restricted(api) for key, api in APIS.items() if key not in self.withheld}

    def _restricted(self, api: Api) -> Api:
        find = self.parts.get(api.key)
        return api if find is None else msgspec.structs.replace(api, handler=_without_parts(api, find))


def _without_parts(api: Api, find: FindParts) -> Callable[[Any, RequestContext], Coroutine[Any, Any, Any] | None]:
    def handle(request: Any, context: RequestContext) -> Coroutine[Any, Any, Any] | None:
        refused = Refused(find(request, context))
        if refused:
            rest = drained(api.take_out(request, context, refused))
            if rest.answer is not None:
                context.answer(rest.answer)
                return None
            if rest.add is not None:
                _amend(context, rest.add)
        return api.handler(request, context)

    return handle


def _amend(context: RequestContext, add: Callable[[Any], None]) -> None:
    before = context.amend

    def amend(response: Any) -> Iterator[None]:
        if before is not None:
            yield from before(response)
        add(response)
        yield

    context.amend = amend
