"""A member of a share group that speaks the protocol byte by byte."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from tests.harness.wire import Wire, opened

from headrace.protocol import messages as m

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
Alter = m.AlterShareGroupOffsetsRequest
Describe = m.DescribeShareGroupOffsetsRequest
DescribedGroup = Describe.DescribeShareGroupOffsetsRequestGroup
DescribedTopic = Describe.DescribeShareGroupOffsetsRequestTopic
Acks = Mapping[int, Sequence[tuple[int, int, Sequence[int]]]]
"""Partition -> first and last offset, and types."""


def configure(wire: Wire, group: str, **values: object) -> None:
    """Set configurations of a group."""
    configs = [
        m.IncrementalAlterConfigsRequest.AlterableConfig(
            name=name.replace("_", "."), config_operation=0, value=str(value)
        )
        for name, value in values.items()
    ]
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=32, resource_name=group, configs=configs
    )
    answer = wire.ask(m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert [each.error_code for each in answer.responses] == [0], answer


class Sharer:
    """One member with its session on one connection."""

    def __init__(self, wire: Wire, group: str, topic: str, *, member: str = "") -> None:
        self.wire = wire
        self.group = group
        self.topic_id: UUID = wire.topic_id(topic)
        self.topic = topic
        self.member = member or uuid4().hex
        self.epoch = 0
        """Member epoch."""
        self.session = 0
        """Session epoch of the next request."""

    def beat(self, epoch: int | None = None, topics: Iterable[str] | None = None) -> Any:
        """Send a heartbeat. Joins without `epoch`, if it has not joined."""
        joins = epoch is None and self.epoch == 0
        answer = self.wire.ask(
            m.ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member,
                member_epoch=self.epoch if epoch is None else epoch,
                subscribed_topic_names=list(topics) if topics is not None else [self.topic] if joins else None,
            ),
            1,
        )
        if answer.error_code == 0:
            self.epoch = max(answer.member_epoch, 0)
        return answer

    def fetch(
        self,
        *partitions: int,
        acks: Acks | None = None,
        epoch: int | None = None,
        version: int = 2,
        wait_ms: int = 0,
        records: int = 500,
        forget: Sequence[int] = (),
        **fields: Any,
    ) -> Any:
        """Send a ShareFetch with partitions to add, acknowledgements, and the session's next epoch."""
        acks = acks or {}
        request = m.ShareFetchRequest
        asked = [
            request.FetchPartition(
                partition_index=index,
                acknowledgement_batches=[
                    request.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
                    for first, last, types in acks.get(index, ())
                ],
            )
            for index in dict.fromkeys((*partitions, *acks))
        ]
        limits = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": records}
        answer = self.wire.ask(
            request(
                group_id=self.group,
                member_id=self.member,
                share_session_epoch=self.session if epoch is None else epoch,
                batch_size=500,
                topics=[request.FetchTopic(topic_id=self.topic_id, partitions=asked)] if asked else [],
                forgotten_topics_data=[request.ForgottenTopic(topic_id=self.topic_id, partitions=list(forget))]
                if forget
                else [],
                **(limits | fields),
            ),
            version,
        )
        if answer.error_code == 0 and epoch is None:
            self.session += 1
        return answer

    def acknowledge(self, acks: Acks, *, epoch: int | None = None, version: int = 2, renew: bool = False) -> Any:
        """Send a ShareAcknowledge."""
        request = m.ShareAcknowledgeRequest
        parts = [
            request.AcknowledgePartition(
                partition_index=index,
                acknowledgement_batches=[
                    request.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
                    for first, last, types in batches
                ],
            )
            for index, batches in acks.items()
        ]
        answer = self.wire.ask(
            request(
                group_id=self.group,
                member_id=self.member,
                share_session_epoch=self.session if epoch is None else epoch,
                is_renew_ack=renew,
                topics=[request.AcknowledgeTopic(topic_id=self.topic_id, partitions=parts)] if parts else [],
            ),
            version,
        )
        if answer.error_code == 0 and epoch is None:
            self.session += 1
        return answer


def parts(answer: Any) -> dict[int, Any]:
    """The partitions of a response, by index."""
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def acquired(answer: Any, partition: int = 0) -> list[tuple[int, int, int]]:
    """First and last offset and delivery count of what a ShareFetch acquired."""
    assert answer.error_code == 0, answer
    part = parts(answer).get(partition)
    if part is None:
        return []
    assert part.error_code == 0, part
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records]


def codes(answer: Any) -> dict[int, int]:
    """Error code of each partition of a ShareAcknowledge, or of the acknowledgements of a ShareFetch."""
    assert answer.error_code == 0, answer
    return {
        index: part.acknowledge_error_code if hasattr(part, "acknowledge_error_code") else part.error_code
        for index, part in parts(answer).items()
    }


def values(answer: Any, partition: int = 0) -> list[bytes]:
    """Values of the records of a partition, also of those that were not acquired."""
    return [bytes(record.value or b"") for record in opened(parts(answer)[partition].records)]


def alter(wire: Wire, group: str, topic: str, **offsets: int) -> Any:
    """Alter partitions `p0`, `p1` ..."""
    parts = [
        Alter.AlterShareGroupOffsetsRequestPartition(partition_index=int(name[1:]), start_offset=offset)
        for name, offset in offsets.items()
    ]
    asked = Alter.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=parts)
    return wire.ask(Alter(group_id=group, topics=[asked]), 0)


def described(wire: Wire, group: str, *named: tuple[str, list[int]], version: int = 1) -> dict[tuple[str, int], Any]:
    """Start offset and lag by topic and partition. Without names: all topics."""
    topics = [DescribedTopic(topic_name=name, partitions=indexes) for name, indexes in named] or None
    (found,) = wire.ask(Describe(groups=[DescribedGroup(group_id=group, topics=topics)]), version).groups
    assert found.error_code == 0
    return {
        (topic.topic_name, part.partition_index): part.error_code or (part.start_offset, part.lag)
        for topic in found.topics
        for part in topic.partitions
    }


def delete(wire: Wire, group: str, *topics: str) -> Any:
    request = m.DeleteShareGroupOffsetsRequest
    named = [request.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    return wire.ask(request(group_id=group, topics=named), 0)
