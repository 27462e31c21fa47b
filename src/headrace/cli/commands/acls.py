"""`headrace acls`: list, create and delete ACLs."""

from collections.abc import Callable, Iterable
from typing import Any

import click
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.command import NO_RULES, YES, CommandFailed, Status, TeachingGroup, confirm
from headrace.cli.output import print_json, print_table
from headrace.security.access.acls import ANYTHING
from headrace.security.access.required_acls import CLUSTER_NAME
from headrace.text.escaping import shown

_OPERATIONS = {
    each.name.lower().replace("_", "-"): each
    for each in AclOperation
    if each not in {AclOperation.UNKNOWN, AclOperation.ANY}
}
_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_WORDS = {kind: word for word, kind in _TYPES.items()}
_NONE_GIVEN = "name the resource of the ACL: --topic NAME, --group NAME, --transactional-id NAME or --cluster"

Resource = tuple[ResourceType, str]


@click.group("acls", cls=TeachingGroup)
def acls() -> None:
    """List, create and delete ACLs.

    The server must run with an authorizer.
    """


def _resources(function: Callable[..., None]) -> Callable[..., None]:
    click.option("--cluster", is_flag=True, help="The cluster as a whole.")(function)
    click.option("--transactional-id", "transactional_ids", multiple=True, metavar="NAME", help="A transactional id.")(
        function
    )
    click.option("--group", "groups", multiple=True, metavar="NAME", help="A consumer group. '*': all groups.")(
        function
    )
    click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic. '*': all topics.")(function)
    return function


def _named(
    topics: Iterable[str], groups: Iterable[str], transactional_ids: Iterable[str], cluster: bool
) -> list[Resource]:
    return [
        *((ResourceType.TOPIC, name) for name in topics),
        *((ResourceType.GROUP, name) for name in groups),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids),
        *([(ResourceType.BROKER, CLUSTER_NAME)] if cluster else []),
    ]


@acls.command(
    "list",
    examples="""
    headrace acls list
    headrace acls list --topic orders
    headrace acls list --principal User:jane --json
    """,
)
@_resources
@click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal.")
@client_options
def list_(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    principal: str | None,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """List ACLs.

    With a resource, lists its ACLs, including those on prefixes and on '*' that match it.
    """
    client = Client(kafka)
    found = _found(client, _named(topics, groups, transactional_ids, cluster), principal, ResourcePatternType.MATCH)
    _show(found, as_json)


@acls.command(
    "create",
    examples="""
    headrace acls create --principal User:jane --operation read --topic orders --group billing
    headrace acls create --principal User:app --operation write --topic logs- --prefixed
    headrace acls create --principal User:mallory --deny --operation all --topic '*'
    """,
)
@_resources
@click.option(
    "--principal", "principals", multiple=True, required=True, metavar="User:NAME", help="Principal of the ACL."
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    required=True,
    type=click.Choice(list(_OPERATIONS)),
    help="Operation to allow or deny.",
)
@click.option("--host", default=ANYTHING, show_default=True, metavar="ADDRESS", help="Host of the client.")
@click.option("--prefixed", is_flag=True, help="Resource names are prefixes.")
@click.option("--deny", is_flag=True, help="Deny the operation, even if other ACLs allow it.")
@client_options
def create(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    principals: tuple[str, ...],
    operations: tuple[str, ...],
    host: str,
    prefixed: bool,
    deny: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Create ACLs, one for each principal, operation and resource. An ACL that exists already stays."""
    resources = _named(topics, groups, transactional_ids, cluster)
    if not resources:
        raise CommandFailed(_NONE_GIVEN, Status.USAGE)
    client = Client(kafka)
    made = [
        AclBinding(
            kind,
            name,
            # The cluster's name is fixed, so it is no prefix.
            ResourcePatternType.PREFIXED
            if prefixed and kind is not ResourceType.BROKER
            else ResourcePatternType.LITERAL,
            principal,
            host,
            _OPERATIONS[operation],
            AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
        )
        for kind, name in resources
        for principal in principals
        for operation in operations
    ]
    for future in client.admin.create_acls(made).values():
        client.result(future, "create access rules")
    _show(made, as_json)


@acls.command(
    "delete",
    examples="""
    headrace acls delete --principal User:mallory
    headrace acls delete --topic orders --principal User:jane --yes
    """,
)
@_resources
@click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal.")
@YES
@client_options
def delete(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    principal: str | None,
    yes: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Delete the ACLs with exactly this resource, pattern type and principal."""
    resources = _named(topics, groups, transactional_ids, cluster)
    if not resources and principal is None:
        raise CommandFailed("name the ACLs: --principal User:NAME, or a resource", Status.USAGE)
    client = Client(kafka)
    found = _found(client, resources, principal, ResourcePatternType.ANY)
    if not found:
        raise CommandFailed("there is no such access rule; `headrace acls list` shows those that are", Status.MISSING)
    confirm(f"Delete {len(found)} access rules at {kafka}?", yes)
    for future in client.admin.delete_acls([_exactly(acl) for acl in found]).values():
        client.result(future, "delete access rules")
    _show(found, as_json, "deleted ")


def _found(
    client: Client, resources: list[Resource], principal: str | None, pattern: ResourcePatternType
) -> list[AclBinding]:
    wanted: list[tuple[ResourceType, str | None, ResourcePatternType]] = [
        (kind, name, pattern) for kind, name in resources
    ] or [(ResourceType.ANY, None, ResourcePatternType.ANY)]
    found: list[AclBinding] = []
    for kind, name, how in wanted:
        # The library accepts None for anything, but its types require texts.
        anything: Any = None
        asked = AclBindingFilter(
            kind, name or anything, how, principal or anything, anything, AclOperation.ANY, AclPermissionType.ANY
        )
        told = client.result(client.admin.describe_acls(asked), "list access rules")
        found += [acl for acl in told if acl not in found]
    if not found:
        _check_enabled(client)
    return found


def _check_enabled(client: Client) -> None:
    """Raise CommandFailed if ACLs are disabled: the client library returns none."""
    broker = ConfigResource(ConfigResource.Type.BROKER, str(next(iter(client.metadata.brokers))))
    [future] = client.admin.describe_configs([broker]).values()
    entries = client.result(future, "look whether access rules hold")
    if "authorizer.class.name" in entries and not entries["authorizer.class.name"].value:
        raise CommandFailed(NO_RULES)


def _exactly(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


def _show(found: Iterable[AclBinding], as_json: bool, verb: str = "") -> None:
    answer = [_told(acl) for acl in found]
    if as_json:
        print_json(answer)
    elif verb:
        for each in answer:
            click.echo(shown(f"{verb}{' '.join(each.values())}"))
    else:
        columns = ["permission", "principal", "operation", "resource", "pattern", "name", "host"]
        print_table(columns, [list(each.values()) for each in answer])


def _told(acl: Any) -> dict[str, Any]:
    # The library's types allow texts, which it never returns.
    return {
        "permission": acl.permission_type.name.lower(),
        "principal": acl.principal,
        "operation": acl.operation.name.lower().replace("_", "-"),
        "resource": _WORDS.get(acl.restype, acl.restype.name.lower()),
        "pattern": acl.resource_pattern_type.name.lower(),
        "name": acl.name,
        "host": acl.host,
    }
