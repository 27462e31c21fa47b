"""confluent-kafka's AdminClient."""

from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from tests.harness.clients.admin import Admin, Group, Place, Spec
from tests.harness.clients.interface import ClientFailed

_WAIT_S = 60
_SPECS: dict[str, Any] = {
    "earliest": OffsetSpec.earliest,
    "latest": OffsetSpec.latest,
    "max_timestamp": OffsetSpec.max_timestamp,
}


def _done(future: "Future[Any]") -> Any:
    try:
        return future.result(_WAIT_S)
    except KafkaException as error:
        found = error.args[0]
        raise ClientFailed(found.code(), str(found)) from None


class ConfluentAdmin(Admin):
    """See Admin."""

    name = "confluent-kafka"

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address})

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        """See Admin."""
        _done(self._admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic])

    def delete(self, topic: str) -> None:
        """See Admin."""
        _done(self._admin.delete_topics([topic])[topic])

    def topics(self) -> set[str]:
        """See Admin."""
        return set(self._admin.list_topics(timeout=_WAIT_S).topics)

    def leaders(self, topic: str) -> dict[int, int]:
        """See Admin."""
        found = _done(self._admin.describe_topics(TopicCollection([topic]))[topic])
        return {partition.id: partition.leader.id for partition in found.partitions}

    def configs(self, topic: str) -> dict[str, str]:
        """See Admin."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = _done(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in found.items()}

    def offset(self, place: Place, spec: Spec) -> tuple[int, int]:
        """See Admin."""
        asked: Any = OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else _SPECS[spec]()
        [future] = self._admin.list_offsets({TopicPartition(*place): asked}).values()
        found = _done(future)
        return found.offset, found.timestamp

    def groups(self) -> set[str]:
        """See Admin."""
        found = _done(self._admin.list_consumer_groups())
        assert found.errors == []
        return {group.group_id for group in found.valid}

    def group(self, name: str) -> Group:
        """See Admin."""
        found = _done(self._admin.describe_consumer_groups([name])[name])
        members = {
            member.member_id: frozenset((one.topic, one.partition) for one in member.assignment.topic_partitions)
            for member in found.members
        }
        return Group(found.state.name.lower(), members)

    def committed(self, group: str) -> dict[Place, int]:
        """See Admin."""
        found = _done(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group])
        return {(one.topic, one.partition): one.offset for one in found.topic_partitions}

    def move(self, group: str, positions: dict[Place, int]) -> None:
        """See Admin."""
        places = [TopicPartition(*place, offset) for place, offset in positions.items()]
        asked = ConsumerGroupTopicPartitions(group, places)
        found = _done(self._admin.alter_consumer_group_offsets([asked])[group])
        for one in found.topic_partitions:
            if one.error is not None:
                raise ClientFailed(one.error.code(), str(one.error))

    def delete_group(self, name: str) -> None:
        """See Admin."""
        _done(self._admin.delete_consumer_groups([name])[name])

    def close(self) -> None:
        """It closes when it is forgotten."""
