"""kafka-python's admin client."""

import warnings
from collections.abc import Callable
from typing import Any

from tests.harness.clients.admin import Admin, Group, Place, Spec
from tests.harness.clients.interface import ClientFailed

with warnings.catch_warnings():
    # It reads its own schema files by a call that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import KafkaError

    from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

_SPECS = {"latest": -1, "earliest": -2, "max_timestamp": -3}


def _done(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except KafkaError as error:
        raise ClientFailed(getattr(error, "errno", None), str(error)) from None


class KafkaPythonAdmin(Admin):
    """See Admin."""

    name = "kafka-python"

    def __init__(self, address: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=address)

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        """See Admin."""
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        _done(lambda: self._admin.create_topics({topic: options}))

    def delete(self, topic: str) -> None:
        """See Admin."""
        _done(lambda: self._admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        """See Admin."""
        return set(_done(self._admin.list_topics))

    def leaders(self, topic: str) -> dict[int, int]:
        """See Admin."""
        [found] = _done(lambda: self._admin.describe_topics([topic]))
        if found["error_code"]:
            raise ClientFailed(found["error_code"], topic)
        return {one["partition_index"]: one["leader_id"] for one in found["partitions"]}

    def sizes(self, topic: str) -> list[int]:
        """Bytes of each partition, in order: a request that only this library has."""
        (broker,) = _done(lambda: self._admin.describe_log_dirs({topic: [0, 1]}))
        sizes = {
            each["partition_index"]: each["partition_size"]
            for directory in broker["log_dirs"]
            for found in directory["topics"]
            for each in found["partitions"]
        }
        return [sizes[number] for number in sorted(sizes)]

    def configs(self, topic: str) -> dict[str, str]:
        """See Admin."""
        asked = ConfigResource(ConfigResourceType.TOPIC, topic, None)
        found = _done(lambda: self._admin.describe_configs([asked], config_filter="all"))
        if not found["topic"][topic]:
            raise ClientFailed(None, "it passes over the error, and gives no configuration")
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def offset(self, place: Place, spec: Spec) -> tuple[int, int]:
        """See Admin."""
        asked = spec if isinstance(spec, int) else _SPECS[spec]
        [found] = _done(lambda: self._admin.list_partition_offsets({TopicPartition(*place): asked})).values()
        return found.offset, found.timestamp

    def groups(self) -> set[str]:
        """See Admin."""
        return {group["group_id"] for group in _done(self._admin.list_groups)}

    def group(self, name: str) -> Group:
        """See Admin."""
        found = _done(lambda: self._admin.describe_groups([name]))[name]
        members = {member["member_id"]: _assigned(member["member_assignment"]) for member in found["members"]}
        return Group(found["group_state"].lower(), members)

    def committed(self, group: str) -> dict[Place, int]:
        """See Admin."""
        found = _done(lambda: self._admin.list_group_offsets({group: None}))[group]
        return {(place.topic, place.partition): position.offset for place, position in found.items()}

    def move(self, group: str, positions: dict[Place, int]) -> None:
        """See Admin."""
        asked = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in positions.items()}
        for error in _done(lambda: self._admin.alter_group_offsets(group, asked)).values():
            if error.errno:
                raise ClientFailed(error.errno, str(error))

    def delete_group(self, name: str) -> None:
        """See Admin."""
        said = _done(lambda: self._admin.delete_groups([name]))[name]
        if said != "OK":
            raise ClientFailed(getattr(kafka.errors, said).errno, said)

    def close(self) -> None:
        """See Admin."""
        self._admin.close()


def _assigned(assignment: Any) -> frozenset[Place]:
    topics = assignment["assigned_partitions"] if assignment else []
    return frozenset((one["topic"], number) for one in topics for number in one["partitions"])
