"""AlterClientQuotas (49), versions 0-1 (KIP-546, KIP-612).

Behavior
- Sets and takes away quotas, all of an entity or none; they hold here before the answer, on other brokers within a
  second. What a client has used before counts on.
- INVALID_REQUEST for entities, keys and values that Kafka does not take either, with its messages, and for names longer
  than 256 characters and for addresses in a virtual cluster of its own; POLICY_VIOLATION beyond 10 000 entities.
- An address is no host's name, which Kafka resolves.

Version notes
- 1: flexible.
"""

from headrace.broker.admin.quotas import LONGEST_NAME, TooManyQuotas
from headrace.broker.virtual_clusters import DEFAULT
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterClientQuotasRequest, AlterClientQuotasResponse
from headrace.security.access.required_acls import Operation
from headrace.security.quotas.entities import OF_ADDRESSES, Entity, InvalidQuota, Key, checked
from headrace.topics.errors import TopicError

_Asked = AlterClientQuotasRequest.EntryData
_Result = AlterClientQuotasResponse.EntryData
_Part = AlterClientQuotasResponse.EntityData


def _no(request: AlterClientQuotasRequest, _: RequestContext, no: No) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_result(asked, no.code, no.message) for asked in request.entries])


@register(AlterClientQuotasRequest, 0, 1, needs=(cluster(Operation.ALTER_CONFIGS),), refusal=whole(_no))
async def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
    """Set and take away quotas."""
    results = []
    async for asked in context.parts(request.entries):
        try:
            await _alter(asked, context, validate_only=request.validate_only)
        except (RequestError, TopicError) as error:
            results.append(_result(asked, code_of(error), str(error)))
        else:
            results.append(_result(asked, Code.NONE, None))
    return AlterClientQuotasResponse(entries=results)


async def _alter(asked: _Asked, context: RequestContext, *, validate_only: bool) -> None:
    """Change the quotas of one entity; raises RequestError and as `ClusterQuotas.alter`."""
    quotas, in_cluster = context.broker.quotas, context.broker.cluster
    try:
        entity = Entity.of((part.entity_type, part.entity_name) for part in asked.entity)
        values = _values(entity, asked)
    except InvalidQuota as error:
        raise RequestError(Code.INVALID_REQUEST, str(error)) from None
    if any(name is not None and len(name) > LONGEST_NAME for _, name in entity.parts):
        raise RequestError(Code.INVALID_REQUEST, f"a name may not be longer than {LONGEST_NAME} characters")
    if entity.keys == OF_ADDRESSES and in_cluster != DEFAULT:
        raise RequestError(Code.INVALID_REQUEST, "who connects has not chosen a virtual cluster yet")
    try:
        if validate_only:
            quotas.altered({entity: values})
        else:
            await quotas.alter({entity: values})
            told = (f"{key.value}={'none' if value is None else f'{value:.15g}'}" for key, value in values.items())
            context.changed(f"quotas of {entity}: {', '.join(told)}")
    except TooManyQuotas as error:
        raise RequestError(Code.POLICY_VIOLATION, str(error)) from None


def _values(entity: Entity, asked: _Asked) -> dict[Key, float | None]:
    """What is to be set, and taken away. Raises InvalidQuota."""
    values: dict[Key, float | None] = {}
    for op in asked.ops:
        if not op.remove:
            values[checked(entity, op.key, op.value)] = op.value
        elif op.key in {key.value for key in Key}:
            values[Key(op.key)] = None
    return values


def _result(asked: _Asked, code: Code, message: str | None) -> _Result:
    parts = [_Part(entity_type=part.entity_type, entity_name=part.entity_name) for part in asked.entity]
    return _Result(error_code=code, error_message=message, entity=parts)
