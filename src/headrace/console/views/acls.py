"""`/acls`: ACLs of a virtual cluster, and forms that add and remove them."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.console import text
from headrace.console.kafka_client import Rejected, may_alter, packed, results, send, unpacked
from headrace.console.pagination import cut
from headrace.console.registry import Redirect, View, ViewRequest, cluster_rule, page
from headrace.protocol.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from headrace.security.access.acls import ANYTHING, Acl, Pattern
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, ResourceType

_ANY = 1
"""In a filter: every type, pattern, operation and permission."""
_ALL = "All"
_TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
_PERMISSIONS = {"Allow": True, "Deny": False}
_FIELDS = ("principal", "permission", "operation", "type", "pattern", "name", "host")
_DONE = {"added": "The ACL was added.", "removed": "The ACL was removed."}
_NEEDS = (cluster_rule(Operation.ALTER),)
E_ = TypeVar("E_", bound=Enum)


@page("Acls", "/acls", needs=(cluster_rule(Operation.DESCRIBE),), live=False)
async def acls(ask: ViewRequest) -> View:
    """Return the list of ACLs."""
    return await _view(ask)


@page("AddAcl", "/acls", method="POST", needs=_NEEDS, live=False)
async def add_acl(ask: ViewRequest) -> View:
    """Add an ACL."""
    try:
        acl = _acl(ask.form)
        type_, pattern, operation, permission = ask.figures.kafka.numbers_of(acl)
        creation = CreateAclsRequest.AclCreation(
            resource_type=type_,
            resource_name=acl.name,
            resource_pattern_type=pattern,
            principal=acl.principal,
            host=acl.host,
            operation=operation,
            permission_type=permission,
        )
        await results(ask, CreateAclsRequest(creations=[creation]), "results")
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/acls", ask.broker.cluster, {"done": "added"}))


@page("RemoveAcl", "/acls/delete", method="POST", needs=_NEEDS, live=False)
async def remove_acl(ask: ViewRequest) -> View:
    """Remove an ACL."""
    try:
        acl = _acl(unpacked(ask.form))
        type_, pattern, operation, permission = ask.figures.kafka.numbers_of(acl)
        given = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=type_,
            resource_name_filter=acl.name,
            pattern_type_filter=pattern,
            principal_filter=acl.principal,
            host_filter=acl.host,
            operation=operation,
            permission_type=permission,
        )
        [deleted] = await results(ask, DeleteAclsRequest(filters=[given]), "filter_results")
        if not deleted.matching_acls:
            raise Rejected(f"This ACL does not exist: {acl}.")
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/acls", ask.broker.cluster, {"done": "removed"}))


def _acl(form: Mapping[str, str]) -> Acl:
    """Return the ACL of the form. Raises Rejected."""
    operation, permission = form.get("operation", ""), form.get("permission", "")
    if permission not in _PERMISSIONS:
        raise Rejected(f"Permission: expected Allow or Deny, found {permission[:100]!r}.")
    kind = _chosen(ResourceType, form.get("type", ""), "Resource type")
    return Acl(
        type=kind,
        name=form.get("name", "").strip() or (CLUSTER_NAME if kind is ResourceType.CLUSTER else ""),
        pattern=_chosen(Pattern, form.get("pattern", ""), "Pattern"),
        principal=form.get("principal", "").strip(),
        host=form.get("host", "").strip() or ANYTHING,
        operation=None if operation == _ALL else _chosen(Operation, operation, "Operation"),
        allow=_PERMISSIONS[permission],
    )


def _chosen(kind: type[E_], given: str, what: str) -> E_:
    try:
        return kind(given)
    except ValueError:
        names = ", ".join(str(each.value) for each in kind)
        raise Rejected(f"{what}: expected one of {names}, found {given[:100]!r}.") from None


def _row(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": "Allow" if acl.allow else "Deny",
        "operation": _ALL if acl.operation is None else acl.operation.value,
        "type": acl.type.value,
        "pattern": acl.pattern.value,
        "name": acl.name,
        "host": acl.host,
    }


async def _view(ask: ViewRequest, wrong: str = "") -> View:
    everything = DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    response = await send(ask, everything)
    async with ask.listing() as pace:
        pairs = [(resource, acl) async for resource in pace.each(response.resources) for acl in resource.acls]
        listed = [ask.figures.kafka.acl_of(*pair) async for pair in pace.each(pairs)]
        found = await cut(listed, ask.query, pace, name=lambda acl: f"{acl.principal} {acl.name} {acl}")
    enabled = ask.broker.access.enabled
    data = {
        "self": text.link("/acls", ask.broker.cluster),
        "delete": text.link("/acls/delete", ask.broker.cluster),
        "off": response.error_message or "" if enabled else "",
        "authorizer": "" if enabled else STANDARD_AUTHORIZER,
        "may": enabled and may_alter(ask, Operation.ALTER),
        "list": found,
        "search": found.search,
        "sort": found.sort,
        "rows": [(row, packed(row)) for row in map(_row, found.rows)],
        "fields": _FIELDS,
        "permissions": tuple(_PERMISSIONS),
        "operations": (*sorted(each.value for each in Operation), _ALL),
        "types": tuple(each.value for each in _TYPES),
        "patterns": tuple(each.value for each in Pattern),
        "given": {each: ask.form.get(each, "") for each in _FIELDS},
        "done": "" if wrong else _DONE.get(ask.query.get("done", ""), ""),
        "wrong": wrong,
    }
    return View(template="acls.html", title="ACLs", data=data, forms=True, status=400 if wrong else 200)
