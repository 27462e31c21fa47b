"""A raw client with short words for the requests that tests make all the time."""

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from headrace.kafka.errors import Code
from headrace.protocol.message import Records
from headrace.protocol.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from headrace.records.batch import Buffer, peek
from headrace.records.build import build
from headrace.records.walk import Record, records
from tests.harness.raw import RawClient

IDS_FROM: Final = 13
"""The version from which Produce and Fetch name topics by their ids."""
NO_ID: Final = UUID(int=0)


class Wire(RawClient):
    """A raw client with short words for the commonest requests; versions are the newest unless they are given."""

    def create(self, topic: str, partitions: int = 1, **config: object) -> str:
        """Create a topic; its name."""
        answer = self.ask(
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(
                        name=topic,
                        num_partitions=partitions,
                        replication_factor=-1,
                        configs=[
                            CreateTopicsRequest.CreatableTopicConfig(name=name.replace("_", "."), value=str(value))
                            for name, value in config.items()
                        ],
                    )
                ],
                timeout_ms=60_000,
            ),
            7,
        )
        assert answer.topics[0].error_code == 0, answer
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        asked = [DeleteTopicsRequest.DeleteTopicState(name=topic)]
        answer = self.ask(DeleteTopicsRequest(topics=asked, timeout_ms=60_000), 6)
        assert answer.responses[0].error_code == 0, answer

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
        """Delete a partition's records before an offset; the answer's error code and low watermark."""
        asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[asked])
        [found] = self.ask(DeleteRecordsRequest(topics=[named], timeout_ms=5_000), 2).topics[0].partitions
        return found.error_code, found.low_watermark

    def produce(
        self, topic: str, batch: Any, *, partition: int = 0, version: int = 9, acks: int = -1
    ) -> ProduceResponse.PartitionProduceResponse:
        """Produce one batch; the partition's answer."""
        topic_id = self.topic_id(topic) if version >= IDS_FROM else NO_ID
        answer = self.ask(produce_request(topic, batch, topic_id=topic_id, partition=partition, acks=acks), version)
        named = (topic, NO_ID) if version < IDS_FROM else ("", topic_id)
        assert [(one.name, one.topic_id) for one in answer.responses] == [named]
        [answered] = answer.responses[0].partition_responses
        assert answered.index == partition
        found: ProduceResponse.PartitionProduceResponse = answered
        return found

    def fetch(self, topic: str, offset: int, *, version: int = 12, **limits: Any) -> FetchResponse.PartitionData:
        """Fetch from one partition; its answer."""
        place = self.topic_id(topic) if version >= IDS_FROM else topic
        answer = self.ask(fetch_request([(place, 0, offset)], **limits), version)
        assert answer.error_code == 0
        found: FetchResponse.PartitionData = answer.responses[0].partitions[0]
        return found

    def offset(
        self,
        topic: str,
        timestamp: int,
        *,
        version: int = 7,
        partition: int = 0,
        epoch: int = -1,
        isolation: int = 0,
    ) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
        """ListOffsets for one partition; its answer."""
        asked = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        answer = self.ask(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])],
            ),
            version,
        )
        found: ListOffsetsResponse.ListOffsetsPartitionResponse = answer.topics[0].partitions[0]
        return found

    def metadata(self, *topics: str, version: int = 12, create: bool = False) -> Any:
        """Metadata of some topics."""
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        return self.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=create), version)

    def topic_id(self, topic: str) -> UUID:
        """A topic's id."""
        found: UUID = self.metadata(topic).topics[0].topic_id
        return found

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """A group's position, -1 when it has none."""
        asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[asked])]
        answer = self.ask(OffsetFetchRequest(groups=groups), 8)
        found: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return found

    def generation(self, group: str) -> int:
        """The generation of a group with members. No response has it, but a wrong one in a heartbeat is refused."""
        [found] = self.ask(DescribeGroupsRequest(groups=[group]), 5).groups
        member = found.members[0]
        for generation in range(1, 1_000):
            beat = HeartbeatRequest(
                group_id=group,
                generation_id=generation,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
            )
            if self.ask(beat, 4).error_code != Code.ILLEGAL_GENERATION:
                return generation
        raise AssertionError("no generation is accepted")

    def producer_id(self) -> int:
        """A new producer id."""
        answer = self.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4)
        assert answer.error_code == 0
        found: int = answer.producer_id
        return found


def batch(*values: bytes | None, timestamp: int = 1_700_000_000_000, step: int = 0, **fields: Any) -> bytes:
    """One batch of records without keys; `step` ms between their timestamps, `fields` as `records.build.build`."""
    made = [(None, value, timestamp + number * step, ()) for number, value in enumerate(values)]
    return bytes(build(made, **fields))


def produce_request(
    topic: str,
    data: Records | None,
    *,
    topic_id: UUID = NO_ID,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A Produce request for one partition."""
    part = ProduceRequest.PartitionProduceData(index=partition, records=data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        transactional_id=transactional_id,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])],
    )


def fetch_request(
    places: Iterable[tuple[str | UUID, int, int]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation: int = 0,
    epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    """A Fetch request for (topic or its id, partition, offset)s, one after the other."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchRequest.FetchTopic(
                topic=topic if isinstance(topic, str) else "",
                topic_id=NO_ID if isinstance(topic, str) else topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=epoch,
                    )
                ],
            )
            for topic, partition, offset in places
        ],
    )


def batches(data: Buffer | None) -> list[bytes]:
    """The batches in a Fetch answer; AssertionError when the last one is cut off."""
    rest = bytes(data or b"")
    found = []
    while rest:
        size = int.from_bytes(rest[8:12], "big") + 12
        assert size <= len(rest), f"a batch of {size} bytes of which {len(rest)} are there"
        found.append(rest[:size])
        rest = rest[size:]
    return found


def opened(data: Buffer | None) -> list[Record]:
    """The records in a Fetch answer, at the offsets stamped on their batches."""
    return [record for one in batches(data) for record in records(one, peek(one).base_offset)]
