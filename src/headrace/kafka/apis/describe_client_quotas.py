"""DescribeClientQuotas (48), versions 0-1 (KIP-546, KIP-612).

Behavior
- Lists the quotas of this virtual cluster for the users, client ids and addresses that match a filter, by entity. These
  are configured quotas, not the effective ones of a client.
- An unknown entity type is UNSUPPORTED_VERSION. A filter that contradicts itself is INVALID_REQUEST. Messages are
  Kafka's.

Version notes
- 1: flexible.
"""

from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from headrace.security.access.required_acls import Operation
from headrace.security.quotas.entities import IP, TYPES, Entity, Filter, Key

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_ENTRY_BYTES = 2_000
"""Memory for one entity while the response is built, with names and quotas of maximum length."""
_Entry = DescribeClientQuotasResponse.EntryData
_Part = DescribeClientQuotasResponse.EntityData
_Value = DescribeClientQuotasResponse.ValueData


def _refused(code: Code, message: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def _no(_: DescribeClientQuotasRequest, __: RequestContext, no: No) -> DescribeClientQuotasResponse:
    return _refused(no.code, no.message)


@register(DescribeClientQuotasRequest, 0, 1, needs=(cluster(Operation.DESCRIBE_CONFIGS),), refusal=whole(_no))
async def handle(request: DescribeClientQuotasRequest, context: RequestContext) -> DescribeClientQuotasResponse:
    """List quotas."""
    try:
        wanted = _filter(request)
    except RequestError as error:
        return _refused(error.code, str(error))
    await context.turn()
    found = context.broker.quotas.found(wanted)
    await context.reserve(len(found) * _ENTRY_BYTES)
    entries = [_entry(entity, values) async for entity, values in context.pace().each(found.items())]
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _filter(request: DescribeClientQuotasRequest) -> Filter:
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for one in request.components:
        kind = one.entity_type
        if not kind:
            raise RequestError(Code.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in exact or kind in any_of:
            raise RequestError(Code.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise RequestError(Code.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if one.match_type == _EXACT and one.match is None:
            raise RequestError(
                Code.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if one.match_type != _EXACT and one.match is not None:
            raise RequestError(Code.INVALID_REQUEST, "Only a filter for an exact name may have a match string.")
        if one.match_type in {_EXACT, _DEFAULT}:
            exact[kind] = one.match
        elif one.match_type == _ANY:
            any_of.add(kind)
        else:
            raise RequestError(Code.INVALID_REQUEST, f"Unknown match type {one.match_type}")
    kinds = exact.keys() | any_of
    if IP in kinds and len(kinds) > 1:
        raise RequestError(
            Code.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        )
    return Filter(exact, frozenset(any_of), request.strict)


def _entry(entity: Entity, values: dict[Key, float]) -> _Entry:
    return _Entry(
        entity=[_Part(entity_type=kind, entity_name=name) for kind, name in entity.parts],
        values=[_Value(key=key.value, value=value) for key, value in values.items()],
    )
