"""What listeners refuse of the registered APIs, in order to behave like an endpoint that supports less.

A restriction is applied to the registrations once, when a listener is made: an API that it withholds is not advertised,
and a request of it ends the connection, as of any API that a broker does not support. Of the other APIs, it can refuse
parts of requests. No handler knows about it.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.kafka.denied import No, Place, Refused, drained
from headrace.kafka.server.registry import APIS, Api
from headrace.kafka.server.request_context import RequestContext

FindParts = Callable[[Any, RequestContext], Iterable[tuple[Place, No]]]
"""Finds what to refuse in a request."""


class Restriction(msgspec.Struct, frozen=True, kw_only=True):
    """What is refused."""

    reason: str
    """The setting that asks for it, for the log."""
    withheld: frozenset[int]
    """Keys of the APIs that are not served."""
    parts: Mapping[int, FindParts]
    """API key -> finds the parts of a request that are refused."""

    def served(self) -> dict[int, Api]:
        """Return the registered APIs without what is refused."""
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
    """Add the refused parts to the answer, after what is added to it or hidden of it for its principal."""
    before = context.amend

    def amend(response: Any) -> Iterator[None]:
        if before is not None:
            yield from before(response)
        add(response)
        yield

    context.amend = amend
