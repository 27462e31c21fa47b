"""Authorization of Kafka requests."""

from collections.abc import Coroutine, Iterator
from typing import Any

from headrace.broker.admin.acl_authorizer import Grants
from headrace.kafka.denied import Refused, Rest, Steps
from headrace.kafka.server.registry import SHORTCUTS, Api, Served
from headrace.kafka.server.request_context import RequestContext

_LONG = 16 << 10
"""Longer requests are authorized in pieces: they may name thousands of resources."""


def may(context: Served, grants: Grants) -> bool:
    """Return whether a simple request is fully authorized."""
    for rule in SHORTCUTS[context.api_key].needs:
        known = grants.known(rule)
        for name in rule.names(context, context):
            granted = known.get(name)
            if not (grants.look_up(rule, name) if granted is None else granted):
                return False
    return True


def serve(api: Api, request: Any, context: RequestContext, grants: Grants) -> Coroutine[Any, Any, Any] | None:
    """Call the handler with the authorized part of a request."""
    if context.size > _LONG and (api.keep is None or api.keep(request, context)):
        return _serve_long(api, request, context, grants)
    refused = None
    for rule in api.needs:
        known = grants.known(rule)
        for name in rule.names(request, context):
            granted = known.get(name)
            if not (grants.look_up(rule, name) if granted is None else granted):
                refused = refused or Refused()
                refused.add(rule, name, context.principal)
    if refused is None:
        if api.refusal is not None and api.refusal.hide is not None:
            _amend(api, context, grants, Rest())
        return api.handler(request, context)
    _tell(api, context, refused)
    taking = _Taking(api.take_out(request, context, refused))
    for _ in taking:
        pass
    rest = taking.rest
    if rest.answer is not None:
        context.answer(rest.answer)
        return None
    _amend(api, context, grants, rest)
    return api.handler(request, context)


async def _serve_long(api: Api, request: Any, context: RequestContext, grants: Grants) -> Any:
    pace = context.pace()
    refused = Refused()
    for rule in api.needs:
        async for name in pace.each(rule.names(request, context)):
            if not grants.allow(rule, name):
                refused.add(rule, name, context.principal)
    rest = Rest()
    if refused:
        _tell(api, context, refused)
        taking = _Taking(api.take_out(request, context, refused))
        await pace.drain(taking)
        rest = taking.rest
    if rest.answer is not None:
        return rest.answer
    _amend(api, context, grants, rest)
    later = api.handler(request, context)
    return None if later is None else await later


def _tell(api: Api, context: RequestContext, refused: Refused) -> None:
    first = next(iter(refused.values()))
    context.broker.access.audit.refused(
        str(context.principal),
        context.channel.client_host,
        refused.reason,
        first.message,
        api=api.name,
        request=context.correlation_id,
        parts=len(refused),
    )


class _Taking:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.rest = Rest()

    def __iter__(self) -> Iterator[None]:
        self.rest = yield from self._steps


def _amend(api: Api, context: RequestContext, grants: Grants, rest: Rest) -> None:
    hide = None if api.refusal is None else api.refusal.hide
    if hide is None and rest.add is None:
        return

    def amend(response: Any) -> Iterator[None]:
        if hide is not None:
            yield from hide(response, context, grants)
        if rest.add is not None:
            rest.add(response)
        yield

    context.amend = amend
