"""A scripted member of a classic group: joins on one connection, fetches on another."""

import struct
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    FetchResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from headrace.records.walk import Record
from tests.harness.groups import subscription
from tests.harness.wire import Wire, fetch_request, opened

_SESSION_MS = 30_000


def assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    """The assignment of a consumer (version 0): topic -> partitions."""
    parts = [struct.pack(">hi", 0, len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, struct.pack(">i", -1)])


class Member:
    """One member. Alone in its group it makes its own assignment; with `lead` it makes those of all members."""

    def __init__(
        self, kafka: str, group: str, topic: str, *, client_id: str = "member", session_ms: int = _SESSION_MS
    ) -> None:
        """Connect twice; nothing is joined yet."""
        self.group = group
        self.topic = topic
        self._session_ms = session_ms
        self.control = Wire(kafka, client_id=client_id)
        self.reader = Wire(kafka, client_id=client_id)
        self.member_id = ""
        self.generation = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close both connections without leaving."""
        self.control.close()
        self.reader.close()

    def send_join(self) -> None:
        """Send a JoinGroup; an id is asked for first where there is none."""
        if not self.member_id:
            answer = self.control.ask(self._join(), 9)
            assert answer.error_code == Code.MEMBER_ID_REQUIRED, answer
            self.member_id = answer.member_id
        self.control.send(self._join(), 9)

    def _join(self) -> JoinGroupRequest:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(self.topic))
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=_SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def joined(self) -> Any:
        """Receive the answer to the JoinGroup."""
        answer = self.control.receive()
        assert answer.error_code == 0, answer
        self.generation = answer.generation_id
        return answer

    def send_sync(self, assignments: Mapping[str, Mapping[str, Sequence[int]]] | None = None) -> None:
        """Send a SyncGroup; the leader's has member id -> topic -> partitions."""
        self.control.send(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=assignment(partitions))
                    for member, partitions in (assignments or {}).items()
                ],
            ),
            5,
        )

    def synced(self) -> None:
        """Receive the answer to the SyncGroup."""
        answer = self.control.receive()
        assert answer.error_code == 0, answer

    def join(self, *partitions: int) -> Self:
        """Join alone and take these partitions of the topic, 0 if none is named."""
        self.send_join()
        self.joined()
        self.send_sync({self.member_id: {self.topic: partitions or (0,)}})
        self.synced()
        return self

    def heartbeat(self) -> int:
        """The error code of a Heartbeat."""
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        code: int = self.control.ask(request, 4).error_code
        return code

    def leave(self) -> None:
        """LeaveGroup."""
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        answer = self.control.ask(LeaveGroupRequest(group_id=self.group, members=[leaving]), 5)
        assert answer.error_code == 0, answer

    def fetch(self, offset: int, *, partition: int = 0, **limits: Any) -> FetchResponse.PartitionData:
        """Fetch one partition; its answer."""
        answer = self.reader.ask(fetch_request([(self.topic, partition, offset)], **limits), 12)
        found: FetchResponse.PartitionData = answer.responses[0].partitions[0]
        return found

    def read(self, offset: int, **limits: Any) -> list[Record]:
        """The records of a fetch at an offset, as a client sees them: none below it."""
        answer = self.fetch(offset, **limits)
        assert answer.error_code == 0, Code(answer.error_code)
        return [record for record in opened(answer.records) if record.offset >= offset]

    def commit(self, offset: int, *, partition: int = 0, note: str = "") -> int:
        """Commit a position; the error code."""
        return commit(self.control, self.group, self.topic, offset, partition, note, self.generation, self.member_id)

    def committed(self, partition: int = 0) -> int:
        """OffsetFetch: the group's position, -1 for none."""
        return position(self.control, self.group, self.topic, partition)[0]


def commit(
    wire: Wire,
    group: str,
    topic: str,
    offset: int,
    partition: int = 0,
    note: str = "",
    generation: int = -1,
    member: str = "",
) -> int:
    """Commit a position, without a member as admin tools do; the error code."""
    part = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=note
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    code: int = wire.ask(request, 8).topics[0].partitions[0].error_code
    return code


def position(wire: Wire, group: str, topic: str, partition: int = 0) -> tuple[int, str | None]:
    """A group's position and its note, -1 and an empty one when it has none."""
    asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[asked])]
    [answer] = wire.ask(OffsetFetchRequest(groups=groups), 8).groups
    assert answer.error_code == 0, Code(answer.error_code)
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.metadata
