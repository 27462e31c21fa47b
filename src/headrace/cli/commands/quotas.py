"""`headrace quotas`: list, set and delete client quotas."""

from collections.abc import Callable
from typing import Any

import click

from headrace.cli.client import KafkaServer, client_options
from headrace.cli.command import YES, CommandFailed, Status, TeachingGroup, confirm
from headrace.cli.output import print_json, print_table
from headrace.cli.requests import ask, check
from headrace.protocol.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest
from headrace.security.quotas.entities import CLIENT_ID, IP, USER, Entity, InvalidQuota, Key, checked
from headrace.text.escaping import quoted, shown
from headrace.topics.config_keys import suggestion

EVERYBODY = "*"
"""A name for all entities without their own quota."""
_VERSION = 1
_EXACT, _DEFAULT = 0, 1
_LIST, _SET, _DELETE = "list quotas", "set quotas", "delete quotas"

Values = dict[str, float]
Names = tuple[str | None, str | None, str | None]
"""User, client ID and address as given."""


@click.group(cls=TeachingGroup)
def quotas() -> None:
    """List, set and delete quotas."""


def _entity(function: Callable[..., None]) -> Callable[..., None]:
    click.option("--ip", metavar="ADDRESS", help="An address. '*': all others.")(function)
    click.option("--client-id", metavar="NAME", help="A client id. '*': all others.")(function)
    click.option("--user", metavar="NAME", help="A user. '*': all others.")(function)
    return function


def _keys(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [key.value for key in Key if key.value.startswith(incomplete)]


@quotas.command(
    "list",
    examples="""
    headrace quotas list
    headrace quotas list --user jane
    headrace quotas list --client-id '*' --json
    """,
)
@_entity
@client_options
def list_(user: str | None, client_id: str | None, ip: str | None, kafka: KafkaServer, as_json: bool) -> None:
    """List quotas of all entities, or of the named ones."""
    found = _found(kafka, (user, client_id, ip), strict=False)
    rows = [(_told(entity), key, value) for entity, values in found.items() for key, value in sorted(values.items())]
    if as_json:
        print_json([each | {"quota": key, "limit": _number(value)} for each, key, value in rows])
    else:
        columns = ["user", "client id", "address", "quota", ">limit"]
        print_table(columns, [[*_cells(each), key, _number(value)] for each, key, value in rows])


@quotas.command(
    "set",
    examples="""
    headrace quotas set --user jane producer_byte_rate=1048576
    headrace quotas set --user '*' --client-id '*' request_percentage=25 consumer_byte_rate=4e6
    headrace quotas set --ip '*' connection_creation_rate=20
    """,
)
@click.argument("limits", nargs=-1, required=True, metavar="QUOTA=LIMIT...", shell_complete=_keys)
@_entity
@client_options
def set_(
    limits: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an address.

    A limit is a number per second. producer_byte_rate and consumer_byte_rate are bytes, and request_percentage is
    percent of the server's event loop. controller_mutation_rate counts partitions created and deleted.
    connection_creation_rate counts connections of an address. Each broker counts for itself.
    """
    entity = _named(user, client_id, ip)
    values = dict(_limit(entity, text) for text in limits)
    _alter(kafka, entity, dict(values), _SET)
    _show(entity, values, as_json)


@quotas.command(
    "delete",
    examples="""
    headrace quotas delete --user jane producer_byte_rate
    headrace quotas delete --user '*' --yes
    """,
)
@click.argument("keys", nargs=-1, metavar="[QUOTA...]", shell_complete=_keys)
@_entity
@YES
@client_options
def delete(
    keys: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    yes: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Delete the named quotas, or all quotas, of exactly this entity."""
    entity = _named(user, client_id, ip)
    found = _found(kafka, (user, client_id, ip), strict=True).get(entity, {})
    for key in keys:
        if key not in found:
            hint = suggestion(key, found) or "`headrace quotas list` shows the existing ones"
            raise CommandFailed(f"{shown(str(entity))} has no quota {quoted(key)}; {shown(hint)}", Status.MISSING)
    gone = {key: found[key] for key in keys or sorted(found)}
    if not gone:
        raise CommandFailed(
            f"{shown(str(entity))} has no quotas; `headrace quotas list` shows the existing ones", Status.MISSING
        )
    confirm(f"Delete {len(gone)} quotas of {shown(str(entity))} at {kafka}?", yes)
    _alter(kafka, entity, dict.fromkeys(gone), _DELETE)
    _show(entity, gone, as_json, "deleted ")


def _named(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    given = ((USER, user), (CLIENT_ID, client_id), (IP, ip))
    parts = [(kind, None if name == EVERYBODY else name) for kind, name in given if name is not None]
    if not parts:
        raise CommandFailed("name the entity: --user NAME, --client-id NAME or both, or --ip ADDRESS", Status.USAGE)
    try:
        return Entity.of(parts)
    except InvalidQuota as error:
        raise CommandFailed(f"{error}: expected --user, --client-id or both, or --ip ADDRESS", Status.USAGE) from None


def _limit(entity: Entity, text: str) -> tuple[str, float]:
    key, equals, number = text.partition("=")
    known = sorted(each.value for each in entity.keys)
    if not equals or key not in known:
        hint = suggestion(key, known) or f"{entity} may have {', '.join(known)}"
        raise CommandFailed(f"expected QUOTA=LIMIT, found {quoted(text)}; {shown(hint)}", Status.USAGE)
    try:
        value = float(number)
        checked(entity, key, value)
    except InvalidQuota as error:
        raise CommandFailed(shown(str(error)).rstrip("."), Status.USAGE) from None
    except ValueError:
        raise CommandFailed(f"{key}: expected a number, found {quoted(number)}", Status.USAGE) from None
    return key, value


def _found(kafka: KafkaServer, names: Names, *, strict: bool) -> dict[Entity, Values]:
    components = [
        DescribeClientQuotasRequest.ComponentData(
            entity_type=kind,
            match_type=_DEFAULT if name == EVERYBODY else _EXACT,
            match=None if name == EVERYBODY else name,
        )
        for kind, name in zip((USER, CLIENT_ID, IP), names, strict=True)
        if name is not None
    ]
    answer = ask(kafka, DescribeClientQuotasRequest(components=components, strict=strict), _VERSION, _LIST)
    check(answer.error_code, answer.error_message, _LIST)
    return {
        Entity.of((part.entity_type, part.entity_name) for part in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries
    }


def _alter(kafka: KafkaServer, entity: Entity, values: dict[str, float | None], what: str) -> None:
    asked = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )
    [answer] = ask(kafka, AlterClientQuotasRequest(entries=[asked], validate_only=False), _VERSION, what).entries
    check(answer.error_code, answer.error_message, what)


def _show(entity: Entity, values: Values, as_json: bool, verb: str = "") -> None:
    if as_json:
        print_json([_told(entity) | {"quota": key, "limit": _number(value)} for key, value in values.items()])
        return
    for key, value in values.items():
        click.echo(shown(f"{verb}{entity}: {key} {_number(value)}"))


def _told(entity: Entity) -> dict[str, Any]:
    return {kind: EVERYBODY if name is None else name for kind, name in entity.parts}


def _cells(told: dict[str, Any]) -> list[str | None]:
    return [told.get(kind) for kind in (USER, CLIENT_ID, IP)]


def _number(value: float) -> float:
    return int(value) if value.is_integer() else value
