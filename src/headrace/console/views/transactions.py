"""`/transactions`: open transactions, the oldest one first, and a form that aborts one."""

from itertools import islice
from typing import Any

from headrace.console import text
from headrace.console.kafka_client import Rejected, may_alter, packed, send, unpacked
from headrace.console.pagination import cut
from headrace.console.registry import Redirect, View, ViewRequest, cluster_rule, page, shown_rules
from headrace.protocol.messages import InitProducerIdRequest
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.transactions.description import TransactionDescription
from headrace.transactions.model import TransactionState

_PARTITIONS = 20
"""Maximum partitions of a transaction that are named."""
_UNDER_WAY = "CONCURRENT_TRANSACTIONS"
_DONE = {"aborted": "The transaction is being aborted. Its producer is fenced."}
_FIELDS = ("id", "producer", "epoch")


@page(
    "Transactions",
    "/transactions",
    needs=shown_rules(ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC),
    live=False,
)
async def transactions(ask: ViewRequest) -> View:
    """Return the list of open transactions."""
    return await _view(ask)


@page("AbortTransaction", "/transactions/abort", method="POST", needs=(cluster_rule(Operation.ALTER),), live=False)
async def abort_transaction(ask: ViewRequest) -> View:
    """Abort a transaction: fence its producer, as Kafka's administrators do."""
    try:
        await _abort(ask, unpacked(ask.form))
    except Rejected as rejected:
        return await _view(ask, str(rejected))
    raise Redirect(text.link("/transactions", ask.broker.cluster, {"done": "aborted"}))


async def _abort(ask: ViewRequest, row: dict[str, str]) -> None:
    # InitProducerId creates an unknown transactional id, and fences any later producer.
    found = ask.broker.transactions.coordinator.describe(row.get("id", ""))
    if found is None or found.state is not TransactionState.ONGOING or _fields(found) != row:
        raise Rejected("The transaction has ended.")
    request = InitProducerIdRequest(
        transactional_id=found.transactional_id, transaction_timeout_ms=max(1, found.timeout_ms)
    )
    answer = await send(ask, request)
    if answer.error_code:
        name = ask.figures.kafka.error_name(answer.error_code)
        if name != _UNDER_WAY:
            raise Rejected(name)


def _fields(found: TransactionDescription) -> dict[str, str]:
    values = (found.transactional_id, str(found.producer_id), str(found.producer_epoch))
    return dict(zip(_FIELDS, values, strict=True))


def _partitions(ask: ViewRequest, found: TransactionDescription) -> str:
    """Return the names of the first partitions that the viewer may see."""
    named = (
        f"{live.topic.name}-{index}"
        for topic_id, indexes in found.partitions.items()
        if (live := ask.broker.topics.with_id(topic_id.bytes)) is not None
        and ask.sees(ResourceType.TOPIC, live.topic.name)
        for index in indexes
    )
    first = list(islice(named, _PARTITIONS + 1))
    return ", ".join(first[:_PARTITIONS]) + (", …" if len(first) > _PARTITIONS else "")


def _row(ask: ViewRequest, found: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "row": packed(_fields(found)) if found.state is TransactionState.ONGOING else "",
        "label": text.name(found.transactional_id),
        "state": found.state.value,
        "age": text.span(_age_ms(found, now_ms) // 1_000),
        "timeout": text.span(found.timeout_ms / 1_000),
        "producer": f"{found.producer_id} / {found.producer_epoch}",
        "partitions": text.name(_partitions(ask, found)),
        "groups": len(found.groups),
    }


def _age_ms(found: TransactionDescription, now_ms: int) -> int:
    return max(0, found.running_ms(now_ms) or 0)


async def _view(ask: ViewRequest, wrong: str = "") -> View:
    now_ms = ask.broker.clock.now_ms()
    async with ask.listing() as pace:
        known = [
            each async for each in pace.each(ask.broker.transactions.coordinator.describe_all()) if each.state.open
        ]
        found = await cut(
            known,
            {"sort": "age", **ask.query},
            pace,
            name=lambda each: str(each.transactional_id),
            sorts={"age": lambda each: _age_ms(each, now_ms)},
            shows=lambda each: ask.sees(ResourceType.TRANSACTIONAL_ID, each.transactional_id),
        )
        rows = [_row(ask, each, now_ms) async for each in pace.each(found.rows)]
    data = {
        "abort": text.link("/transactions/abort", ask.broker.cluster),
        "may": may_alter(ask, Operation.ALTER),
        "list": found,
        "search": found.search,
        "sort": found.sort,
        "rows": rows,
        "done": "" if wrong else _DONE.get(ask.query.get("done", ""), ""),
        "wrong": wrong,
    }
    return View(template="transactions.html", title="Transactions", data=data, forms=True, status=400 if wrong else 200)
