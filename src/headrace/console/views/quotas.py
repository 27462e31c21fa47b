"""`/quotas`: quotas of users, client ids and addresses, and forms that set and remove them."""

import re
from collections.abc import Mapping
from typing import Any

from headrace.console import text
from headrace.console.kafka_client import Rejected, check, may_alter, packed, results, send, unpacked
from headrace.console.pagination import cut
from headrace.console.registry import Redirect, View, ViewRequest, cluster_rule, page
from headrace.protocol.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest
from headrace.security.access.required_acls import Operation
from headrace.security.quotas.entities import TYPES, Key

_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
_DONE = {"set": "The quota was set.", "removed": "The quota was removed."}
_NEEDS = (cluster_rule(Operation.ALTER_CONFIGS),)
UNITS = {
    Key.PRODUCE: "bytes per second",
    Key.FETCH: "bytes per second",
    Key.REQUESTS: "percent of a second of the event loop",
    Key.MUTATIONS: "partitions per second",
    Key.CONNECTIONS: "connections per second",
}


@page("Quotas", "/quotas", needs=(cluster_rule(Operation.DESCRIBE_CONFIGS),), live=False)
async def quotas(ask: ViewRequest) -> View:
    """Return the list of quotas."""
    return await _view(ask)


@page("SetQuota", "/quotas", method="POST", needs=_NEEDS, live=False)
async def set_quota(ask: ViewRequest) -> View:
    """Set a quota of an entity."""
    try:
        given = ask.form.get("value", "").strip()
        if not _DECIMAL.fullmatch(given):
            raise Rejected(f"Value: expected a number, found {given[:100]!r}.")
        await _alter(ask, ask.form, float(given))
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/quotas", ask.broker.cluster, {"done": "set"}))


@page("RemoveQuota", "/quotas/delete", method="POST", needs=_NEEDS, live=False)
async def remove_quota(ask: ViewRequest) -> View:
    """Remove a quota of an entity."""
    try:
        await _alter(ask, unpacked(ask.form), None)
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/quotas", ask.broker.cluster, {"done": "removed"}))


async def _alter(ask: ViewRequest, form: Mapping[str, str], value: float | None) -> None:
    change = AlterClientQuotasRequest.OpData(key=form.get("key", ""), value=value or 0.0, remove=value is None)
    entry = AlterClientQuotasRequest.EntryData(entity=_entity(form), ops=[change])
    await results(ask, AlterClientQuotasRequest(entries=[entry]), "entries")


def _entity(form: Mapping[str, str]) -> list[AlterClientQuotasRequest.EntityData]:
    parts: list[AlterClientQuotasRequest.EntityData] = []
    for kind in TYPES:
        name = form.get(kind, "")
        if form.get(f"default.{kind}"):
            if name:
                raise Rejected(f"The default applies to every other {kind}. Clear the name {name[:100]!r}.")
            parts.append(AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=None))
        elif name:
            parts.append(AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name))
    return parts


def _rows(entry: Any) -> list[dict[str, Any]]:
    parts = [(part.entity_type, part.entity_name) for part in entry.entity]
    named = {f"default.{kind}" if name is None else kind: name or "1" for kind, name in parts}
    label = ", ".join(f"{kind} {'(default)' if name is None else text.name(name)}" for kind, name in parts)
    units = {key.value: unit for key, unit in UNITS.items()}
    return [
        {
            "row": packed({**named, "key": each.key}),
            "label": label,
            "key": each.key,
            "value": f"{each.value:,.15g}",
            "unit": units.get(each.key, ""),
        }
        for each in sorted(entry.values, key=lambda each: each.key)
    ]


async def _view(ask: ViewRequest, wrong: str = "") -> View:
    response = await send(ask, DescribeClientQuotasRequest(components=[], strict=False))
    check(ask, [response])
    async with ask.listing() as pace:
        rows = [row async for entry in pace.each(response.entries) for row in _rows(entry)]
        found = await cut(rows, ask.query, pace, name=lambda row: f"{row['label']} {row['key']}")
    fields = [*TYPES, *(f"default.{kind}" for kind in TYPES), "key", "value"]
    data = {
        "self": text.link("/quotas", ask.broker.cluster),
        "delete": text.link("/quotas/delete", ask.broker.cluster),
        "may": may_alter(ask, Operation.ALTER_CONFIGS),
        "list": found,
        "search": found.search,
        "sort": found.sort,
        "rows": found.rows,
        "types": (("user", "User"), ("client-id", "Client id"), ("ip", "Address")),
        "quotas": [(key.value, unit) for key, unit in UNITS.items()],
        "given": {each: ask.form.get(each, "") for each in fields},
        "done": "" if wrong else _DONE.get(ask.query.get("done", ""), ""),
        "wrong": wrong,
    }
    return View(template="quotas.html", title="Quotas", data=data, forms=True, status=400 if wrong else 200)
