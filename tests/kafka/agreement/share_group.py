"""A share group for the table of requests: its members, their sessions, and what they send."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from tests.harness.wire import Wire
from tests.kafka import sharer
from tests.kafka.agreement.cases import Answer, name_of
from tests.kafka.agreement.consumer_group import PARTITIONS
from tests.kafka.sharer import Acks, Sharer

from headrace.protocol import messages as m

WAIT_MS = 10_000
"""For records that are there: the first fetch of a partition takes Kafka a while."""
_ASSIGNED_S = 30


class ShareGroup:
    """One group that reads a topic of four partitions, with ten records in each. A has its own connection."""

    def __init__(self, wires: Sequence[Wire], topic: str, topic_id: UUID, secret: str) -> None:
        self.wire, self._other = wires
        self.name = f"share-{uuid4().hex[:12]}"
        self.topic, self.topic_id, self.secret = topic, topic_id, secret
        self.classic = ("", -1)
        self.members: dict[str, Sharer] = {}
        self.words: dict[str, object] = {"group": self.name, "topic": topic}

    def member(self, name: str) -> Sharer:
        """The member of this ID, which may not have joined."""
        wire = self.wire if name == "A" else self._other
        return self.members.setdefault(name, Sharer(wire, self.name, self.topic, member=name))

    # Heartbeats

    def join(self, member: str, **said: Any) -> Answer:
        """Join with what a client sends. `said`: other fields of the request."""
        return self.beat(member, epoch=0, **{"subscribed_topic_names": [self.topic], **said})

    def beat(self, member: str, *, later: int = 0, epoch: int | None = None, **said: Any) -> Answer:
        """Send a heartbeat with the epoch of the member, or a `later` one."""
        sender = self.member(member)
        sent = sender.epoch + later if epoch is None else epoch
        self.words.update(epoch=sender.epoch, sent=sent, previous=sender.epoch - 1)
        fields = {"group_id": self.name, "member_id": member, "member_epoch": sent, **said}
        answer = sender.wire.ask(m.ShareGroupHeartbeatRequest(**fields), 1)
        assigned = answer.assignment
        facts: dict[str, object] = {
            "assigned": None
            if assigned is None
            else sorted(index for each in assigned.topic_partitions for index in each.partitions),
            "rises": answer.member_epoch - sender.epoch,
            "epoch": answer.member_epoch,
            "interval": answer.heartbeat_interval_ms > 0,
        }
        if answer.error_code == 0 and answer.member_epoch >= 0:
            sender.epoch = answer.member_epoch
        return Answer(name_of(answer.error_code), answer.error_message, facts)

    def enter(self, *members: str) -> Answer:
        """Let a group begin at offset 0, and members join. Wait until all partitions are assigned."""
        answer = self.alter(p0=0, p1=0, p2=0, p3=0)
        held: dict[str, object] = {}
        for member in members:
            answer = self.join(member)
            held[member] = answer.facts["assigned"]
        deadline = time.monotonic() + _ASSIGNED_S
        while {index for each in held.values() if isinstance(each, list) for index in each} != set(range(PARTITIONS)):
            for member in members:
                answer = self.beat(member)
                assert answer.error == "NONE", answer
                held[member] = held[member] if answer.facts["assigned"] is None else answer.facts["assigned"]
            assert time.monotonic() < deadline, held
        return answer

    # Connections

    def disconnect(self, member: str) -> Answer:
        """Close the connection of a member."""
        self.member(member).wire.close()
        return Answer("NONE")

    def reconnect(self, member: str) -> Answer:
        """Let a member continue over the connection of the others. Its own one stays open."""
        self.member(member).wire = self._other
        return Answer("NONE")

    def open_sessions(self, number: int) -> Answer:
        """Open sessions of so many members. The answer is the last one's. Then end them: other cases need some."""
        answers = {name: self.fetch(name, 0, wait_ms=0) for name in (f"Z{each}" for each in range(number))}
        for name, answer in answers.items():
            if answer.error == "NONE":
                self.fetch(name, epoch=-1, wait_ms=0)
        return answer

    # Records

    def fetch(self, member: str, *partitions: int, wait_ms: int = WAIT_MS, **said: Any) -> Answer:
        """Send a ShareFetch."""
        return _records(self.member(member).fetch(*partitions, wait_ms=wait_ms, **said))

    def renew_and_fetch(self, member: str, acks: Acks, **limits: int) -> Answer:
        """Send a ShareFetch that renews locks and therefore has no limits, but for those given."""
        fields: dict[str, Any] = {"min_bytes": 0, "max_bytes": 0, "max_records": 0, **limits}
        return _records(self.member(member).fetch(acks=acks, is_renew_ack=True, **fields))

    def acknowledge(
        self, member: str, *batches: tuple[int, int, Sequence[int]], partition: int = 0, **said: Any
    ) -> Answer:
        """Send a ShareAcknowledge about one partition; without batches, about none."""
        answer = self.member(member).acknowledge({partition: batches} if batches else {}, **said)
        parts = sharer.parts(answer)
        facts: dict[str, object] = {"errors": {index: name_of(part.error_code) for index, part in parts.items()}}
        return Answer(name_of(answer.error_code), answer.error_message, facts)

    def unnamed(self, request: type[m.ShareFetchRequest] | type[m.ShareAcknowledgeRequest]) -> Answer:
        """Send a request without a group and a member."""
        answer = self.wire.ask(request(group_id=None, member_id=None), 2)
        return Answer(name_of(answer.error_code), answer.error_message)

    # Offsets and configuration

    def configure(self, **values: object) -> Answer:
        """Set configurations of the group."""
        sharer.configure(self.wire, self.name, **values)
        return Answer("NONE")

    def alter(self, topic: str | None = None, **offsets: int) -> Answer:
        """Alter start offsets of partitions `p0`, `p1` ..."""
        answer = sharer.alter(self.wire, self.name, topic or self.topic, **offsets)
        parts = [
            (name_of(part.error_code), part.error_message) for each in answer.responses for part in each.partitions
        ]
        facts: dict[str, object] = {"errors": [error for error, _ in parts], "messages": [why for _, why in parts]}
        return Answer(name_of(answer.error_code), answer.error_message, facts)

    def offsets(self, topic: str | None = None, *partitions: int) -> Answer:
        """Describe start offsets: of all topics, or of partitions of one."""
        asked = m.DescribeShareGroupOffsetsRequest
        topics = None
        if topic is not None:
            part = asked.DescribeShareGroupOffsetsRequestTopic
            topics = [part(topic_name=topic, partitions=list(partitions))]
        group = asked.DescribeShareGroupOffsetsRequestGroup(group_id=self.name, topics=topics)
        [found] = self.wire.ask(asked(groups=[group]), 1).groups
        parts = {part.partition_index: part for each in found.topics for part in each.partitions}
        facts: dict[str, object] = {
            "offsets": {index: part.start_offset for index, part in sorted(parts.items())},
            "lags": {index: part.lag for index, part in sorted(parts.items())},
            "errors": {index: name_of(part.error_code) for index, part in sorted(parts.items())},
        }
        return Answer(name_of(found.error_code), found.error_message, facts)

    def offsets_here(self, *partitions: int) -> Answer:
        """Describe start offsets of partitions of the group's topic."""
        return self.offsets(self.topic, *partitions)

    def delete_offsets(self, *topics: str) -> Answer:
        """Delete the offsets of topics; without names, of the group's."""
        answer = sharer.delete(self.wire, self.name, *(topics or (self.topic,)))
        facts: dict[str, object] = {
            "errors": [name_of(each.error_code) for each in answer.responses],
            "messages": [each.error_message for each in answer.responses],
        }
        return Answer(name_of(answer.error_code), answer.error_message, facts)


def _records(answer: Any) -> Answer:
    parts: Mapping[int, Any] = sharer.parts(answer)
    facts: dict[str, object] = {
        "errors": {index: name_of(part.error_code) for index, part in parts.items()},
        "acks": {index: name_of(part.acknowledge_error_code) for index, part in parts.items()},
        "acquired": {index: _runs(part.acquired_records) for index, part in parts.items() if part.acquired_records},
        "lock": answer.acquisition_lock_timeout_ms,
    }
    return Answer(name_of(answer.error_code), answer.error_message, facts)


def _runs(acquired: Sequence[Any]) -> list[tuple[int, int, int]]:
    """First and last offset and delivery count. The servers cut ranges differently."""
    runs: list[tuple[int, int, int]] = []
    for each in acquired:
        if runs and (runs[-1][1] + 1, runs[-1][2]) == (each.first_offset, each.delivery_count):
            runs[-1] = (runs[-1][0], each.last_offset, each.delivery_count)
        else:
            runs.append((each.first_offset, each.last_offset, each.delivery_count))
    return runs
