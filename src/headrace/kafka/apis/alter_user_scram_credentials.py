"""AlterUserScramCredentials (51), version 0 (KIP-554).

Behavior
- Stores the salted passwords that clients send, or deletes stored ones. All changes of one user are made, or none. They
  apply from the next login, on other brokers within a second.
- UNSUPPORTED_SASL_MECHANISM: the mechanism is unknown, or the virtual cluster is not the default one.
- UNACCEPTABLE_CREDENTIAL: no name, a name or salt that is too long, iterations below 4,096 or above 16,384.
- DUPLICATE_RESOURCE: one mechanism of a user twice. RESOURCE_NOT_FOUND: deletion of a credential that does not exist.
- POLICY_VIOLATION: more than 10,000 users. Messages are Kafka's.
"""

from typing import Any

from headrace.broker.admin.users import LONGEST_NAME, MOST_USERS, Key, TooManyUsers, Users
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from headrace.security.access.credentials import LEAST_ITERATIONS, MOST_ITERATIONS, Credential, Mechanism, credential
from headrace.security.access.required_acls import Operation

_Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_MOST_BYTES = 1_024
"""Maximum of a salt, and of a salted password."""


def _by_name(request: AlterUserScramCredentialsRequest) -> dict[str, list[_Upsertion | _Deletion]]:
    asked: dict[str, list[_Upsertion | _Deletion]] = {}
    every: list[_Upsertion | _Deletion] = [*request.deletions, *request.upsertions]
    for each in every:
        asked.setdefault(each.name, []).append(each)
    return asked


def _outcome(asked: tuple[str, Any], code: Code, message: str | None) -> _Result:
    return _Result(user=asked[0], error_code=code, error_message=message)


def _no(request: AlterUserScramCredentialsRequest, _: RequestContext, no: No) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(results=[_outcome(asked, *no) for asked in _by_name(request).items()])


@register(
    AlterUserScramCredentialsRequest,
    0,
    0,
    needs=(cluster(Operation.ALTER),),
    refusal=whole(_no),
    each=Each(lambda request: _by_name(request).items(), "results", _outcome),
)
def handle(_: AlterUserScramCredentialsRequest, context: RequestContext) -> AnswerItem:
    """Store and delete credentials."""
    users = context.broker.users

    async def alter(asked: tuple[str, list[_Upsertion | _Deletion]]) -> None:
        if users is None:
            raise RequestError(
                Code.UNSUPPORTED_SASL_MECHANISM, "users are kept for the whole server: not in a virtual cluster"
            )
        changes = _changes(users, asked[1])
        await _save(users, changes)
        for (user, mechanism), kept in changes.items():
            verb = "lost" if kept is None else "has"
            context.changed(f"user {user} {verb} a password for {mechanism.value}")

    return alter


def _changes(users: Users, asked: list[_Upsertion | _Deletion]) -> dict[Key, Credential | None]:
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
