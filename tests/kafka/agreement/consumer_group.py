"""A consumer group for the table of requests: what its members know, and what they send."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from tests.harness.wire import NO_ID, Wire
from tests.kafka.agreement.cases import Answer, name_of

from headrace.protocol import messages as m

PARTITIONS = 4
UNKNOWN_ID = UUID(int=7)
_IDS_FROM = 10
_SETTLED_S = 30
Assignment = dict[UUID, list[int]]


class ConsumerGroup:
    """One group that reads a topic of four partitions."""

    def __init__(self, wire: Wire, topic: str, topic_id: UUID, secret: str) -> None:
        self.wire = wire
        self.name = f"group-{uuid4().hex[:12]}"
        self.topic, self.topic_id, self.secret = topic, topic_id, secret
        self.epochs: dict[str, int] = {}
        self.held: dict[str, Assignment] = {}
        self.classic = ("", -1)
        self.words: dict[str, object] = {"group": self.name, "topic": topic}

    def join(self, member: str, **said: Any) -> Answer:
        """Join with what a client sends. `said`: other fields of the request."""
        fields = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [self.topic],
            "topic_partitions": [],
            **said,
        }
        return self.beat(member, epoch=0, **fields)

    def beat(
        self,
        member: str,
        *,
        later: int = 0,
        epoch: int | None = None,
        owned: Sequence[int] | None = None,
        version: int = 1,
        **said: Any,
    ) -> Answer:
        """Send a heartbeat with the epoch of the member, or a `later` one."""
        known = self.epochs.get(member, 2)
        sent = known + later if epoch is None else epoch
        self.words.update(epoch=known, sent=sent)
        fields = {"group_id": self.name, "member_id": member, "member_epoch": sent, **said}
        if owned is not None:
            part = m.ConsumerGroupHeartbeatRequest.TopicPartitions
            fields["topic_partitions"] = [part(topic_id=self.topic_id, partitions=list(owned))] if owned else []
        answer = self.wire.ask(m.ConsumerGroupHeartbeatRequest(**fields), version)
        facts: dict[str, object] = {
            "assigned": None
            if answer.assignment is None
            else sorted(index for each in answer.assignment.topic_partitions for index in each.partitions),
            "rises": answer.member_epoch - known,
            "epoch": answer.member_epoch,
            "id": bool(answer.member_id),
            "interval": answer.heartbeat_interval_ms > 0,
        }
        if answer.error_code == 0 and answer.member_epoch >= 0:
            self.epochs[member] = answer.member_epoch
            if answer.assignment is not None:
                found = answer.assignment.topic_partitions
                self.held[member] = {each.topic_id: list(each.partitions) for each in found}
        return Answer(name_of(answer.error_code), answer.error_message, facts)

    def settle(self, *members: str) -> Answer:
        """Send heartbeats until all partitions belong to these members, at one epoch."""
        deadline = time.monotonic() + _SETTLED_S
        while True:
            for member in members:
                answer = self.beat(member, owned=self.held.get(member, {}).get(self.topic_id, []))
                assert answer.error == "NONE", answer
            held = [index for member in members for index in self.held[member].get(self.topic_id, [])]
            if sorted(held) == list(range(PARTITIONS)) and len({self.epochs[member] for member in members}) == 1:
                return answer
            assert time.monotonic() < deadline, self.held

    def commit(
        self,
        member: str = "",
        partition: int = 0,
        *,
        later: int = 0,
        epoch: int | None = None,
        version: int = 10,
        known: bool = True,
        instance: str | None = None,
    ) -> Answer:
        """Commit one offset. `known`: for the topic of the group."""
        request = m.OffsetCommitRequest
        by_id = version >= _IDS_FROM
        part = request.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=5, committed_metadata=""
        )
        topic = request.OffsetCommitRequestTopic(
            name="" if by_id else self.topic if known else "nowhere",
            topic_id=(self.topic_id if known else UNKNOWN_ID) if by_id else NO_ID,
            partitions=[part],
        )
        answer = self.wire.ask(
            request(
                group_id=self.name,
                member_id=member,
                group_instance_id=instance,
                generation_id_or_member_epoch=self.epochs.get(member, -1) + later if epoch is None else epoch,
                topics=[topic],
            ),
            version,
        )
        return Answer(name_of(answer.topics[0].partitions[0].error_code))

    def committed(
        self,
        member: str | None = None,
        *,
        later: int = 0,
        epoch: int | None = None,
        version: int = 10,
        known: bool = True,
    ) -> Answer:
        """Fetch the committed offset of partition 0."""
        request = m.OffsetFetchRequest
        by_id = version >= _IDS_FROM
        topic = request.OffsetFetchRequestTopics(
            name="" if by_id else self.topic if known else "nowhere",
            topic_id=(self.topic_id if known else UNKNOWN_ID) if by_id else NO_ID,
            partition_indexes=[0],
        )
        at = self.epochs.get(member or "", -1) + later if epoch is None else epoch
        group = request.OffsetFetchRequestGroup(group_id=self.name, member_id=member, member_epoch=at, topics=[topic])
        [found] = self.wire.ask(request(groups=[group]), version).groups
        parts = [part for each in found.topics for part in each.partitions]
        facts: dict[str, object] = {
            "offsets": [part.committed_offset for part in parts],
            "errors": [name_of(part.error_code) for part in parts],
        }
        return Answer(name_of(found.error_code), None, facts)
