"""AlterUserScramCredentials (51), version 0 (KIP-554).

Behavior
- Keeps the salted passwords that clients send, or drops what is kept. All that concerns one user happens, or nothing;
  it counts from the next login on, on other brokers within a second.
- UNSUPPORTED_SASL_MECHANISM, UNACCEPTABLE_CREDENTIAL (no name, a name or a salt too long, iterations below 4 096 or
  above 16 384), DUPLICATE_RESOURCE (a mechanism of a user twice), RESOURCE_NOT_FOUND (to drop what is not there), with
  Kafka's messages; POLICY_VIOLATION beyond 10 000 users.
"""

from headrace.broker.admin.users import LONGEST_NAME, MOST_USERS, Key, TooManyUsers, Users
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from headrace.security.access.credentials import LEAST_ITERATIONS, MOST_ITERATIONS, Credential, Mechanism, credential
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError

_Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_MOST_BYTES = 1_024
"""Of a salt, and of a salted password."""


def _no(request: AlterUserScramCredentialsRequest, _: RequestContext, no: No) -> AlterUserScramCredentialsResponse:
    names = dict.fromkeys(each.name for some in (request.deletions, request.upsertions) for each in some)
    return AlterUserScramCredentialsResponse(
        results=[_Result(user=name, error_code=no.code, error_message=no.message) for name in names]
    )


@register(AlterUserScramCredentialsRequest, 0, 0, needs=(cluster(Operation.ALTER),), refusal=whole(_no))
async def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Keep and drop credentials."""
    users = context.broker.users
    asked: dict[str, list[_Upsertion | _Deletion]] = {}
    for deletion in request.deletions:
        asked.setdefault(deletion.name, []).append(deletion)
    for upsertion in request.upsertions:
        asked.setdefault(upsertion.name, []).append(upsertion)
    results = []
    async for name in context.parts(asked):
        try:
            if users is None:
                raise RequestError(
                    Code.UNSUPPORTED_SASL_MECHANISM, "users are kept for the whole server: not in a virtual cluster"
                )
            changes = _changes(users, asked[name])
            await _save(users, changes)
            for (user, mechanism), kept in changes.items():
                verb = "lost" if kept is None else "has"
                context.changed(f"user {user} {verb} a password for {mechanism.value}")
        except RequestError as error:
            results.append(_Result(user=name, error_code=error.code, error_message=str(error)))
        except TopicError as error:
            results.append(_Result(user=name, error_code=code_of(error), error_message=str(error)))
        else:
            results.append(_Result(user=name, error_message=None))
    return AlterUserScramCredentialsResponse(results=results)


def _changes(users: Users, asked: list[_Upsertion | _Deletion]) -> dict[Key, Credential | None]:
    """What is to be kept or dropped of one user; raises RequestError."""
    changes: dict[Key, Credential | None] = {}
    for one in asked:
        mechanism = Mechanism.numbered(one.mechanism)
        if not one.name:
            raise RequestError(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if len(one.name) > LONGEST_NAME:
            raise RequestError(Code.UNACCEPTABLE_CREDENTIAL, f"Username must not be longer than {LONGEST_NAME}")
        if mechanism is None:
            raise RequestError(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if (one.name, mechanism) in changes:
            raise RequestError(Code.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
        changes[one.name, mechanism] = _kept(mechanism, one) if isinstance(one, _Upsertion) else None
        if isinstance(one, _Deletion) and mechanism not in users.find(one.name):
            raise RequestError(Code.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return changes


def _kept(mechanism: Mechanism, asked: _Upsertion) -> Credential:
    """A credential as it is kept; raises RequestError."""
    if asked.iterations < LEAST_ITERATIONS:
        raise RequestError(Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > MOST_ITERATIONS:
        raise RequestError(Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    salt, salted = bytes(asked.salt), bytes(asked.salted_password)
    if not 12 <= len(salt) <= _MOST_BYTES or not 0 < len(salted) <= _MOST_BYTES:
        raise RequestError(
            Code.UNACCEPTABLE_CREDENTIAL, f"A salt has 12 to {_MOST_BYTES} bytes, a password at least one"
        )
    return credential(mechanism, salted, salt, asked.iterations)


async def _save(users: Users, changes: dict[Key, Credential | None]) -> None:
    try:
        await users.save(changes)
    except TooManyUsers:
        raise RequestError(Code.POLICY_VIOLATION, f"there are {MOST_USERS} users already") from None
