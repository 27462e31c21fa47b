"""AlterClientQuotas (49), versions 0-1 (KIP-546, KIP-612).

Behavior
- Sets and removes quotas, all of an entity or none. They apply on this broker before the response, and on other brokers
  within a second. A client's earlier usage still counts.
- Entities, keys and values that Kafka refuses are INVALID_REQUEST with Kafka's messages, as are names of more than 256
  characters. So are quotas of addresses in a virtual cluster other than the default one.
- More than 10,000 entities are POLICY_VIOLATION.
- Kafka resolves host names. This server accepts only addresses.

Version notes
- 1: flexible.
"""

from functools import partial

from headrace.broker.admin.quotas import LONGEST_NAME, TooManyQuotas
from headrace.broker.virtual_clusters import DEFAULT
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterClientQuotasRequest, AlterClientQuotasResponse
from headrace.security.access.required_acls import Operation
from headrace.security.quotas.entities import OF_ADDRESSES, Entity, InvalidQuota, Key, checked

_Asked = AlterClientQuotasRequest.EntryData
_Result = AlterClientQuotasResponse.EntryData
_Part = AlterClientQuotasResponse.EntityData


def _outcome(asked: _Asked, code: Code, message: str | None) -> _Result:
    parts = [_Part(entity_type=part.entity_type, entity_name=part.entity_name) for part in asked.entity]
    return _Result(error_code=code, error_message=message, entity=parts)


@register(
    AlterClientQuotasRequest,
    0,
    1,
    needs=(cluster(Operation.ALTER_CONFIGS),),
    each=Each("entries", "entries", _outcome),
)
def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AnswerItem:
    """Set and remove quotas."""
    return partial(_alter, context, validate_only=request.validate_only)


async def _alter(context: RequestContext, asked: _Asked, *, validate_only: bool) -> None:
    quotas, in_cluster = context.broker.quotas, context.broker.cluster
    try:
        entity = Entity.of((part.entity_type, part.entity_name) for part in asked.entity)
        values = _values(entity, asked)
    except InvalidQuota as error:
        raise RequestError(Code.INVALID_REQUEST, str(error)) from None
    if any(name is not None and len(name) > LONGEST_NAME for _, name in entity.parts):
        raise RequestError(Code.INVALID_REQUEST, f"a name may not be longer than {LONGEST_NAME} characters")
    if entity.keys == OF_ADDRESSES and in_cluster != DEFAULT:
        raise RequestError(Code.INVALID_REQUEST, "quotas of addresses apply before a client selects a virtual cluster")
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
    values: dict[Key, float | None] = {}
    for op in asked.ops:
        if not op.remove:
            values[checked(entity, op.key, op.value)] = op.value
        elif op.key in {key.value for key in Key}:
            values[Key(op.key)] = None
    return values
