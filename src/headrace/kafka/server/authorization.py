"""The one place where Kafka's requests are asked about: what of a request its principal may have."""

from collections.abc import Coroutine, Iterator
from typing import Any

from headrace.broker.admin.authorizer import Grants
from headrace.kafka.denied import Refused, Rest, Steps
from headrace.kafka.server.registry import SHORTCUTS, Api, Served
from headrace.kafka.server.request_context import Exchange

_LONG = 16 << 10
"""Bytes of a request from which on it is asked about in pieces: it may name thousands of things."""


def may(exchange: Served, grants: Grants) -> bool:
    """Whether a plain request may have all that it needs; else it is to be read as the message tables say."""
    for rule in SHORTCUTS[exchange.api_key].needs:
        known = grants.known(rule)
        for name in rule.names(exchange, exchange):
            granted = known.get(name)
            if not (grants.look_up(rule, name) if granted is None else granted):
                return False
    return True


def serve(api: Api, request: Any, exchange: Exchange, grants: Grants) -> Coroutine[Any, Any, Any] | None:
    """As the API's handler, with what of the request its principal may have."""
    if exchange.size > _LONG and (api.keep is None or api.keep(request, exchange)):
        return _serve_long(api, request, exchange, grants)
    refused = None
    for rule in api.needs:
        known = grants.known(rule)
        for name in rule.names(request, exchange):
            granted = known.get(name)
            if not (grants.look_up(rule, name) if granted is None else granted):
                refused = refused or Refused()
                refused.add(rule, name, exchange.principal)
    if refused is None:
        if api.refusal is not None and api.refusal.hide is not None:
            _amend(api, exchange, grants, Rest())
        return api.handler(request, exchange)
    _tell(api, exchange, refused)
    taking = _Taking(api.take_out(request, exchange, refused))
    for _ in taking:
        pass
    rest = taking.rest
    if rest.answer is not None:
        exchange.answer(rest.answer)
        return None
    _amend(api, exchange, grants, rest)
    return api.handler(request, exchange)


async def _serve_long(api: Api, request: Any, exchange: Exchange, grants: Grants) -> Any:
    """As `serve`, letting others go first while there is much to ask about."""
    pace = exchange.pace()
    refused = Refused()
    for rule in api.needs:
        async for name in pace.each(rule.names(request, exchange)):
            if not grants.allow(rule, name):
                refused.add(rule, name, exchange.principal)
    rest = Rest()
    if refused:
        _tell(api, exchange, refused)
        taking = _Taking(api.take_out(request, exchange, refused))
        await pace.drain(taking)
        rest = taking.rest
    if rest.answer is not None:
        return rest.answer
    _amend(api, exchange, grants, rest)
    later = api.handler(request, exchange)
    return None if later is None else await later


def _tell(api: Api, exchange: Exchange, refused: Refused) -> None:
    first = next(iter(refused.values()))
    exchange.broker.access.audit.refused(
        str(exchange.principal),
        exchange.outlet.client_host,
        refused.reason,
        first.message,
        api=api.name,
        request=exchange.correlation_id,
        parts=len(refused),
    )


class _Taking:
    """What is refused is taken out of a request; `rest` is left of it when all steps are through."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.rest = Rest()

    def __iter__(self) -> Iterator[None]:
        self.rest = yield from self._steps


def _amend(api: Api, exchange: Exchange, grants: Grants, rest: Rest) -> None:
    """Have the answer hide what its principal may not see, and tell what was taken out of the request."""
    hide = None if api.refusal is None else api.refusal.hide
    if hide is None and rest.add is None:
        return

    def amend(response: Any) -> Iterator[None]:
        if hide is not None:
            yield from hide(response, exchange, grants)
        if rest.add is not None:
            rest.add(response)
        yield

    exchange.amend = amend
