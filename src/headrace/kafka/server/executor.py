"""Requests with many items, each with its own response (`register(..., each=...)`).

The handler returns the function for one item. After a timeout, no more items are started. An item that raises gets an
error code.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from types import CoroutineType
from typing import Any

import msgspec

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.kafka.denied import No, Place, Refused, Steps, parts
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import RESPONSES
from headrace.security.access.required_acls import CLUSTER_NAME, ResourceType
from headrace.topics.errors import TopicError

AnswerItem = Callable[..., Any]
"""Returns the response to one item, or a coroutine for it. Raises TopicError or RequestError to refuse it."""


def the_cluster(_: Any, __: Any, ___: RequestContext) -> Iterable[Place]:
    """Yield the cluster."""
    yield ResourceType.CLUSTER, CLUSTER_NAME


def with_name(topic: Callable[..., Any]) -> Callable[[Any, list[Any]], Any]:
    """Return a function for `Each.of_topic`, given the class of a topic."""
    return lambda asked, partitions: topic(name=asked.name, partitions=partitions)


class Each(msgspec.Struct, frozen=True):
    """Items of a request, and their responses."""

    field: str | Callable[[Any], Iterable[Any]]
    """Request field with the items, or a function that returns them; a function needs a `refusal`, too."""
    into: str
    """Response field with the items' responses."""
    outcome: Callable[[Any, Code, str | None], Any]
    """Makes the response of a refused item from code and message; also with `NONE` if its function returns nothing."""
    needs: Callable[[Any, Any, RequestContext], Iterable[Place]] = the_cluster
    """As in `kafka.denied.parts`."""
    of_topic: Callable[[Any, list[Any]], Any] | None = None
    """For partitions in a list of topics: makes a topic's response from those of its partitions.

    The function that answers an item gets topic and partition.
    """
    key: Callable[..., Hashable] | None = None
    """Returns the key of an item; takes the arguments of the function that answers one."""
    twice: str = ""
    """Message for a duplicate key, with a placeholder. Empty: the last item replaces the first; not for partitions."""
    begin: Callable[[Any], Any] | None = None
    """Creates the response if it has more fields than the items."""

    def take_out(self, request: Any, context: RequestContext, refused: Refused) -> Steps:
        """Remove refused items from a request."""
        assert isinstance(self.field, str)
        return parts(self.field, self.needs, self._all_refused, self.into)(request, context, refused)

    def _all_refused(self, item: Any, no: No, _: RequestContext) -> Any:
        if self.of_topic is None:
            return self.outcome(item, *no)
        return self.of_topic(item, [self.outcome(asked, *no) for asked in item.partitions])

    def handler(self, decorated: Callable[[Any, RequestContext], Any]) -> Callable[[Any, RequestContext], Any]:
        """Return the handler of an API."""

        async def handle(request: Any, context: RequestContext) -> Any:
            begun = decorated(request, context)
            one = await begun if isinstance(begun, CoroutineType) else begun
            if not callable(one):
                return one
            items = self.field(request) if callable(self.field) else getattr(request, self.field)
            response: Any = RESPONSES[request.API_KEY]() if self.begin is None else self.begin(request)
            setattr(response, self.into, await _Execution(self, context, one).answers(items))
            return response

        return handle


class _Execution:
    def __init__(self, each: Each, context: RequestContext, one: AnswerItem) -> None:
        self._each = each
        self._context = context
        self._one = one
        self._pace: TimeSlice = context.pace()
        self._named: Counter[Hashable] = Counter()

    async def answers(self, items: Iterable[Any]) -> list[Any]:
        of_topic, key = self._each.of_topic, self._each.key
        if key is not None and not self._each.twice:
            items = {key(item): item for item in items}.values()
        elif key is not None:
            await self._count(key, items)
        if of_topic is None:
            return [await self._answer(item) async for item in self._pending(items)]
        return [
            of_topic(topic, [await self._answer(topic, asked) async for asked in self._pending(topic.partitions)])
            async for topic in self._pending(items)
        ]

    async def _count(self, key: Callable[..., Hashable], items: Iterable[Any]) -> None:
        async for item in self._pending(items):
            if self._each.of_topic is None:
                self._named[key(item)] += 1
            else:
                self._named.update([key(item, asked) async for asked in self._pending(item.partitions)])

    async def _pending(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        async for item in self._pace.each(items):
            if self._context.done:
                break
            yield item

    async def _answer(self, *item: Any) -> Any:
        try:
            if self._named and self._each.key is not None and self._named[key := self._each.key(*item)] > 1:
                raise RequestError(Code.INVALID_REQUEST, self._each.twice.format(key))
            made = self._one(*item)
            if isinstance(made, CoroutineType):
                made = await made
        except (TopicError, RequestError) as error:
            return self._each.outcome(item[-1], code_of(error), str(error))
        return self._each.outcome(item[-1], Code.NONE, None) if made is None else made
