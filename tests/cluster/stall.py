"""What brokers say of a group, its transactions and its topics, for a round that does not end."""

from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.harness.brokers import Brokers
from tests.harness.wire import Wire

from headrace.protocol.messages import DescribeTransactionsRequest, ListTransactionsRequest

_WAIT_S = 10.0


def evidence(over: Brokers, group: str, topics: Sequence[str], partitions: int) -> str:
    """The group, the last stable and the end offsets, and each broker's transactions. An error instead of a part."""
    admin = AdminClient({"bootstrap.servers": over.kafka, "log_level": 0})
    parts = [_group(admin, group), *(_offsets(admin, topic, partitions) for topic in topics), *_transactions(over)]
    return "\n".join(parts)


def _group(admin: AdminClient, name: str) -> str:
    try:
        found = admin.describe_consumer_groups([name])[name].result(_WAIT_S)
    except (KafkaException, TimeoutError) as error:
        return f"group {name}: {error!r}"
    members = [
        (each.member_id, [place.partition for place in each.assignment.topic_partitions]) for each in found.members
    ]
    return f"group {name}: {found.state.name}, coordinator {found.coordinator}, members {members}"


def _offsets(admin: AdminClient, topic: str, partitions: int) -> str:
    try:
        stable, end = offsets(admin, topic, partitions)
    except (KafkaException, TimeoutError) as error:
        return f"topic {topic}: {error!r}"
    return f"topic {topic}: last stable offsets {stable}, ends {end}"


def offsets(admin: AdminClient, topic: str, partitions: int) -> tuple[list[int], list[int]]:
    """The last stable offsets, and the ends. Raises KafkaException, TimeoutError."""

    def latest(isolation: IsolationLevel) -> list[int]:
        asked = {TopicPartition(topic, index): OffsetSpec.latest() for index in range(partitions)}  # type: ignore[no-untyped-call]
        answers = admin.list_offsets(asked, isolation_level=isolation)
        found = {place.partition: answer.result(_WAIT_S).offset for place, answer in answers.items()}
        return [found[index] for index in range(partitions)]

    return latest(IsolationLevel.READ_COMMITTED), latest(IsolationLevel.READ_UNCOMMITTED)


def _transactions(over: Brokers) -> Iterator[str]:
    def asked(wire: Wire) -> Any:
        found = wire.ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)
        names = [each.transactional_id for each in found.transaction_states]
        return wire.ask(DescribeTransactionsRequest(transactional_ids=names), 0).transaction_states

    for node in over.running:
        try:
            yield from (f"broker {node}: {each}" for each in over.asked(node, asked))
        except OSError as error:
            yield f"broker {node}: {error!r}"
