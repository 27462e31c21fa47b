"""`headrace transactions`: list, describe and abort transactions."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

from headrace.cli.client import KafkaServer, client_options
from headrace.cli.command import YES, CommandFailed, Status, TeachingGroup, confirm
from headrace.cli.output import print_json, print_table
from headrace.cli.requests import ask, check, leader, node_ids
from headrace.client.errors import Code
from headrace.protocol.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from headrace.text.escaping import quoted, shown
from headrace.transactions.model import TransactionState

_OPEN = [state.value for state in TransactionState if state.open]
_AT_ONCE = 500
"""Transactional ids of one request."""
_TRANSACTION_KEY = 1
_WAIT_S = 15.0
_PAUSE_S = 0.1
_LATER = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.CONCURRENT_TRANSACTIONS)
_LIST, _DESCRIBE, _ABORT = "list transactions", "describe the transaction", "abort the transaction"


@click.group(cls=TeachingGroup)
def transactions() -> None:
    """List, describe and abort transactions."""


@transactions.command(
    "list",
    examples="""
    headrace transactions list
    headrace transactions list --older-than 600
    headrace transactions list --all --json
    """,
)
@click.option("--all", "everything", is_flag=True, help="Include transactional ids without an open transaction.")
@click.option(
    "--older-than", type=click.IntRange(min=0), metavar="SECONDS", help="Only transactions that began before this time."
)
@client_options
def list_(everything: bool, older_than: int | None, kafka: KafkaServer, as_json: bool) -> None:
    """List open transactions, the oldest one first."""
    request = ListTransactionsRequest(
        state_filters=[] if everything else _OPEN,
        producer_id_filters=[],
        duration_filter=-1 if older_than is None else older_than * 1_000,
    )
    found: set[str] = set()
    for node_id in node_ids(kafka):
        answer = ask(kafka, request, 1, _LIST, node_id)
        check(answer.error_code, None, _LIST)
        found.update(each.transactional_id for each in answer.transaction_states)
    names = sorted(found)
    parts = (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
    rows = [row for part in parts for row in _described(kafka, part, _LIST) if row is not None]
    rows.sort(key=lambda row: (-1 if row["age_s"] is None else -row["age_s"], row["transactional_id"]))
    if as_json:
        print_json(rows)
        return
    columns = ["transactional id", "state", ">producer id", ">epoch", ">age s", ">timeout s", ">partitions"]
    print_table(
        columns,
        [
            [
                row["transactional_id"], row["state"], row["producer_id"], row["producer_epoch"], row["age_s"],
                row["timeout_s"], len(row["partitions"]),
            ]
            for row in rows
        ],
    )  # fmt: skip


@transactions.command(
    "describe",
    examples="""
    headrace transactions describe billing-1
    headrace transactions describe billing-1 --json
    """,
)
@click.argument("transactional_id", metavar="ID")
@client_options
def describe(transactional_id: str, kafka: KafkaServer, as_json: bool) -> None:
    """Show the state of a transactional id, and the partitions of its open transaction."""
    row = _known(kafka, transactional_id, _DESCRIBE)
    if as_json:
        print_json(row)
        return
    for label, key in (
        ("state", "state"),
        ("producer id", "producer_id"),
        ("epoch", "producer_epoch"),
        ("timeout s", "timeout_s"),
        ("age s", "age_s"),
    ):
        click.echo(f"{label:12} {'-' if row[key] is None else shown(str(row[key]))}")
    for place in row["partitions"]:
        click.echo(f"{'partition':12} {shown(place)}")


@transactions.command(
    "abort",
    examples="""
    headrace transactions abort billing-1
    headrace transactions abort --topic flights --partition 0 --producer-id 1042 --yes
    """,
)
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--topic", metavar="NAME", help="With --partition and --producer-id: abort only in this partition.")
@click.option("--partition", type=click.IntRange(min=0), metavar="NUMBER", help="A partition of the topic.")
@click.option("--producer-id", type=click.IntRange(min=0), metavar="NUMBER", help="The producer of the transaction.")
@YES
@client_options
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    producer_id: int | None,
    yes: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Abort the open transaction of a transactional id. Its producer is fenced: it cannot continue.

    If no coordinator knows a transaction any more, name its topic, partition and producer id instead.
    """
    hanging = topic, partition, producer_id
    if (transactional_id is None) == (None in hanging) or (transactional_id is not None and hanging != (None,) * 3):
        raise CommandFailed("name a transactional id, or --topic, --partition and --producer-id", Status.USAGE)
    if transactional_id is not None:
        aborted = _fence(kafka, transactional_id, yes)
    else:
        assert topic is not None
        assert partition is not None
        assert producer_id is not None
        aborted = _mark(kafka, topic, partition, producer_id, yes)
    if as_json:
        print_json(aborted)
        return
    click.echo(f"aborted {shown(transactional_id or f'{topic}-{partition}')}")


def _fence(kafka: KafkaServer, transactional_id: str, yes: bool) -> dict[str, Any]:
    row = _known(kafka, transactional_id, _ABORT)
    if row["state"] not in _OPEN:
        raise CommandFailed(f"transactional id {quoted(transactional_id)} has no open transaction", Status.MISSING)
    if row["state"] == TransactionState.PREPARE_COMMIT.value:
        raise CommandFailed(f"the transaction of {quoted(transactional_id)} is already committed")
    confirm(f"Abort the transaction of {shown(transactional_id)} at {kafka}, and fence its producer?", yes)
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=max(1, int(row["timeout_s"] * 1_000))
    )
    until = time.monotonic() + _WAIT_S
    while True:
        [node_id] = _coordinators(kafka, [transactional_id], _ABORT)
        answer = ask(kafka, request, 4, _ABORT, node_id)
        if answer.error_code not in _LATER or time.monotonic() >= until:
            break
        time.sleep(_PAUSE_S)
    check(answer.error_code, None, _ABORT)
    return row


def _mark(kafka: KafkaServer, topic: str, partition: int, producer_id: int, yes: bool) -> dict[str, Any]:
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
    node_id = leader(kafka, topic, partition)
    [found] = ask(kafka, DescribeProducersRequest(topics=[asked]), 0, _ABORT, node_id).topics[0].partitions
    check(found.error_code, found.error_message, _ABORT)
    begun = [each for each in found.active_producers if each.producer_id == producer_id]
    if not begun or begun[0].current_txn_start_offset < 0:
        raise CommandFailed(
            f"producer {producer_id} has no open transaction in {shown(topic)}-{partition}", Status.MISSING
        )
    [producer] = begun
    confirm(f"Abort the transaction of producer {producer_id} in {shown(topic)}-{partition} at {kafka}?", yes)
    place = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[place],
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )
    [result] = ask(kafka, WriteTxnMarkersRequest(markers=[marker]), 1, _ABORT, node_id).markers
    check(result.topics[0].partitions[0].error_code, None, _ABORT)
    return {
        "topic": topic,
        "partition": partition,
        "producer_id": producer_id,
        "producer_epoch": producer.producer_epoch,
        "first_offset": producer.current_txn_start_offset,
    }


def _known(kafka: KafkaServer, transactional_id: str, what: str) -> dict[str, Any]:
    [row] = _described(kafka, [transactional_id], what)
    if row is None:
        raise CommandFailed(
            f"there is no transactional id {quoted(transactional_id)}; "
            "`headrace transactions list --all` shows the existing ones",
            Status.MISSING,
        )
    return row


def _coordinators(kafka: KafkaServer, names: list[str], what: str) -> dict[int, list[str]]:
    """Return transactional IDs by the node ID of their coordinator."""
    found: dict[int, list[str]] = {}
    request = FindCoordinatorRequest(key_type=_TRANSACTION_KEY, coordinator_keys=names)
    for each in ask(kafka, request, 4, what).coordinators:
        check(each.error_code, each.error_message, what)
        found.setdefault(each.node_id, []).append(each.key)
    return found


def _described(kafka: KafkaServer, names: list[str], what: str) -> Iterator[dict[str, Any] | None]:
    for node_id, some in _coordinators(kafka, names, what).items():
        answer = ask(kafka, DescribeTransactionsRequest(transactional_ids=some), 0, what, node_id)
        yield from _rows(answer.transaction_states, what)


def _rows(states: Iterable[Any], what: str) -> Iterator[dict[str, Any] | None]:
    now_ms = int(time.time() * 1_000)
    for state in states:
        if state.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            yield None
            continue
        check(state.error_code, None, what)
        began_ms = state.transaction_start_time_ms
        yield {
            "transactional_id": state.transactional_id,
            "state": state.transaction_state,
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
            "age_s": None if began_ms < 0 else max(0, now_ms - began_ms) // 1_000,
            "timeout_s": state.transaction_timeout_ms / 1_000,
            "partitions": [f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions],
        }
